"""Replies that were refused, and why: counted, entered in the ledger, and in a log that stays short."""

import json
import logging
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from fedcom.traffic.ledger import Ledger

log = logging.getLogger("fedcom")
AUDIT = "audit.jsonl"  # who was counted in which round, and the hashes of their replies

Reason = Literal[
    "late",
    "repeated",
    "unasked",
    "oversized",
    "malformed",
    "other version",
    "not finite",
    "other settings",
    "wrong job",
    "wrong client",
    "wrong round",
    "state lost",
    "failed",
    "another node",
]


class Faults:
    """Counts refused replies; of each client and reason, one in a round is logged.

    Args:
        path: of a file with one JSON object per line; None: only Python's log is written.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.counts: Counter[str] = Counter()
        self._logged: set[tuple[int, str]] = set()

    def next_round(self) -> None:
        """A round begins."""
        self._logged.clear()

    def refuse(
        self, round_index: int, client: int, reason: Reason, detail: str, nbytes: int, ledger: Ledger
    ) -> None:
        """Enter a refused reply.

        Args:
            client: a number that no client has stands for all such.
        """
        self.counts[reason] += 1
        ledger.add("uplink", "refused", {reason: nbytes})
        if (client, reason) not in self._logged:
            self._logged.add((client, reason))
            log.warning("round %d: client %d is refused: %s (%s)", round_index, client, reason, detail)
            self.note(round_index, client=client, refused=reason, detail=detail, bytes=nbytes)

    def name_long(
        self, round_index: int, client: int, lengths: dict[str, float], medians: dict[str, float]
    ) -> None:
        """Enter that a client's vectors are far longer than the others'; they count all the same.

        Args:
            lengths: of the vectors, in the model's units.
            medians: of the round.
        """
        log.warning(
            "round %d: client %d sent a vector of norm %.3g, where the median is %.3g",
            round_index,
            client,
            max(lengths.values()),
            medians[max(lengths, key=lengths.__getitem__)],
        )
        self.note(round_index, client=client, long=lengths, median=medians)

    def leave_out(self, round_index: int, client: int, until: int) -> None:
        """Enter that a client is left out for some rounds, as it has offended repeatedly."""
        log.warning("round %d: client %d is left out until round %d", round_index, client, until)
        self.note(round_index, client=client, left_out_until=until)

    def note(self, round_index: int, **facts: Any) -> None:
        """Write a line to the log file."""
        if self.path is not None:
            _append(self.path, {"round": round_index, **facts})

    def audit(self, round_index: int, session: int, counted: Mapping[int, str], void: bool) -> None:
        """Write who was counted in a round into AUDIT beside the log file.

        Args:
            session: how often the server has been started.
            counted: the SHA-256 of each client's reply.
        """
        if self.path is not None:
            facts = {"round": round_index, "session": session, "void": void, "counted": counted}
            _append(self.path.with_name(AUDIT), facts)


def _append(path: Path, facts: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(facts) + "\n")
