"""FedNova, FedExP, FedCM, FedDyn, SCAFFOLD-M and EControl in float64: rounds by hand, identities, limits.

By hand as in test_by_hand: the gradients of two clients are w - 1 and 2 (w + 1), w starts at 0, eta = 0.1.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from fedcom import (
    ConfigError,
    EControl,
    FedAvg,
    FedCM,
    FedCOM,
    FedDyn,
    FedExP,
    FedNova,
    FedPAQ,
    Identity,
    Int,
    Links,
    Momentum,
    RandK,
    Scafcom,
    Scaffold,
    ScaffoldM,
    Simulation,
    Task,
    TopK,
)
from fedcom.engines.remote.terms import Terms
from tests.algorithms.test_by_hand import ONE, PLAIN, RATES, plane, two
from tests.conftest import after, close, mlp_task, quadratic_task
from tests.engines.remote.clients import deployed

SIZES = [5, 9, 12, 20, 7, 30]
TAUS = (1, 5, 2, 3, 4, 2)
SMALL: Any = {"eta": 0.05, "tau": 3, "batch": 5}
FULL: Any = {"eta": 0.3, "gamma": 1.0, "batch": "full", "decay": 1.0}


def flat(x: Tensor) -> list[float]:
    return x.flatten().tolist()


def about(*numbers: float) -> Any:
    return pytest.approx(list(numbers), abs=1e-14)


# By hand


def test_fednova_by_hand() -> None:
    """One step and three: y = .1 and -.488. With one client per round the model is that client's."""
    algorithm = FedNova(**{**RATES, "tau": (1, 3)})
    ends = {
        round(float(after(two(), algorithm, rounds=1, participation=0.5, seed=s).server.w), 12)
        for s in range(5)
    }
    assert ends == {0.1, -0.488}
    # Weights 1/4 and 3/4: tau_eff = 2.5, and -1 and .488/.3 per step.
    one = two()
    rows = torch.tensor([0, 1, 1, 1])
    by_size = Task(one.objective, one.x[rows], one.y[rows], torch.tensor([1, 3]), one.x[:0], one.y[:0], 0)
    w = after(by_size, replace(algorithm, weights="size"), rounds=1).server.w
    assert flat(w) == about(-0.25 * (0.75 * 0.488 / 0.3 - 0.25))


def test_fedexp_by_hand() -> None:
    """Delta = -.19 and .36: gamma = .08285 / (2 (.007225 + .001)); clipped to .2: .03805 / (2 .001025)."""
    run = after(two(), FedExP(**RATES), rounds=1)
    assert flat(run.server.w) == about(-0.085 * 0.08285 / (2 * 0.008225))
    assert run.ledger.as_dict()["uplink"]["vectors"]["number square"] == {"header": 32, "values": 16}  # type: ignore[index]
    clipped = after(two(), FedExP(**RATES), Links(Identity(), clip=0.2), rounds=1)
    assert flat(clipped.server.w) == about(-0.005 * 0.03805 / (2 * 0.001025))


def test_fedcm_by_hand() -> None:
    """0 -> .05 -> .0975 and 0 -> -.1 -> -.19: D = -.975, 1.9, w = -.04625, G = .23125.

    Then w_1: -.0055, .0332125 and w_2: -.1531875, -.24943125.
    """
    server = after(two(), FedCM(alpha=0.5, **ONE), rounds=2).server
    assert flat(torch.cat(server)) == about(-0.108109375, 0.309296875)


def test_scaffold_m_by_hand() -> None:
    """Round 1 as FedCM; c_j = -.975, 1.9 are the mean gradients. Then w_1: -.077375, -.10694375 and
    w_2: -.0813125, -.11286875, with gradients -1.04625, -1.077375 and 1.9075, 1.837375.
    """
    run = after(two(), ScaffoldM(beta=0.5, **ONE), rounds=2)
    assert flat(torch.cat(run.server)) == about(-0.10990625, 0.4053125, 0.31828125)
    assert flat(run.client_states().c) == about(-1.0618125, 1.8724375)


def test_feddyn_by_hand() -> None:
    """y: .1, .185 and -.2, -.35, mean -.0825; h = -.0925, .175, H = .04125: w = -.0825 - .0825.

    Then y: -.05775, .0334125 and -.3145, -.426625.
    """
    run = after(two(), FedDyn(alpha=0.5, **ONE), rounds=2)
    assert flat(torch.cat(run.server)) == about(-0.3107125, 0.057053125)
    assert flat(run.client_states().h) == about(-0.19170625, 0.3058125)


def test_econtrol_by_hand() -> None:
    """Top-1, optima (1, 2) and (3, 0): d = (0, -2), (-3, 0), then of (-1.35, .1) and (.15, .1) the first."""
    run = after(plane(), EControl(feedback=0.5, **{**ONE, "tau": 1}), Links(TopK(0.5)), rounds=2)
    assert flat(torch.stack([*run.server])) == about(0.36, 0.2, -2.1, -1)
    h, e = run.client_states()
    assert flat(h) == about(-1.35, -2, -2.85, 0)
    assert flat(e) == about(-0.5, 0.1, 0, 0.1)


