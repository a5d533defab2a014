"""Run a config and write its folder."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

from fedcom.config import Config, RunSettings
from fedcom.config.config import usual_adapter_rates
from fedcom.engines.arguments import Callbacks
from fedcom.runs.given import Given
from fedcom.runs.prepare import prepare, simulation_of
from fedcom.runs.record import Outcome, Start, record

PATIENCE = 3.0  # seconds after which one is told what takes so long


@contextmanager
def _told_if_slow(config: RunSettings, label: str, quiet: bool) -> Iterator[None]:
    """Say after a while that rates are being found, which takes many gradients, if they are."""
    words = f"fedcom: reading the data, and finding the auto rates of {label} from its gradients ..."
    timer = Timer(PATIENCE, print, (words,), {"file": sys.stderr, "flush": True})
    timer.daemon = True
    if not quiet and "auto" in (config.algorithm.eta, config.algorithm.gamma):
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


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
    label = label or config.algorithm.name
    with _told_if_slow(config, label, quiet):
        if isinstance(config, Config):
            simulation, config = prepare(config, device)
        else:
            assert isinstance(config, Given)
            simulation = simulation_of(config.task, config, device)
    if isinstance(config, Config) and (told := usual_adapter_rates(config)) and not quiet:
        print(f"fedcom: adapters of {label}: {told}", file=sys.stderr)
    if simulation.why_rates is not None and not quiet:
        print(f"fedcom: auto rates of {label}: {simulation.why_rates}", file=sys.stderr)
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
