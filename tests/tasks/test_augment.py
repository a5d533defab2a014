"""Images are shifted with mirrored edges, flipped or not, and anew in each step."""

import pytest
import torch
from torch import nn

from fedcom import Simulation, Task
from fedcom.algorithms import FedAvg
from fedcom.draws import Draw
from fedcom.errors import ConfigError
from fedcom.tasks.augment import Augment
from fedcom.tasks.oracle import DataOracle
from tests.conftest import close


def test_an_image_is_cropped_out_of_a_mirrored_larger_one() -> None:
    augment, draw = Augment(shift=2), Draw.seeded(0).fold(torch.arange(3))
    x = torch.rand(3, 40, 2, 5, 6)
    change = augment.draw(draw, 40)
    found, wide = augment(x, change), nn.functional.pad(x.flatten(0, 1), (2, 2, 2, 2), mode="reflect")
    seen = set()
    for image, code, after in zip(wide, change.flatten().tolist(), found.flatten(0, 1), strict=True):
        down, right, flip = code % 5, code // 5 % 5, code // 25
        crop = image[:, down : down + 5, right : right + 6]
        assert torch.equal(after, crop.flip(-1) if flip else crop)
        seen.add((down, right, flip))
    assert len(seen) > 30  # of 50
    assert int(Augment(2, flip=False).draw(draw, 40).max()) < 25


def task(augment: bool, drops: bool = False) -> Task:
    torch.manual_seed(0)
    x, y = torch.rand(30, 1, 8, 8), torch.randint(0, 3, (30,))
    module = nn.Sequential(nn.Flatten(), *([nn.Dropout(0.5)] if drops else []), nn.Linear(64, 3))
    owners = [0] * 5 + [1] * 13 + [2] * 12
    made = Task.from_arrays(module, x, y, x, y, partition=owners, dtype="float64")
    return made.augmented(Augment(3)) if augment else made


@pytest.mark.parametrize("epochs", [None, 3])
def test_minibatches_drawn_at_once_are_those_drawn_step_by_step(epochs: int | None) -> None:
    clients = torch.tensor([2, 0, 1])
    oracle = DataOracle(task(True, drops=True), clients, Draw.seeded(1).fold(clients), 4, epochs)
    together = oracle.located(oracle.picks(9, 4, torch.float64))
    images = []
    for step in range(9):
        if epochs is not None and step >= 6:  # client 0 has taken its steps
            continue
        alone, picked = oracle.located(oracle.at(step)._pick(4, torch.float64)), together.at(step)
        for mine, other in zip(alone, picked, strict=True):
            assert mine is not None
            assert other is not None
            used = alone.weight > 0 if mine.dim() == 2 else torch.ones_like(mine).bool()
            assert torch.equal(mine * used, other * used)
        images.append(oracle.at(step).minibatch(4, torch.float64)[0])
        few = oracle.some(torch.tensor([2, 1])).at(step).minibatch(4, torch.float64)
        for mine, other in zip(few, oracle.at(step).minibatch(4, torch.float64), strict=True):
            assert torch.equal(mine, other[[2, 1]])
    assert not torch.equal(images[0], images[1])


def test_only_minibatches_are_augmented() -> None:
    plain, changed = (Simulation(task(on), FedAvg(tau=2), rounds=1, device="cpu") for on in (False, True))
    assert plain.row()["train_loss"] == changed.row()["train_loss"]
    plain.step()
    changed.step()
    assert not close(plain.server.w, changed.server.w, 1e-6)
    with pytest.warns(UserWarning, match="images are not shifted or flipped"):
        Simulation(task(True), FedAvg(batch="full"), rounds=1, device="cpu")
    with pytest.raises(ConfigError, match=r"larger than 8 pixels.*one sample has shape \[1, 8, 8\]"):
        task(False).augmented(Augment(8))
