"""The memory of a coordinator grows by a few models, however many replies it hears."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import CHAOS
from tests.engines.remote.weigh import CODECS
from tests.processes import program

ROOT = Path(__file__).parents[3]
REPLIES = 200 if CHAOS else 12


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
@pytest.mark.parametrize("codec", CODECS if CHAOS else ["rotated 0.25"])
def test_memory_grows_by_five_models_at_most(tmp_path: Path, codec: str) -> None:
    made = program(
        tmp_path, f"from tests.engines.remote.weigh import main\nmain('make', {codec!r}, {REPLIES}, '.')"
    )
    assert made.code == 0, made.err
    # In an interpreter of its own: a forked one has free memory, which would hide growth.
    module = ["-m", "tests.engines.remote.weigh"]
    command = [sys.executable, *module, "hear", codec, str(REPLIES), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) <= 5
