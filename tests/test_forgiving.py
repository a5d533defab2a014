"""Anything a person would pass works, or the error says what is wanted."""

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

import fedcom
from fedcom import (
    ConfigError,
    DataError,
    FedAvg,
    FedCOM,
    FedcomError,
    FedCOMGATE,
    Identity,
    Int,
    Links,
    Simulation,
    Storage,
    Task,
    TopK,
)
from fedcom.errors import by_flags
from fedcom.studies import codec_card, plan

N, D, C = 60, 4, 3
X = torch.linspace(-1, 1, N * D).reshape(N, D).sin()
Y = torch.arange(N) % C


def linear(outputs: int = C) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Linear(D, outputs)


def task(**changes: Any) -> Task:
    settings: dict[str, Any] = {"module": linear(), "x": X, "y": Y, "clients": 4, **changes}
    return Task.from_arrays(**settings)


def last(simulation: Simulation) -> dict[str, Any]:
    row = dict(simulation.run()[-1])
    del row["seconds"]
    return row


def play(task: Task, algorithm: Any = "fedavg", links: Any = None, **settings: Any) -> dict[str, Any]:
    return last(Simulation(task, algorithm, links, rounds=2, device="cpu", **settings))


# What works


@pytest.mark.parametrize("algorithm", ["fedcomgate", FedCOMGATE, FedCOMGATE()])
@pytest.mark.parametrize("links", ["int", Int, Int(), Links(Int()), None])
def test_names_classes_and_codecs_stand_for_methods_and_links(algorithm: Any, links: Any) -> None:
    assert play(task(), algorithm, links) == play(task(), FedCOMGATE(), Links(Int()))


def test_numbers_of_numpy_do() -> None:
    there = Simulation(
        task(), FedAvg(), rounds=np.int64(2), seed=np.uint8(3), eval_every=np.int32(1), device="cpu"
    )
    assert last(there) == play(task(), FedAvg(), seed=3)


def test_storage_and_network_by_name() -> None:
    assert play(task(), "fedcomgate", storage="disk") == play(task(), "fedcomgate", storage=Storage("disk"))
    assert play(task(), network="lte")["modelled_seconds"] > 0


HALVES = [list(range(0, N, 2)), list(range(1, N, 2))]


