"""Find the designs of the trellis tier; takes some seconds per rate.

    python benchmarks/trellis_designs.py [rate ...]

For each rate a bisection finds the step (from 0.6 bits up, with lambda = 2 ln2 D) or lambda (below 0.6 bits)
at which a Gaussian sample takes that many bits. The printed lines are the constants in
src/fedcom/codecs/coding/trellis.py.
"""

import math
import sys
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fedcom.codecs.coding.trellis import Design, Trellis, build

GAP = 0.064  # guessed bits above the bound, from which D follows
RATES = (0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.7, 0.85, 1.0, 1.2, 1.45, 1.7, 2.0, 2.5, 3.0, 4.0, 5.0, 6.2)


def sample(n: int, seed: int) -> Tensor:
    """A Gaussian vector of unit power."""
    y = torch.from_numpy(np.random.default_rng(seed).standard_normal(n)).float()
    return y / y.square().mean().sqrt()


def measure(trellis: Trellis, y: Tensor) -> tuple[float, float]:
    """Bits per coordinate, and how many of them are above the bound."""
    codes = trellis.codes(y, torch.ones(1)).long()
    image = trellis.centres[codes]
    bits = float(trellis.lengths[codes].mean())
    cosine = float((y.double() @ image) ** 2 / (image @ image) / (y @ y))
    return bits, bits + 0.5 * math.log2(1 - cosine)


def family(rate: float) -> tuple[Callable[[float], Design], float, float]:
    """A design as a function of its one free parameter, and the interval to search."""
    if rate >= 0.6:
        d = 4.0 ** (GAP - rate)
        return lambda step: Design(rate, step, d, 2 * math.log(2) * d, 0.0), math.sqrt(d), 3 * math.sqrt(d)
    step = float(np.interp(rate, [0.35, 0.6], [1.1, 1.03]))
    spread = 1 - float(np.interp(rate, [0.35, 0.6], [0.43, 0.5]))
    return lambda weight: Design(rate, step, spread, weight, 0.0), 0.4, 1.3


def search(rate: float) -> Design:
    """Bisect on a small sample, then on a large one near the result."""
    make, low, high = family(rate)
    small, large = sample(1 << 17, 1), sample(1 << 20, 2)
    for y, steps in ((small, 9), (large, 7)):
        if y is large:
            low, high = 0.97 * (low + high) / 2, 1.03 * (low + high) / 2
        for _ in range(steps):
            middle = (low + high) / 2
            low, high = (middle, high) if measure(build(make(middle)), y)[0] > rate else (low, middle)
    found = make((low + high) / 2)
    return found._replace(gap=measure(build(found), large)[1])


if __name__ == "__main__":
    torch.set_num_threads(1)
    for rate in map(float, sys.argv[1:]) if len(sys.argv) > 1 else RATES:
        d = search(rate)
        print(f"Design({d.bits:g}, {d.step:.5g}, {d.spread:.4g}, {d.weight:.4g}, {d.gap:.4f}),", flush=True)
