"""Methods and codecs that draw from a global generator are warned of; others are not."""

import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from fedcom import FedAvg, FedCOM, Int, Simulation
from tests.conftest import mlp_task


@dataclass(frozen=True, kw_only=True)
class Noisy(FedAvg):
    """Adds noise of a global generator to what is uploaded, or to local steps."""

    how: str = "upload"
    source: str = "torch"

    name: ClassVar[str] = "noisy"

    def noise(self, w: Tensor) -> Any:
        if self.source == "torch":
            return 1e-3 * torch.randn_like(w)
        return 1e-3 * (np.random.rand() if self.source == "numpy" else random.random())

    def local_step(self, w: Tensor, client: Any, down: Any, oracle: Any, rnd: Any) -> Tensor:
        w = super().local_step(w, client, down, oracle, rnd)
        return w + self.noise(w) if self.how == "step" else w

    def upload(self, client: Any, down: Any, w: Tensor, rnd: Any) -> dict[str, Tensor]:
        return super().upload(client, down, w + self.noise(w) if self.how == "upload" else w, rnd)


@dataclass(frozen=True)
class NoisyInt(Int):
    """Rounds as Int does, with a number of a global generator added."""

    name: ClassVar[str] = "noisy-int"
    id: ClassVar[int] = 200

    def quantise(self, x: Tensor, layout: Any, draw: Any) -> Tensor:
        return super().quantise(x, layout, draw) + 1e-6 * torch.rand(())


def played(*parts: Any, **settings: Any) -> list[str]:
    """The warnings of a run of three rounds."""
    simulation = Simulation(mlp_task(), *parts, rounds=3, device="cpu", **settings)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        simulation.run()
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize("how", ["step", "upload"])
@pytest.mark.parametrize(
    ("source", "named"), [("torch", "torch's"), ("numpy", "numpy's"), ("python", "Python's")]
)
def test_a_method_that_draws_for_itself_is_warned_of_once(how: str, source: str, named: str) -> None:
    (message,) = played(Noisy(how=how, source=source), chunk=2)
    assert f"drew from a global generator, {named}: such a run cannot be repeated" in message
    assert "rnd.coin" in message


def test_a_codec_that_draws_for_itself_is_warned_of() -> None:
    (message,) = played(FedCOM(), NoisyInt(bits=8))
    assert "in a codec use its draw" in message


@pytest.mark.parametrize("codec", ["int", "rotated", "randk"])
def test_the_draws_of_a_run_are_no_strays(codec: str) -> None:
    assert played(FedCOM(), codec) == []


def test_callbacks_may_draw() -> None:
    def callback(row: Any) -> None:
        torch.rand(1)

    simulation = Simulation(mlp_task(), FedAvg(), rounds=2, device="cpu")
    simulation.run([callback])  # a warning would be an error here
    assert simulation.round == 2


def test_a_run_leaves_the_global_generators_alone() -> None:
    states: list[Callable[[], Any]] = [lambda: torch.get_rng_state().tolist(), random.getstate]
    before = [state() for state in states]
    Simulation(mlp_task(), "fedcomgate", rounds=2, device="cpu").run()
    assert [state() for state in states] == before
