"""Random kills of real processes on loopback for an hour, with an alarm for leaks: `make soak`.

    python -m tests.soak [MINUTES] [SEED]

Two things go on at once until time is up: a deployment over Flower, whose SuperNodes, apps and server are
killed, stopped and started again; and runs, in one process or on two ranks, that are killed and resumed. At
the end the deployment must have the model of the same clients in one process, and sums over clients that are
zero; every resumed run must have the bits of one that nobody killed. Memory and descriptors of the server
are looked at all the time, files at the end.
"""

import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from fedcom.deployment.flower.new import new
from fedcom.runs.files import CHECKPOINTS
from tests.deployment import federation, invariants
from tests.engines.ranks.test_faults import by_hand, finished, result

CLIENTS = 3
DEADLINE = 15.0  # seconds of a round
WARM = 5  # rounds after which a server has all the memory that it needs
SETTINGS = f"round.deadline={DEADLINE} round.least=0.6 round.rebind=true round.void=1000 round.pause=0 "
SETTINGS += "uplink.bits=4"
RUN = (
    *("model.hidden=16", "algorithm.tau=2", "algorithm.decay=1", "algorithm.name=fedcomgate-exact"),
    *("uplink.name=rotated", "uplink.bits=0.5", "run.participation=0.25", "run.checkpoint_rounds=2"),
)
MORE_MEMORY = 16 * 2**20  # bytes that a server may gain once it is warm
MORE_DESCRIPTORS = 8
MORE_FILES = 40  # in the folders of the deployment, beyond those of its first minute


@dataclass
class Life:
    """What was seen of one server since it was warm: bytes of memory, open descriptors.

    Args:
        out: the run's folder.
    """

    name: str
    out: Path
    start: float = field(default_factory=time.monotonic)
    samples: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._begun = self._rounds()

    def _rounds(self) -> int:
        path = self.out / "audit.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.start

    def look(self, pid: int) -> None:
        """Take a sample, unless the server is still cold."""
        if self._rounds() < self._begun + WARM:
            return
        with suppress(OSError, ValueError, IndexError):
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            self.samples.append((pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir(f"/proc/{pid}/fd"))))

    def growth(self) -> tuple[int, int] | None:
        """How much memory and how many descriptors it gained; None if it did not live long enough."""
        if len(self.samples) < 10:
            return None
        (memory, descriptors), (memory_then, descriptors_then) = (
            (max(s[0] for s in some), max(s[1] for s in some))
            for some in (self.samples[-3:], self.samples[:3])
        )
        return memory - memory_then, descriptors - descriptors_then


