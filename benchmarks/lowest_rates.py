"""What peaks costs and loses at the lowest rates, from real bytes; some minutes.

    FEDCOM_DATA=... python benchmarks/lowest_rates.py [messages]

On the vectors of the report card. Printed are the bytes of a message of the first one, for each vector q over
the bound 1/(4^R - 1) with R the bits per coordinate asked for, and of all of them the bias ratio furthest
from 1 (see docs/codecs.md).
"""

import sys

import torch

from fedcom.codecs import Peaks
from fedcom.studies.card_vectors import Vector, vectors
from fedcom.studies.codec_card import measure

RATES = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1)


def row(bits: float, kinds: list[Vector], messages: int) -> str:
    """One line of the table."""
    found = [measure(Peaks(bits), kind, messages) for kind in kinds]
    size = (found[0]["bits"] or 0.0) * kinds[0].layout.size / 8
    ratios = [f"{(figures['q'] or 0.0) * (4**bits - 1):.3f}" for figures in found]
    bias = max((figures["bias_ratio"] or 0.0 for figures in found), key=lambda ratio: abs(ratio - 1))
    return f"| {bits:g} | {size:.0f} | {found[0]['q']:.4g} | {' | '.join(ratios)} | {bias:.3f} |"


def main(messages: int) -> None:
    kinds = vectors()
    print(f"| bits | bytes | q | {' | '.join(kind.name for kind in kinds)} | bias ratio |")
    print(f"|{'--:|' * (4 + len(kinds))}")
    for bits in RATES:
        print(row(bits, kinds, messages), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 400)
