"""Beyond the paper: codecs, methods and numbers of local steps that were tried beside the frontier."""

from pathlib import Path
from typing import Any

from fedcom.reproduce.labels import labelled, settings
from fedcom.reproduce.panels import Panel, Scale
from fedcom.reproduce.results import Stat, StudyResults, Verdict, as_good, better, list_of, near
from fedcom.reproduce.study import Study, panel

MNIST, FASHION = "frontier-mnist/mnist.toml", "frontier-fashion-mnist/fashion-mnist.toml"
PAPER, OURS = "fedcomgate", "exact peaks 0.03"
FINE = ("int 4", "natural", "qsgd 7", "dithered 1", "rotated ½", "auto ¼")  # unbiased
COARSE = ("terngrad", "topk 10%", "randk 10%", "randk 10% with memory")
UNDAMPED = "fedcomgate randk 10% undamped"
OTHERS = ("scaffold int 8", "local-sgd", "qsparse", "vr-diana")
BIASED = (*(f"{method} topk 1%" for method in (PAPER, "scafcom", "exact")), "exact sign with memory")
STEPS, FEW_BITS = (20, 50), ("fedcomgate rotated ¼", OURS)
HALF = 0.005  # the difference in accuracy that a claim allows


def plan(scale: Scale) -> list[Panel]:
    codecs = [f"{PAPER} {codec}" for codec in (*FINE, *COARSE)]
    over = labelled(codecs)
    over["methods"][UNDAMPED] = {**settings(f"{PAPER} randk 10%"), "damping": 1.0}
    both, taus = (PAPER, "scaffold", *OTHERS), [STEPS[0]] if scale.quick else list(STEPS)
    many: dict[str, Any] = {"grid": {"tau": taus, "eta": [0.02] if scale.quick else [0.01, 0.02, 0.05]}}
    tuned = ("fashion-mnist", "frontier-fashion-mnist", "explorations-biased")
    all_biased = (OURS, *BIASED)
    return [
        panel(MNIST, scale, (PAPER, *codecs, UNDAMPED), name="codecs", over=over),
        panel(
            MNIST, scale, both, name="others", rates=("mnist", "explorations-others"), over=labelled(OTHERS)
        ),
        panel(FASHION, scale, all_biased, name="biased", rates=tuned, over=labelled(all_biased)),
        panel(FASHION, scale, ("fedgate", *FEW_BITS), name="steps", over=labelled(FEW_BITS) | many),
    ]


def judge(results: StudyResults) -> list[Verdict]:
    judges = {"codecs": _codecs, "others": _others, "biased": _biased, "steps": _steps}
    return [verdict for p in results.panels for verdict in judges[p.name](results)]


def _scores(results: StudyResults, name: str) -> dict[str, Stat]:
    return {label: results.final(name, label) for label in results.panel(name).methods}


def _codecs(results: StudyResults) -> list[Verdict]:
    scores = _scores(results, "codecs")
    verdict = Verdict.of(
        f"Unbiased codecs from a quarter of a bit on ({', '.join(FINE)}) end as high as 8 bits.",
        [as_good(scores[f"{PAPER} {codec}"], scores[PAPER]) for codec in FINE],
        f"{list_of(scores)}.",
        results.setting("codecs"),
    )
    return [verdict]


def _others(results: StudyResults) -> list[Verdict]:
    scores = _scores(results, "others")
    alone = [better(scores[PAPER], scores[label]) for label in OTHERS[1:]]
    verdict = Verdict.of(
        "SCAFFOLD with 8 bits for both its vectors ends as high as without; local SGD, which is FedAvg at "
        "gamma 1, Qsparse and VR-DIANA end below FedCOMGATE.",
        [as_good(scores[OTHERS[0]], scores["scaffold"]), *alone],
        f"{list_of(scores)}.",
        results.setting("others"),
    )
    return [verdict]


def _biased(results: StudyResults) -> list[Verdict]:
    scores, sent = _scores(results, "biased"), "uplink_bytes"
    most = min(results.sent("biased", label, sent).mean for label in BIASED)
    verdict = Verdict.of(
        f"Exact tracking is for unbiased codecs: {OURS} ends above all biased codecs, with fewest bytes.",
        [
            *(better(scores[OURS], scores[label]) for label in BIASED),
            results.sent("biased", OURS, sent).mean < most,
        ],
        f"{list_of(scores)}.",
        results.setting("biased"),
    )
    return [verdict]


def _steps(results: StudyResults) -> list[Verdict]:
    verdicts = []
    for tau in results.grid_values("steps", "tau"):
        best = {m: results.best("steps", m, tau=tau) for m in results.panel("steps").methods}
        scores = {m: results.final("steps", m, **point) for m, point in best.items()}
        verdict = Verdict.of(
            f"With {tau} local steps {OURS} ends within {100 * HALF:g} points of FedGATE, each at its best.",
            [near(scores[OURS], scores["fedgate"], HALF)],
            f"{list_of(scores)}.",
            results.setting("steps"),
        )
        verdicts.append(verdict)
    return verdicts


def draw(results: StudyResults, out: Path) -> list[str]:
    return []


STUDY = Study(
    "explorations",
    "What was tried beside the frontier",
    (
        "Nothing of this is in the paper: more codecs for FedCOMGATE, more methods, biased codecs with exact "
        "tracking, and more local steps.",
    ),
    plan,
    draw,
    judge,
    notes="Codecs run at FedCOMGATE's rates; other methods and biased codecs at rates of their own, tuned on "
    "other seeds; with more local steps the best of three eta is chosen on the seeds that are reported.",
)
