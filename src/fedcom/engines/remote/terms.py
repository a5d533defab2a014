"""What a coordinator expects of its clients: `[round]` in a config."""

import math
from dataclasses import dataclass

from fedcom import settings
from fedcom.errors import ConfigError

_LONGEST_PAUSE = 60.0


@dataclass(frozen=True)
class Terms:
    """How long a round waits, for whom, and what it tolerates; a simulation does not use it.

    Args:
        deadline: seconds after which a round is closed with the replies that have come.
        least: the share of the called clients that must reply in time; with fewer the round is void.
        clip: the largest norm, in the model's units, of what the server hears of a client; longer vectors are
            scaled down to it, and the client is told. None: no limit.
        clip_times: the same with a largest norm of so many times the median of the round's replies, which
            wait on the disk until all have come. None: no such limit.
        restarts: how often a client may say that its state is lost, which makes all others start anew; the
            next time it is left out of the rest of the job.
        offences: after so many replies in a row that are malformed, or far longer than the others', a client
            is left out for `rest` rounds.
        rest: see `offences`.
        void: after so many void rounds in a row the run ends.
        pause: seconds to wait after a void round; twice as many after the next one in a row, and so on, up to
            a minute.
        metrics_port: where a monitor on the server's machine finds figures of the job, as Prometheus reads
            them: http://127.0.0.1:PORT/metrics. None: nowhere.
        rebind: whether a client's number may pass to a node with another key, as when a machine is replaced.
    """

    deadline: float = 600.0
    least: float = 0.5
    clip: float | None = None
    clip_times: float | None = None
    restarts: int = 3
    offences: int = 3
    rest: int = 10
    void: int = 10
    pause: float = 1.0
    rebind: bool = False
    metrics_port: int | None = None

    def __post_init__(self) -> None:
        settings.check(self)
        checks = {
            "deadline": (self.deadline > 0, "above 0 seconds"),
            "least": (0 <= self.least <= 1, "a share, from 0 to 1"),
            "clip": (self.clip is None or self.clip > 0, "above 0"),
            "clip_times": (self.clip_times is None or self.clip_times >= 1, "1 or more"),
            "restarts": (self.restarts >= 0, "0 or more"),
            "offences": (self.offences >= 1, "1 or more"),
            "rest": (self.rest >= 0, "0 or more"),
            "pause": (self.pause >= 0, "0 or more"),
            "metrics_port": (self.metrics_port is None or 0 <= self.metrics_port < 2**16, "a port"),
            "void": (self.void >= 1, "1 or more"),
        }
        for key, (holds, rule) in checks.items():
            if not holds:
                raise ConfigError(f"round.{key} must be {rule}; got {getattr(self, key)}")

    def wait(self, void: int) -> float:
        """Seconds to wait after so many void rounds in a row."""
        return min(self.pause * 2.0 ** min(void - 1, 10), _LONGEST_PAUSE) if void else 0.0

    def needed(self, called: int) -> int:
        """How many of the called clients must reply; at least one."""
        return max(1, math.ceil(self.least * called - 1e-9))
