"""A thread that does one job after another beside the training, and does not keep a process that fails."""

import sys
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread, current_thread

from fedcom.outer import links

Jobs = SimpleQueue[tuple[Future[None], Callable[[], None]] | None]


class Aside:
    """Does jobs in their order. A process waits for them at its end; for a minute, if it ends in an error.

    With a ThreadPoolExecutor it would wait as long as others do not answer, and these hear of no failure.
    """

    def __init__(self, name: str) -> None:
        self._jobs: Jobs = SimpleQueue()
        thread = Thread(target=_work, args=(self._jobs,), name=name, daemon=True)
        thread.start()
        weakref.finalize(self, _end, self._jobs, thread)

    def submit(self, job: Callable[[], None]) -> Future[None]:
        """Do a job; the future raises what it raises."""
        future = Future[None]()
        self._jobs.put((future, job))
        return future


def _work(jobs: Jobs) -> None:
    while (given := jobs.get()) is not None:
        future, job = given
        try:
            job()
            future.set_result(None)
        except BaseException as error:  # it is raised where the future is waited for
            future.set_exception(error)
        del given, future, job  # they hold the Outer, whose end ends this thread


def _end(jobs: Jobs, thread: Thread) -> None:
    jobs.put(None)
    if thread is not current_thread():
        failed = getattr(sys, "last_value", None) is not None
        thread.join(links.QUIET if failed else None)
