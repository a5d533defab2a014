"""Random numbers as a pure function of a key: the same on every device, in every chunk and engine.

A `Draw` is a key, or a stack of keys with one per client. `fold` mixes something into it (a seed, a round,
client ids, a purpose) and returns a new Draw; the other methods turn it into numbers. There is no state.

With `Strata`, the numbers that clients round with (`dither`) are spread evenly over [0, 1): at each
coordinate every client has a part of it to itself. Those of one client are as random as without.
"""

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

Integers = TypeVar("Integers", int, Tensor)

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MIX = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)  # the finaliser of splitmix64
_LOW = (0xED5AD4BB - 2**32, 0xAC4C1B51 - 2**32, 0x31848BAB)  # a 32-bit finaliser of low bias (triple32)


def mix(key: Integers, part: Integers | int) -> Integers:
    """A key with something mixed in: flipping any bit of either flips each bit of the result half the time.

    Only the low 64 bits of the result count; a Python integer may have more.
    """
    z = key * _GOLDEN + part
    z = (z ^ ((z >> 30) & (2**34 - 1))) * _MIX[0]
    z = (z ^ ((z >> 27) & (2**37 - 1))) * _MIX[1]
    return z ^ ((z >> 31) & (2**33 - 1))


def salt(part: int | str) -> int:
    """The number that is mixed in for a round, a seed or a purpose."""
    return _salt(part)  # torch.compile treats this function as a constant; it would trace a cached one


@lru_cache(maxsize=4096)
def _salt(part: int | str) -> int:
    if isinstance(part, str):
        part = zlib.crc32(part.encode()) + 2**40  # apart from all rounds and client ids
    return _signed(mix(0, part + _GOLDEN))


def _signed(z: int) -> int:
    """The low 64 bits as a signed integer, which is what torch has."""
    return (z + 2**63) % 2**64 - 2**63


def _xorshift(x: Tensor, shift: int) -> Tensor:
    """x ^= x >>> shift, in place; torch's own shift of a signed integer copies the sign bit."""
    return x.bitwise_xor_((x >> shift).bitwise_and_(2 ** (32 - shift) - 1))


