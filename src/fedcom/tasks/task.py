"""A task: every client's data, in one tensor or as a function, and the objective on it."""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedcom.data import Dataset, Population, from_arrays, split
from fedcom.draws import Draw
from fedcom.errors import ConfigError
from fedcom.tasks.objective import Loss, Objective

_EVAL_BLOCK = 4096  # samples evaluated at once


class Scores(NamedTuple):
    """How good a model is."""

    train_loss: float
    test_accuracy: float | None  # None without classes or test set
    worst_client_accuracy: float | None  # mean over the worst tenth of clients; None without classes


@dataclass(frozen=True)
class Task:
    """Clients' samples and the objective on them.

    Args:
        x: training samples, those of the first client first.
        y: their targets.
        sizes: the number of training samples of each client.
        test_x: may be empty.
        classes: how many there are; 0: regression.
        source: draws samples when they are needed, as `Population.samples` does; x and y then hold only the
            samples of the clients in `shown`. None: x and y hold the samples of all clients.
        shown: the clients on which a model is evaluated; None: all.
        held: the clients whose samples are in x and y, if not all are.
    """

    objective: Objective
    x: Tensor
    y: Tensor
    sizes: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: int
    name: str = "task"
    source: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None
    shown: Tensor | None = None
    held: range | None = None

    @cached_property
    def checksum(self) -> int:
        """A 32-bit checksum of all samples and of who has which."""
        parts = (self.x, self.y, self.sizes, self.test_x, self.test_y)
        found = 0
        for x in (*parts, *([] if self.shown is None else [self.shown])):
            found = zlib.crc32(x.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data, found)
        return found

    @classmethod
    def build(cls, objective: Objective, data: Dataset, parts: Sequence[Tensor]) -> "Task":
        """A task from a data set that is split among clients.

        Args:
            parts: the indices of each client's samples.
        """
        sizes = torch.tensor([len(part) for part in parts])
        if len(parts) == 0 or int(sizes.min()) < 1:
            raise ConfigError(f"every client needs a sample; the partition's sizes are {sizes.tolist()}")
        order = torch.cat(list(parts))
        x, test_x = (objective.inputs(t) for t in (data.x[order], data.test_x))
        y, test_y = (objective.targets(t) for t in (data.y[order], data.test_y))
        return cls(objective, x, y, sizes, test_x, test_y, data.classes, data.name)

    @classmethod
    def drawn(cls, objective: Objective, population: Population) -> "Task":
        """A task whose samples are drawn when they are needed."""
        data = population.data
        return cls(
            objective=objective,
            x=objective.inputs(data.x),
            y=objective.targets(data.y),
            sizes=population.sizes,
            test_x=objective.inputs(data.test_x),
            test_y=objective.targets(data.test_y),
            classes=data.classes,
            name=data.name,
            source=population.samples,
            shown=population.shown,
        )

    @classmethod
    def from_arrays(
        cls,
        module: nn.Module,
        x: Any,
        y: Any,
        test_x: Any = None,
        test_y: Any = None,
        *,
        clients: int | None = None,
        partition: str = "iid",
        classes_per_client: int = 2,
        alpha: float = 0.5,
        groups: Any = None,
        loss: Loss | None = None,
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
        model_seed: int | None = None,
    ) -> "Task":
        """A task from a module and arrays (numpy or torch), split among clients by a partition.

        Args:
            module: its trainable parameters are the model; it is copied, not changed.
            x: training samples, along the first axis.
            y: whole numbers 0..C-1 are classes; floats make it a regression.
            test_x: test samples, with test_y; None: no test set.
            clients: how many; None: one per author, for the partition "natural" only.
            partition: "iid", "classes", "dirichlet" or "natural".
            classes_per_client: how many shards each client gets, for "classes".
            alpha: of the Dirichlet distribution, for "dirichlet"; the smaller, the more uneven.
            groups: the author of each training sample, for "natural".
            loss: loss(outputs, targets) of a batch, as in torch.nn.functional; None: cross-entropy.
            dtype: of parameters and data.
            seed: of the partition.
            model_seed: from which the module's parameters were drawn, for `Links(first="seed")`.
        """
        data = from_arrays(x, y, test_x, test_y, groups)
        draw = Draw.seeded(seed).fold("partition")
        parts = split(
            partition,
            data.y,
            data.groups,
            clients,
            draw,
            classes_per_client=classes_per_client,
            alpha=alpha,
        )
        return cls.build(Objective(module, loss, dtype, model_seed), data, parts)

    @classmethod
    def stacked(cls, tasks: Sequence["Task"]) -> "Task":
        """One task with the clients of several tasks of one model, to be trained in step."""
        if len(tasks) == 1:
            return tasks[0]
        x, y, sizes = (torch.cat([getattr(task, name) for task in tasks]) for name in ("x", "y", "sizes"))
        return replace(tasks[0], x=x, y=y, sizes=sizes)

    @cached_property
    def notes(self) -> dict[Any, Any]:
        """What was measured of this task, so that runs that share it need not measure it again."""
        return {}

    @property
    def clients(self) -> int:
        """m, the number of clients."""
        return len(self.sizes)

    @cached_property
    def offsets(self) -> Tensor:
        """Where each client's samples begin in x and y."""
        starts = self.sizes.cumsum(0) - self.sizes
        return starts if self.held is None else starts - starts[self.held.start]

    def only(self, clients: range) -> "Task":
        """The same task with the samples of some clients alone, to train them and not to evaluate a model."""
        if self.source is not None:
            return self
        held = clients if clients else range(1)  # whoever has none still needs to know what a sample is
        first = int(self.offsets[held.start])
        kept = slice(first, first + int(self.sizes[held.start : held.stop].sum()))
        x, y = self.x[kept].clone(), self.y[kept].clone()
        return replace(self, x=x, y=y, test_x=self.test_x[:0], test_y=self.test_y[:0], held=held)

    def held_out(self, share: float, draw: Draw) -> "Task":
        """The same task with a share of each client's samples as the test set, and without that test set.

        Every client that has two samples or more gives at least one, and keeps at least one.
        """
        picked = torch.zeros(len(self.y), dtype=torch.bool)
        for client, (start, size) in enumerate(zip(self.offsets.tolist(), self.sizes.tolist(), strict=True)):
            taken = min(max(1, round(share * size)), size - 1)
            picked[start + draw.fold(client).permutation(size)[:taken]] = True
        counts = torch.stack([(~part).sum() for part in torch.split(picked, self.sizes.tolist())])
        return replace(
            self,
            x=self.x[~picked],
            y=self.y[~picked],
            sizes=counts,
            test_x=self.x[picked],
            test_y=self.y[picked],
        )

    @cached_property
    def longest(self) -> int:
        """The largest number of samples of a client."""
        return int(self.sizes.max())

    def to(self, device: torch.device) -> "Task":
        """The same task on a device; the task itself if it is there already."""
        here = self.x.device
        if here.type == device.type and device.index in (None, here.index):
            return self
        names = ("x", "y", "sizes", "test_x", "test_y")
        moved = {name: getattr(self, name).to(device) for name in names}
        return replace(self, objective=self.objective.to(device), **moved)

    def samples(self, clients: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        """x and y of some clients' samples, one row per client.

        Args:
            clients: their numbers.
            position: of the samples among each client's, one row per client; past the last one, the last one
                is repeated.
        """
        position = position.minimum(self.sizes[clients].unsqueeze(-1) - 1)
        if self.source is not None:
            x, y = self.source(clients, position)
            return x.to(self.x.dtype), y.to(self.y.dtype)
        rows = self.offsets[clients].unsqueeze(-1) + position
        x = self.x.index_select(0, rows.flatten())  # twice as fast on a CPU as indexing by a table
        return x.reshape(*rows.shape, *x.shape[1:]), self.y[rows]

    @cached_property
    def shown_sizes(self) -> Tensor:
        """The number of samples of each client on which a model is evaluated, on the host."""
        sizes = self.sizes.cpu()
        return sizes if self.shown is None else sizes[self.shown]

    def label_counts(self) -> list[list[int]]:
        """How many samples of each class a client has, for each client on which a model is evaluated."""
        y = torch.split(self.y.cpu(), self.shown_sizes.tolist())
        return [torch.bincount(labels, minlength=self.classes).tolist() for labels in y]

    def evaluate(self, w: Tensor, p: Tensor) -> Scores:
        """The train loss and the accuracies of one model.

        Args:
            w: the model.
            p: the weights of all clients in the train loss.
        """
        losses, hits = self._score(w, self.x, self.y)
        share = self.shown_sizes.numpy()
        starts = share.cumsum() - share
        by_client = np.add.reduceat(losses, starts) / share
        p = p.double().cpu()
        p = p if self.shown is None else p[self.shown] / p[self.shown].sum()
        train_loss = float(by_client @ p.numpy())
        if not self.classes:
            return Scores(train_loss, None, None)
        worst = np.sort(np.add.reduceat(hits, starts) / share)[: max(1, round(0.1 * len(share)))]
        test = self._score(w, self.test_x, self.test_y)[1]
        return Scores(train_loss, float(test.mean()) if len(test) else None, float(worst.mean()))

    @torch.no_grad()
    def _score(self, w: Tensor, x: Tensor, y: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """The loss of each sample, and 1 if it was classified right, else 0; as float64."""
        losses, hits = [], []
        for xs, ys in zip(torch.split(x, _EVAL_BLOCK), torch.split(y, _EVAL_BLOCK), strict=True):
            outputs = self.objective.outputs(w, xs)
            losses.append(self.objective.losses(outputs, ys).double())
            hits.append((outputs.argmax(-1) == ys).double() if self.classes else torch.zeros_like(losses[-1]))
        return torch.cat(losses).cpu().numpy(), torch.cat(hits).cpu().numpy()
