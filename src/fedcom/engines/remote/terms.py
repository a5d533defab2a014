"""What a coordinator expects of its clients: `[round]` in a config."""

import math
from dataclasses import dataclass

from fedcom import settings
from fedcom.errors import ConfigError


@dataclass(frozen=True)
class Terms:
    """How long a round waits, for whom, and what it puts up with; a simulation has no use for it.

    Args:
        deadline: seconds after which a round is closed with the replies that have come.
        least: the share of the called clients that must reply in time; with fewer the round is void.
        clip: the largest norm, in the model's units, of what the server hears of a client; longer vectors are
            scaled down to it, and the client is told. None: no limit.
        restarts: how often a client may say that its state is lost, for which all others start anew; the next
            time it is left out of the rest of the job.
        void: so many void rounds in a row end the run.
        rebind: whether a client's number may pass to a node with another key, as when a machine is replaced.
    """

    deadline: float = 600.0
    least: float = 0.5
    clip: float | None = None
    restarts: int = 3
    void: int = 10
    rebind: bool = False

    def __post_init__(self) -> None:
        settings.check(self)
        checks = {
            "deadline": (self.deadline > 0, "above 0 seconds"),
            "least": (0 <= self.least <= 1, "a share, from 0 to 1"),
            "clip": (self.clip is None or self.clip > 0, "above 0"),
            "restarts": (self.restarts >= 0, "0 or more"),
            "void": (self.void >= 1, "1 or more"),
        }
        for key, (holds, rule) in checks.items():
            if not holds:
                raise ConfigError(f"round.{key} must be {rule}; got {getattr(self, key)}")

    def needed(self, called: int) -> int:
        """How many of the called clients must reply; at least one."""
        return max(1, math.ceil(self.least * called - 1e-9))
