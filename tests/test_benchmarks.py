"""The benchmarks run, on jobs too small to measure anything."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import program

ROOT = Path(__file__).parent.parent


def run(module: str, *arguments: str) -> str:
    code = f"import runpy, sys\nsys.path.insert(0, '')\nsys.argv[1:] = {list(arguments)!r}\n"
    done = program(ROOT, f"{code}runpy.run_module('benchmarks.{module}', run_name='__main__')")
    assert done.code == 0, done.err
    return done.out


@pytest.mark.thorough
def test_contenders_are_measured_side_by_side(tmp_path: Path) -> None:
    results = tmp_path / "runs.json"
    short = ("--job", "tiny", "--rounds", "1", "--repeats", "1", "--json", str(results))
    out = run("peers", "--only", "fedcom-fedcomgate,loop-single", *short)
    assert "| fedcom-fedcomgate |" in out
    assert "| times as fast as | loop-single |" in out
    (measured,) = json.loads(results.read_text())["runs"]
    assert all(result["seconds"] > 0 and result["bytes"] > 1e7 for result in measured.values())


@pytest.mark.thorough
@pytest.mark.parametrize("job", ["tiny-cnn", "tiny-transformer"])
def test_other_models_are_measured_too(job: str) -> None:
    out = run("peers", "--only", "fedcom-fedavg,loop-single", "--job", job, "--rounds", "1", "--repeats", "1")
    assert "| fedcom-fedavg |" in out
    assert "| loop-single |" in out


def test_fused_steps_are_those_of_torch() -> None:
    pytest.importorskip("triton", reason="triton comes with torch for CUDA")
    sizes = ["--clients", "3", "--batch", "7", "--sizes", "37,20,18,5"]
    out = subprocess.run(
        [sys.executable, "-m", "benchmarks.fused_steps", *sizes],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
    ).stdout
    assert float(out.split()[-1]) < 1e-5


def test_steps_of_convolutions_are_timed() -> None:
    out = run("convolutions", "--repeats", "1")
    assert out.count("\n| lenet, ") == 2


def test_bounds_are_told_for_every_method() -> None:
    out = run("bounds", "--job", "tiny", "--rounds", "1", "--repeats", "1")
    rows = [line.split("|")[1:-1] for line in out.splitlines() if line.startswith("| Fed")]
    assert len(rows) == 3
    assert all(re.fullmatch(r"[\d,]+(\.\d+)?", cell.strip()) for row in rows for cell in row[1:])  # no nan


def test_scaling_prints_one_line_per_point() -> None:
    out = run("scaling", "--sizes", "3,4", "--job", "tiny", "--rounds", "1", "--repeats", "1")
    points = [line.split("|")[1].strip() for line in out.splitlines() if line.startswith("|")]
    assert [p for p in points if p[0].isdigit()] == ["10^3", "10^4", "1", "0.5"]


def test_rounds_and_a_sweep_are_timed() -> None:
    out = run("rounds", "--device", "cpu", "--job", "tiny", "--rounds", "2", "--repeats", "1")
    lines = [line.split("|")[1:-1] for line in out.splitlines() if line.startswith("|")][2:]
    assert [line[0].strip() for line in lines] == ["mlp, eager", "wide, eager", "8 rates x 3 seeds, eager"]
    assert all(float(cell) > 0 for line in lines for cell in line[1:])


@pytest.mark.thorough
def test_ranks_and_transports_are_measured_and_agree_with_one_process() -> None:
    out = run("ranks", "--job", "tiny", "--rounds", "1", "--repeats", "1", "--methods", "fedavg")
    lines = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in out.splitlines() if "fedavg" in line
    ]
    assert [line[1:3] for line in lines] == [["1", ""], ["2", "chain"], ["2", "bytes"], ["2", "reduce"]]
    distance = [float(line[-1]) for line in lines[1:]]
    assert distance[:2] == [0, 0]
    assert distance[2] < 1e-5


def test_the_breakdown_adds_up_and_is_drawn(tmp_path: Path) -> None:
    run("breakdown", "--job", "tiny", "--repeats", "1", "--out", str(tmp_path))
    bars = json.loads((tmp_path / "breakdown.json").read_text())
    assert len(bars) == 3
    for bar in bars.values():
        whole = bar.pop("round")
        assert abs(sum(bar.values()) - whole) < 1e-6 * whole
    assert (tmp_path / "breakdown.png").read_bytes().startswith(b"\x89PNG")


def test_checkpoints_are_timed_beside_runs_without() -> None:
    small = ("--clients", "200", "--sampled", "10", "--hidden", "8", "--tau", "1", "--repeats", "1")
    out = run("checkpoints", *small, "--rounds", "4", "--every", "2")
    assert "d = 578; " in out
    assert "ratio: median " in out
    assert "and writer: median " in out


@pytest.mark.thorough
def test_auto_rates_are_put_beside_a_grid(tmp_path: Path) -> None:
    short = ("--data", "digits", "--rounds", "2", "--device", "cpu", "--out", str(tmp_path))
    out = run("auto_rates", "--methods", "local-sgd", *short)
    assert "| digits | local-sgd, identity |" in out
    assert "of 3 auto runs are within 1.5 points, 0 diverged" in out
