"""Llama-shaped language models in plain torch, with Hugging Face's names, read from a folder."""

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedcom.data.files import at_path
from fedcom.errors import ConfigError, DataError
from fedcom.tasks import llama2c
from fedcom.tasks.generate import Tokenizer, tokenizer_in
from fedcom.tasks.model import Model

_WEIGHTS = "model.safetensors"
_FIXED = {"model_type": "llama", "hidden_act": "silu"}  # of config.json, what this shape has
_ROTARY = ("default", "llama3")
_STRETCH = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")  # of llama3


@dataclass(frozen=True)
class Shape:
    """The sizes of a model, with the names that config.json has for them.

    Args:
        rope: what config.json says of how positions are stretched; empty: they are not.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    max_position_embeddings: int = 2048
    rope: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Shape":
        """The shape that a config.json says; a ConfigError if it is another kind of model."""
        for key, value in _FIXED.items():
            if config.get(key, value) != value:
                raise ConfigError(f"model llama has {key} {value!r}, and config.json says {config[key]!r}")
        rope = _rope(config)
        given = {key: value for key, value in config.items() if value is not None}
        given |= {"rope_theta": rope["rope_theta"]} if "rope_theta" in rope else {}
        _check_sizes(given)
        heads, width = given["num_attention_heads"], given["hidden_size"]
        found = {
            "num_key_value_heads": heads,
            "head_dim": width // heads,
            **given,
            "rope": tuple(rope.items()) if _STRETCH[0] in rope else (),
        }
        shape = cls(**{key: found[key] for key in cls.__dataclass_fields__ if key in found})
        if heads % shape.num_key_value_heads or shape.head_dim % 2 or not shape.head_dim:
            raise ConfigError(
                f"config.json says {heads} heads of {shape.head_dim} numbers and {shape.num_key_value_heads} "
                "keys; each key must serve as many heads, and a head have an even number"
            )
        return shape

    @property
    def config(self) -> dict[str, Any]:
        """The same as a config.json."""
        plain = {key: getattr(self, key) for key in self.__dataclass_fields__ if key != "rope"}
        scaling = {"rope_scaling": dict(self.rope)} if self.rope else {}
        return {"architectures": ["LlamaForCausalLM"], **_FIXED, **plain, **scaling}


def _rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a config.json says of rotary positions; a ConfigError if they are of another kind."""
    said = config.get("rope_parameters") or config.get("rope_scaling") or {}
    rope = dict(said) if isinstance(said, Mapping) else {"rope_type": said}
    kind = rope.get("rope_type", rope.get("type", "without a type" if "factor" in rope else "default"))
    if kind not in _ROTARY:
        raise ConfigError(f"model llama knows rotary positions {' and '.join(_ROTARY)}; got {kind!r}")
    for share in (config.get("partial_rotary_factor"), rope.get("partial_rotary_factor")):
        if share not in (None, 1):
            raise ConfigError(
                f"model llama turns all of a head; config.json says partial_rotary_factor {share}"
            )
    if kind == "default":
        return {key: value for key, value in rope.items() if key == "rope_theta"}
    for key in _STRETCH:
        _check_size(key, rope[key], float)
    return rope


def _check_sizes(given: Mapping[str, Any]) -> None:
    """Refuse sizes that are none; a KeyError if one is missing that has no default."""
    for f in fields(Shape):
        if f.name in given and f.name != "rope":
            _check_size(f.name, given[f.name], f.type)
        elif f.default is MISSING and f.name not in ("num_key_value_heads", "head_dim"):
            raise KeyError(f.name)


def _check_size(key: str, value: Any, kind: Any) -> None:
    if kind is bool:
        fits, what = isinstance(value, bool), "true or false"
    else:
        right = type(value) is int or (kind is float and type(value) is float)
        fits, what = right and 0 < value < 2**40, f"a{' whole' if kind is int else ''} number above 0"
    if not fits:
        raise ConfigError(f"config.json says {key} {value!r}; it must be {what}")


