"""Losses and scores per token: padding counts nowhere, and a client's loss is the mean over its tokens."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedcom import Simulation, from_text, token_cross_entropy
from fedcom.algorithms import FedCOM, FedCOMGATEExact
from fedcom.codecs import Int, TopK
from fedcom.data import Dataset
from fedcom.draws import Draw
from fedcom.errors import ConfigError
from fedcom.tasks import scores
from fedcom.tasks.language import Gru, GruLayer, Transformer
from fedcom.tasks.objective import Objective
from fedcom.tasks.oracle import DataOracle
from fedcom.tasks.task import Task
from fedcom.traffic.links import Links

V, NO = 3, -100
# Two clients; of the first one's two sequences, one has three tokens and the other one.
X = torch.tensor([[0, 1, 2], [1, 0, 0], [2, 2, 0]])
Y = torch.tensor([[1, 2, 0], [2, NO, NO], [0, 1, NO]])
OWNERS = [0, 0, 1]


class Table(nn.Module):
    """A score for each next token by the token before it."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Embedding(V, V)
        nn.init.zeros_(self.scores.weight)
        with torch.no_grad():
            self.scores.weight[1, 2] = math.log(2.0)  # after 1: probabilities 1/4, 1/4, 1/2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scores(x)


def made(loss=None, **more) -> Task:
    return Task.from_arrays(Table(), X, Y, X, Y, groups=OWNERS, test_groups=OWNERS, loss=loss, **more)


def test_scores_by_hand_with_unequal_padding() -> None:
    task, third, half = made(), math.log(3), math.log(2)
    assert task.classes == V
    # client 0: after 0 comes 1 (1/3), after 1 comes 2 (1/2), after 2 comes 0 (1/3), after 1 comes 2 (1/2)
    own = [(2 * third + 2 * half) / 4, third]
    whole = (4 * third + 2 * half) / 6
    rows = task.evaluate(task.objective.start, torch.tensor([0.5, 0.5]))
    assert rows["train_loss"] == pytest.approx(sum(own) / 2)
    assert rows["test_loss"] == pytest.approx(whole)
    fine = made(dtype="float64")
    w = half * (fine.objective.start > 0).double()
    exact = fine.evaluate(w, torch.tensor([0.5, 0.5]))
    assert exact["train_loss"] == pytest.approx(sum(own) / 2, abs=1e-14)
    assert exact["test_loss"] == pytest.approx(whole, abs=1e-14)
    assert rows["test_perplexity"] == pytest.approx(math.exp(whole))
    assert rows["worst_client_perplexity"] == pytest.approx(3.0)
    assert "test_bits_per_character" not in rows  # these tokens need not be characters
    # the answers are 0 (the first of equals), 2, 0 and 2; 0 and 0
    assert rows["test_accuracy"] == pytest.approx(4 / 6)
    assert rows["client_mean"] == pytest.approx((3 / 4 + 1 / 2) / 2)
    assert rows["worst_client_accuracy"] == pytest.approx(1 / 2)
    clients = task.evaluate_clients(task.objective.start)
    assert [row["train_loss"] for row in clients] == pytest.approx(own)
    assert [row["test_perplexity"] for row in clients] == pytest.approx([math.exp(loss) for loss in own])
    assert [row["test_accuracy"] for row in clients] == pytest.approx([3 / 4, 1 / 2])
    assert task.label_counts() == [[1, 1, 2], [1, 1, 0]]
    assert task.details(task.objective.start).client_accuracy == pytest.approx([3 / 4, 1 / 2])


@pytest.mark.parametrize("options", [{}, {"weight": torch.tensor([1.0, 2.0, 0.5]), "label_smoothing": 0.1}])
def test_a_clients_gradient_is_that_of_the_mean_over_its_tokens(options) -> None:
    task = made(partial(token_cross_entropy, **options), dtype="float64")
    w, clients = task.objective.start.expand(2, -1).contiguous(), torch.arange(2)
    oracle = DataOracle(task, clients, Draw.seeded(0).fold(clients), None)
    for client, g in enumerate(oracle.full(w)):
        module, rows = Table().double(), [i for i, owner in enumerate(OWNERS) if owner == client]
        torch_options = {key: x.double() if hasattr(x, "double") else x for key, x in options.items()}
        loss = F.cross_entropy(module(X[rows]).reshape(-1, V), Y[rows].reshape(-1), **torch_options)
        loss.backward()
        torch.testing.assert_close(g, module.scores.weight.grad.flatten())
        marks = task.evaluate_clients(task.objective.start)[client]["train_loss"]
        assert marks == pytest.approx(loss.item())
    # a minibatch of both sequences, which are not drawn evenly
    batch = DataOracle(task, clients, Draw.seeded(0).fold(clients), 2, epochs=1).batch(w)
    torch.testing.assert_close(batch, oracle.full(w))


