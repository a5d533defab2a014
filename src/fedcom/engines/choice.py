"""Engines by name: the one place that knows them."""

from collections.abc import Sequence

import torch

from fedcom.engines.base import Engine, Options
from fedcom.engines.local.compiled import CompiledEngine
from fedcom.engines.local.eager import EagerEngine
from fedcom.engines.local.graph import GraphEngine
from fedcom.engines.ranks.engine import RankedEngine
from fedcom.engines.ranks.graph import RankedGraphEngine
from fedcom.errors import ConfigError, unknown
from fedcom.rounds.state import RunState
from fedcom.tasks.task import Task

ENGINES: dict[str, type[EagerEngine]] = {
    "eager": EagerEngine,
    "graph": GraphEngine,
    "compiled": CompiledEngine,
}
RANKED: dict[str, type[RankedEngine]] = {"eager": RankedEngine, "graph": RankedGraphEngine}
AUTO = "auto"  # graph on a GPU, eager on a CPU


def check_name(name: str) -> None:
    """Refuse a name that no engine has."""
    if name not in (AUTO, *ENGINES):
        raise unknown("engine", name, (AUTO, *ENGINES))


def check_engine(name: str, device: torch.device) -> None:
    """Refuse an unknown name, and an engine that cannot use the device."""
    check_name(name)
    if name != AUTO and ENGINES[name].needs_gpu and device.type != "cuda":
        raise ConfigError(
            f"engine {name} replays rounds on a GPU, but the device is a CPU; use auto or eager"
        )


def make_engine(name: str, runs: Sequence[RunState], task: Task, options: Options) -> Engine:
    """An engine for some runs, on their task's device.

    Args:
        name: one of ENGINES, or AUTO.
        task: the clients of all runs, those of the first run first.
    """
    check_engine(name, task.x.device)
    if name == AUTO:
        name = "graph" if task.x.is_cuda else "eager"
    if options.ranks.size > 1:
        if name not in RANKED:
            raise ConfigError(
                f"engine {name} plays rounds in one process; on several ranks use {' or '.join(RANKED)}"
            )
        return RANKED[name](runs, task, options)
    return ENGINES[name](runs, task, options)
