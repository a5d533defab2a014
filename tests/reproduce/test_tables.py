"""The tables: their problems, the counter of rounds, the fitted slopes and the verdicts on them."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedcom import Links, Simulation, Task
from fedcom.algorithms import Algorithm, Diana, FedCOM, FedCOMGATE, FedGATE, Qsparse, Scaffold, VRDiana
from fedcom.codecs import Identity, RandK, TopK
from fedcom.draws import Draw
from fedcom.reproduce.panels import Scale
from fedcom.reproduce.results import FAILS, HOLDS
from fedcom.reproduce.tables import tables_runner
from fedcom.reproduce.tables.cells import CHECKS, TABLES
from fedcom.reproduce.tables.checks import DIM, Case, Check
from fedcom.reproduce.tables.figure import _row_names
from fedcom.reproduce.tables.measured import (
    BY_A_LOGARITHM,
    LIKE_Q,
    MeasuredRounds,
    Measurement,
    holds,
    measurements,
)
from fedcom.reproduce.tables.problems import Logistic, Problem, Quadratic, Wave
from fedcom.reproduce.tables.rounds import Counter, StackedRuns, rounds_to
from fedcom.reproduce.tables.scaling import BETTER, CONSISTENT, UNKNOWN, WORSE, Fit, fit, hold
from fedcom.tasks import models
from fedcom.tasks.objective import Objective
from fedcom.vectors import Layout
from tests.conftest import close

FULL = {"batch": "full", "decay": 1.0}


@pytest.mark.parametrize(
    ("algorithm", "codec"),
    [
        (FedCOM(gamma=3.0, tau=3, **FULL), RandK(0.25)),  # type: ignore[arg-type]
        (FedCOMGATE(gamma=3.0, tau=3, **FULL), RandK(0.5)),  # type: ignore[arg-type]
        (Qsparse(tau=3, **FULL), TopK(0.25)),  # type: ignore[arg-type]
        (Scaffold(gamma=2.0, tau=3, **FULL), Identity()),  # type: ignore[arg-type]
        (Diana(**FULL), RandK(0.25)),  # type: ignore[arg-type]
        (VRDiana(refresh_probability=0.3, **FULL), RandK(0.25)),  # type: ignore[arg-type]
    ],
    ids=lambda x: x.name,
)
def test_stacked_runs_do_what_simulations_do(algorithm: Algorithm, codec: object) -> None:
    model, m = models.Quadratic(dim=8, samples=1), 4
    data = model.data(m, Draw.seeded(3))
    objective = Objective(model.module((), 0), model.loss(), torch.float64)
    task = Task.build(objective, data, list(torch.arange(m).unsqueeze(-1)))
    problem = Quadratic(data.x[:, 0], data.x[:, 1], torch.zeros(8, dtype=torch.float64))
    links, etas, seeds = Links(codec), (0.02, 0.1), (5, 6)  # type: ignore[arg-type]
    runs = StackedRuns(problem, algorithm, links, etas, seeds)
    for _ in range(6):
        runs.step()
    pairs = [(eta, seed) for eta in etas for seed in seeds]
    for (eta, seed), w in zip(pairs, runs.server.w, strict=True):
        own = Simulation(task, replace(algorithm, eta=eta), links, rounds=6, seed=seed, device="cpu")
        for _ in range(6):
            own.step()
        assert close(own.server.w, w)
    one = Simulation(task, replace(algorithm, eta=0.1), links, seed=5, device="cpu")
    one.step()
    dense = [v for v in one.ledger.as_dict()["uplink"]["vectors"] if v != "q"]  # type: ignore[index]
    assert dense == list(algorithm.uploads)


@pytest.mark.parametrize("spread", [0.0, 0.5])
def test_a_quadratics_optimum_and_curvature_are_as_given(spread: float) -> None:
    problem = Quadratic.of(5, 8, 64.0, spread=spread)
    there = problem.optimum.expand(5, -1)
    assert close(problem.gradient(there).mean(0), torch.zeros(8))
    assert bool(problem.gradient(there).abs().max() > 0.1) == (spread > 0)
    mean = problem.a.mean(0)
    assert float(mean.max() / mean.min()) == pytest.approx(64)
    assert problem.gap(torch.stack([problem.start, problem.optimum])).tolist() == [1.0, 0.0]


def test_noise_has_the_variance_it_says() -> None:
    problem = Quadratic.of(2, 32, 8.0, sigma=0.7)
    w = problem.start.expand(4000, -1)
    chance = problem.chance(Draw.seeded(1).fold(torch.arange(4000)), 40)
    assert chance is not None
    a, b = (problem.stochastic(w, chance, step) - problem.gradient(w) for step in (3, 35))
    for noise in (a, b):
        assert float(noise.square().sum(-1).mean()) == pytest.approx(0.49)
        assert float(noise.mean().abs()) < 0.002
    assert float((a * b).mean().abs()) < 0.001 * 0.49  # the noise of two steps is independent


def test_a_wave_is_smooth_and_not_convex() -> None:
    problem = Wave.of(1, 1, 1.0)
    u = torch.linspace(-4, 4, 801, dtype=torch.float64).unsqueeze(-1)
    w = u.clone().requires_grad_()
    f = ((w - problem.b) ** 2 / 2 + 1.5 * torch.sin(w - problem.b) ** 2).sum() / 4
    (g,) = torch.autograd.grad(f, w)
    assert close(problem.gradient(u), g)
    curvature = g.diff(dim=0) / u.diff(dim=0)
    assert float(curvature.max()) == pytest.approx(1, abs=1e-3)
    assert float(curvature.min()) == pytest.approx(-0.5, abs=1e-3)


def test_logistic_gradients_and_least_loss() -> None:
    problem = Logistic.of(3, 6, 20, spread=0.5, batch=4)
    w = Draw.seeded(2).fold(torch.arange(6)).normal(6, torch.float64)  # two runs of three clients

    def loss(w: Tensor) -> Tensor:
        score = torch.einsum("rmd,mnd->rmn", w.reshape(2, 3, 6), problem.x)
        each = torch.nn.functional.binary_cross_entropy_with_logits(
            score, problem.y.expand_as(score), reduction="none"
        )
        return each.mean(-1).sum()

    assert close(problem.gradient(w), torch.func.grad(loss)(w))
    chance = problem.chance(Draw.seeded(4).fold(torch.arange(6000)), 2)
    assert chance is not None
    drawn = problem.stochastic(w.repeat(1000, 1), chance, 1).reshape(1000, 6, 6).mean(0)
    assert float((drawn - problem.gradient(w)).abs().max()) < 0.05
    assert float(problem.gap(problem.start)) == 1
    runs = StackedRuns(
        problem_without_noise(problem), FedGATE(gamma=1.0, tau=1, **FULL), Links(Identity()), [1.0], [0]
    )  # type: ignore[arg-type]
    for _ in range(400):
        runs.step()
    assert 0 <= float(problem.gap(runs.server.w)) < 1e-3


def problem_without_noise(problem: Logistic) -> Problem:
    return replace(problem, batch=None)


def test_rounds_are_counted_by_hand() -> None:
    # One coordinate, L = 1: each round of step s leaves (1 - s)^2 of the gap, a quarter for s = 0.5.
    problem, gd = Quadratic.of(2, 1, 1.0), FedCOM(gamma=2.0, tau=1, **FULL)  # type: ignore[arg-type]
    found = rounds_to([1.0, 0.25, 0.2, 0.01], problem, gd, Links(Identity()), [0.5, 0.25], seeds=1)
    assert [found[eps].rounds for eps in (1.0, 0.25, 0.2, 0.01)] == [0, 1, 2, 4]
    assert found[0.01].step == 0.5
    assert rounds_to([0.01], problem, gd, Links(Identity()), [2.5], seeds=1, most=50)[0.01].rounds is None


def test_a_counter_takes_means_over_seeds_and_rounds() -> None:
    counter = Counter([0.5, 0.2])
    assert not counter.see(0, torch.tensor([[1.0, 1.0], [1.0, 1.0]]))
    assert not counter.see(1, torch.tensor([[0.1, 1.0], [torch.nan, 0.1]]))  # 0.55, and infinity
    assert not counter.see(2, torch.tensor([[0.1, 0.5], [0.6, 0.6]]))
    assert counter.see(3, torch.tensor([[0.5, 0.5], [0.1, 0.3]]))
    assert counter.reached == {0.5: (2, 0), 0.2: (3, 1)}
    mean = Counter([0.5], averaged=True)
    assert [mean.see(i, torch.tensor([[gap]])) for i, gap in enumerate((1.0, 0.4, 0.2, 0.2))] == [
        False,
        False,
        False,
        True,
    ]


def test_a_power_law_is_found_again() -> None:
    x = [1.0, 2.0, 4.0, 8.0]
    line = fit(x, [3 * v**0.7 for v in x])
    assert line is not None
    assert (line.slope, line.error, line.factor) == (
        pytest.approx(0.7),
        pytest.approx(0, abs=1e-9),
        pytest.approx(3),
    )
    assert line.at(16) == pytest.approx(3 * 16**0.7)
    late = fit(x, [5 + 3 * (v - 1) for v in x], (1.0, 5.0))
    assert late is not None
    assert (late.slope, late.at(1.0), late.at(3.0)) == (pytest.approx(1), 5, pytest.approx(11))
    rough = fit(x, [1.0, 3.0, 3.0, 9.0])
    assert rough is not None
    assert rough.error > 0.2
    assert fit([1.0, 1.0, 1.0, 2.0], [1.0, 2.0, 3.0, 4.0]) is None  # two different x are too few


@pytest.mark.parametrize(
    ("slope", "error", "outcome"),
    [
        (1.0, 0.0, CONSISTENT),
        (1.3, 0.05, WORSE),
        (1.3, 0.3, CONSISTENT),
        (0.5, 0.1, BETTER),
        (1.3, 0.9, UNKNOWN),
    ],
)
def test_slopes_are_compared_with_a_bound(slope: float, error: float, outcome: str) -> None:
    assert hold(Fit(slope, error, 1.0), 1.0) == outcome
    assert hold(None, 1.0) == UNKNOWN


CHECK = Check((1,), Case("fedcom"), "q", (0.0, 1.0, 3.0, 7.0), "κ(q/m + 1) log(1/ε)")


def made(check: Check, power: float, missed: int = 0) -> MeasuredRounds:
    """Made-up rounds that grow as a power of the bound; the last `missed` cases never reach the accuracy."""
    cases = check.cases()
    rounds = [round(10 * check.promised(s) ** power) for s in cases]
    rows = [{"epsilon": s.epsilon, "rounds": r, "step": 1.0} for s, r in zip(cases, rounds, strict=True)]
    for row in rows[len(rows) - missed :]:
        row["rounds"] = None  # type: ignore[assignment]
    return measured(cases, rows)


def measured(cases: Sequence[Case], rows: Sequence[dict[str, Any]]) -> MeasuredRounds:
    """One row per case, as if each were a measurement of its own."""
    return MeasuredRounds(
        [(Measurement(s, (s.epsilon,), 1), [row]) for s, row in zip(cases, rows, strict=True)]
    )


def test_a_verdict_follows_the_slope() -> None:
    other = replace(CHECK, base=Case("qsparse"), bound="κ(q + 1)/√ε")
    example = measurements([CHECK], 1)[0]
    for power, outcome in ((0.5, HOLDS), (1.0, HOLDS), (1.5, FAILS)):
        (verdict,) = tables_runner.judge(made(CHECK, power), [CHECK], example)
        assert verdict.outcome == outcome, power
    assert not holds(made(CHECK, 1.0, missed=1), CHECK)
    good, bad = made(CHECK, 1.0), made(other, 2.0)
    good._rows.update(bad._rows)
    found = {v.claim: v.outcome for v in tables_runner.judge(good, [CHECK, other], example)}
    assert list(found.values()) == [HOLDS, FAILS, HOLDS]  # FedCOM's bound, Qsparse's, and their comparison
    swapped, less = made(CHECK, 1.0), made(other, 0.1)
    swapped._rows.update(less._rows)
    assert tables_runner.judge(swapped, [CHECK, other], example)[-1].outcome == FAILS


def test_growth_by_an_extra_logarithm_has_a_verdict_of_its_own() -> None:
    check = Check((2,), Case("qsparse"), "epsilon", (0.1, 0.03, 0.01, 0.003), "κ(q + 1)/√ε")
    cases = check.cases()
    for power, outcome in ((0, CONSISTENT), (1, BY_A_LOGARITHM), (3, WORSE)):
        rounds = [10 * check.promised(s) * math.log(1 / s.epsilon) ** power for s in cases]
        rows = [{"epsilon": s.epsilon, "rounds": r} for s, r in zip(cases, rounds, strict=True)]
        found = MeasuredRounds([(measurements([check], 1)[0], rows)])
        assert found.outcome(check) == outcome
        assert holds(found, check) == (power == 0)


def test_terms_of_a_sum_may_have_different_constants() -> None:
    check = Check((5,), Case("diana"), "q", (0.0, 1.0, 3.0, 7.0, 15.0, 31.0), "κ + κq/m + q")
    for power, outcome in ((1, LIKE_Q), (2, WORSE)):
        cases = check.cases()
        rounds = [round(30 + 30 * s.q**power) for s in cases]  # 30 instead of the stated 9 times q
        rows = [{"epsilon": s.epsilon, "rounds": r} for s, r in zip(cases, rounds, strict=True)]
        assert measured(cases, rows).outcome(check) == outcome


def test_a_bound_that_does_not_depend_on_the_factor_states_a_slope_of_zero() -> None:
    flat = Check((3,), Case("fedcom"), "m", (1.0, 2.0, 4.0), "κ log(1/ε)", "1/(mε)")
    assert flat.independent
    assert [s.tau for s in flat.cases()] == [25, 13, 7]  # a quarter of 1/(m 0.01), rounded up
    assert all(s.noisy for s in flat.cases())
    assert not CHECK.independent


def test_every_cell_can_be_measured() -> None:
    assert {number for check in CHECKS for number in check.tables} == set(TABLES)
    layout = Layout.vector(DIM, torch.float64)
    for case in {case for check in CHECKS for case in check.cases()}:
        codec = case.links().uplink
        assert case.algorithm().decay == 1
        if codec.unbiased:
            assert codec.variance(layout) == pytest.approx(case.q)


def test_no_two_rows_of_a_figure_are_called_alike() -> None:
    for number in TABLES:
        names = _row_names([check for check in CHECKS if number in check.tables])
        assert len(set(names)) == len(names) > 3


def test_a_table_end_to_end(tmp_path: Path) -> None:
    easy = Case("fedcom", kappa=2.0, epsilon=0.1)
    checks = [
        Check((1,), easy, "q", (0.0, 3.0, 7.0), "κ(q/m + 1) log(1/ε)"),
        Check((1,), easy, "epsilon", (0.2, 0.1, 0.05), "κ(q/m + 1) log(1/ε)"),
    ]
    verdicts = tables_runner.reproduce_tables(Scale(True, 1), tmp_path, True, checks, workers=1)
    assert [v["claim"] for v in json.loads((tmp_path / "verdicts.json").read_text())] == [
        v.claim for v in verdicts
    ]
    log = (tmp_path / "results.jsonl").read_text()
    assert len(log.splitlines()) == 3  # the accuracies at q = 0 are one measurement
    assert len((tmp_path / "points.csv").read_text().splitlines()) == 1 + 6
    assert 0 < (tmp_path / "table1.png").stat().st_size < 150_000
    assert "| fedcom | strongly convex | quadratic | q |" in (tmp_path / "README.md").read_text()
    (tmp_path / "results.jsonl").write_text(log[:-40])  # cut short: the last measurement is repeated
    again = tables_runner.reproduce_tables(Scale(True, 1), tmp_path, True, checks, workers=1)
    assert again == verdicts
