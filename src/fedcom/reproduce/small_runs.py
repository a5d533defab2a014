"""Measurements on problems so small that each runs in one thread, several of them at once."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from fedcom.runs.display import progress
from fedcom.runs.files import append, json_lines, open_log


class SmallRun(Protocol):
    """Something to measure, which can be sent to another process."""

    @property
    def key(self) -> str:
        """The text that identifies it in a file of results."""

    def run(self) -> Any:
        """What was found, as plain data."""


J = TypeVar("J", bound=SmallRun)


def measure_all(
    work: Sequence[J],
    path: Path,
    title: str,
    quiet: bool = False,
    workers: int | None = None,
    time: Callable[[J], float] | None = None,
) -> list[tuple[J, Any]]:
    """Each job with what it found; what the file does not have yet is run, and appended as each one ends.

    Args:
        path: the file of results, one JSON object per line.
        title: in the progress display.
        quiet: show no progress.
        workers: processes to use; None for one per core.
        time: about how long a job takes, so that no long one starts last; None: they are alike.
    """
    known = {record["key"]: record["rows"] for record in json_lines(path)}
    pending = [job for job in work if job.key not in known]
    pending = pending if time is None else sorted(pending, key=time, reverse=True)
    with open_log(path) as log, progress(len(pending), title, quiet) as show:
        for done, (job, rows) in enumerate(_measured(pending, workers or os.cpu_count() or 1), 1):
            append(log, {"key": job.key, "rows": rows})
            known[job.key] = rows
            show.advance(done)
    return [(job, known[job.key]) for job in work]


def _measured(work: Sequence[J], workers: int) -> Iterator[tuple[J, Any]]:
    """Run jobs in several processes of one thread each; yield each with what it found as it ends."""
    if workers == 1 or len(work) < 2:
        yield from ((job, job.run()) for job in work)
        return
    with ProcessPoolExecutor(workers, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        jobs = {pool.submit(job.run): job for job in work}
        for job in as_completed(jobs):
            yield jobs[job], job.result()
