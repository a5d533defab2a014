"""The sampled clients of several runs as rows of one stack: those of run 0 first, then those of run 1.

What belongs to a run is repeated for each of its rows, and what rows did is gathered by run. For a single run
nothing is copied.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedcom.algorithms.base import Round
from fedcom.rounds.round import Answer, Work
from fedcom.vectors import Vectors


@dataclass(frozen=True)
class Stack:
    """Which row belongs to which client of which run.

    Args:
        clients: how many each run has.
        sampled: how many of them take part in a round; each has a row.
    """

    runs: int
    clients: int
    sampled: int
    device: torch.device

    def __len__(self) -> int:
        """How many rows there are."""
        return self.runs * self.sampled

    @cached_property
    def run_of_row(self) -> Tensor:
        """The run of each row."""
        return torch.arange(self.runs, device=self.device).repeat_interleave(self.sampled)

    def places(self, numbers: Tensor, rows: slice = slice(None)) -> Tensor:
        """Where the clients of some rows are among the clients of all runs.

        Args:
            numbers: the clients' numbers, each in its own run.
        """
        return numbers + self.clients * self.run_of_row[rows]

    def rows_of(self, x: Tensor, run: int) -> Tensor:
        """The rows of one run, out of those of all runs."""
        return x if self.runs == 1 else x[run * self.sampled : (run + 1) * self.sampled]

    def vectors_per_row(self, vectors: Sequence[Vectors]) -> Vectors:
        """Each run's vectors, repeated for each of its rows; those of a single run are left as they are."""
        if self.runs == 1:
            return vectors[0]
        names = vectors[0]
        return {
            name: torch.cat([of_run[name].expand(self.sampled, -1) for of_run in vectors]) for name in names
        }

    def facts_per_row(self, rounds: Sequence[Round], rows: slice, dtype: torch.dtype) -> Round:
        """Each run's facts as columns with one number per row; those of a single run are left as they are."""
        if self.runs == 1:
            return rounds[0]
        return self._facts(rounds, dtype, lambda numbers: numbers[self.run_of_row[rows]].unsqueeze(-1))

    def finished(
        self, finish: Callable[[Work, Answer], tuple[Any, Vectors]], work: Work, answers: Sequence[Answer]
    ) -> tuple[Any, Vectors]:
        """The state and memory of rows after the round, each from the answer of its own run's server.

        Args:
            finish: `client_finish` with its rules.
            answers: one per run.
        """
        if self.runs == 1:
            return finish(work, answers[0])
        by_run, first = (self.runs, self.sampled), answers[0]
        mean = {name: torch.stack([each.mean[name] for each in answers]).unsqueeze(1) for name in first.mean}
        facts = self._facts([each.rnd for each in answers], first.server_side.state.w.dtype, _as_axes)
        rows = Work(*(map_tensors(x, lambda rows: rows.reshape(*by_run, *rows.shape[1:])) for x in work))
        state, memory = finish(rows, first._replace(mean=mean, rnd=facts))
        return map_tensors(state, _flat), map_tensors(memory, _flat)

    def numbers(self, values: Sequence[float | Tensor]) -> Tensor:
        """One number per run, on the device, in float64."""
        like = torch.empty((), dtype=torch.float64, device=self.device)
        return torch.stack([v if isinstance(v, Tensor) else like.new_full((), v) for v in values])

    def _facts(self, rounds: Sequence[Round], dtype: torch.dtype, shape: Callable[[Tensor], Tensor]) -> Round:
        names = ["eta", "path", "share", "coin", "alpha", "q", "mu", "rate", "gamma", "number"]
        names += [name for name in ("tau", "pull") if len({getattr(rnd, name) for rnd in rounds}) > 1]
        found: dict[str, Any] = {
            name: shape(self.numbers([getattr(rnd, name) for rnd in rounds]).to(dtype)) for name in names
        }
        return rounds[0]._replace(**found)


def map_tensors(held: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Apply a function to a tensor, or to every tensor of a dictionary or a named tuple."""
    if isinstance(held, Tensor):
        return change(held)
    if isinstance(held, dict):
        return {name: change(x) for name, x in held.items()}
    return type(held)(*map(change, held))


def _as_axes(numbers: Tensor) -> Tensor:
    return numbers.reshape(-1, 1, 1)


def _flat(rows: Tensor) -> Tensor:
    return rows.flatten(0, 1)
