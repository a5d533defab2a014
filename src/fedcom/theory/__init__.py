"""The paper's theorems as formulas, estimates of their constants, and the step sizes that follow."""

from fedcom.theory.auto import settle
from fedcom.theory.constants import Constants, StepSizes
from fedcom.theory.probes import Probe, Prober, probe
from fedcom.theory.rates import Rate, rate
from fedcom.theory.theorems import THEOREMS, Theorem, mean_noise, theorem

__all__ = [
    "THEOREMS",
    "Constants",
    "Probe",
    "Prober",
    "Rate",
    "StepSizes",
    "Theorem",
    "mean_noise",
    "probe",
    "rate",
    "settle",
    "theorem",
]
