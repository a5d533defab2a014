"""Which modules are taken, with all their tensors, and which are refused with the remedy."""

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import prune

from fedcom import ConfigError, FedAvg, FedCOMGATE, Objective, Simulation, Task, record
from fedcom.draws import Draw
from fedcom.tasks.adapters import load_kept
from fedcom.tasks.models import Cnn
from tests.conftest import close

DRAW = Draw.seeded(11)
X, Y = DRAW.normal(60 * 4).reshape(60, 4), DRAW.fold("y").integers(3, 60)


def gradient_of(objective: Objective, x: Tensor, y: Tensor) -> Tensor:
    w = objective.start.clone().requires_grad_()
    outputs = functional_call(objective.module, objective.layout.tensors(w), (x,))
    return torch.autograd.grad(nn.functional.cross_entropy(outputs, y), w)[0]


# Batch statistics


def normed(kind: Any = nn.BatchNorm1d, **options: Any) -> nn.Module:
    """A network whose statistics are those of some data."""
    layers = (nn.Linear(4, 6), nn.Unflatten(1, (3, 2)), kind(3, **options), nn.Flatten(), nn.Linear(6, 3))
    module = nn.Sequential(*layers)
    for _ in range(3):
        module(2 * X + 1)
    return module


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.InstanceNorm1d])
def test_frozen_statistics_are_constants(kind: Any) -> None:
    module = normed(kind, affine=True, track_running_stats=True).eval()
    before = {name: x.clone() for name, x in module.named_buffers()}
    objective = Objective(module, dtype=torch.float64)
    x = X.double()
    (found,) = objective.gradients(
        objective.start[None], x[None], Y[None], torch.full((1, 60), 1 / 60, dtype=torch.float64)
    )
    assert close(found, gradient_of(objective, x, Y))
    task = Task.from_arrays(module, X, Y, clients=4)
    simulation = Simulation(task, FedCOMGATE(), "int", rounds=2, device="cpu")
    first, *_, last = simulation.run()
    assert last["train_loss"] < first["train_loss"]
    for name, x in simulation.module().named_buffers():
        assert torch.equal(x, before[name]), name


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (
            normed(),
            r"BatchNorm1d at '2' keeps batch .*choose batch_norm: .*torch.nn.GroupNorm\(groups, 3\)",
        ),
        (normed(track_running_stats=False).eval(), r"mixes the samples of a batch .*use torch.nn.GroupNorm"),
    ],
)
def test_statistics_of_batches_are_refused(module: nn.Module, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Task.from_arrays(module, X, Y, clients=4)


# Hooks


def test_hooks_on_gradients_are_refused() -> None:
    """They would not be called, and a mask of a gradient is often one."""
    for hook, message in [
        (
            lambda m: m[0].weight.register_hook(lambda g: g * 0),
            r"parameter '0.weight' has a hook .*wandb\.unwatch.* in forward",
        ),
        (
            lambda m: m[0].bias.register_post_accumulate_grad_hook(print),
            r"parameter '0.bias' has a hook on its",
        ),
        (
            lambda m: m[2].register_full_backward_hook(print),
            r"its part '2' has a backward hook, .* take it off; .*wandb\.unwatch",
        ),
        (lambda m: m.register_full_backward_pre_hook(print), r"the module has a backward hook"),
    ]:
        module = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
        Objective(module)
        hook(module)
        with pytest.raises(ConfigError, match=message):
            Objective(module)


# Complex numbers


class Turned(nn.Module):
    """Turns its outputs in the complex plane, by a buffer and by a constant parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)
        self.register_buffer("turn", torch.tensor([1j, 1 + 2j, -1]))
        self.shift = nn.Parameter(torch.tensor([0.5j, -1j, 2]), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        turned: Tensor = self.inner(x) * self.turn + self.shift
        return turned.abs()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_complex_tensors_stay_complex(dtype: torch.dtype) -> None:
    module = Turned()
    task = Task.from_arrays(module, X, Y, clients=4, dtype=dtype)
    outputs = task.objective.outputs(task.objective.start, task.x)
    torch.testing.assert_close(outputs, _by_hand(module, task.x).to(dtype), rtol=1e-5, atol=1e-6)
    first, *_, last = Simulation(task, FedAvg(), rounds=5, device="cpu").run()
    assert last["train_loss"] < first["train_loss"]


def _by_hand(module: Turned, x: Tensor) -> Tensor:
    real, imaginary = torch.tensor([0.0, 1, -1]), torch.tensor([1.0, 2, 0])
    inner = x.float() @ module.inner.weight.T + module.inner.bias
    shift = torch.tensor([0.0, 0, 2]), torch.tensor([0.5, -1, 0])
    return torch.hypot(inner * real + shift[0], inner * imaginary + shift[1]).detach()


def test_complex_parameters_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"parameter 'weight' is complex.*torch.view_as_real"):
        Objective(nn.Linear(4, 3, dtype=torch.complex64))


# What is computed and kept


class Keeps(nn.Linear):
    """Keeps its last outputs, as modules do whose attention is looked at."""

    def forward(self, input: Tensor) -> Tensor:
        self.seen = [super().forward(input)]
        return self.seen[0]


def pruned() -> nn.Module:
    """Half of the weights are 0, by a tensor that is computed before each call."""
    module = nn.Linear(4, 3)
    return prune.l1_unstructured(module, "weight", amount=0.5)  # type: ignore[no-any-return, no-untyped-call]


@pytest.mark.parametrize("make", [lambda: Keeps(4, 3), pruned])
def test_modules_that_keep_what_they_computed_are_copied(make: Any) -> None:
    module = make()
    module(X)
    task = Task.from_arrays(module, X, Y, clients=2, dtype="float64")
    w, weight = task.objective.start, torch.full((1, 30), 1 / 30, dtype=torch.float64)
    found = task.objective.gradients(w[None], task.x[None, :30], task.y[None, :30], weight)[0]
    other = task.objective.loaded(w)
    nn.functional.cross_entropy(other(task.x[:30]), task.y[:30]).backward()
    assert close(found, torch.cat([p.grad.flatten() for p in other.parameters() if p.grad is not None]))
    assert Simulation(task, FedAvg(), rounds=1, device="cpu").module()(X.double()).shape == (60, 3)


class Noted(nn.Linear):
    """Has a word in its state and a parameter without numbers."""

    def __init__(self) -> None:
        super().__init__(4, 3)
        self.none = nn.Parameter(torch.zeros(0, 3))

    def get_extra_state(self) -> Any:
        return {"word": "noted"}

    def set_extra_state(self, state: Any) -> None:
        pass


def test_parameters_without_numbers_and_a_state_of_words_do_no_harm(tmp_path: Path) -> None:
    task = Task.from_arrays(Noted(), X, Y, clients=2)
    assert task.objective.layout.names == ("weight", "bias")
    record(Simulation(task, "fedcomgate", "int", rounds=1, device="cpu"), tmp_path / "run", quiet=True)
    state, module = load_file(tmp_path / "run" / "model.safetensors"), Noted()
    assert {*state} == {"weight", "bias", "none"}
    load_kept(module, state)
    assert torch.equal(module.weight, state["weight"])


# Devices


class Shifted(nn.Module):
    """A convolution with a frozen bias, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.cnn = Cnn().module((1, 8, 8), 3)
        self.cnn[0].bias.requires_grad_(False)  # type: ignore[index, union-attr]
        self.register_buffer("mean", torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.cnn(x - self.mean)
        return out


def tensors_in(thing: Any, seen: set[int]) -> list[Tensor]:
    """Every tensor that can be reached from an object."""
    if id(thing) in seen or isinstance(thing, type):
        return []
    seen.add(id(thing))
    if isinstance(thing, Tensor):
        return [thing]
    inner = thing.values() if isinstance(thing, dict) else thing if isinstance(thing, list | tuple) else ()
    inner = [*inner, *getattr(thing, "__dict__", {}).values()]
    return [x for one in inner for x in tensors_in(one, seen)]


@pytest.mark.parametrize("table", [nn.Embedding, nn.EmbeddingBag])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"max_norm": 0.5},
            "has max_norm=0.5, which changes its weight whenever it is read; leave max_norm out",
        ),
        ({"sparse": True}, "has sparse=True, and gradients are whole vectors here; leave sparse out"),
        ({"scale_grad_by_freq": True}, "has scale_grad_by_freq=True, which divides by counts in a minibatch"),
    ],
)
def test_tables_that_change_when_read_or_have_sparse_gradients_are_refused(
    table: Any, given: dict[str, Any], said: str
) -> None:
    part = table(7, 3, **given)
    module = nn.Sequential(part, nn.Flatten(), nn.LazyLinear(2))
    x, y = torch.randint(0, 7, (12, 4)), torch.randint(0, 2, (12,))
    with pytest.raises(ConfigError, match=re.escape(f"{table.__name__} '0' {said}")):
        Task.from_arrays(module, x, y, clients=2, partition="iid")


