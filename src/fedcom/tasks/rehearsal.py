"""A module, its loss and its data tried on the first sample, before a run: what does not fit is refused."""

import re
import warnings

import torch
from torch import Tensor, nn

from fedcom.data.inputs import Inputs
from fedcom.errors import ConfigError
from fedcom.tasks.losses import Loss
from fedcom.tasks.objective import Objective
from fedcom.tasks.suitable import SIDE_BY_SIDE, embeds, told

# What torch raises on tensors that do not fit; any other error is a bug of the module's or the loss's own.
_MISFITS = (RuntimeError, ValueError, TypeError, IndexError)
# What it says of numbers that are no indices.
_INDICES = r"used as indices must be|scalar types: Long|LongTensor|Expected dtype int"


def rehearse(objective: Objective, x: Tensor, y: Tensor, classes: int) -> int:
    """Try a module and its loss on the first sample; refuse data that does not suit them.

    Args:
        x: training samples.
        y: their targets.
        classes: how many there are; 0: regression.

    Returns:
        How many classes there are; 0 if the outputs have no score for each.
    """
    if objective.loss is None:
        _check_classes(x, y, classes)
    try:
        first = objective.look_inside(x[:1])
        outputs = objective.outputs(objective.start, x[:1])
    except _MISFITS as error:
        check_numbers(objective, x)
        swapped = "; are x and y swapped?" if x.dim() == 1 < y.dim() else ""
        remedy = f"change the module or the shape of x{swapped}"
        if re.search(_INDICES, str(error)) and not embeds(objective.module):
            remedy = "numbers are floating-point unless a module has an nn.Embedding; call .long() in forward"
        elif "bool" in str(error).lower() and "true or false" in getattr(objective.several, "kinds", ()):
            remedy = "True and False stay so; call .float() in forward, or give numbers"
        raise ConfigError(
            f"the module cannot take one sample of {_shape(x, objective.several)}: {told(error)}; {remedy}"
        ) from error
    check_numbers(objective, x)
    scores = _scores(objective, outputs, y[:1], classes)
    if (objective.loss is None or objective.terms.each) and not scores >= classes:
        raise ConfigError(
            f"labels go up to {classes - 1}, but for one sample the module returns "
            f"{list(outputs.shape)}; it must return [1, {classes}], one score per class; mend its last "
            "layer, or the labels"
        )
    try:
        w, weight = objective.complete(objective.start), outputs.new_ones(1, 1)
        slope = objective.stacked(w.unsqueeze(0), x[:1].unsqueeze(0), y[:1].unsqueeze(0), weight)
    except _MISFITS as error:
        if _has_loss(objective, outputs, y[:1]):
            raise ConfigError(f"{SIDE_BY_SIDE} fails there: {told(error)}") from error
        raise ConfigError(
            f"the loss of one sample, of outputs {list(outputs.shape)} and targets {list(y[:1].shape)}, "
            f"cannot be computed: {told(error)}; it must be one number"
        ) from error
    evaluated_alike = not objective.drops and objective.batch_norm is None
    again = outputs if evaluated_alike else objective.in_training(objective.start, x[:1])
    if not torch.allclose(first, again, 1e-3, 1e-6, equal_nan=True):
        raise ConfigError(
            "the module gives one sample other outputs when it is called again: it counts its calls, or "
            "draws numbers that are not torch's, so no run could be repeated; leave that out, or use "
            "torch's dropout, whose masks are drawn from the run's seed"
        )
    _check_constant(objective.loss, outputs, slope)
    if not y.is_floating_point():
        _check_mean(objective, x[:8], y[:8])
    return classes if scores >= classes and objective.terms.threshold is None else 0


def _has_loss(objective: Objective, outputs: Tensor, y: Tensor) -> bool:
    """Whether a loss can be computed of outputs, where no gradient is asked for."""
    try:
        if objective.terms.of_batch:
            return objective.whole(outputs, y).dim() == 0
        return objective.losses(outputs, y).shape == y.shape[:1]
    except _MISFITS:
        return False


