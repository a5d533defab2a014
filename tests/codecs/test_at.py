"""Codec.at: the same codec at another rate, with its other settings kept."""

import pytest
import torch

from fedcom.codecs import (
    CODECS,
    Auto,
    Codec,
    CountSketch,
    Dithered,
    Int,
    LowRank,
    Peaks,
    Qsgd,
    RandK,
    Rotated,
    Sign,
    TernGrad,
    TopK,
)
from fedcom.draws import Draw
from fedcom.vectors import Layout

KEPT: list[tuple[Codec, float, Codec]] = [
    (Int(8, "nearest", "vector", 3), 4.0, Int(4, "nearest", "vector", 3)),
    (Qsgd(127, "vector"), 4.0, Qsgd(7, "vector")),
    (TopK(0.1), 3.2 + 0.469, TopK(0.1)),  # 32 bits for a value, and the entropy of 0.1
    (TopK(0.1, "int", 8), 0.08 + 0.0808, TopK(0.01, "int", 8)),
    (TopK(0.1, "int", 8), 5.0, TopK(0.5, "int", 8)),
    (
        TopK(0.1, "levels", chunk=4096),
        0.1532,
        TopK(0.01562, "levels", chunk=4096),
    ),
    (RandK(0.5), 3.2, RandK(0.1)),
    (CountSketch(0.5, rows=3), 3.2, CountSketch(0.1, rows=3)),
    (Rotated(1.0, "trellis"), 0.25, Rotated(0.25, "trellis")),
    (Rotated(1, "fixed"), 3, Rotated(3, "fixed")),
    (Dithered(q=0.1), 0.5, Dithered(bits=0.5)),
    (LowRank(4, q=0.1), 2.0, LowRank(4, bits=2.0)),
    (Auto(q=0.1), 2.0, Auto(bits=2.0)),
    (Auto(q=0.1), 0.002, Auto(bits=0.002)),
    (Peaks(0.05), 0.002, Peaks(0.002)),
    (Sign("vector"), 1, Sign("vector")),
    (TernGrad("vector"), 1.6, TernGrad("vector")),
]


@pytest.mark.parametrize(("codec", "bits", "wanted"), KEPT)
def test_other_settings_are_kept(codec: Codec, bits: float, wanted: Codec) -> None:
    assert codec.at(bits) == wanted


@pytest.mark.parametrize(
    ("codec", "bits"),
    [
        (Int(), 2.5),
        (Int(), 17),
        (Qsgd(), 1),
        (TopK(values="int", bits=4), 5.5),
        (RandK(), 33),
        (Rotated(1, "fixed"), 2.5),
        (Rotated(1, "fixed"), 8),
        (Rotated(), 8.5),
        (Dithered(), 0.04),
        (LowRank(), 17),
        (Auto(), 9),
        (Auto(), 5e-5),
        (Peaks(), 1.1),
        (Peaks(), 5e-5),
        (Sign(), 2),
        (TernGrad(), 1),
        (CODECS["identity"](), 32),
        (CODECS["natural"](), 9),
        (CODECS["powersgd"](), 1),
    ],
)
def test_a_rate_it_does_not_have(codec: Codec, bits: float) -> None:
    assert codec.at(bits) is None


SET_TO_A_RATE = [
    (found, bits)
    for codec in [*(kind() for kind in CODECS.values()), TopK(values="int", bits=4), Rotated(1, "fixed")]
    for bits in (1.0, 2.0, 4.0)
    if (found := codec.at(bits)) is not None
]


@pytest.mark.parametrize(("codec", "bits"), SET_TO_A_RATE, ids=repr)
def test_messages_take_about_the_bits_asked_for(codec: Codec, bits: float) -> None:
    where = Layout(("a", "b"), ((600, 300), (20_000,)))
    x = torch.randn(where.size, generator=torch.Generator().manual_seed(0))
    assert 8 * len(codec.encode(x, where, Draw.seeded(0))) / where.size == pytest.approx(bits, rel=0.03)


def test_most_codecs_can_be_set_to_a_rate() -> None:
    assert len({codec.name for codec, _ in SET_TO_A_RATE}) >= 8
