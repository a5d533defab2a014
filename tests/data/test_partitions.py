import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedcom.data import split
from fedcom.data.partitions import log_gamma
from fedcom.draws import Draw
from fedcom.errors import ConfigError, DataError

labels = st.lists(st.integers(0, 5), min_size=1, max_size=120).map(torch.tensor)
seeds = st.integers(0, 2**32)


def covers(parts, n):
    """Whether the parts are disjoint and together all of 0..n-1."""
    together = torch.cat(parts)
    return together.dtype == torch.int64 and together.sort().values.tolist() == list(range(n))


def sizes(parts):
    return [len(part) for part in parts]


@given(labels, st.data(), seeds)
def test_iid_covers_all_evenly(y, data, seed):
    clients = data.draw(st.integers(1, len(y)))
    parts = split("iid", y, None, clients, Draw.seeded(seed))
    assert len(parts) == clients
    assert covers(parts, len(y))
    assert max(sizes(parts)) - min(sizes(parts)) <= 1


@given(labels, st.data(), seeds)
def test_classes_covers_all_in_even_shards_of_few_classes(y, data, seed):
    known = len(y.unique())
    k = data.draw(st.integers(1, known))
    clients = data.draw(st.integers(1, len(y) // k))
    parts = split("classes", y, None, clients, Draw.seeded(seed), classes_per_client=k)
    assert len(parts) == clients
    assert covers(parts, len(y))
    assert max(sizes(parts)) - min(sizes(parts)) <= k
    held = [len(y[part].unique()) for part in parts]
    assert sum(held) <= clients * k + known - 1


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 6), seeds)
def test_if_every_shard_is_one_class_each_client_has_classes_per_client(k, clients, size, seed):
    classes = k * clients  # a shard is then exactly one class
    y = torch.arange(classes).repeat(size)
    parts = split("classes", y, None, clients, Draw.seeded(seed), classes_per_client=k)
    assert [len(y[part].unique()) for part in parts] == [k] * clients


