"""Draw the figures of benchmarks, codecs and theory from numbers in docs/: python -m docs.make_figures."""

import math
from pathlib import Path

from benchmarks.breakdown import draw_figure
from docs.make_theory import draw as theory_knobs

from fedcom.codecs import CODECS
from fedcom.reports.figures import GREY, INK, blank, frame, rate_distortion
from fedcom.reports.looks import COLOURS
from fedcom.reproduce.drawing import save_png

DOCS = Path(__file__).parent
OURS = "fedcom"


def table(page: str, before: str, head: str) -> list[list[str]]:
    """The cells of the first table after a text whose first heading is `head`, without its headings."""
    text = (DOCS / page).read_text(encoding="utf-8").split(before, 1)[1].split(f"| {head} |", 1)[1]
    lines = text.split("\n\n", 1)[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def number(text: str) -> float:
    """The number at the start of a cell such as 1,646 (88%)."""
    return float(text.split()[0].replace(",", ""))


SPEEDS = {  # where, and the text before its table in benchmarks.md
    "2 cores of a CPU": "`mnist`, 2 Neoverse-N1 cores",
    "one H200 GPU": "`mnist`, one NVIDIA H200",
}
NAMES = {"pfl": "pfl-research", "ranks": "2 processes", "single": "1 process", "rotated": "FedCOMGATE ¼ bit"}
NAMES |= {"fedavg": "FedAvg", "fedcomgate": "FedCOMGATE", "compiled": "FedAvg, compiled", "fedcom": "fedcom"}


def contender(name: str) -> str:
    """A contender's name in words: fedcom-fedavg-ranks is fedcom FedAvg, 2 processes."""
    who, *rest = (NAMES.get(part, part) for part in name.split("-"))
    return f"{who} {', '.join(rest)}".strip()


def speed() -> None:
    """Bars of client steps per second, one chart per machine, beside the fastest of the others."""
    figure = blank(11, 4.6)
    parts = figure.subfigures(1, len(SPEEDS), width_ratios=(1.1, 1))
    for part, (where, before) in zip(parts, SPEEDS.items(), strict=True):
        lines = [(row[0], number(row[1])) for row in table("benchmarks.md", before, "contender")]
        lines.sort(key=lambda line: line[1])
        best = max(rate for name, rate in lines if not name.startswith(OURS))
        times = f"{lines[-1][1] / best:.0f}" if lines[-1][1] > 10 * best else f"{lines[-1][1] / best:.1f}"
        note = "client steps per second, MNIST's shapes · grey: peers"
        peer = contender(max((rate, name) for name, rate in lines if not name.startswith(OURS))[1])
        axes = frame(part, f"{times} times as fast as {peer.split()[0]} on {where}", note)
        axes.set_position((0.42, 0.04, 0.43, 0.79))
        for i, (name, rate) in enumerate(lines):
            ours = name.startswith(OURS)
            axes.barh(i, rate, color=COLOURS["fedcomgate"] if ours else GREY)
            axes.text(rate, i, f"  {rate:,.0f}", va="center", size=9.5, color=INK)
        axes.set_yticks(range(len(lines)), [contender(name) for name, _ in lines], color=INK, size=9.5)
        axes.grid(visible=False)
        axes.set_xticks([])
    save_png(figure, DOCS / "figures" / "speed.png")


def breakdown() -> None:
    """Where a round's time goes."""
    rows = table("benchmarks.md", "## Where a round's time goes", "ms per round")
    heads = ["FedAvg, CPU", "FedCOMGATE int 8, CPU", "FedCOMGATE rotated .25, CPU"]
    bars = {head: {row[0]: number(row[1 + i]) for row in rows} for i, head in enumerate(heads)}
    draw_figure(
        bars, DOCS / "figures" / "breakdown.png", "100 clients, 10 local steps, batch 50, random data"
    )


def codecs() -> None:
    """The error of every codec over its bits, on both vectors."""
    points = []
    for vector, d in (("gaussian", 200_000), ("mnist update", 199_210)):
        for name, _, bits, q, *_ in table("codecs.md", f"### {vector}", "codec"):
            point = {"codec": name, "vector": vector, "d": d, "unbiased": CODECS[name]().unbiased}
            if "—" not in (bits, q):
                points.append({**point, "bits": float(bits), "q": float(q)})
    for bits, _, gaussian, _, _, _, update, _ in table("codecs.md", "## The lowest rates", "bits"):
        bound = 1 / math.expm1(math.log(4) * float(bits))
        found = (("gaussian", 200_000, float(gaussian)), ("mnist update", 199_210, float(update) * bound))
        points += [
            {"codec": "peaks", "vector": vector, "d": d, "unbiased": True, "bits": float(bits), "q": q}
            for vector, d, q in found
        ]
    rate_distortion(points, DOCS / "figures" / "rate-distortion.png")


if __name__ == "__main__":
    speed()
    breakdown()
    codecs()
    theory_knobs()
