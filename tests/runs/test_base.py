"""A run whose model has something frozen is used with the base it was made with, and with no other."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedcom import ConfigError, FedAvg, Simulation, StorageError, Task, lora, record, save_merged
from fedcom.runs.files import read_json, read_rows
from fedcom.saving.series import Series
from fedcom.tasks.adapters import kept, load_kept
from fedcom.tasks.frozen import checksums
from fedcom.tasks.llama import LlamaModule, Shape
from tests.cli.test_cli import Command, command

__all__ = ["command"]  # a fixture
SETTINGS = ("data.name=text", "data.path=texts", "data.length=8", "model.name=llama", "model.path=base")
METHOD = ("algorithm.name=fedavg", "algorithm.tau=2", "algorithm.batch=2", "run.rounds=2", "run.eval_every=2")
QUICK = (*METHOD, "algorithm.eta=0.1", "local.name=sgd", "--device", "cpu", "-q")
SAID = "was made with another base: {} frozen tensors? differs? of \\d+, such as"


def write_base(folder: Path, seed: int, change: str = "", dtype: torch.dtype = torch.float32) -> None:
    """A Llama of two layers whose head and embedding are one.

    Args:
        change: the one parameter that is drawn from the seed; empty: all are.
    """
    with torch.random.fork_rng():
        torch.manual_seed(0 if change else seed)
        module = LlamaModule(Shape(40, 8, 12, 2, 2, 1, 4, tie_word_embeddings=True))
        torch.manual_seed(seed)
        if change:
            nn.init.normal_(module.get_parameter(change))
    save_merged(module.to(dtype), folder)


def write_texts() -> None:
    Path("texts").mkdir()
    for client in "ab":
        (Path("texts") / f"{client}.txt").write_text(f"the letters of {client}\n" * 6)


@pytest.mark.parametrize("adapter", [("lora", "q_proj,v_proj"), ("ffa", "q_proj"), ("fedex", "lm_head")])
def test_with_another_base_nothing_is_made_of_a_run(
    tmp_path: Path, command: Command, adapter: tuple[str, str]
) -> None:
    write_base(tmp_path / "base", 0)
    write_texts()
    name, layers = adapter
    run = [*SETTINGS, *QUICK, f"adapter.name={name}", f"adapter.layers={layers}"]
    assert command("run", *run, "run.checkpoint_rounds=1", "--out", "one").code == 0
    uses = {
        "evaluate": ["evaluate", "one"],
        "peft": ["export", "one", "--out", "peft"],
        "merged": ["export", "one", "--out", "merged", "--merged"],
        "before": ["generate", "one", "--prompt", "the", "--tokens", "2", "--base"],
        "generate": ["generate", "one", "--prompt", "the", "--tokens", "2"],
        "done": ["run", "--resume", "one", "-q"],
    }
    if name == "fedex":
        del uses["peft"]  # refused
    scores = json.loads(command(*uses["evaluate"]).out)
    assert scores["train_loss"] == read_rows(Path("one"))[-1]["train_loss"]
    for use, words in uses.items():
        done = command(*words)
        assert done.code == 0, (use, done.err)
    wide = json.loads(command("evaluate", "one", "run.dtype=float64").out)
    assert wide["train_loss"] == pytest.approx(scores["train_loss"], rel=1e-5)
    before = Path("one/summary.json").read_bytes()
    uses["longer"] = ["run", "--resume", "one", "-q", "run.rounds=4"]
    for changed, count in (("", r"\d+"), ("model.layers.1.mlp.up_proj.weight", "1")):
        shutil.rmtree("base")
        write_base(tmp_path / "base", 1, changed)
        for use in uses if not changed else ("evaluate",):
            done = command(*uses[use])
            assert done.code == 2, use
            assert re.search(SAID.format(count), done.err), (use, done.err)
    assert Path("one/summary.json").read_bytes() == before
    moved = tmp_path / "moved"
    write_base(moved, 0)
    assert json.loads(command("evaluate", "one", f"model.path={moved}").out) == scores
    shutil.rmtree("base")
    moved.rename("base")
    assert command(*uses["longer"]).code == 0


def test_a_run_of_characters_is_continued_without_its_text_and_nothing_is_exported_over_models(
    tmp_path: Path, command: Command
) -> None:
    write_base(tmp_path / "base", 0)
    write_texts()
    assert command("run", *SETTINGS, *QUICK, "adapter.name=lora", "--out", "one").code == 0
    words = [["generate", "one", "--prompt", "the A", "--tokens", "2", *more] for more in ([], ["--base"])]
    before = [command(*some) for some in words]
    assert all(done.out.startswith("the \N{REPLACEMENT CHARACTER}") for done in before)
    (tmp_path / "texts" / "a.txt").write_text("A letter more, which is the first\n" * 6)
    assert [command(*some) for some in words] == before
    shutil.rmtree("texts")
    assert [command(*some) for some in words] == before
    for out, holds in (("base", "the base of this run"), ("one", "a run")):
        done = command("export", "one", "--merged", "--out", out)
        assert (done.code, f"{out} holds {holds}, wh" in done.err) == (2, True)
    assert [command(*some) for some in words] == before


def test_runs_of_version_0_2_go_on_without_it(tmp_path: Path, command: Command) -> None:
    write_base(tmp_path / "base", 0)
    write_texts()
    assert command("run", *SETTINGS, *QUICK, "adapter.name=lora", "--out", "one").code == 0
    then = read_json(Path("one/base.json"))
    Path("one/base.json").unlink()
    shutil.rmtree("base")
    write_base(tmp_path / "base", 1)
    assert command("evaluate", "one").code == 0
    shutil.rmtree("base")
    write_base(tmp_path / "base", 0)
    assert command("run", "--resume", "one", "-q", "run.rounds=4").code == 0
    assert read_json(Path("one/base.json")) == then
    Path("one/base.json").write_text("{")
    damaged = command("evaluate", "one")
    assert (damaged.code, "base.json is damaged; delete it" in damaged.err) == (StorageError.exit_code, True)


def test_a_comparison_goes_on_with_its_base_or_begins_anew(tmp_path: Path, command: Command) -> None:
    write_base(tmp_path / "base", 0)
    write_texts()
    words = ["compare", *SETTINGS, *QUICK, "adapter.name=lora", "--methods", "fedavg", "--out", "two"]
    words = [word for word in words if not word.startswith("algorithm.name")]
    assert command(*words).code == 0
    (told,) = Path("two").rglob("base.json")
    then = read_json(told)
    shutil.rmtree("base")
    write_base(tmp_path / "base", 1)
    done = command(*words)
    assert (done.code, "was made with another base" in done.err) == (2, True)
    assert command(*words, "--force").code == 0
    assert read_json(told).keys() == then.keys()
    assert read_json(told) != then
    assert command(*words).code == 0


def test_a_run_with_nothing_frozen_has_no_such_file(tmp_path: Path) -> None:
    x, y = torch.ones(6, 4), torch.arange(6) % 2
    task = Task.from_arrays(nn.Linear(4, 2), x, y, clients=2)
    record(Simulation(task, FedAvg(eta=0.1), rounds=1, device="cpu"), tmp_path / "one", quiet=True)
    assert not (tmp_path / "one" / "base.json").exists()


def task_of(weight: float, method: Any = None) -> Task:
    """A frozen layer before one that is trained or adapted."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module: nn.Module = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    with torch.no_grad():
        module[0].weight[0, 0] = weight  # type: ignore[index]
    module[0].requires_grad_(False)  # type: ignore[index]
    module = module if method is None else lora(module, 2, layers="1", method=method)
    return Task.from_arrays(module, torch.ones(6, 4), torch.arange(6) % 2, clients=2)