def test_every_tensor_of_a_task_is_on_its_device() -> None:
    loss = nn.CrossEntropyLoss(torch.tensor([1.0, 2, 3]))
    task = Task.from_arrays(Shifted(), torch.ones(12, 1, 8, 8), torch.arange(12) % 3, clients=2, loss=loss)
    there = task.to(torch.device("meta"))
    found = tensors_in(there, set())
    assert len(found) > 10
    assert {x.device.type for x in found} == {"meta"}
    assert {x.device.type for x in tensors_in(task, set())} == {"cpu"}
    assert there.objective.layout == task.objective.layout


# What people pass


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_what_is_no_module_is_refused_with_the_remedy() -> None:
    for given, message in [
        (nn.Linear, r"module is the class Linear; give an instance"),
        (X, r"the first argument is an array, .* the order is module, x, y"),
        (X.numpy(), r"the first argument is an array"),
        (lambda: nn.Linear(4, 3), r"got function; give what it returns"),
        (None, r"must be a torch.nn.Module; got NoneType"),
        (nn.DataParallel(nn.Linear(4, 3)), r"is a DataParallel; give its .module"),
        (torch.compile(nn.Linear(4, 3)), r"is one of torch.compile; give its ._orig_mod"),
        (
            nn.Sequential(torch.jit.script(nn.Linear(4, 3))),
            r"is one of torch.jit at '0'; give the one that it was made from",
        ),
    ]:
        with pytest.raises(ConfigError, match=message):
            Task.from_arrays(given, X, Y, clients=4)
    with pytest.raises(ConfigError, match=r"x is a module; the order is Task.from_arrays\(module, x, y\)"):
        Task.from_arrays(nn.Linear(4, 3), nn.Linear(4, 3), Y, clients=4)


