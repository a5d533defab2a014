"""Random numbers as a pure function of a key: the same on every device, chunking and engine.

A `Draw` is a key, or a stack of keys, one a client. `fold` mixes something into it (a seed, a round,
client ids, a purpose) and gives a new one; the other methods turn it into numbers. There is no state.
"""

import math
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import torch
from torch import Tensor

Integers = TypeVar("Integers", int, Tensor)

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MIX = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)  # the finaliser of splitmix64
_LOW = (0xED5AD4BB - 2**32, 0xAC4C1B51 - 2**32, 0x31848BAB)  # a 32-bit finaliser of low bias (triple32)


def mix(key: Integers, part: Integers | int) -> Integers:
    """A key with something mixed in: every bit of either flips every bit of the result half the time.

    Only the low 64 bits count; of Python's integers others remain.
    """
    z = key * _GOLDEN + part
    z = (z ^ ((z >> 30) & (2**34 - 1))) * _MIX[0]
    z = (z ^ ((z >> 27) & (2**37 - 1))) * _MIX[1]
    return z ^ ((z >> 31) & (2**33 - 1))


def salt(part: int | str) -> int:
    """What a round, a seed or a purpose is folded in as."""
    return _salt(part)  # torch.compile takes this for a constant, and would look into a cache


@lru_cache(maxsize=4096)
def _salt(part: int | str) -> int:
    if isinstance(part, str):
        part = zlib.crc32(part.encode()) + 2**40  # out of the way of rounds and client ids
    return _signed(mix(0, part + _GOLDEN))


def _signed(z: int) -> int:
    """The low 64 bits, as torch has them."""
    return (z + 2**63) % 2**64 - 2**63


def _xorshift(x: Tensor, shift: int) -> Tensor:
    """x ^= x >>> shift, in place; torch's own shift of a signed integer drags the sign along."""
    return x.bitwise_xor_((x >> shift).bitwise_and_(2 ** (32 - shift) - 1))


@dataclass(frozen=True)
class Draw:
    """A key with leading axes (none, or one for clients); every draw adds one last axis of n numbers."""

    key: Tensor

    @classmethod
    def seeded(cls, seed: int, device: torch.device | str = "cpu") -> "Draw":
        """The root of all randomness of one run."""
        return cls(torch.zeros((), dtype=torch.int64, device=device)).fold(seed)

    def fold(self, *parts: int | str | Tensor) -> "Draw":
        """Mix in what distinguishes this use; a tensor of ids gives one key an id."""
        key = self.key
        for part in parts:
            if isinstance(part, Tensor):
                ids = part.to(key.device, torch.int64) + _GOLDEN
                key = mix(key, mix(torch.zeros_like(ids), ids))
            elif key.dim() or key.device.type != "cpu":
                key = mix(key, salt(part))
            else:  # one number, for which Python is quicker
                key = torch.tensor(_signed(mix(int(key), salt(part))))
        return Draw(key)

    def bits(self, n: int | Tensor) -> Tensor:
        """n uniform 32-bit integers a key (signed, as torch has them), or those at given places."""
        key = self.key.unsqueeze(-1)
        places = torch.arange(n, dtype=torch.int32, device=key.device) if isinstance(n, int) else n
        x = places.to(torch.int32) + key.to(torch.int32)
        _xorshift(x, 17).mul_(_LOW[0])
        x.bitwise_xor_((key >> 32).to(torch.int32))
        _xorshift(x, 11).mul_(_LOW[1])
        _xorshift(x, 15).mul_(_LOW[2])
        return _xorshift(x, 14)

    def uniform(self, n: int | Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """n numbers a key, uniform on [0, 1), multiples of 2^-24."""
        return (self.bits(n) >> 8).bitwise_and_(2**24 - 1).to(dtype).mul_(2.0**-24)

    def integers(self, high: int | Tensor, n: int) -> Tensor:
        """n integers a key, uniform on 0..high-1; high is one number or one a key."""
        wide = self.bits(n).to(torch.int64).bitwise_and_(2**32 - 1)
        top = high if isinstance(high, int) else high.to(wide.device).unsqueeze(-1)
        return (wide * top) >> 32

    def permutation(self, n: int) -> Tensor:
        """A uniformly random order of 0..n-1 a key."""
        return torch.argsort(self.ranks(n), dim=-1)

    def subset(self, m: int, n: int) -> Tensor:
        """n different integers of 0..m-1 of one key, in random order, at a cost that n decides and not m."""
        if 2 * n > m:
            return self.permutation(m)[:n]
        found: dict[int, None] = {}
        for turn in range(64):  # half of all tries succeed at least, so that one turn is usual
            found |= dict.fromkeys(self.fold("subset", turn).integers(m, 2 * n + 8).tolist())
            if len(found) >= n:
                break
        return torch.tensor(list(found)[:n], device=self.key.device)

    def ranks(self, n: int) -> Tensor:
        """n distinct 63-bit integers a key, in random order: what permutations and subsets are cut from."""
        position = torch.arange(n, device=self.key.device)
        return (self.bits(n).to(torch.int64) << 31) + position

    def normal(self, n: int | Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """n standard normal numbers a key (Box and Muller)."""
        radius = torch.sqrt(-2.0 * torch.log(1.0 - self.fold("radius").uniform(n, dtype)))
        return radius * torch.cos(2.0 * math.pi * self.fold("angle").uniform(n, dtype))