@pytest.mark.parametrize(
    "partition",
    [
        HALVES,
        [np.array(half) for half in HALVES],
        [torch.tensor(half) for half in HALVES],
        np.array(HALVES),
        tuple(HALVES),
        [np.arange(N) % 2 == 0, np.arange(N) % 2 == 1],
        np.arange(N) % 2,
        torch.arange(N) % 2,
        ["even", "odd"] * (N // 2),
        lambda request: HALVES,
        lambda request: [torch.tensor(half) for half in HALVES],
    ],
    ids=lambda p: type(p).__name__,
)
def test_a_partition_can_be_lists_arrays_names_or_a_function(partition: Any) -> None:
    clients = {"clients": 2} if callable(partition) else {"clients": None}
    made = task(partition=partition, **clients)
    assert made.sizes.tolist() == [N // 2, N // 2]
    assert torch.equal(made.x, torch.cat([X[half] for half in HALVES]))


def test_a_function_is_told_what_it_needs() -> None:
    def by_parity(request: fedcom.SplitRequest) -> list[Tensor]:
        assert request.clients == 5
        return list(request.draw.permutation(len(request.y)).chunk(request.clients))

    assert task(partition=by_parity, clients=5).clients == 5


def test_parts_given_to_build_can_be_lists() -> None:
    data = fedcom.from_arrays(X, Y)
    assert Task.build(fedcom.Objective(linear()), data, HALVES).sizes.tolist() == [30, 30]


def test_a_torch_dataset_is_samples_and_targets() -> None:
    class Lazy(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return N

        def __getitem__(self, i: int) -> tuple[Tensor, int]:
            return X[i], int(Y[i])

    for dataset in (TensorDataset(X, Y), Lazy()):
        made = task(x=dataset, y=None, test_x=dataset)
        assert torch.equal(made.x, task().x)
        assert torch.equal(made.test_y, Y)
        assert made.classes == C


class Table:
    """A table with columns, as Hugging Face's data sets are."""

    column_names = ("image", "label")

    def __len__(self) -> int:
        return N

    def __getitem__(self, key: Any) -> Any:
        return {"image": X, "label": Y}[key] if isinstance(key, str) else {"image": X[key], "label": Y[key]}


class Rows(torch.utils.data.Dataset[Any]):
    """Items that are mappings."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"labels": int(Y[i]), "pixel_values": X[i].numpy()}


@pytest.mark.parametrize(
    "both",
    [
        DataLoader(TensorDataset(X, Y), batch_size=7),
        DataLoader(TensorDataset(X, Y), batch_size=7, shuffle=True, drop_last=True),
        list(zip(X, Y, strict=True)),
        [(x.tolist(), int(y)) for x, y in zip(X, Y, strict=True)],
        {"x": X, "y": Y},
        {"label": Y.tolist(), "features": X.numpy()},
        Table(),
        Rows(),
        [Rows()[i] for i in range(N)],
        (X, Y),
        (X.numpy(), Y.tolist()),
    ],
    ids=lambda b: type(b).__name__,
)
def test_samples_and_targets_in_one(both: Any) -> None:
    made = task(x=both, y=None, test_x=both)
    assert torch.equal(made.x, task().x)
    assert torch.equal(made.y, task().y)
    assert torch.equal(made.test_x, X)
    assert made.classes == C


def test_sparse_samples_get_their_zeros() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    gaps = X * (X > 0)
    for given in (gaps.to_sparse(), sparse.csr_matrix(gaps.numpy())):
        assert torch.equal(task(x=given).x, task(x=gaps).x)


def test_the_number_of_clients_may_be_text() -> None:
    assert task(clients="4").sizes.tolist() == task(clients=4.0).sizes.tolist() == [15] * 4


def test_groups_split_the_samples_unless_a_partition_is_named() -> None:
    names = np.array(["carol", "alice", "bob"])[np.arange(N) % 3]
    made = task(groups=names, clients=None)
    assert torch.equal(made.x, task(groups=names, partition="natural", clients=None).x)
    assert made.sizes.tolist() == [20, 20, 20]
    assert torch.equal(made.x[:20], X[1::3])  # alice's
    assert task(groups=names, clients=2).sizes.tolist() == [20, 20]
    assert task(groups=names, partition="iid", clients=5).sizes.tolist() == [12] * 5
    with pytest.raises(ConfigError, match="has 3 natural groups; lower it, or name another partition"):
        task(groups=names, clients=4)


@pytest.mark.parametrize("as_function", [False, True])
def test_a_partition_that_overlaps_or_leaves_samples_out_is_warned_of(as_function: bool) -> None:
    def made(*parts: list[int]) -> Task:
        listed = list(parts)
        partition = (lambda request: listed) if as_function else listed
        return task(partition=partition, clients=len(listed) if as_function else None)

    everyone = list(range(N))
    with pytest.warns(UserWarning, match=r"to more than one client, or twice to one: \[7, 9\], 2 in all"):
        assert made(everyone, [7, 9]).sizes.tolist() == [N, 2]
    with pytest.warns(UserWarning, match=r"twice to one: \[3\], 1 in all"):
        made([*everyone[1:], 3], [0])
    with pytest.warns(UserWarning, match=rf"leaves 56 of {N} samples out"):
        assert made([0, 1], [2, 3]).sizes.tolist() == [2, 2]
    with pytest.raises(ConfigError, match="every client needs a sample, but client 1 has none, and 1 more"):
        made(everyone, [], [])


def test_parts_that_overlap_are_warned_of_where_a_task_is_built() -> None:
    with pytest.warns(UserWarning, match=r"twice to one: \[0\], 1 in all"):
        Task.build(fedcom.Objective(linear()), fedcom.from_arrays(X, Y), [*HALVES[:1], [0, *HALVES[1]]])


def test_groups_can_be_names() -> None:
    names = np.array(["carol", "alice", "bob"])[np.arange(N) % 3]
    for groups in (names, list(names), names.astype(object)):
        made = task(groups=groups, partition="natural", clients=None)
        assert made.sizes.tolist() == [20, 20, 20]
        assert torch.equal(made.x[:20], X[1::3])  # alice's


class Wrapped(nn.Module):
    """Returns its outputs in a container."""

    def __init__(self, wrap: Any) -> None:
        super().__init__()
        self.inner, self.wrap = linear(), wrap

    def forward(self, x: Tensor) -> Any:
        return self.wrap(self.inner(x))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda o: {"logits": o, "hidden": o + 1},
        lambda o: {"out": o},
        lambda o: (o, o + 1),
        lambda o: [o],
    ],
)
def test_modules_may_return_mappings_and_tuples(wrap: Any) -> None:
    found, plain = play(task(module=Wrapped(wrap))), play(task(module=linear()))
    assert found["train_loss"] == pytest.approx(plain["train_loss"], rel=1e-5)


def test_whole_targets_of_any_shape_with_a_loss_of_ones_own() -> None:
    many = torch.stack([Y, 1 - Y % 2], 1)  # two labels per sample, some negative after the shift
    loss = nn.functional.mse_loss
    row = play(task(module=linear(2), y=many - 1, loss=lambda o, t: loss(o, t.to(o.dtype))))
    assert math.isfinite(row["train_loss"])
    assert row["test_accuracy"] is None
    signs = play(task(module=linear(1), y=2 * (Y > 0).long() - 1, loss=lambda o, t: (1 - t * o[:, 0]).mean()))
    assert math.isfinite(signs["train_loss"])
    counts = play(task(module=linear(1), y=Y, loss=lambda o, t: nn.functional.poisson_nll_loss(o[:, 0], t)))
    assert counts["worst_client_accuracy"] is None  # one output is no score per class
    scored = play(task(y=Y, loss=nn.functional.cross_entropy))
    assert scored["worst_client_accuracy"] is not None


def test_dropout_in_eval_mode_is_no_dropout() -> None:
    module = nn.Sequential(linear(), nn.Dropout(0.5))
    assert task(module=module).objective.drops
    assert play(task(module=module.eval()))["train_loss"] == pytest.approx(
        play(task(module=nn.Sequential(linear(), nn.Identity())))["train_loss"]
    )


# Metrics


def test_metrics_of_ones_own_are_measured_on_the_test_set() -> None:
    def recall(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.argmax(-1)[targets == 1] == 1).double().mean()

    def never(outputs: Tensor, targets: Tensor) -> float:
        return math.inf

    tested = task(test_x=X[:9], test_y=Y[:9])
    simulation = Simulation(
        tested, "fedavg", rounds=2, metrics={"recall": recall, "never": never}, device="cpu"
    )
    row = simulation.run()[-1]
    outputs = simulation.module()(X[:9]).detach()
    assert row["recall"] == pytest.approx(float(recall(outputs, Y[:9])))
    assert row["never"] is None
    assert row["test_loss"] == pytest.approx(float(nn.functional.cross_entropy(outputs, Y[:9])), rel=1e-5)
    assert list(simulation.clients()[0]) == ["client", "samples", "train_loss", "accuracy", "recall", "never"]


def test_clients_have_scores_of_their_own() -> None:
    simulation = Simulation(task(partition=HALVES, clients=None), "fedavg", rounds=1, device="cpu")
    simulation.run()
    found = simulation.clients()
    for half, row in zip(HALVES, found, strict=True):
        outputs = simulation.module()(X[half]).detach()
        assert row["train_loss"] == pytest.approx(
            float(nn.functional.cross_entropy(outputs, Y[half])), rel=1e-5
        )
        assert row["accuracy"] == pytest.approx(float((outputs.argmax(-1) == Y[half]).float().mean()))
        assert row["samples"] == N // 2


def test_a_regression_has_scores() -> None:
    target = X @ torch.arange(1.0, D + 1)[:, None]
    made = task(module=linear(1), y=target, test_x=X[:9], test_y=target[:9], loss=nn.functional.mse_loss)
    simulation = Simulation(made, FedAvg(eta=0.1), rounds=5, device="cpu")
    first, *_, end = simulation.run()
    outputs = simulation.module()(X[:9]).detach()
    error, spread = (outputs - target[:9]).square().mean(), (target[:9] - target[:9].mean()).square().mean()
    assert end["test_rmse"] == pytest.approx(float(error.sqrt()), rel=1e-4)
    assert end["test_r2"] == pytest.approx(float(1 - error / spread), rel=1e-4)
    assert end["test_r2"] > first["test_r2"]
    assert "test_r2" not in play(task(test_x=X, test_y=Y))


# What is refused, and how


class Branching(nn.Module):
    """Does what cannot be computed for many clients at once."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.inner, self.how = linear(), how
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)
        if self.how == "if":
            return out if out.sum() > 0 else -out
        if self.how == "item":
            return out * out.sum().item()
        if self.how == "in place":
            total = torch.zeros(out.shape)
            total += out
            return total
        if self.how == "other random":
            return out * (1 + random.random())
        if self.how in ("count", "drop and count"):
            self.calls = getattr(self, "calls", 0) + 1
            return out * self.calls if self.how == "count" else nn.functional.dropout(out, 0.5) * self.calls
        if self.how == "average":
            self.mean = 0.9 * self.mean + out.detach().mean(0)
            return out - self.mean
        if self.how == "numpy":
            return out * float(out.detach().numpy().sum())
        if self.how == "clamp":
            self.inner.weight.data.clamp_(-0.01, 0.01)
            return self.inner(x)  # type: ignore[no-any-return]
        if self.how == "normalise":
            self.inner.weight.data = nn.functional.normalize(self.inner.weight.data)
            return self.inner(x)  # type: ignore[no-any-return]
        if self.how == "table":
            return self.inner.weight[:, x[:, 0]].T
        if self.how == "slope":
            return out + torch.autograd.functional.jacobian(torch.sum, x)[:, :1]  # type: ignore[no-any-return, no-untyped-call]
        if self.how == "checkpoint":
            return checkpoint(self.inner, x, use_reentrant=False)
        if self.how == "old checkpoint":
            return checkpoint(self.inner, x, use_reentrant=True)
        if self.how == "random":
            return out + torch.randn_like(out)
        return out[out > 0][:3].reshape(1, 3)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("if", r"reads the value of a tensor, as `if x.sum\(\) > 0`, .* use torch.where"),
        ("item", r"reads the value of a tensor, as .* .item\(\), .numpy\(\) do"),
        ("in place", r"writes into a tensor, as `x \+= y`"),
        ("random", r"draws random numbers, so no run could be repeated"),
        ("other random", r"other outputs when it is called again"),
        ("count", r"other outputs when it is called again"),
        ("drop and count", r"other outputs when it is called again"),
        ("average", r"changes its buffer 'mean' when it is called"),
        ("numpy", r"reads the value of a tensor, as .* .numpy\(\) do"),
        ("clamp", r"changes its parameter 'inner.weight' when it is called"),
        ("normalise", r"changes its parameter 'inner.weight' when it is called"),
        (
            "table",
            r"numbers are floating-point unless a module has an nn.Embedding; call .long\(\) in forward",
        ),
        ("slope", r"the module or its loss fails there: RuntimeError: You are attempting to call"),
        ("checkpoint", r"saves memory by torch.utils.checkpoint; leave that out, and lower run.chunk or run"),
        ("old checkpoint", r"an autograd.Function without setup_context: .* torch.utils.checkpoint, leave"),
        ("mask", r"shape depends on values|cannot take one sample"),
    ],
)
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_errors_of_vmap_are_translated(how: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        task(module=Branching(how))


REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"y": Y + 1},
        r"labels go up to 3, but for one sample the module returns \[1, 3\]; it must return",
    ),
    ({"y": Y.float()}, r"cross-entropy.*needs classes.*y holds floats; give y.long\(\), or a loss"),
    ({"y": Y + 0.5}, r"y holds floats; give one class per sample, or a loss of your own"),
    ({"x": Y, "y": X}, r"x has shape \[60\] and y \[60, 4\]: they look swapped; the order is module, x, y"),
    ({"x": Y, "y": X, "loss": nn.functional.mse_loss}, r"one sample of shape \[\].* are x and y swapped\?"),
    ({"clients": "four"}, r"clients must be a whole number; got 'four'"),
    ({"x": X[:, :2]}, r"the module cannot take one sample of shape \[2\]: RuntimeError: mat1 and mat2"),
    ({"module": Wrapped(lambda o: {"a": o, "b": o})}, r"returns a dict with the keys a, b; it must return"),
    ({"module": Wrapped(lambda o: None)}, r"returns a NoneType; it must return a tensor"),
    ({"loss": lambda o, t: nn.functional.cross_entropy(o, t.float())}, r"the loss of one sample"),
    ({"partition": [[0, 1], [2, N]]}, rf"indices from 0 to {N - 1}; got 0 to {N}"),
    ({"partition": [[0.5], [1]]}, r"must hold the indices of each client's samples"),
    ({"partition": [[0], [1]], "clients": 3}, r"clients is 3, but the partition has 2; leave clients out"),
    ({"partition": lambda request: 7}, r"partition 'yours' must return the indices of each client's samples"),
    ({"partition": "Classes"}, r"unknown partition 'Classes'; did you mean 'classes'\?"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_tasks_that_cannot_be_are_refused_with_the_remedy(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        task(**{"clients": 4 if callable(changes.get("partition", len)) else None, **changes})


def test_data_that_cannot_be_is_refused_with_the_remedy() -> None:
    with pytest.raises(DataError, match=r"give numbers, as np.unique\(y, return_inverse=True\)"):
        task(y=["a", "b", "c"] * 20)
    with pytest.raises(DataError, match="holds the targets too; leave them out"):
        task(x=TensorDataset(X, Y))
    with pytest.raises(DataError, match=rf"partition has shape \[5\] int64; give {N} whole numbers or names"):
        task(clients=None, partition=np.arange(5))
    for gap in (None, math.nan):
        with pytest.raises(DataError, match=rf"partition says {gap} of sample 0; leave such samples out"):
            task(clients=None, partition=np.array([gap, *["Oslo"] * (N - 1)], dtype=object))
    with pytest.raises(DataError, match="pairs of a sample and a target"):
        task(x=TensorDataset(X), y=None)
    with pytest.raises(DataError, match="y is missing"):
        task(y=None)
    some = WeightedRandomSampler([1.0] * N, 10)
    for loader in (
        DataLoader(TensorDataset(X, Y), sampler=some),
        DataLoader(TensorDataset(X, Y), collate_fn=lambda items: items),
    ):
        with pytest.raises(DataError, match="a sampler, a collate_fn or a stream of its own; give its data"):
            task(x=loader, y=None)
    for x, message in [
        ({"a": X, "b": X[:3]}, r"x has 60, 3 samples; all inputs need as many"),
        ({"a": X, "b": ["red"] * N}, r"x\['b'\] holds 'red', not numbers"),
        ({}, r"x is empty; give the module's arguments by name"),
        ([["red", "small"]] * N, r"x holds 'red', not numbers; give numbers, as pandas.get_dummies\(x\) for"),
        (torch.where(X[5, 1] == X, math.nan, X), r"x holds NaN or infinity, first in sample 5; clean it"),
    ]:
        with pytest.raises(DataError, match=message):
            task(x=x)
    with pytest.raises(DataError, match=r"the parts train, test; give them apart, as x=data\['train'\]"):
        task(x={"train": Table(), "test": Table()}, y=None)
    for x in ((X, X), [X.numpy(), X.numpy()]):
        with pytest.raises(
            ConfigError, match=r"cannot take one sample of the inputs input 1 \[4\], input 2 \[4\]"
        ):
            task(x=x)
    with pytest.raises(ConfigError, match=r"True and False stay so; call .float\(\) in forward"):
        Task.from_arrays(torch.nn.Bilinear(4, 4, 2), (X, X > 0), Y, clients=2)
    with pytest.raises(DataError, match=r"x is a \[4\], b \[4\], test_x is a \[4\]; make them alike"):
        task(x={"a": X, "b": X}, test_x={"a": X}, test_y=Y)
    for x in ({"a": X, "b": X, "label": Y}, {"a": X, "b": Y}):
        with pytest.raises(DataError, match=r"x has the columns a, b.*must have two, samples and one of y"):
            task(x=x, y=None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rounds": -1}, "rounds must be 0 or more; got -1"),
        ({"rounds": 2.5}, "rounds must be a whole number; got 2.5"),
        ({"eval_every": 0}, "eval_every must be 1 or more; got 0"),
        ({"seed": -1}, "seed must be 0 or more"),
        ({"chunk": -2}, "chunk must be 1 or more"),
        ({"engine": "eagre"}, "unknown engine 'eagre'; did you mean 'eager'?"),
        ({"storage": "cloud"}, "home must be 'auto' or 'memory' or 'disk'; got 'cloud'"),
        ({"network": "5g"}, "3g"),
        ({"device": "gpu"}, "device must be auto, cpu, cuda or one GPU, such as cuda:1; got 'gpu'"),
        ({"device": "cuda:99"}, "device=cuda:99, but torch sees"),
        ({"algorithm": "FedAvg"}, "unknown algorithm 'FedAvg'; did you mean 'fedavg'?"),
        ({"algorithm": 3}, "algorithm must be a method, as in fedcom.FedCOMGATE"),
        ({"links": 8}, "links must be fedcom.Links, as in fedcom.Links"),
        ({"links": "Int"}, "unknown codec 'Int'; did you mean 'int'?"),
        ({"metrics": {"f": len}}, "metrics are measured on the test set"),
    ],
)
def test_simulations_that_cannot_be_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Simulation(**{"task": task(), "algorithm": "fedcomgate", "device": "cpu", **settings})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({"train_loss": len}, "rows have a 'train_loss' already"),
        ({"f": 3}, "metric 'f' must be a function"),
        ({"f": lambda o, t: o}, "metric 'f' must return one number; it gave Tensor"),
    ],
)
def test_metrics_that_cannot_be_are_refused(metrics: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Simulation(task(test_x=X, test_y=Y), "fedavg", metrics=metrics, rounds=1, device="cpu").run()


def test_a_biased_codec_where_none_belongs_still_says_so() -> None:
    with pytest.raises(ConfigError, match="fedpaq"):
        Simulation(task(), "fedavg", TopK(), device="cpu")


@pytest.mark.parametrize(
    "said", ["a random seed of mine is wrong", "in-place of that", "vmap of roads", "the dynamic range"]
)
@pytest.mark.parametrize("kind", [RuntimeError, NotImplementedError])
def test_an_error_of_the_users_own_is_not_taken_for_torchs(said: str, kind: type[RuntimeError]) -> None:
    class Failing(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if len(x) == 7:  # a minibatch: neither the sample of the rehearsal nor what is evaluated
                raise kind(said)
            return super().forward(x)

    simulation = Simulation(task(module=Failing(D, 3)), FedAvg(batch=7), rounds=1, device="cpu")
    with pytest.raises(kind, match=f"^{said}$") as caught:
        simulation.run()
    assert type(caught.value) is kind


def test_a_translated_error_keeps_the_one_of_torch() -> None:
    with pytest.raises(ConfigError, match="draws random numbers") as caught:
        task(module=Branching("random"))
    assert "called random operation" in str(caught.value.__cause__)


def test_a_module_that_cannot_take_a_sample_is_told_with_its_line() -> None:
    class Wrong(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return x @ torch.ones(99, 3)

    with pytest.raises(ConfigError, match=r"RuntimeError: .* \(.*test_forgiving.py, line \d+, in forward\)"):
        task(module=Wrong(D, 3))


def test_a_bug_in_a_module_comes_through_as_it_is() -> None:
    class Typo(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return cast(Tensor, self.layer(x))

    with pytest.raises(AttributeError, match="no attribute 'layer'"):
        task(module=Typo(D, 3))


# Near misses in Python


def hits(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(-1) == targets).float().mean()


def test_classes_and_names_stand_for_methods_and_codecs() -> None:
    made = Simulation(task(), FedCOM, Links(Int, "identity"), device="cpu")
    assert made.algorithm == FedCOM()
    assert made.rules.links == Links(Int(), Identity()) == Links("int", Identity)
    found = fedcom.compare(task(), FedAvg, rounds=1, device="cpu", quiet=True)
    assert [entry["method"] for entry in found.table] == ["fedavg"]
    small = {"model": {"hidden": [4]}, "run": {"rounds": 1}, "algorithm": {"tau": 1}}
    by_name = fedcom.compare(small, "fedavg", device="cpu", quiet=True)
    assert [entry["method"] for entry in by_name.table] == ["fedavg"]


def test_one_callback_and_metrics_without_names_will_do() -> None:
    seen: list[Any] = []
    made = Simulation(task(test_x=X, test_y=Y), "fedavg", metrics=[hits], rounds=2, device="cpu")
    assert made.run(seen.append) == seen
    assert made.results["hits"] == pytest.approx(made.results["test_accuracy"])
    alone = Simulation(task(test_x=X, test_y=Y), "fedavg", metrics=hits, rounds=2, device="cpu").run()
    assert alone["hits"] == made.results["hits"]
    tried = fedcom.compare(
        task(test_x=X, test_y=Y), ["fedavg"], metrics=[hits], rounds=1, device="cpu", quiet=True
    )
    assert "hits" in tried.curves[0].rows[0]


def test_things_say_what_they_are_in_a_short_line(tmp_path: Path) -> None:
    made = Simulation(task(), "fedcom", "int", rounds=3, device="cpu")
    assert repr(made) == "Simulation(arrays, fedcom, int, round 0 of 3)"
    assert "engine" not in vars(made)  # it takes time to make
    assert repr(made.run()) == "Results(4 rows: round 0 to 3)"
    assert repr(made) == "Simulation(arrays, fedcom, int, round 3 of 3)"
    assert repr(made.results[:0]) == "Results(0 rows)"
    assert repr(made.clients()) == "Results(4 rows: client 0 to 3)"
    how: dict[str, Any] = {"rounds": 1, "device": "cpu", "quiet": True}
    found = fedcom.compare(task(), ["fedavg", "fedcom"], out=tmp_path / "a", **how)
    assert repr(found) == f"Comparison(fedavg, fedcom; 2 runs in {tmp_path / 'a'})"
    assert repr(fedcom.sweep(task(), {"eta": [0.1]}, "fedavg", **how)) == (
        "Sweep(1 run; best: {'fedavg': {'eta': 0.1}})"
    )
    outcome = fedcom.record(Simulation(task(), "fedavg", rounds=1, device="cpu"), tmp_path / "b", quiet=True)
    assert len(repr(outcome)) < 100


def test_a_figure_that_no_row_has_is_refused_with_the_nearest() -> None:
    found = Simulation(task(), "fedavg", rounds=1, device="cpu").run()
    with pytest.raises(ConfigError, match=r"the rows have no 'train_los'; did you mean 'train_loss'\?"):
        found["train_los"]
    assert found["q"] == [None, 0.0]  # a row may lack it
    assert fedcom.Results()["round"] == []


NEAR: list[tuple[Callable[[Path], object], str]] = [
    (lambda out: simulated(participation="0.5"), "participation must be a number; got '0.5'"),
    (lambda out: simulated(network=3), "network must be a Network; got 3"),
    (lambda out: simulated(storage=3), "storage must be a Storage; got 3"),
    (lambda out: simulated(tf32="yes"), "tf32 must be true or false; got 'yes'"),
    (lambda out: simulated(transport="pigeon"), "transport must be 'chain' or 'bytes' or 'reduce'"),
    (lambda out: simulated(task=linear()), "task must be a fedcom.Task, as Task.from_arrays makes; got"),
    (lambda out: simulated(metrics=3), "metrics must be functions by name, or a list of functions; got 3"),
    (lambda out: simulated(metrics=[hits, hits]), "two metrics are called hits; give a mapping"),
    (lambda out: simulated().run(3), "callbacks must be functions of a row, or one; got 3"),
    (lambda out: simulated().run([3]), "a callback must be a function of a row; got 3"),
    (lambda out: Links(3), "uplink must be a Codec; got 3"),  # type: ignore[arg-type]
    (lambda out: Links("intt"), "unknown codec 'intt'; did you mean 'int'?"),
    (
        lambda out: compared(seeds=[1, 2]),
        "seeds is how many there are, from seed on; got [1, 2]; write",
    ),
    (lambda out: compared(seeds="2"), "seeds must be a whole number; got '2'"),
    (lambda out: compared(task={"run": 3}), "run is a section; write run.key=value"),
    (lambda out: compared(task={"data": {"clients": "4"}}), "data.clients must be a whole number; got '4'"),
    (lambda out: fedcom.sweep(task(), None), "a grid is lists of values by key"),  # type: ignore[arg-type]
    (lambda out: fedcom.record(task(), out), "record plays a fedcom.Simulation; got Task"),
    (lambda out: fedcom.plot([]), "there is nothing to draw: [] has no rows"),  # type: ignore[arg-type]
    (lambda out: fedcom.report([]), "there is nothing to report"),
    (lambda out: fedcom.report(3), "expected a Comparison, a Sweep, Results"),  # type: ignore[arg-type]
]


def simulated(**settings: Any) -> Simulation:
    usual = {"task": task(test_x=X, test_y=Y), "algorithm": "fedavg", "rounds": 1, "device": "cpu"}
    return Simulation(**{**usual, **settings})


def compared(**settings: Any) -> fedcom.Comparison:
    usual = {"task": task(), "methods": ["fedavg"], "device": "cpu", "quiet": True}
    return fedcom.compare(**{**usual, **settings})


@pytest.mark.parametrize(("call", "message"), NEAR, ids=[message for _, message in NEAR])
def test_what_cannot_be_meant_is_refused_in_one_line(
    call: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        call(tmp_path / "a")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_python_is_told_of_arguments_and_the_command_line_of_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note").write_text("mine")
    fedcom.sweep(task(), {"eta": [0.1]}, "fedavg", rounds=1, out="swept", device="cpu", quiet=True)
    fedcom.record(simulated(), "done", quiet=True)
    (tmp_path / "done" / "config.toml").write_text("no toml [")
    (tmp_path / "done" / "summary.json").write_text("{}")
    calls: list[tuple[Callable[[], object], str, str]] = [
        (lambda: fedcom.record(simulated(), "file", quiet=True), "another out", "another --out"),
        (lambda: fedcom.record(simulated(), "full", quiet=True), 'or start="over" to', "or --force to"),
        (lambda: fedcom.record(simulated(), "done", start="resume"), 'with start="over"', "with --force"),
        (lambda: compared(out="full"), "another out, or force=True", "another --out, or --force"),
        (lambda: swept(out="swept"), "another out, or force=True", "another --out, or --force"),
        (lambda: fedcom.report("swept", "full"), "out takes a file", "--out takes a file"),
        (lambda: fedcom.report("swept", "file"), "choose another out", "choose another --out"),
        (lambda: compared(methods={"a/b": FedAvg()}), "methods=['ab']", "--methods ab"),
        (lambda: plan.Goal(), "goal: accuracy, loss, bytes or seconds", "goal: --accuracy, --loss, --meg"),
        (lambda: codec_card.rates("99"), "bits must be", "--bits must be"),
    ]
    for call, in_python, typed in calls:
        with pytest.raises(FedcomError) as told:
            call()
        assert in_python in str(told.value)
        assert "--" not in str(told.value)
        with pytest.raises(FedcomError) as told, by_flags():
            call()
        assert typed in str(told.value)


def swept(**settings: Any) -> fedcom.Sweep:
    return fedcom.sweep(task(), {"eta": [0.2]}, "fedavg", device="cpu", quiet=True, **settings)
