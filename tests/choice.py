"""Which cases of a test the suite runs; `make chaos` runs all."""

from collections.abc import Sequence
from functools import cache
from itertools import chain, combinations

import pytest


def some(family: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The cases of one test that the suite runs: none marked `thorough`, and few of a test that `covers`."""
    family = [item for item in family if not item.get_closest_marker("thorough")]
    marker = next((mark for item in family for mark in item.iter_markers("covers")), None)
    if marker is None:
        return family
    given = [item.callspec.params.values() for item in family]  # type: ignore[attr-defined]
    numbers: dict[int, int] = {}  # of the values, which are the same objects in all cases
    cases = tuple(tuple(numbers.setdefault(id(value), len(numbers)) for value in case) for case in given)
    return [family[i] for i in cover(cases, *marker.args)]


@cache
def cover(cases: tuple[tuple[int, ...], ...], strength: int) -> list[int]:
    """A few of the cases, by index, in which all values (1) or all pairs of values (2) are found.

    Of cases that add as much, the one whose values and pairs were chosen least is next.

    Args:
        cases: the number of the value of each parameter.
    """
    values = [list(enumerate(case)) for case in cases]
    parts = [set(combinations(case, min(strength, len(case)))) for case in values]
    pairs = [[*case, *combinations(case, 2)] for case in values]
    missing, chosen = set().union(*parts), list[int]()
    seen = dict.fromkeys(chain.from_iterable(pairs), 0)
    while missing:
        gains = [len(part & missing) for part in parts]
        most = max(gains)
        best = (i for i, gain in enumerate(gains) if gain == most)
        i = min(best, key=lambda i: sum(map(seen.__getitem__, pairs[i])))
        chosen.append(i)
        missing -= parts[i]
        for x in pairs[i]:
            seen[x] += 1
    return sorted(chosen)
