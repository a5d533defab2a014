"""Run a config and write its folder."""

import sys
from pathlib import Path

from fedcom.config import Config, RunSettings
from fedcom.engines.arguments import Callbacks
from fedcom.runs.given import Given
from fedcom.runs.prepare import prepare, simulation_of
from fedcom.runs.record import Outcome, Start, record


def execute(
    config: RunSettings,
    out: Path,
    *,
    start: Start = "new",
    device: str = "auto",
    quiet: bool = False,
    label: str | None = None,
    callbacks: Callbacks = (),
) -> Outcome:
    """Run a config and write its results into a folder, however the run ends; see `record`.

    Args:
        device: "auto", "cpu", "cuda" or "cuda:1".
    """
    if isinstance(config, Config):
        simulation, config = prepare(config, device)
    else:
        assert isinstance(config, Given)
        simulation = simulation_of(config.task, config, device)
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
        table=config.table() if isinstance(config, Config) else None,
    )
