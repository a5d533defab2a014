"""Gradients of every step through a codec, as a DDP communication hook would send them: loss, bytes, time.

    python -m benchmarks.outer_hook

Workers of one process: each has its own batch, its gradient is coded and read, all step along the mean. This
is what a hook computes, whatever carries the messages. A character transformer on synthetic text of a hidden
Markov chain; the loss is that of unseen text, and the best of some rates for each codec.
"""

import argparse
import time

import torch
from torch import Tensor, nn

from fedcom.draws import Draw
from fedcom.outer.outer import codec_of
from fedcom.outer.shards import divided, trainable
from fedcom.tasks.models import Transformer

CODECS = [("float32", "identity", None), *((f"int {n}", "int", n) for n in (8, 4))]
CODECS += [(f"rotated {bits:g}", "rotated", bits) for bits in (2.0, 1.0)]
WORDS, LENGTH, BATCH = 24, 32, 4


def text(seed: int, count: int) -> Tensor:
    """Sequences of a chain whose next symbol depends on the last two."""
    table = torch.softmax(3 * torch.randn(WORDS, WORDS, WORDS, generator=torch.manual_seed(0)), -1)
    draw, x = torch.Generator().manual_seed(seed), torch.zeros(count, LENGTH + 1, dtype=torch.int64)
    for t in range(2, LENGTH + 1):
        x[:, t] = torch.multinomial(table[x[:, t - 2], x[:, t - 1]], 1, generator=draw)[:, 0]
    return x


def trained(
    name: str, bits: float | None, rate: float, given: argparse.Namespace
) -> tuple[float, int, float]:
    """The loss on unseen text, bytes of a worker's message per step, and seconds of coding per step."""
    torch.manual_seed(1)
    model, codec = Transformer(width=64, heads=4, layers=2).module((LENGTH,), WORDS), codec_of(name, bits)
    (piece,) = divided(trainable(model), 1)[0]
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, given.steps)
    data, unseen, size, spent = text(1, 20_000), text(2, 1000), 0, 0.0

    def loss(x: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())

    for step in range(given.steps):
        mean = torch.zeros(piece.layout.size)
        for worker in range(given.workers):
            model.zero_grad()
            rows = torch.randint(len(data), (BATCH,))
            loss(data[rows]).backward()
            g = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
            begun = time.perf_counter()
            draw = Draw.seeded(0).fold(step).fold(torch.tensor([worker])).fold("hook")
            draw = Draw(draw.key[0])
            message = codec.encode(g, piece.layout, draw)
            mean += codec.decode(message, piece.layout, draw) / given.workers
            spent, size = spent + time.perf_counter() - begun, len(message)
        for p, own in zip(model.parameters(), piece.layout.split(mean), strict=True):
            p.grad = own.reshape(p.shape).clone()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        return float(loss(unseen)), size, spent / given.steps / given.workers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--workers", type=int, default=4)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'codec':>14} {'loss':>8} {'rate':>7} {'bytes':>9} {'coding ms':>10}")
    for label, name, bits in CODECS:
        found = [(*trained(name, bits, rate, given), rate) for rate in (3e-3, 1e-2, 3e-2)]
        loss, size, spent, rate = min(found)
        print(f"{label:>14} {loss:>8.4f} {rate:>7g} {size:>9,} {1000 * spent:>10.2f}", flush=True)


if __name__ == "__main__":
    main()