@pytest.mark.parametrize("padding", [7, -1])
def test_another_number_may_stand_for_padding(padding: int) -> None:
    other = torch.where(Y == NO, padding, Y)
    task = Task.from_arrays(
        Table(), X, other, groups=OWNERS, loss=partial(token_cross_entropy, ignore_index=padding)
    )
    assert task.classes == V
    p = torch.tensor([0.5, 0.5])
    assert (
        task.evaluate(task.objective.start, p)["train_loss"]
        == made().evaluate(task.objective.start, p)["train_loss"]
    )


def test_data_that_no_model_of_tokens_fits_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"returns \[1, 2\]; it must return \[1, 3, 3\].*one class, give y"):
        Task.from_arrays(nn.Linear(3, 2), X.float(), Y, groups=OWNERS)
    with pytest.raises(ConfigError, match="gru is for text"):
        Gru().module((1, 8, 8), 10)
    with pytest.raises(ConfigError, match="width=10, heads=4"):
        Transformer(width=10)
    with pytest.raises(ConfigError, match="gru needs layers of 1"):
        Gru(layers=0)
    learned = Transformer(width=8, heads=2, positions="learned").module((4,), V)
    with pytest.raises(ConfigError, match="5 tokens, but there are 4 places"):
        Task.from_arrays(learned, torch.zeros(2, 5).long(), torch.zeros(2, 5).long(), clients=2)


def test_the_gru_is_torchs_up_to_second_derivatives() -> None:
    torch.manual_seed(0)
    ours, theirs = GruLayer(4, 6).double(), nn.GRU(4, 6, batch_first=True).double()
    pairs = {
        "weight_ih_l0": ours.inputs.weight,
        "bias_ih_l0": ours.inputs.bias,
        "weight_hh_l0": ours.state.weight,
        "bias_hh_l0": ours.state.bias,
    }
    theirs.load_state_dict(pairs)
    x, up = torch.randn(2, 5, 4).double(), torch.randn(2, 5, 6).double()
    parameters = [list(pairs.values()), [getattr(theirs, name) for name in pairs]]
    torch.testing.assert_close(ours(x), theirs(x)[0])
    first = [
        torch.autograd.grad((states * up).sum(), own, create_graph=True)
        for states, own in zip((ours(x), theirs(x)[0]), parameters, strict=True)
    ]
    second = [
        torch.autograd.grad(sum(g.square().sum() for g in grads), own)
        for grads, own in zip(first, parameters, strict=True)
    ]
    torch.testing.assert_close(first[0], first[1])
    torch.testing.assert_close(second[0], second[1])


MODELS = {
    "gru": Gru(embed=4, hidden=8, layers=2),
    "rotary": Transformer(width=8, heads=2),
    "tied": Transformer(width=8, heads=2, layers=1, positions="learned", tied=True),
}
TEXT = {f"c{i}": "\n".join(f"so says number {i} in line {j}" for j in range(9 - i)) for i in range(4)}


@pytest.mark.parametrize("name", MODELS)
def test_models_know_what_came_before_and_learn_in_stacks_of_any_size(name: str) -> None:
    data = from_text(TEXT, length=12)
    torch.manual_seed(0)
    module = MODELS[name].module(tuple(data.x.shape[1:]), data.classes).double()
    outputs, changed = module(data.x[:1]), data.x[:1].clone()
    changed[0, 7] = 5
    moved = (module(changed) - outputs).abs().amax(-1)[0] > 0
    assert moved.tolist() == [False] * 7 + [True] * 5
    ends = []
    for chunk in (None, 1):
        task = Task.build(
            Objective(module, None, "float64"), data, [range(i, len(data.y), 4) for i in range(4)]
        )
        if chunk is None:
            assert task.tokens is data.tokens
        method = FedCOMGATEExact(eta=0.5, gamma=1.0, tau=3, batch=2)
        simulation = Simulation(task, method, Links(uplink=Int(8)), rounds=4, participation=0.5, chunk=chunk)
        first = simulation.row()
        for _ in range(4):
            simulation.step()
        ends.append(simulation.row())
        assert ends[-1]["test_perplexity"] < first["test_perplexity"]
        bits = ends[-1]["test_bits_per_character"]
        assert 2**bits == pytest.approx(ends[-1]["test_perplexity"])
    assert ends[0]["train_loss"] == pytest.approx(ends[1]["train_loss"], rel=1e-9)


