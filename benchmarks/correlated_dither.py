"""How much nearer clients' mean comes to the truth when they spread their dither; a minute or two.

    FEDCOM_DATA=... python -m benchmarks.correlated_dither

The updates of benchmarks/real_updates.py, of 20 clients in rounds 1 and 20. Printed is the relative error of
their mean, |mean Q(x_j) - mean x_j|^2 / |mean x_j|^2, over ten draws, with independent dither and with
uplink.correlated, and the ratio of the two.
"""

import torch
from benchmarks import real_updates
from torch import Tensor

from fedcom.codecs import Codec, Dithered, Int, LowRank, Qsgd
from fedcom.draws import Draw, Strata
from fedcom.vectors import Layout

N, REPEATS = 20, 10
CODECS: tuple[Codec, ...] = (
    *(Int(bits) for bits in (8, 4, 2, 1)),
    *(Qsgd(levels) for levels in (127, 7, 1)),
    *(Dithered(bits=bits) for bits in (8.0, 4.0, 2.0, 1.0, 0.5, 0.25, 0.1)),
    *(LowRank(2, bits) for bits in (4.0, 2.0, 1.0)),
)


def error(codec: Codec, x: Tensor, layout: Layout, correlated: bool) -> float:
    """The mean over draws of the relative squared error of the clients' mean."""
    errors, truth = [], x.double().mean(0)
    for seed in range(REPEATS):
        root = Draw.seeded(seed)
        strata = Strata(root, root.fold("ranks").permutation(N), N) if correlated else None
        heard = codec.quantise(x, layout, Draw(root.fold(torch.arange(N)).key, strata).fold("uplink"))
        errors.append(float((heard.double().mean(0) - truth).square().sum() / truth.square().sum()))
    return sum(errors) / REPEATS


def main() -> None:
    real_updates.CLIENTS = N
    xs, layout = real_updates.updates()
    print("| codec | round | independent | correlated | times |\n|---|--:|--:|--:|--:|")
    for codec in CODECS:
        setting = f"{codec.name}, {getattr(codec, 'bits', None) or codec.levels}"  # type: ignore[attr-defined]
        for i, number in enumerate(real_updates.ROUNDS):
            x = torch.stack(xs[i * N : (i + 1) * N])
            plain, spread = (error(codec, x, layout, correlated) for correlated in (False, True))
            print(f"| {setting} | {number} | {plain:.3g} | {spread:.3g} | {plain / spread:.2f} |", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
