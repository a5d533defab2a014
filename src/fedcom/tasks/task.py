"""A task: every client's data, in one tensor or as a function, and the objective on it."""

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedcom.data import (
    Dataset,
    Partition,
    Population,
    Tokens,
    check_parts,
    client_names,
    from_arrays,
    from_text,
    indices,
    split,
)
from fedcom.data.dataset import Legend
from fedcom.data.text import LENGTH, TEST
from fedcom.draws import Draw
from fedcom.errors import ConfigError
from fedcom.formats import html_table
from fedcom.tasks import scores as scoring
from fedcom.tasks.augment import DEFAULT, Augment
from fedcom.tasks.losses import Loss, Terms, token_cross_entropy
from fedcom.tasks.model import Model
from fedcom.tasks.norms import Choice
from fedcom.tasks.objective import Objective
from fedcom.tasks.rehearsal import check_numbers, rehearse
from fedcom.tasks.scores import Marks, Metric, Numbers, numbers, shares
from fedcom.tasks.suitable import check_kind, initialised
from fedcom.tasks.survival import cox

Scores = dict[str, Any]  # numbers by name; None: there is none
Scored = tuple[Numbers, Numbers]  # the loss of each sample, and 1 if it was classified right, else 0


class Details(NamedTuple):
    """How good a classifier is, client by client and class by class."""

    client_accuracy: list[float | None]  # on the training samples of each client on which it is evaluated
    confusion: list[list[int]]  # test samples by class, and by the class they were taken for


def fitted(objective: Objective, data: Dataset) -> Objective:
    """An objective for the inputs of some data; without a loss it has that of tokens if y has them."""
    if objective.loss is None and data.classes and data.y.dim() == 2:
        made: Any = objective.__reduce__()  # the same with another loss
        module, _, *others = made[1]
        objective = Objective(module, token_cross_entropy, *others).in_parts(objective.microbatch)
    return objective.taking(data.inputs)


