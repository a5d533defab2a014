"""Gradients that are written out are those of autograd."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from fedcom.tasks.dense import Dense
from fedcom.tasks.losses import cross_entropy
from fedcom.tasks.objective import Objective
from fedcom.vectors import Layout


def network(bias: bool, *widths: int) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Flatten()]
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out, bias=bias, dtype=torch.float64), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("widths", [(6, 3), (6, 5, 3), (6, 5, 4, 3)])
def test_gradients_are_autograds(bias: bool, widths: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    module = network(bias, *widths)
    layout = Layout.of(module, torch.float64)
    dense = Dense.of(module, layout)
    assert dense is not None
    w, x = torch.randn(4, layout.size).double(), torch.randn(4, 7, 2, 3).double()
    y, weight = torch.randint(0, 3, (4, 7)), torch.rand(4, 7).double()
    found = dense.gradients(w, x, y, weight)
    for j in range(4):
        w_j = w[j].clone().requires_grad_()
        outputs = functional_call(module, layout.tensors(w_j), (x[j],))
        (expected,) = torch.autograd.grad((cross_entropy(outputs, y[j]) * weight[j]).sum(), w_j)
        assert torch.allclose(found[j], expected, rtol=1e-12, atol=1e-14)


def test_stacks_of_any_size_give_the_same_bits() -> None:
    torch.manual_seed(1)
    module = network(True, 40, 30, 20, 5).float()
    dense = Dense.of(module, Layout.of(module))
    assert dense is not None
    w, x = torch.randn(12, dense.layout.size), torch.randn(12, 16, 40)
    y, weight = torch.randint(0, 5, (12, 16)), torch.rand(12, 16)
    whole = dense.gradients(w, x, y, weight)
    for size in (1, 3, 8):
        cut = [t.split(size) for t in (w, x, y, weight)]
        pieces = [dense.gradients(*piece) for piece in zip(*cut, strict=True)]
        assert torch.equal(torch.cat(pieces), whole)


def sharing() -> nn.Sequential:
    """A network with the same layer twice."""
    middle = nn.Linear(5, 5)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), middle, nn.ReLU(), middle, nn.ReLU(), nn.Linear(5, 3))


def test_a_layer_that_stands_twice_trains() -> None:
    module = sharing()
    objective = Objective(module)
    x, y, weight = torch.randn(2, 4, 6), torch.randint(0, 3, (2, 4)), torch.full((2, 4), 0.25)
    found = objective.gradients(objective.start.expand(2, -1), x, y, weight)
    for k in range(2):
        own = torch.autograd.grad(F.cross_entropy(module(x[k]), y[k]), list(module.parameters()))
        torch.testing.assert_close(found[k], torch.cat([g.flatten() for g in own]))


def test_other_modules_are_left_to_autograd() -> None:
    hooked = network(True, 6, 3)
    hooked[1].register_forward_hook(lambda module, inputs, output: 2 * output)
    frozen = network(True, 6, 5, 3)
    frozen[1].weight.requires_grad_(False)
    others = [
        nn.Linear(6, 3),
        nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)),
        nn.Sequential(nn.Linear(6, 5), nn.ReLU()),
        nn.Sequential(nn.Flatten(2), nn.Linear(6, 3)),
        nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Flatten(), nn.Linear(10, 3)),
        hooked,
        frozen,
        sharing(),
    ]
    for module in others:
        assert Dense.of(module, Layout.of(module)) is None


def test_an_objective_with_a_given_loss_is_left_to_autograd() -> None:
    module = network(True, 6, 3).float()
    w = Objective(module).start.expand(2, -1)
    x, y, weight = torch.randn(2, 5, 6), torch.randint(0, 3, (2, 5)), torch.full((2, 5), 0.2)
    given, written_out = Objective(module, nn.functional.cross_entropy), Objective(module)
    assert (given.same_in_any_stack, written_out.same_in_any_stack) == (False, True)
    assert torch.allclose(given.gradients(w, x, y, weight), written_out.gradients(w, x, y, weight), atol=1e-6)
