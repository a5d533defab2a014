"""What became of a claim."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass

HOLDS, PARTLY, FAILS = "holds", "holds partly", "does not hold here"


@dataclass(frozen=True)
class Verdict:
    """What became of a claim, with its numbers and where they were measured."""

    claim: str
    outcome: str
    numbers: str
    setting: str

    @classmethod
    def of(cls, claim: str, checks: Iterable[bool], numbers: str, setting: str) -> "Verdict":
        """Holds if every check does, partly if some do."""
        found = list(checks)
        outcome = HOLDS if found and all(found) else PARTLY if any(found) else FAILS
        return cls(claim, outcome, numbers, setting)

    def table(self) -> dict[str, str]:
        """As plain data."""
        return asdict(self)
