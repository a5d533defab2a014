"""The paper's six tables: how rounds to an accuracy grow with q, m, kappa, n and epsilon, beside what they state."""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedcom.codecs import Identity
from fedcom.display import progress
from fedcom.links import Links
from fedcom.report import write_csv
from fedcom.reproduce.cells import CHECKS
from fedcom.reproduce.checks import DIM, LARGEST, OCTAVES, Check, Setting
from fedcom.reproduce.measured import MOST, Found, Play, holds, plays, points, summary
from fedcom.reproduce.rounds import Grid
from fedcom.reproduce.tables_figure import figure
from fedcom.reproduce.verdicts import FAILS, HOLDS, PARTLY, Verdict
from fedcom.run import clear, write_json


class Table(NamedTuple):
    """A table of the paper: what it compares, and what it claims in our words."""

    title: str
    claim: str


TABLES = {
    1: Table(
        "compression, homogeneous data",
        "With identical data FedCOM pays for compression only q/m + 1 times in rounds (strongly convex and "
        "convex) or not at all (nonconvex, given local steps that grow with q + 1), and its rounds grow with the "
        "logarithm of the accuracy where FedPAQ's and Qsparse's grow with a power of it.",
    ),
    2: Table(
        "compression, heterogeneous data",
        "With different data FedCOMGATE's rounds grow as q + 1, and in the accuracy as without compression, "
        "where Qsparse's grow with a larger power of it.",
    ),
    3: Table(
        "no compression, homogeneous data",
        "Without compression FedCOM needs rounds that do not grow with the clients, m times fewer than what was "
        "known of local SGD.",
    ),
    4: Table(
        "no compression, heterogeneous data",
        "Without compression FedCOMGATE, that is FedGATE, needs as many rounds as SCAFFOLD but sends one vector "
        "instead of two, and fewer rounds than local SGD and VRL-SGD.",
    ),
    5: Table(
        "FedCOM beside DIANA and VR-DIANA, homogeneous data",
        "With identical data FedCOM's rounds grow more slowly in q than those of DIANA and VR-DIANA.",
    ),
    6: Table(
        "FedCOMGATE beside DIANA and VR-DIANA, heterogeneous data",
        "With different data FedCOMGATE's rounds grow more slowly in q than VR-DIANA's where the loss is convex "
        "or nonconvex; where it is strongly convex DIANA's bound is the smaller.",
    ),
}


def reproduce(
    out: Path, quick: bool = False, seeds: int | None = None, quiet: bool = False,
    checks: Sequence[Check] = CHECKS, workers: int | None = None,
) -> list[Verdict]:  # fmt: skip
    """Play what is not yet in the folder's results.jsonl, then draw, judge and write the tables."""
    clear(out, ())
    work = plays(checks, seeds or (3 if quick else 8), 2 if quick else 4)
    found = Found(_records(work, out / "results.jsonl", quiet, workers))
    verdicts = judge(found, checks, work[0])
    images = draw(found, out, checks)
    write_csv(list(points(found, checks)), out / "points.csv")
    write_json(out / "verdicts.json", [verdict.table() for verdict in verdicts])
    (out / "README.md").write_text(_page(found, verdicts, images, checks, work[0], quick), encoding="utf-8")
    return verdicts


def of_table(number: int, checks: Sequence[Check]) -> list[Check]:
    """The checks of one table."""
    return [check for check in checks if number in check.tables]


def draw(found: Found, out: Path, checks: Sequence[Check] = CHECKS) -> list[str]:
    """One figure a table."""
    numbers = [number for number in TABLES if of_table(number, checks)]
    for number in numbers:
        title = f"Table {number}: {TABLES[number].title}"
        figure(title, of_table(number, checks), found, out / f"table{number}.png")
    return [f"table{number}.png" for number in numbers]


def judge(found: Found, checks: Sequence[Check], play: Play) -> list[Verdict]:
    """Of every table, each method's bounds and what the table says of methods beside each other."""
    verdicts = []
    for number in TABLES:
        own, where = of_table(number, checks), _setting(play)
        for method in dict.fromkeys(check.base.method for check in own):
            verdicts.append(
                _bounds(number, method, [c for c in own if c.base.method == method], found, where)
            )
        for rival in RIVALS:
            pair = (
                [rival.check(method, own) for method in (rival.one, rival.other)]
                if rival.table == number
                else []
            )
            if all(pair) and pair:
                verdicts.append(rival.verdict(found, pair, where))  # type: ignore[arg-type]
    return [*verdicts, _vectors()] if of_table(4, checks) else verdicts


