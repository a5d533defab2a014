"""Modules as functions of flat vectors, and the models that the command line knows."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedcom import ConfigError, DataError, FedAvg, Simulation, Task
from fedcom.draws import Draw
from fedcom.tasks.models import MODELS, Cnn, Logistic, Mlp, Quadratic
from fedcom.tasks.objective import Objective
from tests.conftest import close, quadratic_task


def reference_gradient(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    module.zero_grad()
    F.cross_entropy(module(x), y).backward()
    return torch.cat(
        [p.grad.reshape(-1) for p in module.parameters() if p.requires_grad and p.grad is not None]
    )


@pytest.mark.parametrize("model", [Mlp((7, 5)), Logistic(), Cnn()], ids=lambda m: m.name)
def test_stacked_gradients_are_autograds_client_by_client(model: Mlp, draw: Draw) -> None:
    shape = (1, 8, 8)
    objective = Objective(model.module(shape, 4), dtype=torch.float64)
    x = draw.normal(3 * 6 * 64, torch.float64).reshape(3, 6, *shape)
    y = draw.fold("y").integers(4, 18).reshape(3, 6)
    w = objective.start + 0.1 * draw.fold(torch.arange(3)).normal(objective.layout.size, torch.float64)
    stacked = objective.gradients(w, x, y, torch.full((3, 6), 1 / 6, dtype=torch.float64))
    for j in range(3):
        for name, value in objective.layout.tensors(w[j]).items():
            objective.module.get_parameter(name).data.copy_(value)
        assert close(stacked[j], reference_gradient(objective.module, x[j], y[j]))


def test_mcmahans_cnn_has_its_published_size() -> None:
    assert Objective(Cnn().module((1, 28, 28), 10)).layout.size == 1_663_370


def test_the_papers_mlps_have_their_sizes() -> None:
    assert Objective(Mlp().module((1, 28, 28), 10)).layout.size == 199_210
    assert Objective(Mlp((500, 500)).module((3, 32, 32), 10)).layout.size == 1_792_010


def test_only_trainable_parameters_are_the_model(draw: Draw) -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    module[0].weight.requires_grad_(False)
    frozen = module[0].weight.clone()
    x, y = draw.normal(80).reshape(20, 4), draw.integers(2, 20)
    simulation = Simulation(
        Task.from_arrays(module, x, y, clients=4), FedAvg(tau=2, batch=4), rounds=2, device="cpu"
    )
    assert simulation.server.w.numel() == 3 + 6 + 2
    list(simulation.run())
    assert torch.equal(simulation.module()[0].weight, frozen)  # type: ignore[index]
    assert not torch.equal(simulation.server.w, simulation.task.objective.start)


class AtTheLastPlace(nn.Module):
    """Tokens [samples, T] through an embedding, a layer and a head of the last place."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.first, self.layer, self.head = nn.Embedding(9, 4), layer, nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, state = self.first(x).transpose(0, 1), None
        if isinstance(self.layer, nn.LSTMCell):
            for place in h:
                state = self.layer(place, state)
            return self.head(state[0])
        if isinstance(self.layer, nn.TransformerEncoder):
            return self.head(self.layer(h, src_key_padding_mask=x == 0)[-1])
        more = (h, h) if isinstance(self.layer, nn.MultiheadAttention) else ()
        return self.head(self.layer(h, *more)[0][-1])


LAYERS = {
    "lstm": lambda: nn.LSTM(4, 4),
    "gru": lambda: nn.GRU(4, 4),
    "rnn": lambda: nn.RNN(4, 4),
    "cell": lambda: nn.LSTMCell(4, 4),
    "attention": lambda: nn.MultiheadAttention(4, 2),
    "encoder": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1), 1).eval(),
}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
def test_curvature_of_torchs_recurrent_layers_and_attention_is_the_change_of_gradients(layer: str) -> None:
    torch.manual_seed(0)  # with some weights a step of the differences passes the kink of a ReLU
    draw = Draw.seeded(5)
    objective, weight = Objective(AtTheLastPlace(LAYERS[layer]()), dtype="float64"), torch.full((3, 6), 1 / 6)
    x, y = 1 + draw.integers(8, 3 * 6 * 5).reshape(3, 6, 5), draw.fold("y").integers(3, 18).reshape(3, 6)
    w, v = (draw.fold(key).normal(3 * objective.start.numel(), torch.float64).reshape(3, -1) for key in "wv")
    w, rest = objective.start + 0.1 * w, (x, y, weight.double())
    up, down = (objective.gradients(w + h * v, *rest) for h in (1e-5, -1e-5))
    assert torch.allclose(objective.curvatures(w, v, *rest), (up - down) / 2e-5, rtol=1e-6, atol=1e-7)
    assert torch.backends.mha.get_fastpath_enabled()


class Padded(nn.Module):
    """The mean over places of an embedding with padding, and a head, perhaps on the same weight."""

    def __init__(self, padding: int, tied: bool) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(9, 4, padding_idx=padding), nn.Linear(4, 9)
        if tied:
            self.head.weight = self.table.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.table(x).mean(-2)))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("padding", [2, -3])
