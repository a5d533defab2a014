"""How good a model is on some samples: losses, accuracy, scores of a regression or of text, own metrics."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from statistics import fmean, pstdev
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcom.errors import ConfigError
from fedcom.tasks.objective import Objective
from fedcom.tasks.survival import concordance_index

Metric = Callable[[Tensor, Tensor], Any]  # of outputs and targets, to one number
Numbers = NDArray[np.float64]
FAIRNESS = ("client_mean", "client_worst", "client_spread")  # see `Marks.fairness`
WORST = "client_worst_name"  # whose score client_worst is; in rows of tasks whose clients have names
SCORES = (  # what a model's row may hold of it
    *("train_loss", "test_loss", "test_accuracy", "worst_client_accuracy"),
    *("test_r2", "test_rmse", "test_c_index", *FAIRNESS),
    *("test_perplexity", "test_bits_per_character", "worst_client_perplexity"),
)
EVAL_BLOCK = 4096  # samples evaluated at once
_MOST_CONVOLVED = 1 << 22  # on a CPU fewer, if their convolutions would give more numbers than a cache has
_MOST_OUTPUTS = 1 << 26  # the same for text: fewer samples if their outputs would be more numbers
BYTES_PER_OUTPUT = 128  # of a GPU's memory, if that allows more outputs: few leave it idle
_BUSY = 1 << 16  # targets that keep it busy; more of them only take memory for what is between the layers
_LARGEST = 700.0  # a loss whose exponential is still a number


def block_of(objective: Objective, y: Tensor, classes: int) -> int:
    """How many samples to evaluate at once.

    Args:
        y: the targets; if each sample has several, its outputs have so many numbers for each class.
    """
    convolved = 0 if y.is_cuda else objective.convolved
    memory = torch.cuda.get_device_properties(y.device).total_memory if y.is_cuda else 0
    of_text = text_block(y.shape[1:].numel() if y.dim() > 1 else 0, classes, memory)
    return max(1, min(EVAL_BLOCK, of_text, _MOST_CONVOLVED // convolved if convolved else EVAL_BLOCK))


def text_block(targets: int, classes: int, memory: int = 0) -> int:
    """How many samples of text to evaluate at once, at most.

    Args:
        targets: how many a sample has.
        classes: outputs per target; 0: samples are not limited by them.
        memory: of a GPU, in bytes; 0 on a CPU.
    """
    if not (outputs := targets * classes):
        return EVAL_BLOCK
    return max(_MOST_OUTPUTS // outputs, min(memory // BYTES_PER_OUTPUT // outputs, _BUSY // targets))


def perplexity(loss: float) -> float:
    """The exponential of the mean loss of tokens, in nats."""
    return math.exp(min(loss, _LARGEST))


class Marks:
    """What a model makes of some samples.

    Args:
        w: the model.
        x: the samples.
        y: their targets.
        classes: how many there are; 0: regression, or answers of yes or no.
        keep: whether the outputs are kept; they are anyway if the loss is one of whole batches.

    Attributes:
        losses: of each sample, times the weight of its class; 0 if its target is ignored. Zeros if the loss
            is one of whole batches.
        hits: 1 for each sample that is answered right, else 0; of several answers, the share that is right;
            of tokens, how many are.
        outputs: of the module, if they are kept.
    """

    @torch.no_grad()
    def __init__(
        self, objective: Objective, w: Tensor, x: Tensor, y: Tensor, classes: int, keep: bool = False
    ) -> None:
        self.y, self.terms, self.classes, kept, losses, hits = y, objective.terms, classes, [], [], []
        self.objective, keep = objective, keep or objective.terms.of_batch
        block = block_of(objective, y, classes)
        blocks = zip(torch.split(x, block), torch.split(y, block), strict=True)
        for xs, ys in blocks if len(x) else ():  # not every module can take no sample
            outputs = objective.outputs(w, xs)
            of_each = outputs.new_zeros(len(ys)) if self.terms.of_batch else objective.losses(outputs, ys)
            losses.append(of_each.double())
            hits.append(objective.terms.hits(outputs, ys, classes))
            kept += [outputs] if keep else []
        self.outputs = torch.cat(kept) if kept else y[:0]
        self.losses: Numbers = torch.cat(losses).cpu().numpy() if losses else np.zeros(0)
        self.hits: Numbers = torch.cat(hits).cpu().numpy() if hits else np.zeros(0)

    def loss(self, rows: slice = slice(None)) -> float:
        """The mean loss of some of the samples, or their loss as one batch; 0 if none counts."""
        if self.terms.of_batch and len(self.y[rows]):
            return float(self.objective.whole(self.outputs[rows], self.y[rows]))
        return float(shares(self.losses[rows].sum(), self._mass[rows].sum()))

    def accuracy(self, rows: slice = slice(None)) -> float | None:
        """The share of some of the samples that is answered right; None if none counts."""
        count = self._counted[rows].sum()
        return float(self.hits[rows].sum() / count) if count else None

    @cached_property
    def _mass(self) -> Numbers:
        return numbers(self.terms.mass(self.y), self.y)

    @cached_property
    def _counted(self) -> Numbers:
        return numbers(self.terms.counted(self.y), self.y)

    def regression(self, rows: slice = slice(None)) -> dict[str, float]:
        """r2, the share of the targets' variance that is explained, and rmse, the root mean square error.

        With Cox's loss it is the C-index instead. Empty if outputs and targets are not of one kind.
        """
        y, outputs = self.y[rows].double(), self.outputs[rows].double()
        if self.objective.survival:
            return {"c_index": concordance_index(outputs, y)}
        if not len(outputs) or y.numel() != outputs.numel():
            return {}
        error = float((outputs.reshape(y.shape) - y).square().mean())
        spread = float((y - y.mean(0)).square().mean())
        return {"r2": 1 - error / spread if spread else math.nan, "rmse": math.sqrt(error)}

    def of_tokens(self, characters: bool) -> dict[str, float]:
        """The perplexity of text, and its bits per character if tokens are characters."""
        loss = self.loss()
        bits = {"test_bits_per_character": loss / math.log(2)} if characters else {}
        return {"test_perplexity": perplexity(loss), **bits}

    def perplexities(self, sizes: Sequence[int]) -> list[float | None]:
        """The perplexity of each client's text; None if it has none.

        Args:
            sizes: see `by_client`.
        """
        slices = [slice(*ends) for ends in pairwise(accumulate(sizes, initial=0))]
        return [perplexity(self.loss(rows)) if self._counted[rows].sum() else None for rows in slices]

    @property
    def score_name(self) -> str:
        """What the score of these samples is: accuracy, c_index or r2."""
        if self.classes or self.terms.threshold is not None:
            return "accuracy"
        return "c_index" if self.objective.survival else "r2"

    def by_client(self, sizes: Sequence[int]) -> list[float | None]:
        """The score of each client's samples; None if there is none.

        Args:
            sizes: how many of the samples are each client's, those of the first client first.
        """
        slices = [slice(*ends) for ends in pairwise(accumulate(sizes, initial=0))]
        if self.score_name == "accuracy":
            return [self.accuracy(rows) for rows in slices]
        found = [self.regression(rows).get(self.score_name, math.nan) for rows in slices]
        return [score if math.isfinite(score) else None for score in found]

    def fairness(self, sizes: Sequence[int], names: Sequence[str] | None = None) -> dict[str, Any]:
        """How the score differs between clients: its mean, the worst and whose it is, the standard deviation.

        Args:
            sizes: see `by_client`; clients without a score are left out.
            names: of the clients; None: the worst is not named. Of several that are equal the first is.
        """
        each = self.by_client(sizes)
        found = [score for score in each if score is not None]
        if not found:
            return {}
        worst = {} if names is None else {WORST: names[each.index(min(found))]}
        return dict(zip(FAIRNESS, (fmean(found), min(found), pstdev(found)), strict=True)) | worst

    def own(self, metrics: Mapping[str, Metric], rows: slice = slice(None)) -> dict[str, float]:
        """The user's metrics on some of the samples; each is given copies, which it may write into."""
        pair = self.outputs[rows], self.y[rows]
        return {name: _number(name, f(*(x.clone() for x in pair))) for name, f in metrics.items()}


def numbers(found: Tensor | None, y: Tensor) -> Numbers:
    """What each sample counts, as `Terms.mass` or `Terms.counted` found it of the targets y; 1 if None."""
    return np.ones(len(y)) if found is None else found.double().cpu().numpy()


def shares(totals: Numbers, counts: Numbers) -> Numbers:
    """Totals over counts; 0 where nothing was counted."""
    return np.divide(totals, counts, out=np.zeros_like(totals), where=counts > 0)


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise ConfigError(
            f"metric {name!r} must return one number; it gave {type(value).__name__} {str(value)[:60]}"
        ) from None