# Identities


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_known_methods_are_cases_of_them(participation: float) -> None:
    task, how = mlp_task(sizes=SIZES), {**SMALL, "weights": "size"}
    same: list[tuple[Any, Any, Links]] = [
        (FedCM(alpha=1.0, **how), FedAvg(**how), PLAIN),
        (FedCM(alpha=1.0, **how), FedCOM(gamma=1.0, **how), Links(Int(4), clip=0.3)),
        (ScaffoldM(beta=1.0, **how), Scaffold(**how), Links(Int(4), clip=0.3)),
        (ScaffoldM(beta=1.0, server=Momentum(), **how), Scaffold(server=Momentum(), **how), PLAIN),
    ]
    for ours, theirs, links in same:
        runs = [after(task, one, links, participation=participation) for one in (ours, theirs)]
        assert torch.equal(runs[0].server.w, runs[1].server.w), ours
    unequal = {**how, "tau": TAUS}
    one, ef21 = {**how, "tau": 1, "gamma": 2.0}, Links(TopK(0.2))
    alike: list[tuple[Any, Any, Links]] = [
        (FedNova(**how), FedAvg(**how), PLAIN),
        (EControl(feedback=0.0, **one), Scafcom(beta=1.0, **one), ef21),
    ]
    if participation == 1:
        alike += [
            (
                FedNova(**{**unequal, "weights": "uniform"}),
                FedAvg(**{**unequal, "weights": "uniform"}),
                PLAIN,
            ),
            (EControl(**unequal), FedAvg(**unequal), PLAIN),
        ]
    for ours, theirs, links in alike:
        runs = [after(task, one, links, participation=participation) for one in (ours, theirs)]
        assert close(runs[0].server.w, runs[1].server.w), ours
    unlike = [after(task, kind(**unequal), participation=participation) for kind in (FedNova, FedAvg)]
    assert not close(unlike[0].server.w, unlike[1].server.w, 1e-4)


def test_fedexp_with_identical_clients_is_fedavg() -> None:
    one = mlp_task(sizes=[12])
    same = Task(one.objective, one.x.repeat(4, 1), one.y.repeat(4), one.sizes.repeat(4), one.x, one.y, 3)
    how = {**SMALL, "batch": "full"}
    assert torch.equal(after(same, FedExP(**how)).server.w, after(same, FedAvg(**how)).server.w)
    apart = [after(mlp_task(), kind(**how)).server.w for kind in (FedExP, FedAvg)]
    assert not close(*apart, 1e-4)


def test_one_round_of_feddyn_with_a_weak_pull_is_fedavg_with_gamma_1_and_the_share() -> None:
    """H/alpha is then share eta mean D."""
    task, how = mlp_task(), {**SMALL, "gamma": 1.0}
    for participation in (1.0, 0.5):
        weak = after(task, FedDyn(alpha=1e-13, **how), rounds=1, participation=participation)
        fedavg = FedAvg(**{**SMALL, "gamma": 1 + participation})
        assert close(weak.server.w, after(task, fedavg, rounds=1, participation=participation).server.w)


@pytest.mark.parametrize("codec", [Identity(), Int(3), TopK(0.3)], ids=lambda c: c.name)
def test_what_the_server_keeps_is_the_mean_of_the_clients(codec: Any) -> None:
    kept: list[tuple[Any, str, str]] = [
        (FedDyn(gamma=0.5, alpha=0.5), "H", "h"),
        (ScaffoldM(gamma=1.0, beta=0.4), "c", "c"),
        (EControl(gamma=0.5), "h", "h"),
    ]
    for method, ours, theirs in kept:
        algorithm = replace(method, eta=0.02, tau=TAUS, batch=5, weights="size")
        run = after(mlp_task(sizes=SIZES), algorithm, Links(codec), rounds=5, participation=0.5)
        mean = run.weights @ getattr(run.client_states(), theirs)
        assert float(mean.abs().max()) > 1e-4
        assert close(getattr(run.server, ours), mean), method.name


# Limits


def test_feddyn_and_scaffold_m_remove_the_drift_that_fedavg_keeps() -> None:
    """Full gradients of clients that differ, who take different numbers of steps."""
    task, how = quadratic_task(sigma=0.0, L=1.0, mu=0.5), {**FULL, "tau": TAUS}

    def loss(
        algorithm: Any, links: Links | None = None, rounds: int = 40, participation: float = 1.0
    ) -> float:
        found = after(task, algorithm, links, rounds, participation=participation).row()["train_loss"]
        return abs(float(found))  # type: ignore[arg-type]

    assert loss(FedAvg(**how)) > 1e-3
    assert loss(FedCM(alpha=0.5, **how)) > 1e-3
    for method in (FedDyn(alpha=1.0, **how), ScaffoldM(beta=0.5, **how)):
        assert loss(method) < 1e-13
        assert loss(method, rounds=80, participation=0.5) < 1e-13
        assert loss(replace(method, option="I"), Links(Int(8), Int(8))) < 1e-13


