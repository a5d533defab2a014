"""A job of several ranks for the tests: plays the runs in a JSON file, one after the other, and saves them.

Started by torchrun or mpirun as: python job.py CASES.json OUT cpu | cuda | tape; with "tape", rounds are
recorded and replayed on a CPU as a GPU would.
"""

import json
import sys
from pathlib import Path

import torch

from fedcom.config import Config, read
from fedcom.engines import choice
from fedcom.engines.ranks.engine import RankedEngine
from fedcom.engines.ranks.ranks import join, leave
from fedcom.runs.follow import follow
from fedcom.runs.prepare import prepare
from fedcom.tasks import scores
from tests.engines.ranks.tape import TapedEngine


def main(cases: Path, out: Path, device: str) -> None:
    scores.EVAL_BLOCK = 64  # so that ranks share out the samples of these small runs
    if device == "tape":
        choice.RANKED["eager"], device = TapedEngine, "cpu"
    ranks = join()
    if ranks.rank:
        follow(ranks)
        return
    for name, overrides in json.loads(cases.read_text()).items():
        simulation, _ = prepare(Config.of(read(None, overrides)), device)
        rows = [{k: v for k, v in row.items() if k != "seconds"} for row in simulation.run()]
        engine = simulation.engine
        found = {
            "rows": rows,
            "ledger": simulation.ledger.as_dict(),
            "ranks": ranks.size,
            "received": engine.received if isinstance(engine, RankedEngine) else None,
            "replayed": getattr(engine, "replayed", None),
            "states": [x.tolist() for x in simulation.client_states()],
            "memory": {name: x.tolist() for name, x in simulation.client_memory().items()},
            "server": {name: x.tolist() for name, x in simulation.state.server_side.tensors().items()},
        }
        (out / f"{name}.json").write_text(json.dumps(found))
        torch.save(simulation.server.w.cpu(), out / f"{name}.pt")


def whole(cases: str, out: str, device: str) -> None:
    """The job from its start to its end, as a process plays it."""
    main(Path(cases), Path(out), device)
    leave()


if __name__ == "__main__":
    whole(*sys.argv[1:])
