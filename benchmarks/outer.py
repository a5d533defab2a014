"""What an outer step costs: coding one worker's message, reading it, and memory, beside the model.

    python -m benchmarks.outer --device cuda --millions 100 --bits 0.25
    python -m benchmarks.outer --device cuda --millions 100 --bits 0.25 --megabits 100

Each figure is the median of some outer steps of one process, after one to warm up. A worker reads as many
messages as there are workers; the time is that of one. Messages are coded and read as an Outer does it, on a
GPU with the host's work on threads.

With --megabits it also measures the worker's own steps, of a transformer of that size with AdamW (in bfloat16
on a GPU), alone and while another thread codes one message and reads those of all workers. Then it prints how
much of the time is lost with links of that speed: without a delay, to coding and the wire; with one, to what
coding takes from the steps beside it (beside s), and to the wire if it takes longer than they do. Messages of
float32 are added on their way, in a ring, and need no coding. There is a table for each --batch.
"""

import argparse
import statistics
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from fedcom.codecs import Codec
from fedcom.draws import Draw
from fedcom.outer import Outer
from fedcom.outer.coders import Coders, threads
from fedcom.outer.outer import codec_of
from fedcom.outer.shards import Piece, divided, trainable


def synchronised(device: torch.device) -> float:
    """The time, once the device has done its work."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


class Transformer(nn.Module):
    """A causal language model of about so many million parameters."""

    def __init__(self, millions: float) -> None:
        super().__init__()
        width, words = (768, 16384) if millions >= 50 else (256, 1024)
        layers = max(1, round((millions * 1e6 - 2 * width * words) / (12 * width**2)))
        self.tokens, self.head = nn.Embedding(words, width), nn.Linear(width, words)
        layer = partial(nn.TransformerEncoderLayer, width, width // 64, 4 * width, 0.0, "gelu")
        self.layers = nn.ModuleList(layer(batch_first=True, norm_first=True) for _ in range(layers))
        self.words = words

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        h = self.tokens(x)
        for layer in self.layers:
            h = layer(h, mask, is_causal=True)
        return nn.functional.cross_entropy(self.head(h[:, :-1]).flatten(0, 1), x[:, 1:].flatten())


@dataclass(frozen=True)
class Messages:
    """Codes and reads messages as an Outer does it."""

    coders: Coders
    codec: Codec
    pieces: list[Piece]
    draw: Draw

    def coded(self) -> list[bytes]:
        """The message of one worker, by piece."""
        given = ((piece.read(), piece.layout, self.draw) for piece in self.pieces)
        return list(self.coders.encoded(self.codec, given))

    def read(self, sent: list[bytes], workers: int = 1) -> None:
        """Read a message as often as there are workers."""
        given = (
            (message, piece.layout, self.draw)
            for piece, message in zip(self.pieces, sent, strict=True)
            for _ in range(workers)
        )
        for _ in self.coders.decoded(self.codec, given):
            pass


def coding(messages: Messages, workers: int) -> int:
    """Code a worker's message, and read those of all; the bytes of one."""
    sent = messages.coded()
    messages.read(sent, workers)
    return sum(map(len, sent))


def intervals(given: argparse.Namespace) -> None:
    """Print how much of an interval is lost, by batch, codec and delay."""
    device = torch.device(given.device)
    torch.manual_seed(0)
    model = Transformer(given.millions).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for batch in given.batch:
        table(given, model, optimizer, batch)


