"""How much the memory of a coordinator grows while it hears replies of a million numbers each.

python -m tests.engines.remote.weigh make CODEC REPLIES FOLDER
python -m tests.engines.remote.weigh hear CODEC REPLIES FOLDER

The second prints the growth in models, of a million float32 numbers each.
"""

import json
import sys
from pathlib import Path

import torch

from fedcom import FedCOM, FedCOMGATE, Links
from fedcom.codecs import Codec, Identity, Int, Rotated, TopK
from fedcom.draws import Draw
from fedcom.engines.remote import messages, shared
from fedcom.engines.remote.coordinator import Coordinator
from fedcom.engines.remote.memory import return_large_blocks
from fedcom.engines.remote.messages import Envelope
from fedcom.rounds.cohort import Cohort
from fedcom.rounds.rules import Rules
from fedcom.rounds.state import RunState
from fedcom.traffic.ledger import Ledger
from fedcom.vectors import Layout

CODECS: dict[str, Codec] = {
    "int 8": Int(8),
    "int 4": Int(4),
    "top-k 1%": TopK(0.01),
    "top-k 10%": TopK(0.1),
    "rotated 0.25": Rotated(0.25),
}
D = 10**6
JOB = bytes(7) + b"1"


def run_of(codec: Codec, d: int, replies: int) -> RunState:
    layout = Layout(("a", "b", "c"), ((d // 2,), (d // 4,), (d - d // 2 - d // 4,)))
    algorithm = FedCOMGATE() if codec.unbiased else FedCOM()
    cohort = Cohort.of(algorithm, torch.ones(replies, dtype=torch.int64), 1.0)
    rules = Rules(algorithm, Links(codec, encode=True), layout, replies, replies)
    return RunState(rules, cohort, rules.init_server(torch.zeros(d)), Draw.seeded(0), Ledger(replies))


def make(codec: Codec, d: int, replies: int, folder: Path) -> None:
    """Write replies of clients into a folder."""
    run, x = run_of(codec, d, replies), Draw.seeded(1).normal(d)
    q = [Identity().encode(torch.zeros(1), Layout.vector(1), Draw.seeded(0))] * run.rules.sends_q
    for client in range(replies):
        draw = shared.sender(run, 0, client, 1.0).draw.fold("uplink", "D")[0]
        body = messages.joined([codec.encode(x, run.rules.layout, draw), *q])
        envelope = Envelope(messages.UPDATE, shared.agreement(run, {}), JOB, 1, 0, 0, client)
        (folder / f"{d}-{client}").write_bytes(envelope.seal(body))


def hear(codec: Codec, d: int, replies: int, folder: Path) -> float:
    """The peak of memory while a coordinator hears the replies, beyond what it had before, in bytes."""
    folder = folder / f"server-{d}"
    folder.mkdir()
    (folder / "session.json").write_text(json.dumps({"job": JOB.hex(), "session": 0}))
    coordinator = Coordinator(run_of(codec, d, replies), folder)
    coordinator.open()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _status("VmRSS")
    for client in range(replies):
        assert coordinator.hear(client, (folder.parent / f"{d}-{client}").read_bytes()) is None
    return _status("VmHWM") - before


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(f"{key}:"))) * 1024


def main(what: str, name: str, count: int, place: str) -> None:
    torch.set_num_threads(1)
    return_large_blocks()
    if what == "make":
        make(CODECS[name], 5000, 3, Path(place))
        make(CODECS[name], D, count, Path(place))
    else:
        hear(CODECS[name], 5000, 3, Path(place))  # compiles what is compiled
        print(hear(CODECS[name], D, count, Path(place)) / (4 * D))


if __name__ == "__main__":
    what, name, count, place = sys.argv[1:]
    main(what, name, int(count), place)
