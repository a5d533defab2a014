"""Gradients of clients' losses on their data, as an algorithm asks for them."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from fedcom.algorithms import Algorithm
from fedcom.algorithms.local_optimisers import Begun, LocalOptimiser
from fedcom.draws import Draw
from fedcom.tasks.kernels import gpu
from fedcom.tasks.task import Task
from fedcom.vectors import Piece

_DRAWN_AT_ONCE = 1 << 22  # numbers that are drawn at once
_ORDERED_AT_ONCE = 1 << 27  # the same where minibatches are cut out of the orders of a round's epochs
_FULL_BLOCK = 256  # samples per client that a full gradient computes at once


def full_block(task: Task) -> int:
    """How many samples of each client a full gradient computes at once."""
    objective = task.objective
    whole = objective.terms.of_batch or objective.statistics
    return task.longest if whole else min(task.longest, _FULL_BLOCK)


class Picked(NamedTuple):
    """The minibatch of a step, one row per client; of several steps, with an axis of steps before."""

    position: Tensor  # where each sample is among its client's
    weight: Tensor  # of each in the mean loss
    change: Tensor | None = None  # how its image is changed, if it is
    row: Tensor | None = None  # which of the task's samples each is, if that is found already
    y: Tensor | None = None  # its target too, if that is one number
    key: Tensor | None = None  # from which the client draws what it drops, if it drops anything

    def at(self, place: int | slice | Tensor) -> "Picked":
        """The minibatch of one step out of several, or of some clients."""
        return Picked(*(None if x is None else x[place] for x in self))  # type: ignore[arg-type]


@dataclass(frozen=True)
class DataOracle:
    """Gradients of some clients' losses on their data, at one local step.

    Args:
        clients: their numbers in the task.
        draw: one key per client, for this round.
        batch_size: None: all of a client's data.
        epochs: how many a client takes in a round, in each of which minibatches are drawn without
            replacement; None: they are drawn with replacement.
        weight_decay: this times w is added to every gradient.
        walks: whether `walk` may take local steps, on a GPU and with other roundings than step by step.
        step: the local step; on a GPU a tensor, so that one compiled kernel serves every step.
        picked: the minibatch of this step, if it is drawn already.
        deck: the order in which each client goes through its samples in the epoch it is in, and that
            epoch's number; kept on a CPU, where all steps of a round share it.
    """

    task: Task
    clients: Tensor
    draw: Draw
    batch_size: int | None
    epochs: int | None = None
    weight_decay: float = 0.0
    walks: bool = False
    step: int | Tensor = 0
    picked: Picked | None = None
    deck: dict[str, Tensor] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(
        cls, task: Task, clients: Tensor, draw: Draw, algorithm: Algorithm, walks: bool = False
    ) -> "DataOracle":
        """The oracle for an algorithm's settings, at the first local step; the class explains the rest."""
        batch = None if algorithm.batch == "full" else algorithm.batch
        return cls(task, clients, draw, batch, algorithm.epochs, algorithm.weight_decay, walks)

    def at(self, step: int) -> "DataOracle":
        """The oracle of another local step."""
        on_gpu = self.clients.is_cuda
        return replace(self, step=torch.full((), step, device=self.clients.device) if on_gpu else step)

    def some(self, rows: Tensor | slice) -> "DataOracle":
        """The oracle of some of the clients."""
        picked = self.picked and self.picked.at(rows)
        return replace(self, clients=self.clients[rows], draw=self.draw[rows], picked=picked, deck={})

    def batch(self, w: Tensor) -> Tensor:
        """Minibatch gradients at w, one row per client; the same minibatch every time in one step."""
        if self.batch_size is None:
            return self.full(w)
        x, y, weight = self.minibatch(self.batch_size, w.dtype)
        return self._decayed(w, self.task.objective.gradients(w, x, y, weight, self._key))

    def pieces(self, w: Tensor) -> Iterator[Piece]:
        """The gradients of `batch` in pieces, each to be used before the next is asked for.

        They do not depend on what is written to the coordinates of earlier pieces meanwhile.
        """
        if self.batch_size is None:
            yield Piece(slice(None), slice(None), self.full(w))
            return
        batch = self.minibatch(self.batch_size, w.dtype)
        for rows, place, g in self.task.objective.pieces(w, *batch, self._key):
            yield Piece(rows, place, self._decayed(w[rows, place], g))

    def minibatch(self, b: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """x and y of each client's minibatch of b samples, and the weight of each sample in the mean loss."""
        position, weight, change, row, y, _ = self.picked or self._pick(b, dtype)
        if row is None:
            x, y = self.task.samples(self.clients, position)
        else:
            x, y = self.task.x_of(row), self.task.y[row] if y is None else y
        if self.task.augment is not None and change is not None:
            x = self.task.augment(x, change)
        return x, y, self.task.objective.balanced(y, weight)

    def steps(self, count: int, dtype: torch.dtype) -> "list[DataOracle]":
        """The oracles of the first local steps; on a GPU all their minibatches are drawn at once."""
        b = self.batch_size
        if not self.clients.is_cuda or b is None or not self._fits(count, b):
            return [self.at(step) for step in range(count)]
        picked = self.located(self.picks(count, b, dtype))
        return [replace(self, picked=picked.at(step)) for step in range(count)]

    def _fits(self, count: int, b: int) -> bool:
        """Whether the minibatches of so many steps can be drawn at once."""
        if self.epochs is None:
            return count * len(self.clients) * b <= _DRAWN_AT_ONCE
        return len(self.clients) * max(count * b, self.epochs * self.task.longest) <= _ORDERED_AT_ONCE

    def located(self, picked: Picked) -> Picked:
        """Minibatches with their rows and targets, which each step would find by six small kernels."""
        if self.task.source is not None:
            return picked
        row = self.task.rows(self.clients, picked.position)
        return picked._replace(row=row, y=self.task.y[row] if self.task.y.dim() == 1 else None)

    def picks(self, count: int, b: int, dtype: torch.dtype) -> Picked:
        """The minibatches of b samples of the first local steps."""
        every = torch.arange(count, device=self.clients.device).reshape(-1, 1, 1)
        return replace(self, step=every)._pick(b, dtype)

    def _pick(self, b: int, dtype: torch.dtype) -> Picked:
        """The minibatch of this step; for several steps, as [steps, 1, 1], there is one axis more."""
        position, valid = self._with_replacement(b) if self.epochs is None else self._without_replacement(b)
        weight, augment = valid.to(dtype), self.task.augment
        key = self.draw.fold("augment", self._row_step) if augment else self.draw
        change = augment.draw(key, b) if augment else None
        return Picked(position, weight / weight.sum(-1, keepdim=True), change, key=self._drawn_key)

    @property
    def _key(self) -> Tensor | None:
        """One key per client, from which it draws what it drops in this step; None: nothing is dropped."""
        return self.picked.key if self.picked else self._drawn_key

    @property
    def _drawn_key(self) -> Tensor | None:
        return self.draw.fold("dropout", self._row_step).key if self.task.objective.drops else None

    @property
    def _row_step(self) -> int | Tensor:
        """The step; of several, [steps, 1]."""
        several = isinstance(self.step, Tensor) and self.step.dim()
        return self.step.squeeze(-1) if several else self.step  # type: ignore[union-attr]

    def walk(
        self, w: Tensor, eta: Tensor, delta: Tensor | None, local: LocalOptimiser, begun: Begun | None
    ) -> Tensor | None:
        """The clients' models after local steps along g - delta; None if no kernels can take them.

        Args:
            w: their models before: one per client, or one that all have.
            eta: of each step and client [steps, clients].
            delta: one row per client; None: zero.
            local: how they step.
            begun: what it begins from; the moments are written over. None: steps are plain.
        """
        objective, task, b = self.task.objective, self.task, self.batch_size
        if not self.walks or objective.dense is None or b is None or task.source is not None or task.augment:
            return None
        if not gpu.ready(objective.dense, task.x, task.y, b):
            return None
        if not gpu.knows(local):
            return None
        rows, weight = self._minibatches(b, len(eta), w.dtype)
        batches = gpu.Minibatches(task.x.flatten(1), task.y, rows, weight)
        walk = gpu.walk_of(local, eta, delta, self.weight_decay, begun)
        return gpu.local_steps(objective.dense, w, walk, batches)

    def _minibatches(self, b: int, steps: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Which of the task's samples are in the minibatches of several steps, and their weights."""
        task, clients = self.task, self.clients
        if self.epochs is None:
            rows = gpu.drawn(self.draw, task.sizes[clients], task.offsets[clients], steps, b)
            return rows, torch.full(rows.shape, 1 / b, dtype=dtype, device=rows.device)
        position, weight = self.picks(steps, b, dtype)[:2]
        return task.rows(clients, position), weight

    def full(self, w: Tensor) -> Tensor:
        """Gradients of the clients' whole losses at w."""
        gradients = self.task.objective.gradients
        return self._decayed(w, sum((gradients(w, *block) for block in self._blocks(w)), torch.zeros_like(w)))

    def curvature(self, w: Tensor, v: Tensor) -> Tensor:
        """The Hessians of clients' losses at w, or of their minibatches', times v; one row per client."""
        some = None if self.batch_size is None else [(*self.minibatch(self.batch_size, w.dtype), self._key)]
        curvatures = self.task.objective.curvatures
        products = (curvatures(w, v, *block) for block in some or self._blocks(w))
        return self._decayed(v, sum(products, torch.zeros_like(w)))

    def _blocks(self, w: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor | None]]:
        """x, y, weights and keys of all samples of the clients, some per client at a time.

        Positions past a client's last sample have weight 0.
        """
        objective, share, key = self.task.objective, self._share(w), self._key
        for i, (position, weight) in enumerate(self._everything(w)):
            x, y = self.task.samples(self.clients, position)
            own = None if key is None else Draw(key).fold("block", i).key
            yield x, y, objective.balanced(y, weight, share), own

    def _everything(self, w: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The positions of all samples of the clients, and their weights, some per client at a time.

        If the loss or BatchNorm is one of whole batches, all at a time.
        """
        every = torch.arange(self.task.longest, device=w.device)
        for positions in torch.split(every, full_block(self.task)):
            position = positions.expand(len(w), -1)
            yield position, (position < self._sizes).to(w.dtype) / self._sizes

    def _share(self, w: Tensor) -> Tensor | None:
        """What the samples of each client count on average [clients, 1]; None: all count the same."""
        task, terms = self.task, self.task.objective.terms
        if terms.mass(task.y[:0]) is None:
            return None
        counted = total = torch.zeros(len(w), 1, dtype=w.dtype, device=w.device)
        for position, weight in self._everything(w):
            mass = terms.mass(task.targets(self.clients, position), axes=2)
            assert mass is not None
            counted = counted + (weight * mass.to(w.dtype)).sum(-1, keepdim=True)
            total = total + weight.sum(-1, keepdim=True)
        return counted / total

    @property
    def _sizes(self) -> Tensor:
        return self.task.sizes[self.clients].unsqueeze(-1)

    def _with_replacement(self, b: int) -> tuple[Tensor, Tensor]:
        position = self.draw.fold("batch", self._row_step).integers(self._sizes.squeeze(-1), b)
        return position, torch.ones_like(position)

    def _without_replacement(self, b: int) -> tuple[Tensor, Tensor]:
        """The next b samples of each client in this epoch's order; an epoch's last batch may be short."""
        steps, longest = (self._sizes + b - 1) // b, self.task.longest
        epoch, batch = self.step // steps, self.step % steps
        slot = batch * b + torch.arange(b, device=self.clients.device)
        valid, slot = slot < self._sizes, slot.clamp(max=longest - 1)
        if slot.dim() == 2:
            return self._order(epoch.squeeze(-1)).gather(-1, slot), valid
        last = int(self.epochs or 1) - 1  # clients that have taken their steps look at the last epoch again
        orders = [
            self._shuffled(slice(None), torch.full_like(self.clients, e)).int() for e in range(last + 1)
        ]
        row = torch.arange(len(self.clients), device=slot.device).unsqueeze(-1)
        place = (epoch.clamp(max=last) * len(self.clients) + row) * longest + slot
        return torch.cat(orders).flatten()[place].long(), valid

    def _order(self, epoch: Tensor) -> Tensor:
        """The order in which each client goes through its samples in an epoch, one row per client.

        Args:
            epoch: of each client.
        """
        deck = self.deck
        if epoch.is_cuda or "epoch" not in deck:
            order = self._shuffled(slice(None), epoch)
            deck |= {} if epoch.is_cuda else {"epoch": epoch, "order": order}
            return order
        begun = (deck["epoch"] != epoch).nonzero()[:, 0]
        if len(begun):
            deck["order"][begun] = self._shuffled(begun, epoch[begun])
            deck["epoch"] = epoch
        return deck["order"]

    def _shuffled(self, rows: slice | Tensor, epoch: Tensor) -> Tensor:
        """The order of some clients' samples in an epoch; after a client's last sample anything follows."""
        ranks = self.draw[rows].fold("epoch").fold(epoch).ranks(self.task.longest)
        absent = torch.arange(self.task.longest, device=ranks.device) >= self._sizes[rows]
        return ranks.masked_fill(absent, torch.iinfo(torch.int64).max).argsort(-1)

    def _decayed(self, w: Tensor, g: Tensor) -> Tensor:
        if not self.weight_decay:
            return g
        if last := self.task.objective.statistics_in(g):  # they are no weights
            return torch.cat((self._decayed_all(w, g)[..., :-last], g[..., -last:]), -1)
        return self._decayed_all(w, g)

    def _decayed_all(self, w: Tensor, g: Tensor) -> Tensor:
        return torch.add(g, w, alpha=self.weight_decay) if g.is_cuda else g + self.weight_decay * w
