"""Llama-shaped models: read from files, computed for many clients at once, and text from them."""

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedcom import ConfigError, DataError, generate, llama, lora, save_merged, save_peft, tokenizer_in
from fedcom.tasks.adapters import kept
from fedcom.tasks.llama import LlamaModule, Shape
from fedcom.tasks.objective import Objective
from tests.cli.test_cli import Command, command
from tests.conftest import close

__all__ = ["command"]  # a fixture
SHAPE = Shape(37, 24, 20, 2, 4, 2, 6, max_position_embeddings=16, tie_word_embeddings=True)


def made() -> LlamaModule:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = LlamaModule(SHAPE)
        with torch.no_grad():
            for p in module.parameters():
                p.add_(0.3 * torch.randn_like(p))
    return module


def tokens(*shape: int) -> Tensor:
    return torch.randint(0, SHAPE.vocab_size, shape, generator=torch.Generator().manual_seed(1))


def by_token(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs.flatten(0, 1), targets.flatten())


def as_llama2c(module: LlamaModule) -> bytes:
    """The file that llama2.c would have of a model: pairs that turn together are neighbours."""
    state, s = module.state_dict(), SHAPE

    def stacked(name: str, heads: int = 0) -> Tensor:
        layers = [state[f"model.layers.{i}.{name}.weight"] for i in range(s.num_hidden_layers)]
        if heads:
            layers = [x.reshape(heads, 2, -1, x.shape[1]).transpose(1, 2).reshape(x.shape) for x in layers]
        return torch.stack(layers)

    parts = [
        state["model.embed_tokens.weight"],
        stacked("input_layernorm"),
        stacked("self_attn.q_proj", s.num_attention_heads),
        stacked("self_attn.k_proj", s.num_key_value_heads),
        *(stacked(f"self_attn.{name}_proj") for name in "vo"),
        stacked("post_attention_layernorm"),
        *(stacked(f"mlp.{name}_proj") for name in ("gate", "down", "up")),
        state["model.norm.weight"],
    ]
    sizes = (s.hidden_size, s.intermediate_size, s.num_hidden_layers, s.num_attention_heads)
    header = struct.pack("<7i", *sizes, s.num_key_value_heads, s.vocab_size, 16)
    return header + b"".join(x.numpy().tobytes() for x in parts)


def write_tokenizer(folder: Path) -> None:
    """28 letters and two joined ones, after three signs and without the single bytes."""
    words = [b"<unk>", b"<s>", b"</s>", *(bytes([b]) for b in b" abcdefghijklmnopqrstuvwxyz."), b"th", b"the"]
    words += [b"?"] * (SHAPE.vocab_size - len(words))
    scores = [0.0] * 31 + [-2.0, -1.0] + [0.0] * (SHAPE.vocab_size - 33)
    entries = [struct.pack("<fi", score, len(word)) + word for score, word in zip(scores, words, strict=True)]
    (folder / "tokenizer.bin").write_bytes(struct.pack("<i", 5) + b"".join(entries))


