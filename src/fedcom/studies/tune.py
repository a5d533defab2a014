"""What `fedcom tune` does: find eta, gamma and other settings of a method by successive halving.

Many points run for a few rounds, the best of them for more, and few to the end. The task's auto rates are
always among the last. Where nothing is said of the server's optimiser, plain steps and momentum are tried,
each around its own auto rates; where it is adaptive, several rates of its own. Scores are on held-out
training samples and on seeds that no other command uses unless told to; the best point must hold on several
of them, and a point that diverges on any is dropped.
"""

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedcom.algorithms.optimisers import PLAIN
from fedcom.config import Table, dumps
from fedcom.config.config import PLAIN_SECTIONS
from fedcom.config.methods import check_keys, method_keys, run_of, variant, with_point
from fedcom.config.tables import toml_key
from fedcom.engines.arguments import pick_device
from fedcom.errors import ConfigError, flag
from fedcom.formats import counted, significant
from fedcom.plain import keys
from fedcom.rounds.together import names
from fedcom.runs.folder import claim
from fedcom.runs.prepare import build_task
from fedcom.runs.status import TRIALS
from fedcom.saving.whole import write_json, write_text
from fedcom.studies import sweep, sweep_report
from fedcom.studies.trial_runs import FAILED
from fedcom.studies.trials import Trial, lists, trials_of
from fedcom.tasks.task import Task
from fedcom.theory import settle

Grid = Mapping[str, Sequence[Any]]  # values to try, by key
SEED = 10_000  # added to run.seed: the first seed of tuning
VALIDATION = 0.1
LAST = 5  # the score is the mean of this many last evaluations
SEEDS = 3  # on which a best point is confirmed
DIVERGED = "every point diverged"
TRIES = 8  # how often at most the grid is widened or a best point is confirmed
SHARE = 4  # the default budget: the grid's runs over this
FACTORS = {"eta": (0.25, 0.5, 1.0, 2.0, 4.0), "gamma": (0.25, 0.5, 1.0, 2.0)}  # of the auto rates
FEWER = {"eta": (0.5, 1.0, 2.0), "gamma": (0.5, 1.0, 2.0)}  # the same with momentum, where rates forgive more
RATES = ("eta", "gamma")
SERVER_RATE = "server.rate"
WIDENED = (*RATES, SERVER_RATE)
SERVER_RATES = (0.0025, 0.005, 0.01, 0.02, 0.04)  # of adaptive servers, which use no gamma
LIKELY = {"eta": "0.0005,0.001,0.002", "gamma": "0.5,1"}  # with steps that have a length of their own
# The server's optimisers that are tried if nothing is said of it, and the factors with each.
SERVERS: dict[str, Grid] = {"sgd": FACTORS, "momentum": FEWER}
SECTIONS = ("uplink", "downlink", "adapter", *PLAIN_SECTIONS)  # of a method
ABOUT = (
    "accuracy",
    "perplexity",
    "loss",
    "edges",
    "note",
    "table",
    "spent",
)  # what is told of a point besides its values

Point = tuple[tuple[str, Any], ...]
RunTrials = Callable[[Sequence[Trial]], list[dict[str, Any]]]


@dataclass(frozen=True)
class TuningRun(Trial):
    """A run of tuning. Its key changes with any of its settings, so no two runs share one."""

    @property
    def key(self) -> str:
        return json.dumps([self.method, self.point, self.seed, self.digest])


@dataclass(frozen=True)
class Rungs:
    """How many points run for how long.

    Args:
        rounds: of a whole run.
        budget: whole runs, in which the rounds of all runs are counted; None: every point runs to the end.
    """

    rounds: int
    budget: float | None = None

    def of(self, points: int) -> list[tuple[int, int]]:
        """For each rung how many points it has and for how many rounds; the last is for whole runs.

        Two fifths of the budget are for whole runs, two at least; the rest is shared by the rungs before.
        """
        if self.budget is None or self.budget >= points:
            return [(points, self.rounds)]
        last = max(2, int(0.4 * self.budget))
        middle = max(last + 1, math.ceil(points / 4))
        if points <= middle:
            return [(points, self._rounds((self.budget - last) / points)), (last, self.rounds)]
        each = (self.budget - last) / 2
        short = self._rounds(each / points)
        left = 2 * each - points * short / self.rounds  # less than each if a round per point is too much
        return [(points, short), (middle, self._rounds(min(each, left) / middle)), (last, self.rounds)]

    def _rounds(self, share: float) -> int:
        return min(self.rounds, max(1, int(share * self.rounds)))


