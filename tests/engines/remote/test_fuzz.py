"""A short run of the fuzzer of calls and replies (make fuzz runs it at length)."""

import pytest
from fuzz.calls import CASES, run


@pytest.mark.parametrize("name", CASES)
def test_hostile_calls_and_replies_are_taken_or_refused(name: str) -> None:
    *_, tally = run(name, 400)
    assert tally.violations == []
    assert tally.rejected + tally.decoded == 400
    assert min(tally.rejected, tally.decoded) >= 3  # both ways are taken
