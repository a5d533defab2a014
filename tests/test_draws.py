"""Random numbers as a function of a key: pure, stackable, the same in every version, and random enough.

Seeds are fixed, so the statistics are deterministic. Bounds are at 5 sigma, which good random numbers exceed
once in two million tests.
"""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedcom.draws import Draw, Strata

N = 2**17
ROOT = Draw.seeded(2024)
any_int = st.integers(-(2**63), 2**63 - 1)
fixed = settings(derandomize=True)


def uniform_over(counts: Tensor) -> None:
    """Chi-square test of equal counts; a chi-square variable exceeds the bound once in two million."""
    expected, degrees, rare = float(counts.sum()) / len(counts), len(counts) - 1, 14.4
    chi2 = float(((counts.double() - expected) ** 2 / expected).sum())
    assert chi2 < degrees + 2 * math.sqrt(degrees * rare) + 2 * rare
    assert chi2 > degrees - 5 * math.sqrt(2 * degrees)  # and not more even than chance allows


def uncorrelated(a: Tensor, b: Tensor) -> None:
    """Two streams are uncorrelated, as numbers and bit by bit."""
    u, v = (((x >> 8) & (2**24 - 1)).double() / 2**24 - 0.5 for x in (a, b))
    assert abs(float((u * v).mean()) * 12) < 5 / math.sqrt(len(a))
    assert not torch.equal(a, b)
    balanced(a ^ b)


def balanced(x: Tensor) -> None:
    """Each of the 32 bits is set half the time."""
    for bit in range(32):
        assert abs(int(((x >> bit) & 1).sum()) - len(x) / 2) < 5 * math.sqrt(len(x)) / 2, f"bit {bit}"


def cells(u: Tensor, v: Tensor, side: int = 16) -> Tensor:
    """How often each cell of a square is hit by pairs of uniform numbers."""
    return torch.bincount((u * side).long() * side + (v * side).long(), minlength=side * side)


# Recorded numbers: a change of the generator would change every run


def test_golden_keys() -> None:
    assert Draw.seeded(0).key.item() == 5197578548964807871
    assert Draw.seeded(1).key.item() == -2529857523242969672
    assert Draw.seeded(-5).key.item() == -4409518850820451685
    assert Draw.seeded(1).fold("batch", 3).key.item() == 8953131901773284111


def test_golden_numbers() -> None:
    draw = Draw.seeded(1).fold("batch", 3)
    assert draw.bits(4).tolist() == [1921904972, -1028461645, -1809248382, -1973905102]
    each = draw.fold(torch.arange(3))
    assert each.key.tolist() == [-3594975607201723813, -7455552892571851913, -1732302066270227464]
    assert each.uniform(2).tolist() == [
        [0.6920294165611267, 0.8153853416442871],
        [0.19121497869491577, 0.43273741006851196],
        [0.9012672305107117, 0.7262120842933655],
    ]
    assert each.integers(10, 6).tolist() == [[6, 8, 6, 4, 3, 9], [1, 4, 0, 5, 7, 2], [9, 7, 0, 0, 1, 4]]
    assert each.permutation(6).tolist() == [[2, 0, 1, 5, 4, 3], [3, 4, 2, 0, 5, 1], [1, 0, 2, 3, 4, 5]]
    assert each.normal(3, torch.float64)[0].tolist() == pytest.approx(
        [0.4053259717677084, 1.4147713401907507, 0.20857975360637743], rel=1e-12
    )


