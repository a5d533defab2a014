"""Llama models and adapters against transformers and peft, in an environment of their own (make hf)."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-hf" / "bin" / "python"
MISSING = None if PYTHON.exists() else "needs transformers and peft in .venv-hf (make hf)"


@pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
def test_they_agree(tmp_path: Path) -> None:
    quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "OMP_NUM_THREADS": "1"}
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [PYTHON, "-m", "tests.tasks.inside_hf", tmp_path],
        env={**os.environ, **quiet, "PYTHONPATH": paths},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
