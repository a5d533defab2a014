"""When a run is to be saved again."""

import time


class SaveTimer:
    """Counts the minutes and the rounds since a run was saved.

    Args:
        minutes: between two checkpoints; 0: none by time.
        rounds: between two checkpoints; None: none by rounds.
    """

    def __init__(self, minutes: float, rounds: int | None) -> None:
        self._minutes, self._rounds = minutes, rounds
        self.restart(0)

    def restart(self, done: int) -> None:
        """Count from now, after that many rounds."""
        self._at, self._done = time.monotonic(), done

    def due(self, done: int) -> bool:
        """Whether a run with that many rounds is to be saved."""
        by_rounds = self._rounds and done - self._done >= self._rounds
        by_time = self._minutes and time.monotonic() - self._at >= 60 * self._minutes
        return bool(by_rounds or by_time)
