"""What error feedback rests on: a share of every codec's message is a contraction, whatever its variance."""

import pytest
import torch

from fedcom.codecs import Codec, Int, PowerSgd, Qsgd, TernGrad, TopK
from fedcom.vectors import Layout
from tests.codecs.cases import CODECS_TESTED, KINDS, ROTATED, keys, label, layout, shaped

UNBIASED = [codec for codec in CODECS_TESTED if codec.unbiased and codec not in ROTATED]
COARSE = [Int(1), Int(2), Qsgd(1), Qsgd(3), TernGrad()]


@pytest.mark.covers(1)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("codec", UNBIASED, ids=label)
def test_a_share_of_an_unbiased_codec_is_a_contraction(codec: Codec, kind: str) -> None:
    where, n = layout("several", torch.float64), 400
    x = shaped(kind, where)
    share, q = codec.kept(where), codec.variance(where)
    left = (share * codec.quantise(x.expand(n, -1), where, keys(n)) - x).square().sum(-1) / (x @ x)
    assert float(left.mean()) <= q / (1 + q) + 5 * float(left.std()) / n**0.5 + 1e-9
    assert float(left.mean()) < 1


def dropped(codec: Codec, share: float, rounds: int = 100) -> float:
    """The most a memory holds, over what is added to it each round."""
    where = Layout.vector(2000, torch.float64)
    x = keys(1).normal(2000, torch.float64)[0]
    nu, most = torch.zeros_like(x), 0.0
    for draw in range(rounds):
        sent = codec.quantise((nu + x).unsqueeze(0), where, keys(1).fold(draw))[0]
        nu = nu + x - share * sent
        most = max(most, float(nu.norm() / x.norm()))
    return most


@pytest.mark.parametrize("codec", COARSE, ids=label)
def test_a_memory_of_a_share_stays_bounded_and_of_all_may_not(codec: Codec) -> None:
    where = Layout.vector(2000, torch.float64)
    # |nu'| <= sqrt(1 - share) |nu + x| on average, whose fixed point is below 2 |x|/share.
    assert dropped(codec, codec.kept(where)) <= 2 / codec.kept(where)
    if codec in (Int(1), Qsgd(1)):
        assert dropped(codec, 1.0) > 1e6


def test_a_memory_takes_what_two_levels_leave() -> None:
    codec, where = TopK(0.1, "levels", chunk=200), Layout.vector(2000, torch.float64)
    most = codec.variance(where) ** 0.5  # |nu'| <= most |nu + x|
    assert dropped(codec, 1.0) <= most / (1 - most)


def test_the_share_of_biased_codecs() -> None:
    flat, matrix = Layout.vector(30), Layout(("w",), ((40, 50),))
    assert TopK(0.1).kept(flat) == 0.1
    assert TopK(0.01).kept(flat) == 1 / 30  # at least one coordinate
    assert TopK(0.1, "levels", chunk=20).kept(flat) == 3 / 30  # two of 20 and one of 10
    assert (PowerSgd(2).kept(flat), PowerSgd(2).kept(matrix)) == (1.0, 0.1)