class _Norm(nn.Module):
    """Each vector over its root mean square, times a weight per coordinate."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        wide = wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class _Attention(nn.Module):
    """Causal attention with rotary positions; several heads share a key and a value."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, bias, self.head = shape.hidden_size, shape.attention_bias, shape.head_dim
        self.groups = shape.num_key_value_heads
        inner, shared = shape.num_attention_heads * self.head, self.groups * self.head
        self.q_proj = nn.Linear(width, inner, bias=bias)
        self.k_proj = nn.Linear(width, shared, bias=bias)
        self.v_proj = nn.Linear(width, shared, bias=bias)
        self.o_proj = nn.Linear(inner, width, bias=bias)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        batch, length = x.shape[:2]
        q, k, v = (
            part(x).reshape(batch, length, -1, self.head).transpose(1, 2)
            for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = _turned(q, *turn), _turned(k, *turn)
        q = q.reshape(batch, self.groups, -1, length, self.head)  # the heads that share a key are neighbours
        scores = q.flatten(2, 3) @ k.transpose(-1, -2) * self.head**-0.5
        scores = scores.reshape(*q.shape[:-1], length) + mask
        mixed = scores.softmax(-1).flatten(2, 3) @ v
        mixed = mixed.reshape(batch, -1, length, self.head).transpose(1, 2)
        y: Tensor = self.o_proj(mixed.reshape(batch, length, -1))
        return y


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Queries or keys turned by the angles of their positions."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class _Mlp(nn.Module):
    """Two layers, the first one gated: down(silu(gate x) * up x)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, inner, bias = shape.hidden_size, shape.intermediate_size, shape.mlp_bias
        self.gate_proj = nn.Linear(width, inner, bias=bias)
        self.up_proj = nn.Linear(width, inner, bias=bias)
        self.down_proj = nn.Linear(inner, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return y


class _Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.self_attn = _Attention(shape)
        self.mlp = _Mlp(shape)
        self.input_layernorm = _Norm(shape.hidden_size, shape.rms_norm_eps)
        self.post_attention_layernorm = _Norm(shape.hidden_size, shape.rms_norm_eps)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), turn, mask)
        y: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return y


class _Decoder(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(_Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = _Norm(shape.hidden_size, shape.rms_norm_eps)

    def forward(self, tokens: Tensor) -> Tensor:
        x, length = self.embed_tokens(tokens), tokens.shape[-1]
        wide = torch.promote_types(x.dtype, torch.float32)
        places = torch.arange(length, device=x.device, dtype=wide)
        angle = places.unsqueeze(1) * _frequencies(self.shape, x.device, wide)
        angle = torch.cat((angle, angle), -1)
        turn = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        mask = x.new_full((length, length), -math.inf, requires_grad=False).triu(1)
        for layer in self.layers:
            x = layer(x, turn, mask)
        y: Tensor = self.norm(x)
        return y


def _frequencies(shape: Shape, device: torch.device, dtype: torch.dtype) -> Tensor:
    """How far each pair of coordinates turns from one position to the next."""
    even = torch.arange(0, shape.head_dim, 2, device=device, dtype=dtype)
    turn: Tensor = 1 / torch.pow(shape.rope_theta, even / shape.head_dim)
    if not shape.rope:
        return turn
    rope = dict(shape.rope)
    low, high, factor = (rope[key] for key in ("low_freq_factor", "high_freq_factor", "factor"))
    fit = rope["original_max_position_embeddings"] * turn / (2 * math.pi)  # how many times it turns round
    share = ((fit - low) / (high - low)).clamp(0, 1)
    mixed: Tensor = (1 - share) * turn / factor + share * turn
    return mixed


class LlamaModule(nn.Module):
    """A Llama-shaped model: tokens [samples, positions] to scores of the next one [..., vocabulary].

    Parameters are drawn from torch's generator; `llama` gives those of a folder.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.context = shape.max_position_embeddings  # how many tokens it can see
        self.model = _Decoder(shape)
        self.lm_head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)
        for part in self.modules():
            if isinstance(part, nn.Linear | nn.Embedding):
                nn.init.normal_(part.weight, std=0.02)
        if shape.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        y: Tensor = self.lm_head(self.model(tokens))
        return y


def llama(folder: str | Path, dtype: torch.dtype | None = None) -> LlamaModule:
    """The model in a folder: config.json and safetensors in Hugging Face's form, or a file of llama2.c.

    Args:
        folder: if it is not there, the one of that name under FEDCOM_DATA.
        dtype: of its parameters; None: that of the file.
    """
    folder = at_path(folder)
    if not folder.is_dir():
        raise DataError(
            f"model.path must be a folder with config.json and {_WEIGHTS}, or with a file of llama2.c; "
            f"{folder} is none, in the current folder or under FEDCOM_DATA"
        )
    if not (folder / "config.json").is_file() and (old := sorted(folder.glob("*.bin"))):
        config, weights = llama2c.read(next((f for f in old if f.name != "tokenizer.bin"), old[0]))
    else:
        config, weights = _json(folder / "config.json"), _weights(folder)
    try:
        shape = Shape.of(config)
    except KeyError as error:
        raise DataError(f"{folder / 'config.json'} does not say {error}") from None
    with torch.device("meta"):
        module = LlamaModule(shape)
    if shape.tie_word_embeddings:
        weights.pop("lm_head.weight", None)
        weights["lm_head.weight"] = weights.get("model.embed_tokens.weight", torch.empty(0))
    weights = {
        key: x if dtype is None else x.to(dtype)
        for key, x in weights.items()
        if not key.endswith("rotary_emb.inv_freq")
    }
    if len(kinds := {str(x.dtype)[6:] for x in weights.values()}) > 1:
        raise ConfigError(
            f"the tensors in {folder} are of {' and '.join(sorted(kinds))}; set model.dtype to one"
        )
    try:
        module.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        raise DataError(f"{folder} does not hold this model: {' '.join(str(error).split())[:300]}") from None
    if shape.tie_word_embeddings:
        module.lm_head.weight = module.model.embed_tokens.weight
    return module


def _weights(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder's file, or of the files that its index names."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    index = folder / f"{_WEIGHTS}.index.json"
    names = [_WEIGHTS]
    if index.is_file():
        files = _json(index).get("weight_map")
        if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
            raise DataError(f"{index} does not say which file has which tensor")
        names = sorted(set(files.values()))
    found: dict[str, Tensor] = {}
    for name in names:
        try:
            found |= load_file(folder / Path(name).name)
        except (OSError, SafetensorError) as error:
            raise DataError(f"{folder / name} cannot be read: {' '.join(str(error).split())}") from None
    return found


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise DataError(f"{path} is not an object of names and values")
    return found


@dataclass(frozen=True)
class Llama(Model):
    """A Llama-shaped language model, read from a folder with config.json and safetensors.

    Args:
        path: the folder.
        dtype: of its parameters; "file": as they are there. Those that are trained are in run.dtype.
    """

    path: str | None = None
    dtype: Literal["file", "float32", "bfloat16", "float16", "float64"] = "file"

    name: ClassVar[str] = "llama"
    needs_data: ClassVar[bool] = False

    def tokenizer(self) -> Tokenizer:
        return tokenizer_in(self.path or "")

    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        if self.path is None:
            raise ConfigError("model llama needs the folder of its weights; set model.path=FOLDER")
        return llama(self.path, None if self.dtype == "file" else getattr(torch, self.dtype))
