"""The results of a study's runs, and the rules by which its claims are judged."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from fedcom.formats import is_number
from fedcom.reproduce.panels import Panel, Scale, shown
from fedcom.runs.curve import Curve
from fedcom.studies.sweep import Record

HOLDS, PARTLY, FAILS, NOT_RUN = "holds", "holds partly", "does not hold here", "not run"
MARKS = {HOLDS: "✅", PARTLY: "🟡", FAILS: "❌", NOT_RUN: "⬜"}
BANDS = "bands: least to largest over seeds"  # of curves
BARS = "bars: standard deviation over seeds"  # of points
TAIL = 0.8  # scores are means over the evaluations of the last fifth of the rounds
FLOORS = {"test_accuracy": 0.003, "train_loss": 0.03, "uplink_bytes": 0.03}  # the last two are relative
RULE = (
    "A score is the mean over the evaluations of the last fifth of the rounds, then over seeds. A difference "
    "counts if it is larger than the spread over seeds (both standard deviations, in quadrature) and than "
    f"{100 * FLOORS['test_accuracy']:g} points of accuracy or {100 * FLOORS['train_loss']:g}% of the loss or "
    "of the bytes. A diverged run is worse than any other."
)


@dataclass(frozen=True)
class Verdict:
    """Whether a claim of the paper holds.

    Args:
        claim: what is claimed, in a sentence.
        outcome: HOLDS, PARTLY, FAILS or NOT_RUN.
        numbers: the measured numbers that decide it, in words.
        setting: where they were measured, in words.
    """

    claim: str
    outcome: str
    numbers: str
    setting: str

    @classmethod
    def of(cls, claim: str, checks: Iterable[bool], numbers: str, setting: str = "") -> "Verdict":
        """A verdict that holds if all checks do, and partly if some do."""
        found = list(checks)
        outcome = HOLDS if found and all(found) else PARTLY if any(found) else FAILS
        return cls(claim, outcome, numbers, setting)

    def table(self) -> dict[str, str]:
        """The verdict as an object of verdicts.json."""
        return asdict(self)


@dataclass(frozen=True)
class Stat:
    """One score over several seeds.

    Args:
        values: one per seed; None for a run without this score, for example a diverged one.
        key: the row's key that was measured. An accuracy is better when large, all others when small.
        missing: the word to print instead of the mean if a value is None.
    """

    values: tuple[float | None, ...]
    key: str
    missing: str = "never"

    @property
    def mean(self) -> float:
        """The mean over seeds; infinitely bad if a value is None."""
        if not self.values or any(value is None for value in self.values):
            return -math.inf if self.key == "test_accuracy" else math.inf
        return statistics.fmean(value for value in self.values if value is not None)

    @property
    def error(self) -> float:
        """The standard error of the mean; 0 for a single seed."""
        return self.spread / math.sqrt(max(1, len(self.values)))

    @property
    def spread(self) -> float:
        """The standard deviation over seeds; 0 for a single seed."""
        known = [value for value in self.values if value is not None]
        return statistics.stdev(known) if len(known) > 1 else 0.0

    def __str__(self) -> str:
        if not math.isfinite(self.mean):
            return self.missing
        scale, unit = (100, "%") if self.key == "test_accuracy" else (1, "")
        text = f"{scale * self.mean:.2f}" if scale > 1 else f"{self.mean:.4g}"
        return text + (f" ± {scale * self.spread:.2g}" if len(self.values) > 1 else "") + unit


def margin(a: Stat, b: Stat) -> float:
    """How far apart two scores must be to count as different."""
    floor = FLOORS.get(a.key, 0.0)
    if a.key != "test_accuracy":
        floor *= min(a.mean, b.mean)
    return max(math.hypot(a.spread, b.spread), floor)


def better(a: Stat, b: Stat) -> bool:
    """Whether a is better than b by more than the margin."""
    if not math.isfinite(a.mean):
        return False
    gain = a.mean - b.mean if a.key == "test_accuracy" else b.mean - a.mean
    return gain > margin(a, b)


def as_good(a: Stat, b: Stat) -> bool:
    """Whether a did not diverge, and b is not better than a."""
    return math.isfinite(a.mean) and not better(b, a)


def near(a: Stat, b: Stat, by: float) -> bool:
    """Whether neither diverged, and the accuracy a is below b by no more than this much."""
    return math.isfinite(a.mean) and math.isfinite(b.mean) and b.mean - a.mean <= by


def alike(a: Stat, b: Stat) -> bool:
    """Whether neither is better than the other, and neither diverged."""
    return as_good(a, b) and as_good(b, a)


@dataclass(frozen=True)
class StudyResults:
    """The records of a study, to be looked up by panel, method and point of the grid.

    In the methods below, `panel` and `method` are names, and `point` gives values of the grid by keys without
    their sections, as in `final("noise", "fedcomgate", tau=10)`.

    Args:
        panels: those that have runs.
        records: one per run; see `runner`.
        missing: panels without runs, as their data is missing or nobody asked for them; they are not drawn or
            judged.
    """

    panels: Sequence[Panel]
    records: Sequence[Record]
    scale: Scale
    missing: Sequence[Panel] = ()

    def has(self, panel: str) -> bool:
        """Whether a panel has runs."""
        return panel in _names(self)

    def runs(self, panel: str, method: str | None = None, **point: Any) -> list[Record]:
        """The records of a panel; if given, only those of one method or at these values of the grid."""
        return [
            r
            for r in self.records
            if r["panel"] == panel
            and method in (None, r["method"])
            and all(without_sections(r["point"]).get(key) == value for key, value in point.items())
        ]

    def grid_values(self, panel: str, key: str) -> list[Any]:
        """The values of one key of a panel's grid, in order."""
        return list(dict.fromkeys(without_sections(r["point"])[key] for r in self.runs(panel)))

    def final(self, panel: str, method: str, key: str = "test_accuracy", **point: Any) -> Stat:
        """A method's score at the end of its runs: the mean of `key` over the last fifth of the rounds."""
        runs = self.runs(panel, method, **point)
        ends = [r["status"] for r in runs if r["status"] != "done"]
        return Stat(tuple(_tail(r, key) for r in runs), key, *ends[:1])

    def best(self, panel: str, method: str, key: str = "test_accuracy", **point: Any) -> dict[str, Any]:
        """The point of the grid at which a method scores best, among those with these values."""
        tried = [without_sections(r["point"]) for r in self.runs(panel, method, **point)]
        up = 1 if key == "test_accuracy" else -1
        return max(tried, key=lambda p: up * self.final(panel, method, key, **p).mean)

    def final_at_best(self, panel: str, method: str, key: str = "test_accuracy", **point: Any) -> Stat:
        """A method's final score at its best point of the grid, among those with these values."""
        return self.final(panel, method, key, **self.best(panel, method, key, **point))

    def reach(self, panel: str, method: str, accuracy: float, **point: Any) -> Stat:
        """The bytes that a client sent until the model first reached an accuracy."""
        return Stat(tuple(_first(r, accuracy) for r in self.runs(panel, method, **point)), "uplink_bytes")

    def sent(self, panel: str, method: str, *keys: str, **point: Any) -> Stat:
        """The bytes of a client in all rounds.

        Args:
            keys: what to add up, such as "uplink_bytes" and "downlink_bytes".
        """
        ends = [r["rows"][-1] for r in self.runs(panel, method, **point) if r["rows"]]
        return Stat(tuple(sum(row.get(key, 0.0) for key in keys) for row in ends), keys[0])

    def curves(self, panel: str, method: str | None = None, **point: Any) -> list[Curve]:
        """The runs of a panel as curves to draw."""
        runs = self.runs(panel, method, **point)
        return [Curve(r["method"], r["seed"], r["rows"], r["status"]) for r in runs]

    def panel(self, name: str) -> Panel:
        """The panel of that name."""
        return next(p for p in (*self.panels, *self.missing) if p.name == name)

    def setting(self, *names: str) -> str:
        """The task of the named panels (or of all), in words: data, clients, rounds and seeds."""
        return "; ".join(dict.fromkeys(_setting(self.panel(n), self.scale) for n in names or _names(self)))


