"""Adapters of layers that a module does not call: refused if it reads their weight, else told."""

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedcom import ConfigError, FedAvg, Simulation, Task, lora
from fedcom.tasks.adapters import adapted_layers

X, Y = torch.arange(40).reshape(10, 4) % 6, torch.arange(10) % 3
METHODS = ("lora", "ffa", "rolora", "fedex", "flora", "het")


class Model(nn.Module):
    """Scores of a few numbers, by the layers `head` and `branch` as a function of these and of x says."""

    def __init__(self, ends: Callable[["Model", Tensor], Tensor]) -> None:
        super().__init__()
        self.embed, self.drop = nn.Embedding(6, 5), nn.Dropout(0.5)
        self.head, self.branch, self.wide = nn.Linear(5, 3), nn.Linear(5, 3), nn.Linear(3, 6, bias=False)
        self.conv = nn.Conv1d(5, 5, 1)
        self.ends = ends

    def forward(self, x: Tensor) -> Tensor:
        return self.ends(self, self.drop(self.conv(self.embed(x).transpose(-1, -2)).mean(-1)))


def task_of(ends: Callable[[Model, Tensor], Tensor], layers: tuple[str, ...], **options: object) -> Task:
    return Task.from_arrays(lora(Model(ends), 2, layers=layers, **options), X, Y, clients=2)  # type: ignore[arg-type]


def normalised(model: Model, x: Tensor) -> Tensor:
    return F.linear(x, model.head.weight / model.head.weight.norm(dim=-1, keepdim=True))


def turned(model: Model, x: Tensor) -> Tensor:
    return x @ model.head.weight.T


def past(model: Model, x: Tensor) -> Tensor:
    return nn.Linear.forward(model.head, x)


@pytest.mark.parametrize("ends", [normalised, turned, past])
@pytest.mark.parametrize("method", METHODS)
def test_a_weight_that_is_read_past_its_adapter_is_refused(
    ends: Callable[[Model, Tensor], Tensor], method: str
) -> None:
    more = {"ranks": (1, 2)} if method == "het" else {}
    said = r"reads the weight of layer 'head' and does not call.*name the layers.*as in layers=embed,conv$"
    with pytest.raises(ConfigError, match=said):
        task_of(ends, ("embed", "conv", "head"), method=method, **more)
    task_of(ends, ("embed", "conv"), method=method, **more)


def test_so_is_one_of_16_bits_and_one_in_eval() -> None:
    module = Model(turned).to(torch.bfloat16).eval()
    with pytest.raises(ConfigError, match="weight of layer 'head'"):
        Task.from_arrays(lora(module, 2, layers="head"), X, Y, clients=2)


CALLED: dict[str, Callable[[Model, Tensor], Tensor]] = {
    "as usual": lambda model, x: model.head(x),
    "by forward": lambda model, x: model.head.forward(x),
    "and read too": lambda model, x: model.head(x) + F.linear(x, model.head.weight),
    "for nothing": lambda model, x: (model.head(x), model.branch(x))[1],
    "under vmap": lambda model, x: torch.vmap(model.head)(x),
    "by where": lambda model, x: torch.where(x.sum(-1, keepdim=True) > 0, model.head(x), model.branch(x)),
    "twice": lambda model, x: model.head(F.pad(model.head(x), (0, 2))),
    "without gradient": lambda model, x: model.head(x).detach() + model.branch(x),
}


@pytest.mark.parametrize("way", CALLED)
def test_a_layer_that_is_called_is_never_refused(way: str) -> None:
    task = task_of(CALLED[way], ("embed", "conv", "head"))
    assert not any("low_rank" in vars(layer) for _, layer in adapted_layers(task.objective.module))
    Simulation(task, FedAvg(eta=0.001, batch=2), rounds=1, device="cpu").run()


@pytest.mark.parametrize(
    "ends",
    [
        lambda model, x: model.branch(x) if len(x) < 100 else model.head(x),
        lambda model, x: model.branch(x.to(model.head.weight.dtype)),
        lambda model, x: model.branch(x) + torch.zeros_like(model.head.weight).sum(),
    ],
)
def test_a_layer_that_is_neither_called_nor_read_is_told(ends: Callable[[Model, Tensor], Tensor]) -> None:
    said = r"does not call layer 'head' for the first sample; .* as in layers=embed"
    with pytest.warns(UserWarning, match=said) as found:
        task_of(ends, ("embed", "head"))
    assert found[0].filename == __file__


def test_a_weight_that_another_layer_shares_is_not_read_for_that() -> None:
    def tied(model: Model, x: Tensor) -> Tensor:
        model.branch(x)
        return F.linear(F.relu(x), model.branch.weight)

    module = Model(tied)
    module.branch.weight = module.head.weight  # the head itself is idle
    adapted = lora(module, 2, layers=("embed", "head"))
    with pytest.warns(UserWarning, match="layer 'head'"):
        task = Task.from_arrays(adapted, X, Y, clients=2)
    inner = task.objective.module
    assert inner.head.weight is inner.branch.weight  # type: ignore[union-attr]


def test_all_are_named_but_four() -> None:
    layers = [nn.Linear(4, 4) for _ in range(6)]

    class Six(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(layers)

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = x @ layer.weight
            return x

    with pytest.raises(ConfigError, match=r"6 layers, 'layers.0', .* 'layers.3', \.\.\. and does not"):
        Task.from_arrays(lora(Six()), torch.ones(8, 4), torch.arange(8) % 4, clients=2)


def test_modules_without_adapters_are_not_looked_at() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Task.from_arrays(Model(turned), X, Y, clients=2)