@torch.no_grad()
def test_files_of_both_kinds_give_the_same_model(tmp_path: Path) -> None:
    module, x = made(), tokens(3, 9)
    whole = save_merged(module, tmp_path / "whole")
    assert torch.equal(llama(whole)(x), module(x))
    old = tmp_path / "old"
    old.mkdir()
    (old / "model.bin").write_bytes(as_llama2c(module))
    config = json.loads((whole / "config.json").read_text())
    (whole / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-5}))  # as llama2.c has it
    assert torch.equal(llama(old)(x), llama(whole)(x))
    short = module(x[:, :4])
    assert close(short, module(x)[:, :4], 1e-6), "what comes later must not matter"
    (old / "model.bin").write_bytes(as_llama2c(module)[:-1000])
    with pytest.raises(DataError, match="cut short"):
        llama(old)
    for change, said in {
        "model_type": "model_type 'llama', and config.json says 'other'",
        "rope_scaling": "rotary positions default and llama3; got 'other'",
    }.items():
        wrong: Any = {"rope_type": "other"} if change == "rope_scaling" else "other"
        (whole / "config.json").write_text(json.dumps({**config, change: wrong}))
        with pytest.raises(ConfigError, match=said):
            llama(whole)
    (whole / "config.json").write_text(json.dumps({**config, "hidden_size": 28}))
    with pytest.raises(DataError, match=r"does not hold this model: .*size mismatch"):
        llama(whole)
    with pytest.raises(DataError, match="must be a folder"):
        llama(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rope_scaling": {"rope_type": "llama3"}}, "does not say 'factor'"),
        ({"rope_scaling": {"factor": 2.0}}, "got 'without a type'"),
        ({"rope_scaling": "linear"}, "got 'linear'"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor 0.5"),
        ({"num_attention_heads": 0}, "num_attention_heads 0; it must be a whole number above 0"),
        ({"num_key_value_heads": 3}, "each key must serve as many heads"),
        ({"rms_norm_eps": "1e-5"}, "rms_norm_eps '1e-5'; it must be a number above 0"),
        ({"tie_word_embeddings": "false"}, "'false'; it must be true or false"),
        ({"vocab_size": None}, "does not say 'vocab_size'"),
    ],
)
def test_another_model_in_config_json_is_refused(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    whole = save_merged(made(), tmp_path)
    config = {**json.loads((whole / "config.json").read_text()), **change}
    (whole / "config.json").write_text(json.dumps(config))
    with pytest.raises((ConfigError, DataError), match=said):
        llama(whole)


def test_a_tokenizer_of_another_model_is_named() -> None:
    class Other:
        def encode(self, text: str) -> list[int]:
            return [SHAPE.vocab_size]

        def decode(self, tokens: list[int]) -> str:
            return ""

    with pytest.raises(ConfigError, match="does not know token 37, which the tokenizer made"):
        generate(made(), Other(), "a")


@torch.no_grad()
def test_damaged_folders_say_so(tmp_path: Path) -> None:
    module, x = made(), tokens(3, 9)
    whole = save_merged(module, tmp_path / "whole")
    config = json.loads((whole / "config.json").read_text())
    (whole / "config.json").write_text(json.dumps({**config, "rope_parameters": {"rope_theta": 5e5}}))
    other = LlamaModule(replace(SHAPE, rope_theta=5e5))
    other.load_state_dict(module.state_dict())
    assert torch.equal(llama(whole)(x), other(x)), "as transformers reads it"
    (whole / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(DataError, match="does not say which file"):
        llama(whole)
    (whole / "model.safetensors.index.json").unlink()
    module.model.norm.bfloat16()
    save_merged(module, whole)
    with pytest.raises(ConfigError, match="are of bfloat16 and float32; set"):
        llama(whole)
    assert llama(whole, torch.bfloat16)(x).dtype == torch.bfloat16
    (whole / "config.json").write_text("[1]")
    with pytest.raises(DataError, match="not an object"):
        llama(whole)
    old = tmp_path / "old"
    old.mkdir()
    good = as_llama2c(made())
    heads = struct.pack(
        "<7i", *(*struct.unpack_from("<7i", good)[:4], 3, *struct.unpack_from("<7i", good)[5:])
    )
    for data, said in ((good + bytes(400), "longer"), (good + b"1", "header"), (heads + good[28:], "header")):
        (old / "model.bin").write_bytes(data)
        with pytest.raises(DataError, match=said):
            llama(old)


def test_clients_side_by_side_have_the_gradients_of_each_alone() -> None:
    module = lora(made().double(), 3, layers=("q_proj", "v_proj", "embed_tokens", "lm_head"))
    objective, x = Objective(module, by_token, "float64"), tokens(4, 5, 10)
    draw = torch.Generator().manual_seed(2)
    w = objective.start + 0.1 * torch.randn(4, objective.layout.size, dtype=torch.float64, generator=draw)
    found = objective.gradients(w, x[..., :-1], x[..., 1:], torch.full((4, 5), 0.2, dtype=torch.float64))
    named = {name: p for name, p in objective.module.named_parameters() if p.requires_grad}
    for j in range(4):
        with torch.no_grad():
            for name, value in objective.layout.tensors(w[j]).items():
                named[name].copy_(value)
        loss = by_token(objective.module(x[j, :, :-1]), x[j, :, 1:])
        alone = torch.autograd.grad(loss, list(named.values()))
        assert close(found[j], torch.cat([g.flatten() for g in alone]), 1e-10)


def test_a_run_goes_on_with_a_text_and_is_exported(tmp_path: Path, command: Command) -> None:
    """From its folder: greedily, by draws that a seed repeats, and without what it learnt."""
    base = save_merged(made(), tmp_path / "base")
    write_tokenizer(base)
    module = lora(llama(base), 2)
    with torch.no_grad():
        for name, p in module.named_parameters():
            if name.endswith("lora_B"):
                p.fill_(0.2)
    run = tmp_path / "run"
    run.mkdir()
    from safetensors.torch import load_file, save_file

    save_file(kept(module), run / "model.safetensors")
    (run / "config.toml").write_text(f'[model]\nname = "llama"\npath = "{base}"\n[adapter]\nrank = 2\n')
    tokenizer = tokenizer_in(base)
    assert tokenizer.decode(tokenizer.encode("the cat.")) == "the cat."
    assert tokenizer.encode("the")[-1] == 32

    def text(*options: str) -> str:
        done = command("generate", str(run), "--prompt", "the cat", "--tokens", "24", *options)
        assert done.code == 0, done.err
        return done.out

    greedy = text()
    assert greedy == generate(module, tokenizer, "the cat", 24, context=16) + "\n"
    assert greedy.startswith("the cat")
    drawn = text("--temperature", "1", "--samples", "2")
    assert drawn == text("--temperature", "1", "--samples", "2")
    assert drawn != text("--temperature", "1", "--samples", "2", "--seed", "5")
    assert len({*drawn.splitlines()}) > 1
    assert text("--base") == generate(llama(base), tokenizer, "the cat", 24, context=16) + "\n"
    assert command("export", str(run), "--out", str(tmp_path / "peft")).code == 0
    files = save_peft(module, tmp_path / "again", str(base))
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        assert (tmp_path / "peft" / name).read_bytes() == (files / name).read_bytes()
    assert len(load_file(files / "adapter_model.safetensors")) == 8
    assert command("export", str(run), "--out", str(tmp_path / "flat"), "--merged").code == 0
    with torch.no_grad():
        assert close(llama(tmp_path / "flat")(tokens(2, 7)), module(tokens(2, 7)), 1e-5)
    (base / "tokenizer.bin").unlink()
    assert "has no tokenizer" in command("generate", str(run), "--prompt", "a").err


def test_a_model_of_characters_goes_on_with_the_letters_of_its_clients(
    tmp_path: Path, command: Command
) -> None:
    (tmp_path / "texts").mkdir()
    for name in ("anna", "bert"):
        (tmp_path / "texts" / f"{name}.txt").write_text("to be or not to be\n" * 8)
    settings = ("data.name=text", "data.path=texts", "data.length=8", "model.name=gru", "model.hidden=8")
    rates = ("algorithm.name=fedavg", "algorithm.eta=0.1", "algorithm.tau=1", "run.rounds=1")
    done = command("run", *settings, *rates, "--out", "run", "--quiet", "--device", "cpu")
    assert done.code == 0, done.err
    text = command("generate", "run", "--prompt", "to be", "--tokens", "5", "--temperature", "1").out
    assert text.startswith("to be")
    assert {*text} <= {*"to be or not to be\n\N{REPLACEMENT CHARACTER}"}


def test_a_model_of_characters_reads_other_text_in_its_own(tmp_path: Path, command: Command) -> None:
    """Text with as many characters that lie otherwise among them, and text with more."""
    for folder, letters in {"first": "ab cd~", "other": "#ab cd", "more": "!#ab cd~é"}.items():
        (tmp_path / folder).mkdir()
        for name in ("anna", "bert"):
            (tmp_path / folder / f"{name}.txt").write_text(f"{letters}\n" + "ab cd\n" * 8)
    settings = ("data.name=text", "data.path=first", "data.length=6", "model.name=gru", "model.hidden=8")
    rates = ("algorithm.name=fedavg", "algorithm.eta=0.5", "algorithm.tau=2", "run.rounds=4")
    assert command("run", *settings, *rates, "--out", "run", "--quiet", "--device", "cpu").code == 0
    first, other, more = (
        json.loads(command("evaluate", "run", f"data.path={folder}", "--device", "cpu").out)
        for folder in ("first", "other", "more")
    )
    assert other["test_loss"] == more["test_loss"] == first["test_loss"]
    said = command("generate", "run", "--prompt", "ab", "--tokens", "9").out
    (tmp_path / "first").rename(tmp_path / "away")
    (tmp_path / "other").rename(tmp_path / "first")
    assert command("generate", "run", "--prompt", "ab", "--tokens", "9").out == said


@pytest.mark.filterwarnings("default:the text is cut into characters")
def test_a_pretrained_model_on_characters_is_told_and_goes_on_with_them(
    tmp_path: Path, command: Command
) -> None:
    """Also if the text has fewer characters than the model has tokens."""
    base = save_merged(made(), tmp_path / "base")
    write_tokenizer(base)
    (tmp_path / "texts").mkdir()
    for name in ("anna", "bert"):
        (tmp_path / "texts" / f"{name}.txt").write_text("to be or not to be\n" * 8)
    settings = ("data.name=text", "data.path=texts", "data.length=8", "model.name=llama")
    more = (
        f"model.path={base}",
        "algorithm.tau=1",
        "run.rounds=1",
        "--out",
        "run",
        "--quiet",
        "--device",
        "cpu",
    )
    done = command("run", *settings, "adapter.rank=2", *more)
    assert done.code == 0, done.err
    assert "cut into characters" in done.err
    assert "set data.tokenizer=" in done.err
    text = command("generate", "run", "--prompt", "to be", "--tokens", "5", "--temperature", "1").out
    assert {*text} <= {*"to be or not to be\n\N{REPLACEMENT CHARACTER}"}
