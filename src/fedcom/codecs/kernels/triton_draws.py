"""The numbers of draws.py inside Triton kernels, and keys folded by one launch instead of two dozen."""

# mypy: ignore-errors

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 256


@triton.jit
def mix(key, part):
    """The key after Draw.fold with a salted part, as draws.mix."""
    z = key.to(tl.uint64) * 0x9E3779B97F4A7C15 + part.to(tl.uint64)
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@triton.jit
def mix_id(key, number):
    """The key after Draw.fold with a tensor's number, such as a client's."""
    z = number.to(tl.uint64) + 0x9E3779B97F4A7C15
    return mix(key, mix(tl.zeros_like(z), z))


@triton.jit
def bits(i, key):
    """Numbers i of Draw.bits, unsigned."""
    z = i.to(tl.uint32) + key.to(tl.uint32)
    z = ((z ^ (z >> 17)) * 0xED5AD4BB) ^ (key >> 32).to(tl.uint32)
    z = (z ^ (z >> 11)) * 0xAC4C1B51
    z = (z ^ (z >> 15)) * 0x31848BAB
    return z ^ (z >> 14)


@triton.jit(do_not_specialize=["part", "count", "columns"])
def _fold(
    keys,
    part,
    out,
    count,
    columns,
    key_down,
    key_right,
    part_down,
    part_right,
    IDS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside, row, column = i < count, i // columns, i % columns
    key = tl.load(keys + row * key_down + column * key_right, mask=inside)
    if IDS:
        new = mix_id(key, tl.load(part + row * part_down + column * part_right, mask=inside))
    else:
        new = mix(key, part)
    tl.store(out + i, new.to(tl.int64), mask=inside)


def fold(key: Tensor, part: int | Tensor) -> Tensor:
    """Draw.fold of keys with one part: a salt, or a tensor of numbers."""
    keys, ids = torch.broadcast_tensors(key, part if isinstance(part, Tensor) else key)
    out = torch.empty(keys.shape, dtype=torch.int64, device=key.device)
    if keys.dim() > 2:
        keys, ids = keys.flatten(), ids.flatten()
    _fold[(-(-keys.numel() // _BLOCK),)](
        keys,
        ids if isinstance(part, Tensor) else part,
        out,
        keys.numel(),
        keys.shape[-1] if keys.dim() else 1,
        *(0, 0, *keys.stride())[-2:],
        *(0, 0, *ids.stride())[-2:],
        IDS=isinstance(part, Tensor),
        BLOCK=_BLOCK,
    )
    return out
