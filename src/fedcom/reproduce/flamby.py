"""Another's table: FLamby's strategies on heart disease and TCGA-BRCA, and then the same with fewer bytes."""

import math
from functools import cache
from typing import Any

import torch

from fedcom.config import Config
from fedcom.engines.results import Row
from fedcom.errors import Diverged
from fedcom.reproduce.panels import Panel, StudyRun, package_data
from fedcom.reproduce.results import Stat, StudyResults, Verdict
from fedcom.reproduce.study import Study
from fedcom.runs.prepare import build_task, prepare
from fedcom.tasks.task import Task

_TOLD = package_data("studies.toml")["flamby"]
PUBLISHED: dict[str, dict[str, list[float]]] = _TOLD["published"]
POOLED = "-pooled"  # the end of the name of a panel with all data in one place
FEW = "-few-bytes"  # the end of the name of a panel with codecs
BEST = {"heart-disease": "FedAdagrad", "tcga-brca": "FedAdam"}  # the best strategies of those published
# With few bytes, the label and the rounds that were best on held-out training patients.
CHOSEN = {"heart-disease": ("FedCOM, signs", 3), "tcga-brca": ("FedAdam, 4 bits", 2)}
LEAST = 0.02  # a difference that counts as none, whatever the published standard deviation
OWN, ALL = "client_mean", "pooled_test"  # the scores of a row: over hospitals' own test sets; all in one


def measure(run: StudyRun, device: str, quiet: bool) -> tuple[str, list[Row]]:
    """The scores of the last model on each hospital's own test samples, and on all in one place.

    FLamby scales those in one place by the mean and deviation of all training data, and so does this.
    """
    simulation, _ = prepare(run.config, device)
    try:
        for _ in range(run.config.run.rounds):
            simulation.step()
        row = simulation.row()
    except Diverged:
        return "diverged", []
    name, w, p = str(run.config.data.name), simulation.server.w.cpu(), torch.ones(1)
    own, together = (_tests(name, run.config.model.name, scaled) for scaled in (None, "all"))
    scores = own.evaluate(w, torch.full((own.clients,), 1 / own.clients))
    others = together.evaluate(w, p)
    main = "test_accuracy" if own.answers else "test_c_index"
    kept = {key: row[key] for key in ("round", "train_loss", "uplink_bytes", "downlink_bytes")}
    fair = {key: scores[key] for key in (OWN, "client_worst", "client_spread")}
    return "done", [{**kept, **fair, "own_tests": scores[main], ALL: others[main]}]


@cache
def _tests(name: str, model: str, scaled: str | None) -> Task:
    """A data set's test samples, by hospital and scaled as published, or all in one place."""
    data = {"name": name} if scaled is None else {"name": name, "partition": "iid", "clients": 1}
    scale = {"normalise": scaled} if scaled and name == "heart-disease" else {}
    return build_task(Config.of({"data": {**data, **scale}, "model": {"name": model}}))[0]


def table(results: StudyResults, name: str) -> list[dict[str, Any]]:
    """One line per strategy, and per number of rounds where several were tried: scores and bytes."""
    p = results.panel(name)
    points = [{"rounds": n} for n in results.grid_values(name, "rounds")] if p.grid else [{}]
    return [
        {"strategy": label, "rounds": str(point.get("rounds", p.config.run.rounds))}
        | _scores(results, name, label, **point)
        for label in p.methods
        for point in points
    ]


def _scores(results: StudyResults, name: str, label: str, **point: Any) -> dict[str, Any]:
    """The published scores of a strategy, if there are any, and ours; the bytes of a client."""
    theirs, pooled = "", ""
    if not name.endswith(FEW):
        mean, spread, other = published(name, label)
        theirs, pooled = f"{mean:.3f}" + (f" ± {spread:.3f}" if spread else ""), f"{other:.3f}"
    own, worst, both = (text(results.final(name, label, key, **point)) for key in (OWN, "client_worst", ALL))
    up, down = (results.sent(name, label, key, **point).mean for key in ("uplink_bytes", "downlink_bytes"))
    scores = {"published": theirs, "here": own, "worst client": worst}
    pooled_test = {"pooled test, published": pooled, "pooled test, here": both}
    return {**scores, **pooled_test, "bytes up": f"{up:,.0f}", "bytes down": f"{down:,.0f}"}


def published(panel: str, label: str) -> tuple[float, float, float]:
    """The mean over hospitals' own test sets, its deviation (0: not published), and the pooled test set's."""
    mean, spread, pooled = PUBLISHED[panel.removesuffix(POOLED)][label]
    return mean, spread, pooled


def text(stat: Stat) -> str:
    """A score with its deviation over seeds, with three digits."""
    spread = f" ± {stat.spread:.3f}" if len(stat.values) > 1 else ""
    return f"{stat.mean:.3f}{spread}" if None not in stat.values else stat.missing


def judge(results: StudyResults, p: Panel) -> list[Verdict]:
    if p.name.endswith(FEW):
        return [_few_bytes(results, p)]
    checks, words = {}, []
    for label in p.methods:
        mean, spread, _ = published(p.name, label)
        own = results.final(p.name, label, OWN)
        checks[label] = abs(own.mean - mean) <= max(2 * spread, LEAST)
        words.append(f"{label} {text(own)} ({mean:.3f} published)")
    claim = (
        f"On {p.name} each strategy's mean over clients' test sets is the published one, within two of its "
        f"standard deviations or {LEAST:g}."
    )
    return [Verdict.of(claim, checks.values(), f"{', '.join(words)}.")]


def _few_bytes(results: StudyResults, p: Panel) -> Verdict:
    """Whether the point that was best on held-out patients meets the best published score, and its bytes."""
    data, (label, rounds) = p.name.removesuffix(FEW), CHOSEN[p.name.removesuffix(FEW)]
    best, _, _ = published(data, BEST[data])
    own = results.final(p.name, label, OWN, rounds=rounds)
    sent = results.sent(p.name, label, "uplink_bytes", rounds=rounds).mean
    usual = results.sent(data, BEST[data], "uplink_bytes").mean if results.has(data) else math.nan
    return Verdict.of(
        f"On {data} the best published score, {best:.3f}, is met within {LEAST:g} with fewer bytes.",
        [own.mean >= best - LEAST, sent < usual],
        f"{label}, {rounds} rounds: {text(own)} with {sent:,.0f} bytes up per client, 1/{usual / sent:.3g} "
        f"of the {usual:,.0f} of {BEST[data]} as published.",
    )


STUDY = Study.told("flamby", judge_panel=judge, measure=measure, table=table, seeds=5)