@dataclass(frozen=True, repr=False)
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
        augment: how clients change the images of each minibatch; None: not at all.
        test_sizes: the number of test samples of each client, with those of the first client first; None:
            whose they are is not known.
        tokens: of text, what the numbers in x and y stand for, if that is known.
        names: of all clients; None: they have none.
        legend: of a table, what the numbers in x and y stand for, if that is known.
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
    augment: Augment | None = None
    test_sizes: tuple[int, ...] | None = None
    tokens: Tokens | None = None
    names: tuple[str, ...] | None = None
    legend: Legend | None = None

    @property
    def answers(self) -> bool:
        """Whether an output is right or wrong: there are classes, or answers of yes or no."""
        return bool(self.classes) or self.objective.terms.threshold is not None

    @property
    def blind(self) -> bool:
        """Whether clients' samples are elsewhere, as they are for the server of real clients."""
        return self.held is not None and len(self.held) == 0

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.x.shape[1:])) or "single numbers"
        kind = "tokens" if self.objective.terms.tokens else "classes"
        kind = f"{self.classes} {kind}" if self.classes else "yes or no" if self.answers else "no classes"
        d = self.objective.layout.size
        return (
            f"Task({self.name!r}: {self.clients} clients, {int(self.sizes.sum())} samples of {shape} and "
            f"{len(self.test_y)} for testing, {kind}, {d} parameters, {self.x.device})"
        )

    def _repr_html_(self) -> str:
        """What the task is of, as a table, for notebooks."""
        sizes = self.sizes.cpu()
        spread = f"{int(sizes.min())} to {int(sizes.max())} samples, {int(sizes.median())} at the median"
        rows = [
            ("clients", f"{self.clients:,}, with {spread}"),
            ("one sample", f"{list(self.x.shape[1:])} {self.x.dtype}".replace("torch.", "")),
            ("classes", self.classes or "none: yes or no, a regression, or targets of one's own loss"),
            ("test samples", len(self.test_y)),
            ("parameters", f"{self.objective.layout.size:,}, {type(self.objective.module).__name__}"),
        ]
        return html_table(rows, title=f"task {self.name}")

    @cached_property
    def checksum(self) -> int:
        """A 32-bit checksum of all samples and of who has which."""
        parts = (self.x, self.y, self.sizes, self.test_x, self.test_y)
        found = 0
        for x in (*parts, *([] if self.shown is None else [self.shown])):
            if not x.numel():  # which torch cannot always view as bytes
                continue
            found = zlib.crc32(x.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data, found)
        return found

    @classmethod
    def build(cls, objective: Objective, data: Dataset, parts: Any) -> "Task":
        """A task from a data set that is split among clients.

        Args:
            parts: the indices of each client's samples, as tensors, arrays or lists.
        """
        parts = indices(parts, len(data.y))
        check_parts(parts, len(data.y))
        sizes = torch.tensor([len(part) for part in parts])
        order, objective = torch.cat(parts), fitted(objective, data).to(data.x.device)
        x, test_x = (objective.inputs(t) for t in (data.x[order], data.test_x))
        y, test_y = (objective.targets(t) for t in (data.y[order], data.test_y))
        classes = rehearse(objective, x, y, data.classes)
        check_numbers(objective, test_x)
        task = cls(objective, x, y, sizes, test_x, test_y, classes, data.name)
        task = replace(task, tokens=data.tokens, legend=data.legend)
        return task._by_author(data, parts)

    def _by_author(self, data: Dataset, parts: Sequence[Tensor]) -> "Task":
        """The same task, with the names of the clients and whose the test samples are, if these are known.

        That is if each client has the samples of one author of the data set, as the natural partition deals
        them. Test samples of other authors come last; of text, they are left out.
        """
        if data.groups is None or (data.names is None and data.test_groups is None):
            return self
        authors = [torch.unique(data.groups[part]) for part in parts]
        found, clients = torch.cat(authors), len(parts)
        if any(len(own) != 1 for own in authors) or len(torch.unique(found)) != clients:
            return self
        if data.names is not None:
            self = self.named([data.names[author] for author in found.tolist()])
        if data.test_groups is None or not len(data.test_groups):
            return self
        place = torch.full((int(max(data.groups.max(), data.test_groups.max())) + 1,), clients)
        place[found] = torch.arange(clients)
        owners = place[data.test_groups]
        order, sizes = owners.argsort(stable=True), owners.bincount(minlength=clients)[:clients]
        order = order if data.tokens is None else order[: int(sizes.sum())]
        test_x, test_y = self.test_x[order], self.test_y[order]
        return replace(self, test_x=test_x, test_y=test_y, test_sizes=tuple(sizes.tolist()))

    def named(self, names: Sequence[str]) -> "Task":
        """The same task whose clients have these names; none if they are their numbers."""
        if len(names) != self.clients:
            raise ConfigError(f"there are {len(names)} names for {self.clients} clients; give one for each")
        known = tuple(name.encode("utf-8", "replace").decode() for name in names)  # a file's may be any bytes
        return replace(self, names=None if known == tuple(map(str, range(len(known)))) else known)

    @classmethod
    def drawn(cls, objective: Objective, population: Population) -> "Task":
        """A task whose samples are drawn when they are needed."""
        data = population.data
        x, y = objective.inputs(data.x), objective.targets(data.y)
        return cls(
            objective=objective,
            x=x,
            y=y,
            sizes=population.sizes,
            test_x=objective.inputs(data.test_x),
            test_y=objective.targets(data.test_y),
            classes=rehearse(objective, x, y, data.classes),
            name=data.name,
            source=population.samples,
            shown=population.shown,
        )

    @classmethod
    def from_arrays(
        cls,
        module: nn.Module,
        x: Any,
        y: Any = None,
        test_x: Any = None,
        test_y: Any = None,
        *,
        clients: int | str | None = None,
        partition: str | Partition | Sequence[Any] | NDArray[Any] | Tensor | None = None,
        classes_per_client: int = 2,
        alpha: float = 0.5,
        groups: Any = None,
        test_groups: Any = None,
        loss: Loss | None = None,
        dtype: torch.dtype | str = torch.float32,
        seed: int = 0,
        model_seed: int | None = None,
        batch_norm: Choice | None = None,
    ) -> "Task":
        """A task from a module and arrays (numpy or torch), split among clients by a partition.

        Args:
            module: its trainable parameters are the model; it is copied, not changed.
            x: training samples, along the first axis; for a module of several inputs a tuple of such arrays,
                or a mapping of its arguments, as {"input_ids": ..., "attention_mask": ...}; or, without y,
                samples and targets as a torch Dataset or DataLoader, as (x, y), as pairs, or as a mapping or
                table such as {"x": ..., "label": ...}.
            y: whole numbers 0..C-1 are classes, one per sample, or one per token [samples, T] with -100 in
                padding; the module then makes outputs [samples, T, C]. Floats make it a regression; with a
                binary cross-entropy of torch's they are answers of yes (1) or no (0). With a loss of your
                own, whole numbers may have any shape and sign; there is an accuracy if the outputs have one
                score per class.
            test_x: test samples, with test_y or in one of the other forms; None: no test set.
            clients: how many; None: one per author or part, if the partition says so.
            partition: "iid", "classes", "labels", "dirichlet", "dirichlet-capped" or "natural"; a function of
                a SplitRequest; the indices of each client's samples; or the client of each sample, as numbers
                or names. None: "natural" if there are groups, else "iid".
            classes_per_client: how many shards each client gets, for "classes", or labels, for "labels".
            alpha: of the Dirichlet distribution, for "dirichlet"; the smaller, the more uneven.
            groups: the author of each training sample, as numbers or names.
            test_groups: the author of each test sample; then scores have the clients' own test sets too.
            loss: loss(outputs, targets) of a batch, as in torch.nn.functional; fedcom.cox for survival, with
                y [samples, 2] of times and events; or a loss of whole batches of your own, see
                `fedcom.batch_loss`. None: cross-entropy; if y has one class per token, the mean over tokens.
            dtype: of parameters and data, or its name.
            seed: of the partition.
            model_seed: from which the module's parameters were drawn, for `Links(first="seed")`.
            batch_norm: what becomes of BatchNorm's statistics: "frozen" as they are, "averaged" with the
                model, or "own" to each client, with the layers' parameters (docs/decisions/layers.md).
        """
        check_kind(module)
        terms = Terms.of(loss)
        data = from_arrays(
            x,
            y,
            test_x,
            test_y,
            groups,
            any_targets=loss is not None and not terms.tokens,
            ignored=terms.ignored,
            test_groups=test_groups,
            survival=loss is cox,
        )
        draw = Draw.seeded(seed).fold("partition")
        if partition is None:
            partition = "iid" if groups is None else "natural"
        parts = split(
            partition,
            data.y,
            data.groups,
            clients,
            draw,
            classes_per_client=classes_per_client,
            alpha=alpha,
        )
        module = initialised(module, data.x, data.inputs)
        task = cls.build(Objective(module, loss, dtype, model_seed, batch_norm), data, parts)
        names = client_names(partition)
        return task if names is None else task.named(names)

    @classmethod
    def from_text(
        cls,
        model: Model | Callable[[int], nn.Module],
        texts: Mapping[str, str | tuple[str, str]],
        *,
        test: float = TEST,
        length: int = LENGTH,
        tokenizer: str | Path | None = None,
        dtype: torch.dtype | str = torch.float32,
        seed: int = 0,
    ) -> "Task":
        """A task from clients' texts, to predict the next character or token; `from_text` explains the rest.

        Args:
            model: such as fedcom.Gru() or fedcom.Transformer(), or a function of the size of the vocabulary
                that makes a module.
            seed: from which the parameters are drawn.
        """
        data = from_text(texts, test=test, length=length, tokenizer=tokenizer)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            shape = tuple(data.x.shape[1:])
            made = model.module(shape, data.classes) if isinstance(model, Model) else model(data.classes)
        check_kind(made)
        parts = split("natural", data.y, data.groups, None, Draw.seeded(seed))
        return cls.build(Objective(made, None, dtype, seed), data, parts)

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
        held = clients if clients else range(1)  # a rank without clients still needs the shape of a sample
        first = int(self.offsets[held.start])
        kept = slice(first, first + int(self.sizes[held.start : held.stop].sum()))
        x, y = self.x[kept].clone(), self.y[kept].clone()
        test_x, test_y = self.test_x[:0], self.test_y[:0]
        return replace(self, x=x, y=y, test_x=test_x, test_y=test_y, test_sizes=None, held=held)

    def held_out(self, share: float, draw: Draw | int = 0) -> "Task":
        """The same task with a share of each client's samples as the test set, and without that test set.

        Every client that has two samples or more gives at least one, and keeps at least one.

        Args:
            draw: a number: the samples are those that data.validation picks with this run.seed.
        """
        if not 0 < share < 1:
            raise ConfigError(f"share is that of the training samples, above 0 and below 1; got {share!r}")
        if self.source is not None:
            raise ConfigError("samples that are drawn as needed cannot be held out; lay the data out first")
        draw = Draw.seeded(draw).fold("validation") if isinstance(draw, int) else draw
        picked = torch.zeros(len(self.y), dtype=torch.bool)
        for client, (start, size) in enumerate(zip(self.offsets.tolist(), self.sizes.tolist(), strict=True)):
            taken = min(max(1, round(share * size)), size - 1)
            picked[start + draw.fold(client).permutation(size)[:taken]] = True
        if not picked.any():
            raise ConfigError("no client has two samples, so none can be held out; have fewer clients")
        counts = torch.stack([(~part).sum() for part in torch.split(picked, self.sizes.tolist())])
        return replace(
            self,
            x=self.x[~picked],
            y=self.y[~picked],
            sizes=counts,
            test_x=self.x[picked],
            test_y=self.y[picked],
            test_sizes=None if self.test_sizes is None else tuple((self.sizes - counts).tolist()),
        )

    def augmented(self, augment: Augment = DEFAULT) -> "Task":
        """The same task whose clients shift and flip the images of their minibatches at random."""
        augment.check(self.x)
        return replace(self, augment=augment)

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
        if self.source is not None:
            x, y = self.source(clients, position.minimum(self.sizes[clients].unsqueeze(-1) - 1))
            return x.to(self.x.dtype), y.to(self.y.dtype)
        rows = self.rows(clients, position)
        return self.x_of(rows), self.y[rows]

    def x_of(self, rows: Tensor) -> Tensor:
        """Some rows of x."""
        x = self.x.index_select(0, rows.flatten())  # twice as fast on a CPU as indexing by a table
        return x.reshape(*rows.shape, *x.shape[1:])

    def targets(self, clients: Tensor, position: Tensor) -> Tensor:
        """y of some clients' samples; `samples` explains the parameters."""
        if self.source is not None:
            return self.samples(clients, position)[1]
        return self.y[self.rows(clients, position)]

    def rows(self, clients: Tensor, position: Tensor) -> Tensor:
        """Which rows of x and y some clients' samples are; `samples` explains the parameters.

        Args:
            position: may have axes before those of the clients and of their samples.
        """
        position = position.minimum(self.sizes[clients].unsqueeze(-1) - 1)
        return self.offsets[clients].unsqueeze(-1) + position

    @cached_property
    def shown_sizes(self) -> Tensor:
        """The number of samples of each client on which a model is evaluated, on the host."""
        sizes = self.sizes.cpu()
        return sizes if self.shown is None else sizes[self.shown]

    def label_counts(self) -> list[list[int]]:
        """How many samples of each class a client has, for each client on which a model is evaluated.

        Of text, how many tokens.
        """
        ignored = self.objective.terms.ignored
        y = torch.split(self.y.cpu(), self.shown_sizes.tolist())
        kept = (labels.flatten() if ignored is None else labels[labels != ignored] for labels in y)
        return [torch.bincount(labels, minlength=self.classes).tolist() for labels in kept]

    def evaluate(
        self,
        w: Tensor,
        p: Tensor,
        metrics: Mapping[str, Metric] | None = None,
        scored: Scored | None = None,
        own: Tensor | None = None,
    ) -> Scores:
        """The scores of one model: train_loss, and what else the data allows.

        With a test set test_loss; with classes or answers of yes or no test_accuracy and
        worst_client_accuracy, the mean over the worst tenth of clients; else with a test set test_r2 and
        test_rmse, or with Cox's loss test_c_index. Of text test_perplexity, test_bits_per_character if tokens
        are characters, and worst_client_perplexity, the mean over the worst tenth of clients. If it is known
        whose the test samples are, client_mean, client_worst and client_spread: of the accuracy (C-index, r2)
        over clients' own test samples; and if clients have names client_worst_name.

        Args:
            w: the model.
            p: the weights of all clients in the train loss.
            metrics: the user's own, on the test set.
            scored: the training samples, if they were scored elsewhere.
            own: what stays with each of the clients on which a model is evaluated, one row per client. Its
                samples are scored with it; test samples of nobody with the mean. None: as the module has it.
        """
        regression = not self.answers and self.test_y.is_floating_point()
        keep = regression or bool(metrics)
        test = self._marked(w, self.test_x, self.test_y, self.test_sizes or (), own, keep)
        has_test = len(self.test_y) > 0
        train_loss, worst = self._train_scores(w, p, scored, own)
        return {
            "train_loss": train_loss,
            "test_loss": test.loss() if has_test else None,
            "test_accuracy": test.accuracy() if self.answers else None,
            "worst_client_accuracy": worst,
            **({f"test_{key}": n for key, n in test.regression().items()} if regression and has_test else {}),
            **(self._text_scores(test) if self.objective.terms.tokens and has_test else {}),
            **({} if self.test_sizes is None else test.fairness(self.test_sizes, self.names)),
            **test.own(metrics or {}),
        }

    def _text_scores(self, test: Marks) -> Scores:
        """The perplexity of the test text, and of the worst tenth of clients."""
        scores: Scores = test.of_tokens(self.tokens is not None and self.tokens.tokenizer is None)
        own = test.perplexities(self.test_sizes or ())
        worst = sorted((found for found in own if found is not None), reverse=True)
        worst = worst[: max(1, round(0.1 * len(worst)))]
        return scores | ({"worst_client_perplexity": float(np.mean(worst))} if worst else {})

    def _train_scores(
        self, w: Tensor, p: Tensor, scored: Scored | None, own: Tensor | None
    ) -> tuple[float, float | None]:
        """The train loss, and if there are right answers the mean accuracy of the worst tenth of clients."""
        if self.blind:
            return math.nan, None
        losses, hits = (
            np.add.reduceat(marks, self._starts) for marks in scored or self._score(w, slice(None), own)
        )
        masses, counts = self._counts
        p = p.double().cpu()
        p = p if self.shown is None else p[self.shown] / p[self.shown].sum()
        accuracy = np.sort(hits[counts > 0] / counts[counts > 0])
        worst = accuracy[: max(1, round(0.1 * len(accuracy)))]
        train_loss = float(shares(losses, masses) @ p.numpy())
        return train_loss, float(worst.mean()) if self.answers and len(worst) else None

    @property
    def block_size(self) -> int:
        """How many samples are evaluated at once where this task is."""
        return scoring.block_of(self.objective, self.y, self.classes)

    def whole_blocks(self, clients: range, size: int) -> range:
        """Which blocks of so many training samples hold samples of these clients alone."""
        if self.objective.terms.of_batch:  # a client's loss is of all its samples, not of a block of them
            return range(0)
        ends = self.sizes.cumsum(0)
        first, last = (int(ends[edge - 1]) if edge else 0 for edge in (clients.start, clients.stop))
        return range(-(-first // size), -(-last // size) if last == ends[-1] else last // size)

    def score_block(self, w: Tensor, block: int, size: int) -> Scored:
        """Score one block of so many training samples; this task must hold all of it."""
        first = size * block - (0 if self.held is None else int(self.sizes[: self.held.start].sum()))
        return self._score(w, slice(first, first + size))

    def _marked(
        self, w: Tensor, x: Tensor, y: Tensor, sizes: Sequence[int], own: Tensor | None, keep: bool = False
    ) -> Marks:
        """What a model, and what clients keep of their own, make of samples.

        Args:
            sizes: how many are each client's, those of the first client first; the others are nobody's.
            own: see `evaluate`.
        """
        if own is None:
            return Marks(self.objective, w, x, y, self.classes, keep)
        rows = [*own[: len(sizes)], own.mean(0)]
        parts = [*sizes, len(y) - sum(sizes)]
        samples = zip(rows, torch.split(x, parts), torch.split(y, parts), strict=True)
        found = [
            Marks(self.objective, torch.cat((w, row.to(w))), xs, ys, self.classes, keep)
            for row, xs, ys in samples
            if len(ys)
        ]
        whole = Marks(self.objective, w, x[:0], y[:0], self.classes, keep)
        whole.y, kept = y, [one.outputs for one in found]
        whole.outputs = torch.cat(kept) if kept else y[:0]
        whole.losses, whole.hits = (
            np.concatenate([np.zeros(0), *(getattr(one, name) for one in found)])
            for name in ("losses", "hits")
        )
        return whole

    def _score(self, w: Tensor, rows: slice, own: Tensor | None = None) -> Scored:
        """Score some of the training samples; all, if clients have something of their own."""
        marks = self._marked(w, self.x[rows], self.y[rows], self.shown_sizes.tolist(), own)
        if not self.objective.terms.of_batch:
            return marks.losses, marks.hits
        sizes = self.shown_sizes.tolist()
        losses = [marks.loss(slice(i, i + n)) for i, n in zip(self._starts, sizes, strict=True)]
        return np.repeat(losses, sizes), marks.hits

    def evaluate_clients(
        self, w: Tensor, metrics: Mapping[str, Metric] | None = None, own: Tensor | None = None
    ) -> list[Scores]:
        """The scores of one model on the training data of each client on which models are evaluated.

        And its name if it has one, and the score on its own test samples, if it is known which are its own.

        Args:
            w: the model.
            metrics: the user's own.
            own: see `evaluate`.
        """
        marks = self._marked(w, self.x, self.y, self.shown_sizes.tolist(), own, keep=bool(metrics))
        numbers = range(self.clients) if self.shown is None else self.shown.tolist()
        found = []
        for client, start, size in zip(numbers, self._starts, self.shown_sizes.tolist(), strict=True):
            rows = slice(start, start + size)
            right = {"accuracy": marks.accuracy(rows)} if self.answers else {}
            scores = {"train_loss": marks.loss(rows), **right, **marks.own(metrics or {}, rows)}
            name = {} if self.names is None else {"name": self.names[client]}
            found.append({"client": client, **name, "samples": size, **scores})
        if self.test_sizes is not None:
            keep = not self.objective.terms.tokens  # outputs of text are many
            test = self._marked(w, self.test_x, self.test_y, self.test_sizes, own, keep=keep)
            for row, size, score in zip(found, self.test_sizes, test.by_client(self.test_sizes), strict=True):
                row |= {"test_samples": size, f"test_{test.score_name}": score}
            if self.objective.terms.tokens:
                for row, found_one in zip(found, test.perplexities(self.test_sizes), strict=True):
                    row["test_perplexity"] = found_one
        return found

    @cached_property
    def _counts(self) -> tuple[Numbers, Numbers]:
        """What each evaluated client's samples count in its loss, and how many count in its accuracy."""
        terms, y = self.objective.terms, self.y
        found = (terms.mass(y), terms.counted(y))
        masses, counts = (np.add.reduceat(numbers(each, y), self._starts) for each in found)
        return masses, counts

    @property
    def _starts(self) -> Any:
        """Where the samples of each client on which a model is evaluated begin."""
        share = self.shown_sizes.numpy()
        return share.cumsum() - share

    def details(self, w: Tensor, own: Tensor | None = None) -> Details:
        """The accuracy of one model on each client and on each class; for tasks with classes.

        Of text there is no table by class.

        Args:
            own: see `evaluate`.
        """
        accuracy = list[float | None]()
        if not self.blind:  # else clients' samples are elsewhere
            hits = np.add.reduceat(self._score(w, slice(None), own)[1], self._starts)
            accuracy = [float(h / n) if n else None for h, n in zip(hits, self._counts[1], strict=True)]
        if self.objective.terms.tokens:
            return Details(accuracy, [])
        test = self._marked(w, self.test_x, self.test_y, self.test_sizes or (), own, keep=True)
        confusion = torch.zeros(self.classes, self.classes + 1, dtype=torch.int64)
        if len(self.test_x):
            taken_for = test.outputs.argmax(-1).clamp(max=self.classes).cpu()
            kept = torch.from_numpy(numbers(self.objective.terms.counted(self.test_y), self.test_y)).bool()
            pairs = (self.test_y.cpu()[kept], taken_for[kept])
            confusion.index_put_(pairs, torch.tensor(1), accumulate=True)
        return Details(accuracy, confusion[:, : self.classes].tolist())