@pytest.mark.parametrize("method", [None, "lora", "ffa", "flora"])
def test_a_checkpoint_goes_on_with_its_base_alone(tmp_path: Path, method: Any) -> None:
    settings: dict[str, Any] = {"rounds": 2, "device": "cpu"}
    run = Simulation(task_of(0.5, method), FedAvg(eta=0.1), **settings)
    run.step()
    run.save(tmp_path)
    Simulation.load(tmp_path, task_of(0.5, method), device="cpu").run()
    with pytest.raises(ConfigError, match="made with another base"):
        Simulation.load(tmp_path, task_of(0.75, method), device="cpu")
    saved = Series(tmp_path).latest()
    assert saved is not None
    del saved.facts["of"]["base"]  # as version 0.2 wrote it
    Simulation(task_of(0.75, method), FedAvg(eta=0.1), **settings).engine.restore(saved)


def test_so_does_a_run_that_was_recorded(tmp_path: Path) -> None:
    def run(weight: float, rounds: int) -> Simulation:
        return Simulation(task_of(weight), FedAvg(eta=0.1), rounds=rounds, device="cpu")

    record(run(0.5, 1), tmp_path, quiet=True)
    with pytest.raises(ConfigError, match=r"1 frozen tensor differs of 2, such as '0\.weight'"):
        record(run(0.75, 2), tmp_path, start="resume", quiet=True)
    record(run(0.5, 2), tmp_path, start="resume", quiet=True)
    record(run(0.75, 2), tmp_path, start="over", quiet=True)
    record(run(0.75, 3), tmp_path, start="resume", quiet=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.uint8])
def test_every_change_of_a_value_or_a_shape_is_seen(dtype: torch.dtype) -> None:
    def of(x: Tensor) -> int:
        module = nn.Module()
        module.w = nn.Parameter(x, requires_grad=False)
        return checksums(module)["w"]

    x = torch.arange(12).to(dtype)
    others = [x.flip(0), x[:11], x.reshape(3, 4), x.reshape(4, 3), torch.where(x == 5, x + 1, x), x[:0]]
    assert len({of(x), *map(of, others)}) == 7
    assert of(x) == of(x.clone()) == of(torch.stack([x, x], 1)[:, 0])
    if dtype.is_floating_point:
        assert of(x) == of(x.float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_base_that_changed_is_loaded_beside_the_layer_it_was_tied_to(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    def made() -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            module = LlamaModule(Shape(40, 8, 12, 1, 2, 1, 4, tie_word_embeddings=True)).to(dtype)
        return lora(module, 2, layers="lm_head", method="fedex")

    text = torch.arange(60).reshape(6, 10) % 40
    task = Task.from_arrays(made(), text[:, :-1], text[:, 1:], clients=2)
    run = Simulation(task, FedAvg(eta=0.05), rounds=2, device="cpu")
    run.run()
    there, again = run.module(), made()
    load_kept(again, kept(there))
    assert torch.equal(again(text), there(text))
