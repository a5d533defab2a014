"""Decode hostile messages with every codec: each must raise WireError or give a finite vector.

    python -m fuzz.decode [messages] [--seed N] [--guided]

Every message is a function of the seed and its number. With --guided, atheris (if it is installed) chooses
the messages by coverage.
"""

import argparse
import faulthandler
import random
import resource
import sys
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from fedcom.codecs import (
    CODECS,
    Auto,
    Codec,
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
from fedcom.draws import Draw
from fedcom.errors import WireError
from fedcom.vectors import Layout

from . import mutate

CASES: list[Codec] = [
    Identity(),
    Int(5),
    Int(8, scale="vector"),
    Qsgd(3),
    Qsgd(127),
    Natural(),
    TopK(0.05),
    TopK(0.4, "int"),
    TopK(0.1, "levels", chunk=50),
    RandK(0.1),
    Sign(),
    TernGrad(),
    PowerSgd(2),
    CountSketch(0.4, rows=3),
    Dithered(q=1e-4),
    Dithered(q=1.0),
    Dithered(bits=4.0),
    Rotated(0.25),
    Rotated(3.0),
    Rotated(8.0),
    Rotated(3.0, "trellis"),
    Rotated(1.2, "trellis"),
    Rotated(3, "fixed"),
    Peaks(0.2),
    Peaks(0.5),
    LowRank(2, 2.5),
    LowRank(2, 5.0),
    Auto(4.0),
]
SHAPES = ((16, 16), (29,), (3, 3, 3))
WHERES = (
    Layout(("a", "b", "c"), SHAPES),
    Layout(("a", "b", "c"), SHAPES, torch.float64),
)
LONG = 1.0  # seconds that one decode may take
LARGE = 2**20  # bytes that one decode may allocate, many times what a few hundred coordinates need
GROWTH = 2**26  # bytes by which the process may grow while one codec is tried
SAMPLE = 16  # the memory of one message in so many is measured


@dataclass
class Tally:
    """The results of one codec's messages."""

    rejected: int = 0
    decoded: int = 0
    slowest: float = 0.0
    heaviest: int = 0
    grown: int = 0
    violations: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"rejected {self.rejected:8,}  decoded {self.decoded:8,}  slowest {1e3 * self.slowest:6.1f} ms  "
            f"heaviest {self.heaviest / 1024:6.0f} KiB  process +{self.grown / 2**20:.0f} MiB"
            f"{f'  VIOLATIONS {len(self.violations)}' if self.violations else ''}"
        )


def bodies(codec: Codec, where: Layout, draw: Draw, rng: random.Random) -> Iterator[bytes]:
    """Endless hostile message bodies."""
    fresh = torch.Generator().manual_seed(rng.randrange(2**31))
    x = torch.randn(where.size, generator=fresh, dtype=torch.float64).to(where.dtype)
    kinds = [x, x**3, x * (torch.arange(where.size) % 50 == 0), torch.full_like(x, -0.7), 0 * x]
    valid = [codec.encode(x, where, draw)[codec.format.HEADER :] for x in kinds]
    damaged = [mutate.parts(codec, rng.choice(kinds), where, draw, rng) for _ in range(4)]
    while True:
        i = rng.randrange(len(valid))
        start = mutate.stream_at(codec, valid[i], where)
        if start is not None and rng.random() < 0.5:
            yield mutate.stream(valid[i], start, where.size, rng)
        elif rng.random() < 0.02:
            yield rng.choice(damaged)
        else:
            yield rng.choice(mutate.ANYWHERE)(valid[i], rng)


def attempt(codec: Codec, data: bytes, where: Layout, draw: Draw, tally: Tally, weigh: bool = False) -> None:
    """Decode one message and enter the result in the tally.

    Args:
        weigh: whether to measure the memory that it takes.
    """
    if weigh:
        tracemalloc.start()
    begun = time.process_time()
    try:
        x = codec.decode(data, where, draw)
    except WireError:
        tally.rejected += 1
    except Exception as error:
        tally.violations.append(f"{error!r} on {data.hex()}")
    else:
        tally.decoded += 1
        if x.shape != (where.size,) or x.dtype != where.dtype or not x.isfinite().all():
            tally.violations.append(
                f"{x.dtype} {tuple(x.shape)}, finite: {bool(x.isfinite().all())}, from {data.hex()}"
            )
    seconds = time.process_time() - begun
    tally.slowest = max(tally.slowest, seconds)
    if seconds > LONG:
        tally.violations.append(f"{seconds:.1f} s on {data.hex()}")
    if weigh:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        tally.heaviest = max(tally.heaviest, peak)
        if peak > LARGE:
            tally.violations.append(f"{peak} bytes on {data.hex()}")


def run(codec: Codec, messages: int, seed: int = 0) -> Iterator[Tally]:
    """Try some messages, half of them in float64; yields the tally from time to time and at the end."""
    tally = Tally()
    for where in WHERES:
        draw, rng = Draw.seeded(seed), random.Random(f"{seed} {codec!r} {where.dtype}")
        codec.decode(codec.encode(torch.ones(where.size, dtype=where.dtype), where, draw), where, draw)
        before = peak()
        for i, body in zip(range(messages // len(WHERES)), bodies(codec, where, draw, rng), strict=False):
            data = codec.frame(body, where)
            if rng.random() < 0.02:  # the header too
                data = rng.choice(mutate.ANYWHERE)(data, rng)
            attempt(codec, data, where, draw, tally, i % SAMPLE == 0)
            if i % 500 == 0:
                yield tally
        tally.grown = max(tally.grown, peak() - before)
    if tally.grown > GROWTH:
        tally.violations.append(f"the process grew by {tally.grown} bytes")
    yield tally


def peak() -> int:
    """The process's peak of resident memory, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def guided() -> None:
    """Let atheris choose messages: the first byte selects the case, the rest is the body."""
    try:
        import atheris
    except ImportError:
        raise SystemExit(
            "--guided needs atheris, which is not installed: pip install atheris (where no wheel fits, it is "
            "built with clang and its libFuzzer); without --guided the seeded mutator runs"
        ) from None

    where, draw = WHERES[0], Draw.seeded(0)

    def one(data: bytes) -> None:
        codec, tally = CASES[data[0] % len(CASES)] if data else CASES[0], Tally()
        attempt(codec, codec.frame(data[1:], where), where, draw, tally)
        if tally.violations:
            raise AssertionError(tally.violations[0])

    atheris.instrument_all()
    atheris.Setup([sys.argv[0]], one)
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("messages", type=int, nargs="?", default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--guided", action="store_true", help="use atheris, if it is installed")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.guided:
        guided()
    assert {type(codec) for codec in CASES} == set(CODECS.values()), "a codec of the registry is missing"
    violations = done = 0
    each = -(-options.messages // len(CASES))
    for codec in CASES:
        for tally in run(codec, each, options.seed):
            faulthandler.dump_traceback_later(60, exit=True)  # a hang ends the run, with a traceback
            now = done + tally.rejected + tally.decoded
            if sys.stderr.isatty():
                print(f"\r{now:,} of {options.messages:,}  {codec!r}\033[K", end="", file=sys.stderr)
        done = now
        print(f"\r{repr(codec)[:36]:36} {tally}", flush=True)
        for violation in tally.violations[:5]:
            print(f"  {violation[:2000]}")
        violations += len(tally.violations)
    faulthandler.cancel_dump_traceback_later()
    print(f"{done:,} messages, {violations} violations, seed {options.seed}")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
