"""Random combinations of methods, codecs, memories, clips, budgets and engines' options, some written here.

Each runs or is refused with a reason; none crashes or blows up without a word. `make chaos` tries 2,000.
"""

import random
import warnings
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from fedcom import (
    ALGORITHMS,
    Algorithm,
    Codec,
    ConfigError,
    Diverged,
    FedCOM,
    Links,
    Simulation,
    Storage,
    Task,
)
from fedcom.codecs import (
    Auto,
    CountSketch,
    Dithered,
    Identity,
    Int,
    LowRank,
    Natural,
    Peaks,
    PowerSgd,
    Qsgd,
    RandK,
    Rotated,
    Sign,
    TernGrad,
    TopK,
)
from fedcom.codecs.wire import Field

CLIENTS, ROUNDS, BLOCK = 8, 5, 40
GROWN = 20.0


class Last(NamedTuple):
    """The last two updates of a client."""

    update: Tensor
    before: Tensor


@dataclass(frozen=True, kw_only=True)
class Heavy(FedCOM):
    """A stranger's method: clients add what they sent in the last two rounds to their steps."""

    name: ClassVar[str] = "heavy"

    def init_client(self, w: Tensor) -> Last:
        return Last(torch.zeros_like(w), torch.zeros_like(w))

    def direction(self, g: Tensor, client: Last, down: Any) -> Tensor:
        return g + 0.01 * (client.update - client.before)

    def client_step(self, client: Last, meant: Any, sent: Any, mean: Any, rnd: Any) -> Last:
        return Last(sent["D"], client.update)