def _mix64(z: int) -> int:
    """The finaliser of splitmix64, in unsigned arithmetic."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


def _reference_bits(key: int, i: int) -> int:
    """The i-th number of a key, in unsigned arithmetic."""
    x = (key + i) % 2**32
    x = (x ^ (x >> 17)) * 0xED5AD4BB % 2**32
    x ^= (key >> 32) % 2**32
    x = (x ^ (x >> 11)) * 0xAC4C1B51 % 2**32
    x = (x ^ (x >> 15)) * 0x31848BAB % 2**32
    return x ^ (x >> 14)


@given(any_int, any_int)
@fixed
def test_keys_and_bits_agree_with_unsigned_arithmetic(key: int, part: int) -> None:
    # torch has only signed integers, whose right shift copies the sign bit.
    golden = 0x9E3779B97F4A7C15
    draw = Draw(torch.tensor(key))
    folded = _mix64((key * golden + _mix64((part + golden) % 2**64)) % 2**64)
    assert draw.fold(part).key.item() % 2**64 == folded
    assert [b % 2**32 for b in draw.bits(5).tolist()] == [_reference_bits(key, i) for i in range(5)]


# Purity


def test_folding_is_pure() -> None:
    before = ROOT.key.clone()
    assert torch.equal(ROOT.fold(3, "batch").key, ROOT.fold(3, "batch").key)
    assert torch.equal(ROOT.bits(9), ROOT.bits(9))
    assert torch.equal(ROOT.key, before)


def test_drawing_does_not_use_torchs_generator() -> None:
    state = torch.get_rng_state()
    ROOT.fold(1).normal(10)
    ROOT.permutation(10)
    assert torch.equal(torch.get_rng_state(), state)


@given(any_int, any_int)
@fixed
def test_the_order_of_folds_matters(a: int, b: int) -> None:
    assert torch.equal(ROOT.fold(a, b).key, ROOT.fold(a).fold(b).key)
    if a != b:
        assert not torch.equal(ROOT.fold(a).key, ROOT.fold(b).key)
        assert not torch.equal(ROOT.fold(a, b).key, ROOT.fold(b, a).key)


def test_many_folds_do_not_collide() -> None:
    clients = torch.arange(300)
    keys = torch.cat([ROOT.fold(r, clients).key for r in range(300)])
    assert len(keys.unique()) == 90000
    words = ["batch", "codec", "radius", "angle", "zero-point", "uplink", "downlink", ""]
    assert len({ROOT.fold(word).key.item() for word in words}) == len(words)
    assert len({Draw.seeded(seed).key.item() for seed in (*range(100), 2**64 - 1, 2**63)}) == 102


def test_ids_of_any_dtype_fold_as_their_numbers() -> None:
    one_by_one = torch.stack([ROOT.fold(i).key for i in range(5)])
    for dtype in (torch.int32, torch.int64, torch.uint8):
        assert torch.equal(ROOT.fold(torch.arange(5, dtype=dtype)).key, one_by_one)


DRAWS: dict[str, Callable[[Draw, int], Tensor]] = {
    "bits": lambda draw, n: draw.bits(n),
    "uniform": lambda draw, n: draw.uniform(n),
    "uniform64": lambda draw, n: draw.uniform(n, torch.float64),
    "integers": lambda draw, n: draw.integers(1000, n),
    "normal": lambda draw, n: draw.normal(n, torch.float64),
    "ranks": lambda draw, n: draw.ranks(n),
    "permutation": lambda draw, n: draw.permutation(n),
}


@pytest.mark.parametrize("kind", DRAWS)
def test_stacked_keys_equal_single_keys(kind: str) -> None:
    stack = ROOT.fold("clients").fold(torch.arange(6))
    stacked = DRAWS[kind](stack, 11)
    single = torch.stack([DRAWS[kind](Draw(key), 11) for key in stack.key])
    assert stacked.shape == (6, 11)
    assert stacked.dtype == single.dtype
    assert torch.equal(stacked, single)


@pytest.mark.parametrize("kind", [kind for kind in DRAWS if kind != "permutation"])
def test_the_first_numbers_do_not_depend_on_how_many_are_drawn(kind: str) -> None:
    for draw in (ROOT, ROOT.fold(torch.arange(3))):
        assert torch.equal(DRAWS[kind](draw, 5), DRAWS[kind](draw, 10)[..., :5])


def test_float32_and_float64_give_the_same_numbers() -> None:
    assert torch.equal(ROOT.uniform(1000).double(), ROOT.uniform(1000, torch.float64))


# Randomness


def test_uniform_moments() -> None:
    u = ROOT.uniform(N, torch.float64)
    assert float(u.min()) >= 0
    assert float(u.max()) < 1
    assert torch.equal(u * 2**24, (u * 2**24).round())
    assert abs(float(u.mean()) - 1 / 2) < 5 * math.sqrt(1 / 12 / N)
    assert abs(float(((u - 0.5) ** 2).mean()) - 1 / 12) < 5 * math.sqrt(1 / 180 / N)
    uniform_over(torch.bincount((u * 1000).long(), minlength=1000))


def test_uniform_never_rounds_up_to_one() -> None:
    # The largest of the 2^24 values is 1 - 2^-24, which float32 holds exactly; many draws come near it.
    u = ROOT.fold("many").fold(torch.arange(64)).uniform(N)
    assert u.dtype == torch.float32
    assert 1 - 1e-6 < float(u.max()) < 1
    assert float(u.min()) < 1e-6


def test_bits_are_balanced() -> None:
    balanced(ROOT.bits(N))


@pytest.mark.parametrize("lag", [1, 2, 3, 4, 8, 16, 64, 256, 1024, 4096])
def test_neighbours_in_a_stream_are_independent(lag: int) -> None:
    # No two pairs share a number, so that the pairs are independent of one another.
    pairs = N // lag
    blocks = ROOT.fold("serial").uniform(2 * pairs * lag).reshape(pairs, 2, lag)
    uniform_over(cells(blocks[:, 0].reshape(-1), blocks[:, 1].reshape(-1)))
    x = ROOT.fold("serial").bits(N + lag)
    uncorrelated(x[lag:], x[:-lag])


@pytest.mark.parametrize(
    ("a", "b"),
    [
        *((ROOT.fold("codec", 7, c), ROOT.fold("codec", 7, c + 1)) for c in (0, 1, 63, 1000)),
        *((ROOT.fold("codec", r, 5), ROOT.fold("codec", r + 1, 5)) for r in (0, 1, 127, 1000)),
        (ROOT.fold("codec", 3, 4), ROOT.fold("codec", 4, 3)),
        (ROOT.fold("codec", 7, 5), ROOT.fold("batch", 7, 5)),
        (ROOT.fold("a"), ROOT.fold("b")),
        (ROOT.fold(1), ROOT),
        (Draw.seeded(0), Draw.seeded(1)),
        (Draw.seeded(1), Draw.seeded(2)),
    ],
)
def test_neighbouring_keys_are_independent(a: Draw, b: Draw) -> None:
    uncorrelated(a.bits(N), b.bits(N))
    uniform_over(cells(a.uniform(N), b.uniform(N)))


@pytest.mark.parametrize("client", range(20))
def test_keys_that_share_their_low_word_are_independent(client: int) -> None:
    # A key's low word is where its sequence starts, and its high word selects the sequence. Among a million
    # keys of long vectors many low words overlap. High words then differ in many bits, since keys are hashes;
    # if they differed only in one of the top four bits, one bit of the streams would agree 51% of the time.
    other = ROOT.fold("high", client).key >> 32 << 32
    uncorrelated(ROOT.bits(N), Draw(ROOT.key ^ other).bits(N))


def _over_clients(n: int) -> Tensor:
    return ROOT.fold("uplink", 3).fold(torch.arange(N)).uniform(n)


def _over_rounds(n: int) -> Tensor:
    return ROOT.fold("uplink").fold(torch.arange(N)).fold(3).uniform(n)


def _over_seeds(n: int) -> Tensor:
    return Draw(torch.zeros((), dtype=torch.int64)).fold(torch.arange(N)).uniform(n)


@pytest.mark.parametrize("over", [_over_clients, _over_rounds, _over_seeds])
def test_the_first_numbers_of_neighbouring_keys_are_uniform(over: Callable[[int], Tensor]) -> None:
    u = over(3)
    for i in range(3):
        uniform_over(torch.bincount((u[:, i] * 1000).long(), minlength=1000))
    uniform_over(cells(u[:, 0], u[:, 1]))  # within a key
    uniform_over(cells(u[::2, 0], u[1::2, 0]))  # between a key and the next
    uniform_over(cells(u[::2, 1], u[1::2, 0]))


@given(st.integers(1, 2**31), any_int)
@fixed
def test_integers_stay_in_range(high: int, key: int) -> None:
    x = Draw(torch.tensor(key)).integers(high, 50)
    assert x.dtype == torch.int64
    assert int(x.min()) >= 0
    assert int(x.max()) < high


@pytest.mark.parametrize("high", [2, 3, 7, 10, 60, 1000])
def test_integers_are_uniform(high: int) -> None:
    uniform_over(torch.bincount(ROOT.fold("integers").integers(high, N), minlength=high))


def test_integers_with_a_bound_for_each_key() -> None:
    highs = torch.tensor([1, 2, 3, 10, 1000])
    stack = ROOT.fold(torch.arange(5))
    x = stack.integers(highs, N)
    for row, key, high in zip(x, stack.key, highs.tolist(), strict=True):
        assert torch.equal(row, Draw(key).integers(high, N))
        if high > 1:
            uniform_over(torch.bincount(row, minlength=high))
    assert int(x[0].max()) == 0


@given(st.integers(1, 60), any_int)
@fixed
def test_permutations_are_permutations(n: int, key: int) -> None:
    draw = Draw(torch.tensor(key))
    assert draw.permutation(n).sort().values.tolist() == list(range(n))
    assert len(set(draw.ranks(n).tolist())) == n


def test_permutations_are_uniform() -> None:
    order = ROOT.fold("order").fold(torch.arange(24000)).permutation(4)
    uniform_over(
        torch.bincount((order * torch.tensor([64, 16, 4, 1])).sum(-1), minlength=256).sort().values[-24:]
    )
    wide = ROOT.fold("wide").fold(torch.arange(20000)).permutation(20)
    for position in (0, 7, 19):
        uniform_over(torch.bincount(wide[:, position], minlength=20))


def test_normal_moments() -> None:
    z = ROOT.fold("normal").normal(N, torch.float64)
    for power, moment, spread in [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)]:
        assert abs(float((z**power).mean()) - moment) < 5 * math.sqrt(spread / N)
    for cut, p in [(1.0, 0.3173105), (2.0, 0.0455003), (3.0, 0.0026998)]:
        assert abs(float((z.abs() > cut).double().mean()) - p) < 5 * math.sqrt(p / N)
    assert abs(float((z[1:] * z[:-1]).mean())) < 5 / math.sqrt(N)
    shares = torch.bincount((torch.special.ndtr(z) * 100).long(), minlength=100)
    uniform_over(shares)


def test_normal_is_always_finite() -> None:
    z = ROOT.fold("many").fold(torch.arange(64)).normal(N)
    assert z.dtype == torch.float32
    assert z.isfinite().all()
    assert 4.5 < float(z.abs().max()) < 6


@given(st.integers(1, 400), st.integers(0, 2**62 - 1), st.data())
def test_a_subset_has_different_members_in_range(m: int, seed: int, data: st.DataObject) -> None:
    n = data.draw(st.integers(1, m))
    chosen = Draw.seeded(seed).subset(m, n).tolist()
    assert len(set(chosen)) == n
    assert all(0 <= member < m for member in chosen)


def test_subsets_are_uniform() -> None:
    counts = torch.zeros(10)
    for seed in range(4000):
        counts[Draw.seeded(seed).subset(10, 3)] += 1
    assert float(((counts - 1200) ** 2 / 840).sum()) < 30  # nine degrees of freedom


# Numbers spread over clients


def spread(n: int, seed: int = 3) -> Draw:
    root = Draw.seeded(seed)
    return Draw(root.fold(torch.arange(n)).key, Strata(root, root.permutation(n), n)).fold("uplink")


@pytest.mark.parametrize("n", [1, 2, 7, 100])
def test_each_client_has_its_own_part_at_every_place(n: int) -> None:
    u = spread(n).dither(1000, torch.float64)
    assert torch.equal((u * n).long().sort(0).values, torch.arange(n).unsqueeze(-1).expand(-1, 1000))
    assert u.dtype == torch.float64


def test_each_clients_numbers_are_uniform() -> None:
    draw = spread(7)
    for i in range(7):
        u = draw[i].dither(N, torch.float64)
        uniform_over(torch.bincount((u * 1000).long(), minlength=1000))
        uniform_over(cells(u[::2], u[1::2]))
    rounds = ROOT.fold(torch.arange(N))
    u = Draw(rounds.fold(5).key, Strata(rounds, torch.full((N,), 4), 7)).dither(1)[:, 0]
    uniform_over(torch.bincount((u * 1000).long(), minlength=1000))  # at one place, over rounds


def test_alone_or_without_strata_they_are_plain_numbers() -> None:
    plain = Draw(spread(5).key)
    assert torch.equal(plain.dither(50), plain.uniform(50))
    assert torch.equal(spread(1).dither(50), Draw(spread(1).key).uniform(50))
    assert torch.equal(spread(5).uniform(50), plain.uniform(50))


def test_some_of_the_clients_have_the_numbers_they_have_among_all() -> None:
    draw = spread(9)
    u = draw.dither(40)
    some = torch.tensor([4, 0, 7])
    assert torch.equal(draw[some].dither(40), u[some])
    assert torch.equal(draw[2:5].dither(40), u[2:5])
    assert torch.equal(torch.stack([draw[i].dither(40) for i in range(9)]), u)


def test_a_key_for_each_client_is_one_for_all() -> None:
    draw = spread(6)
    assert draw.strata is not None
    each = draw.strata._replace(shared=Draw(draw.strata.shared.key.expand(6)))
    assert torch.equal(Draw(draw.key, each).dither(30), draw.dither(30))
    assert torch.equal(Draw(draw.key, each)[2:4].dither(30), draw[2:4].dither(30))


def test_what_is_shared_has_purposes_folded_in_but_no_clients() -> None:
    draw, ids = spread(4), torch.arange(4)
    folded = draw.fold("residual", ids, 3)
    assert torch.equal(folded.key, Draw(draw.key).fold("residual", ids, 3).key)
    assert draw.strata is not None
    assert folded.strata is not None
    assert torch.equal(folded.strata.shared.key, draw.strata.shared.fold("residual", 3).key)


def test_spread_numbers_have_the_precision_of_their_kind() -> None:
    u = spread(1000).dither(20000)
    assert u.dtype == torch.float32
    assert float(u.min()) >= 0
    assert float(u.max()) <= 1
