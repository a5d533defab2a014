"""What `fedcom reproduce` does: run the studies it is asked for, one after another, or tune rates."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from fedcom.errors import ConfigError, DataError, flag, unknown
from fedcom.reproduce import STUDIES, rates, study_page
from fedcom.reproduce.bounds.theory_runner import reproduce_theory
from fedcom.reproduce.panels import Scale
from fedcom.reproduce.results import NOT_RUN, Verdict
from fedcom.reproduce.runner import reproduce
from fedcom.reproduce.tables.tables_runner import reproduce_tables
from fedcom.saving.whole import write_text

# Studies with code of their own, as their problems are so small; they run on all cores of the CPU.
SMALL = {"tables": reproduce_tables, "theory": reproduce_theory}
NAMES = (*STUDIES, *SMALL)


def run(
    what: Sequence[str],
    quick: bool,
    seeds: int | None,
    out: Path | None,
    device: str,
    quiet: bool,
    only: Sequence[str] = (),
) -> None:
    """Reproduce studies, or tune rates. If data is missing, the rest is done, and its error is raised last.

    Args:
        what: names of studies, or "rates" and data sets or studies; and overrides such as "run.rounds=10".
        quick: the small version of each study.
        seeds: seeds per run, or on which the best rates are confirmed; None for the study's own number.
        out: the folder of all results; None for the default under runs/.
        device: "auto", "cpu" or "cuda".
        quiet: show no progress.
        only: the panels and points of the studies that are run or tuned; empty: all.
    """
    names = [word for word in what if "=" not in word]
    overrides = tuple(word for word in what if "=" in word)
    scale = Scale(quick, seeds or Scale.usual(quick), overrides, tuple(only))
    out = out or Path("runs") / ("reproduce-quick" if quick else "reproduce")
    if names[:1] == ["rates"]:
        for name in names[1:] or rates.GRIDS:
            for path in _tune(name, scale, out / "rates", device, quiet, seeds):
                print(f"rates in {path}")
        return
    failed = []
    for name in chosen(names):
        usual = STUDIES[name].seeds if name in STUDIES and not quick else scale.seeds
        own = replace(scale, seeds=seeds or usual)
        failed += [error for error in [_run_and_print(name, own, out, device, quiet)] if error]
    text = study_page.verdicts_page(study_page.read_verdicts(out, NAMES))
    write_text(out / "VERDICTS.md", text)
    if failed:
        raise failed[0]


def _tune(name: str, scale: Scale, out: Path, device: str, quiet: bool, seeds: int | None) -> Iterator[Path]:
    """Tune the methods on a data set, or the points of studies; yield the files of rates.

    What cannot be tuned does not keep the rest from it; the first error is raised last.
    """
    if name in rates.GRIDS:
        if scale.only:
            raise ConfigError(
                f"rates of a data set are tuned for all methods at once; leave out {flag('only')}"
            )
        yield rates.tune(name, scale, out, device, quiet, seeds)
        return
    studies = [STUDIES[study] for study in chosen([name]) if study in STUDIES]
    panels = [p for study in studies for p in study.panels(scale, tuning=True)]
    if not any(p.rates for p in panels):
        tuned = [s for s in STUDIES if any(p.rates for p in STUDIES[s].panels(Scale(), tuning=True))]
        raise unknown("data set or study to tune rates for", name, (*rates.GRIDS, *tuned))
    failed = []
    for p in panels:
        if p.rates and p.tunes != {}:
            try:
                yield rates.tune_panel(p, out, device, quiet, seeds)
            except ConfigError as error:
                failed.append(error)
    if failed:
        raise failed[0]


def chosen(names: Sequence[str]) -> list[str]:
    """The studies that names stand for: a study, those whose names begin with it (frontier), or all."""
    if not names:
        raise ConfigError(f"which study? {', '.join(NAMES)}, or all")
    meant: list[str] = []
    for name in names:
        if name == "rates":
            raise ConfigError("'rates' comes first, as in `fedcom reproduce rates mnist`")
        own = [study for study in NAMES if name in ("all", study) or study.startswith(f"{name}-")]
        if not own:
            raise unknown("study", name, (*NAMES, "frontier", "all", "rates"))
        meant += own
    return list(dict.fromkeys(meant))


def _run_and_print(name: str, scale: Scale, out: Path, device: str, quiet: bool) -> DataError | None:
    """Run one study and print its verdicts; return the error if some of its data is missing."""
    try:
        verdicts = _run_study(name, scale, out / name, device, quiet)
    except DataError as error:
        return error
    for verdict in verdicts:
        print(f"{name}: {verdict.outcome}: {verdict.claim} {verdict.numbers}")
    if scale.only and not STUDIES[name].in_part:
        print(f"{name}: the page is written when all points are run; leave out {flag('only')}")
        return None
    print(f"{name}: figure, points and page in {out / name}")
    missing = [verdict for verdict in verdicts if verdict.outcome == NOT_RUN]
    return DataError(f"{name}: {missing[0].numbers}") if missing else None


def _run_study(name: str, scale: Scale, out: Path, device: str, quiet: bool) -> list[Verdict]:
    if name in STUDIES:
        return reproduce(STUDIES[name], scale, out, device, quiet)
    if scale.overrides:
        raise ConfigError(f"{name} has no config that {scale.overrides[0]!r} could override; leave it out")
    if scale.only:
        raise ConfigError(f"{name} has no points that can be run alone; leave out {flag('only')}")
    return SMALL[name](scale, out, quiet)
