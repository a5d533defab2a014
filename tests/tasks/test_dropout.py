"""Dropout from keys: what is dropped, and that it is the same wherever and however clients are computed."""

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedcom import AdamWSteps, ConfigError, FedAvg, FedCOM, FedCOMGATE, Int, Links, Simulation, Task, VRDiana
from fedcom.draws import Draw, mix, salt
from fedcom.engines.stacks import stack_runs
from fedcom.tasks.dropout import Masks
from fedcom.tasks.oracle import DataOracle
from tests.conftest import close
from tests.engines.remote.clients import deployed

KEY = Draw.seeded(3).key
X = Draw.seeded(5).normal(48 * 6, torch.float64).reshape(48, 6)
Y = Draw.seeded(6).integers(3, 48)


class Net(nn.Module):
    """Two linear layers with a layer that drops and F.dropout; and maybe attention and an LSTM."""

    def __init__(self, sequences: bool = True) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.last, self.drop = nn.Linear(6, 8), nn.Linear(8, 3), nn.Dropout(0.25)
        self.attends = nn.MultiheadAttention(8, 2, dropout=0.3, batch_first=True) if sequences else None
        self.lstm = nn.LSTM(4, 8, 2, dropout=0.4, batch_first=True) if sequences else None

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(F.relu(self.first(x)), 0.5, self.training)
        if self.attends is not None and self.lstm is not None:
            x = x.reshape(-1, 2, 4).repeat(1, 1, 2)
            x = self.attends(x, x, x, need_weights=False)[0]
            x = self.lstm(x[..., :4])[0][:, -1]
        return self.last(self.drop(x))  # type: ignore[no-any-return]


def task(module: nn.Module | None = None, clients: int = 6, **settings: Any) -> Task:
    settings = {"dtype": torch.float64, "clients": clients, "seed": 1, **settings}
    return Task.from_arrays(module or Net(), X, Y, X[:9], Y[:9], **settings)


def played(of: Task, algorithm: Any, **settings: Any) -> Simulation:
    simulation = Simulation(of, algorithm, **{"rounds": 2, "device": "cpu", **settings})
    simulation.run()
    return simulation


def bits(of: Task, algorithm: Any, **settings: Any) -> Tensor:
    w: Tensor = played(of, algorithm, **settings).server.w
    return w


def test_what_is_dropped_is_torchs_dropout() -> None:
    x = torch.ones(40, 50, 8, 6, dtype=torch.float64)
    for function, shape in ((F.dropout, x.shape), (F.dropout2d, (40, 50, 1, 1)), (F.dropout1d, x.shape[:2])):
        some = x[..., 0, 0].unsqueeze(-1) if function is F.dropout1d else x
        with Masks(KEY):
            out, again = function(some, 0.3), function(some, 0.3)
        n = math.prod(shape)
        kept = out.ne(0).double().mean()
        assert abs(float(kept) - 0.7) < 5 * math.sqrt(0.21 / n)
        assert out.unique().tolist() == [0, pytest.approx(1 / 0.7)]
        assert 0.3 < out.eq(again).double().mean() < 0.8  # another mask
    with Masks(KEY):
        whole = F.dropout2d(x, 0.3)
        assert torch.equal(whole, whole[..., :1, :1].expand_as(whole))
        assert F.dropout(x, 1.0).eq(0).all()
        assert torch.dropout(x, p=1.0, train=True).eq(0).all()
        assert F.dropout(x, torch.tensor(1.0)).eq(0).all()  # type: ignore[arg-type]
        assert F.dropout(x, 0.0) is F.dropout(x, 0.5, training=False) is x
        assert F.dropout(inside := x.clone(), 0.5, inplace=True) is inside
        with pytest.raises(ValueError, match="between 0 and 1"):
            F.dropout(x, 1.5)
        normal = Draw.seeded(1).normal(100_000, torch.float64)
        for alike in (
            F.alpha_dropout(normal, 0.2, True),
            F.feature_alpha_dropout(normal[:, None], 0.2, True),
        ):
            assert abs(float(alike.mean())) < 0.03
            assert abs(float(alike.var()) - 1) < 0.03
    with Masks(None) as masks:
        assert F.dropout(x, 0.5) is x
    assert masks.calls == 1


