"""Scaled sign, worked out by hand."""

import struct

import pytest
import torch

from fedcom.codecs import Sign
from fedcom.draws import Draw
from fedcom.errors import ConfigError, WireError
from fedcom.vectors import Layout
from tests.codecs.cases import gaussian
from tests.codecs.test_hostile import packed
from tests.codecs.test_values import quantise, vector

DRAW = Draw.seeded(0)


def test_signs_times_the_mean_magnitude() -> None:
    assert quantise(Sign(), vector(1, -2, 6, 0, -0.0, -3)).tolist() == [2, -2, 2, 2, 2, -2]


def test_scales_are_per_tensor_or_whole() -> None:
    where = Layout(("a", "b"), ((2,), (1, 2)))
    x = vector(1, -3, 10, 30)
    assert Sign().quantise(x, where, DRAW).tolist() == [2, -2, 20, 20]
    assert Sign("vector").quantise(x, where, DRAW).tolist() == [11, -11, 11, 11]


def test_the_bytes_of_a_message() -> None:
    body = Sign().encode(vector(1, -2, 6, -7, -1, 1, 1, 1, -7), Layout.vector(9), DRAW)[16:]
    assert body == struct.pack("<f", 3.0) + bytes([0b0101_1000, 0b1000_0000])


def test_the_scale_is_a_float32_in_float64_runs_too() -> None:
    x = vector(0.1, 0.1, dtype=torch.float64)
    assert quantise(Sign(), x).tolist() == [float(torch.tensor(0.1))] * 2


@pytest.mark.parametrize("d", [1, 2, 50])
def test_one_coordinate_alone_attains_the_promise(d: int) -> None:
    where = Layout.vector(d, torch.float64)
    x = torch.zeros(d, dtype=torch.float64)
    x[-1] = -d  # a scale of 1
    assert float((quantise(Sign(), x) - x).square().sum()) == pytest.approx(Sign().variance(where) * d**2)


def test_the_error_is_what_the_norms_say() -> None:
    where = Layout.vector(1000, torch.float64)
    x = gaussian(where)
    error = float((quantise(Sign(), x) - x).square().sum() / x.square().sum())
    assert error == pytest.approx(1 - float(x.abs().sum() ** 2 / (1000 * x.square().sum())))
    assert error == pytest.approx(1 - 2 / torch.pi, abs=0.05)  # of a Gaussian


def test_a_negative_scale_is_refused() -> None:
    with pytest.raises(WireError, match="negative scale"):
        Sign().decode(
            packed(Sign(), Layout.vector(9), scale=torch.tensor([-1e-45])), Layout.vector(9), Draw.seeded(0)
        )


def test_rates_and_parameters() -> None:
    assert Sign().at(1) == Sign()
    assert Sign().at(2) is None
    with pytest.raises(ConfigError, match="scale must be 'tensor' or 'vector'"):
        Sign("row")  # type: ignore[arg-type]
