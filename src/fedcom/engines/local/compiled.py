"""A round whose equations and codec torch.compile has turned into fewer kernels."""

import copy
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from fedcom import draws
from fedcom.algorithms import Algorithm
from fedcom.engines.base import Options
from fedcom.engines.local.eager import EagerEngine, Rehearsal
from fedcom.engines.local.graph import GraphEngine, first_line
from fedcom.rounds.round import play
from fedcom.rounds.rules import Rules, relative_error
from fedcom.rounds.state import RunState
from fedcom.tasks.task import Task
from fedcom.traffic.ledger import Ledger
from fedcom.vectors import share_memory

T = TypeVar("T")
log = logging.getLogger("fedcom")
_WAYS = {"method and codec": (True, True), "method": (True, False), "codec": (False, True)}


class CompiledEngine(GraphEngine):
    """Compiles what it can of a round before the first one, then records and replays it.

    Attributes:
        compiled: what is compiled; None before the first round.
    """

    leaves: ClassVar[bool] = False  # each number of clients would be compiled anew

    def __init__(self, runs: Sequence[RunState], task: Task, options: Options) -> None:
        super().__init__(runs, task, options)
        self.compiled: str | None = None
        self.walks = True

    def play(self) -> list[Ledger]:
        """Play or replay the round that the inputs describe; returns the bytes sent, one ledger per run."""
        if self.compiled is None:
            self.compiled = compile_rules(self)
        return super().play()


def compile_rules(engine: EagerEngine) -> str:
    """Compile what can be compiled of an engine's rules; returns what that is.

    Each way is tried on a rehearsal; one that fails is logged with the reason and given up.
    """
    torch.compiler.assume_constant_result(draws.salt)  # type: ignore[no-untyped-call]
    torch._dynamo.config.recompile_limit = 256  # counts the methods, codecs and shapes of the whole process
    plain = [run.rules for run in engine.runs]
    _prepare(engine)
    for what, (method, codec) in _WAYS.items():
        started = time.perf_counter()
        compiled = _compiled_rules(plain[0], method, codec)
        try:
            _set_rules(
                engine, [replace(compiled, algorithm=_with_compiled(rules, compiled)) for rules in plain]
            )
            _rehearse(engine)
        except Exception as error:  # whatever the compiler could not do, the plain rules can
            _set_rules(engine, plain)
            log.warning("torch.compile failed on %s: %s", what, first_line(error))
        else:
            _quick_keys()
            log.info("%s compiled in %.1f s, kept for the next time", what, time.perf_counter() - started)
            return what
    return "nothing"


def _prepare(engine: EagerEngine) -> None:
    """Play a rehearsal first, so that what is computed once and cached is not compiled."""
    try:
        _rehearse(engine)
    except Exception as error:
        if not engine.walks:
            raise
        engine.walks = False
        log.warning("local steps are taken one by one, their kernels failed: %s", first_line(error))
        _rehearse(engine)


def _rehearse(engine: EagerEngine) -> None:
    """Rehearse the next round; and those after it, if other parts of the model are trained in them.

    Afterwards the engine's inputs are those of the next round again.
    """
    first, turns = engine.round, max(1, len(engine.runs[0].rules.turns))
    try:
        for number in range(first, first + turns):
            engine.round = number
            play(Rehearsal(engine))
    finally:
        engine.round = first
        engine.load_inputs()


def _quick_keys() -> None:
    """Fold keys by one Triton kernel, now that Triton has been imported and found to work."""
    if find_spec("triton") is not None:
        from fedcom.codecs.kernels import triton_draws

        draws.fold_on_gpu_with(triton_draws.fold)


def _set_rules(engine: EagerEngine, rules: list[Rules]) -> None:
    for run, new in zip(engine.runs, rules, strict=True):
        run.rules = new


def _with_compiled(rules: Rules, compiled: Rules) -> Algorithm:
    """A run's algorithm with the methods that were compiled for the first run: they serve all rates."""
    twin = copy.copy(rules.algorithm)
    for name in _COMPILED:
        if name in vars(compiled.algorithm):
            object.__setattr__(twin, name, vars(compiled.algorithm)[name])
    return twin


_COMPILED = ("local_step", "optimised_step", "upload", "client_step")


def _compiled_rules(rules: Rules, method: bool, codec: bool) -> Rules:
    algorithm, links = rules.algorithm, rules.links
    if method:
        algorithm = _compiled(algorithm, "upload")
        object.__setattr__(algorithm, "local_step", _aligned(rules.algorithm.local_step))
        object.__setattr__(algorithm, "optimised_step", _aligned_pair(rules.algorithm.optimised_step))
        object.__setattr__(algorithm, "client_step", _in_place(rules.algorithm.client_step))
    if codec:
        links = replace(links, uplink=_compiled(links.uplink, "compress", "expand", "quantise"))
    return replace(rules, algorithm=algorithm, links=links, measure=_compile(relative_error))


def _aligned(local_step: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A compiled local_step whose models begin at multiples of 128 bytes: products are quicker there."""

    def alone(*given: Any) -> tuple[Tensor, None]:
        return local_step(*given), None

    step = _aligned_pair(alone)
    return lambda *given: step(*given)[0]


def _aligned_pair(local_step: Callable[..., tuple[Tensor, Any]]) -> Callable[..., tuple[Tensor, Any]]:
    """The same for a step that returns something beside the models."""

    def write(new: Tensor, *given: Any) -> Any:
        moved, beside = local_step(*given)
        new.copy_(moved)
        return beside

    compiled = _compile(write)

    def step(w: Tensor, *rest: Any) -> tuple[Tensor, Any]:
        clients, d = w.shape
        new = w.new_empty(clients, -(-d // _ALIGNED) * _ALIGNED)[:, :d]
        return new, compiled(new, w, *rest)

    return step


_ALIGNED = 32  # numbers


def _in_place(client_step: Callable[..., Any]) -> Callable[..., Any]:
    """A compiled client_step that writes the new state over the old one, most often in the store itself.

    A method that moves a tensor from one field to another has its new state returned instead: a compiler may
    write one field before it reads the other.
    """

    def write(client: Any, *rest: Any) -> None:
        for old, new in zip(client, client_step(client, *rest), strict=True):
            old.copy_(new)

    returned, written, moves = _compile(client_step), _compile(write), list[bool]()

    def step(client: Any, *rest: Any) -> Any:
        if not moves:
            moves.append(_moves(client, client_step(client, *rest)))
        if moves[0]:
            return returned(client, *rest)
        written(client, *rest)
        return client

    return step


def _moves(old: Sequence[Tensor], new: Sequence[Tensor]) -> bool:
    """Whether a new tensor lies in the memory of an old one that is not its own."""
    return any(share_memory(x, y) for i, x in enumerate(old) for j, y in enumerate(new) if i != j)


def _compiled(thing: T, *methods: str) -> T:
    """A copy of a frozen object with some methods compiled."""
    twin = copy.copy(thing)
    for name in methods:
        object.__setattr__(twin, name, _compile(getattr(thing, name)))
    return twin


def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    # Let the kernel that uses a gradient join its tensors into one vector.
    options: dict[str, Any] = {"force_pointwise_cat": True}
    return torch.compile(function, fullgraph=True, dynamic=False, options=options)
