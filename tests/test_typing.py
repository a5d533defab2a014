"""mypy --strict accepts what a user writes with every public name."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fedcom

ROOT = Path(__file__).parent.parent
PROGRAM = """
from pathlib import Path

import torch
from torch import Tensor

import fedcom

USED: list[object] = [{used}]
x, y = torch.randn(40, 3), torch.randint(0, 2, (40,))


def own(outputs: Tensor, targets: Tensor) -> float:
    return float((outputs.argmax(-1) == targets).double().mean())


def show(row: fedcom.Row) -> None:
    print(row["round"])


def halves(request: fedcom.SplitRequest) -> list[Tensor]:
    return list(torch.arange(len(request.y)).chunk(2))


task: fedcom.Task = fedcom.Task.from_arrays(torch.nn.Linear(3, 2), x, y, x, y, partition=halves)
simulation = fedcom.Simulation(task, "fedcomgate", fedcom.Int(bits=4), rounds=1, metrics={{"own": own}})
for row in simulation.rows():
    show(row)
results: fedcom.Results = simulation.run([show])
loss: float = results[-1]["train_loss"]
found: fedcom.Comparison = fedcom.compare(task, {{"a": "fedavg", "b": (fedcom.FedCOM(), "topk")}}, rounds=1)
page: Path = fedcom.report(found)
fedcom.plot(found).savefig("a.png")
best: dict[str, dict[str, object]] = fedcom.sweep(task, {{"eta": [0.1, 0.2]}}, rounds=1).best
outcome: fedcom.Outcome = fedcom.record(fedcom.Simulation(task, fedcom.FedAvg()), "runs/a")
fedcom.CODECS.add(fedcom.Int, name="again")
"""


def strict(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Check a user's file by the settings of this project, with what `make types` knows of torch."""
    (folder / "user.py").write_text(program)
    command = [sys.executable, "-m", "mypy", str(folder / "user.py")]
    environment = {**os.environ, "MYPYPATH": "src"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)


def test_mypy_strict_accepts_every_public_name(tmp_path: Path) -> None:
    names = [f"fedcom.{name}" for name in fedcom.__all__]
    assert len(names) > 60
    checked = strict(PROGRAM.format(used=", ".join(names)), tmp_path)
    assert checked.returncode == 0, checked.stdout
    wrong = PROGRAM.format(used="") + "\nfedcom.Simulation(task, 3)\nfedcom.nothing\n"
    checked = strict(wrong, tmp_path)
    assert 'has incompatible type "int"' in checked.stdout
    assert 'has no attribute "nothing"' in checked.stdout


def test_every_public_name_is_there_and_documented() -> None:
    for name in fedcom.__all__:
        thing = getattr(fedcom, name)
        if isinstance(thing, type):  # a dataclass without a docstring is given its signature as one
            assert not (thing.__doc__ or f"{name}(").startswith(f"{name}("), name


def test_the_package_is_imported_without_torch() -> None:
    program = "import sys, fedcom; fedcom.__version__; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=600)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        fedcom.nothing  # noqa: B018