def _bounds(number: int, method: str, own: Sequence[Check], found: Found, where: str) -> Verdict:
    lines = summary(found, own)
    said = "; ".join(
        f"{x['column']}, {x['factor']} in {x['stated']}: {x['slope']}, {x['verdict']}" for x in lines
    )
    claim = f"Table {number}, {method}: rounds grow no faster than stated."
    return Verdict.of(claim, [holds(found, check) for check in own], f"Slopes: {said}.", where)


@dataclass(frozen=True)
class Rival:
    """A comparison of two methods at the last value of a factor that both reached."""

    table: int
    claim: str
    one: str
    other: str
    objective: str
    factor: str
    alike: bool = False  # as many rounds, instead of fewer

    def check(self, method: str, checks: Sequence[Check]) -> Check | None:
        """The method's check."""
        wanted = (method, self.objective, self.factor)
        return next((c for c in checks if (c.base.method, c.base.objective, c.factor) == wanted), None)

    def verdict(self, found: Found, pair: Sequence[Check], where: str) -> Verdict:
        """Fewer rounds by a tenth and more; as many is a part of it."""
        rounds = [dict(zip(check.values, found.rounds(check), strict=True)) for check in pair]
        both = [v for v in rounds[0] if rounds[0][v] and rounds[1].get(v)]
        if not both:
            return Verdict(self.claim, FAILS, "There is no value at which both got there.", where)
        one, other = (r[both[-1]] or 0 for r in rounds)
        numbers = (
            f"At {self.factor} = {both[-1]:.3g}: {one} and {other} rounds, {other / one:.2f} times as many."
        )
        same = 0.9 <= other / one <= 1.1
        good = same if self.alike else other > one
        return Verdict(
            self.claim, PARTLY if same and not self.alike else HOLDS if good else FAILS, numbers, where
        )


RIVALS = (
    Rival(1, "Table 1: FedCOM needs fewer rounds than FedPAQ at small ε.", "fedcom", "fedpaq", "quadratic", "epsilon"),
    Rival(1, "Table 1: FedCOM needs fewer rounds than Qsparse at large q.", "fedcom", "qsparse", "quadratic", "q"),
    Rival(2, "Table 2: FedCOMGATE needs fewer rounds than Qsparse at small ε (q = 7, damped).",
          "fedcomgate damped", "qsparse", "quadratic", "epsilon"),
    Rival(3, "Table 3: FedCOM needs fewer rounds than local SGD with many clients.", "fedcom", "local-sgd",
          "quadratic", "m"),
    Rival(4, "Table 4: FedGATE needs as many rounds as SCAFFOLD.", "fedgate", "scaffold", "quadratic", "epsilon",
          alike=True),
    Rival(4, "Table 4: FedGATE needs fewer rounds than VRL-SGD with many clients.", "fedgate", "vrl-sgd", "wave", "m"),
    Rival(4, "Table 4: FedGATE needs fewer rounds than local SGD at small ε.", "fedgate", "local-sgd", "flat",
          "epsilon"),
    Rival(5, "Table 5: FedCOM needs fewer rounds than DIANA at large q.", "fedcom", "diana", "quadratic", "q"),
    Rival(5, "Table 5: FedCOM needs fewer rounds than VR-DIANA at large q.", "fedcom", "vr-diana", "logistic", "q"),
    Rival(6, "Table 6: DIANA needs fewer rounds than FedCOMGATE (damped) at large q, strongly convex.",
          "diana", "fedcomgate damped", "quadratic", "q"),
    Rival(6, "Table 6: FedCOMGATE (damped) needs fewer rounds than VR-DIANA at large q, nonconvex.",
          "fedcomgate damped", "vr-diana", "wave", "q"),
)  # fmt: skip


def _vectors() -> Verdict:
    """The bytes of one round up, SCAFFOLD's against FedGATE's."""
    sizes = []
    for method in ("scaffold", "fedgate"):
        s = Setting(method, alike=False)
        grid = Grid(s.problem(), s.algorithm(), Links(Identity()), [0.01], [0])
        grid.step()
        sizes.append(grid.bill.total("uplink"))
    ratio = sizes[0] / sizes[1]
    claim = "Table 4: SCAFFOLD sends two vectors up, the others one."
    return Verdict.of(
        claim, [abs(ratio - 2) < 0.01], f"{ratio:.2f} times the bytes.", f"one round, d = {DIM}"
    )


