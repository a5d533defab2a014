"""It takes any module: what people write trains from Python in ten lines, whatever it is called with."""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedcom import ConfigError, DataError, FedAvg, FedCOM, FedCOMGATE, Int, Links, Simulation, Task
from fedcom.draws import Draw
from tests.conftest import close
from tests.engines.remote.clients import deployed

N, T = 48, 4
TOKENS = Draw.seeded(1).integers(9, N * T).reshape(N, T)
Y = (TOKENS[:, 0] > 4).long()
REAL = Draw.seeded(2).normal(N * 6).reshape(N, 6) + Y.unsqueeze(-1)
OWNERS = torch.arange(4).repeat_interleave(torch.tensor([6, 9, 13, 20]))


@dataclass
class Scores:
    """What a module may return; as ModelOutput of transformers has it, but for the mapping."""

    logits: Tensor
    hidden: Tensor | None = None


class Output(OrderedDict[str, Any]):
    """A mapping whose values are attributes, as ModelOutput of transformers is."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


class Reader(nn.Module):
    """Reads tokens by attention or an LSTM and scores two classes, in some way of returning them."""

    def __init__(self, how: str = "plain", dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how, self.embedding, self.last = how, nn.Embedding(9, 8), nn.Linear(8, 2)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout, batch_first=True)
        self.body: nn.Module = nn.Identity()
        if how == "attention":
            self.body = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        if how == "lstm":
            self.body = nn.LSTM(8, 8, 2, batch_first=True, dropout=dropout)
        if how == "tied":
            self.last = nn.Linear(8, 9)
            self.last.weight = self.embedding.weight
        if how == "frozen":
            self.embedding.requires_grad_(False)

    def forward(self, x: Tensor) -> Any:
        h = self.body(self.embedding(x))
        h = (h[0] if self.how == "lstm" else h)[:, 0]
        scores = self.last(h)[:, :2]
        wrap: Mapping[str, Any] = {
            "mapping": {"logits": scores, "hidden": h},
            "dataclass": Scores(scores, h),
            "one field": Scores,
            "output": Output(hidden=h, logits=scores),
            "tuple": (scores, h),
        }
        return wrap.get(self.how, scores)


class Pair(nn.Module):
    """Takes tokens, which of them count, and real numbers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.last = nn.Embedding(9, 8), nn.Linear(14, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, real: Tensor | None = None) -> Scores:
        assert input_ids.dtype == torch.int64
        assert attention_mask.dtype in (torch.int64, torch.bool)
        h = (self.embedding(input_ids) * attention_mask.unsqueeze(-1)).mean(-2)
        real = h.new_zeros(*h.shape[:-1], 6) if real is None else real
        return Scores(self.last(torch.cat((h, real), -1)))


MASK = (torch.arange(T) < 3).expand(N, T).long()
FORMS: dict[str, Any] = {
    "mapping": {"input_ids": TOKENS, "attention_mask": MASK},
    "tuple": (TOKENS, MASK),
    "mixed": {"input_ids": TOKENS, "attention_mask": MASK, "real": REAL},
    "mixed tuple of numpy": (TOKENS.numpy(), MASK.bool(), REAL.double().numpy()),
}


def falls(task: Task, **settings: Any) -> Simulation:
    """A run that lowers the loss."""
    given: dict[str, Any] = {
        "algorithm": FedCOMGATE(eta=0.2, tau=3, batch=8),
        "links": Links(Int(6)),
        **settings,
    }
    simulation = Simulation(task, rounds=3, device="cpu", eval_every=3, **given)
    first, *_, last = simulation.run()
    assert last["train_loss"] < first["train_loss"] - 0.005
    return simulation


@pytest.mark.parametrize(
    "how", ["lstm", "attention", "tied", "frozen", "mapping", "dataclass", "output", "tuple", "plain"]
)
def test_common_modules_train_in_few_lines(how: str) -> None:
    task = Task.from_arrays(Reader(how, dropout=0.1), TOKENS, Y, clients=4)
    assert task.objective.drops == (how in ("lstm", "attention"))
    names = [name for name, p in Reader(how).named_parameters() if p.requires_grad]
    assert list(task.objective.layout.names) == names
    found = falls(task).module()
    assert found(TOKENS) is not None
    if how == "frozen":
        assert torch.equal(found.embedding.weight, Reader().embedding.weight)  # type: ignore[union-attr, arg-type]
    if how == "tied":
        assert found.embedding.weight is found.last.weight  # type: ignore[union-attr]


