"""How text becomes whole numbers, and back: by characters, or by a tokenizer file."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedcom.data import llama2c
from fedcom.data.files import at_path
from fedcom.errors import DataError
from fedcom.imports import optional

PADDING, UNKNOWN = 0, 1  # the codes of padding and of characters that are not in the vocabulary
IGNORED = -100  # the target of padding, as torch's losses ignore it
_FIRST = 2  # the code of the first character


@dataclass(frozen=True)
class Tokens:
    """How text becomes codes, and back.

    Args:
        characters: the vocabulary, if tokens are characters; their codes are 2, 3, ..., padding is 0, and 1
            is any other character.
        tokenizer: if they are not, a tokenizer.json of the package tokenizers, or llama2.c's tokenizer.bin.
        count: how many codes the tokenizer has, if that is known without reading it.
    """

    characters: str = ""
    tokenizer: str | None = None
    count: int | None = None

    @classmethod
    def of(cls, texts: Sequence[str], tokenizer: str | Path | None = None) -> "Tokens":
        """Those of a tokenizer, or the characters of some texts."""
        if tokenizer is None:
            return cls("".join(sorted(set().union(*texts))))
        return cls(tokenizer=str(tokenizer))

    @property
    def size(self) -> int:
        """How many codes there are."""
        if self.count is not None:
            return self.count
        return _FIRST + len(self.characters) if self.tokenizer is None else self._loaded.size

    def encode(self, text: str) -> Tensor:
        """The codes of a text."""
        if self.tokenizer is not None:
            return torch.tensor(self._loaded.encode(text), dtype=torch.int64)
        return torch.tensor([self._codes.get(c, UNKNOWN) for c in text], dtype=torch.int64)

    def decode(self, codes: Any) -> str:
        """The text of some codes; characters that are not in the vocabulary are shown as �.

        So are codes beyond it, which a model may have that was not made for these tokens.
        """
        ids = codes.tolist() if isinstance(codes, Tensor) else list(codes)
        if self.tokenizer is not None:
            return str(self._loaded.decode(ids))
        shown = self._shown
        return "".join(shown[code] if code < len(shown) else shown[UNKNOWN] for code in ids)

    @cached_property
    def _codes(self) -> dict[str, int]:
        return {c: code for code, c in enumerate(self.characters, _FIRST)}

    @cached_property
    def _shown(self) -> tuple[str, ...]:
        return ("", "\N{REPLACEMENT CHARACTER}", *self.characters)

    @cached_property
    def _loaded(self) -> "_File":
        path = at_path(self.tokenizer or "")
        if not path.is_file():
            raise DataError(
                f"no tokenizer {self.tokenizer}, here or under FEDCOM_DATA; data.tokenizer names a "
                "tokenizer.json of the package tokenizers, or a tokenizer.bin of llama2.c"
            )
        if path.suffix == ".bin":
            old = llama2c.Tokenizer(path)
            return _File(
                len(old), lambda text: old.encode(text)[1:], lambda ids: old.decode([llama2c.START, *ids])
            )
        package = optional("tokenizers", "'fedcom[text]'")
        try:
            inner = package.Tokenizer.from_file(str(path))
        except Exception as error:  # of the package's own kind
            raise DataError(
                f"{self.tokenizer} is no tokenizer: {' '.join(str(error).split())}; data.tokenizer names a "
                "tokenizer.json of the package tokenizers, or a tokenizer.bin of llama2.c"
            ) from None
        encode = inner.encode
        return _File(
            inner.get_vocab_size(), lambda text: encode(text, add_special_tokens=False).ids, inner.decode
        )

    def __getstate__(self) -> dict[str, Any]:
        """Without what was loaded."""
        return {"characters": self.characters, "tokenizer": self.tokenizer, "count": self.count}


class _File(NamedTuple):
    """A tokenizer that was read: how many codes it has, and text to codes and back."""

    size: int
    encode: Callable[[str], list[int]]
    decode: Callable[[list[int]], str]