@dataclass(frozen=True)
class Draw:
    """A source of random numbers; every method that draws adds a last axis of n numbers to the key's axes.

    Args:
        key: int64; one key, or one per client.
        strata: how clients spread the numbers they round with, if they do.
    """

    key: Tensor
    strata: "Strata | None" = None

    @classmethod
    def seeded(cls, seed: int, device: torch.device | str = "cpu") -> "Draw":
        """The key from which all randomness of one run is derived."""
        return cls(torch.zeros((), dtype=torch.int64, device=device)).fold(seed)

    def fold(self, *parts: int | str | Tensor) -> "Draw":
        """Mix in what distinguishes this use from others; a tensor of ids gives one key per id."""
        key = self.key
        for part in parts:
            part = part.to(key.device, torch.int64) if isinstance(part, Tensor) else part
            if _fold_on_gpu is not None and key.is_cuda and not torch.compiler.is_compiling():
                key = _fold_on_gpu(key, part if isinstance(part, Tensor) else salt(part))
            elif isinstance(part, Tensor):
                ids = part + _GOLDEN
                key = mix(key, mix(torch.zeros_like(ids), ids))
            elif key.dim() or key.device.type != "cpu":
                key = mix(key, salt(part))
            else:  # for one number Python is quicker than torch
                key = torch.tensor(_signed(mix(int(key), salt(part))), device="cpu")
        return Draw(key, self.strata and self.strata.fold(*parts))

    def __getitem__(self, rows: int | slice | Tensor) -> "Draw":
        """The draws of some of the clients."""
        return Draw(self.key[rows], self.strata and self.strata.at(rows))

    def bits(self, n: int | Tensor) -> Tensor:
        """n uniform 32-bit integers per key, signed.

        Args:
            n: how many; or a tensor of positions, one row per key, to get the integers at those only.
        """
        key = self.key.unsqueeze(-1)
        positions = torch.arange(n, dtype=torch.int32, device=key.device) if isinstance(n, int) else n
        x = positions.to(torch.int32) + key.to(torch.int32)
        _xorshift(x, 17).mul_(_LOW[0])
        x.bitwise_xor_((key >> 32).to(torch.int32))
        _xorshift(x, 11).mul_(_LOW[1])
        _xorshift(x, 15).mul_(_LOW[2])
        return _xorshift(x, 14)

    def uniform(self, n: int | Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """n numbers per key, uniform on [0, 1), multiples of 2^-24; `bits` explains n."""
        return (self.bits(n) >> 8).bitwise_and_(2**24 - 1).to(dtype).mul_(2.0**-24)

    def dither(self, n: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """n numbers per key, uniform on [0, 1), to round with; with strata, each client's in its parts."""
        u = self.uniform(n, dtype)
        return u if self.strata is None else (self.strata.parts(n) + u) * (1 / self.strata.clients)

    def integers(self, high: int | Tensor, n: int) -> Tensor:
        """n integers per key, uniform on 0..high-1; high is one number, or one per key."""
        wide = self.bits(n).to(torch.int64).bitwise_and_(2**32 - 1)
        top = high if isinstance(high, int) else high.to(wide.device).unsqueeze(-1)
        return (wide * top) >> 32

    def permutation(self, n: int) -> Tensor:
        """A uniformly random order of 0..n-1 for each key."""
        return torch.argsort(self.ranks(n), dim=-1)

    def subset(self, m: int, n: int) -> Tensor:
        """n different integers of 0..m-1 for one key, in random order; the time grows with n, not with m."""
        if 2 * n > m:
            return self.permutation(m)[:n]
        found: dict[int, None] = {}
        for attempt in range(64):  # at least half of the integers are new, so one attempt is usually enough
            found |= dict.fromkeys(self.fold("subset", attempt).integers(m, 2 * n + 8).tolist())
            if len(found) >= n:
                break
        return torch.tensor(list(found)[:n], device=self.key.device)

    def ranks(self, n: int) -> Tensor:
        """n distinct 63-bit integers per key, in random order; sorting them gives a permutation."""
        position = torch.arange(n, device=self.key.device)
        return (self.bits(n).to(torch.int64) << 31) + position

    def normal(self, n: int | Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """n standard normal numbers per key (Box and Muller); `bits` explains n."""
        radius = torch.sqrt(-2.0 * torch.log(1.0 - self.fold("radius").uniform(n, dtype)))
        return radius * torch.cos(2.0 * math.pi * self.fold("angle").uniform(n, dtype))


def fold_on_gpu_with(fold: Callable[[Tensor, int | Tensor], Tensor]) -> None:
    """Let a function of a key and a salt, or of a key and a tensor of ids, fold keys on a GPU from now on.

    It must give the keys of Draw.fold.
    """
    global _fold_on_gpu
    _fold_on_gpu = fold


_fold_on_gpu: Callable[[Tensor, int | Tensor], Tensor] | None = None


class Strata(NamedTuple):
    """As many equal parts of [0, 1) as there are clients; at each coordinate every client has another one."""

    shared: Draw  # one key for all clients of a round; one per client if they are of several runs
    rank: Tensor  # the number of each client among them, from 0 on
    clients: int

    def fold(self, *parts: int | str | Tensor) -> "Strata":
        """Mix in what distinguishes this use from others, except ids of clients: they share the key."""
        kept = (part for part in parts if not isinstance(part, Tensor))
        return self._replace(shared=self.shared.fold(*kept))

    def at(self, rows: int | slice | Tensor) -> "Strata":
        """Those of some of the clients."""
        shared = self.shared[rows] if self.shared.key.dim() else self.shared
        return self._replace(shared=shared, rank=self.rank[rows])

    def parts(self, n: int) -> Tensor:
        """Which part each client has at each of n coordinates: its rank, plus a number that all share."""
        part = self.shared.integers(self.clients, n).int() + self.rank.int().unsqueeze(-1)
        return torch.where(part < self.clients, part, part - self.clients)