def test_a_dataclass_of_one_field_is_understood_and_others_are_told() -> None:
    @dataclass
    class One:
        scores: Tensor

    @dataclass(slots=True)
    class Bare:
        scores: Tensor

    class Wraps(nn.Linear):
        kind: Any = One

        def forward(self, input: Tensor) -> Any:
            return self.kind(super().forward(input))

    assert Task.from_arrays(Wraps(6, 2), REAL, Y, clients=2).classes == 2
    Wraps.kind = Bare
    assert Task.from_arrays(Wraps(6, 2), REAL, Y, clients=2).classes == 2
    Wraps.kind = staticmethod(lambda scores: replace(Scores(scores), logits=None))
    with pytest.raises(ConfigError, match=r'returns a Scores; it must return .* an object with "logits"'):
        Task.from_arrays(Wraps(6, 2), REAL, Y, clients=2)


@pytest.mark.parametrize("form", FORMS)
def test_modules_of_several_inputs_train_as_on_one(form: str, tmp_path: Path) -> None:
    """The same bits as with a module that takes the table and cuts it itself, wherever clients are."""
    x = FORMS[form]
    task = Task.from_arrays(Pair(), x, Y, x, Y, partition=OWNERS, dtype="float64")
    given = {"algorithm": FedCOM(eta=0.5, gamma=1.0, epochs=1, batch=6), "participation": 0.5}
    done = falls(task, **{**given, "links": Links(Int(6), encode=True)}, chunk=1)

    class Cuts(Pair):
        def forward(self, input: Tensor) -> Scores:  # type: ignore[override]
            parts = input[:, :T].long(), input[:, T : 2 * T].long(), input[:, 2 * T :]
            return super().forward(*(parts if len(input[0]) > 2 * T else parts[:2]))

    parts = list(x.values()) if isinstance(x, dict) else list(x)
    table = torch.cat([torch.as_tensor(part).to(torch.float64) for part in parts], 1)
    cut = Cuts()
    cut.embedding = nn.Embedding(9, 8)
    cut.load_state_dict(Pair().state_dict())
    other = Task.from_arrays(cut, table, Y, table, Y, partition=OWNERS, dtype="float64")
    assert torch.equal(
        falls(other, **given, links=Links(Int(6), encode=True), chunk=1).server.w, done.server.w
    )
    named = {
        name: torch.as_tensor(part)
        for name, part in zip(("input_ids", "attention_mask", "real"), parts, strict=False)
    }
    trained = done.module().double()
    named = {
        name: part.long() if not part.is_floating_point() else part.double() for name, part in named.items()
    }
    accuracy = float((trained(**named).logits.argmax(-1) == Y).double().mean())
    assert done.row()["test_accuracy"] == pytest.approx(accuracy)
    assert task.to(torch.device("cpu")).objective.several == task.objective.several
    if form != "mixed":
        return
    there, _ = deployed(task, {**given, "links": Links(Int(6)), "rounds": 3}, tmp_path)
    for _ in range(3):
        there.step()
    assert torch.equal(there.server.w, done.server.w)
    done.save(tmp_path / "saved")
    again = Simulation(task, rounds=3, device="cpu", chunk=1, **given, links=Links(Int(6), encode=True))
    assert again.restore(tmp_path / "saved")
    assert torch.equal(again.server.w, done.server.w)


