"""Survival: Cox's partial likelihood as a loss of whole batches, and the concordance index as a score.

A target is a time and an event: 1 if the event came then, 0 if it had not come until then. A model's output
is one number per sample, the larger the sooner the event is expected.
"""

import math

import torch
from torch import Tensor

from fedcom.errors import ConfigError
from fedcom.tasks.losses import batch_loss

_PAIRS = 1 << 24  # pairs of samples that are compared at once


@batch_loss
def cox(outputs: Tensor, targets: Tensor, weight: Tensor) -> Tensor:
    """Minus Cox's log partial likelihood of a batch, as a mean over its samples.

    Of each sample with an event it is the logarithm of the sum of exp(output) over those that were at risk
    then, itself among them, minus its own output. Events at the same time count as in Breslow (1974).
    """
    time, event = targets[..., 0], targets[..., 1]
    risk, here = outputs.flatten(), weight > 0
    if risk.shape != time.shape:
        raise ConfigError(
            f"survival takes one output per sample, and the module's are of shape {list(outputs.shape[1:])}; "
            "give its last layer one output"
        )
    latest_first, order = torch.where(here, -time, torch.inf).sort(stable=True)
    last_alike = torch.searchsorted(latest_first, latest_first, right=True) - 1
    at_risk = torch.where(here, risk, -torch.inf)[order].logcumsumexp(0)[last_alike]
    losses = torch.where((here & (event > 0))[order], at_risk - risk[order], 0.0)
    return (losses * weight[order]).sum()


def concordance_index(outputs: Tensor, targets: Tensor) -> float:
    """The share of pairs in which the one that had the event first has the larger output.

    Only pairs count in which it is known who had it first. Equal outputs count one half. NaN if there is no
    such pair, or if an output is NaN.
    """
    time, event = targets.double().unbind(-1)
    risk = outputs.flatten().double()
    if risk.isnan().any():
        return math.nan
    happened = (event > 0).nonzero()[:, 0]
    pairs = right = 0
    for some in torch.split(happened, max(1, _PAIRS // max(1, len(time)))):
        mine = time[some].unsqueeze(1)
        later = (time > mine) | ((time == mine) & (event <= 0))
        above, equal = risk[some].unsqueeze(1) > risk, risk[some].unsqueeze(1) == risk
        pairs += int(later.sum())
        right += 2 * int((above & later).sum()) + int((equal & later).sum())
    return right / (2 * pairs) if pairs else math.nan
