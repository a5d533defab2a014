"""Dropout whose masks come from a key: the same on every engine and in any stack of clients."""

from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedcom.draws import Draw, mix, salt

_UNIT = 1 << 24  # numbers are uniform multiples of 1/_UNIT, as those of Draw.uniform
_NAMES = {"train": "training"}  # as torch.dropout calls what F.dropout calls so
_ALPHA = -1.7580993408473766  # the lowest value of SELU
# torch's own, but for the question whether somebody takes the call over: here only its parts are.
_ATTENTION: Any = FunctionType(
    F.multi_head_attention_forward.__code__,
    {**vars(F), "has_torch_function": lambda tensors: False},
    argdefs=F.multi_head_attention_forward.__defaults__,
)


def has_dropout(module: nn.Module) -> bool:
    """Whether a layer of torch's that drops is in training; F.dropout in a forward is not seen."""
    return any(part.training and _share(part) > 0 for part in module.modules())


def _share(part: nn.Module) -> float:
    if isinstance(part, nn.modules.dropout._DropoutNd):
        return part.p
    if isinstance(part, nn.RNNBase):
        return part.dropout if part.num_layers > 1 else 0.0
    return part.dropout if isinstance(part, nn.MultiheadAttention) else 0.0


def has_frozen_recurrence(module: nn.Module) -> bool:
    """Whether a recurrent layer or cell of torch's has a frozen parameter, so that it needs `Masks`."""
    parts = [part for part in module.modules() if isinstance(part, nn.RNNBase | nn.RNNCellBase)]
    return any(not p.requires_grad for part in parts for p in part.parameters())


class Masks(TorchFunctionMode):
    """Inside it all dropout of torch's takes its masks from a key, each call its own.

    It serves the functions of torch.nn.functional, attention, and the layers of an LSTM or GRU. Recurrent
    layers begin from a state per client: if their weights are frozen, torch would add each client's inputs to
    a state that all share, which torch.vmap refuses.

    Args:
        key: one whole number, int64; None: nothing is dropped.
        first: how many samples of the minibatch come before those of these calls: where samples are the first
            axis, or the slowest part of it, masks do not depend on which of them are computed at once.
        samples: how many these are.

    Attributes:
        calls: how many calls would have dropped something so far.
    """

    def __init__(self, key: Tensor | None, first: int = 0, samples: int = 1) -> None:
        super().__init__()
        self.key, self.first, self.samples, self.calls = key, first, samples, 0

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a function of torch's, or what stands for it here."""
        own = _OWN.get(getattr(func, "__name__", ""))
        if own is None:
            return func(*args, **(kwargs or {}))
        named = {_NAMES.get(name, name): value for name, value in (kwargs or {}).items()}
        return own(self, func, *args, **named)

    def kept(self, shape: Sequence[int], p: float, like: Tensor) -> Tensor | None:
        """The mask of the next call: 1 with probability 1 - p, else 0; None: nothing is dropped.

        Args:
            like: gives dtype and device.
        """
        if p == 0:
            return None
        self.calls += 1
        if self.key is None:
            return None
        n = torch.Size(shape).numel()
        begin = self.first * n // self.samples
        places = torch.arange(begin, begin + n, dtype=torch.int32, device=self.key.device) if begin else n
        bits = Draw(mix(self.key, salt(self.calls))).bits(places)
        uniform = (bits >> 8).bitwise_and(_UNIT - 1)
        return (uniform >= round(p * _UNIT)).to(like.dtype).reshape(tuple(shape))

    def dropped(self, x: Tensor, p: float, shape: Sequence[int] | None = None) -> Tensor:
        """x with some entries 0, and the others scaled so that the mean stays.

        Args:
            shape: of the mask, if it is smaller than x.
        """
        mask = self.kept(x.shape if shape is None else shape, p, x)
        return x if mask is None else x * (mask if p == 1 else mask * (1 / (1 - p)))


