"""Weights of llama2.c (version 0); the tokenizer that goes with them is in data/llama2c.py."""

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedcom.errors import DataError

_HEADER = struct.Struct("<7i")


def read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A model's config and weights, both with Hugging Face's names."""
    data = path.read_bytes()
    if len(data) < _HEADER.size:
        raise DataError(f"{path} is no file of llama2.c: it has {len(data)} bytes")
    width, inner, layers, heads, shared, words, length = _HEADER.unpack_from(data)
    sizes = min(width, inner, layers, heads, shared, length, abs(words))
    if sizes < 1 or width % (2 * heads) or heads % shared or len(data) % 4:
        raise DataError(f"{path} is no file of llama2.c: its header says {_HEADER.unpack_from(data)}")
    tied, words, head = words > 0, abs(words), width // heads
    stacks = {
        "input_layernorm": (width,),
        "self_attn.q_proj": (width, width),
        "self_attn.k_proj": (shared * head, width),
        "self_attn.v_proj": (shared * head, width),
        "self_attn.o_proj": (width, width),
        "post_attention_layernorm": (width,),
        "mlp.gate_proj": (inner, width),
        "mlp.down_proj": (width, inner),
        "mlp.up_proj": (inner, width),
    }
    numbers, place = torch.from_numpy(np.frombuffer(data, np.float32, offset=_HEADER.size).copy()), 0

    def take(*shape: int) -> Tensor:
        nonlocal place
        count = math.prod(shape)
        if place + count > len(numbers):
            raise DataError(f"{path} is cut short: it has {len(data)} bytes")
        place += count
        return numbers[place - count : place].reshape(shape)

    found = {"model.embed_tokens.weight": take(words, width)}
    for name, shape in stacks.items():
        for i, x in enumerate(take(layers, *shape)):
            turned = {"self_attn.q_proj": heads, "self_attn.k_proj": shared}.get(name)
            found[f"model.layers.{i}.{name}.weight"] = x if turned is None else _halves(x, turned)
    found["model.norm.weight"] = take(width)
    if not tied or place < len(numbers):
        take(2, length, head // 2)  # angles, which are computed here
    if not tied:
        found["lm_head.weight"] = take(words, width)
    if place < len(numbers):
        raise DataError(f"{path} is no file of llama2.c: it is longer than its header says")
    config = {
        "vocab_size": words,
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": shared,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": tied,
        "max_position_embeddings": length,
    }
    return config, found


def _halves(x: Tensor, heads: int) -> Tensor:
    """Rows whose pairs are neighbours within each head, as rows whose pairs are half a head apart."""
    return x.reshape(heads, -1, 2, x.shape[1]).transpose(1, 2).reshape(x.shape).contiguous()
