"""The theorems' formulas: by hand, by what they must reduce to, and beside measured errors."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from fedcom.errors import ConfigError
from fedcom.reproduce.bounds.cases import BoundCase, grid
from fedcom.reproduce.bounds.slopes import SlopeCase, slopes
from fedcom.reproduce.tables.checks import Case
from fedcom.theory import THEOREMS, Constants, StepSizes, Theorem, mean_noise, rate, theorem
from fedcom.theory.rates import TABLES

BIG = Constants(L=2, mu=0.5, sigma=3, q=1, m=4, gap=10, local_gap=12, distance=5, norm=7)
EACH = pytest.mark.parametrize("claim", THEOREMS, ids=lambda t: t.name)


def test_fedcoms_bounds_by_hand() -> None:
    steps = StepSizes(0.01, 4, 5)  # eta gamma tau = 0.2
    nonconvex, strongly = theorem(True, "nonconvex"), theorem(True, "strongly convex")
    # 2 * 10/(0.2 * 100) + 2 * 0.04 * 2/4 * 9 + 4 * 1e-4 * 5 * 9
    assert nonconvex.bound(BIG, steps, 100) == pytest.approx(1 + 0.36 + 0.018)
    # 0.9^2 * 10 + 2 (4 * 5e-4/2 * 9 + 2 * 0.04 * 2/8 * 9)
    assert strongly.bound(BIG, steps, 2) == pytest.approx(8.1 + 2 * (0.009 + 0.18))
    assert strongly.slack(BIG, steps) == pytest.approx(1 - 0.01 - 1.25 * 2 * 0.2)
    assert strongly.steps(BIG, 5).eta == pytest.approx(1 / (2 * 2 * 1.25 * 5 * 4))
    assert nonconvex.steps(BIG, 5, 10) == pytest.approx((0.2 / 2 / 4, 4, 5))  # sqrt(4/(10 * 5 * 2)) = 0.2


def test_fedcomgates_bounds_by_hand() -> None:
    c = Constants(L=1, mu=0.5, sigma=1, q=1, G_q=2, m=2, gap=3, local_gap=4, distance=5)
    steps = StepSizes(0.1, 2, 1)
    terms = 3 + 0.2 + 0.36 + 0.008 * 2.5 + 1.28 + 0.0016 + 0.096 + 0.4
    assert theorem(False, "nonconvex").bound(c, steps, 10) == pytest.approx(terms / 0.8)
    floor = 0.18 + 0.08 * (5 + 0.1 / 0.45) + 0.48 + 0.004 * 2.5 + 0.1 + 0.2
    claim = theorem(False, "strongly convex")
    assert claim.bound(c, steps, 2) == pytest.approx(3 * (1 - 0.1 / 3) ** 2 + 6 * floor)
    assert claim.steps(c, 8).eta == pytest.approx(1 / (2 * 2 * 8 * 4))  # gamma = sqrt(2 * 8), and q + 1
    assert claim.slack(c, StepSizes(1.0, 1, 1)) < 0


def test_a_convex_objective_is_a_strongly_convex_one_with_a_ridge() -> None:
    plain, steps = Constants(L=1, gap=2, norm=3, start=4), StepSizes(0.1, 1, 4)
    ridged = Constants(L=1.5, mu=0.5, gap=3, local_gap=1, norm=3, start=4)  # phi = 1/sqrt(4)
    expected = theorem(True, "strongly convex").bound(ridged, steps, 7) + 0.25 * 3
    assert theorem(True, "convex").bound(plain, steps, 7) == pytest.approx(expected)


@EACH
def test_prescribed_step_sizes_keep_the_conditions(claim: Theorem) -> None:
    for m, q, tau in ((1, 0.0, 1), (1, 9.0, 1), (7, 0.5, 3), (100, 30.0, 10)):
        c = replace(BIG, m=m, q=q)
        assert claim.holds(c, claim.steps(c, tau, 2**40)), (m, q, tau)
    assert not claim.holds(BIG, StepSizes(1.0, 10, 10))


@EACH
def test_bounds_fall_and_rise_with_what_they_should(claim: Theorem) -> None:
    c = replace(BIG, G_q=0.5)
    s = claim.steps(c, 6, 10**4)

    def bound(**other: float) -> float:
        return claim.bound(replace(c, **other), s, 10)  # type: ignore[arg-type]

    assert claim.bound(c, s, 20) < bound()
    assert bound(m=8) < bound() or claim.regime == "convex"  # whose ridge depends on m
    for key in ("sigma", "q", "gap"):
        assert bound(**{key: 2 * getattr(c, key)}) > bound(), key
    if not claim.alike:
        assert bound(G_q=1.0) > bound()
    assert claim.bound(replace(c, sigma=0, G_q=0, gap=0, local_gap=0, distance=0, norm=0), s, 9) == 0


def test_without_compression_and_at_gamma_one_fedcom_is_local_sgd() -> None:
    c, s = replace(BIG, q=0), StepSizes(0.01, 1, 5)
    local_sgd = 2 * c.gap / (s.eta * 5 * 40) + c.L * s.eta * 9 / 4 + c.L**2 * s.eta**2 * 5 * 9
    assert theorem(True, "nonconvex").bound(c, s, 40) == pytest.approx(local_sgd)
    # Then q/m and q are both 0, so FedCOMGATE's step and FedCOM's are one at the same gamma.
    a, b = (theorem(alike, "strongly convex").steps(c, 5, 1, gamma=6.0) for alike in (True, False))
    assert a == b


@EACH
def test_a_target_is_met_by_no_fewer_rounds(claim: Theorem) -> None:
    c = replace(BIG, m=16)
    rounds, tau = claim.target(c, 0.5)
    if claim.regime == "convex":
        claim = type(claim)(0.5 / c.norm)  # type: ignore[call-arg]
    assert claim.bound(c, claim.steps(c, tau, rounds), rounds) <= 0.5
    fewer = claim.steps(c, tau, rounds - 1)
    assert claim.bound(c, fewer, rounds - 1) > 0.5 or not claim.holds(c, fewer)


def test_targets_grow_as_the_theorems_say() -> None:
    c = Constants(L=1, mu=0.05, sigma=1, m=8, gap=1, local_gap=1, distance=1)
    for alike, law in ((True, 1 + 31 / 8), (False, 32.0)):
        claim = theorem(alike, "strongly convex")
        (base, tau), (more, _) = claim.target(c, 1e-3), claim.target(replace(c, q=31), 1e-3)
        assert more / base == pytest.approx(law, rel=0.35), alike
        _, finer = claim.target(c, 1e-4)
        assert finer / tau in (8, 16)  # tau = O(1/(m epsilon)), a power of two
        _, fewer = claim.target(replace(c, m=64), 1e-3)
        assert tau / fewer in (4, 8, 16)


def test_sampling_as_far_as_the_paper_goes() -> None:
    assert BIG.sampled(2, alike=True).m == 2
    assert BIG.sampled(4, alike=False) == BIG
    with pytest.raises(ConfigError, match="no theorem"):
        BIG.sampled(2, alike=False)
    with pytest.raises(ConfigError, match="mu > 0"):
        theorem(True, "strongly convex").bound(Constants(L=1), StepSizes(0.1, 1, 1), 1)
    with pytest.raises(ConfigError, match="L > 0"):
        Constants(L=1, mu=2)


def test_the_noise_of_a_mean_by_hand() -> None:
    # Two clients send (1, 0) and (0, 1) through rand-1 of 2 coordinates: q = 1.
    # The mean of what is heard has E|.|^2 = (4/2 + 4/2)/4 = 1; rand-1 of the mean (.5, .5) has 1.
    assert mean_noise(1.0, mean_square=1.0, square_of_mean=0.5, m=2) == 0


def test_the_tables_rates() -> None:
    case = Case("fedcom", q=7, m=4, kappa=10, epsilon=0.1)
    assert rate(1, "fedcom", "strongly convex").at(case)[1] == pytest.approx(8 / (4 * 2.75 * 0.1))
    assert rate(6, "diana", "strongly convex").at(case) == pytest.approx((10 + 17.5 + 7, 1))
    none = SimpleNamespace(q=0, m=4, kappa=10, n=1, epsilon=0.1)
    for method in ("fedcom", "fedcomgate"):  # without compression they are rows of tables 3 and 4
        bare, table = (method, 3) if method == "fedcom" else ("fedgate", 4)
        for regime in ("nonconvex", "strongly convex", "convex"):
            compressed, plain = rate(1 if table == 3 else 2, method, regime), rate(table, bare, regime)
            assert compressed.at(none) == pytest.approx(plain.at(none)), (method, regime)
    assert all(found.at(case)[0] > 0 for cells in TABLES.values() for found in cells.values())
    with pytest.raises(ConfigError, match="states no rate"):
        rate(2, "fedpaq", "convex")


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[pytest.mark.thorough] * (i % 3 > 0))
        for i, case in enumerate(grid(20, quick=True))
    ],
    ids=lambda c: f"{c.regime}-{c.objective}-{c.q}-{c.spread}",
)
def test_measured_errors_are_below_their_bounds(case: BoundCase) -> None:
    found = case.run()
    assert found["slack"] >= 0
    assert found["error"] < found["bound"]
    assert found["error"] > 0


@pytest.mark.parametrize(("method", "alike"), [("fedcom", True), ("fedcomgate damped", False)])
def test_rounds_grow_with_q_as_the_theorem_says(method: str, alike: bool) -> None:
    base = Case(method, alike=alike, kappa=8.0, epsilon=0.05)  # type: ignore[arg-type]
    jobs = [SlopeCase(replace(base, q=q), seeds=4) for q in (0.0, 3.0, 15.0)]
    (slope,) = slopes([(job, job.run()) for job in jobs])
    assert slope.line is not None
    assert slope.line.slope == pytest.approx(1, abs=0.15)
