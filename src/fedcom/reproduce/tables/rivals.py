"""What the tables say about one method compared with another."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedcom.reproduce.results import FAILS, HOLDS, PARTLY, Verdict
from fedcom.reproduce.tables.checks import Check
from fedcom.reproduce.tables.measured import MeasuredRounds


@dataclass(frozen=True)
class Rival:
    """A comparison of two methods at the last value of a factor at which both reached the accuracy.

    Args:
        table: the number of the table.
        claim: in a sentence.
        one: the method that is claimed to need fewer rounds.
        other: the method it is compared with.
        objective: the problem.
        alike: the claim is that both need equally many rounds.
    """

    table: int
    claim: str
    one: str
    other: str
    objective: str
    factor: str
    alike: bool = False

    def pair(self, checks: Sequence[Check]) -> list[Check]:
        """The checks of both methods; empty if one of them is missing."""
        own = [c for c in checks if (c.base.objective, c.factor) == (self.objective, self.factor)]
        found = {check.base.method: check for check in reversed(own)}
        names = (self.one, self.other)
        return [found[name] for name in names] if found.keys() >= set(names) else []

    def verdict(self, found: MeasuredRounds, pair: Sequence[Check], where: str) -> Verdict:
        """The claim holds if `other` needs over 10% more rounds than `one`, partly if about as many.

        Args:
            pair: the checks of both methods; see `pair`.
            where: how the rounds were measured, in words.
        """
        claim = f"Table {self.table}: {self.claim}"
        rounds = [dict(zip(check.values, found.rounds(check), strict=True)) for check in pair]
        both = [value for value in rounds[0] if rounds[0][value] and rounds[1].get(value)]
        if not both:
            return Verdict(claim, FAILS, "There is no value at which both got there.", where)
        one, other = (r[both[-1]] or 0 for r in rounds)
        ratio = other / one
        numbers = f"At {self.factor} = {both[-1]:.3g} {self.one} took {one} rounds, {self.other} {other}."
        same, fewer = 0.9 <= ratio <= 1.1, PARTLY if ratio >= 0.9 else FAILS
        if self.alike:
            return Verdict(claim, HOLDS if same else FAILS, numbers, where)
        return Verdict(claim, HOLDS if ratio > 1.1 else fewer, numbers, where)
