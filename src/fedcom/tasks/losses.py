"""What is known of torch's own losses: what each sample counts in a mean, and which answer is right."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedcom.data.tokens import IGNORED

Loss = Callable[..., Tensor]  # of outputs and targets; of weights too if it is marked by `batch_loss`
L = TypeVar("L", bound=Callable[..., Any])

_FUNCTIONS: dict[type, Loss] = {
    nn.CrossEntropyLoss: F.cross_entropy,
    nn.NLLLoss: F.nll_loss,
    nn.BCEWithLogitsLoss: F.binary_cross_entropy_with_logits,
    nn.BCELoss: F.binary_cross_entropy,
}
_OPTIONS = ("weight", "ignore_index", "label_smoothing", "reduction")
_OF_YES_OR_NO = ((F.binary_cross_entropy_with_logits, 0.0), (F.binary_cross_entropy, 0.5))


def batch_loss(loss: L) -> L:
    """Say that a loss is one number of a whole batch, and not a mean of its samples' losses.

    It is called as loss(outputs, targets, weight). The weights sum to 1. Samples with weight 0 stand where a
    client has fewer than others, and must not change the loss; each other has the same weight.
    """
    loss.of_batch = True  # type: ignore[attr-defined]
    return loss


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The cross-entropy of each sample."""
    picked = outputs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return outputs.logsumexp(-1) - picked


def token_cross_entropy(
    outputs: Tensor,
    targets: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = IGNORED,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """The cross-entropy of tokens: the mean over all tokens of a batch that are not ignored.

    A client's loss is then the mean over its tokens, however many of them are padding.

    Args:
        outputs: a score for each token of the vocabulary at each place [samples, T, V].
        targets: the right one at each place [samples, T], or ignore_index.
        weight: of each token of the vocabulary in the mean [V]; None: 1.
        reduction: "mean", or "none" for the loss at each place.
        label_smoothing: as in torch.
    """
    found = F.cross_entropy(
        outputs.reshape(-1, outputs.shape[-1]),
        targets.reshape(-1),
        weight,
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
    )
    return found.reshape(targets.shape) if reduction == "none" else found


@dataclass(frozen=True)
class Terms:
    """What is known of a loss.

    Args:
        each: the loss of each target times the weight of its class, 0 if it is ignored; None: unknown.
        weight: of each class in the mean; None: 1.
        ignored: a target that is left out of loss and accuracy; None: there is none.
        threshold: the output above which the answer is yes; None: answers are not yes or no.
        of_batch: whether it is a loss of a whole batch; see `batch_loss`.
        tokens: whether it is that of tokens, of which a sample has several; see `token_cross_entropy`.
    """

    each: Loss | None = None
    weight: Tensor | None = None
    ignored: int | None = None
    threshold: float | None = None
    of_batch: bool = False
    tokens: bool = False

    @classmethod
    def of(cls, loss: Loss | None) -> "Terms":
        """What is known of a loss: a module or function of torch's, or a partial of one."""
        function, options = _parts(loss)
        if getattr(function, "of_batch", False):
            return cls(of_batch=True)
        for other, threshold in _OF_YES_OR_NO:
            if function is other:
                return cls(threshold=threshold)
        if not any(function is other for other in (F.cross_entropy, F.nll_loss, token_cross_entropy)):
            return cls()
        tokens = function is token_cross_entropy
        ignored = options.get("ignore_index", -100)
        if options.get("reduction", "mean") != "mean":
            return cls(ignored=ignored, tokens=tokens)
        each = partial(function, **{**options, "reduction": "none"})
        return cls(each, options.get("weight"), ignored, tokens=tokens)

    def losses(self, loss: Loss, outputs: Tensor, y: Tensor) -> Tensor:
        """The loss of each sample of a batch; of several targets the mean."""
        if self.each is None or y.is_floating_point():  # shares of classes: torch's mean is over the samples
            own = y.clone()  # a loss of the user's may write into it
            return torch.vmap(loss)(outputs.unsqueeze(1), own.unsqueeze(1)).reshape(len(y))
        found = self.each(outputs, y)
        return found if y.dim() == 1 else found.flatten(1).mean(1)

    def mass(self, y: Tensor, axes: int = 1) -> Tensor | None:
        """What each sample counts in the mean of a batch; None: all samples count the same.

        Args:
            y: the targets; of a sample with several, it is the mean of what they count.
            axes: how many axes of y are before those of a sample's targets.
        """
        if self.each is None or y.is_floating_point():
            return None
        kept = y.ne(cast(int, self.ignored))
        if self.weight is None:
            mass = kept.double()
        else:
            mass = torch.where(kept, self.weight[torch.where(kept, y, 0)], 0.0)
        return mass if y.dim() == axes else mass.flatten(axes).mean(axes)

    def counted(self, y: Tensor) -> Tensor | None:
        """Whether each sample has an accuracy, or how many of its tokens have one; None: all samples have."""
        if self.tokens:
            return y.ne(cast(int, self.ignored)).flatten(1).sum(1)
        return None if self.ignored is None or y.dim() != 1 else y.ne(self.ignored)

    def hits(self, outputs: Tensor, y: Tensor, classes: int) -> Tensor:
        """1 for each sample that is answered right, else 0; of several answers, the share that is right.

        Of tokens, how many are right.

        Args:
            classes: how many there are; 0: answers are yes or no, or the loss has no answers and all is 0.
        """
        if classes:
            right = outputs.argmax(-1) == y
            if self.tokens:
                return (right & y.ne(cast(int, self.ignored))).flatten(1).sum(1).double()
            counted = self.counted(y)
            return right.double() if counted is None else (right & counted).double()
        if self.threshold is None:
            return torch.zeros(len(y), dtype=torch.float64, device=y.device)
        right = (outputs > self.threshold) == (y > 0.5)
        return right.double().reshape(len(y), -1).mean(1)


def placed(loss: Loss | None, dtype: torch.dtype, device: torch.device | None = None) -> Loss | None:
    """A copy of a loss whose tensors, such as class weights, have a dtype and are on a device."""

    def move(x: Any) -> Any:
        return (
            x.to(device=device, dtype=dtype if x.is_floating_point() else None)
            if isinstance(x, Tensor)
            else x
        )

    if isinstance(loss, nn.Module):
        return copy.deepcopy(loss).to(device=device, dtype=dtype)
    if isinstance(loss, partial):
        return partial(loss.func, *map(move, loss.args), **{k: move(x) for k, x in loss.keywords.items()})
    return loss


def _parts(loss: Any) -> tuple[Any, dict[str, Any]]:
    """The function that a loss is, and its settings."""
    if isinstance(loss, partial) and not loss.args:
        return loss.func, dict(loss.keywords)
    if type(loss) not in _FUNCTIONS:
        return loss, {}
    return _FUNCTIONS[type(loss)], {key: getattr(loss, key) for key in _OPTIONS if hasattr(loss, key)}
