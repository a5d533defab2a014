"""What is shipped: the wheel, the configs, the callbacks, and the examples in the docs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fedcom
from fedcom import FedAvg, Simulation
from fedcom.config import read
from fedcom.runs.callbacks import TensorBoard
from fedcom.runs.prepare import prepare
from fedcom.studies.compare import labels, variant
from tests.conftest import mlp_task

ROOT = Path(__file__).parent.parent
CONFIGS = sorted(p for p in ROOT.rglob("experiments/**/*.toml") if p.parent.name != "rates")


def test_the_wheel_installs_and_runs(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", str(tmp_path), str(ROOT)], check=True)
    (wheel,) = tmp_path.glob("fedcom-*.whl")
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site)]
    subprocess.run([*install, str(wheel)], check=True)
    assert (site / "fedcom" / "py.typed").is_file()
    page = ROOT / "src" / "fedcom" / "reports" / "page"
    pieces = {path.name for path in page.iterdir() if path.suffix in (".html", ".css", ".js")}
    assert pieces <= {path.name for path in (site / "fedcom" / "reports" / "page").iterdir()}
    assert len(pieces) >= 3
    assert (site / "fedcom" / "experiments" / "fig4" / "mnist.toml").is_file()
    environment = {**os.environ, "PYTHONPATH": str(site)}
    ask = "import fedcom, sys; print(fedcom.__file__); from fedcom.cli import main; main()"
    command = [sys.executable, "-c", ask, "--version"]
    out = subprocess.run(
        command, check=True, capture_output=True, text=True, env=environment, cwd=tmp_path
    ).stdout
    assert str(site) in out
    assert f"fedcom {fedcom.__version__}" in out


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_shipped_config_runs_a_round(path: Path) -> None:
    """On digits, since the real sets may not be here; their own keys are all checked."""
    settings = ["data.name=digits", "data.clients=10", "model.hidden=8", "run.rounds=1"]
    table = read(path, settings)
    if table["data"].get("partition") == "natural":  # digits have no authors
        table["data"]["partition"] = "iid"
    table["run"]["participation"] = 1.0
    for label in labels(table):
        simulation, _ = prepare(variant(table, label), "cpu")
        first, last = simulation.run()
        assert first["round"] == 0
        assert last["round"] == 1


def test_there_are_shipped_configs() -> None:
    assert len(CONFIGS) >= 4


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_rows_can_be_read_back(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    simulation = Simulation(mlp_task(), FedAvg(tau=2), rounds=3, device="cpu")
    rows = list(simulation.run([TensorBoard(tmp_path)]))
    events = accumulator.EventAccumulator(str(tmp_path)).Reload()
    losses = [(event.step, event.value) for event in events.Scalars("train_loss")]
    assert losses == [(row["round"], pytest.approx(row["train_loss"], rel=1e-6)) for row in rows]
