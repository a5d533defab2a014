"""The Markdown page of a study, and the page with the verdicts of all studies."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedcom.formats import NOTHING, megabytes, significant
from fedcom.reports.markdown import markdown_table
from fedcom.reproduce.panels import Scale, shown
from fedcom.reproduce.results import (
    FAILS,
    HOLDS,
    MARKS,
    PARTLY,
    RULE,
    StudyResults,
    Verdict,
    without_sections,
)
from fedcom.saving.whole import write_json, write_text

if TYPE_CHECKING:
    from fedcom.reproduce.study import Study

NONE_YET = "The points that a claim compares have not all run."


def study_page(
    study: "Study", results: StudyResults, verdicts: Sequence[Verdict], images: Sequence[str]
) -> str:
    """The page of a study: claims, settings, command, figures, verdicts and numbers.

    Args:
        images: names of the image files beside the page.
    """
    scale, devices = results.scale, {d for r in results.records for d in r.get("device", "").split(", ") if d}
    seeds = "" if scale.seeds == Scale.usual(scale.quick) else f" --seeds {scale.seeds}"
    parts = [
        f"# {study.title}",
        "What it is about:" if study.beyond else "What the paper says:",
        "\n".join(f"- {claim}" for claim in study.claims),
        "Settings:",
        "\n".join(f"- {_heading(results, panel.name)}" for panel in results.panels),
        study.notes,
        *_untuned(results),
        *_left_out(results),
        f"Run on: {', '.join(sorted(devices))}.",
        f"`fedcom reproduce {study.name}{' --quick' * scale.quick}{seeds}` repeats it"
        + (f", with {' '.join(scale.overrides)}." if scale.overrides else "."),
        *(f"![{study.title}]({image})" for image in images),
        caption(verdicts) if images and verdicts else "",
        "## Verdict",
        "\n".join(_line(v.table()) for v in verdicts) or NONE_YET,
        RULE,
        *(_measured(results) if study.table is None else _tables(study.table, results)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def write_study(out: Path, verdicts: Sequence[Verdict], page: str) -> None:
    """Write a study's verdicts and its page into its folder."""
    write_json(out / "verdicts.json", [verdict.table() for verdict in verdicts])
    write_text(out / "README.md", page)


def caption(verdicts: Sequence[Verdict]) -> str:
    """What a study's figures show: its claims with the marks of their verdicts."""
    return "*What it shows: " + " ".join(f"{MARKS[v.outcome]} {v.claim}" for v in verdicts) + "*"


def _line(verdict: Mapping[str, str]) -> str:
    v = verdict
    return f"- {MARKS[v['outcome']]} **{v['outcome']}**: {v['claim']} {v['numbers']} ({v['setting']})"


def _heading(results: StudyResults, name: str) -> str:
    """The setting of a panel, after its name if there are others and the setting does not begin with it."""
    words = results.setting(name)
    return words if len(results.panels) == 1 or words.startswith(f"{name},") else f"{name}: {words}"


def _untuned(results: StudyResults) -> list[str]:
    """One sentence per panel with labels that were not tuned."""
    return [
        f"Not tuned in panel {p.name}, so at the rates of their methods: {'; '.join(map(shown, p.untuned))}."
        for p in results.panels
        if p.untuned
    ]


def _left_out(results: StudyResults) -> list[str]:
    """One sentence per panel with points that are not run yet."""
    return [
        f"Not run yet in panel {p.name}: {'; '.join(map(shown, p.left_out))}."
        for p in (*results.panels, *results.missing)
        if p.left_out
    ]


def _tables(table: Callable[[StudyResults, str], list[dict[str, Any]]], results: StudyResults) -> list[str]:
    """The study's own table of each panel."""
    parts = ["## Measured"]
    for panel in results.panels:
        lines = table(results, panel.name)
        heads = [key.replace("_", " ") for key in lines[0]]
        cells = [
            [shown(v) if isinstance(v, str) else significant(v, 4) for v in line.values()] for line in lines
        ]
        parts += [
            f"{_heading(results, panel.name)}:",
            markdown_table(heads, cells, "l" + "r" * len(heads[1:])),
        ]
    return parts


def _measured(results: StudyResults) -> list[str]:
    """One table per panel: the final scores and bytes of each method at each point of the grid."""
    scored = any("train_loss" in row for record in results.records for row in record["rows"])
    parts = ["## Measured"] if scored else []
    for panel in results.panels if scored else []:
        runs = [(r["method"], without_sections(r["point"])) for r in results.runs(panel.name)]
        lines = [
            [shown(method), *map(str, point.values()), *_cells(results, panel.name, method, point)]
            for i, (method, point) in enumerate(runs)
            if (method, point) not in runs[:i]
        ]
        if lines:
            heads = ["method", *runs[0][1], "loss", "accuracy", "up MB per client", "down MB per client"]
            parts.append(f"{_heading(results, panel.name)}:" if len(results.panels) > 1 else "")
            parts.append(markdown_table(heads, lines, "l" + "r" * (len(heads) - 1)))
    return parts


def _cells(results: StudyResults, panel: str, method: str, point: Mapping[str, Any]) -> list[str]:
    scores = (results.final(panel, method, key, **point) for key in ("train_loss", "test_accuracy"))
    sent = (results.sent(panel, method, key, **point) for key in ("uplink_bytes", "downlink_bytes"))
    return [*map(str, scores), *(megabytes(bytes_.mean) for bytes_ in sent)]


def verdicts_page(verdicts: Mapping[str, Sequence[Mapping[str, str]]]) -> str:
    """The page with a board of all verdicts at a glance, and then one line per claim.

    Args:
        verdicts: the content of verdicts.json, by the name of the study.
    """
    parts = [
        "# Verdicts",
        _count([v["outcome"] for own in verdicts.values() for v in own]),
        "Written from the studies' verdicts.json; `fedcom reproduce all` repeats them.",
        _board(verdicts),
        RULE,
    ]
    for name, own in verdicts.items():
        parts += [f"## {name}", "\n".join(map(_line, own)) or NONE_YET]
    return "\n\n".join(parts) + "\n"


def _count(outcomes: Sequence[str]) -> str:
    """How many claims hold, hold in part, and do not."""
    holds, partly, fails = (outcomes.count(outcome) for outcome in (HOLDS, PARTLY, FAILS))
    return f"**{len(outcomes)} claims: {holds} hold, {partly} hold in part, {fails} do not hold here.**"


def _board(verdicts: Mapping[str, Sequence[Mapping[str, str]]]) -> str:
    """One mark per claim, one line per study, the sums below."""

    def row(name: str, own: Sequence[Mapping[str, str]], marks: str) -> list[str]:
        ends = [v["outcome"] for v in own]
        return [name, marks, *(str(ends.count(outcome) or "") for outcome in MARKS)]

    rows = [
        row(f"[{name}](#{name})", own, "".join(MARKS[v["outcome"]] for v in own) or NOTHING)
        for name, own in verdicts.items()
    ]
    rows.append(row("all", [v for own in verdicts.values() for v in own], ""))
    heads = ["study", "claims", *(f"{mark} {outcome}" for outcome, mark in MARKS.items())]
    return markdown_table(heads, rows, "llrrrr")


def read_verdicts(folder: Path, names: Sequence[str]) -> dict[str, list[dict[str, str]]]:
    """The verdicts of the named studies that a folder has, in order of the names."""
    files = {name: folder / name / "verdicts.json" for name in names}
    return {name: json.loads(file.read_text()) for name, file in files.items() if file.is_file()}