@torch.no_grad()
def test_attention_and_recurrent_layers_drop_where_torch_does() -> None:
    """The two ways of attention agree, and both layers are what their parts give."""
    x = X.reshape(24, 3, 4)
    attention = nn.MultiheadAttention(4, 2, dropout=0.4, batch_first=True, dtype=torch.float64)
    causal = nn.Transformer.generate_square_subsequent_mask(3, dtype=torch.float64)
    for options in ({}, {"attn_mask": causal}, {"attn_mask": causal.isinf(), "is_causal": True}):
        with Masks(KEY):
            slow = attention(x, x, x, **options)[0]
        with Masks(KEY):
            quick = attention(x, x, x, need_weights=False, **options)[0]
        assert close(slow, quick)
        assert not torch.allclose(slow, attention.eval()(x, x, x, **options)[0])
        attention.train()
        q = x.reshape(24, 3, 2, 2).transpose(1, 2)
        plain = F.scaled_dot_product_attention(q, q, q, is_causal=True)
        with Masks(KEY):
            assert close(F.scaled_dot_product_attention(q, q, q, is_causal=True, dropout_p=1e-15), plain)
    for kind in (nn.LSTM, nn.GRU, nn.RNN):
        for both in (False, True):
            two = kind(4, 5, 2, dropout=0.5, batch_first=True, bidirectional=both, dtype=torch.float64)
            ways = 2 if both else 1
            parts = [kind(4 if i == 0 else 5 * ways, 5, batch_first=True, bidirectional=both) for i in (0, 1)]
            for i, part in enumerate(parts):
                part.double()
                for name, p in part.named_parameters():
                    p.data = getattr(two, name.replace("l0", f"l{i}"))
            with Masks(KEY):
                found, end = two(x)
            with Masks(KEY):
                first, _ = parts[0](x)
                by_hand, _ = parts[1](F.dropout(first, 0.5))
            assert close(found, by_hand)
            assert (end[0] if kind is nn.LSTM else end).shape == (2 * ways, 24, 5)
            with Masks(None):
                assert close(two(x)[0], two.eval()(x)[0])


def test_a_loop_by_hand_with_the_same_masks() -> None:
    """FedAvg written out for two clients, two rounds and three steps, each mask from its own key."""
    tau, b, eta, seed = 3, 4, 0.1, 9
    of = task(Net(sequences=False), clients=2)
    w = of.objective.start
    simulation = played(of, FedAvg(eta=eta, tau=tau, batch=b, decay=1.0), rounds=2, seed=seed)
    layout, masks = of.objective.layout, list[Tensor]()
    for number in range(2):
        after = []
        for j in range(2):
            draw, v = Draw.seeded(seed).fold(number).fold(torch.tensor([j])), w
            for c in range(tau):
                place = of.offsets[j] + draw.fold("batch", c).integers(int(of.sizes[j]), b)[0]
                v = v.detach().requires_grad_()
                p, key = layout.tensors(v), draw.fold("dropout", c).key[0]
                uniform = [
                    Draw(mix(key, salt(call))).uniform(b * 8, v.dtype).reshape(b, 8) for call in (1, 2)
                ]
                h = F.relu(of.x[place] @ p["first.weight"].T + p["first.bias"]) * (uniform[0] >= 0.5) / 0.5
                out = (h * (uniform[1] >= 0.25) / 0.75) @ p["last.weight"].T + p["last.bias"]
                (g,) = torch.autograd.grad(F.cross_entropy(out, of.y[place]), v)
                v, masks = v - eta * g, [*masks, *uniform]
            after.append(v.detach())
        w = torch.stack(after).mean(0)
    assert float((simulation.server.w - w).abs().max()) < 1e-12
    assert len({tuple((mask < 0.5).flatten().tolist()) for mask in masks}) == len(masks) == 24