class Soak:
    """One soak; `wrong` has what should not have happened."""

    def __init__(self, folder: Path, minutes: float, seed: int) -> None:
        self.folder, self.seed = folder, seed
        self.end = time.monotonic() + 60 * minutes
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.lives: list[Life] = []

    @property
    def over(self) -> bool:
        return time.monotonic() >= self.end

    def play(self) -> None:
        """Everything until time is up."""
        parts = [self._deployment, self._runs] if federation.MISSING is None else [self._runs]
        if federation.MISSING:
            print(f"no deployment: {federation.MISSING}")
        threads = [threading.Thread(target=self._guarded, args=[part]) for part in parts]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            for thread in threads:
                thread.join(30)
            left = max(0.0, self.end - time.monotonic()) / 60
            print(f"{left:5.1f} minutes left  {dict(self.counts)}  {self._memory()}", flush=True)
        for life in self.lives:
            gained = life.growth()
            if gained and (gained[0] > MORE_MEMORY or gained[1] > MORE_DESCRIPTORS):
                self.wrong.append(f"{life.name} gained {gained[0]:,} bytes and {gained[1]} descriptors")

    def _guarded(self, part: object) -> None:
        try:
            part()  # type: ignore[operator]
        except BaseException:
            self.wrong.append(traceback.format_exc())
            print(self.wrong[-1], flush=True)
            self.end = 0

    def _memory(self) -> str:
        if not (self.lives and self.lives[-1].samples):
            return ""
        (memory, descriptors), life = self.lives[-1].samples[-1], self.lives[-1]
        return f"{life.name}: {memory / 2**20:.1f} MiB, {descriptors} descriptors after {life.seconds:.0f} s"

    # A deployment

    def _deployment(self) -> None:
        draw, app, out = random.Random(self.seed), self.folder / "digits", self.folder / "out"
        new(app, CLIENTS)
        with federation.federation(self.folder / "fed", CLIENTS) as fed:
            for client in range(CLIENTS):
                fed.node(client)
            self._serve(fed, app, out)
            fed.wait_for(out / "metrics.jsonl", '"round": 3')
            life, files, next_server = self._new_life(out), 0, 300.0
            while not self.over:
                if not (servers := fed.apps("flwr-serverapp")):
                    self.counts["server started again"] += 1
                    self._serve(fed, app, out)
                    life = self._new_life(out)
                    continue
                life.look(servers[0])
                if life.seconds > 60 and not files:
                    files = self._files(fed, out)
                if life.seconds > next_server:
                    next_server = draw.uniform(120, 600)
                    os.kill(servers[0], signal.SIGKILL)
                    self.counts["server killed"] += 1
                    _wait_until_gone(fed)
                else:
                    self._disturb(fed, draw)
                time.sleep(draw.uniform(1, 5))
            if files and self._files(fed, out) > files + MORE_FILES:
                self.wrong.append(f"{self._files(fed, out)} files, where there were {files}")
            rounds = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])["round"] + 5
            for server in fed.apps("flwr-serverapp"):
                os.kill(server, signal.SIGKILL)
            _wait_until_gone(fed)
            for client in range(CLIENTS):
                if fed.processes[f"node-{client}"].poll() is not None:
                    fed.node(client)
            settings = f"run.rounds={rounds} {SETTINGS}"
            assert fed.run(app, out, settings).returncode == 0
            fed.wait_for(out / "summary.json", '"status": "done"')
        self.counts["rounds over Flower"] = rounds
        self.counts["rounds with somebody missing"] = len(invariants.missing_in(out))
        self.counts["rounds void"] = sum(line["void"] for line in invariants.audit(out))
        faults = (out / "faults.jsonl").read_text()
        if "state lost" in faults:
            self.wrong.append("a client lost its state")
        invariants.check(app, out, self.folder / "fed" / "state", settings, self.folder / "here")

    def _new_life(self, out: Path) -> Life:
        self.lives.append(Life(f"server {len(self.lives)}", out))
        return self.lives[-1]

    @staticmethod
    def _serve(fed: federation.Federation, app: Path, out: Path) -> None:
        answer = fed.run(app, out, f"run.rounds=1000000 {SETTINGS}")
        assert answer.returncode == 0, answer.stdout + answer.stderr
        end = time.monotonic() + federation.PATIENCE
        while not fed.apps("flwr-serverapp"):
            assert time.monotonic() < end, fed.logs()
            time.sleep(0.05)

    def _disturb(self, fed: federation.Federation, draw: random.Random) -> None:
        client = draw.randrange(CLIENTS)
        node, choice = fed.processes[f"node-{client}"], draw.random()
        if node.poll() is not None:
            fed.node(client)
        elif choice < 0.05:
            fed.kill(f"node-{client}")
            self.counts["nodes killed"] += 1
        elif choice < 0.08:
            node.send_signal(signal.SIGSTOP)
            time.sleep(draw.uniform(0.5, 1.5) * DEADLINE)
            node.send_signal(signal.SIGCONT)
            self.counts["nodes stopped for a while"] += 1
        elif choice < 0.25 and (working := fed.apps("flwr-clientapp")):
            with suppress(ProcessLookupError):
                os.kill(draw.choice(working), signal.SIGKILL)
                self.counts["clients' apps killed"] += 1

    @staticmethod
    def _files(fed: federation.Federation, out: Path) -> int:
        return sum(path.is_file() for place in (out, fed.folder / "state") for path in place.rglob("*"))

    # Runs

    def _runs(self) -> None:
        draw = random.Random(self.seed + 1)
        while not self.over:
            with tempfile.TemporaryDirectory(dir=self.folder) as place:
                self._killed_and_resumed(Path(place), draw)

    def _killed_and_resumed(self, folder: Path, draw: random.Random) -> None:
        """A run that is killed some times, on one process or two, ends with the bits of one that is not."""
        out = folder / "a"
        rows = out / "metrics.jsonl"
        how = (*RUN, f"run.seed={draw.randrange(1000)}")
        for _ in range(draw.randrange(1, 6)):
            begun = (out / "config.toml").exists()
            go_on = ("--resume", "a") if begun else (*how, "--out", "a", "--force")
            before = rows.stat().st_size if rows.exists() else 0
            ranks = draw.choice([1, 1, 2])
            with by_hand(folder, ranks, "run", *go_on, "run.rounds=1000000", "-q", timeout=30) as commands:
                victim = draw.choice(commands)
                if draw.random() < 0.8:
                    victim.until(lambda: rows.exists() and rows.stat().st_size > before)  # noqa: B023
                time.sleep(draw.uniform(0, 1.5))
                victim.send(signal.SIGKILL)
                ends = [command.result().code for command in commands]
            self.counts["runs killed" if ranks == 1 else "ranks killed"] += 1
            if not set(ends) <= {137, 7, 1}:
                self.wrong.append(f"a killed run ended with {ends}")
        if not (out / "config.toml").exists():
            return
        reached = max([0, *(int(path.stem) for path in (out / CHECKPOINTS).glob("????????.json"))])
        rounds = f"run.rounds={reached + 3}"
        finished(folder, "run", "--resume", "a", rounds, "-q", ranks=draw.choice([1, 2]))
        finished(folder, "run", *how, rounds, "-q", "--out", "whole")
        self.counts["runs resumed to their end"] += 1
        if result(out) != result(folder / "whole"):
            self.wrong.append(f"a resumed run differs: {how}, {rounds}")
        names = [{path.name for path in place.iterdir()} for place in (out, folder / "whole")]
        if extra := names[0] - names[1] - {CHECKPOINTS}:
            self.wrong.append(f"a resumed run leaves {sorted(extra)}")


