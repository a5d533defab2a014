"""Hostile message bodies: damaged bytes, damaged fields of valid messages, invented entropy-coded streams."""

import random
import struct
from collections.abc import Callable

import numpy as np
import torch

from fedcom.codecs import Auto, Codec, Dithered, LowRank
from fedcom.codecs.coding.entropy import PRECISION, TOTAL, encode
from fedcom.codecs.coding.integer_stream import pack as pack_integers
from fedcom.codecs.wire import Field
from fedcom.draws import Draw
from fedcom.vectors import Layout

LARGEST = float(torch.finfo(torch.float32).max)
FLOATS = (LARGEST, -LARGEST, 1e30, 1e-45, -1e-45, 0.0, -0.0, -1.0, float("inf"), -float("inf"), float("nan"))
WORDS = (0, 1, 2, 0x3FFF, 0x4000, 0x7FFF, 0xFFFF, 0x10000, 0x10001, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
SIZES = (0, 1, 2, 3, 245, 246, 247, 248, 249, 250, 32767, 65535)
Mutation = Callable[[bytes, random.Random], bytes]


def _noise(body: bytes, rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice([len(body), rng.randrange(64), rng.randrange(2 * len(body) + 2)]))


def _constant(body: bytes, rng: random.Random) -> bytes:
    return bytes([rng.choice([0x00, 0x01, 0x7F, 0x80, 0xFE, 0xFF])]) * len(body)


def _flip(body: bytes, rng: random.Random) -> bytes:
    new = bytearray(body)
    for _ in range(rng.choice([1, 1, 2, 8])):
        new[rng.randrange(len(new))] ^= 1 << rng.randrange(8)
    return bytes(new)


def _float(body: bytes, rng: random.Random) -> bytes:
    start = 4 * rng.randrange(max(1, min(len(body) // 4, rng.choice([1, 4, 1000]))))
    return _put(body, start, struct.pack("<f", rng.choice(FLOATS)))


def _word(body: bytes, rng: random.Random) -> bytes:
    return _put(body, rng.randrange(len(body)), struct.pack("<I", rng.choice(WORDS)))


def _reverse(body: bytes, rng: random.Random) -> bytes:
    i, j = sorted(rng.choices(range(len(body) + 1), k=2))
    return body[:i] + body[i:j][::-1] + body[j:]


def _cut(body: bytes, rng: random.Random) -> bytes:
    return body[: -rng.choice([1, 2, 3, 4, 16, rng.randrange(1, len(body) + 1)])]


def _extend(body: bytes, rng: random.Random) -> bytes:
    return body + rng.choice([b"\0", b"\xff", bytes(2), bytes(64), rng.randbytes(6), body])


def _remove(body: bytes, rng: random.Random) -> bytes:
    i, n = rng.randrange(len(body)), rng.choice([1, 2, 4, 8])
    return body[:i] + body[i + n :]


def _insert(body: bytes, rng: random.Random) -> bytes:
    i = rng.randrange(len(body) + 1)
    return body[:i] + rng.randbytes(rng.choice([1, 2, 4, 8])) + body[i:]


ANYWHERE: tuple[Mutation, ...] = (
    *(_noise, _constant, _flip, _float, _word, _reverse, _cut, _extend, _remove, _insert),
)


def _put(body: bytes, start: int, new: bytes) -> bytes:
    return body[:start] + new[: len(body) - start] + body[start + len(new) :]


def parts(codec: Codec, x: torch.Tensor, where: Layout, draw: Draw, rng: random.Random) -> bytes:
    """A valid message with a value of one part replaced, or its values drawn again from themselves."""
    made = codec.compress(x.unsqueeze(0), where, Draw(draw.key.unsqueeze(0)))
    name = rng.choice([name for name, part in made.items() if part.numel() and name != "choice"])
    part = made[name].clone()
    if part.is_floating_point():
        part.view(-1)[rng.randrange(part.numel())] = rng.choice(FLOATS)
    else:
        part = part[..., torch.tensor(rng.choices(range(part.shape[-1]), k=part.shape[-1]))]
    one = made | {name: part}
    return codec.pack(one if isinstance(codec, Auto) else {k: v[0] for k, v in one.items()}, where)


def stream_at(codec: Codec, body: bytes, where: Layout) -> int | None:
    """Where the stream of integers begins in a message, if it has one."""
    if isinstance(codec, Dithered):
        return 4
    if isinstance(codec, LowRank):
        inner = stream_at(codec.residual(where), body, where)
        return None if inner is None else inner + sum(field.nbytes for field in codec.fields(where))
    if isinstance(codec, Auto) and body[0] < len(codec.candidates(where)):
        inner = stream_at(codec.candidates(where)[body[0]], body[1:], where)
        return None if inner is None else inner + 1
    return None


def stream(body: bytes, start: int, n: int, rng: random.Random) -> bytes:
    """A message whose stream of integers is damaged in one field, or invented."""
    size = int.from_bytes(body[start : start + 2], "little")
    table = Field("table", size, PRECISION + 1)
    after = start + 2 + table.nbytes
    kind = rng.randrange(7)
    if kind == 0:
        return _put(body, start, struct.pack("<H", rng.choice(SIZES)))
    if kind == 1:  # how long the stream is
        real = int.from_bytes(body[after : after + 4], "little")
        new = rng.choice([0, 2, 14, 16, 18, real - 2, real - 1, real + 1, real + 2, 2**31, 2**32 - 1])
        return _put(body, after, struct.pack("<I", max(new, 0)))
    if kind == 2:  # a state
        return _put(body, after + 4 + 4 * rng.randrange(4), struct.pack("<I", rng.choice(WORDS)))
    if kind == 3:  # another table for the same stream
        new_table = frequencies(rng.choice([size, *SIZES[1:10]]), rng)
        return body[:start] + _head(new_table) + body[after:]
    if kind == 4:  # a word of the stream
        return _put(body, after + 20 + 2 * rng.randrange(max(1, n // 8)), rng.randbytes(2))
    if kind == 5:  # integers of any size
        values = [rng.choice([1, -1]) * rng.randrange(2 ** rng.randrange(32)) for _ in range(n)]
        return body[:start] + pack_integers(torch.tensor(values))
    return body[:start] + invented(n, rng)


def frequencies(size: int, rng: random.Random) -> list[int]:
    """A random table of frequencies, most often with the right sum."""
    cuts = sorted(rng.choices(range(TOTAL + 1), k=size - 1))
    table = [b - a for a, b in zip([0, *cuts], [*cuts, TOTAL], strict=True)]
    if rng.random() < 0.3:
        table = [0] * size
        table[rng.randrange(size)] = TOTAL
    if rng.random() < 0.1:
        table[rng.randrange(size)] = rng.choice([0, 1, 2 * TOTAL - 1])
    return table


def invented(n: int, rng: random.Random) -> bytes:
    """A stream of random symbols with a random table; sometimes one number in it is wrong."""
    table = frequencies(rng.choice(SIZES[1:10]), rng)
    some = [s for s, f in enumerate(table) if f] or [0]
    symbols = np.array(rng.choices(some, k=n), np.uint8)
    coded = encode(symbols, np.maximum(table, 1) if sum(table) != TOTAL else np.array(table))
    octaves = (np.maximum((symbols.astype(int) + 1) // 2 - 16, -4) // 4) + 1  # 0 below 16, 1 from 16 to 31
    raw = int(np.where(octaves > 0, octaves + 1, 0).sum())
    spare = rng.choice([0, 0, 0, 0, 1, -1])
    tail = bytearray(rng.randbytes(max(0, (raw + 7) // 8 + spare)))
    if raw % 8 and tail and rng.random() < 0.8:
        tail[-1] &= (1 << raw % 8) - 1
    return _head(table) + struct.pack("<I", len(coded)) + coded + bytes(tail)


def _head(table: list[int]) -> bytes:
    field = Field("table", len(table), PRECISION + 1)
    return struct.pack("<H", len(table)) + field.pack(torch.tensor(table))
