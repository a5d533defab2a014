"""How text becomes whole numbers, and back: by characters, or by a tokenizer file."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

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
        tokenizer: a tokenizer.json of the package tokenizers, if they are not.
    """

    characters: str = ""
    tokenizer: str | None = None

    @classmethod
    def of(cls, texts: Sequence[str], tokenizer: str | Path | None = None) -> "Tokens":
        """Those of a tokenizer, or the characters of some texts."""
        if tokenizer is None:
            return cls("".join(sorted(set().union(*texts))))
        return cls(tokenizer=str(tokenizer))

    @property
    def size(self) -> int:
        """How many codes there are."""
        return _FIRST + len(self.characters) if self.tokenizer is None else self._loaded.get_vocab_size()

    def encode(self, text: str) -> Tensor:
        """The codes of a text."""
        if self.tokenizer is not None:
            return torch.tensor(self._loaded.encode(text, add_special_tokens=False).ids, dtype=torch.int64)
        return torch.tensor([self._codes.get(c, UNKNOWN) for c in text], dtype=torch.int64)

    def decode(self, codes: Any) -> str:
        """The text of some codes; characters that are not in the vocabulary are shown as �."""
        ids = codes.tolist() if isinstance(codes, Tensor) else list(codes)
        if self.tokenizer is not None:
            return str(self._loaded.decode(ids))
        return "".join(self._shown[code] for code in ids)

    @cached_property
    def _codes(self) -> dict[str, int]:
        return {c: code for code, c in enumerate(self.characters, _FIRST)}

    @cached_property
    def _shown(self) -> tuple[str, ...]:
        return ("", "\N{REPLACEMENT CHARACTER}", *self.characters)

    @cached_property
    def _loaded(self) -> Any:
        package = optional("tokenizers", "'fedcom[text]'")
        try:
            return package.Tokenizer.from_file(self.tokenizer)
        except Exception as error:  # of the package's own kind
            raise DataError(
                f"{self.tokenizer} is no tokenizer: {' '.join(str(error).split())}; data.tokenizer names a "
                "tokenizer.json of the package tokenizers"
            ) from None

    def __getstate__(self) -> dict[str, Any]:
        """Without what was loaded."""
        return {"characters": self.characters, "tokenizer": self.tokenizer}