def _wait_until_gone(fed: federation.Federation) -> None:
    while fed.apps("flwr-serverapp"):
        time.sleep(0.05)


def main(minutes: float = 60, seed: int = 0) -> int:
    """Soak; the exit code is 1 if something was wrong."""
    shared = set(os.listdir("/dev/shm"))
    with tempfile.TemporaryDirectory(prefix="soak-") as place:
        soak = Soak(Path(place), minutes, seed)
        temporary = Path(place, "tmp")
        temporary.mkdir()
        os.environ["TMPDIR"] = str(temporary)  # of the processes that are started
        soak.play()
        left = [str(path.relative_to(temporary)) for path in temporary.rglob("*") if path.is_file()]
        left = [name for name in left if not name.startswith("pymp-")]  # of the process that forks
        for what, found in ("temporary files", left), ("shared memory", set(os.listdir("/dev/shm")) - shared):
            if found:
                soak.wrong.append(f"{what} left behind: {sorted(found)[:20]}")
    print(json.dumps(dict(soak.counts), indent=1))
    for life in soak.lives:
        print(life.name, "bytes and descriptors gained:", life.growth())
    print(*soak.wrong or ["nothing was wrong"], sep="\n")
    return int(bool(soak.wrong))


if __name__ == "__main__":
    sys.exit(main(*(kind(word) for kind, word in zip((float, int), sys.argv[1:], strict=False))))
