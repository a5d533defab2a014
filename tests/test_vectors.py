"""Modules as flat vectors and back."""

import pytest
import torch
from torch import nn

from fedcom.vectors import Layout, flatten, load


def model() -> nn.Sequential:
    """Two layers, with the second layer's bias frozen: 3*4 + 4 + 4*2 trainable coordinates."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    module[2].bias.requires_grad_(False)
    return module


def test_the_layout_of_a_module() -> None:
    where = Layout.of(model())
    assert where.names == ("0.weight", "0.bias", "2.weight")
    assert where.shapes == ((4, 3), (4,), (2, 4))
    assert where.sizes == [12, 4, 8]
    assert where.size == 24
    assert where.dtype == torch.float32
    assert where.itemsize == 4
    assert Layout.of(model(), torch.float64).itemsize == 8


def test_flatten_follows_the_layout() -> None:
    module = model()
    w = flatten(module)
    expected = [module[0].weight, module[0].bias, module[2].weight]
    assert torch.equal(w, torch.cat([p.detach().reshape(-1) for p in expected]))
    assert not w.requires_grad


def test_flatten_is_a_copy() -> None:
    for module in (model(), nn.Linear(2, 1, bias=False)):  # cat of a single tensor might return it
        w = flatten(module)
        before = next(module.parameters()).detach().clone()
        w.zero_()
        assert torch.equal(next(module.parameters()), before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_load_undoes_flatten(dtype: torch.dtype) -> None:
    source, target = model(), model()
    w = torch.arange(24, dtype=dtype) / 7
    frozen = target[2].bias.detach().clone()
    load(target, w)
    assert torch.equal(flatten(target, dtype), w.float().to(dtype))
    assert torch.equal(target[2].bias, frozen)
    load(target, flatten(source, dtype))
    for a, b in zip(source.parameters(), target.parameters(), strict=True):
        assert torch.equal(a, b)
        assert b.dtype == torch.float32


def test_load_copies_and_keeps_parameters_trainable() -> None:
    module, w = model(), torch.ones(24)
    load(module, w)
    w.zero_()
    assert float(module[0].weight.detach().sum()) == 12
    assert [p.requires_grad for p in module.parameters()] == [True, True, True, False]


def test_tied_parameters_count_once() -> None:
    module = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    module[1].weight = module[0].weight
    assert Layout.of(module).size == len(flatten(module)) == 9


def test_tensors_have_their_own_shapes() -> None:
    where = Layout(("a", "b", "c"), ((2, 3), (), (1, 1, 2)))
    tensors = where.tensors(torch.arange(9.0))
    assert {name: tuple(t.shape) for name, t in tensors.items()} == {"a": (2, 3), "b": (), "c": (1, 1, 2)}
    assert tensors["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert tensors["b"].item() == 6
    assert tensors["c"].tolist() == [[[7, 8]]]


def test_split_keeps_leading_axes() -> None:
    where = Layout(("a", "b"), ((2, 3), (4,)))
    x = torch.arange(30.0).reshape(3, 10)
    a, b = where.split(x)
    assert a.shape == (3, 6)
    assert b.shape == (3, 4)
    assert torch.equal(torch.cat([a, b], -1), x)
    a.zero_()  # a view
    assert float(x[:, :6].abs().sum()) == 0


@pytest.mark.parametrize("size", [9, 11])
def test_vectors_of_another_size_are_refused(size: int) -> None:
    with pytest.raises(RuntimeError, match="split"):
        Layout(("a", "b"), ((2, 3), (4,))).tensors(torch.zeros(size))


def test_the_layout_of_a_plain_vector() -> None:
    where = Layout.vector(5, torch.float64)
    assert (where.names, where.shapes, where.size, where.itemsize) == (("",), ((5,),), 5, 8)


def test_fingerprints_tell_layouts_apart() -> None:
    base = Layout(("a", "b"), ((2, 3), (4,)))
    others = [
        Layout(("a", "c"), ((2, 3), (4,))),
        Layout(("b", "a"), ((2, 3), (4,))),
        Layout(("a", "b"), ((3, 2), (4,))),
        Layout(("a", "b"), ((6,), (4,))),
        Layout(("a", "b"), ((2, 3), (4, 1))),
        Layout(("a", "b"), ((2, 3), (4,)), torch.float64),
        Layout(("a",), ((2, 3),)),
        Layout.vector(10),
    ]
    prints = {where.fingerprint for where in (base, *others)}
    assert len(prints) == 1 + len(others)
    assert all(0 <= p < 2**32 for p in prints)


def test_fingerprints_do_not_change() -> None:
    # The next version of the library must read the messages of this one.
    assert Layout(("a", "b"), ((2, 3), (4,))).fingerprint == 718595632
    assert Layout.vector(10).fingerprint == 1886739049