def test_econtrol_ends_where_the_lossless_method_does() -> None:
    task, how = quadratic_task(sigma=0.0, L=1.0, mu=0.5), {**FULL, "tau": 1, "eta": 0.4}
    for codec, most in ((TopK(0.25), 1e-9), (RandK(0.25), 1e-4)):
        found = after(task, EControl(**how), Links(codec), 100).row()["train_loss"]
        assert abs(found) < most  # type: ignore[arg-type]
    plain = after(task, FedCOM(**how), Links(TopK(0.25)), 40)
    assert plain.row()["train_loss"] > 1e-2  # type: ignore[operator]


def test_methods_that_send_numbers_may_have_the_papers_memory() -> None:
    links = Links(TopK(0.3), uplink_memory="paper")
    methods = FedNova(tau=2, batch="full"), FedPAQ(tau=2, batch="full")  # the same with equal steps
    ours, theirs = (after(quadratic_task(), method, links, rounds=3) for method in methods)
    assert close(ours.server.w, theirs.server.w)
    assert close(ours.client_memory()["D"], theirs.client_memory()["D"])
    after(quadratic_task(), FedExP(tau=2, batch="full"), links, rounds=2, participation=0.5)


# What is refused


def test_settings_that_cannot_be_are_refused() -> None:
    for wrong in (
        lambda: FedCM(alpha=0.0),
        lambda: ScaffoldM(beta=1.5),
        lambda: FedDyn(alpha=0.0),
        lambda: FedExP(epsilon=0.0),
        lambda: EControl(feedback=-0.1),
    ):
        with pytest.raises(ConfigError, match=r"(alpha|beta|epsilon|feedback) must be"):
            wrong()
    with pytest.raises(ConfigError, match="fedexp fixes gamma at 1"):
        FedExP(gamma=2.0)
    with pytest.raises(ConfigError, match="econtrol itself keeps what the codec dropped"):
        Simulation(mlp_task(), EControl(), Links(TopK(0.1), uplink_memory="error-feedback"), device="cpu")


# Numbers beside vectors


@dataclass(frozen=True, kw_only=True)
class Longest(FedCOM):
    """A stranger's method: the step is divided by the mean length of the clients' updates."""

    name: ClassVar[str] = "longest"
    numbers: ClassVar[tuple[str, ...]] = ("length",)

    def measure(self, vectors: Any, rnd: Any) -> Any:
        return {"length": torch.linalg.vector_norm(vectors["D"], dim=-1, keepdim=True)}

    def server_direction(self, server: Any, mean: Any, rnd: Any) -> Tensor:
        return mean["D"] / mean["length"]


def test_a_number_of_a_strangers_method_is_sent_and_checked() -> None:
    run = after(mlp_task(), Longest(gamma=1.0, option="I", **SMALL), Links(Int(8), Int(8)), rounds=2)
    assert bool(torch.isfinite(run.server.w).all())

    class Flat(Longest):
        def measure(self, vectors: Any, rnd: Any) -> Any:
            return {"length": super().measure(vectors, rnd)["length"][:, 0]}

    class Other(Longest):
        def measure(self, vectors: Any, rnd: Any) -> Any:
            return {}

    for kind, message in ((Flat, "with one number per client"), (Other, "a dict of length, as `numbers`")):
        with pytest.raises(ConfigError, match=f"method longest: measure must return .*{message}"):
            after(mlp_task(), kind(**SMALL), PLAIN, rounds=1)


class Boast(FedExP):
    """A client that says that its update is a million times as long as it is."""

    def measure(self, vectors: Any, rnd: Any) -> Any:
        return {name: 1e12 * x for name, x in super().measure(vectors, rnd).items()}


def test_a_boasting_client_moves_the_model_no_further_than_its_vectors_may(tmp_path: Path) -> None:
    clip = 0.05
    steps = {}
    for kind, terms in ((FedExP, None), (Boast, None), (Boast, Terms(clip=clip))):
        settings = {"algorithm": kind(**SMALL), "rounds": 1}
        here, _ = deployed(mlp_task(), settings, tmp_path / f"{kind.__name__}{terms}", terms=terms)
        before = here.server.w.clone()
        here.step()
        steps[kind, terms is None] = float(torch.linalg.vector_norm(here.server.w - before))
    assert steps[Boast, True] > 1e3 * steps[FedExP, True]
    # gamma |mean| <= clip^2 |mean| / (2 (|mean|^2 + epsilon)), which is at most clip^2 / (4 sqrt(epsilon))
    assert steps[Boast, False] <= max(clip, clip**2 / (4 * FedExP().epsilon ** 0.5)) + 1e-9
