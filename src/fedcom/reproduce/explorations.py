"""Beyond the paper: codecs, methods and numbers of local steps that were tried beside the frontier."""

from fedcom.reproduce.panels import Panel, shown
from fedcom.reproduce.results import StudyResults, Verdict, as_good, better, list_of, near
from fedcom.reproduce.study import Study

PAPER, OURS = "fedcomgate", "exact peaks 0.03"
FINE = ("int 4", "natural", "qsgd 7", "dithered 1", "rotated ½", "auto ¼")  # unbiased
HALF = 0.005  # the difference in accuracy that a claim allows


def judge(results: StudyResults, p: Panel) -> list[Verdict]:
    if p.name == "steps":
        return [_steps(results, tau) for tau in results.grid_values("steps", "tau")]
    scores = {label: results.final(p.name, label) for label in p.methods}
    if p.name == "codecs":
        claim = f"Unbiased codecs from a quarter of a bit on ({', '.join(FINE)}) end as high as 8 bits."
        checks = [as_good(scores[f"{PAPER} {codec}"], scores[PAPER]) for codec in FINE]
    elif p.name == "others":
        claim = (
            "SCAFFOLD with 8 bits for both its vectors ends as high as without; local SGD, which is FedAvg "
            "at gamma 1, Qsparse and VR-DIANA end below FedCOMGATE."
        )
        below = [better(scores[PAPER], scores[label]) for label in ("local-sgd", "qsparse", "vr-diana")]
        checks = [as_good(scores["scaffold int 8"], scores["scaffold"]), *below]
    else:
        claim = (
            f"FedCOMGATE-exact is for unbiased codecs: {shown(OURS)} ends above all biased codecs, with "
            "fewest bytes."
        )
        sent = {label: results.sent(p.name, label, "uplink_bytes").mean for label in p.methods}
        biased = [label for label in p.methods if label != OURS]
        checks = [better(scores[OURS], scores[label]) for label in biased]
        checks.append(sent[OURS] < min(sent[label] for label in biased))
    return [Verdict.of(claim, checks, f"{list_of(scores)}.")]


def _steps(results: StudyResults, tau: int) -> Verdict:
    scores = {m: results.final_at_best("steps", m, tau=tau) for m in results.panel("steps").methods}
    return Verdict.of(
        f"With {tau} local steps {shown(OURS)} ends within {100 * HALF:g} points of FedGATE, each "
        "at its best.",
        [near(scores[OURS], scores["fedgate"], HALF)],
        f"{list_of(scores)}.",
    )


STUDY = Study.told("explorations", judge_panel=judge)