def _dropout(
    masks: Masks, func: Any, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    return _written(input, masks.dropped(input, _checked(p) if training else 0.0), inplace)


def _feature_dropout(
    masks: Masks, func: Any, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    shape = _of_features(func, input)
    return _written(input, masks.dropped(input, _checked(p) if training else 0.0, shape), inplace)


def _alpha_dropout(
    masks: Masks, func: Any, input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    shape = _of_features(func, input) if func.__name__.startswith("feature") else input.shape
    mask = masks.kept(shape, _checked(p) if training else 0.0, input)
    if mask is None:
        return input
    scale = 0.0 if p == 1 else ((1 - p) * (1 + p * _ALPHA**2)) ** -0.5
    return _written(input, scale * (input * mask + _ALPHA * (1 - mask) - _ALPHA * p), inplace)


def _checked(p: float) -> float:
    if not 0 <= p <= 1:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
    return float(p)  # which may be a tensor


def _of_features(func: Any, x: Tensor) -> list[int]:
    """The shape of a mask with one number per channel; torch takes samples without a batch in some cases."""
    alone = {"dropout1d": 2, "dropout3d": 4}.get(func.__name__) == x.dim()
    kept = 1 if alone else 2
    return [*x.shape[:kept], *[1] * (x.dim() - kept)]


def _written(x: Tensor, new: Tensor, inplace: bool) -> Tensor:
    return x.copy_(new) if inplace and new is not x else new


def _multi_head_attention(masks: Masks, func: Any, *args: Any, **kwargs: Any) -> Any:
    with masks:
        return _ATTENTION(*args, **kwargs)


def _attention(
    masks: Masks,
    func: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    options = {"attn_mask": attn_mask, "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
    if dropout_p == 0 or masks.key is None:
        masks.calls += dropout_p > 0
        found: Tensor = func(query, key, value, **options)
        return found
    if enable_gqa:
        key, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], -3) for x in (key, value))
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    shares = scores.softmax(-1)
    if attn_mask is not None:  # as in torch, a query that may look nowhere gets zeros
        shares = shares.masked_fill(scores.isneginf().all(-1, keepdim=True), 0.0)
    return masks.dropped(shares, _checked(dropout_p)) @ value


def _recurrent(masks: Masks, func: Any, input: Tensor, *args: Any) -> Any:
    """An LSTM, GRU or RNN, layer by layer if it drops between layers."""
    packed = isinstance(args[2], tuple | list)  # then the sizes of batches come first
    sizes, (start, weights, bias, layers, p, training, both, *order) = args[:packed], args[packed:]
    start = _of_clients(start, input)
    if not (training and p > 0 and layers > 1):
        return func(input, *sizes, start, weights, bias, layers, p, training, both, *order)
    lstm, ways, x = isinstance(start, tuple | list), 2 if both else 1, input
    each, ends = len(weights) // layers, list[Any]()
    for layer in range(layers):
        rows = slice(layer * ways, (layer + 1) * ways)
        begin = tuple(h[rows] for h in start) if lstm else start[rows]
        own = weights[layer * each : (layer + 1) * each]
        x = masks.dropped(x, p) if layer else x
        x, *end = func(x, *sizes, begin, own, bias, 1, 0.0, training, both, *order)
        ends.append(end)
    return (x, *(torch.cat(parts) for parts in zip(*ends, strict=True)))


def _cell(masks: Masks, func: Any, input: Tensor, start: Any, *args: Any) -> Any:
    """One step of an LSTM, GRU or RNN."""
    return func(input, _of_clients(start, input), *args)


def _of_clients(start: Any, input: Tensor) -> Any:
    """The same first state, under torch.vmap one per client if the inputs are."""
    if isinstance(start, tuple | list):
        return tuple(_of_clients(h, input) for h in start)
    return start + input.new_zeros(start.shape)


_OWN: dict[str, Callable[..., Any]] = {
    "dropout": _dropout,
    **dict.fromkeys(("dropout1d", "dropout2d", "dropout3d", "feature_dropout"), _feature_dropout),
    **dict.fromkeys(("alpha_dropout", "feature_alpha_dropout"), _alpha_dropout),
    "multi_head_attention_forward": _multi_head_attention,
    "scaled_dot_product_attention": _attention,
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), _recurrent),
    **dict.fromkeys(("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"), _cell),
}