def test_the_curvature_is_flat_at_the_padding_of_an_embedding(padding: int, tied: bool, draw: Draw) -> None:
    """As training holds what an embedding reads as padding fixed; a head on the same weight trains it."""
    module = Padded(padding, tied)
    objective, weight = Objective(module, dtype="float64"), torch.full((3, 6), 0.2, dtype=torch.float64)
    x, y = draw.integers(9, 3 * 6 * 5).reshape(3, 6, 5), draw.fold("y").integers(9, 18).reshape(3, 6)
    w, v = (draw.fold(key).normal(3 * objective.start.numel(), torch.float64).reshape(3, -1) for key in "wv")
    found = objective.curvatures(w, v, x, y, weight)
    for i, (own, along) in enumerate(zip(w, v, strict=True)):
        leaf = own.clone().requires_grad_()
        tensors = objective.layout.tensors(leaf)
        table = tensors["table.weight"]
        fixed = torch.arange(9).unsqueeze(-1) == padding % 9
        h = torch.tanh(torch.where(fixed, table.detach(), table)[x[i]].mean(-2))
        scores = F.linear(h, tensors["table.weight" if tied else "head.weight"], tensors["head.bias"])
        loss = 0.2 * F.cross_entropy(scores, y[i], reduction="sum")
        (g,) = torch.autograd.grad(loss, leaf, create_graph=True)
        (wanted,) = torch.autograd.grad((g * along).sum(), leaf)
        assert close(found[i], wanted, 1e-12)


def test_curvatures_on_two_threads_leave_attention_as_it_was() -> None:
    inside, over, left = (threading.Event() for _ in range(3))

    class Waits(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.in_features == 2:  # the first goes in before the second, and out while that is inside
                inside.set()
                over.wait(0.2)
            else:
                over.set()
                left.wait()
            return super().forward(x)

    def curvature(size: int) -> None:
        objective = Objective(Waits(size, 2))
        w, x, y = objective.start.unsqueeze(0), torch.ones(1, 3, size), torch.zeros(1, 3, dtype=torch.long)
        objective.curvatures(w, w, x, y, torch.ones(1, 3))

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(curvature, 2)
        inside.wait()
        second = threads.submit(curvature, 3)
        first.result()
        left.set()
        second.result()
    assert torch.backends.mha.get_fastpath_enabled()


def test_what_has_no_second_derivative_is_refused_in_words() -> None:
    module = nn.Sequential(nn.EmbeddingBag(5, 4), nn.Tanh(), nn.Linear(4, 3))
    task = Task.from_arrays(module, torch.arange(24).reshape(8, 3) % 5, torch.arange(8) % 3, clients=2)
    with pytest.raises(
        ConfigError, match=r"no second derivative, by which auto rates are set .*give eta and"
    ):
        Simulation(task, FedAvg(eta="auto"), device="cpu")


def test_any_loss_on_any_targets(draw: Draw) -> None:
    """Least squares: FedAvg with one full step is gradient descent on the loss over all samples."""
    torch.manual_seed(0)
    x = draw.normal(90, torch.float64).reshape(30, 3)
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64)
    task = Task.from_arrays(nn.Linear(3, 1), x, y, clients=5, loss=F.mse_loss, dtype=torch.float64)
    simulation = Simulation(task, FedAvg(eta=0.1, tau=1, batch="full", decay=1.0), rounds=200, device="cpu")
    first, *_, last = simulation.run()
    pooled = float(F.mse_loss(task.objective.outputs(task.objective.start, x), y).detach())
    assert first["train_loss"] == pytest.approx(pooled, rel=1e-12)
    assert last["train_loss"] < 1e-10 < first["train_loss"]
    assert last["test_accuracy"] is None


@pytest.mark.parametrize(
    ("layer", "remedy"),
    [
        (nn.BatchNorm1d(4), r"torch.nn.GroupNorm\(groups, 4\)"),
        (nn.InstanceNorm1d(4, track_running_stats=True), "GroupNorm"),
        (nn.BatchNorm1d(4, track_running_stats=False), "GroupNorm"),
    ],
)
def test_modules_that_cannot_be_federated_are_refused_with_the_remedy(layer: nn.Module, remedy: str) -> None:
    with pytest.raises(ConfigError, match=remedy):
        Objective(nn.Sequential(nn.Linear(4, 4), layer))


def test_norms_within_a_sample_and_dropout_of_0_have_autograds_gradients(draw: Draw) -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.GroupNorm(2, 4), nn.Dropout(0.0), nn.LayerNorm(4))
    objective = Objective(module, dtype=torch.float64)
    x, y = draw.normal(24, torch.float64).reshape(1, 6, 4), draw.integers(4, 6)[None]
    weight = torch.full((1, 6), 1 / 6, dtype=torch.float64)
    (found,) = objective.gradients(objective.start[None], x, y, weight)
    assert close(found, reference_gradient(objective.module, x[0], y[0]))


