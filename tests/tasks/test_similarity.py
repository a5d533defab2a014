"""The similarity of clients is that of their gradients."""

import torch

from fedcom.tasks.similarity import chosen_clients, similarity
from fedcom.tasks.task import Task
from tests.conftest import mlp_task


def linear_task(x: torch.Tensor, clients: int) -> Task:
    """Least squares with targets -1 at w = 0: a client's gradient has the direction of its mean sample."""
    module = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.zeros_(module.weight)
    y = -torch.ones(len(x), 1)
    groups = torch.arange(len(x)) * clients // len(x)
    loss = torch.nn.functional.mse_loss
    return Task.from_arrays(module, x, y, partition="natural", groups=groups, loss=loss, dtype=torch.float64)


def test_cosines_of_gradients_known_by_hand() -> None:
    x = torch.tensor(
        [[1.0, 0.0], [2.0, 0.0], [0.0, 3.0], [0.0, 1.0], [-1.0, 0.0], [-1.0, 0.0], [1.0, 1.0], [1.0, 1.0]]
    )
    task = linear_task(x, 4)
    half = 0.5**0.5
    expected = [[1, 0, -1, half], [0, 1, 0, half], [-1, 0, 1, -half], [half, half, -half, 1]]
    torch.testing.assert_close(
        similarity(task, task.objective.start), torch.tensor(expected, dtype=torch.float64)
    )


def test_a_client_without_a_gradient_has_cosine_zero() -> None:
    x = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    task = linear_task(x, 2)
    assert similarity(task, task.objective.start).tolist() == [[1, 0], [0, 0]]


def test_clients_are_evenly_spaced_and_fewer_for_large_models() -> None:
    task = mlp_task()
    assert chosen_clients(task, 100, 2).tolist() == [0, task.clients // 2]
    assert len(chosen_clients(task, 100)) == min(20, task.clients)
    assert len(chosen_clients(task, 2**28)) == 1
