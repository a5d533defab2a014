"""Figures of the last round of some runs, kept on their device until they are asked for."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedcom.vectors import Vectors


class Gauges:
    """The q and alpha of each run's last round, and how many of its rounds left a finite model."""

    def __init__(self, runs: int, device: torch.device) -> None:
        self.q = torch.zeros(runs, dtype=torch.float64, device=device)
        self.alpha = torch.zeros_like(self.q)
        self.finite_rounds = torch.zeros(runs, dtype=torch.int64, device=device)

    def tensors(self) -> Vectors:
        """What is kept between rounds, by name."""
        return {"gauges.q": self.q, "gauges.alpha": self.alpha, "gauges.finite_rounds": self.finite_rounds}

    def record(self, q: Tensor, alpha: Tensor, models: Sequence[Tensor]) -> None:
        """Take in a round: one q, alpha and model per run."""
        self.q.copy_(q)
        self.alpha.copy_(alpha)
        self.finite_rounds.add_(torch.isfinite(torch.stack([w.sum(dtype=torch.float64) for w in models])))
