"""The sampled clients of several runs as rows of one stack: those of run 0 first, then those of run 1.

What a run knows is laid out over its rows, and what rows did is gathered by run. One run alone is the
simplest case, and nothing is copied for it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedcom.algorithms.base import Round
from fedcom.rounds.round import Heard, Work
from fedcom.vectors import Vectors


@dataclass(frozen=True)
class Stack:
    """Rows for `sampled` of the `clients` of each of some runs."""

    runs: int
    clients: int
    sampled: int
    device: torch.device

    def __len__(self) -> int:
        """How many rows there are."""
        return self.runs * self.sampled

    @cached_property
    def of_run(self) -> Tensor:
        """The run of each row."""
        return torch.arange(self.runs, device=self.device).repeat_interleave(self.sampled)

    def places(self, numbers: Tensor, rows: slice = slice(None)) -> Tensor:
        """Where clients of some rows are among the clients of all runs, given their numbers in their own."""
        return numbers + self.clients * self.of_run[rows]

    def own(self, x: Tensor, run: int) -> Tensor:
        """The rows of one run, out of those of all runs."""
        return x if self.runs == 1 else x[run * self.sampled : (run + 1) * self.sampled]

    def lay_vectors(self, vectors: Sequence[Vectors]) -> Vectors:
        """The vectors of each run, once for each of its rows; those of one run alone serve all rows."""
        if self.runs == 1:
            return vectors[0]
        names = vectors[0]
        return {name: torch.cat([own[name].expand(self.sampled, -1) for own in vectors]) for name in names}

    def lay_facts(self, rounds: Sequence[Round], rows: slice, dtype: torch.dtype) -> Round:
        """The facts of each run's round as columns of one number per row; of one run as they are."""
        if self.runs == 1:
            return rounds[0]
        return self._facts(rounds, dtype, lambda numbers: numbers[self.of_run[rows]].unsqueeze(-1))

    def finished(
        self, finish: Callable[[Work, Heard], tuple[Any, Vectors]], work: Work, heard: Sequence[Heard]
    ) -> tuple[Any, Vectors]:
        """The state and memory of rows after the round, each from what its own run's server said."""
        if self.runs == 1:
            return finish(work, heard[0])
        by_run = (self.runs, self.sampled)
        mean = {name: torch.stack([own.mean[name] for own in heard]).unsqueeze(1) for name in heard[0].mean}
        facts = self._facts([own.rnd for own in heard], heard[0].kept.server.w.dtype, _as_axes)
        rows = Work(*(each(x, lambda rows: rows.reshape(*by_run, *rows.shape[1:])) for x in work))
        state, memory = finish(rows, heard[0]._replace(mean=mean, rnd=facts))
        return each(state, _flat), each(memory, _flat)

    def numbers(self, values: Sequence[float | Tensor]) -> Tensor:
        """One number per run, on the device, in float64."""
        like = torch.empty((), dtype=torch.float64, device=self.device)
        return torch.stack([v if isinstance(v, Tensor) else like.new_full((), v) for v in values])

    def _facts(self, rounds: Sequence[Round], dtype: torch.dtype, shape: Callable[[Tensor], Tensor]) -> Round:
        eta, path, coin, alpha = (
            shape(self.numbers([getattr(rnd, name) for rnd in rounds]).to(dtype))
            for name in ("eta", "path", "coin", "alpha")
        )
        return rounds[0]._replace(eta=eta, path=path, coin=coin, alpha=alpha)


def each(held: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A tensor, or each one in a dictionary or a named tuple, changed."""
    if isinstance(held, Tensor):
        return change(held)
    if isinstance(held, dict):
        return {name: change(x) for name, x in held.items()}
    return type(held)(*map(change, held))


def _as_axes(numbers: Tensor) -> Tensor:
    return numbers.reshape(-1, 1, 1)


def _flat(rows: Tensor) -> Tensor:
    return rows.flatten(0, 1)
