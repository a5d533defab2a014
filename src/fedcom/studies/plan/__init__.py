"""What `fedcom plan` does: predict what each method and codec needs to reach a target, and recommend one."""

from fedcom.studies.plan.by_theory import by_theory, read_constants
from fedcom.studies.plan.continued import predict
from fedcom.studies.plan.pilots import candidates, outcome, plan
from fedcom.studies.plan.prediction import Cost, Goal, Prediction
from fedcom.studies.plan.words import beside, render, why

__all__ = [
    "Cost",
    "Goal",
    "Prediction",
    "beside",
    "by_theory",
    "candidates",
    "outcome",
    "plan",
    "predict",
    "read_constants",
    "render",
    "why",
]
