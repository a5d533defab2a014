"""Beyond the paper: adapters of pretrained language models on Shakespeare's roles, at 32, .25 and .1 bit."""

import math
from functools import partial
from typing import Any

from fedcom.data.files import at_path
from fedcom.formats import MB
from fedcom.reports.looks import SPARE
from fedcom.reproduce.drawing import Chart, PlotAxes, PlotPoint, series
from fedcom.reproduce.language import DOWN, KEY, UP, perplexity
from fedcom.reproduce.panels import Panel, Scale, package_data, settings
from fedcom.reproduce.results import Stat, StudyResults, Verdict, as_good, list_of
from fedcom.reproduce.study import Study, panel

_TOLD = package_data("studies.toml")["lora"]
MODELS: dict[str, dict[str, Any]] = _TOLD["models"]  # by the names of their folders
BITS: dict[str, str] = _TOLD["bits"]  # the method and codec of each number of bits
PLAIN, EXACT = "lora", tuple(_TOLD["exact"])  # adapters: averaged, and those whose products are
LEVEL, FALL = 0.005, 0.25  # how far above a perplexity is level; the share of the base's that must be gone


def label_of(adapter: str, bits: str = "32") -> str:
    """The label of an adapter's run at a number of bits."""
    return f"{BITS[bits]}, adapter {adapter}"


def settings_of(adapter: str, bits: str) -> dict[str, Any]:
    """The settings of that run; with a codec it has the rates of the same adapter uncompressed."""
    label, plain = label_of(adapter, bits), label_of(adapter)
    own = {**settings(label), "adapter": {"name": adapter, **_TOLD["settings"].get(adapter, {})}}
    return own if label == plain else {**own, "rates_of": plain}


def plan(model: str, scale: Scale) -> list[Panel]:
    own = MODELS[model]
    adapters = own["quick"]["adapters"] if scale.quick else own["adapters"]
    bits = [each for each in own["bits"] if each != "0.1" or not scale.quick]
    methods = {label_of(a, each): settings_of(a, each) for a in adapters for each in bits}
    changes = {"data": text_of(model), "methods": methods}
    rates, quick = (own["study"],), own["quick"]["settings"]
    return [
        panel(
            f"lora/{model}.toml",
            scale,
            tuple(methods),
            rates=rates,
            over=changes,
            quick=quick,
            near=own["tuning"],
        )
    ]


def text_of(model: str) -> dict[str, str]:
    """Where the text is cut by a model's tokenizer: in a file of tokens, or else by the tokenizer itself."""
    tokens = f"shakespeare-{model}.npz"
    return {"tokens": tokens} if at_path(tokens).is_file() else {"tokenizer": MODELS[model]["tokenizer"]}


def before(results: StudyResults, name: str, label: str) -> Stat:
    """The perplexity of the model before its first round."""
    firsts = [r["rows"][0].get(KEY) if r["rows"] else None for r in results.runs(name, label)]
    return Stat(tuple(firsts), KEY)


def table(results: StudyResults, name: str) -> list[dict[str, Any]]:
    """One line per label: its rate, perplexity before and after, and bytes both ways."""
    lines = []
    for run in results.panel(name).runs(1):
        label, score = run.method, perplexity(results, name, run.method)
        known = math.isfinite(score.mean)
        line: dict[str, Any] = {
            "point": label,
            "eta": run.config.algorithm.eta,
            "before": before(results, name, label).mean,
            "perplexity": score.mean if known else str(score),
            "spread": score.spread if known else None,
        }
        sent = {"up_MB": UP, "down_MB": DOWN}
        lines.append(line | {key: results.sent(name, label, way).mean / MB for key, way in sent.items()})
    return lines


def charts(results: StudyResults, p: Panel) -> list[Chart]:
    found = dict.fromkeys(run.config.table()["adapter"]["name"] for run in p.runs(1))
    drawn = {
        adapter: [
            _point(results, p.name, adapter, each) for each in BITS if label_of(adapter, each) in p.methods
        ]
        for adapter in found
    }
    axis = PlotAxes("bits up per number that is trained", "test perplexity", log=True, every=True)
    hues = dict(zip(_TOLD["order"], SPARE, strict=False))
    halves = " and ".join(adapter for adapter in ("ffa", "rolora") if adapter in found)
    title, note = f"{p.name}: perplexity by bits up", f"a message of {halves} is A or B, the others' are both"
    return [partial(series, points=drawn, title=title, note=note, axis=axis, colours=hues)]


def _point(results: StudyResults, name: str, adapter: str, bits: str) -> PlotPoint:
    score = perplexity(results, name, label_of(adapter, bits))
    return float(bits), score.mean, score.spread


def judge(results: StudyResults, p: Panel) -> list[Verdict]:
    """What FedIT gains, what a quarter of a bit costs each adapter, and the exact ones beside FedIT."""
    if not {label_of(PLAIN), label_of(PLAIN, "0.25")} <= {*p.methods}:
        return []
    score = partial(perplexity, results, p.name)
    base, plain = before(results, p.name, label_of(PLAIN)), score(label_of(PLAIN))
    pairs = {a: (label_of(a), label_of(a, "0.25")) for a in _TOLD["order"]}
    small = {a: score(pair[1]) for a, pair in pairs.items() if {*pair} <= {*p.methods}}
    whole = {a: score(label_of(a)) for a in small}
    more = {a: f"{100 * _more(small[a], whole[a]):+.2f}%" for a in small}
    level = {a: _more(small[a], whole[a]) <= LEVEL for a in small}
    sent, few = (results.sent(p.name, label_of(PLAIN, bits), UP).mean for bits in ("32", "0.25"))
    others, exact = [a for a in small if a != PLAIN], {a: whole[a] for a in EXACT if a in whole}
    found = [
        Verdict.of(
            f"FedIT takes {100 * FALL:g}% or more off the model's perplexity on unseen lines of the roles.",
            [plain.mean <= (1 - FALL) * base.mean],
            f"{plain} after {base}, {100 * _more(plain, base):+.1f}%.",
        ),
        Verdict.of(
            f"At a quarter of a bit FedIT ends within {100 * LEVEL:g}% of FedIT uncompressed.",
            [level[PLAIN]],
            f"{small[PLAIN]} against {plain}, {more[PLAIN]}, with 1/{sent / few:,.0f} of its bytes up.",
        ),
    ]
    if not others:  # in the quick form
        return found
    return [
        *found,
        Verdict.of(
            f"So does each other adapter beside itself: {', '.join(others)}.",
            [level[a] for a in others],
            f"{', '.join(f'{a} {more[a]}' for a in others)}.",
        ),
        Verdict.of(
            f"Uncompressed, adapters whose mean is exact ({', '.join(exact)}) end as low as FedIT.",
            [as_good(own, plain) for own in exact.values()],
            f"{list_of({PLAIN: plain, **exact})}.",
        ),
    ]


def _more(a: Stat, b: Stat) -> float:
    """How much higher a perplexity is than another; infinitely, if there is no number."""
    return a.mean / b.mean - 1 if math.isfinite(a.mean) and math.isfinite(b.mean) else math.inf


def _study(model: str) -> Study:
    told, name = MODELS[model], MODELS[model]["study"]
    *more, last = told["bits"]
    fill = {"model": told["title"], "bits": f"{', '.join(more)} and {last}"}
    words: dict[str, Any] = {"words": "lora", "fill": fill, "seeds": told["seeds"]}
    own: dict[str, Any] = {"judge_panel": judge, "charts": charts, "table": table, "in_part": True}
    return Study.told(name, plan=partial(plan, model), **words, **own)


STUDIES = tuple(map(_study, MODELS))
