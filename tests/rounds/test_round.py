"""Parts of a round that every engine shares: the mean, what client_step is given, and who takes part."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from torch import Tensor

from fedcom import FedCOM, Links, Simulation, TopK
from fedcom.algorithms.base import Round
from fedcom.errors import ConfigError
from fedcom.rounds.cohort import Cohort, mean_weights, sample_size
from fedcom.rounds.round import Mean
from fedcom.vectors import Vectors
from tests.conftest import close, mlp_task


class Diary(NamedTuple):
    """What client_step was given after a round."""

    meant: Tensor
    sent: Tensor
    mean: Tensor


@dataclass(frozen=True, kw_only=True)
class Diarist(FedCOM):
    """FedCOM whose clients write down what client_step is given."""

    name: ClassVar[str] = "diarist"
    needs_mean: ClassVar[bool] = True
    uses_meant: ClassVar[bool] = True

    def init_client(self, w: Tensor) -> Diary:
        return Diary(*(w.new_zeros(w.shape) for _ in range(3)))

    def client_step(self, client: Any, meant: Vectors, sent: Vectors, mean: Vectors, rnd: Round) -> Diary:
        return Diary(meant["D"], sent["D"], mean["D"].expand_as(sent["D"]))


@pytest.mark.parametrize("chunk", [1, 4, 6])
@pytest.mark.parametrize("memory", ["none", "error-feedback"])
def test_client_step_is_given_what_was_meant_what_was_heard_and_the_mean(chunk: int, memory: str) -> None:
    links = Links(TopK(0.2), uplink_memory=memory, clip=1e-2)  # type: ignore[arg-type]
    algorithm = Diarist(tau=2, gamma=1.0)
    simulation = Simulation(mlp_task(), algorithm, links, device="cpu", chunk=chunk)
    simulation.step()
    meant, sent, mean = simulation.client_states()
    plain = Simulation(mlp_task(), Diarist(tau=2, gamma=1.0), Links(TopK(1.0)), device="cpu")
    plain.step()
    assert close(meant, plain.client_states().sent)  # neither clipped nor compressed
    assert ((sent != 0).sum(-1) == 13).all()  # a fifth of 66
    eta = algorithm.eta
    assert (torch.linalg.vector_norm(eta * sent, dim=-1) <= 1e-2 * (1 + 1e-9)).all()
    assert close(simulation.weights @ sent, mean[0])


def test_what_two_levels_leave_of_an_update_is_kept_for_the_next() -> None:
    links = Links(TopK(0.2, "levels", chunk=25), uplink_memory="error-feedback", encode=True)
    simulation = Simulation(mlp_task(), Diarist(tau=2, gamma=1.0), links, device="cpu", chunk=2)
    owed = torch.zeros(6, 66, dtype=torch.float64)
    for done in range(1, 4):
        simulation.step()
        meant, sent, _ = simulation.client_states()
        owed = owed + simulation.algorithm.local_rate(done - 1) * (meant - sent)
        assert close(simulation.client_memory()["D"], owed)  # sent + memory = meant
        assert ((sent != 0).sum(-1) == 13).all()  # five of 25, twice, and three of 16
        assert max(len(set(row[row != 0].abs().tolist())) for row in sent) <= 6  # two for each chunk
        # Each message has a header, positions, three pairs of levels and thirteen codes.
        assert simulation.ledger.total("uplink") == 6 * done * (16 + 6 + 9 + 4)


def test_what_clients_meant_is_kept_only_for_methods_that_use_it() -> None:
    class Forgetful(Diarist):
        uses_meant = False

        def client_step(self, client: Any, meant: Vectors, *rest: Any) -> Diary:
            assert meant == {}
            return client  # type: ignore[no-any-return]

    Simulation(mlp_task(), Forgetful(tau=1), device="cpu").step()


def test_messages_may_come_one_by_one_or_stacked() -> None:
    p = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)
    x = torch.arange(12, dtype=torch.float64).reshape(3, 4)
    stacked, single = Mean(), Mean()
    stacked.add(p[:2], {"D": x[:2]})
    stacked.add(p[2:], {"D": x[2:]})
    for weight, row in zip(p, x, strict=True):
        single.add(weight, {"D": row})
    assert torch.equal(stacked.vectors["D"], single.vectors["D"])
    assert close(stacked.vectors["D"], p @ x)


def test_weights_of_sampled_clients_sum_to_one_and_give_their_share() -> None:
    p, share = mean_weights(torch.tensor([[0.1, 0.3], [0.2, 0.2]], dtype=torch.float64))
    assert close(p, torch.tensor([[0.25, 0.75], [0.5, 0.5]], dtype=torch.float64))
    assert close(share, torch.tensor([0.4, 0.4], dtype=torch.float64))


def test_a_cohort_has_the_weights_and_steps_of_its_clients() -> None:
    sizes = torch.tensor([10, 30, 60])
    cohort = Cohort.of(FedCOM(weights="size", epochs=2, batch=20), sizes, 2 / 3)
    assert cohort.weights.tolist() == pytest.approx([0.1, 0.3, 0.6])
    assert (cohort.clients, cohort.sampled) == (3, 2)
    assert cohort.steps.per_client is not None
    assert cohort.steps.per_client.flatten().tolist() == [2, 4, 6]
    assert (cohort.steps.most, cohort.tau) == (6, 4.0)
    with pytest.raises(ConfigError, match=r"at least one client; got 0\.1 of 3"):
        sample_size(0.1, 3)
