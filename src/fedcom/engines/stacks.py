"""Runs of equal shapes, played in step as one stack."""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from fedcom.engines.base import Engine
from fedcom.engines.choice import make_engine
from fedcom.engines.simulation import Simulation
from fedcom.engines.state.placement import clients_that_fit
from fedcom.errors import ConfigError
from fedcom.tasks.task import Task


def stack_runs(simulations: Sequence[Simulation]) -> Engine:
    """Let new runs of equal shapes be played in step, as one stack; returns the engine that plays them."""
    first = simulations[0]
    if len(simulations) == 1:
        return first.engine
    if not all(map(_stackable, simulations)):
        raise ConfigError(
            "runs cannot be played in step if clients differ in budgets or ranks, samples are drawn, "
            "messages are encoded or the base changes (adapters fedex and flora); play each run by itself"
        )
    if len({simulation.state.network for simulation in simulations}) > 1:
        raise ConfigError("runs played in step must share one network; play each run by itself")
    if len({simulation.algorithm.local.shared for simulation in simulations}) > 1:
        raise ConfigError(
            "runs played in step must share one local optimiser, but for its mu; play each run by itself"
        )
    if len({_frozen(simulation) for simulation in simulations}) > 1:
        raise ConfigError("runs played in step must share their frozen parameters; play each run by itself")
    own = [simulation.rules.own for simulation in simulations]
    if any(each is not None and not torch.equal(each, cast(Tensor, own[0])) for each in own):
        raise ConfigError(
            "clients of runs played in step must begin with the same own parameters; play each run by itself"
        )
    task = Task.stacked([simulation.task for simulation in simulations])
    options = replace(first.options, chunk=len(simulations) * first.rules.sampled)
    engine = make_engine(first.engine_name, [run.state for run in simulations], task, options)
    for i, simulation in enumerate(simulations):
        simulation.join(engine, i)
    return engine


def runs_that_fit(simulation: Simulation) -> int:
    """How many runs like this one fit into a GPU's memory; 1 on a CPU, where stacking gains nothing."""
    w = simulation.server.w
    fit = clients_that_fit(simulation.task, simulation.algorithm, w) if w.is_cuda else 0
    alike = _stackable(simulation) and not _frozen(simulation)  # others may be drawn from another seed
    return max(1, fit // simulation.rules.sampled) if alike else 1


def _frozen(simulation: Simulation) -> tuple[int, ...]:
    """Where the frozen parameters of a run's module lie in memory."""
    parameters = simulation.task.objective.module.parameters()
    return tuple(p.data_ptr() for p in parameters if not p.requires_grad)


def _stackable(simulation: Simulation) -> bool:
    """Whether other seeds give tensors of the same shapes; not if clients differ in codecs."""
    links, drawn = simulation.rules.links, simulation.task.source is not None
    own_base = simulation.rules.products is not None or simulation.rules.ranks is not None
    return not (drawn or links.encode or links.budgets is not None or own_base)
