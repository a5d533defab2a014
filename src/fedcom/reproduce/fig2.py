"""Figure 2: FedCOM against FedCOMGATE on homogeneous and heterogeneous MNIST."""

from pathlib import Path

from fedcom.reproduce.drawing import Sheet, lines
from fedcom.reproduce.results import Results, Verdict, better
from fedcom.reproduce.study import Panel, Scale, Study, panel

SAME = "fedcom, fedcomgate's rates"


def plan(scale: Scale) -> list[Panel]:
    two = ("fedcom", "fedcomgate")
    apart = panel("fig2/heterogeneous.toml", scale, two)
    rates = {key: apart.table["methods"]["fedcomgate"].get(key) for key in ("eta", "gamma")}
    own = {"name": "fedcom", **{key: value for key, value in rates.items() if value is not None}}
    apart = panel("fig2/heterogeneous.toml", scale, (*two, SAME), over={"methods": {SAME: own}})
    return [panel("fig2/homogeneous.toml", scale, two), apart]


def draw(results: Results, out: Path) -> list[str]:
    sheet = Sheet(1, 2)
    for part, p in zip(sheet.parts, results.panels, strict=True):
        title = f"{p.name.capitalize()} data: training loss"
        lines(part, results.curves(p.name), "round", "train_loss", title, results.setting(p.name))
    return [sheet.save(out / "fig2.png")]


def judge(results: Results) -> list[Verdict]:
    iid, apart = (
        {method: results.final(p.name, method, "train_loss") for method in p.methods} for p in results.panels
    )
    loss = {m: f"{s}" for m, s in apart.items()}
    return [
        Verdict.of(
            "On homogeneous data FedCOM does as well as FedCOMGATE.",
            [not better(iid["fedcomgate"], iid["fedcom"])],
            f"Final loss {iid['fedcom']} and {iid['fedcomgate']}.", results.setting("homogeneous"),
        ),
        Verdict.of(
            "On heterogeneous data FedCOM keeps a residual error that FedCOMGATE does not.",
            [better(apart["fedcomgate"], apart["fedcom"]), better(apart["fedcomgate"], apart[SAME])],
            f"Final loss {loss['fedcomgate']} for FedCOMGATE; FedCOM {loss['fedcom']} at its own best rates and "
            f"{loss[SAME]} at FedCOMGATE's.", results.setting("heterogeneous"),
        ),
    ]  # fmt: skip


STUDY = Study(
    "fig2",
    "Figure 2: FedCOM and FedCOMGATE on homogeneous and heterogeneous data",
    (
        "FedCOM suits homogeneous data, where it needs no tracking.",
        "With two classes a client it is left with a residual error; FedCOMGATE's tracking removes it.",
    ),
    plan, draw, judge,
    notes="Rates were tuned on the heterogeneous task and serve the homogeneous one too.",
)  # fmt: skip
