"""Draw the figures of benchmarks and codecs from the tables in their pages: python -m docs.make_figures."""

from pathlib import Path

from benchmarks.breakdown import draw_figure

from fedcom.codecs import CODECS
from fedcom.reports.figures import INK, PALE, rate_distortion
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


def speed() -> None:
    """Bars of client steps per second, one chart per machine, beside the fastest of the others."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    charts = {"2 cores of a CPU": "`mnist`, 2 Neoverse-N1 cores", "one H200 GPU": "`mnist`, one NVIDIA H200"}
    figure = Figure(figsize=(11, 4.3), dpi=200, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(charts), width_ratios=(1.15, 1))
    for axes, (where, before) in zip(panels, charts.items(), strict=True):
        lines = [(row[0], number(row[1])) for row in table("benchmarks.md", before, "contender")]
        lines.sort(key=lambda line: line[1])
        peer, best = max(((n, r) for n, r in lines if not n.startswith(OURS)), key=lambda line: line[1])
        for i, (name, rate) in enumerate(lines):
            axes.barh(i, rate, color=COLOURS["fedcomgate"] if name.startswith(OURS) else "#9aa3ad")
            times = f"   {rate / best:.3g} times {peer}" if name.startswith(OURS) else ""
            words = f" {rate:,.0f}{times}"
            axes.text(rate, i, words, va="center", size=9, color=INK)
        axes.set_yticks(range(len(lines)), [name for name, _ in lines], color=INK)
        axes.set_title(where, loc="left", size=11, weight="bold", color=INK)
        axes.set_xlabel("client steps per second", color=PALE, loc="left")
        axes.margins(x=0.45)
        axes.set_xticks([])
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
    figure.suptitle(
        "The same federated job on MNIST's shapes: fedcom in blue, its peers in grey",
        x=0.01,
        ha="left",
        size=13,
        weight="bold",
        color=INK,
    )
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
    rate_distortion(points, DOCS / "figures" / "rate-distortion.png")


if __name__ == "__main__":
    speed()
    breakdown()
    codecs()
