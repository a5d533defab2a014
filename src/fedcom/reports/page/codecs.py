"""The table of codecs in the page: whether they are biased, their measured error and their bits."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedcom.codecs import CODECS, Codec
from fedcom.codecs.wire import HEADER
from fedcom.errors import FedcomError
from fedcom.formats import NOTHING, is_number, significant
from fedcom.plain import pick
from fedcom.reports.page.collect import LINK, JsonObject, SavedRun, by_label, is_usable
from fedcom.reports.page.markup import Cell, Html, table, tag

# In the ledger, what no codec carries: by name, single numbers by how they begin, statistics by how they end.
NAMES, NUMBER, STATISTICS = ("q", "envelope", "refused"), "number ", " statistics"
NOTE = (
    "q = |Q(x) - x|² / |x|², measured on clients' messages; bits as counted, headers included. The last "
    "column is 1/(4ᴿ - 1), the least q of an unbiased codec on Gaussian vectors at R bits."
)


def codec_table(runs: Sequence[SavedRun]) -> Html:
    """One line per codec and direction; the downlink only if its codec loses something."""
    lines: dict[tuple[str, ...], list[SavedRun]] = {}
    for run in runs:
        for way in ("uplink", "downlink"):
            section = run.config.get(way, {})
            if "name" in section and (way == "uplink" or section["name"] != "identity"):
                lines.setdefault((way, *_words(section)), []).append(run)
    if not lines:
        return tag("p", "No run's settings name a codec.", class_="quiet")
    headings = [
        "codec",
        "used by",
        "bias",
        "q by round",
        "q, mean",
        "q, range",
        "bits per coordinate",
        "least q at that rate",
    ]
    rows = [_line(way, name, parameters, group) for (way, name, parameters), group in lines.items()]
    return Html(table("Codecs", headings, rows, names=4) + tag("p", NOTE, class_="quiet"))


def _words(section: Mapping[str, Any]) -> tuple[str, str]:
    parameters = (f"{key} {value}" for key, value in section.items() if key != "name" and key not in LINK)
    share = ["budgets by client"] * ("budgets" in section) + ["correlated"] * bool(section.get("correlated"))
    return str(section["name"]), ", ".join([*parameters, *share])


def _line(way: str, name: str, parameters: str, runs: Sequence[SavedRun]) -> list[object]:
    q = _errors(runs) if way == "uplink" else []
    bits, bias = _bits(way, runs), _bias(runs[0].config[way])
    least = None if bias == "lossless" else _least(bits)
    methods = ", ".join(dict.fromkeys(run.label for run in runs))
    mean = sum(q) / len(q) if q else None
    return [
        Html(tag("span", f"{name}, {way}") + tag("small", parameters)),
        tag("span", methods, class_="long"),
        bias,
        _spark([run.rows for run in runs if way == "uplink" and run.status != "diverged"]),
        Cell(significant(mean, 3), mean),
        f"{significant(min(q), 3)} – {significant(max(q), 3)}" if q and min(q) < max(q) else NOTHING,  # noqa: RUF001
        Cell(significant(bits, 3), bits),
        Cell(significant(least, 3), least),
    ]


def _errors(runs: Sequence[SavedRun]) -> list[float]:
    """The measured q of every row of runs that did not diverge."""
    rows = (row for run in runs if run.status != "diverged" for row in run.rows)
    return [row["q"] for row in rows if is_number(row.get("q"))]


def rates(runs: Sequence[SavedRun]) -> list[dict[str, Any]]:
    """The bits and the measured q of each label's uplink, if it is lossy, for the chart with the bound."""
    found = []
    for label, group in by_label(runs).items():
        bits, q = _bits("uplink", group), [value for value in _errors(group) if value > 0]
        if bits and q:
            mean, section = sum(q) / len(q), group[0].config.get("uplink", {})
            found.append(
                {
                    "method": label,
                    "x": bits,
                    "y": mean,
                    "low": min(q),
                    "high": max(q),
                    "hollow": "name" in section and _bias(section) == "biased",
                }
            )
    return found


def _codec(section: JsonObject) -> Codec | None:
    """The codec of a link; None for one that is not registered.

    A config can name a codec by its module. A report must not import and run such code, so it is unknown.
    """
    if section.get("name") not in CODECS:
        return None
    try:
        return pick(CODECS, {key: value for key, value in section.items() if key not in LINK}, "codec")
    except FedcomError:
        return None


def _bias(section: JsonObject) -> str:
    """Whether the codec is lossless, unbiased or biased; a dash for one that is not registered."""
    if (codec := _codec(section)) is None:
        return NOTHING
    return "lossless" if codec.lossless else "unbiased" if codec.unbiased else "biased"


def _bits(way: str, runs: Sequence[SavedRun]) -> float | None:
    """Bits per coordinate of the vectors the codec carries.

    Where the ledger does not say how many coordinates that were, the headers tell the number of messages.
    """
    size, coordinates = 0.0, 0.0
    for run in runs:
        d = run.summary.get("parameters")
        sent = run.ledger.get("uplink", ())  # the mean sent down has the same names
        names = {name for name in sent if not (name in NAMES or name.startswith(NUMBER))}
        names = {name for name in names if not name.endswith(STATISTICS)}
        if is_usable(d) and d > 0 and run.ledger:
            codec = _codec(run.config.get(way, {}))
            header = HEADER if codec is None else codec.format.HEADER
            told = run.ledger["numbers"][way]
            for name, parts in run.ledger[way].items():
                if name in names:
                    size += sum(parts.values())
                    coordinates += told.get(name) or d * parts.get("header", 0) / header
    return 8 * size / coordinates if coordinates else None


def _least(bits: float | None) -> float | None:
    return 1 / math.expm1(math.log(4) * bits) if bits and bits < 500 else None


def _spark(runs: Sequence[Sequence[JsonObject]]) -> Html:
    """q over the rounds of the first run, as a small line."""
    q = [row["q"] for row in (runs[0] if runs else ()) if is_number(row.get("q"))]
    if len(q) < 2 or max(q) == 0:
        return Html(NOTHING)
    points = " ".join(f"{90 * i / (len(q) - 1):.1f},{19 - 18 * v / max(q):.1f}" for i, v in enumerate(q))
    line = Html(f'<polyline points="{points}"></polyline>')
    return tag("svg", line, viewBox="-1 -1 92 22", class_="spark", role="img", aria_label="q over the rounds")