def test_data_too_large_for_the_dtype_is_refused(draw: Draw) -> None:
    x, y = 1e300 * draw.normal(60, torch.float64).reshape(20, 3), draw.integers(2, 20)
    Task.from_arrays(nn.Linear(3, 2), x, y, clients=4, dtype=torch.float64)
    with pytest.raises(DataError, match=r"beyond torch.float32"):
        Task.from_arrays(nn.Linear(3, 2), x, y, clients=4)


def test_whole_numbers_reach_an_embedding_and_become_floats_elsewhere(draw: Draw) -> None:
    tokens, y = draw.fold("x").integers(9, 60).reshape(20, 3), draw.integers(2, 20)
    text = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 2))
    dense = nn.Sequential(nn.Linear(3, 2))
    for module in (text, dense):
        simulation = Simulation(
            Task.from_arrays(module, tokens, y, clients=4), FedAvg(), rounds=1, device="cpu"
        )
        assert [row["round"] for row in simulation.run()] == [0, 1]


def test_a_module_without_parameters_is_refused() -> None:
    with pytest.raises(ConfigError, match="no trainable parameter"):
        Objective(nn.ReLU())


def test_the_quadratic_has_its_minimum_curvature_and_noise() -> None:
    """Minimum 0 at the weighted optimum, curvature within [mu, L], gradient noise of variance sigma^2."""
    model = Quadratic(dim=6, L=2.0, mu=0.5, sigma=0.7, samples=400)
    data = model.data(5, Draw.seeded(1))
    a, z = data.x.reshape(5, 400, 2, 6).unbind(2)
    assert float(a.min()) == 0.5
    assert float(a.max()) == 2.0
    b = z.mean(1)
    optimum = Quadratic.optimum(a[:, 0], b)
    module, loss = model.module((), 0), model.loss()
    module.w.data = optimum  # type: ignore[union-attr]
    losses = loss(module(data.x), data.y).detach()
    assert float(losses.mean()) == pytest.approx(0, abs=1e-12)
    noise = a * (optimum - z) - a * (optimum - b[:, None])
    assert float(noise.square().sum(-1).mean()) == pytest.approx(0.49, rel=0.1)
    assert float((a[:, 0] * (optimum - b)).sum(0).abs().max()) < 1e-12


def test_quadratic_gradient_descent_converges_at_the_known_rate() -> None:
    task = quadratic_task(sigma=0.0, L=1.0, mu=0.1)
    simulation = Simulation(task, FedAvg(eta=1.0, tau=1, batch="full", decay=1.0), rounds=150, device="cpu")
    first, *_, last = simulation.run()
    assert last["train_loss"] <= first["train_loss"] * (1 - 0.1) ** (2 * 150) * 10 + 1e-15


@pytest.mark.parametrize(
    ("name", "table", "message"),
    [
        ("mlp", {"hidden": ()}, "hidden"),
        ("mlp", {"hidden": (3, 0)}, "hidden"),
        ("quadratic", {"mu": 2.0, "L": 1.0}, "0 < mu <= L; got mu=2.0, L=1.0"),
    ],
)
def test_model_parameters_out_of_range(name: str, table: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MODELS[name](**table)


def test_a_cnn_needs_images() -> None:
    with pytest.raises(ConfigError, match=r"\(60,\)"):
        Cnn().module((60,), 10)


def test_the_users_module_is_not_changed_and_tasks_can_be_shared(draw: Draw) -> None:
    module = nn.Linear(4, 2)
    before = module.weight.clone()
    task = Task.from_arrays(module, draw.normal(80).reshape(20, 4), draw.integers(2, 20), clients=4)
    first, second = (Simulation(task, FedAvg(eta=eta), rounds=2, device="cpu") for eta in (0.1, 0.5))
    trained = []
    for simulation in (first, second):
        list(simulation.run())
        trained.append(simulation.module().weight)
    assert torch.equal(module.weight, before)
    assert not torch.equal(trained[0], trained[1])


def test_a_call_leaves_the_module_alone_even_while_it_runs() -> None:
    """Ctrl-C may end a call at any place; the module's parameters must be whole then."""
    seen = []

    class Looks(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(objective.module.weight.detach().clone())
            return super().forward(x)

    objective = Objective(Looks(2, 2))
    before = objective.module.weight.detach().clone()
    objective.outputs(torch.zeros(6), torch.zeros(1, 2))
    assert len(seen) == 1
    assert torch.equal(seen[0], before)


def test_threads_do_not_see_one_anothers_parameters() -> None:
    """A call sets the module's parameters for a while; two calls at the same time must not share a module."""
    meeting = threading.Barrier(2, timeout=600)

    class Meets(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            meeting.wait()
            y = x + self.w
            meeting.wait()  # neither returns before both have read w
            return y

    objective = Objective(Meets())
    with ThreadPoolExecutor(2) as pool:
        values = [torch.tensor([1.0]), torch.tensor([2.0])]
        outputs = list(pool.map(lambda w: objective.outputs(w, torch.zeros(1)), values))
    assert [float(x) for x in outputs] == [1.0, 2.0]
