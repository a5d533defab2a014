"""Text of a user's own on the command line: runs, scores, tables, and errors that name the remedy."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedcom.cli import app

runner = CliRunner()


def test_text_of_ones_own_is_learnt_scored_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for writer in ("anna", "bert", "carl"):
        (tmp_path / "letters" / writer).mkdir(parents=True)
        (tmp_path / "letters" / writer / "1.txt").write_text(f"dear friend,\nthis is {writer}\n" * 12)
    task = ["data.name=text", "data.path=letters", "data.length=16", "model.name=gru", "model.hidden=8"]
    quick = [
        "algorithm.tau=2",
        "algorithm.batch=4",
        "algorithm.eta=1.0",
        "run.rounds=2",
        "--device",
        "cpu",
        "-q",
    ]
    done = runner.invoke(app, ["run", *task, *quick, "algorithm.name=fedcomgate-exact", "--out", "one"])
    assert done.exit_code == 0, done.output
    row = json.loads(Path("one/metrics.jsonl").read_text().splitlines()[-1])
    assert row["test_perplexity"] == pytest.approx(2 ** row["test_bits_per_character"])
    told = json.loads(Path("one/samples.json").read_text())
    assert len(told["prompt"]) > 10
    assert all(told[key].startswith(told["prompt"]) for key in ("before", "after"))
    assert told["before"] != told["after"]
    runner.invoke(app, ["report", "one"])
    assert "<dt>before</dt>" in Path("one/report.html").read_text(encoding="utf-8")
    scored = json.loads(runner.invoke(app, ["evaluate", "one", "--by-client"]).stdout)
    assert scored["test_perplexity"] == pytest.approx(row["test_perplexity"])
    own = [client["test_perplexity"] for client in scored["clients"]]
    assert max(own) == pytest.approx(row["worst_client_perplexity"])
    cut = ["cut", "data.name=text", "data.path=letters", "--out", "all.npz"]
    told = runner.invoke(app, cut)
    assert "tokens of 3 clients to train on" in told.stdout
    assert "is there already" in str(runner.invoke(app, cut).exception)
    Path("letters").rename("elsewhere")  # text that is cut needs no text
    tokens = ["data.tokens=all.npz", *task[2:], *quick, "algorithm.name=fedcomgate-exact"]
    done = runner.invoke(app, ["run", *tokens, "--out", "cut"])
    assert done.exit_code == 0, done.output
    assert {**json.loads(Path("cut/metrics.jsonl").read_text().splitlines()[-1]), "seconds": 0} == {
        **row,
        "seconds": 0,
    }
    for wrong, said in (
        ("data.tokenizer=t.json", "leave data.tokenizer out"),
        ("data.name=shakespeare", "was cut from letters, not from shakespeare"),
        ("data.tokens=letters.npz", "no file of tokens"),
    ):
        assert said in str(runner.invoke(app, ["run", *tokens, wrong]).exception), wrong
    Path("elsewhere").rename("letters")
    both = runner.invoke(app, ["compare", *task, *quick, "--methods", "fedavg,fedpaq", "--out", "two"])
    assert both.exit_code == 0, both.output
    (header, *_) = Path("two/table.md").read_text().splitlines()
    assert "| perplexity | bits per character |" in header
    assert Path("two/perplexity_bytes.png").is_file()
    assert '"test_perplexity"' in Path("two/report.html").read_text()
    for wrong, said in (
        ("data.tokenizer=t.json", "no tokenizer t.json, here or under FEDCOM_DATA"),
        ("data.tokenizer=t.bin", "no tokenizer t.bin, here or under FEDCOM_DATA"),
        ("data.partition=dirichlet", "text has one per token"),
        ("data.label_column=a", "data.label_column is for tables"),
        ("data.path=nowhere", "neither a folder"),
        ("model.name=mlp", "as model.name=gru does"),
        ("data.augment=true", "images"),
        ("data.pixels=unit", "images"),
    ):
        refused = runner.invoke(app, ["run", *task, *quick, wrong, "--out", "three"])
        assert said in str(refused.exception), wrong
    for wrong, said in ((["data.name=text"], "set data.path"), (["data.length=5"], "digits is none")):
        assert said in str(runner.invoke(app, ["run", *wrong, *quick]).exception)
