"""Equations and codecs compiled into fewer kernels by torch.compile."""

import copy
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from fedcom import draws
from fedcom.engines.base import Options
from fedcom.engines.local.eager import EagerEngine, Rehearsal
from fedcom.engines.local.graph import GraphEngine
from fedcom.rounds.round import play
from fedcom.rounds.rules import Rules, relative_error
from fedcom.rounds.state import RunState
from fedcom.tasks.task import Task
from fedcom.traffic.ledger import Ledger

log = logging.getLogger("fedcom")
_WAYS = {"method and codec": (True, True), "method": (True, False), "codec": (False, True)}


class CompiledEngine(GraphEngine):
    """Compiles what can be compiled of a round before it plays the first, then records and replays it."""

    def __init__(self, runs: Sequence[RunState], task: Task, options: Options) -> None:
        super().__init__(runs, task, options)
        self.compiled: str | None = None  # what is, once something was tried

    def play(self) -> list[Ledger]:
        """The round of the present inputs; what it cost each run."""
        if self.compiled is None:
            self.compiled = compile_rules(self)
        return super().play()


def compile_rules(engine: EagerEngine) -> str:
    """Compile what can be compiled of an engine's rules, and say what that is.

    Each way is tried on a round that is not kept; one that fails is left with a logged reason.
    """
    torch.compiler.assume_constant_result(draws.salt)  # type: ignore[no-untyped-call]
    torch._dynamo.config.recompile_limit = 256  # methods, codecs and shapes of one process, not of one run
    plain = [run.rules for run in engine.runs]
    _prepare(engine)
    for what, (method, codec) in _WAYS.items():
        started = time.perf_counter()
        compiled = _compiled_rules(plain[0], method, codec)
        try:
            _play_by(engine, [replace(compiled, algorithm=_like(compiled, rules)) for rules in plain])
            play(Rehearsal(engine))
        except Exception as error:  # whatever the compiler could not do, the plain path can
            _play_by(engine, plain)
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            log.warning("torch.compile failed on %s: %s", what, reason)
        else:
            log.info("%s compiled in %.1f s, kept for the next time", what, time.perf_counter() - started)
            return what
    return "nothing"


def _prepare(engine: EagerEngine) -> None:
    """Have what is computed once and kept computed now, out of the compiler's sight."""
    rules, clients = engine.runs[0].rules, engine.inputs.client
    kind = repr((type(rules.algorithm), rules.links.uplink, rules.layout, clients.device, len(clients)))
    if kind not in _PREPARED:
        play(Rehearsal(engine))
        _PREPARED.add(kind)


_PREPARED: set[str] = set()


def _play_by(engine: EagerEngine, rules: list[Rules]) -> None:
    for run, own in zip(engine.runs, rules, strict=True):
        run.rules = own


def _like(compiled: Rules, rules: Rules) -> Any:
    """An algorithm with its own rates and what was compiled for another; none of that looks at rates."""
    twin = copy.copy(rules.algorithm)
    for name in _HOT:
        if name in vars(compiled.algorithm):
            object.__setattr__(twin, name, vars(compiled.algorithm)[name])
    return twin


_HOT = ("local_step", "upload", "client_step")


def _compiled_rules(rules: Rules, method: bool, codec: bool) -> Rules:
    algorithm, links = rules.algorithm, rules.links
    if method:
        algorithm = _compiled(algorithm, "local_step", "upload")
        object.__setattr__(algorithm, "client_step", _in_place(rules.algorithm.client_step))
    if codec:
        links = replace(links, uplink=_compiled(links.uplink, "compress", "expand", "quantise"))
    return replace(rules, algorithm=algorithm, links=links, measure=_compile(relative_error))


def _in_place(client_step: Callable[..., Any]) -> Callable[..., Any]:
    """A compiled client_step that writes where the old state is: most often the store itself."""

    def write(client: Any, *rest: Any) -> None:
        for old, new in zip(client, client_step(client, *rest), strict=True):
            old.copy_(new)

    compiled = _compile(write)

    def step(client: Any, *rest: Any) -> Any:
        compiled(client, *rest)
        return client

    return step


def _compiled(thing: Any, *methods: str) -> Any:
    """A copy of a frozen object some of whose methods are compiled."""
    twin = copy.copy(thing)
    for name in methods:
        object.__setattr__(twin, name, _compile(getattr(thing, name)))
    return twin


def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    # So that gradients of tensors become one vector as they are used.
    options: dict[str, Any] = {"force_pointwise_cat": True}
    return torch.compile(function, fullgraph=True, dynamic=False, options=options)
