"""What earlier versions wrote is read to the same numbers: the promise of docs/versioning.md."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import fedcom
from fedcom.engines.remote import messages
from fedcom.runs.files import json_lines, read_rows
from fedcom.version import SERIES
from tests.cli.test_cli import Command, command
from tests.codecs.cases import keys, label
from tests.codecs.cases import layout as layout_of
from tests.compatibility import write
from tests.conftest import close

__all__ = ["command"]  # a fixture
SERIES_KEPT = sorted(path for path in write.HERE.iterdir() if path.name[0].isdigit())
each_series = pytest.mark.parametrize("kept", SERIES_KEPT, ids=lambda path: path.name)


def test_this_series_has_left_its_files() -> None:
    assert write.FOLDER in SERIES_KEPT
    assert {codec.name for codec in write.CODECS} == set(fedcom.CODECS)


@each_series
def test_messages_of_every_codec_are_heard_as_then(kept: Path) -> None:
    stored = load_file(kept / "messages.safetensors")
    assert len(stored) == 4 * len(write.CODECS)
    for dtype, word in ((torch.float32, "float32"), (torch.float64, "float64")):
        where = layout_of("several", dtype)
        for codec in write.CODECS:
            name = f"{label(codec)} {word}"
            data = stored[f"{name} message"].numpy().tobytes()
            heard = codec.decode(data, where, keys(1)[0])
            assert close(heard, stored[f"{name} heard"], 1e-6 if dtype == torch.float32 else 1e-14), name


@each_series
def test_calls_and_replies_are_read_or_name_the_other_version(kept: Path) -> None:
    data = (kept / "envelope.bin").read_bytes()
    if kept == write.FOLDER:
        envelope, body = messages.unseal(data)
        assert (envelope, bytes(body)) == (write.ENVELOPE, write.BODY)
    else:
        with pytest.raises(messages.OtherVersion, match=f"made by fedcom {kept.name}"):
            messages.unseal(data)
    later = bytes((messages.VERSION + 1,))
    with pytest.raises(messages.OtherVersion, match=f"made by fedcom {kept.name} in another format"):
        messages.unseal(data[:2] + later + data[3:])


@each_series
def test_a_run_goes_on_from_its_checkpoint_to_the_same_rows(
    kept: Path, tmp_path: Path, command: Command
) -> None:
    shutil.copytree(kept / "run", tmp_path / "run")
    scores = command("evaluate", "run", "--device", "cpu")
    assert scores.code == 0, scores.err
    summary = json.loads((kept / "run" / "summary.json").read_text())
    assert json.loads(scores.out)["test_accuracy"] == pytest.approx(summary["test_accuracy"])
    gone_on = command("run", "--resume", "run", f"run.rounds={write.MORE}", "-q", "--device", "cpu")
    assert gone_on.code == 0, gone_on.err
    rows, then = read_rows(tmp_path / "run"), list(json_lines(kept / "rows.jsonl"))
    assert [row["round"] for row in rows] == list(range(write.MORE + 1))
    for row, old in zip(rows, then, strict=True):
        for key in old.keys() - {"seconds"}:
            same = row[key] == old[key] if old[key] is None else row[key] == pytest.approx(old[key], rel=1e-4)
            assert same, key
    assert command("report", "run").code == 0
    assert "fedcomgate" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


def test_the_series_is_that_of_the_version() -> None:
    assert fedcom.__version__.startswith(".".join(map(str, SERIES)) + ".")
