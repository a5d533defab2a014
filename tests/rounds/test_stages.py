"""The stages around a codec: what each changes, in which order, and that sender and receiver agree."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedcom import (
    FedAvg,
    FedCOM,
    FedCOMGATE,
    Identity,
    Int,
    Links,
    Qsparse,
    RandK,
    Scaffold,
    Simulation,
    TopK,
)
from fedcom.errors import ConfigError
from fedcom.rounds.rules import Rules
from fedcom.rounds.stages import Clip, ErrorFeedback, PaperMemory, Pipeline, Units
from fedcom.rounds.together import memory_of
from fedcom.vectors import Layout
from tests.conftest import after, close, mlp_task

LAYOUT = Layout.vector(4, torch.float64)
X = torch.tensor([[3.0, 4.0, 0.0, 0.0], [0.0, 0.5, 0.0, 0.0]], dtype=torch.float64)
numbers = st.floats(-10, 10, allow_subnormal=False)


def half(x: Tensor) -> Tensor:
    """A codec that loses the second half of every vector."""
    return torch.cat([x[..., :2], 0 * x[..., 2:]], -1)


def test_clipping_scales_long_vectors_down_and_leaves_short_ones() -> None:
    """Norms .1 * 5 and .1 * .5 in the model's units, a bound of .25."""
    clipped = Clip(0.25).before(X, X[..., :0], Units(0.1, 7.0))
    assert torch.allclose(clipped, torch.stack([X[0] / 2, X[1]]))
    assert Clip(1.0).before(0 * X, X[..., :0], Units(0.1, 7.0)).equal(0 * X)


def test_error_feedback_by_hand() -> None:
    """With unit .1 and memory (0, 0, 1, 0) the codec gets (.3, .4, 1, 0) and drops (0, 0, 1, 0)."""
    memory = torch.tensor([[0.0, 0.0, 1.0, 0.0]], dtype=torch.float64)
    pipeline, units = Pipeline((ErrorFeedback(),)), Units(7.0, 0.1)
    passed = pipeline.before(X[:1], memory, units)
    delivery = pipeline.after(passed, half(passed[-1]), memory, units)
    assert torch.allclose(delivery.heard, X[:1])
    assert torch.allclose(delivery.memory, memory)
    assert torch.allclose(passed[-1], torch.tensor([[0.3, 0.4, 1.0, 0.0]], dtype=torch.float64))


@given(
    values=st.lists(numbers, min_size=4, max_size=4),
    remembered=st.lists(numbers, min_size=4, max_size=4),
    unit=st.floats(0.01, 10),
    bound=st.floats(0.1, 100),
    contraction=st.sampled_from([None, 0.5, 1.0]),
)
def test_sender_and_receiver_agree_on_what_was_heard(
    values: list[float], remembered: list[float], unit: float, bound: float, contraction: float | None
) -> None:
    x, nu = (torch.tensor([each], dtype=torch.float64) for each in (values, remembered))
    for stage in (ErrorFeedback(), PaperMemory(5)):
        pipeline = Pipeline((Clip(bound), stage), contraction)
        units = Units(1.0, unit)
        passed = pipeline.before(x, nu, units)
        delivery = pipeline.after(passed, half(passed[-1]), nu, units)
        assert torch.equal(delivery.heard, pipeline.hear(half(passed[-1]), units))


def test_error_feedback_loses_nothing() -> None:
    """unit * heard + memory after == unit * x + memory before."""
    pipeline, memory = Pipeline((ErrorFeedback(),)), torch.zeros_like(X)
    for i in range(1, 6):
        x, before = X * i, memory
        passed = pipeline.before(x, before, Units(7.0, 0.3))
        delivery = pipeline.after(passed, half(passed[-1]), before, Units(7.0, 0.3))
        memory = delivery.memory
        assert close(0.3 * delivery.heard + memory, 0.3 * x + before)


def test_an_unbiased_codec_is_contracted_if_a_memory_needs_it() -> None:
    codec = RandK(0.25)  # q = 3
    assert Pipeline.of((ErrorFeedback(),), codec, LAYOUT).contraction == 0.25
    assert Pipeline.of((PaperMemory(2),), codec, LAYOUT).contraction is None
    assert Pipeline.of((Clip(1.0),), codec, LAYOUT).contraction is None
    assert Pipeline.of((ErrorFeedback(),), TopK(0.25), LAYOUT).contraction is None


def test_a_method_has_its_default_memory_unless_the_link_sets_one() -> None:
    assert memory_of(Qsparse(), Links(TopK(0.1))) == "error-feedback"
    assert memory_of(Qsparse(), Links(TopK(0.1), uplink_memory="none")) == "none"
    assert memory_of(FedCOM(), Links(TopK(0.1))) == "none"
    with pytest.raises(ConfigError, match="its twin with a codec is fedpaq"):
        Rules(FedAvg(), Links(Identity(), uplink_memory="paper"), LAYOUT, 2, 2)


def test_a_bound_that_is_never_reached_changes_no_bit() -> None:
    plain = after(mlp_task(), FedCOMGATE(tau=2), Links(Int(8)))
    loose = after(mlp_task(), FedCOMGATE(tau=2), Links(Int(8), clip=1e9))
    assert torch.equal(plain.server.w, loose.server.w)


@pytest.mark.parametrize("memory", ["none", "error-feedback", "paper"])
@pytest.mark.parametrize("method", [FedCOM, FedCOMGATE, Scaffold])
def test_a_clipped_step_is_no_longer_than_the_bound(method: type[FedCOM], memory: str) -> None:
    """With gamma 1 and no codec the first round moves the model by the mean of vectors of norm <= 1e-3."""
    task, bound = mlp_task(), 1e-3
    links = Links(Identity(), uplink_memory=memory, clip=bound)  # type: ignore[arg-type]
    simulation = Simulation(task, method(tau=3, gamma=1.0), links, device="cpu")
    simulation.step()
    moved = float(torch.linalg.vector_norm(simulation.server.w - task.objective.start))
    assert 0.1 * bound < moved <= bound * (1 + 1e-9)


def test_clipping_keeps_the_sum_of_corrections_at_zero() -> None:
    links = Links(Int(4), clip=0.05)
    simulation = after(mlp_task(), FedCOMGATE(tau=3, gamma=1.0), links, rounds=4, participation=0.5)
    delta = simulation.client_states().delta
    assert close(simulation.weights @ delta, torch.zeros_like(delta[0]))
