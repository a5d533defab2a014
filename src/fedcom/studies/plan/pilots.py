"""Pilots of the candidates on a task, and the plan that they lead to.

Theory is too loose for that on a real task: its bounds are far above what happens (docs/theory.md). So every
candidate runs for some rounds at auto rates, on seeds of its own, scored on held-out samples or, if the goal
is a loss or there is no accuracy, by the loss of all training samples. Its curve is continued: the error
falls as a power of the rounds, whose exponent is fitted to the second half of the pilot. The most promising
candidates are then piloted further.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from fedcom.algorithms import Algorithm
from fedcom.config import Config, RunConfig, Table, dumps
from fedcom.config.methods import run_of, variant
from fedcom.engines.results import Row
from fedcom.errors import ConfigError, flag
from fedcom.runs.folder import claim
from fedcom.runs.prepare import build_task
from fedcom.runs.run import execute
from fedcom.runs.status import TRIALS
from fedcom.saving.whole import write_json, write_text
from fedcom.studies.plan.continued import REACHED, predict
from fedcom.studies.plan.prediction import Cost, Goal, Prediction, codec_words
from fedcom.studies.trial_runs import FAILED, run_stack, task_of
from fedcom.studies.trials import Trial, stacks
from fedcom.studies.tune import SEED, VALIDATION, TuningRun, held_out
from fedcom.tasks.task import Task
from fedcom.theory import settle

SEEDS = 2  # of the pilots
PILOT, FURTHER = 8, 2  # pilots have run.rounds over this many rounds; the most promising ones, over that many
PROMISING = 3  # how many are piloted further
POINTS = 40  # evaluations of a pilot, at most

# What is tried unless the config has [methods] of its own: label, method, codecs and server.
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
    "fedavg, momentum": {"name": "fedavg", "server": "momentum"},
    "fedcom ¼ bit, momentum": {
        "name": "fedcom",
        "uplink": {"name": "rotated", "bits": 0.25},
        "server": "momentum",
    },
    "fedcom ¼ bit, down 1 bit, momentum": {
        "name": "fedcom",
        "option": "I",
        "uplink": {"name": "rotated", "bits": 0.25},
        "downlink": {"name": "rotated", "bits": 1},
        "server": "momentum",
    },
    "exact ¼ bit, down 1 bit, momentum": {
        "name": "fedcomgate-exact",
        "uplink": {"name": "rotated", "bits": 0.25},
        "downlink": {"name": "rotated", "bits": 1},
        "server": "momentum",
    },
}


@dataclass(frozen=True)
class Pilots:
    """Runs the candidates of a task for some rounds.

    Args:
        table: the settings of a config file, by section, with the candidates under [methods].
    """

    table: Table
    goal: Goal
    device: str
    quiet: bool
    tasks: dict[str, Task] = field(default_factory=dict)

    def run(self, labels: Sequence[str], rounds: int) -> dict[str, Prediction]:
        """What some candidates are predicted to need."""
        trials = self._trials(labels, rounds, hold=self.goal.loss is None)
        if self.goal.loss is None and not task_of(trials[0], self.device, self.tasks).answers:
            if self.goal.accuracy is not None:
                raise ConfigError(
                    f"{flag('accuracy')} is for tasks of classes, and this has none; give {flag('loss')}"
                )
            trials = self._trials(labels, rounds, hold=False)
        curves: dict[str, list[list[Row]]] = {label: [] for label in labels}
        failed = set[str]()
        for stack in stacks(trials):
            for trial, status, rows in run_stack(stack, _due, self.device, self.quiet, self.tasks):
                curves[trial.method].append(rows if status == "done" else [])
                failed |= {trial.method} if status == FAILED else set()
        if failed == {*labels}:
            raise ConfigError("none of the candidates can be run, for the reasons above")
        first = {trial.method: trial for trial in reversed(trials)}
        return {
            label: _not_run(label, one.config.algorithm, codec_words(one.config.links.uplink))
            if label in failed
            else predict(label, cast(Config, one.config), self._settled(one), curves[label], self.goal)
            for label, one in first.items()
        }

    def _trials(self, labels: Sequence[str], rounds: int, hold: bool) -> list[TuningRun]:
        """The pilots of some candidates.

        Args:
            hold: hold training samples out to score on. Not where the training loss is what is to fall: Cox's
                is lower with fewer patients, so that of the pilots would not be that of the run.
        """
        run = {**self.table.get("run", {}), "rounds": rounds, "eval_every": max(1, rounds // POINTS)}
        seed = run_of(self.table).seed + SEED
        seeds = range(seed, seed + SEEDS)
        table = {**self.table, "run": run}
        tables = {s: held_out(table, s) if hold else {**table, "run": {**run, "seed": s}} for s in seeds}
        return [TuningRun(label, (), s, variant(tables[s], label)) for label in labels for s in seeds]

    def _settled(self, trial: Trial) -> Algorithm:
        """The algorithm of a trial with numbers for its rates, which were found when it was run."""
        task, config = task_of(trial, self.device, self.tasks), trial.config
        run = config.run
        return settle(task, config.algorithm, config.links, run.participation, run.seed)[0]


def _not_run(label: str, algorithm: Algorithm, codec: str) -> Prediction:
    """What is said of a candidate whose pilot was refused."""
    tau = algorithm.tau if isinstance(algorithm.tau, int) else max(algorithm.tau)
    return Prediction(label, algorithm.name, codec, tau, how="could not be run")


def _due(run: RunConfig) -> set[int]:
    return {*range(0, run.rounds, run.eval_every), 1, run.rounds}


def candidates(table: Table, taus: Sequence[int] = ()) -> Table:
    """The config with the candidates under [methods], each at auto rates unless it has its own.

    Args:
        table: the settings of a config file, by section; labels under [methods] are the candidates, if any.
        taus: local steps to try; empty: those of the config.
    """
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
    pilots = Pilots(candidates(table, taus), goal, device, quiet)
    with claim(out, used=True):
        write_json(out / TRIALS, {})
        found = _piloted(pilots, run_of(table).rounds, by)
        write_json(out / "plan.json", {"goal": asdict(goal), "by": by, "plan": [asdict(p) for p in found]})
        if found[0].rounds is not None:
            text = "# Written by fedcom plan.\n" + dumps(chosen(pilots.table, found[0]))
            write_text(out / "plan.toml", text)
    return found


def _piloted(pilots: Pilots, rounds: int, by: Cost) -> list[Prediction]:
    """All candidates, the cheapest first; the most promising ones are piloted further.

    Args:
        rounds: of a whole run.
    """
    short, longer = max(8, rounds // PILOT), max(12, rounds // FURTHER)
    found = pilots.run(list(pilots.table["methods"]), short)
    best = sorted(found.values(), key=lambda p: pilots.goal.rank(p, by))[:PROMISING]
    further = [p.label for p in best if p.how != REACHED]
    if further and longer > short:
        found |= pilots.run(further, longer)
    return sorted(found.values(), key=lambda p: pilots.goal.rank(p, by))


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
