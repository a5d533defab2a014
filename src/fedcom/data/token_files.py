"""Text that was cut into tokens once, as a file: it is read without the text and without the tokenizer."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcom.data.dataset import Dataset
from fedcom.data.files import at_path
from fedcom.data.own_files import read_npz
from fedcom.data.text import LENGTH, from_codes
from fedcom.data.tokens import IGNORED, Tokens
from fedcom.errors import ConfigError, DataError

_HALVES = ("train", "test")


def save_tokens(data: Dataset, path: str | Path) -> Path:
    """Write a data set of text as a file of tokens, for `read_tokens` and data.tokens.

    It holds each client's tokens one after another, so that it can be cut into sequences of any length.

    Args:
        path: of the file, which ends in .npz.
    """
    path = Path(path)
    if data.tokens is None or data.groups is None:
        raise ConfigError(f"{data.name} is no text of clients; only text has tokens to write")
    if path.suffix != ".npz":
        raise ConfigError(f"a file of tokens ends in .npz; got {path}")
    tokens, clients = data.tokens, int(data.groups.max()) + 1
    kind = np.uint16 if tokens.size <= 2**16 else np.uint32
    found = dict[str, Any]()
    test_groups = data.test_groups if data.test_groups is not None else data.groups[:0]
    parts = ((data.x, data.y, data.groups), (data.test_x, data.test_y, test_groups))
    for half, (x, y, groups) in zip(_HALVES, parts, strict=True):
        own = [_whole(x[groups == client], y[groups == client]) for client in range(clients)]
        found[half] = torch.cat(own).numpy().astype(kind)
        found[f"{half}_sizes"] = np.array([len(codes) for codes in own])
    about = {"name": data.name, "size": tokens.size, "characters": tokens.characters}
    about |= {} if tokens.tokenizer is None else {"tokenizer": tokens.tokenizer}
    about |= {} if data.names is None else {"clients": data.names[:clients]}
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, about=np.array(json.dumps(about)), **found)
    return path


def _whole(x: Tensor, y: Tensor) -> Tensor:
    """A client's tokens, from its sequences and the token after each of theirs."""
    kept = y != IGNORED
    return torch.cat([x[kept], y[kept][-1:]])


def read_tokens(path: str | Path, length: int | None = None) -> Dataset:
    """The data set in a file of tokens.

    Args:
        path: of a file that `save_tokens`, or `fedcom cut`, wrote; see `at_path`.
        length: of a sequence; None: 80.
    """
    path = at_path(path)
    if not path.is_file():
        raise DataError(f"no file of tokens {path}; `fedcom cut` writes one")
    arrays = read_npz(path)
    try:
        about = json.loads(str(arrays["about"]))
        size, name = int(about["size"]), str(about["name"])
        tokens = Tokens(str(about["characters"]), about.get("tokenizer"), size)
        halves = [_split(arrays[half], arrays[f"{half}_sizes"], size) for half in _HALVES]
        if len(halves[0]) != len(halves[1]):
            raise ValueError("its halves are of different clients")
        names = list(map(str, about.get("clients", range(len(halves[0])))))
        if len({*names}) != len(halves[0]) or len(names) != len(halves[0]):
            raise ValueError("its clients do not have one name each")
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} is no file of tokens: {error}; `fedcom cut` writes one") from None
    texts = dict(zip(names, zip(*halves, strict=True), strict=True))
    return from_codes(texts, tokens, LENGTH if length is None else length, name)


def _split(codes: NDArray[Any], sizes: NDArray[Any], count: int) -> list[Tensor]:
    """The tokens of each client."""
    whole, each = torch.from_numpy(codes.astype(np.int64)), sizes.tolist()
    if whole.dim() != 1 or sum(each) != len(whole) or min(each, default=0) < 0:
        raise ValueError("the numbers of its clients' tokens do not add up")
    if len(whole) and not 0 <= int(whole.min()) <= int(whole.max()) < count:
        raise ValueError(f"its tokens are not all below {count}")
    return list(torch.split(whole, each))
