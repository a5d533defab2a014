"""Equations and codecs compiled into fused kernels by torch.compile."""

import copy
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from fedcom import draws
from fedcom.engines.stack import Stack, log
from fedcom.round import Rules


def fuse(stack: Stack) -> str | None:
    """Compile a stack's rules and try them on a round that is not kept; the reason where that fails."""
    plain, started = [run.rules for run in stack.runs], time.perf_counter()
    torch.compiler.assume_constant_result(draws.salt)  # type: ignore[no-untyped-call]
    try:
        for run in stack.runs:
            run.rules = _compiled_rules(run.rules)
        stack.rehearse()
    except Exception as error:  # whatever the compiler could not do, the plain path can
        for run, rules in zip(stack.runs, plain, strict=True):
            run.rules = rules
        reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
        log.warning("torch.compile failed and rounds are not compiled: %s", reason)
        return reason
    log.info("compiled in %.1f s, kept for the next time", time.perf_counter() - started)
    return None


def _compiled_rules(rules: Rules) -> Rules:
    algorithm = _compiled(rules.algorithm, "local_step", "upload")
    step = _compile(lambda *args: tuple(rules.algorithm.client_step(*args)))

    def client_step(client: Any, *rest: Any) -> Any:  # the compiler forgets the types of named tuples
        return type(client)(*step(client, *rest))

    object.__setattr__(algorithm, "client_step", client_step)
    uplink = _compiled(rules.links.uplink, "compress", "expand")
    return replace(rules, algorithm=algorithm, links=replace(rules.links, uplink=uplink))


def _compiled(thing: Any, *methods: str) -> Any:
    """A copy of a frozen object some of whose methods are compiled."""
    twin = copy.copy(thing)
    for name in methods:
        object.__setattr__(twin, name, _compile(getattr(thing, name)))
    return twin


def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, fullgraph=True, dynamic=False)