def test_roles_have_their_own_tests_and_text_can_be_held_out() -> None:
    data = from_text(TEXT, length=10)
    module = MODELS["gru"].module((10,), data.classes)
    whole = Task.build(Objective(module), data, [(data.groups == i).nonzero()[:, 0] for i in range(4)])
    assert sum(whole.test_sizes) == len(whole.test_y)
    some = Task.build(Objective(module), data, [(data.groups == i).nonzero()[:, 0] for i in (3, 1)])
    assert sum(some.test_sizes) == len(some.test_y) < len(whole.test_y)  # the others' text is left out
    held = whole.held_out(0.3)
    assert held.tokens is data.tokens
    method = FedCOM(eta=0.3, tau=2, batch=4)
    links = Links(uplink=TopK(0.05), uplink_memory="error-feedback")
    simulation = Simulation(held, method, links, rounds=3, metrics={"places": lambda out, y: out.shape[1]})
    rows = simulation.run()
    assert rows[-1]["test_loss"] < rows[0]["test_loss"]
    assert rows[-1]["places"] == 10


def test_a_task_of_texts_is_one_line() -> None:
    task = Task.from_text(Gru(embed=4, hidden=8), TEXT, length=10, seed=3)
    assert task.clients == len(TEXT)
    assert torch.equal(
        Task.from_text(Gru(embed=4, hidden=8), TEXT, length=10, seed=3).objective.start, task.objective.start
    )
    own = Task.from_text(lambda size: nn.Sequential(nn.Embedding(size, 4), nn.Linear(4, size)), TEXT)
    assert own.classes == own.tokens.size
    assert "tokens" in repr(own)
    with pytest.raises(ConfigError, match="must be a torch"):
        Task.from_text(lambda size: size, TEXT)


def test_outputs_of_text_bound_how_much_is_evaluated_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    task, p = made(), torch.tensor([0.5, 0.5])
    at_once = task.evaluate(task.objective.start, p)
    assert task.block_size == scores.EVAL_BLOCK
    monkeypatch.setattr(scores, "_MOST_OUTPUTS", 2 * 3 * V)  # of two samples of three tokens
    assert task.block_size == 2
    assert task.evaluate(task.objective.start, p) == pytest.approx(at_once)


def test_a_gpu_evaluates_as_much_text_at_once_as_keeps_it_busy_or_more_if_that_is_small() -> None:
    gib = 1 << 30
    assert scores.text_block(128, 49152) == (1 << 26) // (128 * 49152) == 10
    assert scores.text_block(128, 49152, 16 * gib) == 21  # 2^27 outputs
    assert scores.text_block(128, 49152, 1000 * gib) == (1 << 16) // 128 == 512
    assert scores.text_block(1024, 64, 1000 * gib) == scores.text_block(1024, 64) == 1024
    assert scores.text_block(1 << 16, 21, 1000 * gib) == scores.text_block(1 << 16, 21) == 48  # pixels


@pytest.mark.gpu
def test_a_gpu_evaluates_more_text_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there, p = made(), made().to(torch.device("cuda")), torch.tensor([0.5, 0.5])
    memory = torch.cuda.get_device_properties("cuda").total_memory
    monkeypatch.setattr(scores, "_MOST_OUTPUTS", 1)
    monkeypatch.setattr(scores, "BYTES_PER_OUTPUT", memory // (2 * 3 * V))
    assert (here.block_size, there.block_size) == (1, 2)
    ours, theirs = here.evaluate(here.objective.start, p), there.evaluate(there.objective.start, p)
    assert ours == pytest.approx(theirs)


def test_arrays_of_tokens_need_no_more_than_a_module() -> None:
    data = Dataset("own", X, Y, X[:0], Y[:0], V)
    task = Task.build(Objective(Table()), data, [[0, 1], [2]])
    rows = task.evaluate(task.objective.start, torch.tensor([0.5, 0.5]))
    assert rows["test_loss"] is None
    assert "test_perplexity" not in rows
