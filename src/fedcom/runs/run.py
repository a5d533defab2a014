"""Run a config and write its folder."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from fedcom.config import Config, RunSettings
from fedcom.engines.simulation import Row
from fedcom.runs.given import Given
from fedcom.runs.prepare import prepare
from fedcom.runs.record import Outcome, Start, record


def execute(
    config: RunSettings,
    out: Path,
    *,
    start: Start = "new",
    device: str = "auto",
    quiet: bool = False,
    label: str | None = None,
    callbacks: Sequence[Callable[[Row], None]] = (),
) -> Outcome:
    """Run a config and write its results into a folder, however the run ends; see `record`.

    Args:
        device: "auto", "cpu", "cuda" or "cuda:1".
    """
    table = None
    if isinstance(config, Config):
        simulation, config = prepare(config, device)
        table = config.table()
    else:
        simulation = prepare(cast(Given, config), device)[0]
    label = label or config.algorithm.name
    if simulation.why_rates is not None and not quiet:
        print(f"fedcom: {label}: auto rates: {simulation.why_rates}", file=sys.stderr)
    return record(
        simulation,
        out,
        start=start,
        label=label,
        target=config.run.target_accuracy,
        minutes=config.run.checkpoint_minutes,
        rounds=config.run.checkpoint_rounds,
        on_divergence=config.run.on_divergence or "stop",
        quiet=quiet,
        callbacks=callbacks,
        log=config.run.log or (),
        table=table,
    )