def tune_one(
    table: Table,
    method: str,
    grid: Grid | Sequence[Grid],
    seeds: int,
    run: RunTrials,
    budget: float | None = None,
    start: Sequence[Mapping[str, Any]] = (),
    limit: float | None = None,
) -> dict[str, Any]:
    """The best point of one method: not at an edge of its grid, and confirmed on several seeds.

    If every point diverges the grids are widened downwards.

    Args:
        table: the settings of a config file, by section.
        method: the name of a method, or a label under [methods].
        grid: one, or several that have no point in common.
        run: runs trials and returns their records.
        budget: whole runs to spend on a first search; see `Rungs`. Widening and confirming come on top.
        start: points of the grids; the best of them is never dropped unless it diverges.
        limit: whole runs to spend in all; None: no limit. Confirming the best point comes before widening.
    """
    grids = [grid] if isinstance(grid, Mapping) else list(grid)
    tried = [{key: list(values) for key, values in one.items()} for one in grids]
    sure = list[dict[str, Any]]()
    rungs = Rungs(run_of(table).rounds, budget)
    ladder = rungs.of(sum(map(size, grids)))
    spent, seen, found = 0.0, dict[str, dict[str, Any]](), list[dict[str, Any]]()
    records, ended, whole = list[dict[str, Any]](), "", list[Point]()
    _refuse_too_small(ladder, rungs.rounds, seeds, limit)

    def play(points: Sequence[Point], rounds: int, seeds: int = 1, spare: int = 0) -> list[dict[str, Any]]:
        nonlocal spent
        short: Point = () if rounds == rungs.rounds else (("run.rounds", rounds),)
        trials = [_unique(t) for t in trials_of(table, [(*p, *short) for p in points], [method], seeds)]
        cost = sum(rounds for t in trials if t.key not in seen) / rungs.rounds
        if limit is not None and spent + cost > limit - spare + 1e-9:
            raise _Spent
        spent, records = spent + cost, run(trials)
        seen.update({t.key: r for t, r in zip(trials, records, strict=True)})
        return records

    def search(points: Sequence[Point]) -> list[dict[str, Any]]:
        for (_, rounds), (kept, _) in itertools.pairwise(ladder):
            points = _best(play(points, rounds, spare=seeds - 1), points, start)[:kept]
        whole.extend(point for point in points if point not in whole)  # with those of earlier searches
        return play(whole, rungs.rounds, spare=seeds - 1)

    def confirm(points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        return [r for p in points for r in play([tuple(p.items())], rungs.rounds, seeds)]

    for _ in range(TRIES):
        points = [
            tuple(zip(one, values, strict=True))
            for one in tried
            for values in itertools.product(*one.values())
        ]
        try:
            records = search(points) + confirm(sure)
        except _Spent:
            ended = "the budget ended the search"
            break
        searched = [{key: list(values) for key, values in one.items()} for one in tried]
        if all(record["status"] == FAILED for record in records):
            raise ConfigError(f"{method} cannot be tuned, because none of its runs could be made")
        found = sweep_report.summary(list({r["key"]: r for r in records}.values()))
        best = next((entry for entry in found if entry["best"]), None)
        own = tried if best is None else [_holding(tried, best["point"])]
        edges = [] if best is None else sweep_report.edges_of(best["point"], _rates(own[0]))
        if best and best["point"] in sure and not edges:
            break
        lowest = {key: min(values) for key, values in _rates(tried[0]).items()}
        for one in own:
            for key in edges if best else [key for key, values in _rates(one).items() if len(values) > 1]:
                one[key] = widened(one[key], best["point"][key] if best else min(one[key]))
        if best is None and tried == searched:  # there is nothing to lower
            break
        sure += [best["point"]] if best and not edges else []
    else:
        ended = f"the search ended after {TRIES} grids"
    if ended and best and best["point"] not in sure:
        with suppress(_Spent):
            records += confirm([best["point"]])
            found = sweep_report.summary(list({r["key"]: r for r in records}.values()))
            best = next((entry for entry in found if entry["best"]), None)
    if best is None:
        none = {"accuracy": None, "edges": [], "note": DIVERGED, "table": found, "spent": spent}
        return {**{key: values[0] for key, values in tried[0].items()}, **lowest, **none}
    edges = sweep_report.edges_of(best["point"], _rates(_holding(searched, best["point"])))
    best["edges"] = edges  # also beside points that were given up after a few rounds
    both = list(zip(searched, grids, strict=True))
    added = [(key, value) for one, old in both for key in _rates(one) for value in {*one[key]} - {*old[key]}]
    words = [f"{key} {value:g}" for key in WIDENED for value in sorted({v for k, v in added if k == key})]
    note = f"grid widened by {', '.join(words)}" if words else "inside the grid"
    note = ended or note
    scored = best["test_accuracy"] is not None
    accuracy = {"accuracy": round(100 * best["test_accuracy"], 2) if scored else None}
    if best.get("test_perplexity") is not None:
        accuracy |= {"perplexity": round(best["test_perplexity"], 4)}
    loss = best["train_loss"] if best.get("test_loss") is None else best["test_loss"]
    how = {**accuracy, "loss": loss, "edges": edges, "note": note, "table": found}
    return {**best["point"], **how, "spent": spent}


def size(grid: Grid) -> int:
    """How many points a grid has."""
    return math.prod(map(len, grid.values()))


def _rates(grid: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """The keys of a grid that are widened: others may be names."""
    return {key: values for key, values in grid.items() if key in WIDENED}


def _holding(grids: Sequence[dict[str, list[Any]]], point: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The grid that a point is of."""
    mine = (grid for grid in grids if grid.keys() == point.keys())
    return next(grid for grid in mine if all(value in grid[key] for key, value in point.items()))


class _Spent(Exception):
    """What comes next would cost more than is left."""


def _refuse_too_small(
    ladder: Sequence[tuple[int, int]], rounds: int, seeds: int, limit: float | None
) -> None:
    """Raise ConfigError if a limit is not enough to search once and to confirm the best point."""
    least = sum(points * played for points, played in ladder) / rounds + seeds - 1
    if limit is not None and limit < least - 1e-9:
        raise ConfigError(
            f"a budget of {limit:g} whole runs is too small: to search {ladder[0][0]} points and to confirm "
            f"the best on {counted(seeds, 'seed')} takes {math.ceil(10 * least) / 10:g}; raise it, or lower "
            f"{flag('seeds')} or the number of points"
        )


def _unique(trial: Trial) -> TuningRun:
    return TuningRun(trial.method, trial.point, trial.seed, trial.config)


def _best(
    records: Sequence[Mapping[str, Any]], points: Sequence[Point], start: Sequence[Mapping[str, Any]]
) -> list[Point]:
    """The points in order of their scores, the best start first; those that diverged are dropped."""
    entries = [e for e in sweep_report.summary(list(records)) if e["score"] is not None]
    own = {
        json.dumps({k: v for k, v in e["point"].items() if k != "run.rounds"}): sweep_report.rank(e)
        for e in entries
    }
    scored = [own.get(json.dumps(dict(p))) for p in points]
    alive = sorted(((rank, i) for i, rank in enumerate(scored) if rank is not None), reverse=True)
    ranked = [points[i] for _, i in alive]
    first = [p for p in ranked if dict(p) in start][:1]
    return [*first, *(p for p in ranked if p not in first)] or list(points[:1])


def held_out(table: Table, seed: int) -> Table:
    """The settings with another first seed, and with training samples held out to score on."""
    run = {**table.get("run", {}), "seed": seed}
    return {**table, "run": run, "data": {"validation": VALIDATION, **table.get("data", {})}}


def widened(values: Sequence[float], edge: float) -> list[float]:
    """A list of rates with one more beyond its edge: twice the largest, or half the smallest."""
    low, high = min(values), max(values)
    step = 2.0 if edge == high else 0.5
    beyond = float(f"{edge * step:.3g}")
    return sorted({*values, beyond}) if edge in (low, high) else list(values)


def around(rates: Mapping[str, float], factors: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """A grid around rates: each times its factors."""
    return {key: [float(f"{rates[key] * factor:.3g}") for factor in own] for key, own in factors.items()}


def tune(
    table: Table,
    grid: Table,
    methods: Sequence[str],
    out: Path,
    *,
    seeds: int = SEEDS,
    budget: float | None = None,
    force: bool = False,
    device: str = "auto",
    quiet: bool = False,
) -> dict[str, dict[str, Any]]:
    """Tune methods on a task and write tuned.toml; what was found for each, and the point itself.

    Args:
        table: the settings of a config file, by section.
        grid: values to try by key, or by section and key, as in a sweep; eta and gamma that are not in it are
            tried around the auto rates. Unless it or the config says something of the server's optimiser,
            sgd and momentum are tried; of an adaptive one SERVER_RATES, unless they give its rate.
        methods: names of methods, or labels under [methods].
        out: the folder; one that holds part of the same tuning is completed.
        budget: whole runs for each method, all counted; None: a quarter of the grid's to search, and then as
            many as it takes to widen the grid and to confirm the best point.
        force: replace another tuning in the folder.
    """
    here = held_out(table, run_of(table).seed + SEED)
    tasks, log = dict[str, Task](), out / "results.jsonl"
    if not methods:
        raise ConfigError("name at least one method to tune, as in fedcomgate")
    known = {key for method in methods for key in method_keys(here, method)}
    check_keys((key for key in lists(grid) if "." not in key), known, "to tune")
    if "run.rounds" in lists(grid):
        raise ConfigError("points are compared after equal rounds, so run.rounds cannot be tuned; set it")

    def play(trials: Sequence[Trial]) -> list[dict[str, Any]]:
        return sweep.run_missing(trials, log, LAST, device, quiet, tasks)

    with claim(out, used=True):
        grids_of = {method: _grids(here, grid, method, device) for method in methods}  # or nothing is left
        sweep.take_over(out, {"config": table, "grid": grid, "seeds": seeds, "budget": budget}, force)
        write_json(out / TRIALS, {})
        found = dict[str, dict[str, Any]]()
        for method in methods:
            grids, start = zip(*grids_of[method], strict=True)
            many = sum(map(size, grids))
            whole = max(4.0, many / SHARE) if budget is None else max(0.0, budget - (seeds - 1))
            found[method] = tune_one(here, method, grids, seeds, play, whole, start, budget)
            sweep_report.write([e for one in found.values() for e in one["table"]], out)
            write_text(out / "tuned.toml", tuned_text(table, found))
        told = {m: {k: v for k, v in own.items() if k != "table"} for m, own in found.items()}
        write_json(out / "tuned.json", told)
    return found


def _grids(
    table: Table, grid: Table, method: str, device: str
) -> list[tuple[dict[str, list[Any]], dict[str, Any]]]:
    """The values to try for a method, and the point that is nearest to its auto rates.

    For each choice of optimisers, of the server and of the clients, since each has auto rates of its own.
    """
    known = method_keys(table, method)
    given = {key: values for key, values in lists(grid).items() if "." in key or key in known}
    tries = _open(table, given, method)
    given |= {"server": list(SERVERS)} if tries else {}
    steps = {key: values for key, values in given.items() if _of_optimiser(key) and key not in WIDENED}
    found = []
    for some in itertools.product(*steps.values()):
        own = dict(zip(steps, some, strict=True))
        factors = SERVERS[own["server"]] if tries else FACTORS
        one = {**given, **{key: [value] for key, value in own.items()}}
        if SERVER_RATE not in given and _adapts(table, method, own):
            one[SERVER_RATE] = list(SERVER_RATES)
        found.append(_grid(table, one, method, device, factors))
    return found


def _adapts(table: Table, method: str, choice: Mapping[str, Any]) -> bool:
    """Whether the server's optimiser has a rate of its own in place of gamma, which the config does not give.

    Args:
        choice: of optimisers, among those of a grid.
    """
    said = (table, table.get("algorithm", {}), table.get("methods", {}).get(method, {}))
    if any("rate" in own["server"] for own in said if isinstance(own.get("server"), dict)):
        return False
    server = variant(with_point(table, method, choice.items()), method).algorithm.server
    return not server.uses_gamma and "rate" in keys(type(server))


def _of_optimiser(key: str) -> bool:
    """Whether a key of a grid is of the optimiser of the server or of the clients, or its name."""
    return key.partition(".")[0] in PLAIN_SECTIONS


def _open(table: Table, given: Grid, method: str) -> bool:
    """Whether nothing is said of the server's optimiser, and the method can have momentum and any gamma."""
    said = (table, table.get("algorithm", {}), table.get("methods", {}).get(method, {}))
    named = any("server" in own for own in said) or any(key.partition(".")[0] == "server" for key in given)
    algorithm = variant(table, method).algorithm
    plain = algorithm.server == PLAIN and names(algorithm, "server_step", "server_direction")
    return plain and not named and {"gamma", "server"} <= method_keys(table, method)


def _grid(
    table: Table, given: Grid, method: str, device: str, factors: Grid
) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """The values to try for a method, rates around the auto ones, and the point that is nearest to those.

    Of optimisers there is one choice. Where clients' steps have a length of their own there are no auto
    rates, and no such point.
    """
    own = {key: "auto" for key in RATES if key in method_keys(table, method)}
    steps = {key: values[0] for key, values in given.items() if _of_optimiser(key)}
    local = variant(with_point(table, method, steps.items()), method).algorithm.local
    if not local.linear:
        if not own.keys() <= given.keys():
            raise ConfigError(
                f"{method} has no auto rates to try others around, because steps of local {local.name} have "
                f"a length of their own; give {' and '.join(f'grid.{key}={LIKELY[key]}' for key in own)}"
            )
        return {key: list(values) for key, values in given.items()}, {}
    task, config = build_task(variant(with_point(table, method, {**own, **steps}.items()), method))
    task, run = task.to(pick_device(device)), config.run
    settled, _ = settle(task, config.algorithm, config.links, run.participation, run.seed)
    rates = {key: float(getattr(settled, key)) for key in own}
    factors = factors if settled.server.uses_gamma else {**factors, "gamma": (1.0,)}  # which is idle
    around_them = around(rates, {key: factors[key] for key in own if key not in given})
    points = {**around_them, **{key: list(values) for key, values in given.items()}}
    near = {key: _nearest(points[key], rate, key) for key, rate in rates.items()}
    usual = points.get(SERVER_RATE) == list(SERVER_RATES)
    near |= {SERVER_RATE: SERVER_RATES[len(SERVER_RATES) // 2]} if usual else {}
    return points, {key: near.get(key, values[0]) for key, values in points.items()}


def _nearest(values: Sequence[Any], rate: float, key: str) -> float:
    """The value whose ratio to a rate is nearest to 1."""
    if not all(isinstance(value, int | float) and value > 0 for value in values):
        raise ConfigError(f"grid.{key} takes numbers above 0; got {list(values)}")
    return min(map(float, values), key=lambda value: abs(math.log(value / rate)))


def words(own: Mapping[str, Any]) -> str:
    """What was found for a method, in a line."""
    point = ", ".join(f"{key} {value}" for key, value in own.items() if key not in ABOUT)
    score = (
        f"{own['accuracy']}%" if own["accuracy"] is not None else f"loss {significant(own.get('loss'), 4)}"
    )
    score = f"perplexity {own['perplexity']}" if "perplexity" in own else score
    score = "no score" if own["note"] == DIVERGED else f"{score} on held-out samples"
    return f"{point}: {score}; {own['note']}; {own['spent']:.1f} whole runs"


def tuned_text(table: Table, found: Mapping[str, Mapping[str, Any]]) -> str:
    """A config with the settings that were found, for `fedcom run` and `fedcom compare`."""
    for method, own in found.items():
        table = with_point(table, method, ((k, v) for k, v in own.items() if k not in ABOUT))
    sections, labels = {k: v for k, v in table.items() if k != "methods"}, table["methods"]
    if len(found) == 1:  # `fedcom run` takes one method
        (method,) = found
        sections["algorithm"] = {**sections.get("algorithm", {}), "name": method}
    flat = {f"methods.{toml_key(label)}": own for label, own in labels.items()}
    text = dumps({**sections, **{name: _plain(own) for name, own in flat.items()}})
    nested = {
        f"{name}.{section}": own[section]
        for name, own in flat.items()
        for section in SECTIONS
        if isinstance(own.get(section), dict)
    }
    lines = [f"# {method}: {words(own)}" for method, own in found.items()]
    return "\n".join(["# Written by fedcom tune.", *lines, text, dumps(nested)])


def _plain(own: Table) -> Table:
    return {key: value for key, value in own.items() if not isinstance(value, dict)}
