"""What became of a job's real clients, told from the files that its server keeps: faults and audit."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedcom.engines.remote.faults import AUDIT
from fedcom.formats import counted, duration
from fedcom.runs.files import FAULTS, json_lines

_LONG = 3  # rounds in a row after which a client that is missing is named
_MOST = 10  # clients that one line names


@dataclass(frozen=True)
class Clients:
    """How a job's clients stand.

    Args:
        round: the last one, from 0 on.
        counted: how many clients were counted in it.
        called: how many were called.
        seconds: since it ended.
        missing: clients that were called and not counted for three rounds or more in a row; how many.
        left_out: clients that are not called, and until which round; None: for good.
        refused: replies by reason; of each client, reason and round one is known.
        void: rounds with too few replies.
        starts: how often the server was started.
    """

    round: int
    counted: int
    called: int
    seconds: float | None
    missing: dict[int, int] = field(default_factory=dict)
    left_out: dict[int, int | None] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    void: int = 0
    starts: int = 1


def clients_of(out: Path) -> Clients | None:
    """How the clients of the job in a folder stand; None if it has none, or no round is over."""
    rounds = {line["round"]: line for line in _lines(out / AUDIT) if _sound(line)}  # the last of each counts
    if not rounds:
        return None
    last, missing = rounds[max(rounds)], Counter[int]()
    for _, line in sorted(rounds.items()):
        missing.update(_numbers(line["missing"]))
        for client in line["counted"]:
            missing.pop(int(client), None)
    faults, left_out = list(_lines(out / FAULTS)), dict[int, int | None]()
    for fault in faults:
        client, until = fault.get("client"), fault.get("left_out_until")
        if isinstance(client, int) and isinstance(until, int) and until > last["round"] + 1:
            left_out[client] = until
        left_out |= dict.fromkeys(_numbers(fault.get("left_out")))
    return Clients(
        last["round"],
        len(last["counted"]),
        len(last["counted"]) + len(last["missing"]),
        _since(last.get("time")),
        {client: many for client, many in sorted(missing.items()) if many >= _LONG},
        dict(sorted(left_out.items())),
        dict(Counter(fault["refused"] for fault in faults if isinstance(fault.get("refused"), str))),
        sum(bool(line["void"]) for line in rounds.values()),
        max(line["session"] for line in rounds.values()),
    )


def words(found: Clients) -> list[str]:
    """How clients stand in words, one line for each thing to say."""
    ago = "" if found.seconds is None else f", {duration(found.seconds)} ago"
    lines = [f"{found.counted} of {found.called} clients counted in the last round{ago}"]
    if found.missing:
        named = {client: counted(many, "round") for client, many in found.missing.items()}
        lines.append(f"missing in a row: {_named(named)}")
    if found.left_out:
        named = {c: "for good" if r is None else f"until round {r}" for c, r in found.left_out.items()}
        lines.append(f"left out: {_named(named)}")
    if found.refused:
        lines.append(f"refused: {', '.join(f'{many} {reason}' for reason, many in found.refused.items())}")
    if found.void:
        lines.append(counted(found.void, "void round"))
    if found.starts > 1:
        lines.append(f"the server was started {found.starts} times")
    return lines


def _named(facts: Mapping[int, str]) -> str:
    """Clients and what is said of each; of many, the first."""
    shown = [f"client {client} {fact}" for client, fact in list(facts.items())[:_MOST]]
    return ", ".join(shown + [f"and {len(facts) - _MOST} more"] * (len(facts) > _MOST))


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects in a file's lines; none if the file cannot be read."""
    with suppress(OSError):
        yield from json_lines(path)


def _sound(line: Mapping[str, Any]) -> bool:
    kinds = {"round": int, "session": int, "counted": dict, "missing": list, "void": bool}
    known = all(isinstance(line.get(key), kind) for key, kind in kinds.items())
    return known and all(client.isdecimal() for client in line["counted"])


def _numbers(clients: object) -> list[int]:
    return [client for client in clients if isinstance(client, int)] if isinstance(clients, list) else []


def _since(time: object) -> float | None:
    """Seconds since a time, as the audit has it."""
    with suppress(ValueError, TypeError):
        return max(0.0, (datetime.now(UTC) - datetime.fromisoformat(str(time))).total_seconds())
    return None