@given(labels, st.data(), seeds, st.floats(0.3, 100))
def test_dirichlet_covers_all_and_leaves_nobody_empty(y, data, seed, alpha):
    clients = data.draw(st.integers(1, max(1, len(y) // 20)))
    parts = split("dirichlet", y, None, clients, Draw.seeded(seed), alpha=alpha)
    assert len(parts) == clients
    assert covers(parts, len(y))
    assert min(sizes(parts)) >= 1


@given(st.lists(st.integers(0, 9), min_size=1, max_size=60).map(torch.tensor), st.data(), seeds)
def test_natural_gives_whole_groups(groups, data, seed):
    known = groups.unique().tolist()
    clients = data.draw(st.none() | st.integers(1, len(known)))
    parts = split("natural", torch.zeros(len(groups)), groups, clients, Draw.seeded(seed))
    ids = [groups[part].unique().tolist() for part in parts]
    assert all(len(one) == 1 for one in ids)
    assert len({one[0] for one in ids}) == len(parts) == (len(known) if clients is None else clients)
    assert all(len(part) == int((groups == one[0]).sum()) for part, one in zip(parts, ids, strict=True))
    if len(parts) == len(known):
        assert covers(parts, len(groups))
        assert [one[0] for one in ids] == known


def test_a_label_is_shared_equally_by_the_clients_that_have_it():
    y = torch.arange(1000) % 10 + 5  # labels need not begin at 0
    for k in (1, 2, 3):
        parts = split("labels", y, None, 12, Draw.seeded(k), classes_per_client=k)
        assert covers(parts, len(y))
        held = [set(y[part].tolist()) for part in parts]
        assert [len(labels) for labels in held] == [k] * 12
        assert all(5 + j % 10 in labels for j, labels in enumerate(held))
        for label in range(5, 15):
            shares = [
                int((y[part] == label).sum()) for part, own in zip(parts, held, strict=True) if label in own
            ]
            assert max(shares) - min(shares) <= 1
    for clients, k in ((5, 2), (4, 3)):  # fewer than there are labels
        few = split("labels", y, None, clients, Draw.seeded(0), classes_per_client=k)
        assert covers(few, len(y))
        assert [len(y[part].unique()) for part in few] == [k] * clients


def test_a_client_that_has_its_share_gets_no_more_of_later_classes():
    y, clients = torch.arange(6000) % 10, 10
    for seed in range(5):
        parts = split("dirichlet-capped", y, None, clients, Draw.seeded(seed), alpha=0.5)
        assert covers(parts, len(y))
        assert min(sizes(parts)) >= 10
        for part in parts:
            of_label = torch.bincount(y[part], minlength=10)
            before = of_label.cumsum(0) - of_label
            assert (of_label[before >= len(y) / clients] == 0).all()
    assert max(sizes(parts)) > len(y) / clients


@pytest.mark.parametrize("name", ["iid", "classes", "labels", "dirichlet", "dirichlet-capped", "natural"])
def test_a_partition_depends_on_the_draw_only(name):
    y, groups = torch.arange(600) % 10, torch.arange(600) % 30

    def parts(seed):
        return [part.tolist() for part in split(name, y, groups, 10, Draw.seeded(seed))]

    assert parts(1) == parts(1)
    assert parts(1) != parts(2)


def test_small_alpha_is_uneven_and_large_alpha_even():
    y = torch.arange(10).repeat_interleave(1000)
    uneven = split("dirichlet", y, None, 10, Draw.seeded(0), alpha=0.05)
    even = split("dirichlet", y, None, 10, Draw.seeded(0), alpha=1e6)
    top = torch.stack([torch.bincount(y[part], minlength=10) for part in uneven]).max(dim=0).values
    assert top.double().mean() > 700
    assert min(sizes(even)) > 980


@pytest.mark.parametrize("alpha", [0.02, 0.3, 1.0, 4.5, 300.0])
def test_gamma_draws_have_the_gamma_distribution(alpha):
    from scipy import stats  # takes a second to import

    draws = torch.exp(log_gamma(Draw.seeded(7), alpha, 20_000)).numpy()
    assert stats.kstest(draws, "gamma", args=(alpha,)).pvalue > 0.01


def test_gamma_draws_do_not_underflow_in_logarithms():
    log_g = log_gamma(Draw.seeded(7), 1e-4, 1000)
    assert torch.isfinite(log_g).all()
    assert len(log_g.unique()) == 1000


def test_every_key_draws_its_own_gamma_numbers():
    draw = Draw.seeded(3)
    rows = log_gamma(draw.fold(torch.arange(4)), 0.5, 50)
    assert torch.equal(rows[2], log_gamma(draw.fold(2), 0.5, 50))


@pytest.mark.parametrize(
    ("name", "clients", "options", "message"),
    [
        ("idd", 2, {}, "unknown partition 'idd'; did you mean 'iid'"),
        ("iid", 0, {}, "from 1 to the number of samples, 12; got 0"),
        ("iid", 13, {}, "from 1 to the number of samples, 12; got 13"),
        ("iid", None, {}, "needs the number of clients"),
        ("classes", 2, {"classes_per_client": 0}, "at least 1; got 0"),
        ("classes", 2, {"classes_per_client": 4}, "is 4, but the data has 3 classes"),
        ("classes", 7, {"classes_per_client": 2}, "is 14, more than the 12 samples"),
        ("labels", 2, {"classes_per_client": 4}, "is 4, but the data has 3 classes"),
        ("labels", 2, {"classes_per_client": 1}, "cannot have all 3 classes"),
        ("dirichlet-capped", 6, {"alpha": 1e-6}, "left one of 6 clients with fewer than 1 samples"),
        ("dirichlet", 2, {"alpha": 0.0}, "positive and finite; got 0.0"),
        ("dirichlet", 2, {"alpha": float("inf")}, "positive and finite; got inf"),
        (
            "dirichlet",
            12,
            {"alpha": 0.01},
            "alpha = 0.01 left one of 12 clients.*raise alpha or lower clients",
        ),
        ("natural", 2, {}, "mnist-by-writer, femnist, synthetic"),
        ("natural", None, {}, "mnist-by-writer, femnist, synthetic"),
    ],
)
def test_bad_settings_are_refused_by_name(name, clients, options, message):
    with pytest.raises(ConfigError, match=message):
        split(name, torch.arange(12) % 3, None, clients, Draw.seeded(0), **options)


def test_more_clients_than_groups_is_refused():
    with pytest.raises(ConfigError, match="clients is 4, but the data has 3 natural groups"):
        split("natural", torch.zeros(9), torch.arange(9) % 3, 4, Draw.seeded(0))


@pytest.mark.parametrize("name", ["classes", "labels", "dirichlet", "dirichlet-capped"])
def test_a_regression_has_no_classes_to_split_by(name):
    with pytest.raises(ConfigError, match=r"needs class labels; these are torch\.float32; use 'iid'"):
        split(name, torch.zeros(9), None, 2, Draw.seeded(0))


def test_groups_must_be_one_per_sample():
    with pytest.raises(DataError, match="3 group ids for 9 samples"):
        split("natural", torch.zeros(9), torch.arange(3), 2, Draw.seeded(0))
