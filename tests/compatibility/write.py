"""Write what later versions must read, into a folder named after this version's series (0.2).

    python -m tests.compatibility.write

Messages of every codec with what is heard, the envelope of calls and replies, a run's folder that stopped at
its third round with a checkpoint, and the rows of the same run to its end. Run it once per series, when its
first version is released, and never change what it wrote.
"""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from fedcom.cli import app
from fedcom.codecs import Auto, Codec, LowRank, Peaks, Rotated
from fedcom.engines.remote.messages import UPDATE, Envelope
from fedcom.version import SERIES
from tests.codecs.cases import CODECS_TESTED, gaussian, keys, label
from tests.codecs.cases import layout as layout_of

HERE = Path(__file__).parent
FOLDER = HERE / ".".join(map(str, SERIES))
CODECS: list[Codec] = [*CODECS_TESTED, Rotated(1.0, "trellis"), LowRank(1, q=0.1), Auto(q=0.1), Peaks(20.0)]
ENVELOPE = Envelope(UPDATE, 123456789, b"one job!", 2, 7, 1, 3)
BODY = b"what a client says"
RUN = (
    *("run", "paper", "model.hidden=2", "data.clients=4", "algorithm.tau=2", "uplink.bits=4"),
    *("run.checkpoint_rounds=2", "--device", "cpu", "--quiet"),
)
ROUNDS, MORE = 3, 6


def messages() -> dict[str, Tensor]:
    """For each codec the bytes of a message and the numbers that its receiver hears, in both precisions."""
    found = dict[str, Tensor]()
    for dtype in (torch.float32, torch.float64):
        where = layout_of("several", dtype)
        x = gaussian(where)
        for codec in CODECS:
            name = f"{label(codec)} {str(dtype).removeprefix('torch.')}"
            data = codec.encode(x, where, keys(1)[0])
            found[f"{name} message"] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
            found[f"{name} heard"] = codec.decode(data, where, keys(1)[0])
    return found


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    save_file(messages(), FOLDER / "messages.safetensors")
    (FOLDER / "envelope.bin").write_bytes(ENVELOPE.seal(BODY))
    for rounds, name in ((MORE, "whole"), (ROUNDS, "run")):
        app([*RUN, f"run.rounds={rounds}", "--out", str(FOLDER / name)], standalone_mode=False)
    (FOLDER / "whole" / "metrics.jsonl").rename(FOLDER / "rows.jsonl")
    shutil.rmtree(FOLDER / "whole")
    about = FOLDER / "run" / "environment.json"
    kept = {key: value for key, value in json.loads(about.read_text()).items() if key in ("fedcom", "torch")}
    about.write_text(json.dumps(kept))
    (FOLDER / "run" / ".lock").unlink(missing_ok=True)


if __name__ == "__main__":
    main()
