"""Adapters of a language model, many clients at once: memory, and tokens per second beside a loop.

    python benchmarks/adapters.py --device cuda --path FOLDER        lines of docs/benchmarks.md

Without a path the model has the shape of SmolLM2-135M and random weights. Memory is told against what it must
be at least: the base once, and for each client its adapters and the activations of one client alone.
"""

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedcom import FedAvg, Simulation, Task, llama, lora, token_cross_entropy
from fedcom.tasks import scores
from fedcom.tasks.llama import LlamaModule, Shape

SMOLLM2 = Shape(49152, 576, 1536, 30, 9, 3, 64, 1e-5, 1e5, tie_word_embeddings=True)
ETA = 1e-3


def by_token(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean cross-entropy of all tokens."""
    return cross_entropy(outputs.flatten(0, 1), targets.flatten())


def base_of(path: str | None, dtype: torch.dtype) -> nn.Module:
    """The model of a folder, or one of random weights."""
    if path is not None:
        return llama(path, dtype)
    torch.manual_seed(0)
    return LlamaModule(SMOLLM2).to(dtype)


def looped(module: nn.Module, x: Tensor, steps: int) -> None:
    """One round, one client after the other: local SGD on the adapters of one module, and their mean."""
    trained = [p for p in module.parameters() if p.requires_grad]
    start, total = [p.detach().clone() for p in trained], [torch.zeros_like(p) for p in trained]
    for own in x:
        for _ in range(steps):
            loss = by_token(module(own[:, :-1]).float(), own[:, 1:])
            for p, g in zip(trained, torch.autograd.grad(loss, trained), strict=True):
                p.data.sub_(ETA * g)
        for p, first, sum_ in zip(trained, start, total, strict=True):
            sum_ += p.detach() / len(x)
            p.data.copy_(first)


class Meter:
    """Seconds and bytes on a device."""

    def __init__(self, device: str) -> None:
        self.cuda = device.startswith("cuda")

    def wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def seconds(self, work: Callable[[], object], times: int) -> float:
        """How long a piece of work takes, the first time not counted."""
        work()
        self.wait()
        started = time.perf_counter()
        for _ in range(times):
            work()
        self.wait()
        return (time.perf_counter() - started) / times

    def held(self) -> int:
        return torch.cuda.memory_allocated() if self.cuda else 0

    def peak(self, work: Callable[[], object]) -> int:
        """The most bytes that were held while a piece of work was done."""
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()
        work()
        self.wait()
        return torch.cuda.max_memory_allocated() if self.cuda else 0


def evaluate(module: nn.Module, samples: Tensor, meter: Meter) -> None:
    """Print how many tokens per second are evaluated, in blocks that suit the device and in small ones."""
    task = Task.from_arrays(module, samples[:, :-1], samples[:, 1:], clients=1, loss=token_cross_entropy)
    task, usual = task.to(samples.device), scores.BYTES_PER_OUTPUT
    for name, share in (("suit the device", usual), ("have 67 million outputs", 1 << 62)):
        scores.BYTES_PER_OUTPUT = share
        seconds = meter.seconds(lambda: task.evaluate_clients(task.objective.start), 2)
        rate = samples[:, 1:].numel() / seconds
        print(f"evaluated: {rate:,.0f} tokens per second in blocks that {name}: {task.block_size} samples")
    scores.BYTES_PER_OUTPUT = usual


def main() -> None:
    """Measure, and print one line per figure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--path", help="folder of a Llama-shaped model")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--chunk", type=int, help="clients computed at once; all of them unless told")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=256, help="tokens of a sample")
    parser.add_argument("--steps", type=int, default=4, help="local steps of a round")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--evaluate", type=int, default=0, help="only evaluate, on so many samples")
    given = parser.parse_args()
    meter, device = Meter(given.device), torch.device(given.device)
    module = lora(base_of(given.path, getattr(torch, given.dtype)).to(device), given.rank)
    base = sum(p.nbytes for p in module.parameters() if not p.requires_grad)
    words = next(p for p in module.parameters() if p.dim() == 2).shape[0]
    draw = torch.Generator().manual_seed(0)
    if given.evaluate:
        samples = torch.randint(0, words, (given.evaluate, given.length + 1), generator=draw)
        evaluate(module, samples.to(device), meter)
        return
    x = torch.randint(0, words, (given.clients, given.batch, given.length + 1), generator=draw)
    flat = x.flatten(0, 1)
    task = Task.from_arrays(
        module, flat[:, :-1], flat[:, 1:], clients=given.clients, loss=by_token, partition="iid"
    ).to(device)
    objective, tokens = task.objective, given.clients * given.steps * given.batch * given.length
    here, weight = x.to(device), torch.full((1, given.batch), 1 / given.batch, device=device)
    one = objective.start.unsqueeze(0)

    def alone() -> Tensor:
        return objective.gradients(one, here[:1, :, :-1], here[:1, :, 1:], weight)

    alone()
    before = meter.held()
    activations = meter.peak(alone) - before
    adapters = one.nbytes
    least = base + given.clients * (adapters + activations)
    print(
        f"base {base / 1e6:.0f} MB, adapters {adapters / 1e6:.2f} MB, "
        f"activations of one client {activations / 1e9:.3f} GB"
    )
    method = FedAvg(eta=ETA, tau=given.steps, batch=given.batch, decay=1)
    chunk = given.chunk or given.clients
    while True:
        run = Simulation(task, method, rounds=10**6, device=given.device, chunk=chunk, engine=given.engine)
        try:
            most = meter.peak(run.step)
            break
        except torch.OutOfMemoryError:
            del run
            torch.cuda.empty_cache()
            chunk //= 2
            print(f"not enough memory for {2 * chunk} clients at once; trying {chunk}")
    bound = base + given.clients * adapters + chunk * activations
    if meter.cuda:
        print(
            f"peak {most / 1e9:.2f} GB with {chunk} of {given.clients} clients at once: "
            f"{most / bound:.2f} times base + adapters + {chunk} activations ({bound / 1e9:.2f} GB), "
            f"{most / least:.2f} times those of all clients at once ({least / 1e9:.2f} GB)"
        )
    stacked = tokens / meter.seconds(run.step, given.rounds)
    alone_rate = tokens / meter.seconds(lambda: looped(module, here, given.steps), max(1, given.rounds // 2))
    print(
        f"tokens per second: {stacked:,.0f} stacked, {alone_rate:,.0f} in a loop: "
        f"{stacked / alone_rate:.2f} times"
    )


if __name__ == "__main__":
    main()
