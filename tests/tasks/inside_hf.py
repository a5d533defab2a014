"""Comparisons with transformers and peft, in the environment that has them; run by test_hf.py.

The argument is a folder for files. All checks are made by one process: to import both takes ten seconds.
"""

import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForCausalLM

from fedcom import ConfigError, FedAvg, Int, Simulation, Task, llama, lora, save_merged, save_peft
from fedcom.tasks.adapters import adapted_layers

VOCABULARY, LENGTH = 67, 12
STRETCHED = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
}
SHAPES: dict[str, dict[str, Any]] = {
    "grouped, tied": {"num_key_value_heads": 2, "tie_word_embeddings": True},
    "own head": {"num_key_value_heads": 4, "tie_word_embeddings": False, "attention_bias": True},
    "stretched": {"num_key_value_heads": 1, "head_dim": 6, "rope_scaling": STRETCHED, "mlp_bias": True},
}


def theirs(**more: Any) -> LlamaForCausalLM:
    """A small model of transformers', its parameters drawn; biases too, which it would begin at zero."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        **more,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return model


def tokens(rows: int = 8) -> Tensor:
    return torch.randint(0, VOCABULARY, (rows, LENGTH), generator=torch.Generator().manual_seed(1))


def by_token(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs.flatten(0, 1), targets.flatten())


def same(a: Tensor, b: Tensor) -> None:
    worst = float((a - b).abs().max())
    assert worst < 1e-5, worst


@torch.no_grad()
def logits(folder: Path) -> None:
    """Of every shape, in one file and in several, and in 16 bits."""
    x = tokens()
    for name, more in SHAPES.items():
        model, place = theirs(**more), folder / name
        model.save_pretrained(place, max_shard_size="20KB")
        assert (place / "model.safetensors.index.json").is_file()
        same(llama(place)(x), model(x).logits)
        model.save_pretrained(folder / f"{name}, whole")
        module = llama(folder / f"{name}, whole")
        same(module(x), model(x).logits)
        assert {key for key, _ in module.named_parameters()} == {key for key, _ in model.named_parameters()}
        half = llama(place, torch.bfloat16)(x)
        assert half.dtype == torch.bfloat16
        assert float((half - model(x).logits).abs().max()) < 0.1 * float(half.abs().max())


def trained(module: torch.nn.Module, method: Any = None) -> torch.nn.Module:
    x = tokens(13)
    task = Task.from_arrays(module, x[:, :-1], x[:, 1:], clients=3, loss=by_token)
    run = Simulation(task, method or FedAvg(eta=0.2, tau=2, batch=4), Int(8) if method else None, rounds=3)
    rows = run.run()
    assert rows[-1]["train_loss"] < rows[0]["train_loss"]
    return run.module()


def exported(folder: Path) -> None:
    """What was trained here gives peft's and transformers' models the same logits."""
    x = tokens()
    for name, also in (("grouped, tied", ()), ("own head", ("norm", "lm_head"))):
        model, place = theirs(**SHAPES[name]), folder / name
        model.save_pretrained(place)
        layers = ("q_proj", "v_proj", "down_proj", "embed_tokens")
        module = trained(lora(llama(place), 4, layers=layers, also=also)).eval()
        assert len(list(adapted_layers(module))) == 7
        with torch.no_grad():
            mine, before = module(x), model(x).logits
            assert float((mine - before).abs().max()) > 1e-2
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # peft's, of tied embeddings
                files = save_peft(module, folder / f"{name}, peft", str(place))
                wrapped = PeftModel.from_pretrained(model, files)
            same(mine, wrapped(x).logits)
            whole = LlamaForCausalLM.from_pretrained(save_merged(module, folder / f"{name}, merged")).eval()
            same(mine, whole(x).logits)
            same(mine, llama(folder / f"{name}, merged")(x))


def taken(folder: Path) -> None:
    """Modules of transformers and peft are trained as they are; only peft's adapters are sent."""
    trained(theirs(**SHAPES["grouped, tied"]))
    model = theirs(**SHAPES["grouped, tied"])
    wrapped = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.0))
    after = trained(wrapped)
    moved = [
        name
        for (name, p), (_, q) in zip(wrapped.named_parameters(), after.named_parameters(), strict=True)
        if not torch.equal(p, q)
    ]
    assert len(moved) == 8
    assert all(".lora_" in name for name in moved)


def masked(folder: Path) -> None:
    """A padding mask counts as in transformers, with the attention that does not look into it."""
    x, y = tokens(), torch.arange(8) % 3
    mask = torch.arange(LENGTH) < 4 + torch.arange(8).unsqueeze(1)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}

    def made(attention: str) -> BertForSequenceClassification:
        torch.manual_seed(0)
        config = BertConfig(vocab_size=VOCABULARY, num_labels=3, attn_implementation=attention, **sizes)
        return BertForSequenceClassification(config)

    given = {"input_ids": x, "attention_mask": mask}
    said = ""
    try:
        Task.from_arrays(made("sdpa"), given, y, clients=2)
    except ConfigError as error:
        said = str(error)
    assert said.endswith("make the model with attn_implementation='eager'"), said
    task, model = Task.from_arrays(made("eager"), given, y, given, y, clients=2), made("eager").eval()
    with torch.no_grad():
        same(task.objective.outputs(task.objective.start, task.test_x), model(**given).logits)
    Simulation(task, FedAvg(eta=0.1), rounds=1).run()


if __name__ == "__main__":
    for check in (logits, exported, taken, masked):
        check(Path(sys.argv[1]) / check.__name__)
