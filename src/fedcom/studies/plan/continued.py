"""Curves of pilots, continued: the error falls as a power of the rounds, and costs grow with them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from fedcom.algorithms import Algorithm
from fedcom.config import Config
from fedcom.engines.results import Row
from fedcom.formats import is_number
from fedcom.studies.plan.prediction import Goal, Prediction, codec_words

FLAT = 0.03  # an error that falls by a smaller power of the rounds has levelled off
FARTHEST = 8.0  # a curve is continued to at most so many times the pilot's rounds
REACHED = "reached in the pilot"


@dataclass(frozen=True)
class Power:
    """An error that falls as a power of the rounds from some round on: e (r/r0)^-p.

    Args:
        spread: half of the 95% interval of p.
    """

    r0: float
    e: float
    p: float
    spread: float

    def at(self, r: float) -> float:
        """The error after so many rounds."""
        return float(self.e * (max(r, 1.0) / self.r0) ** -max(self.p, 0.0))

    def to(self, wanted: float, p: float | None = None) -> float:
        """The rounds to an error."""
        p = self.p if p is None else p
        if wanted >= self.e:
            return self.r0
        return self.r0 * (self.e / wanted) ** (1 / p) if p > FLAT else math.inf


class Need(NamedTuple):
    """How many rounds are needed, from `low` to `high`, and in words where that comes from."""

    how: str
    rounds: float = math.inf
    low: float = math.inf
    high: float = math.inf


class Line(NamedTuple):
    """A cost: so much with the first round, and so much per round."""

    start: float
    slope: float

    def at(self, rounds: float) -> float:
        """The cost of so many rounds; of none it is nothing."""
        return self.start + self.slope * rounds if rounds else 0.0


def fit(rounds: Sequence[float], errors: Sequence[float]) -> Power:
    """The power law through the second half of a curve, by least squares in logarithms."""
    points = [(r, e) for r, e in zip(rounds, errors, strict=True) if r > 0 and e > 0]
    half = [pair for pair in points if pair[0] >= 0.4 * points[-1][0]] if points else []
    half = half if len(half) >= 3 else points[-3:]
    if len(half) < 3:
        last = points[-1] if points else (1.0, 1.0)
        return Power(last[0], last[1], 0.0, math.inf)
    x, y = np.log(np.array(half, dtype=float)).T
    spread = float(((x - x.mean()) ** 2).sum())
    slope = float(((x - x.mean()) * (y - y.mean())).sum()) / spread
    rest = y - y.mean() - slope * (x - x.mean())
    error = 2 * math.sqrt(float((rest**2).sum()) / max(1, len(half) - 2) / spread)
    end = math.log(half[-1][0])
    return Power(half[-1][0], math.exp(float(y.mean()) + slope * (end - float(x.mean()))), -slope, error)


def predict(
    label: str, config: Config, algorithm: Algorithm, curves: Sequence[Sequence[Row]], goal: Goal
) -> Prediction:
    """What a candidate needs, from its pilots.

    Args:
        algorithm: with numbers for its rates.
        curves: the rows of each seed; none for one that diverged.
    """
    tau = algorithm.tau if isinstance(algorithm.tau, int) else max(algorithm.tau)
    rates = algorithm.local_rate(0), algorithm.global_rate
    about = Prediction(label, algorithm.name, codec_words(config.links.uplink), tau, *rates)
    if any(len(rows) <= 1 for rows in curves):
        return replace(about, how="diverged in its pilot")
    about = replace(about, by_loss=goal.by_loss(curves[0][-1]))
    rounds = [row["round"] for row in curves[0]]
    means = [float(np.mean([goal.error(rows[i]) for rows in curves])) for i in range(len(rounds))]
    middle = [float(np.median(means[i - 1 : i + 2])) for i in range(1, len(means) - 1)]
    law = fit(rounds, [means[0], *middle, means[-1]])
    # Running medians, so that one lucky evaluation does not count as having reached anything.
    errors = [float(np.median(means[max(0, i - 2) : i + 1])) for i in range(len(means))]
    spend = {key: _line(curves, key) for key in ("uplink_bytes", "downlink_bytes", "modelled_seconds")}
    need = (
        _rounds_to(goal.wanted, rounds, errors, law) if goal.reaches else _affordable(goal, spend, rounds[-1])
    )
    if not math.isfinite(need.rounds):
        return replace(about, error=law.at(FARTHEST * rounds[-1]), how=need.how)
    whole = math.ceil(need.rounds)
    up, down, seconds = (None if line is None else line.at(whole) for line in spend.values())
    return replace(
        about,
        rounds=whole,
        low=math.floor(need.low),
        high=math.ceil(min(need.high, 1e9)),
        error=float(np.interp(whole, rounds, errors)) if whole <= rounds[-1] else law.at(whole),
        up=up,
        down=down,
        seconds=seconds,
        how=need.how,
    )


def _rounds_to(wanted: float, rounds: Sequence[float], errors: Sequence[float], law: Power) -> Need:
    """The rounds to an error."""
    first = next((r for r, e in zip(rounds, errors, strict=True) if e <= wanted), None)
    if first is not None:
        gap = rounds[1] - rounds[0] if len(rounds) > 1 else 1
        return Need(REACHED, first, max(1.0, 0.8 * first - gap), 1.25 * first + gap)
    need, limit = law.to(wanted), FARTHEST * rounds[-1]
    if need > limit:
        return Need(f"not reached: about {law.at(limit):.3g} left after {limit:.0f} rounds")
    low, high = (law.to(wanted, law.p + sign * law.spread) for sign in (1, -1))
    return Need(f"continued from {rounds[-1]:g} rounds", need, low, min(high, limit))


def _affordable(goal: Goal, spend: Mapping[str, Line | None], played: float) -> Need:
    """The rounds that a budget buys; played: those of the pilot."""
    if goal.seconds is not None:
        lines, left = [spend["modelled_seconds"]], goal.seconds
    else:
        lines, left = [spend["uplink_bytes"], spend["downlink_bytes"]], goal.bytes or 0.0
    start, slope = (sum(numbers) for numbers in zip(*(line for line in lines if line), strict=True))
    bought = math.floor((left - start) / slope) if slope > 0 else math.inf
    if bought < 1:
        return Need("the budget is less than one round")
    how = "within the pilot" if bought <= played else f"continued from {played:g} rounds"
    return Need(how, bought, bought, bought)


def _line(curves: Sequence[Sequence[Row]], key: str) -> Line | None:
    """What a key of the rows costs; None if the rows do not have it."""
    ends = [(rows[1], rows[-1]) for rows in curves if is_number(rows[-1].get(key))]
    if not ends:
        return None
    slopes = [
        (b[key] - a[key]) / (b["round"] - a["round"]) if b["round"] > a["round"] else b[key] / b["round"]
        for a, b in ends
    ]
    slope = float(np.mean(slopes))
    return Line(float(np.mean([b[key] - slope * b["round"] for _, b in ends])), slope)
