"""Give hostile replies to a coordinator and hostile calls to a participant: each is taken or refused.

    python -m fuzz.calls [messages] [--seed N]

Nothing but WireError may come out of a participant, and nothing at all out of a coordinator; none may take
long or make the process grow, and what a coordinator counts is finite.
"""

import argparse
import faulthandler
import logging
import random
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedcom.algorithms import ALGORITHMS
from fedcom.codecs import Int, Peaks, Rotated, TopK
from fedcom.engines.remote import messages
from fedcom.engines.remote.coordinator import Coordinator
from fedcom.engines.remote.participant import Participant
from fedcom.engines.simulation import Simulation
from fedcom.errors import WireError
from fedcom.tasks.task import Task
from fedcom.traffic.links import Links

from . import mutate
from .decode import GROWTH, LONG, Tally, peak

CASES: dict[str, tuple[str, Links]] = {
    "fedcomgate": ("fedcomgate", Links(Int(5))),
    "compressed downlink": ("fedcomgate", Links(Rotated(2.0), Rotated(3.0))),
    "compact": ("fedcomgate", Links(Peaks(4.0), Peaks(4.0), first="seed")),
    "scaffold": ("scaffold", Links(Int(8))),
    "top-k": ("fedpaq", Links(TopK(0.2), uplink_memory="error-feedback")),
}
CLIENTS = 3
CALLS = 0.1  # the share of messages that are calls, which take longer: some are answered
NUMBERS = (0, 1, 2, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1)
LENGTHS = (0, 1, 2**20, 10**9, 2**32, 2**63 - 1, 2**64 - 1)


class Job:
    """A coordinator in its second round, its clients, an honest call and the honest reply to it."""

    def __init__(self, name: str, folder: Path) -> None:
        method, links = CASES[name]
        torch.manual_seed(0)
        x, y = torch.randn(12, 4), torch.arange(12) % 3
        task = Task.from_arrays(nn.Linear(4, 3), x, y, clients=CLIENTS, model_seed=0)
        algorithm = ALGORITHMS[method](tau=1, batch=2)
        simulation = Simulation(task, algorithm, links, device="cpu")
        self.clients = [
            Participant(Simulation(task, algorithm, links, device="cpu").state, task, j, folder / str(j))
            for j in range(CLIENTS)
        ]
        self.coordinator = Coordinator(simulation.state, folder / "server")
        for client, call in self.coordinator.open():
            assert self.coordinator.hear(client, self.clients[client].answer(call)) is None
        self.coordinator.close()
        self.state = self.clients[0]._vault.path(self.coordinator.job)
        self.kept = self.state.read_bytes() if self.state.exists() else None
        self.call = dict(self.coordinator.open())[0]
        self.reply = self.clients[0].answer(self.call)
        self.reset()

    def reset(self) -> None:
        """Put coordinator and client 0 back to before the second round."""
        for _ in self.coordinator.open():
            break
        if self.kept is not None:
            self.state.write_bytes(self.kept)

    def hear(self, data: bytes) -> bool:
        """Whether the coordinator counts a reply of client 0."""
        refused = self.coordinator.hear(0, data)
        if refused is None:
            now = self.coordinator._open
            assert now is not None
            assert all(x.isfinite().all() for x in now.mean.vectors.values()), "the sum is not finite"
        if 0 not in self.coordinator.missing:
            self.reset()
        return refused is None

    def answer(self, data: bytes) -> bool:
        """Whether client 0 answers a call."""
        try:
            self.clients[0].answer(data)
        except WireError:
            return False
        self.reset()
        return True


def hostile(message: bytes, rng: random.Random) -> bytes:
    """A damaged message; most have an envelope that is whole, so that what is inside is looked at."""
    if rng.random() < 0.2:
        return rng.choice(mutate.ANYWHERE)(message, rng)
    envelope, view = messages.unseal(message)
    body = bytes(view)
    kind = rng.randrange(6)
    if kind == 0:
        field = rng.choice(["kind", "agreement", "session", "round", "generation", "client"])
        value = rng.randrange(8) if field == "kind" else rng.choice(NUMBERS)
        return envelope._replace(**{field: value}).seal(body)
    if kind == 1 and envelope.kind == messages.UPDATE:
        return envelope.seal(messages.joined(_reframed(messages.split(body), rng)))
    if kind == 2:  # a length that is not there
        start = rng.randrange(max(1, min(len(body) - 8, 60)))
        return envelope.seal(body[:start] + struct.pack("<Q", rng.choice(LENGTHS)) + body[start + 8 :])
    return envelope.seal(rng.choice(mutate.ANYWHERE)(body, rng) if body else rng.randbytes(20))


def _reframed(found: list[Any], rng: random.Random) -> list[bytes]:
    """Messages of a reply: damaged, in another order, repeated or left out."""
    parts = [bytes(part) for part in found]
    i = rng.randrange(len(parts))
    changes = [
        lambda: [rng.choice(mutate.ANYWHERE)(p, rng) if k == i else p for k, p in enumerate(parts)],
        lambda: rng.sample(parts, len(parts)),
        lambda: [*parts, *parts],
        lambda: parts[:i],
        lambda: [b"" if k == i else p for k, p in enumerate(parts)],
    ]
    return rng.choice([changes[0], changes[0], *changes])()


def run(name: str, count: int, seed: int = 0) -> Iterator[Tally]:
    """Try some messages; yields the tally from time to time and at the end."""
    tally, rng = Tally(), random.Random(f"{seed} {name}")
    room = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=room) as folder:
        job = Job(name, Path(folder))
        assert job.hear(job.reply), "the honest reply is refused"
        assert job.answer(job.call), "the honest call is refused"
        before = peak()
        for i in range(count):
            calls = rng.random() < CALLS
            data = hostile(job.call if calls else job.reply, rng)
            begun = time.process_time()
            try:
                taken = job.answer(data) if calls else job.hear(data)
            except Exception as error:
                tally.violations.append(f"{error!r} on {data.hex()}")
                job.reset()
                continue
            tally.decoded += taken
            tally.rejected += not taken
            seconds = time.process_time() - begun
            tally.slowest = max(tally.slowest, seconds)
            if seconds > LONG:
                tally.violations.append(f"{seconds:.1f} s on {data.hex()}")
            if i % 500 == 0:
                yield tally
        tally.grown = peak() - before
        assert job.hear(job.reply), "the honest reply is refused after all"
    if tally.grown > GROWTH:
        tally.violations.append(f"the process grew by {tally.grown} bytes")
    yield tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("messages", type=int, nargs="?", default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable()
    violations = done = 0
    for name in CASES:
        for tally in run(name, -(-options.messages // len(CASES)), options.seed):
            faulthandler.dump_traceback_later(60, exit=True)  # a hang ends the run, with a traceback
            now = done + tally.rejected + tally.decoded
        done = now
        print(f"{name:20} {tally}", flush=True)
        for violation in tally.violations[:5]:
            print(f"  {violation[:2000]}")
        violations += len(tally.violations)
    faulthandler.cancel_dump_traceback_later()
    print(f"{done:,} calls and replies, {violations} violations, seed {options.seed}")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