def _setting(play: Play) -> str:
    tried = OCTAVES * play.finer + 1
    return (
        f"d = {DIM}; unless varied m = 4, κ = 32, ε = 0.01, or 0.05 where the rate is not linear; the best of "
        f"{tried} steps η γ τ L from {LARGEST:g} down, the mean of {play.seeds} seeds"
    )


def _records(
    work: Sequence[Play], path: Path, quiet: bool, workers: int | None
) -> list[tuple[Play, list[dict[str, Any]]]]:
    """The rows of all plays; those that are new are written as they come."""
    known = _read(path)
    pending = [play for play in work if play.key not in known]
    with path.open("a") as log, progress(len(pending), "tables", quiet) as show:
        for done, (play, rows) in enumerate(_measured(pending, workers or os.cpu_count() or 1), 1):
            log.write(json.dumps({"key": play.key, "rows": rows}, allow_nan=False) + "\n")
            log.flush()
            known[play.key] = rows
            show.advance(done)
    return [(play, known[play.key]) for play in work]


def _read(path: Path) -> dict[str, list[dict[str, Any]]]:
    known = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            record = json.loads(line)
        except json.JSONDecodeError:  # the line an interruption cut
            continue
        known[record["key"]] = record["rows"]
    return known


def _measured(work: Sequence[Play], workers: int) -> Iterator[tuple[Play, list[dict[str, Any]]]]:
    """Plays and their rows as they are done, by some processes of one thread each."""
    if workers == 1 or len(work) < 2:
        yield from ((play, play.measure()) for play in work)
        return
    with ProcessPoolExecutor(workers, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        jobs = {pool.submit(play.measure): play for play in _longest_first(work)}
        for job in as_completed(jobs):
            yield jobs[job], job.result()


def _longest_first(work: Iterable[Play]) -> list[Play]:
    """So that no process is left with a long one at the end."""
    return sorted(
        work, key=lambda p: -p.setting.m * (p.setting.tau + 4) * (1 + p.setting.q) / min(p.epsilons)
    )


def _page(
    found: Found, verdicts: Sequence[Verdict], images: Sequence[str], checks: Sequence[Check], play: Play,
    quick: bool,
) -> str:  # fmt: skip
    parts = ["# The six tables", INTRODUCTION, f"Settings: {_setting(play)}. A run is given {MOST} rounds.",
             f"`fedcom reproduce tables{' --quick' * quick}` repeats it."]  # fmt: skip
    for number, image in zip([n for n in TABLES if of_table(n, checks)], images, strict=True):
        title, claim = TABLES[number]
        lines = summary(found, of_table(number, checks))
        mine = [v for v in verdicts if v.claim.startswith(f"Table {number}")]
        parts += [
            f"## Table {number}: {title}", f"What the paper says: {claim}", f"![{title}]({image})",
            _markdown(lines), "\n".join(f"- **{v.outcome}**: {_said(v)}" for v in mine),
        ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _said(verdict: Verdict) -> str:
    """A verdict's line; slopes are in the table above it."""
    return verdict.claim if verdict.numbers.startswith("Slopes") else f"{verdict.claim} {verdict.numbers}"


def _markdown(lines: Sequence[dict[str, str]]) -> str:
    rows = [list(lines[0]), [":--"] * len(lines[0]), *(list(line.values()) for line in lines)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


INTRODUCTION = """The tables state upper bounds on the rounds to an accuracy ε. Each is checked by varying one of its
factors and fitting a power law to the rounds measured: a slope of 1 against the bound (or of 0, where the bound does not
know the factor) is growth as stated, less is better than stated, more than the fit's two standard errors and 0.1 is
worse. ± are two standard errors. Every point takes the fewest rounds over one fixed grid of steps η γ τ L, with γ as
the theorems have it: m for FedCOM, √(mτ) for FedCOMGATE, FedGATE and SCAFFOLD, 1 for the others.

Problems, each with L = 1: `quadratic`, strongly convex, eigenvalues from 1 to 1/κ; `flat`, a quadratic whose
eigenvalues fall to 10⁻⁴, on which gradient descent needs 1/ε rounds; `logistic` regression; `wave`, a quadratic and a
sine, not convex. Accuracy is the loss above its least, or for `wave` the mean of |∇f|² over rounds, as a share of its
value at the start. Where τ is as stated, it is a quarter of the formula, rounded up, and gradients have noise with
σ² = 1/2 (`logistic`: one sample in place of all); else τ is 4 and gradients are exact, as τ serves against noise
alone. Rand-k keeps d/(1+q) coordinates, which has exactly this q; Qsparse's top-k keeps as many."""
