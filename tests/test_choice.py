"""The few cases that stand for many have all values, or all pairs of them."""

from collections import Counter
from itertools import combinations, product

import pytest

from tests.choice import cover
from tests.conftest import CHAOS

pytest_plugins = ["pytester"]

SIZES = [(50, 2, 4), (3, 3, 3, 3), (2, 2), (7,)]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("strength", [1, 2])
def test_all_that_is_to_be_found_is_found(sizes: tuple[int, ...], strength: int) -> None:
    cases = tuple(product(*map(range, sizes)))
    strength, chosen = min(strength, len(sizes)), [cases[i] for i in cover(cases, strength)]
    assert len(set(chosen)) == len(chosen)
    for axes in combinations(range(len(sizes)), strength):
        found = {tuple(case[axis] for axis in axes) for case in chosen}
        assert found == set(product(*(range(sizes[axis]) for axis in axes)))


def test_few_are_chosen_and_all_values_about_as_often() -> None:
    cases = tuple(product(range(50), range(2), range(4)))
    once = [cases[i] for i in cover(cases, 1)]
    assert len(once) == 50
    pairs = Counter(case[1:] for case in once)
    assert len(pairs) == 8
    assert min(pairs.values()) >= 5
    assert len(cover(cases, 2)) == 200
    assert len(cover(tuple(product(range(3), repeat=4)), 2)) <= 15  # of 81; nine would do


def test_cases_need_not_be_a_product() -> None:
    assert cover(((0, 0), (1, 1), (1, 0), (2, 1)), 1) == [0, 1, 3]


def test_a_test_says_how_many_of_its_cases_are_chosen(pytester: pytest.Pytester) -> None:
    """In a suite of its own, by the hook of this one."""
    pytester.makeconftest("from tests.conftest import pytest_collection_modifyitems")
    pytester.makeini("[pytest]\nmarkers =\n    covers\n    thorough\n    gpu")
    pytester.makepyfile("""
        import pytest

        @pytest.mark.covers(1)
        @pytest.mark.parametrize("x", range(3))
        @pytest.mark.parametrize("y", [0.5, 0.5, "z"])
        def test_few(x, y): pass

        @pytest.mark.parametrize("x", [1, pytest.param(2, marks=pytest.mark.thorough)])
        def test_one(x): pass

        def test_plain(): pass
    """)
    counts = pytester.runpytest_inprocess("-p", "no:xdist").parseoutcomes()
    assert counts == ({"passed": 12} if CHAOS else {"passed": 5, "deselected": 7})
    assert pytester.runpytest_inprocess("-k", "few and 1", "-p", "no:xdist").parseoutcomes()["passed"] >= 1
