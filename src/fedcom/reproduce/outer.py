"""Beyond the paper: one language model trained in several places, by bytes and by modelled hours."""

import itertools
import math
import statistics
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from fedcom.formats import MB
from fedcom.reproduce.drawing import Chart, PlotAxes, series
from fedcom.reproduce.panels import Panel, Scale, package_data
from fedcom.reproduce.results import Stat, StudyResults, Verdict, list_of
from fedcom.reproduce.study import Study, panel

_TOLD = package_data("studies.toml")["outer"]
FILE, MAIN, KEY, UP = "outer/shakespeare.toml", "shakespeare", "test_perplexity", "uplink_bytes"
LABELS, QUICK = tuple(_TOLD["labels"]), tuple(_TOLD["asked"])
BASE, SMALL, SMALLEST = (_TOLD[key] for key in ("base", "small", "smallest"))
NEAR: dict[str, float] = _TOLD["near"]  # how far above the base's perplexity each may end
OTHER = 0.01  # the same with other numbers of workers and steps, which have one seed
SPEEDS: list[float] = _TOLD["speeds"]  # of links, in Mbit/s
STEP: float = _TOLD["step"]  # seconds of a worker's own step


def plan(scale: Scale) -> list[Panel]:
    tuned = {"rates": ("outer",), "tunes": _TOLD["tunes"], "quick": _TOLD["quick"]}
    methods = {"methods": _TOLD["methods"]}
    main = panel(FILE, scale, QUICK if scale.quick else LABELS, over=methods, **tuned)
    tuned |= {"tunes": {}}
    others = {} if scale.quick else _TOLD["others"]
    return [
        main,
        *(
            panel(FILE, scale, (BASE, SMALL), name=name, over={**methods, **over}, seeds=1, **tuned)
            for name, over in others.items()
        ),
    ]


def traffic(workers: int, label: str) -> float:
    """How many times its own message a worker sends, and receives, in an outer step.

    Messages of whole numbers or floats can be added on their way (a ring: 2 (K - 1)/K); others go to each
    other worker.
    """
    return 2 * (workers - 1) / workers if label in _TOLD["added"] else workers - 1


def hours(p: Panel, label: str, rounds: float, sent: float, speed: float) -> float:
    """Modelled hours: a worker's own steps, then its messages on a link of this many Mbit/s each way.

    Args:
        sent: bytes of its own messages.
    """
    wire = 8e-6 * traffic(p.config.data.clients or 1, label) * sent / speed
    return float(rounds * p.table["algorithm"]["tau"] * STEP + wire) / 3600


class Mark(NamedTuple):
    """Where the runs of a label are at an evaluation, on average."""

    round: float
    sent: float  # bytes of a worker's own messages
    perplexity: float
    spread: float  # over seeds


def course(results: StudyResults, p: Panel, label: str) -> list[Mark]:
    """The way of a label's runs, one mark per evaluation."""
    runs = [r["rows"] for r in results.runs(p.name, label) if r["status"] == "done"]
    found = list[Mark]()
    for rows in zip(*runs, strict=True):
        values = [row[KEY] for row in rows]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        sent = statistics.fmean(row[UP] for row in rows)
        found.append(Mark(rows[0]["round"], sent, statistics.fmean(values), spread))
    return found


def reached(results: StudyResults, p: Panel, label: str, target: float, speed: float) -> float:
    """Modelled hours until the mean perplexity comes down to a target; infinite if it never does.

    Between evaluations it is taken to fall evenly.
    """
    for a, b in itertools.pairwise(course(results, p, label)):
        if b.perplexity <= target:
            share = max(0.0, a.perplexity - target) / max(a.perplexity - b.perplexity, 1e-9)
            rounds, sent = a.round + share * (b.round - a.round), a.sent + share * (b.sent - a.sent)
            return hours(p, label, rounds, sent, speed)
    return math.inf


def table(results: StudyResults, name: str) -> list[dict[str, Any]]:
    """One line per label: rates, perplexity and how far it is from the base's, bits, MB sent, and hours."""
    p, base = results.panel(name), results.final(name, BASE, KEY)
    lines = []
    for run in p.runs(1):
        label, score = run.method, results.final(name, run.method, KEY)
        sent, known = results.sent(name, label, UP).mean, math.isfinite(score.mean)
        line: dict[str, Any] = {
            "point": label,
            "eta": run.config.algorithm.eta,
            "gamma": run.config.algorithm.gamma,
            "perplexity": score.mean if known else str(score),
            "spread": score.spread if known else None,
            "above_%": 100 * (score.mean / base.mean - 1) if known and math.isfinite(base.mean) else None,
            "bits": 32 * sent / (results.sent(name, BASE, UP).mean or math.inf) or None,
            "sent_MB": traffic(p.config.data.clients or 1, label) * sent / MB,
        }
        rounds = p.config.run.rounds
        line |= {f"hours_{speed:g}_Mbit": hours(p, label, rounds, sent, speed) for speed in SPEEDS}
        lines.append(line)
    return lines


