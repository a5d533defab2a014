"""What `fedcom reproduce` does: the studies it was asked for, one after another."""

import sys
from collections.abc import Sequence
from pathlib import Path

from fedcom.errors import ConfigError, DataError, unknown
from fedcom.reproduce import STUDIES, rates, study_page
from fedcom.reproduce.panels import Scale
from fedcom.reproduce.results import Verdict
from fedcom.reproduce.runner import reproduce
from fedcom.reproduce.tables.study import play_tables

NAMES = (*STUDIES, "tables")
WHAT = f"{', '.join(NAMES)}, all, or rates and the data sets to tune them on; then overrides."
QUICK = "20 clients, 30 rounds (CIFAR-10: 10) and one seed; tables: fewer steps and seeds."
OUT = "runs/reproduce, or runs/reproduce-quick"


def run(
    what: Sequence[str], quick: bool, seeds: int | None, out: Path | None, device: str, quiet: bool
) -> None:
    """Reproduce studies, or tune rates; studies that lack their data are told of, and fail at the end."""
    names = [word for word in what if "=" not in word]
    scale = Scale(quick, seeds or (1 if quick else 3), tuple(word for word in what if "=" in word))
    out = out or Path("runs") / ("reproduce-quick" if quick else "reproduce")
    if names[:1] == ["rates"]:
        for data in names[1:] or rates.GRIDS:
            print(f"rates in {rates.tune(data, scale, out / 'rates', device, quiet)}")
        return
    failed = [error for name in chosen(names) if (error := _reproduce(name, scale, out, device, quiet))]
    text = study_page.verdicts_page(study_page.read_verdicts(out, NAMES))
    (out / "VERDICTS.md").write_text(text, encoding="utf-8")
    if failed:
        raise failed[0]


def chosen(names: Sequence[str]) -> list[str]:
    """The studies some names mean: one each, those that begin with it (frontier), or all."""
    if not names:
        raise ConfigError(f"which study? {', '.join(NAMES)}, or all")
    meant: list[str] = []
    for name in names:
        own = [study for study in NAMES if name in ("all", study) or study.startswith(f"{name}-")]
        if not own:
            raise unknown("study", name, (*NAMES, "frontier", "all", "rates"))
        meant += own
    return list(dict.fromkeys(meant))


def _reproduce(name: str, scale: Scale, out: Path, device: str, quiet: bool) -> DataError | None:
    """One study and its verdicts, or the error of data that is not there."""
    try:
        verdicts = _play(name, scale, out / name, device, quiet)
    except DataError as error:
        print(f"fedcom: {name} needs data: {error}", file=sys.stderr)
        return error
    for verdict in verdicts:
        print(f"{name}: {verdict.outcome}: {verdict.claim} {verdict.numbers}")
    print(f"{name}: figure, points and page in {out / name}")
    return None


def _play(name: str, scale: Scale, out: Path, device: str, quiet: bool) -> list[Verdict]:
    """A study of runs, or the tables, whose problems are too small to be runs."""
    if name in STUDIES:
        return reproduce(STUDIES[name], scale, out, device, quiet)
    return play_tables(scale, out, device, quiet)