@dataclass(frozen=True)
class Thirds(Codec):
    """A stranger's codec: every third coordinate, beginning at one that is drawn, as a float16."""

    name: ClassVar[str] = "thirds"
    id: ClassVar[int] = 177
    unbiased = True  # type: ignore[assignment]

    def variance(self, layout: Any) -> float:
        return 2.01

    def fields(self, layout: Any) -> list[Field]:
        return [Field("values", -(-layout.size // 3), 16, floating=True)]

    def compress(self, x: Tensor, layout: Any, draw: Any) -> dict[str, Tensor]:
        place = self._places(layout, draw)
        padded = torch.cat([x, torch.zeros_like(x[..., :3])], -1)
        return {"values": torch.gather(padded, -1, place.expand(*x.shape[:-1], -1)).half()}

    def expand(self, parts: dict[str, Tensor], layout: Any, draw: Any) -> Tensor:
        place, values = self._places(layout, draw), 3 * parts["values"].to(layout.dtype)
        blank = values.new_zeros(*values.shape[:-1], layout.size + 3)
        return blank.scatter(-1, place.expand_as(values), values)[..., : layout.size]

    def _places(self, layout: Any, draw: Any) -> Tensor:
        first = draw.fold("first").integers(3, 1)
        return 3 * torch.arange(-(-layout.size // 3)) + first


@cache
def task(dtype: torch.dtype) -> Task:
    """Four classes among eight clients, two each."""
    draw = torch.Generator().manual_seed(0)
    y = torch.randint(0, 4, (96,), generator=draw)
    x = torch.randn(96, 20, generator=draw) + 2 * torch.randn(4, 20, generator=draw)[y]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(20, 24), nn.ReLU(), nn.Linear(24, 4))
    return Task.from_arrays(module, x, y, clients=CLIENTS, partition="classes", dtype=dtype)


def codec(rng: random.Random) -> Codec:
    """Any codec, at some rate."""
    return rng.choice(
        [
            lambda: Identity(),
            lambda: Int(rng.choice([1, 2, 4, 8]), rng.choice(["stochastic", "nearest"])),
            lambda: Rotated(rng.choice([0.5, 1, 2, 4])),
            lambda: TopK(
                rng.choice([0.01, 0.1, 0.5]), rng.choice(["float", "levels"]), chunk=rng.choice([None, 64])
            ),
            lambda: RandK(rng.choice([0.05, 0.25])),
            lambda: Qsgd(rng.choice([1, 4, 16])),
            lambda: Natural(),
            lambda: Sign(),
            lambda: TernGrad(),
            lambda: PowerSgd(rng.choice([1, 2])),
            lambda: CountSketch(rng.choice([0.1, 0.3])),
            lambda: LowRank(1, bits=2.0),
            lambda: Auto(rng.choice([0.1, 0.5, 2])),
            lambda: Peaks(rng.choice([0.1, 0.5])),
            lambda: Dithered(bits=rng.choice([1.5, 3])),
            lambda: Thirds(),
        ]
    )()


RATES: dict[type[Codec], list[float]] = {
    Int: [1, 2, 4, 8],
    Dithered: [2, 4, 8],
    Rotated: [0.5, 1, 2, 4],
    Auto: [0.1, 0.5, 1, 4],
    Peaks: [0.1, 0.5, 1],
    TopK: [0.5, 1, 2],
}


def case(seed: int) -> dict[str, Any]:
    """The arguments of a simulation."""
    rng = random.Random(seed)

    def perhaps(share: float) -> bool:
        return rng.random() < share

    kind: type[Algorithm] = rng.choice([*(ALGORITHMS[name] for name in ALGORITHMS), Heavy])
    up = codec(rng) if kind.compresses is None or perhaps(0.1) else Identity()
    links: dict[str, Any] = {
        "uplink_memory": rng.choice([None, None, "error-feedback", "none"]),
        "clip": rng.choice([None, None, None, 0.1, 1.0]),
        "encode": perhaps(0.3),
        "correlated": up.dithers and up.unbiased and perhaps(0.3),
    }
    if type(up) in RATES and perhaps(0.5):
        links["budgets"] = tuple(rng.choice(RATES[type(up)]) for _ in range(CLIENTS))
    how: dict[str, Any] = {"option": rng.choice(["I", "II"])} if perhaps(0.3) else {}
    how |= {"eta": rng.choice([0.02, 0.1])} if perhaps(0.3) else {}
    how |= {"tau": rng.choice([1, 3, tuple(1 + j % 3 for j in range(CLIENTS))])} if perhaps(0.2) else {}
    sends_mean = kind.needs_mean or how.get("option") == "I"
    return {
        "kind": kind,
        "how": how,
        "codecs": (up, codec(rng) if perhaps(0.5 if sends_mean else 0.05) else Identity()),
        "links": links,
        "dtype": rng.choice([torch.float32, torch.float64]),
        "settings": {
            "participation": rng.choice([1.0, 1.0, 0.5, 0.25]),
            "chunk": rng.choice([None, 1, 3]),
            "seed": rng.randrange(5),
            "storage": rng.choice([None, None, Storage("disk"), Storage("memory", "bfloat16")]),
        },
    }


def outcome(seed: int) -> str:
    """How a run ends: "runs", "refused" or "diverged"; fails if it should have been told of something."""
    given = case(seed)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            links = Links(*given["codecs"], **given["links"])
            method = given["kind"](**given["how"])
            rows = Simulation(
                task(given["dtype"]), method, links, rounds=ROUNDS, device="cpu", **given["settings"]
            ).run()
        except ConfigError:
            return "refused"
        except Diverged:
            return "diverged"
        except Exception as error:
            raise AssertionError(f"seed {seed} crashes: {given}") from error
    first, last = rows[0]["train_loss"], rows[-1]["train_loss"]
    assert last <= GROWN * first or any("loss has grown" in str(one.message) for one in told), (seed, given)
    return "runs"


@pytest.mark.parametrize(
    "first",
    [0, *(pytest.param(n, marks=pytest.mark.thorough) for n in range(BLOCK, 2000, BLOCK))],
)
def test_each_runs_or_is_refused(first: int) -> None:
    found = [outcome(seed) for seed in range(first, first + BLOCK)]
    assert found.count("runs") > BLOCK / 4
