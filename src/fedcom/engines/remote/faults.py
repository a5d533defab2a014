"""Replies that were refused, and why: counted, entered in the ledger, and in a log that stays short."""

import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from fedcom.saving.whole import disk_errors
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
            client: its number; one and the same number for all senders that are no client.
        """
        self.counts[reason] += 1
        ledger.add("uplink", "refused", {reason: nbytes})
        if (client, reason) not in self._logged:
            self._logged.add((client, reason))
            facts = {"client": client, "refused": reason, "detail": detail, "bytes": nbytes}
            self._tell(f"client {client} is refused: {reason} ({detail})", round_index, facts)

    def name_long(
        self, round_index: int, client: int, lengths: dict[str, float], medians: dict[str, float]
    ) -> None:
        """Enter that a client's vectors are far longer than the others'; they count all the same.

        Args:
            lengths: of the vectors, in the model's units.
            medians: of the round.
        """
        longest = max(lengths, key=lengths.__getitem__)
        self._tell(
            f"client {client} sent a vector of norm {lengths[longest]:.3g}, "
            f"where the median is {medians[longest]:.3g}",
            round_index,
            {"client": client, "long": lengths, "median": medians},
        )

    def leave_out(self, round_index: int, client: int, until: int) -> None:
        """Enter that a client is left out for some rounds, as it has offended repeatedly."""
        facts = {"client": client, "left_out_until": until}
        self._tell(f"client {client} is left out until round {until}", round_index, facts)

    def _tell(self, words: str, round_index: int, facts: Mapping[str, Any]) -> None:
        """Write a line to both logs."""
        log.warning("round %d: %s", round_index, words, extra={"round": round_index, **facts})
        self.note(round_index, **facts)

    def note(self, round_index: int, **facts: Any) -> None:
        """Write a line to the log file."""
        if self.path is not None:
            _append(self.path, {"round": round_index, **facts})

    def audit(
        self,
        round_index: int,
        session: int,
        counted: Mapping[int, str],
        missing: Sequence[int],
        void: bool,
    ) -> None:
        """Write who was counted in a round into AUDIT beside the log file.

        Args:
            session: how often the server has been started.
            counted: the SHA-256 of each client's reply.
            missing: the clients that were called and not counted.
        """
        called, facts = len(counted) + len(missing), {"round": round_index, "session": session, "void": void}
        log.info(
            "round %d: %d of %d clients counted%s",
            round_index,
            len(counted),
            called,
            ", which is too few" if void else "",
            extra={**facts, "counted": len(counted), "called": called, "missing": missing},
        )
        if self.path is not None:
            time = datetime.now(UTC).isoformat(timespec="milliseconds")
            found = {**facts, "time": time, "missing": missing, "counted": counted}
            _append(self.path.with_name(AUDIT), found)


def _append(path: Path, facts: Mapping[str, Any]) -> None:
    with disk_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(facts) + "\n")
