"""The paper's theorems as formulas, estimates of their constants, and the step sizes that follow."""

from fedcom.theory.constants import Constants, Steps
from fedcom.theory.rates import Rate, rate
from fedcom.theory.theorems import THEOREMS, Theorem, mean_noise, theorem

__all__ = ["THEOREMS", "Constants", "Rate", "Steps", "Theorem", "mean_noise", "rate", "theorem"]
