"""A study as a page, and the verdicts of all of them as one."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedcom.formats import megabytes
from fedcom.reports.markdown import markdown_table
from fedcom.reproduce.results import RULE, Results, Stat, Verdict, short

if TYPE_CHECKING:
    from fedcom.reproduce.study import Study


def study_page(study: "Study", results: Results, verdicts: Sequence[Verdict], images: Sequence[str]) -> str:
    """The claim, the settings, the command, the figure, the numbers and the verdict."""
    scale = results.scale
    parts = [
        f"# {study.title}",
        "What the paper says:",
        "\n".join(f"- {claim}" for claim in study.claims),
        "Settings:",
        "\n".join(f"- {results.setting(panel.name)}" for panel in results.panels),
        *([study.notes] if study.notes else []),
        f"Run on: {', '.join(sorted({r['device'] for r in results.records if 'device' in r}))}.",
        f"`fedcom reproduce {study.name}{' --quick' * scale.quick}` repeats it"
        + (f", with {' '.join(scale.overrides)}." if scale.overrides else "."),
        *(f"![{study.title}]({image})" for image in images),
        "## Verdict",
        "\n".join(f"- **{v.outcome}**: {v.claim} {v.numbers} ({v.setting})" for v in verdicts),
        RULE,
        *_measured(results),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _measured(results: Results) -> list[str]:
    """A table a panel: where each method ended, at each point of the grid."""
    scored = any("train_loss" in row for record in results.records for row in record["rows"])
    parts = ["## Measured"] if scored else []
    for panel in results.panels if scored else []:
        rows: list[tuple[list[str], list[str]]] = []
        for record in results.runs(panel.name):
            point = short(record["point"])
            row = [record["method"], *map(str, point.values())]
            if row not in [r[0] for r in rows]:
                rows.append((row, _cells(results, panel.name, record["method"], point)))
        if rows:
            keys = list(short(results.runs(panel.name)[0]["point"]))
            heads = ["method", *keys, "loss", "accuracy", "up MB a client", "down MB a client"]
            parts.append(f"{results.setting(panel.name)}:" if len(results.panels) > 1 else "")
            lines = [[*row, *cells] for row, cells in rows]
            parts.append(markdown_table(heads, lines, "l" + "r" * (len(heads) - 1)))
    return parts


def _cells(results: Results, panel: str, method: str, point: Mapping[str, Any]) -> list[str]:
    loss, accuracy = (results.final(panel, method, key, **point) for key in ("train_loss", "test_accuracy"))
    return [
        str(loss),
        str(accuracy),
        *(_bytes(results, panel, method, key, point) for key in ("uplink_bytes", "downlink_bytes")),
    ]


def _bytes(results: Results, panel: str, method: str, key: str, point: Mapping[str, Any]) -> str:
    ends = [r["rows"][-1].get(key) for r in results.runs(panel, method, **point) if r["rows"]]
    return megabytes(Stat(tuple(ends), key).mean) if ends else "—"


def verdicts_page(verdicts: Mapping[str, Sequence[Mapping[str, str]]]) -> str:
    """Every claim in one line, by study."""
    parts = [
        "# Verdicts",
        "Written from the studies' verdicts.json; `fedcom reproduce all` repeats them.",
        RULE,
    ]
    for name, own in verdicts.items():
        lines = [f"- **{v['outcome']}**: {v['claim']} {v['numbers']} ({v['setting']})" for v in own]
        parts += [f"## {name}", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def read_verdicts(folder: Path, names: Sequence[str]) -> dict[str, list[dict[str, str]]]:
    """The verdicts of the studies that a folder has, in order."""
    import json

    files = {name: folder / name / "verdicts.json" for name in names}
    return {name: json.loads(file.read_text()) for name, file in files.items() if file.is_file()}