def charts(results: StudyResults, p: Panel) -> list[Chart]:
    """Perplexity by bytes sent, and by modelled hours at each speed, of the main panel."""
    if p.name != MAIN:
        return []
    workers, paths = p.config.data.clients or 1, {label: course(results, p, label) for label in p.methods}
    best = min((mark.perplexity for path in paths.values() for mark in path), default=math.inf)
    shown = {
        label: [mark for mark in path if mark.round and mark.perplexity < 2 * best]
        for label, path in paths.items()
    }
    note = f"{workers} workers, {STEP:g} s per step of their own"
    drawn = [
        _chart(
            {k: [(traffic(workers, k) * m.sent / MB, m) for m in path] for k, path in shown.items()},
            *("Perplexity by bytes sent", "MB sent by a worker", note, True),
        )
    ]
    for speed in SPEEDS:
        points = {k: [(hours(p, k, m.round, m.sent, speed), m) for m in path] for k, path in shown.items()}
        drawn.append(_chart(points, f"Perplexity by time at {_speed(speed)}", "modelled hours", note))
    return drawn


def _chart(
    places: Mapping[str, list[tuple[float, Mark]]], title: str, x: str, note: str, log: bool = False
) -> Chart:
    points = {k: [(at, m.perplexity, m.spread) for at, m in own] for k, own in places.items() if own}
    axis = PlotAxes(x, "test perplexity", log=log, every=False)
    return partial(series, points=points, title=title, note=note, axis=axis)


def judge(results: StudyResults, p: Panel) -> list[Verdict]:
    if BASE not in p.methods:
        return []
    near = NEAR if p.name == MAIN else {SMALL: OTHER}
    found = [_near(results, p, label, by) for label, by in near.items() if label in p.methods]
    if p.name == MAIN and SMALLEST in p.methods and {*p.methods} & {*_TOLD["sparse"]}:
        found.append(_beside_sparse(results, p))
    if p.name == MAIN and {*p.methods} & {*_TOLD["ours"]}:
        found.append(_first(results, p))
    return found


def _near(results: StudyResults, p: Panel, label: str, near: float) -> Verdict:
    """Whether a label ends near the base."""
    base, score = (results.final(p.name, name, KEY) for name in (BASE, label))
    more = score.mean / base.mean - 1 if math.isfinite(base.mean) else math.inf
    sent = [results.sent(p.name, name, UP).mean for name in (BASE, label)]
    where = "" if p.name == MAIN else f"{p.name}: "
    return Verdict.of(
        f"{where}{label} ends within {100 * near:g}% of the perplexity of {BASE}.",
        [more <= near],
        f"{score} against {base}, {100 * more:+.2f}%, with 1/{sent[0] / sent[1]:,.0f} of the bytes.",
    )


def _beside_sparse(results: StudyResults, p: Panel) -> Verdict:
    """Whether unbiased messages of fewer bytes than SparseLoCo's end below it, as published and tuned."""
    sparse = {label: results.final(p.name, label, KEY) for label in p.methods if label in _TOLD["sparse"]}
    own = results.final(p.name, SMALLEST, KEY)
    sent = {label: results.sent(p.name, label, UP) for label in (SMALLEST, *sparse)}
    return Verdict.of(
        f"{SMALLEST} ends below SparseLoCo, with no more bytes.",
        [
            own.mean < score.mean and sent[SMALLEST].mean <= sent[label].mean
            for label, score in sparse.items()
        ],
        f"{list_of({SMALLEST: own, **sparse})}; MB of one worker's messages: {list_of(sent, 1 / MB)}.",
    )


def _first(results: StudyResults, p: Panel) -> Verdict:
    """Who is first to come near the base's perplexity, by speed of the links."""
    base: Stat = results.final(p.name, BASE, KEY)
    target, words, checks = (1 + OTHER) * base.mean, [], []
    for speed in SPEEDS:
        times = {label: reached(results, p, label, target, speed) for label in p.methods}
        order = sorted((time, label) for label, time in times.items() if math.isfinite(time))
        checks.append(bool(order) and order[0][1] in _TOLD["ours"])
        first = ", ".join(f"{label} {time:.3g} h" for time, label in order[:3]) or "nobody"
        words.append(f"{_speed(speed)}: {first}; {BASE} {times[BASE]:.3g} h")
    return Verdict.of(
        f"A message of ¼ bit or less is the first to come within {100 * OTHER:g}% of the perplexity of "
        f"{BASE}, at {', '.join(map(_speed, SPEEDS))}.",
        checks,
        f"{'. '.join(words)}.",
    )


def _speed(megabits: float) -> str:
    return f"{megabits / 1000:g} Gbit/s" if megabits >= 1000 else f"{megabits:g} Mbit/s"


STUDY = Study.told("outer", plan=plan, judge_panel=judge, charts=charts, table=table, in_part=True)
