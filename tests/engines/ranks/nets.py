"""A module for runs on ranks that drops, and has BatchNorm."""

import torch.nn.functional as F
from torch import Tensor, nn


class Net(nn.Module):
    """Two linear layers.

    Args:
        hidden: how many numbers are between them.
    """

    def __init__(self, in_features: int, classes: int, hidden: int = 8) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(in_features, hidden), nn.BatchNorm1d(hidden)
        self.last = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm(self.first(x.flatten(1))))
        return self.last(F.dropout(h, 0.3, self.training))  # type: ignore[no-any-return]
