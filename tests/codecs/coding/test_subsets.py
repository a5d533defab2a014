"""Positions of kept coordinates as bytes: no more than needed to tell the sets apart, and never ambiguous."""

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcom.codecs.coding import subsets
from fedcom.codecs.coding.subsets import Run, Runs
from fedcom.errors import WireError


def packed(places: list[int], *runs: Run) -> list[int]:
    return subsets.pack(np.array(places, np.int64), runs).tolist()


@st.composite
def sets(draw: st.DrawFn) -> tuple[Runs, list[int]]:
    """Runs of chunks, and kept coordinates of each: anywhere, at the beginning, at the end."""
    runs = [
        Run(draw(st.integers(1, 4)), size, draw(st.integers(1, size)))
        for size in draw(st.lists(st.integers(1, 400), min_size=1, max_size=3))
    ]
    places, start = [], 0
    for run in runs:
        for _ in range(run.chunks):
            kind = draw(st.sampled_from(["any", "first", "last"]))
            rng = np.random.default_rng(draw(st.integers(0, 2**32)))
            some = sorted(rng.choice(run.size, run.kept, replace=False).tolist())
            some = {"any": some, "first": [*range(run.kept)]}.get(
                kind, [*range(run.size - run.kept, run.size)]
            )
            places += [start + i for i in some]
            start += run.size
    return tuple(runs), places


@given(sets())
@settings(max_examples=60, deadline=None)
def test_what_is_packed_is_unpacked_and_takes_its_entropy(case: tuple[Runs, list[int]]) -> None:
    runs, places = case
    data = subsets.pack(np.array(places, np.int64), runs)
    assert subsets.unpack(data, runs).tolist() == places
    bits = sum(run.chunks * math.log2(math.comb(run.size, run.kept)) for run in runs)
    # A set of few coordinates is rounded up by 0.12 bits, the whole to bytes, and a byte is for the end.
    rounded = 0.12 * sum(run.chunks for run in runs) + 0.02
    assert math.floor(bits / 8) <= len(data) <= math.floor((bits + rounded) / 8) + 1


@given(st.integers(1, 40), st.data())
@settings(max_examples=60, deadline=None)
def test_any_bytes_are_those_of_a_set_or_refused(size: int, data: st.DataObject) -> None:
    runs = (Run(2, size, data.draw(st.integers(1, size))), Run(1, 7, 2))
    n = subsets.nbytes(runs)
    raw = np.frombuffer(data.draw(st.binary(min_size=n, max_size=n)), np.uint8)
    try:
        places = subsets.unpack(raw, runs)
    except WireError:
        return
    assert subsets.pack(places, runs).tolist() == raw.tolist()
    assert (np.diff(places) > 0).all()
    assert 0 <= places[0] <= places[-1] < 2 * size + 7


def test_bytes_by_hand() -> None:
    # One of four: 0 has the upper quarter of [0, 1), 1 the quarter below it, and so on. One byte names the
    # lower end of the quarter.
    assert [packed([i], Run(1, 4, 1)) for i in range(4)] == [[192], [128], [64], [0]]
    assert packed([0, 1, 2], Run(1, 3, 3)) == []
    # Two chunks of four: the second divides the quarter of the first into sixteenths.
    assert packed([1, 5], Run(2, 4, 1)) == [128 + 32]
    assert packed([2, 4], Run(2, 4, 1)) == [64 + 48]


def test_every_set_has_bytes_of_its_own() -> None:
    runs = (Run(1, 10, 4),)
    found = {tuple(packed(list(places), *runs)) for places in combinations(range(10), 4)}
    assert len(found) == math.comb(10, 4)
    assert {len(bytes_) for bytes_ in found} == {1}
    taken = [byte for byte in range(256) if (byte,) in found]
    for byte in set(range(256)) - set(taken):
        with pytest.raises(WireError, match="do not end where they should"):
            subsets.unpack(np.array([byte], np.uint8), runs)


def test_a_carry_goes_through_written_bytes() -> None:
    # The sets whose kept coordinates come first lie at the upper end: 0.999... in bytes.
    runs = (Run(1, 4096, 64),)
    rng = np.random.default_rng(0)
    for _ in range(300):
        first = rng.integers(0, 64)
        places = [*range(first), *sorted(first + 1 + rng.choice(4095 - first, 64 - first, replace=False))]
        data = subsets.pack(np.array(places, np.int64), runs)
        assert len(data) == 59  # 471.29 bits
        assert subsets.unpack(data, runs).tolist() == places


def test_python_makes_the_same_bytes_as_compiled_loops() -> None:
    runs = (Run(3, 500, 20), Run(1, 77, 9))
    rng = np.random.default_rng(1)
    sizes, kept = subsets._arrays(runs)
    places = np.concatenate(
        [i * 500 + np.sort(rng.choice(500, 20, replace=False)) for i in range(3)]
        + [1500 + np.sort(rng.choice(77, 9, replace=False))]
    )
    data = subsets.pack(places, runs)
    python = {name: getattr(subsets, name) for name in ("_encode", "_decode", "_carry")}
    python = {name: getattr(loop, "py_func", loop) for name, loop in python.items()}
    assert set(map(type, python.values())) == {type(packed)}
    out, back = np.zeros(len(data), np.uint8), np.empty(len(places), np.int64)
    python["_encode"](places, sizes, kept, out)
    assert out.tolist() == data.tolist()
    assert python["_decode"](out, sizes, kept, back)
    assert back.tolist() == places.tolist()