def table(
    given: argparse.Namespace, model: Transformer, optimizer: torch.optim.Optimizer, batch: int
) -> None:
    """Print how much of an interval is lost, by codec and delay."""
    device = torch.device(given.device)
    pieces, numbers = divided(trainable(model), 1)[0], sum(p.numel() for p in model.parameters())
    coders, draw = Coders(threads(pieces)), Draw.seeded(0, device)
    x = torch.randint(model.words, (batch, given.length), device=device)

    def steps() -> float:
        started = synchronised(device)
        for _ in range(given.every):
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                loss = model(x)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return synchronised(device) - started

    def aside(messages: Messages) -> None:
        stream = torch.cuda.Stream() if device.type == "cuda" else None
        with torch.no_grad(), nullcontext() if stream is None else torch.cuda.stream(stream):
            coding(messages, given.workers)
            if stream is not None:
                stream.synchronize()

    steps()
    alone = statistics.median(steps() for _ in range(given.repeats))
    tokens = batch * given.length
    print(f"\n{numbers / 1e6:.1f} million parameters, {given.workers} workers at {given.megabits:g} Mbit/s")
    print(f"{given.every} steps of {tokens:,} tokens take {alone:.2f} s, {alone / given.every:.4f} s each")
    print(f"{'codec':>14} {'delay':>5} {'MB':>8} {'coding s':>9} {'beside s':>9} {'wire s':>8} {'lost':>7}")
    for codec, name in ((codec_of("identity", None), "float32"), (codec_of(given.codec, given.bits), "")):
        name, messages = name or f"{given.codec} {given.bits:g}", Messages(coders, codec, pieces, draw)
        with torch.no_grad():
            size, times = coding(messages, given.workers), []
            for _ in range(given.repeats):
                started = synchronised(device)
                coding(messages, given.workers)
                times.append(synchronised(device) - started)
        code = statistics.median(times)
        code, ring = (
            (0.0, 2 / given.workers) if name == "float32" else (code, 1.0)
        )  # floats are added on the way
        wire = 8e-6 * size * ring * (given.workers - 1) / given.megabits
        beside = 0.0
        if code:
            both = []
            for _ in range(given.repeats):
                thread = threading.Thread(target=aside, args=(messages,))
                thread.start()
                both.append(steps())
                thread.join()
            beside = max(0.0, statistics.median(both) - alone)
        whole = {0: alone + code + wire, 1: max(alone + beside, code + wire)}
        for delay, seconds in whole.items():
            lost, row = 1 - alone / seconds, f"{name:>14} {delay:>5} {size / 1e6:>8.2f} {code:>9.2f}"
            print(f"{row} {beside:>9.2f} {wire:>8.2f} {100 * lost:>6.1f}%")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--millions", type=float, default=10.0, help="of parameters")
    parser.add_argument("--codec", default="rotated")
    parser.add_argument("--bits", type=float, default=0.25)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--megabits", type=float, help="of the links; print what is lost of an interval")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--every", type=int, default=50, help="steps between outer steps")
    parser.add_argument("--batch", type=int, nargs="+", default=[16], help="one table for each")
    parser.add_argument("--length", type=int, default=1024)
    given = parser.parse_args()
    device, width = torch.device(given.device), 1024
    layers = max(1, round(given.millions * 1e6 / width**2))
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers))).to(device)
    numbers = sum(p.numel() for p in model.parameters())
    held = torch.cuda.memory_allocated() if device.type == "cuda" else 0
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    outer = Outer(model, given.codec, given.bits, every=1)
    pieces = divided(trainable(model), 1)[0]
    messages = Messages(Coders(threads(pieces)), outer.codec, pieces, Draw.seeded(0, device))
    times: dict[str, list[float]] = {"code": [], "read": [], "whole": []}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        started = synchronised(device)
        found = work()
        times[name].append(synchronised(device) - started)
        return found

    for _ in range(given.repeats + 1):
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p), alpha=1e-3)
        timed("whole", outer.step)
        sent = timed("code", messages.coded)
        timed("read", partial(messages.read, sent))
    code, heard, whole = (statistics.median(times[name][1:]) for name in ("code", "read", "whole"))
    print(f"{numbers / 1e6:.1f} million parameters, {given.codec} at {given.bits:g} bits, {device.type}")
    print(f"coding {code:.3f} s, reading {heard:.3f} s, an outer step of one worker {whole:.3f} s")
    if device.type == "cuda":
        extra = (torch.cuda.max_memory_allocated() - held) / (4 * numbers)
        print(f"memory: {extra:.2f} times the model's float32 beside it at most")
    if given.megabits:
        del model, outer, pieces, messages
        intervals(given)


if __name__ == "__main__":
    main()
