"""Beyond the paper: methods beside themselves with momentum at the server, uncompressed and below a bit."""

from pathlib import Path

from fedcom.reproduce import frontier
from fedcom.reproduce.drawing import draw_charts
from fedcom.reproduce.frontier import BASE, TOTAL, UP, finding, times_fewer
from fedcom.reproduce.panels import MOMENTUM, Panel
from fedcom.reproduce.results import StudyResults, Verdict, better, list_of
from fedcom.reproduce.study import Study

CODEC = "peaks 0.03"
UPWARDS, BOTH_WAYS = f"fedcom {CODEC}{MOMENTUM}", f"fedcom {CODEC}, down rotated 0.65{MOMENTUM}"
PAIRS = {f"exact {CODEC}{MOMENTUM}": (f"fedcom {CODEC}{MOMENTUM}", f"exact {CODEC}")}  # and its halves


def judge(results: StudyResults, p: Panel) -> list[Verdict]:
    """What momentum gains at 0.03 bit; on the first panel also both ways, and beside every SCAFFOLD."""
    return [
        *(
            [_above(results, p, UPWARDS, UP), _above(results, p, BOTH_WAYS, TOTAL)]
            if BOTH_WAYS in p.methods
            else []
        ),
        _gains(results, p),
        _pair(results, p),
    ]


def _above(results: StudyResults, p: Panel, label: str, keys: tuple[str, ...]) -> Verdict:
    """Whether a compressed point ends above SCAFFOLD as published; told beside the uncompressed ones."""
    own, times = results.final(p.name, label), times_fewer(results, p.name, label, keys) or 0
    others = {each: results.final(p.name, each) for each in (f"fedavg{MOMENTUM}", f"{BASE}{MOMENTUM}")}
    least = 2000 if keys is UP else 180
    words = "uplink bytes" if keys is UP else "bytes up and down"
    return Verdict.of(
        f"{label} ends above SCAFFOLD as published with 1/{least:,} of its {words}.",
        [better(own, results.final(p.name, BASE)), times >= least],
        f"{finding(results, p.name, label, keys)}; uncompressed, with momentum: {list_of(others)}.",
    )


def _gains(results: StudyResults, p: Panel) -> Verdict:
    """Whether every method ends higher with momentum than without."""
    pairs = {
        label: [results.final(p.name, each) for each in (f"{label}{MOMENTUM}", label)]
        for label in p.methods
        if f"{label}{MOMENTUM}" in p.methods
    }
    numbers = [f"{label}: {ours} against {theirs}" for label, (ours, theirs) in pairs.items()]
    return Verdict.of(
        "With momentum each method ends above itself without.",
        [better(*pair) for pair in pairs.values()],
        f"{', '.join(numbers)}.",
    )


def _pair(results: StudyResults, p: Panel) -> Verdict:
    """Whether tracking and momentum together are not below the better of the two by a standard error."""
    checks, numbers = list[bool](), list[str]()
    for label, halves in PAIRS.items():
        own, best = (
            results.final(p.name, label),
            max((results.final(p.name, h) for h in halves), key=lambda s: s.mean),
        )
        checks.append(own.mean >= best.mean - max(own.error, best.error))
        numbers.append(f"{label}: {own}, the better half: {best}")
    return Verdict.of(
        "Tracking and momentum together are not below the better of the two by more than a standard error.",
        checks,
        f"{', '.join(numbers)}.",
    )


class Momenta(Study):
    """A study with an image for each of its panels."""

    def draw(self, results: StudyResults, out: Path) -> list[str]:
        return [
            draw_charts(
                self.charts(results, p),
                out / f"{p.name.replace('fashion-mnist', 'momentum')}.png",
                (7.4, 5.6),
            )
            for p in results.panels
        ]


STUDY = Momenta.told("momentum", judge_panel=judge, charts=frontier.charts, table=frontier.table)
