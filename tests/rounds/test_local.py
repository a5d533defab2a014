"""Steps taken piece by piece, and compiled loops, change no bit of a run."""

from typing import Any

import pytest
import torch
from torch import nn

from fedcom import Links, Simulation, Task, vectors
from fedcom.algorithms import ALGORITHMS, FedCOMGATE
from fedcom.algorithms.base import Round
from fedcom.codecs import Identity, Int, Rotated, TopK
from fedcom.codecs.kernels import cpu
from fedcom.codecs.kernels.jit import COMPILED
from fedcom.engines.stacks import stack_runs
from fedcom.rounds import local, loops
from fedcom.vectors import handfuls

DENSE = nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 5, bias=False), nn.ReLU(), nn.Linear(5, 4))
OTHER = nn.Sequential(nn.Linear(12, 20), nn.Tanh(), nn.Linear(20, 4))
CASES: dict[str, dict[str, Any]] = {
    **{name: {"kind": kind} for name, kind in ALGORITHMS.items()},
    "another module": {"module": OTHER},
    "local momentum": {"local": "momentum"},
    "local momentum, sampled": {
        "kind": ALGORITHMS["fedcom"],
        "local": {"name": "momentum", "keep": True},
        "participation": 0.5,
    },
    "local nesterov": {"local": {"name": "momentum", "nesterov": True, "mu": 0.5, "weight_decay": 0.1}},
    "local adamw": {"kind": ALGORITHMS["fedcom"], "local": {"name": "adamw", "keep": True}},
    "full batches": {"batch": "full"},
    "weight decay": {"weight_decay": 0.1},
    "epochs": {"tau": None, "epochs": 2},
    "unequal steps": {"tau": (1, 2, 3, 4, 5, 1, 2, 3)},
    "sampled": {"participation": 0.5},
    "both links": {"links": Links(Int(3), Int(6))},
    "encoded": {"links": Links(Int(8), encode=True), "participation": 0.5},
    "nearest": {"links": Links(Int(8, rounding="nearest", scale="vector"))},
    "spread": {"links": Links(Int(4), correlated=True)},
    "memory": {"links": Links(TopK(0.2), uplink_memory="error-feedback")},
    "rotated": {"links": Links(Rotated(2.0), Rotated(4.0))},
}


def plainly(patch: pytest.MonkeyPatch) -> None:
    """Whole stacks, whole gradients, and torch alone."""
    patch.setattr(local, "OracleInPieces", type(None))
    patch.setattr(vectors, "_CACHED", 10**9)
    patch.setattr(cpu, "ready", lambda *_: False)
    patch.setattr(loops, "_serve", lambda *_: False)


def simulate(
    kind: Any = ALGORITHMS["fedcomgate"],
    module: nn.Module = DENSE,
    links: Links | None = None,
    participation: float = 1.0,
    seed: int = 0,
    **settings: Any,
) -> Simulation:
    torch.manual_seed(3)
    task = Task.from_arrays(module, torch.randn(240, 12), torch.randint(0, 4, (240,)), clients=8)
    steps = {} if "tau" in kind.fixed else {"tau": 3}
    settings = {key: value for key, value in {**steps, **settings}.items() if value is not None}
    algorithm = kind(**{"eta": 0.1, "batch": 7, **settings})
    return Simulation(task, algorithm, links, participation=participation, device="cpu", seed=seed)


def state(simulation: Simulation) -> dict[str, Any]:
    held = [*simulation.server, *simulation.client_states(), *simulation.client_memory().values()]
    kept = {str(i): x.clone() for i, x in enumerate(held)}
    return {**kept, "q": simulation.q, **simulation.ledger.as_dict()}


def equal(a: dict[str, Any], b: dict[str, Any]) -> bool:
    pairs = [(a[name], b[name]) for name in a]
    return a.keys() == b.keys() and all(torch.equal(x, y) if torch.is_tensor(x) else x == y for x, y in pairs)


@pytest.mark.parametrize("case", CASES)
def test_runs_keep_their_bits(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "_CACHED", 300)  # so that tensors of clients are cut
    quick = simulate(**CASES[case])
    for _ in range(3):
        quick.step()
    found = state(quick)
    plainly(monkeypatch)
    plain = simulate(**CASES[case])
    for _ in range(3):
        plain.step()
    assert equal(found, state(plain))


def test_runs_in_step_keep_their_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "_CACHED", 300)

    def played() -> list[dict[str, Any]]:
        runs = [simulate(eta=0.1 / (seed + 1), seed=seed) for seed in range(2)]
        engine = stack_runs(runs)
        for _ in range(3):
            engine.step()
        return [state(run) for run in runs]

    found = played()
    plainly(monkeypatch)
    assert all(equal(a, b) for a, b in zip(found, played(), strict=True))


def test_plain_steps_are_really_taken_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a whole gradient was asked for")

    monkeypatch.setattr("fedcom.tasks.oracle.DataOracle.batch", refuse)
    simulate().step()
    with pytest.raises(AssertionError, match="a whole gradient"):
        simulate(kind=ALGORITHMS["vr-diana"], links=Links(Identity())).step()


def test_loops_are_used_where_they_have_the_bits_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    if not (COMPILED and loops._have_bits_of_torch()):
        pytest.skip("this processor rounds otherwise, or numba is not installed")

    simulation, heavy, calls = simulate(), simulate(local="momentum"), []
    for loop in ("_descend", "_update", "_track", "_roll"):
        known = getattr(loops, loop)
        monkeypatch.setattr(loops, loop, lambda *a, name=loop, known=known: (calls.append(name), known(*a)))
    simulation.step()
    assert set(calls) == {"_descend", "_update", "_track"}
    calls.clear()
    heavy.step()
    assert set(calls) == {"_roll", "_update", "_track"} or not loops._rolls_like_torch()


@pytest.mark.parametrize("line", ["direction", "upload", "client_step"])
def test_a_method_with_a_line_of_its_own_keeps_it(line: str) -> None:
    def own(*_: Any) -> None:
        raise AssertionError("its own line was asked")

    simulation = simulate(kind=type("Own", (FedCOMGATE,), {line: own}))
    with pytest.raises(AssertionError, match="its own line was asked"):
        simulation.step()


def test_a_rate_that_has_decayed_to_nothing_is_left_to_torch() -> None:
    """torch divides by zero; a compiled loop would raise."""
    rnd, w = Round(0.0, 2, torch.zeros((), dtype=torch.float64), 1.0), torch.ones(1, 3)
    assert loops.upload(FedCOMGATE(), {"w": torch.zeros(3)}, w, rnd) is None
    assert torch.equal(w, torch.ones(1, 3))


def test_handfuls_are_all_rows_in_order() -> None:
    assert handfuls(5, 1 << 17) == [slice(0, 2), slice(2, 4), slice(4, 5)]
    assert handfuls(3, 1 << 30) == [slice(0, 1), slice(1, 2), slice(2, 3)]
    assert handfuls(0, 7) == []