def check_numbers(objective: Objective, x: Tensor) -> None:
    """Refuse samples with whole numbers that an embedding of the module does not have.

    The samples with the extreme numbers are tried.
    """
    tables = [p.num_embeddings for p in objective.module.modules() if isinstance(p, nn.Embedding)]
    parts = objective.whole_parts(x) if tables and len(x) and not x.is_cuda else []
    furthest = [(int(part.argmin()), int(part.argmax())) for part in parts]
    pairs = list(zip(parts, furthest, strict=True))
    low = min((int(part.flatten()[least]) for part, (least, _) in pairs), default=0)
    high = max((int(part.flatten()[most]) for part, (_, most) in pairs), default=0)
    if low >= 0 and high < min(tables, default=1):
        return
    rows = {place // part[0].numel() for part, places in pairs for place in places}
    try:
        objective.outputs(objective.start, x[sorted(rows)])
    except _MISFITS as error:
        if "out of range in self" in str(error):
            raise ConfigError(
                f"the module has an embedding of {min(tables)} rows, and x has whole numbers from {low} "
                f"to {high}; give it more rows, or number x anew, from 0 on; text must be cut by the "
                "model's own tokenizer"
            ) from error


def _scores(objective: Objective, outputs: Tensor, y: Tensor, classes: int) -> int:
    """How many classes a module's outputs have scores for; 0 if they are no scores of classes."""
    if not objective.terms.tokens:
        return outputs.shape[1] if outputs.dim() == 2 else 0
    if outputs.shape[:-1] != y.shape or outputs.shape[-1] < classes:
        shape = [*y.shape, classes]
        raise ConfigError(
            f"y has one class per token, up to {classes - 1}, but for one sample the module returns "
            f"{list(outputs.shape)}; it must return {shape}, one score per token and class, as "
            "model.name=gru does; if a sample has one class, give y of shape [samples]"
        )
    return outputs.shape[-1]


@torch.no_grad()
def _check_mean(objective: Objective, x: Tensor, y: Tensor) -> None:
    """Warn if the loss of some samples is not the mean of their losses: class weights would cancel."""
    if objective.loss is None or objective.terms.each is not None or objective.terms.of_batch:
        return
    outputs = objective.outputs(objective.start, x)
    try:
        whole = float(objective.loss(outputs, y.clone()).mean())
    except Exception:  # it may be a function of one sample
        return
    mean = float(objective.losses(outputs, y).mean())
    if abs(whole - mean) > 1e-3 * max(abs(whole), abs(mean)):
        warnings.warn(
            f"the loss of the first {len(y)} samples is {whole:.4g}, but the mean of their losses, which "
            f"is what clients descend, is {mean:.4g}; write it as a mean over samples; class weights and "
            "ignored targets are understood in torch.nn.CrossEntropyLoss(weight=..., ignore_index=...)",
            stacklevel=5,
        )


def _check_constant(loss: Loss | None, *found: Tensor) -> None:
    """Refuse what nobody trains: parameters of the loss, and tensors that the module hides.

    Args:
        found: what was computed of the module's parameters, which ask for no gradient here.
    """
    parameters = loss.named_parameters() if isinstance(loss, nn.Module) else ()
    trained = [name for name, p in parameters if p.requires_grad]
    if trained:
        raise ConfigError(
            f"the loss has the parameter {trained[0]!r}, and only those of the module are trained; let the "
            "module have it and return what the loss needs, or freeze it by requires_grad_(False)"
        )
    if any(one.requires_grad for one in found):
        raise ConfigError(
            "the module or its loss computes with a tensor that requires a gradient and is not read as a "
            "parameter of the module, such as one in a Python list; use nn.ModuleList or nn.ParameterList, "
            "or freeze it by requires_grad_(False)"
        )


def _shape(x: Tensor, several: Inputs | None) -> str:
    """The shape of a sample, for errors."""
    return f"shape {list(x.shape[1:])}" if several is None else f"the inputs {several}"


def _check_classes(x: Tensor, y: Tensor, classes: int) -> None:
    """Refuse targets that are no classes: cross-entropy, the default, needs them."""
    if classes:
        return
    if x.dim() == 1 < y.dim():
        raise ConfigError(
            f"x has shape {list(x.shape)} and y {list(y.shape)}: they look swapped; the order is module, x, y"
        )
    kind = "floats" if y.is_floating_point() else f"whole numbers of shape {list(y.shape)}"
    remedy = "y.long()" if y.is_floating_point() and bool((y == y.round()).all()) else "one class per sample"
    raise ConfigError(
        f"cross-entropy, the default loss, needs classes 0, 1, 2, ..., and y holds {kind}; give {remedy}, "
        "or a loss of your own, as in loss=torch.nn.functional.mse_loss"
    )