def without_sections(point: Mapping[str, Any]) -> dict[str, Any]:
    """A point of the grid without the sections of its keys: {"uplink.bits": 2} is {"bits": 2}."""
    return {key.rpartition(".")[2]: value for key, value in point.items()}


def _names(results: StudyResults) -> list[str]:
    return [p.name for p in results.panels]


def _tail(record: Record, key: str) -> float | None:
    if record["status"] != "done":
        return None
    last = record["rows"][-1]["round"]
    values = [row[key] for row in record["rows"] if row["round"] >= TAIL * last and is_number(row.get(key))]
    return statistics.fmean(values) if values else None


def _first(record: Record, accuracy: float) -> float | None:
    reached = (
        r for r in record["rows"] if is_number(r.get("test_accuracy")) and r["test_accuracy"] >= accuracy
    )
    found = next(reached, None)
    return None if found is None else float(found["uplink_bytes"])


def _setting(panel: Panel, scale: Scale) -> str:
    config = panel.config
    data, run = config.data, config.run
    clients = f"{data.clients or 'all'} clients"
    classes = f"of {data.classes_per_client} class{'es' * (data.classes_per_client > 1)} each"
    labels = f"of {data.classes_per_client} label{'s' * (data.classes_per_client > 1)} each"
    words = {"classes": classes, "labels": labels, "natural": "by author", "iid": "iid"}
    deal = words.get(data.partition or "", data.partition)
    share = "" if run.participation == 1 else f", {100 * run.participation:g}% per round"
    count = min(scale.seeds, panel.seeds or scale.seeds)
    seeds = f"{count} seed{'s' * (count > 1)}"
    quick = "quick form: " if scale.quick else ""
    rounds = f", {run.rounds} rounds" if run.rounds else ""
    return f"{quick}{data.name}, {clients} {deal}{share}{rounds}, {seeds}"