def test_masks_are_the_same_in_any_grouping_stack_and_engine_and_after_a_resume(tmp_path: Path) -> None:
    owner = torch.arange(6).repeat_interleave(torch.tensor([3, 5, 7, 9, 11, 13]))
    for algorithm, module in (
        (FedCOMGATE(eta=0.1, tau=2, batch=4), Net(sequences=False)),
        (FedCOM(eta=0.01, tau=1, batch=4, local=AdamWSteps()), Net()),
        (FedCOM(eta=0.1, tau=1, batch="full"), Net(sequences=False)),
    ):
        of = task(module, partition=owner)
        given: dict[str, Any] = {"links": Links(Int(4)), "participation": 0.5, "seed": 2}
        whole = bits(of, algorithm, **given)
        assert close(bits(of, algorithm, chunk=2, **given), whole)
        threads = torch.get_num_threads()
        torch.set_num_threads(2)
        try:
            two = bits(of, algorithm, chunk=1, **given)
        finally:
            torch.set_num_threads(threads)
        assert close(two, whole)
        assert torch.equal(two, bits(of, algorithm, chunk=1, **given))
        first = Simulation(of, algorithm, rounds=2, device="cpu", **given)
        first.step()
        first.save(tmp_path / str(algorithm.batch) / algorithm.name)
        again = Simulation(of, algorithm, rounds=2, device="cpu", **given)
        assert again.restore(tmp_path / str(algorithm.batch) / algorithm.name)
        again.run()
        assert torch.equal(again.server.w, whole)
        one = Simulation(
            of,
            algorithm,
            rounds=2,
            device="cpu",
            **{**given, "chunk": 1, "links": Links(Int(4), encode=True)},
        )
        settings = {"algorithm": algorithm, "rounds": 2, **given}
        there, _ = deployed(of, settings, tmp_path / f"{algorithm.batch}-{algorithm.name}-remote")
        for _ in range(2):
            one.step()
            there.step()
        assert torch.equal(one.server.w, there.server.w)


def test_runs_of_a_stack_drop_what_they_drop_alone() -> None:
    of, algorithm = task(), FedCOM(eta=0.1, tau=2, batch=4)
    alone = [played(of, algorithm, seed=seed).server.w for seed in (1, 2)]
    stacked = [Simulation(of, algorithm, rounds=2, device="cpu", seed=seed) for seed in (1, 2)]
    engine = stack_runs(stacked)
    for _ in range(2):
        engine.step()
    for simulation, w in zip(stacked, alone, strict=True):
        assert close(simulation.server.w, w)
    assert not torch.allclose(alone[0], alone[1])


def test_gradients_differ_by_client_round_and_step_and_vary_around_the_mean() -> None:
    of = task(Net(sequences=False), clients=2)
    w = of.objective.start.expand(2, -1)

    def gradient(seed: int, step: int) -> Tensor:
        draw = Draw.seeded(seed).fold(torch.arange(2))
        return DataOracle(of, torch.arange(2), draw, None).at(step).batch(w)

    found = torch.stack([gradient(seed, step) for seed in range(3) for step in range(2)])
    assert len(found.flatten(0, 1).unique(dim=0)) == 12
    assert torch.equal(gradient(0, 1), gradient(0, 1))
    renewed = played(of, VRDiana(eta=0.1, batch=4), links=Links(Int(4)))  # full gradients drop too
    assert renewed.server.w.isfinite().all()


def test_evaluation_drops_nothing_and_modules_that_do_not_drop_pay_nothing() -> None:
    of = task()
    assert of.objective.drops
    assert close(of.objective.outputs(of.objective.start, X), Net().double().eval()(X).detach())
    for module in (Net().eval(), nn.Linear(6, 3), nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.0))):
        still = task(module)
        assert not still.objective.drops
        assert DataOracle(still, torch.arange(2), Draw.seeded(0).fold(torch.arange(2)), 4)._key is None

    class Always(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return F.dropout(super().forward(input), 0.5)

    always = task(Always(6, 3))
    assert always.objective.drops
    once, again = (always.evaluate(always.objective.start, torch.full((6,), 1 / 6)) for _ in range(2))
    assert once == again
    assert always.to(torch.device("cpu")).objective.drops
    assert copy.deepcopy(always.objective).drops


def test_other_random_operations_are_refused_with_what_to_do() -> None:
    class Noisy(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input + torch.rand_like(input))

    class Leaky(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return F.rrelu(super().forward(input), training=self.training)

    for kind in (Noisy, Leaky):
        with pytest.raises(ConfigError, match=r"draws random numbers.*torch's dropout"):
            task(kind(6, 3))
