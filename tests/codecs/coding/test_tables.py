"""Tables that sender and receiver work out for themselves: the same on every machine, or refused."""

import math
import zlib
from collections.abc import Callable

import numpy as np
import pytest
import torch

from fedcom.codecs import Auto, Codec, LowRank, Rotated
from fedcom.codecs.coding import lloyd_max, normal, trellis, uniform
from fedcom.draws import Draw
from fedcom.errors import WireError
from fedcom.vectors import Layout

WHERE = Layout(("w", "b"), ((60, 80), (200,)))
RATES = (0.05, 0.1, 0.3, 0.5, 1, 1.7, 2, 3, 4, 6, 8)


def cells(codec: Rotated) -> bytes:
    return codec.tables(Layout.vector(200_000))


def forget() -> None:
    for cache in (uniform.for_rate, uniform._numbered, trellis.for_rate, lloyd_max.for_bits):
        cache.cache_clear()


def tables() -> dict[str, bytes]:
    """The tables of every tier, made afresh."""
    forget()
    codecs = [Rotated(bits) for bits in RATES]
    codecs += [Rotated(bits, "trellis") for bits in RATES] + [Rotated(bits, "fixed") for bits in (1, 2, 3, 4)]
    return {repr(codec): cells(codec) for codec in codecs}


@pytest.mark.parametrize("x", [-31.0, -7.3, -1.0, -1e-3, 0.0, 0.4])
def test_exp(x: float) -> None:
    assert normal.exp(x) == pytest.approx(math.exp(x), rel=1e-14)


@pytest.mark.parametrize("x", [1e-9, 0.3, 1.0, 2.0, 16384.0])
def test_log(x: float) -> None:
    assert normal.log(x) == pytest.approx(math.log(x), rel=1e-14, abs=1e-15)
    assert normal.log2(x) == pytest.approx(math.log2(x), rel=1e-14, abs=1e-15)


@pytest.mark.parametrize("x", [0.0, 0.01, 0.5, 1.0, 3.0, 5.0, 8.0])
def test_the_mass_below_a_point(x: float) -> None:
    assert normal.central(x) == pytest.approx(math.erf(x / math.sqrt(2)) / 2, abs=1e-15)


def test_cells_by_hand() -> None:
    # Below and above one deviation: masses 0.3413 and 0.1587; means (f(0) - f(1))/0.3413 and f(1)/0.1587.
    mass, means = normal.cells([0.0, 1.0])
    assert mass == pytest.approx([0.341344746, 0.158655254])
    assert means == pytest.approx([0.459862, 1.525135], abs=1e-6)


def test_no_table_rests_on_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    before = tables()
    owners = {math: "exp log log2 erf erfc pow", torch: "exp log2 erf", torch.special: "ndtr", np: "exp log2"}
    for owner, names in owners.items():
        for name in names.split():
            real = getattr(owner, name)
            monkeypatch.setattr(owner, name, lambda *a, real=real: real(*a) * (1 + 1e-9))
    assert tables() == before


def ulp(function: Callable[[float], float], towards: float) -> Callable[[float], float]:
    return lambda x: math.nextafter(function(x), towards)


@pytest.mark.parametrize("towards", [-math.inf, math.inf])
@pytest.mark.parametrize("name", ["exp", "log", "central"])
def test_a_last_bit_would_not_matter(name: str, towards: float, monkeypatch: pytest.MonkeyPatch) -> None:
    before = tables()
    monkeypatch.setattr(normal, name, ulp(getattr(normal, name), towards))
    assert tables() == before
    monkeypatch.undo()
    forget()


def test_tables_are_these_on_every_machine() -> None:
    assert zlib.crc32(b"".join(tables().values())) == 2211314484


@pytest.mark.parametrize(
    "codec", [Rotated(1), Rotated(2, "trellis"), Rotated(2, "fixed"), LowRank(2, 1.0), Auto(2.0), Auto(q=1.0)]
)
def test_other_tables_are_refused(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    x, draw = Draw.seeded(1).normal(WHERE.size), Draw.seeded(0)
    message = codec.encode(x, WHERE, draw)
    real = Rotated.tables
    monkeypatch.setattr(Rotated, "tables", lambda *a: real(*a)[:-1] + bytes([real(*a)[-1] ^ 1]))
    with pytest.raises(WireError, match="wrong fingerprint of settings, layout and tables"):
        codec.decode(message, WHERE, draw)


@pytest.mark.parametrize("table", [0, 1])
def test_every_number_of_a_table_is_in_the_fingerprint(table: int, monkeypatch: pytest.MonkeyPatch) -> None:
    codec = Rotated(2)
    before = codec.fingerprint(WHERE)
    quantiser = codec.quantiser(WHERE)
    number = (quantiser.centres, quantiser.coder.frequencies)[table].view(-1)[3:4]
    number += 2.0**-16 if number.is_floating_point() else 1
    after = codec.fingerprint(WHERE)
    number -= 2.0**-16 if number.is_floating_point() else 1
    assert before == codec.fingerprint(WHERE) != after


@pytest.mark.parametrize("codec", [Rotated(2), Rotated(2, "trellis"), Rotated(2, "fixed")])
def test_nothing_takes_a_header_and_a_scale(codec: Rotated) -> None:
    draw, zero = Draw.seeded(0), torch.zeros(WHERE.size)
    message = codec.encode(zero, WHERE, draw)
    assert len(message) == 20 == sum(codec.itemise(codec.compress(zero, WHERE, draw), WHERE).values())
    assert codec.decode(message, WHERE, draw).tolist() == zero.tolist()