def common_target(scores: Iterable[Stat]) -> float:
    """An accuracy that all methods reach which did not diverge: 98% of the lowest final accuracy."""
    return 0.98 * min((s.mean for s in scores if math.isfinite(s.mean)), default=1.0)


def leaders(scores: Mapping[str, Stat]) -> str:
    """The names of the best and of all that do not differ from it by what counts; empty if that is all."""
    best = next(m for m in scores if not any(_ahead(scores[other], scores[m]) for other in scores))
    level = [shown(m) for m in scores if alike(scores[m], scores[best])] or [shown(best)]
    if len(level) == len(scores):
        return ""
    return f"{', '.join(level[:-1])} and {level[-1]}" if len(level) > 1 else level[0]


def _ahead(a: Stat, b: Stat) -> bool:
    """Whether the mean of a is better."""
    return a.mean > b.mean if a.key == "test_accuracy" else a.mean < b.mean


def ends_lowest(loss: Mapping[str, Stat]) -> str:
    """Which methods end with the least loss, in words."""
    names = leaders(loss)
    return f"{names} end{'s' * (' and ' not in names)} lowest" if names else "all end alike"


def fewest_bytes(results: StudyResults, name: str) -> str:
    """Which method of a panel reaches with the fewest bytes what all reach, in words."""
    methods = results.panel(name).methods
    target = common_target(results.final(name, m) for m in methods)
    least = min(methods, key=lambda m: results.reach(name, m, target).mean)
    return f"{shown(least)} reaches {100 * target:.1f} % with fewest bytes"


def list_of(stats: Mapping[str, Stat], scale: float = 1.0) -> str:
    """Names and scores in one line.

    Args:
        scale: what the scores are multiplied by, for example 1e-6 for megabytes.
    """
    scaled = {
        name: replace(s, values=tuple(None if v is None else scale * v for v in s.values))
        for name, s in stats.items()
    }
    return ", ".join(f"{shown(name)} {stat}" for name, stat in scaled.items())
