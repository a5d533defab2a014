"""What `fedcom plan` does: predict what each method and codec needs to reach a target, and recommend one.

Theory is too loose for that on a real task: its bounds are far above what happens (docs/theory.md). So every
candidate runs for some rounds at auto rates, on held-out samples and seeds of its own, and its curve is
continued: the error falls as a power of the rounds, whose exponent is fitted to the second half of the pilot.
The most promising candidates are then piloted further. With constants instead of a task, the theorems decide.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from fedcom.algorithms import Algorithm
from fedcom.codecs import CODECS, Codec
from fedcom.config import Config, Table, dumps
from fedcom.config.methods import variant
from fedcom.draws import Draw
from fedcom.engines.simulation import Row
from fedcom.errors import ConfigError, flag
from fedcom.formats import is_number
from fedcom.runs.folder import claim
from fedcom.runs.prepare import build_task
from fedcom.runs.run import execute
from fedcom.runs.status import TRIALS
from fedcom.saving.whole import write_json, write_text
from fedcom.studies import sweep
from fedcom.studies.tune import SEED, VALIDATION, TuningRun
from fedcom.tasks.task import Task
from fedcom.theory import Constants, settle, theorem
from fedcom.theory.theorems import Regime
from fedcom.traffic.network import Network
from fedcom.vectors import Layout

SEEDS = 2  # of the pilots
PILOT, FURTHER = 8, 2  # pilots have run.rounds over this many rounds; the most promising ones, over that many
PROMISING = 3  # how many are piloted further
POINTS = 40  # evaluations of a pilot, at most
FLAT = 0.03  # an error that falls by a smaller power of the rounds has levelled off
FARTHEST = 8.0  # a curve is continued to at most so many times the pilot's rounds

# What is tried unless the config has [methods] of its own: label, method and uplink.
CANDIDATES: dict[str, Table] = {
    "fedavg": {"name": "fedavg"},
    "fedcom int 8": {"name": "fedcom", "uplink": {"name": "int", "bits": 8}},
    "fedcom 1 bit": {"name": "fedcom", "uplink": {"name": "rotated", "bits": 1}},
    "fedcom ¼ bit": {"name": "fedcom", "uplink": {"name": "rotated", "bits": 0.25}},
    "fedcomgate int 8": {"name": "fedcomgate", "uplink": {"name": "int", "bits": 8}},
    "fedcomgate 1 bit": {"name": "fedcomgate", "uplink": {"name": "rotated", "bits": 1}},
    "exact ¼ bit": {"name": "fedcomgate-exact", "uplink": {"name": "rotated", "bits": 0.25}},
    "exact ¼ bit, down 1 bit": {
        "name": "fedcomgate-exact",
        "uplink": {"name": "rotated", "bits": 0.25},
        "downlink": {"name": "rotated", "bits": 1},
    },
}

THEORY_CODECS: tuple[Table, ...] = (
    {"name": "identity"},
    {"name": "int", "bits": 8},
    {"name": "rotated", "bits": 4},
    {"name": "rotated", "bits": 1},
    {"name": "rotated", "bits": 0.25},
)

Cost = Literal["bytes", "uplink", "seconds"]


@dataclass(frozen=True)
class Goal:
    """What is asked for: an accuracy or a loss to reach, or a budget to make the most of.

    Args:
        accuracy: from 0 to 1.
        loss: of training.
        bytes: per client, up and down together.
        seconds: of modelled time.
    """

    accuracy: float | None = None
    loss: float | None = None
    bytes: float | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        given = {key: value for key, value in asdict(self).items() if value is not None}
        if len(given) != 1:
            raise ConfigError(
                f"a plan needs one goal: {flag('accuracy')}, {flag('loss')}, {flag('megabytes', 'bytes')} or "
                f"{flag('seconds')}; got {', '.join(given) or 'none'}"
            )
        ((key, value),) = given.items()
        if value <= 0 or (key == "accuracy" and value >= 1):
            raise ConfigError(f"{key} must be above 0{' and below 1' * (key == 'accuracy')}; got {value}")

    @property
    def reaches(self) -> bool:
        """Whether it is something to reach, instead of a budget."""
        return self.accuracy is not None or self.loss is not None

    def error(self, row: Mapping[str, Any]) -> float | None:
        """What is to fall: one minus the accuracy, or the loss."""
        by_loss = self.loss is not None or row.get("test_accuracy") is None
        value = row.get("train_loss") if by_loss else 1 - row["test_accuracy"]
        return value if is_number(value) else None

    @property
    def wanted(self) -> float:
        """The error to reach."""
        return 1 - self.accuracy if self.accuracy is not None else float(self.loss or 0.0)


@dataclass(frozen=True)
class Prediction:
    """What a candidate is predicted to need.

    Args:
        label: of the candidate.
        rounds: to the goal; None: it is not reached. The interval is `low` to `high`.
        error: predicted at those rounds: one minus the accuracy, or the loss.
        up: bytes per client that go up; `down` likewise.
        seconds: of modelled time; None without a network.
        how: where the prediction comes from, in words.
    """

    label: str
    method: str
    codec: str
    tau: int
    eta: float
    gamma: float
    rounds: int | None
    low: int | None
    high: int | None
    error: float | None
    up: float | None
    down: float | None
    seconds: float | None
    how: str

    def cost(self, by: Cost) -> float:
        """What it costs; infinite if the goal is not reached."""
        if self.rounds is None or self.up is None or self.down is None:
            return math.inf
        if by == "seconds":
            return math.inf if self.seconds is None else self.seconds
        return self.up if by == "uplink" else self.up + self.down


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


def smooth(errors: Sequence[float], width: int = 3) -> list[float]:
    """Running medians, so that one lucky evaluation does not count as having reached anything."""
    return [float(np.median(errors[max(0, i - width + 1) : i + 1])) for i in range(len(errors))]


def predict(
    label: str, config: Config, algorithm: Algorithm, curves: Sequence[Sequence[Row]], goal: Goal
) -> Prediction:
    """What a candidate needs, from its pilots.

    Args:
        algorithm: with numbers for its rates.
        curves: the rows of each seed; none for one that diverged.
    """
    alive = [rows for rows in curves if len(rows) > 1]
    tau = algorithm.tau if isinstance(algorithm.tau, int) else max(algorithm.tau)
    rates = algorithm.local_rate(0), algorithm.global_rate
    about = (label, algorithm.name, _words(config.links.uplink), tau, *rates)
    none = (None, None, None)
    if len(alive) < len(curves):
        return Prediction(*about, *none, None, *none, how="diverged in its pilot")
    rounds = [row["round"] for row in alive[0]]
    means = [float(np.mean([goal.error(rows[i]) for rows in alive])) for i in range(len(rounds))]
    middle = [float(np.median(means[i - 1 : i + 2])) for i in range(1, len(means) - 1)]
    law, errors = fit(rounds, [means[0], *middle, means[-1]]), smooth(means)
    spend = {key: _line(alive, key) for key in ("uplink_bytes", "downlink_bytes", "modelled_seconds")}
    if goal.reaches:
        need, low, high, how = _rounds_to(goal.wanted, rounds, errors, law)
    else:
        need, low, high, how = _affordable(goal, spend, rounds)
    if not math.isfinite(need):
        return Prediction(*about, *none, law.at(FARTHEST * rounds[-1]), *none, how=how)
    whole = math.ceil(need)
    reached = _interpolated(whole, rounds, errors) if whole <= rounds[-1] else law.at(whole)
    costs = {key: None if line is None else line[0] + line[1] * whole for key, line in spend.items()}
    interval = math.floor(low), math.ceil(min(high, 1e9))
    up, down, seconds = costs.values()
    return Prediction(*about, whole, *interval, reached, up, down, seconds, how=how)


def _rounds_to(
    wanted: float, rounds: Sequence[float], errors: Sequence[float], law: Power
) -> tuple[float, float, float, str]:
    """The rounds to an error, their interval, and where they come from."""
    first = next((r for r, e in zip(rounds, errors, strict=True) if e <= wanted), None)
    if first is not None:
        gap = rounds[1] - rounds[0] if len(rounds) > 1 else 1
        return first, max(1.0, 0.8 * first - gap), 1.25 * first + gap, "reached in the pilot"
    need, limit = law.to(wanted), FARTHEST * rounds[-1]
    if need > limit:
        return (
            math.inf,
            math.inf,
            math.inf,
            f"not reached: about {law.at(limit):.3g} left after {limit:.0f} rounds",
        )
    low, high = (law.to(wanted, law.p + sign * law.spread) for sign in (1, -1))
    return need, low, min(high, limit), f"continued from {rounds[-1]:g} rounds"


def _affordable(
    goal: Goal, spend: Mapping[str, tuple[float, float] | None], rounds: Sequence[float]
) -> tuple[float, float, float, str]:
    """The rounds that a budget buys."""
    if goal.seconds is not None:
        line, left = spend["modelled_seconds"], goal.seconds
        assert line is not None
    else:
        up, down, left = spend["uplink_bytes"], spend["downlink_bytes"], goal.bytes or 0.0
        assert up is not None
        assert down is not None
        line = (up[0] + down[0], up[1] + down[1])
    bought = math.floor((left - line[0]) / line[1]) if line[1] > 0 else math.inf
    if bought < 1:
        return math.inf, math.inf, math.inf, "the budget is less than one round"
    how = "within the pilot" if bought <= rounds[-1] else f"continued from {rounds[-1]:g} rounds"
    return bought, bought, bought, how


def _line(curves: Sequence[Sequence[Row]], key: str) -> tuple[float, float] | None:
    """What a key of the rows is: so much at the start, and so much per round."""
    ends = [(rows[1], rows[-1]) for rows in curves if is_number(rows[-1].get(key))]
    if not ends:
        return None
    slopes = [
        (b[key] - a[key]) / (b["round"] - a["round"]) if b["round"] > a["round"] else b[key] / b["round"]
        for a, b in ends
    ]
    slope = float(np.mean(slopes))
    return float(np.mean([b[key] - slope * b["round"] for _, b in ends])), slope


def _interpolated(r: float, rounds: Sequence[float], errors: Sequence[float]) -> float:
    return float(np.interp(r, rounds, errors))


def _words(codec: Codec) -> str:
    own = asdict(codec)
    rate = own.get("bits", own.get("ratio"))
    return codec.name if rate is None else f"{codec.name} {rate:g}"


class Planner:
    """Pilots the candidates of a task.

    Args:
        table: the settings of a config file, by section; labels under [methods] are the candidates, if any.
        taus: local steps to try; empty: those of the config.
    """

    def __init__(
        self,
        table: Table,
        goal: Goal,
        out: Path,
        *,
        taus: Sequence[int] = (),
        seeds: int = SEEDS,
        device: str = "auto",
        quiet: bool = False,
    ) -> None:
        self.goal, self.out, self.device, self.quiet, self.seeds = goal, out, device, quiet, seeds
        self.table = candidates(table, taus)
        self.rounds = Config.of({"run": table.get("run", {})}).run.rounds
        self._tasks = dict[str, Task]()

    def pilot(self, labels: Sequence[str], rounds: int) -> dict[str, Prediction]:
        """Run candidates for some rounds; what each is predicted to need."""
        seed = Config.of({"run": self.table.get("run", {})}).run.seed + SEED
        every = max(1, rounds // POINTS)
        run = {**self.table.get("run", {}), "rounds": rounds, "eval_every": every, "seed": seed}
        here = {**self.table, "run": run, "data": {"validation": VALIDATION, **self.table.get("data", {})}}
        trials = [
            TuningRun(label, (), s, variant({**here, "run": {**run, "seed": s}}, label))
            for label in labels
            for s in range(seed, seed + self.seeds)
        ]
        curves: dict[str, list[list[Row]]] = {label: [] for label in labels}
        for stack in sweep.stacks(trials):
            for trial, status, rows in sweep.run_stack(stack, _due, self.device, self.quiet, self._tasks):
                curves[trial.method].append(rows if status == "done" else [])
        first = {trial.method: trial for trial in reversed(trials)}
        return {
            label: predict(label, cast(Config, one.config), self._settled(one), curves[label], self.goal)
            for label, one in first.items()
        }

    def _settled(self, trial: sweep.Trial) -> Algorithm:
        """The algorithm of a trial with numbers for its rates, which were found when it was run."""
        task, config = sweep.task_of(trial, self.device, self._tasks), trial.config
        run = config.run
        return settle(task, config.algorithm, config.links, run.participation, run.seed)[0]

    def plan(self, by: Cost) -> list[Prediction]:
        """All candidates, the cheapest first; the most promising ones are piloted further."""
        labels = list(self.table["methods"])
        found = self.pilot(labels, max(8, self.rounds // PILOT))
        best = sorted(found.values(), key=lambda p: self.rank(p, by))[:PROMISING]
        further = [p.label for p in best if p.how != "reached in the pilot"]
        longer = max(12, self.rounds // FURTHER)
        if further and longer > max(8, self.rounds // PILOT):
            found |= self.pilot(further, longer)
        return sorted(found.values(), key=lambda p: self.rank(p, by))

    def rank(self, p: Prediction, by: Cost) -> tuple[float, float]:
        """What candidates are sorted by: what it costs to reach a goal, or how far a budget gets."""
        error = math.inf if p.error is None else p.error
        return (p.cost(by), error) if self.goal.reaches else (error, p.cost(by))


def _due(run: Any) -> set[int]:
    return {*range(0, run.rounds, run.eval_every), 1, run.rounds}


def candidates(table: Table, taus: Sequence[int] = ()) -> Table:
    """The config with the candidates under [methods], each at auto rates unless it has its own."""
    labels: dict[str, Any] = {k: dict(v) for k, v in (table.get("methods") or CANDIDATES).items()}
    if taus:
        labels = {
            f"{label}, tau {tau}": {**own, "name": own.get("name", label), "tau": tau}
            for label, own in labels.items()
            for tau in taus
        }
    shared = {"eta": "auto", "gamma": "auto", **table.get("algorithm", {})}
    return {**table, "algorithm": shared, "methods": labels}


def plan(
    table: Table,
    goal: Goal,
    out: Path,
    *,
    by: Cost | None = None,
    taus: Sequence[int] = (),
    device: str = "auto",
    quiet: bool = False,
) -> list[Prediction]:
    """Predict and recommend; writes plan.json and plan.toml, the config of the first of the list.

    Args:
        by: what is to be small; None: seconds if the config has a network, else bytes both ways.
        taus: local steps to try.
    """
    by = by or ("seconds" if "network" in table else "bytes")
    if "network" not in table and (by == "seconds" or goal.seconds is not None):
        raise ConfigError("modelled seconds need a network; set network.preset=lte, for example")
    planner = Planner(table, goal, out, taus=taus, device=device, quiet=quiet)
    with claim(out, used=True):
        write_json(out / TRIALS, {})
        found = planner.plan(by)
        write_json(out / "plan.json", {"goal": asdict(goal), "by": by, "plan": [asdict(p) for p in found]})
        if found[0].rounds is not None:
            text = "# Written by fedcom plan.\n" + dumps(chosen(planner.table, found[0]))
            write_text(out / "plan.toml", text)
    return found


def chosen(table: Table, best: Prediction, rounds: int | None = None) -> Table:
    """The config of a candidate, for as many rounds as its interval goes, or as told."""
    run = {**table.get("run", {}), "rounds": rounds or best.high or best.rounds}
    return variant({**table, "run": run}, best.label).table()


def outcome(
    table: Table, best: Prediction, goal: Goal, out: Path, device: str, quiet: bool
) -> dict[str, Any]:
    """Run a recommendation, for twice the predicted rounds if there is something to reach; what it needed.

    Args:
        table: with the candidates under [methods]; see `candidates`.
    """
    rounds = max(2 * (best.rounds or 1), best.high or 1) if goal.reaches else best.rounds
    config = Config.of(chosen(table, best, rounds))
    config = replace(config, run=replace(config.run, eval_every=1))
    if goal.accuracy is not None and config.data.validation is None and not len(build_task(config)[0].test_x):
        config = replace(config, data=replace(config.data, validation=VALIDATION))  # scored as in the pilots
    done = execute(config, out, start="over", device=device, quiet=quiet)
    rows = done.curve.rows
    if goal.reaches:
        hit = next((r for r in rows if (e := goal.error(r)) is not None and e <= goal.wanted), None)
    else:
        hit = rows[-1] if rows else None
    found: dict[str, Any] = {"status": done.curve.status, "rounds": None, "up": None, "down": None}
    if hit is not None:
        found |= {"rounds": hit["round"], "up": hit["uplink_bytes"], "down": hit["downlink_bytes"]}
        found |= {"seconds": hit.get("modelled_seconds"), "error": goal.error(hit)}
    said = {key: getattr(best, key) for key in ("label", "rounds", "up", "down", "seconds", "error")}
    write_json(out / "outcome.json", {"predicted": said, "found": found})
    return found


def why(found: Sequence[Prediction], goal: Goal) -> str:
    """The recommendation and its reason, in a sentence or two."""
    best = found[0]
    if best.rounds is None:
        return "No candidate is predicted to get there; raise run.rounds, or ask for less."
    if not goal.reaches:
        return f"Recommended: {best.label}. It is predicted to get furthest, in {best.rounds} rounds."
    text = f"Recommended: {best.label}. It is predicted to need {best.rounds} rounds and {_total(best)} MB"
    second = next((p for p in found[1:] if p.rounds is not None), None)
    if second is not None:
        text += f"; next is {second.label} with {second.rounds} and {_total(second)} MB"
    return f"{text}."


def beside(best: Prediction, found: Mapping[str, Any], goal: Goal) -> str:
    """The outcome of a run beside what was predicted."""
    if found["rounds"] is None:
        return f"The run did not get there ({found['status']}); predicted were {best.rounds} rounds."
    spent = found["up"] + found["down"]
    if not goal.reaches:
        return f"With {spent / 1e6:.3g} MB its error is {found['error']:.3g}; predicted: {best.error:.3g}."
    ratio = spent / best.cost("bytes")
    return (
        f"It took {found['rounds']} rounds and {spent / 1e6:.3g} MB; predicted: {best.rounds} rounds and "
        f"{_total(best)} MB ({ratio:.2f} times the prediction)."
    )


def _total(p: Prediction) -> str:
    return f"{p.cost('bytes') / 1e6:.3g}"


# With constants instead of a task.


def by_theory(
    constants: Constants,
    epsilon: float,
    dim: int,
    *,
    alike: bool = False,
    codecs: Iterable[Mapping[str, Any]] = THEORY_CODECS,
    network: Network | None = None,
) -> list[Prediction]:
    """What the theorems say of some codecs: rounds, local steps and bytes to an error of epsilon.

    Args:
        dim: the number of parameters.
        alike: whether clients have the same distribution: FedCOM's theorems; else FedCOMGATE's.
        codecs: by name and settings; each is taken at the q it promises.
    """
    regime: Regime = (
        "strongly convex" if constants.mu > 0 else "convex" if constants.norm > 0 else "nonconvex"
    )
    claim_, layout, found = theorem(alike, regime), Layout.vector(dim), []
    for own in codecs:
        codec = CODECS[own["name"]](**{k: v for k, v in own.items() if k != "name"})
        c = replace(constants, q=codec.variance(layout))
        size = _size(codec, layout)
        try:
            rounds, tau = claim_.target(c, epsilon)
        except ConfigError as error:
            rounds, tau, why = None, 0, str(error)
        else:
            why = f"{claim_.name}, {regime}"
        steps = claim_.steps(c, tau, rounds) if rounds else None
        seconds = None
        if network is not None and rounds:
            transfer = 8e-6 * (4 * dim / network.downlink + size / network.uplink)
            seconds = rounds * (network.latency + transfer + tau * network.compute)
        found.append(
            Prediction(
                label=f"{'fedcom' if alike else 'fedcomgate'} {_words(codec)}",
                method="fedcom" if alike else "fedcomgate",
                codec=_words(codec),
                tau=tau,
                eta=steps.eta if steps else math.nan,
                gamma=steps.gamma if steps else math.nan,
                rounds=rounds,
                low=None,
                high=rounds,
                error=epsilon if rounds else None,
                up=rounds * size if rounds else None,
                down=4.0 * rounds * dim if rounds else None,
                seconds=seconds,
                how=why,
            )
        )
    return sorted(found, key=lambda p: p.cost("bytes"))


def _size(codec: Codec, layout: Layout) -> float:
    """The bytes of a message of normal numbers."""
    draw = Draw.seeded(0).fold("plan", 0)
    sizes = codec.transmit(draw.normal(layout.size).unsqueeze(0), layout, Draw(draw.key.unsqueeze(0)))[1]
    return float(sum(v if isinstance(v, int) else float(v.double().mean()) for v in sizes.values()))


def read_constants(text: str) -> Constants:
    """Constants as they are written on the command line: L=1,mu=0.05,sigma=1,m=100,gap=2."""
    values: dict[str, float] = {}
    for part in text.split(","):
        key, _, value = part.partition("=")
        try:
            values[key.strip()] = float(value)
        except ValueError:
            raise ConfigError(
                f"constants are written L=1,mu=0.05,sigma=1,m=100,gap=2; got {part!r}"
            ) from None
    known = list(Constants.__dataclass_fields__)
    for key in values:
        if key not in known:
            raise ConfigError(f"no constant {key!r}; known: {', '.join(known)}")
    if "L" not in values:
        raise ConfigError("constants need L, as in L=1,mu=0.05")
    return Constants(**{**values, "m": int(values.get("m", 1))})  # type: ignore[arg-type]