class Padded(nn.Module):
    """Attention over numbers that a mask of True leaves out, and the mean of as many places as are told."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True)
        self.last = nn.Linear(4, 2)

    def forward(self, x: Tensor, padding: Tensor, count: Tensor) -> Tensor:
        h = self.body(x, src_key_padding_mask=padding).masked_fill(padding.unsqueeze(-1), 0.0)
        return self.last(h.sum(1) / count.unsqueeze(-1))  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", ["torch", "numpy", "lists"])
def test_true_and_false_stay_so_and_an_input_may_be_one_number(kind: str) -> None:
    """Attention adds a mask of numbers to its scores, and leaves out where one of truths is True."""
    x, count = Draw.seeded(3).normal(12 * 5 * 4, torch.float64).reshape(12, 5, 4), 1 + torch.arange(12) % 5
    padding = torch.arange(5) >= count.unsqueeze(-1)
    given = {"torch": padding, "numpy": padding.numpy(), "lists": padding.tolist()}[kind]
    inputs = {"x": x, "padding": given, "count": count}
    task = Task.from_arrays(Padded(), inputs, Y[:12], inputs, Y[:12], clients=2, dtype="float64")
    found = Padded().double()(x, padding, count).detach()
    assert close(task.objective.outputs(task.objective.start, task.test_x), found)
    Simulation(task, "fedavg", rounds=1, device="cpu").step()
    with pytest.raises(
        DataError, match=r"x is x \[5, 4\], padding \[5\] true or false, .* padding \[5\] whole"
    ):
        Task.from_arrays(Padded(), inputs, Y[:12], {**inputs, "padding": padding.long()}, Y[:12], clients=2)


def test_whole_numbers_that_a_dtype_cannot_hold_are_refused() -> None:
    x = {"input_ids": TOKENS, "attention_mask": MASK * (2**24 + 1), "real": REAL}
    with pytest.raises(DataError, match=r"whole numbers beyond those of torch.float32; give dtype='float64'"):
        Task.from_arrays(Pair(), x, Y, clients=2)
    assert Task.from_arrays(Pair(), x, Y, clients=2, dtype="float64").x.dtype == torch.float64


@pytest.mark.parametrize("wrong", [5, -1])
@pytest.mark.parametrize("where", ["training", "test", "mapping"])
def test_numbers_that_an_embedding_does_not_have_are_refused(wrong: int, where: str) -> None:
    """They may be in few samples, and torch says no more than that an index is out of range."""
    module = nn.Sequential(OrderedDict(input=nn.Embedding(5, 2), flat=nn.Flatten(), head=nn.Linear(6, 3)))
    x, y = torch.arange(60).reshape(20, 3) % 5, torch.arange(20) % 3
    test_x = x.clone()
    (test_x if where == "test" else x)[7, 1] = wrong
    given: Any = ({"input": x}, y) if where == "mapping" else (x, y, test_x, y)
    with pytest.raises(ConfigError, match=rf"embedding of 5 rows.* from {min(wrong, 0)} to {max(wrong, 4)}"):
        Task.from_arrays(module, *given, clients=2)


def test_lazy_modules_see_several_inputs() -> None:
    class Lazy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.LazyLinear(2)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return F.relu(self.last(torch.cat((a, b), -1)))  # type: ignore[no-any-return]

    task = Task.from_arrays(Lazy(), (REAL, REAL[:, :2]), Y, clients=2)
    assert task.objective.layout.shapes == ((2, 8), (2,))
    w = task.objective.start
    assert close(
        task.objective.outputs(w, task.x).double(), F.relu(task.x @ w[:16].reshape(2, 8).T + w[16:]).double()
    )


class Centred(nn.Module):
    """A linear layer on x - 1/2, dropped in part or not; in place or not."""

    def __init__(self, in_place: bool, drops: bool) -> None:
        super().__init__()
        self.in_place, self.drop = in_place, nn.Dropout(0.5 * drops)
        torch.manual_seed(0)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.sub_(0.5) if self.in_place else x - 0.5
        return self.head(self.drop(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize("drops", [False, True])
def test_what_a_user_writes_in_place_changes_no_data(drops: bool) -> None:
    x, y = torch.rand(30, 4, generator=torch.Generator().manual_seed(0)), torch.arange(30) % 3
    ends = []
    for in_place in (False, True):
        task = Task.from_arrays(Centred(in_place, drops), x, y, x, y, clients=3)
        ends.append(Simulation(task, FedAvg(eta=0.5, batch=5), rounds=2, device="cpu").run()["test_loss"])
        assert torch.equal(task.test_x, x)
    assert ends[0] == ends[1]

    def halved(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets.mul_(0.5)).square().mean()

    task = Task.from_arrays(
        nn.Linear(4, 1), x, y[:, None].float(), x, y[:, None].float(), clients=3, loss=halved
    )
    kept = task.y.clone(), task.test_y.clone()
    Simulation(task, FedAvg(batch="full"), rounds=1, metrics={"half": halved}, device="cpu").run()
    assert torch.equal(task.y, kept[0])
    assert torch.equal(task.test_y, kept[1])


class Recurrent(nn.Module):
    """A trained embedding, a recurrent layer or cell of which all or part is frozen, and a trained head."""

    def __init__(self, kind: type[nn.Module], frozen: str) -> None:
        super().__init__()
        self.embed, self.inner, self.head = nn.Embedding(9, 4), kind(4, 5), nn.Linear(5, 3)
        for name, p in self.inner.named_parameters():
            p.requires_grad_(frozen not in name)

    def forward(self, x: Tensor) -> Tensor:
        steps = self.embed(x).transpose(0, 1)
        if isinstance(self.inner, nn.RNNBase):
            return self.head(self.inner(steps)[0][-1])  # type: ignore[no-any-return]
        state: Any = None
        for step in steps:
            state = self.inner(step, state)
        return self.head(state[0] if isinstance(state, tuple) else state)  # type: ignore[no-any-return]


@pytest.mark.parametrize("frozen", ["", "hh"])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN, nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_what_stands_before_a_frozen_recurrent_layer_is_trained(kind: type[nn.Module], frozen: str) -> None:
    torch.manual_seed(0)
    x, y = torch.randint(9, (8, 6)), torch.arange(8) % 3
    task = Task.from_arrays(Recurrent(kind, frozen), x, y, clients=2, dtype="float64")
    w, weight = task.objective.start, torch.full((1, 4), 0.25, dtype=torch.float64)
    found = task.objective.gradients(w[None], task.x[None, :4], task.y[None, :4], weight)[0]
    module = task.objective.loaded(w)
    F.cross_entropy(module(task.x[:4]), task.y[:4]).backward()
    assert close(found, torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None]))
