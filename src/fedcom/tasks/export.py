"""Adapters as files that peft reads, and models with their adapters added in."""

import json
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from fedcom.errors import ConfigError, StorageError
from fedcom.tasks.adapters import PRODUCTS, Adapted, AdaptedEmbedding, adapted_layers, merged
from fedcom.tasks.llama import LlamaModule

_PREFIX = "base_model.model."
_NO_PEFT = "which peft's files cannot hold; write the merged weights instead"
_PARTS = (
    "base_layer",
    "lora_A.default",
    "lora_B.default",
    "lora_dropout",
    "lora_dropout.default",
)  # of peft's


def save_peft(module: nn.Module, folder: str | Path, base: str = "") -> Path:
    """Write a module's adapters as peft's adapter_config.json and adapter_model.safetensors.

    Args:
        base: the name or folder of the model without adapters, for peft's AutoPeftModel; it may be empty.
    """
    layers = dict(adapted_layers(module))
    if not layers:
        raise ConfigError(
            "the module has no adapters, and peft's files hold nothing else; write the merged weights instead"
        )
    if hasattr(module, PRODUCTS):
        raise ConfigError("adapters fedex and flora change the base too; write the merged weights instead")
    _check_peft(module, layers)
    tensors: dict[str, Tensor] = {}
    for name, layer in layers.items():
        form = "lora_embedding_{}" if isinstance(layer, AdaptedEmbedding) else "lora_{}.weight"
        for which, x in (("A", layer.lora_A), ("B", layer.lora_B)):
            tensors[f"{_PREFIX}{name}.{form.format(which)}"] = x
    others = _also(module, set(layers))
    for owner in others:
        part = module.get_submodule(owner)
        tensors |= {f"{_PREFIX}{owner}.{key}": x for key, x in part.state_dict().items()}
    first = next(iter(layers.values()))
    rank = first.lora_A.shape[0]
    alpha = first.scale * rank
    config: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM" if isinstance(module, LlamaModule) else None,
        "base_model_name_or_path": base or None,
        "r": rank,
        "lora_alpha": int(alpha) if alpha == int(alpha) else alpha,
        "target_modules": list(layers),
        "modules_to_save": others or None,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    return _write(Path(folder), "adapter_model.safetensors", tensors, "adapter_config.json", config)


def save_merged(module: nn.Module, folder: str | Path) -> Path:
    """Write model.safetensors, adapters added to its weights, and the config.json of a Llama."""
    flat = merged(module)
    state = flat.state_dict()
    config = None
    if isinstance(flat, LlamaModule):
        config = flat.shape.config
        tied = flat.lm_head.weight is flat.model.embed_tokens.weight
        config |= {"tie_word_embeddings": tied, "torch_dtype": str(flat.lm_head.weight.dtype)[6:]}
        state = {key: x for key, x in state.items() if not (tied and key == "lm_head.weight")}
    return _write(Path(folder), "model.safetensors", state, "config.json", config)


def _check_peft(module: nn.Module, layers: dict[str, Adapted]) -> None:
    """Refuse modules that peft's files could hold only in part."""
    for name, part in module.named_modules(remove_duplicate=False):
        if name not in layers and any(part is layer for layer in layers.values()):
            raise ConfigError(f"layer {name!r} has another name too, {_NO_PEFT}")
    for name, layer in layers.items():
        if isinstance(layer, _ConvNd) and (layer.padding_mode != "zeros" or set(layer.dilation) != {1}):
            raise ConfigError(
                f"layer {name!r} is a convolution with dilation {layer.dilation[0]} and padding_mode "
                f"{layer.padding_mode}, {_NO_PEFT}"
            )
    every = [id(p) for _, p in module.named_parameters(remove_duplicate=False)]
    for name, p in module.named_parameters():
        owner, _, which = name.rpartition(".")
        if not p.requires_grad or which in ("lora_A", "lora_B"):
            continue
        if every.count(id(p)) > 1:
            raise ConfigError(f"{name!r} is trained and has another name too, {_NO_PEFT}")
        if owner in layers:
            raise ConfigError(f"{name!r} is trained beside the adapter of its layer, {_NO_PEFT}")
        if not owner or any(f"{layer}.".startswith(f"{owner}.") for layer in layers):
            raise ConfigError(f"{name!r} is of a part that has layers with adapters in it, {_NO_PEFT}")


def _also(module: nn.Module, adapted: set[str]) -> list[str]:
    """The parts of a module, without an adapter, that have parameters which are trained, or statistics.

    And those whose names end as theirs.
    """
    trained = {name.rpartition(".")[0] for name, p in module.named_parameters() if p.requires_grad}
    named = dict(module.named_modules())
    parts = [name for name, part in named.items() if name in trained or isinstance(part, _NormBase)]
    ends = tuple(name for name in parts if name not in adapted)
    found = [name for name in named if name.endswith(ends)]  # which is what peft takes for them
    within = [name for name in found if any(f"{layer}.".startswith(f"{name}.") for layer in adapted)]
    if own := [*within, *(name for name in _PARTS if name.endswith(ends))]:
        end = next(end for end in ends if own[0].endswith(end))
        raise ConfigError(f"{end!r} is saved, and what ends so is too, as {own[0]!r}, {_NO_PEFT}")
    return found


def _write(
    folder: Path, name: str, tensors: dict[str, Tensor], beside: str, config: dict[str, Any] | None
) -> Path:
    from safetensors.torch import save_file

    try:
        folder.mkdir(parents=True, exist_ok=True)
        own = {key: x.detach().cpu().clone().contiguous() for key, x in tensors.items()}
        save_file(own, folder / name, {"format": "pt"})
        if config is not None:
            (folder / beside).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise StorageError(f"cannot write to {folder}: {error.strerror or error}") from None
    return folder
