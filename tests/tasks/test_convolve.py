"""Convolutions as matrix products give the results of torch's convolutions."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from fedcom.tasks.convolve import Unfolded, unfolded
from fedcom.tasks.objective import Objective

CASES = {
    "plain": (3, {}),
    "padded": (5, {"padding": 2}),
    "strided": (3, {"stride": 2, "padding": 1}),
    "uneven": ((2, 3), {"stride": (1, 2), "padding": (0, 1), "dilation": (2, 1)}),
    "no bias": (1, {"bias": False}),
}


@pytest.mark.parametrize(("kernel", "options"), CASES.values(), ids=CASES)
def test_unfolded_is_the_convolution(kernel, options):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, kernel, **options), nn.ReLU()).double()
    twin, x = unfolded(module), torch.randn(2, 3, 9, 10, dtype=torch.float64)
    assert [type(net[0]) for net in (twin, module)] == [Unfolded, nn.Conv2d]
    torch.testing.assert_close(twin(x), module(x), rtol=1e-12, atol=1e-12)


def test_gradients_of_a_stack_are_those_of_the_convolution():
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 2, 2)
    ).double()
    twin = unfolded(module)
    stack = {name: torch.randn(4, *p.shape, dtype=torch.float64) for name, p in module.named_parameters()}
    x = torch.randn(4, 5, 2, 6, 6, dtype=torch.float64)
    ours, theirs = (
        vmap(grad(lambda w, x, net=net: functional_call(net, w, (x,)).square().sum()))(stack, x)
        for net in (twin, module)
    )
    for name in stack:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-10, atol=1e-10)


def test_a_module_without_plain_convolutions_is_returned_itself():
    module = nn.Sequential(nn.Linear(3, 2))
    assert unfolded(module) is module
    grouped = nn.Sequential(nn.Conv2d(2, 2, 3, groups=2), nn.Conv2d(2, 2, 3, padding="same"))
    assert unfolded(grouped) is grouped


def test_a_compiled_objective_uses_matrix_products_and_has_the_same_gradients() -> None:
    torch.manual_seed(0)
    objective = Objective(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)))
    w = objective.start.repeat(2, 1) + 0.1 * torch.randn(2, objective.layout.size)
    given = (w, torch.randn(2, 5, 1, 4, 4), torch.randint(0, 3, (2, 5)), torch.full((2, 5), 0.2))
    names: list[str] = []

    def keep(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        names.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    traced = torch.compile(objective.gradients, backend=keep, fullgraph=True)(*given)
    torch.testing.assert_close(traced, objective.gradients(*given))
    assert not [name for name in names if "conv" in name]