def test_lazy_layers_are_initialised_by_a_sample() -> None:
    lazy = nn.Sequential(nn.LazyLinear(5), nn.ReLU(), nn.LazyLinear(3))
    plain = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    task = Task.from_arrays(lazy, X, Y, clients=4, dtype=torch.float64)
    assert task.objective.layout.size == 4 * 5 + 5 + 5 * 3 + 3
    assert float(task.objective.start.abs().max()) > 0
    assert isinstance(lazy[0], nn.LazyLinear)  # the user's module is not changed
    for x in (X.double(), X.long()):
        assert Task.from_arrays(lazy, x, Y, clients=4).objective.layout == Objective(plain).layout
    normed = nn.Sequential(nn.LazyLinear(5), nn.LazyBatchNorm1d(), nn.LazyLinear(3))
    assert Task.from_arrays(normed, X, Y, clients=4, batch_norm="own").objective.statistics == 10
    with pytest.raises(ConfigError, match=r"lazy layers; call it once on a sample, as in module\(x\[:1\]\)"):
        Objective(nn.LazyLinear(3))
    with pytest.raises(ConfigError, match=r"lazy layers and cannot take one sample of shape \[4\]"):
        Task.from_arrays(nn.Sequential(nn.Linear(3, 2), nn.LazyLinear(3)), X, Y, clients=4)


@pytest.mark.parametrize("dtype", ["float64", "torch.float64", torch.float64, X.double().numpy().dtype])
def test_a_dtype_may_be_a_name(dtype: Any) -> None:
    assert Task.from_arrays(nn.Linear(4, 3), X, Y, clients=4, dtype=dtype).x.dtype == torch.float64


@pytest.mark.parametrize("dtype", ["flot64", "int64", torch.int64, 64])
def test_a_dtype_of_no_floats_is_refused(dtype: Any) -> None:
    with pytest.raises(ConfigError, match="dtype must be of floating-point numbers; got"):
        Task.from_arrays(nn.Linear(4, 3), X, Y, clients=4, dtype=dtype)


def test_attention_runs_without_a_word_of_torchs() -> None:
    """Whatever filters a program sets after it imported fedcom."""
    layer = nn.TransformerEncoderLayer(2, 1, 4, dropout=0.0, batch_first=True)
    module = nn.Sequential(nn.Unflatten(1, (2, 2)), layer, nn.Flatten(), nn.Linear(4, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Simulation(Task.from_arrays(module, X, Y, clients=3), FedAvg(tau=1), rounds=1, device="cpu").run()


def test_a_task_shows_itself_in_a_line() -> None:
    task = Task.from_arrays(nn.Linear(4, 3), X, Y, X[:9], Y[:9], clients=4)
    assert repr(task) == (
        "Task('arrays': 4 clients, 60 samples of 4 and 9 for testing, 3 classes, 15 parameters, cpu)"
    )
