"""Compile the loops that tests call, each once; else each worker of pytest would wait for its own.

Run by `make loops`: python -m tests.loops
"""

import torch

from fedcom.codecs import Auto, Codec, Dithered, LowRank, Peaks, Rotated
from fedcom.config import Config, read
from fedcom.runs.prepare import prepare
from fedcom.vectors import Layout
from tests.codecs.cases import CODECS_TESTED, LONG, gaussian, keys

CODECS: list[Codec] = [
    *CODECS_TESTED,
    Rotated(1.0, "trellis"),
    Dithered(bits=2.0),
    LowRank(1),
    Auto(1.0),
    Peaks(0.5),
]
RUNS = ("algorithm.name=fedcom local.name=adamw", "local.name=momentum", "uplink.name=rotated")


def main() -> None:
    torch.set_num_threads(1)
    for dtype in (torch.float32, torch.float64):
        layout = Layout(LONG.names, LONG.shapes, dtype)
        x = gaussian(layout, n=2)
        apart = torch.cat([x, x], dim=1)[:, : layout.size]  # rows that do not follow one another in memory
        for codec in CODECS:
            codec.transmit(x, layout, keys(2))
            codec.transmit(apart, layout, keys(2))
            codec.decode(codec.encode(x[0], layout, keys(2)[0]), layout, keys(2)[0])
    for run in RUNS:
        prepare(Config.of(read(None, ["model.hidden=8", "run.rounds=1", *run.split()])), "cpu")[0].run()


if __name__ == "__main__":
    main()
