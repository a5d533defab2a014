import pytest
import torch

from fedcom.data import load
from fedcom.data.synthetic import Synthetic
from fedcom.errors import ConfigError


def test_shapes_sizes_and_groups():
    data = load("synthetic", seed=3)
    sizes = torch.bincount(data.groups)
    assert data.x.shape == (len(data.y), 60)
    assert len(sizes) == 30
    assert sizes.min() >= 45
    assert sizes.max() <= 4500
    assert sizes.max() > 4 * sizes.min()
    assert data.test_x.shape == (len(data.test_y), 60)
    assert 0.05 < len(data.test_y) / len(data.y) < 0.12
    assert data.classes == 10
    assert data.y.max() < 10


def test_a_clients_data_does_not_depend_on_the_number_of_clients():
    few, many = load("synthetic", clients=3, seed=5), load("synthetic", clients=8, seed=5)
    for k in range(3):
        assert torch.equal(few.x[few.groups == k], many.x[many.groups == k])
        assert torch.equal(few.y[few.groups == k], many.y[many.groups == k])
    assert torch.equal(few.test_x, many.test_x[: len(few.test_x)])


def test_the_seed_and_beta_matter():
    x = load("synthetic", clients=1, seed=1).x
    assert torch.equal(x, load("synthetic", clients=1, seed=1).x)
    assert x.shape != (other := load("synthetic", clients=1, seed=2).x).shape or not torch.equal(x, other)
    assert not torch.equal(x, load("synthetic", clients=1, seed=1, beta=2.0).x)


def test_alpha_does_not_change_the_labels_as_in_the_paper():
    one, two = load("synthetic", clients=4, alpha=0.0), load("synthetic", clients=4, alpha=50.0)
    assert torch.equal(one.x, two.x)
    assert (one.y == two.y).double().mean() > 0.999  # up to rounding


def test_beta_is_the_variance_of_the_clients_mean_input():
    means = [Synthetic(1.0, 4.0, 0).laid_out(torch.tensor([k])).x.mean() for k in range(120)]
    assert 2.5 < float(torch.stack(means).var()) < 5.5


def test_features_have_variance_j_to_the_minus_1_2():
    source = Synthetic(1.0, 1.0, 0)
    n, k = source.total(torch.arange(40)).max(0)
    x = source.laid_out(k.reshape(1)).x
    ratio = x.double().var(dim=0) * torch.arange(1, 61) ** 1.2
    assert n > 1000
    assert (ratio - 1).abs().max() < 0.2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clients": 0}, "got 0"),
        ({"alpha": -1.0}, "alpha.*got -1"),
        ({"beta": float("nan")}, "beta.*got nan"),
    ],
)
def test_bad_settings_are_refused_by_name(settings, message):
    with pytest.raises(ConfigError, match=message):
        load("synthetic", **settings)
