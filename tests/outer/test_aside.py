"""The thread for exchanges beside the training: order, errors, and the end of a process."""

import gc
import subprocess
import sys
import threading

import pytest

from fedcom.outer.aside import Aside
from tests.processes import PATIENCE

BEGIN = """
import threading
from fedcom.outer import aside, links

links.QUIET = 0.01
beside, ended = aside.Aside("beside"), threading.Event()
"""


def test_jobs_are_done_in_order_and_their_errors_are_told() -> None:
    beside, done = Aside("beside"), list[int]()

    def fail() -> None:
        raise ValueError("as a test has it")

    first, wrong, last = (
        beside.submit(job) for job in (lambda: done.append(1), fail, lambda: done.append(2))
    )
    last.result()
    assert done == [1, 2]
    assert first.result() is None
    with pytest.raises(ValueError, match="as a test has it"):
        wrong.result()
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "beside")
    del beside
    gc.collect()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def ended(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BEGIN + code]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)


def test_a_process_that_fails_does_not_wait_for_others() -> None:
    """Here for ever."""
    job = ended("beside.submit(ended.wait)\nraise ValueError('its own')")
    assert job.returncode == 1
    assert "ValueError: its own" in job.stderr


def test_a_process_that_ends_has_sent_its_messages() -> None:
    code = "beside.submit(lambda: threading.main_thread().join() or ended.wait(1) or print('sent'))"
    job = ended(code)
    assert (job.returncode, job.stdout) == (0, "sent\n")
