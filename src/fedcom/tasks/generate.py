"""Text from a language model, token by token; and the tokenizers that folders of models have."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fedcom.data import llama2c
from fedcom.data.files import at_path
from fedcom.draws import Draw
from fedcom.errors import ConfigError, DataError
from fedcom.tasks.objective import tensor_of


class Tokenizer(Protocol):
    """What turns text into tokens and back; if it has `ends`, they are the tokens that end a text."""

    def encode(self, text: str) -> Iterable[int] | Tensor:
        """The tokens of a text."""

    def decode(self, tokens: list[int]) -> str:
        """The text of some tokens."""


class TokenizerFile:
    """A tokenizer.json, read by the package tokenizers.

    Args:
        ends: the tokens that end a text.
    """

    def __init__(self, path: Path, ends: frozenset[int] = frozenset()) -> None:
        try:
            import tokenizers
        except ImportError:
            raise ConfigError(
                f"{path} needs the package tokenizers; pip install 'fedcom[text]', or tokenizers alone"
            ) from None
        try:
            self._inner: Any = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the package raises nothing more special
            raise DataError(f"{path} is no tokenizer: {' '.join(str(error).split())}") from None
        self.ends = ends

    def encode(self, text: str) -> list[int]:
        """The tokens of a text."""
        return list(self._inner.encode(text).ids)

    def decode(self, tokens: list[int]) -> str:
        """The text of some tokens."""
        return str(self._inner.decode(tokens))


def tokenizer_in(folder: str | Path) -> Tokenizer:
    """The tokenizer of a model's folder: tokenizer.json, or tokenizer.bin of llama2.c."""
    file = tokenizer_file(folder)
    if file is None:
        raise DataError(f"{folder} has no tokenizer: neither tokenizer.json nor tokenizer.bin")
    return llama2c.Tokenizer(file) if file.suffix == ".bin" else TokenizerFile(file, _ends(file.parent))


def tokenizer_file(folder: str | Path) -> Path | None:
    """The file of the tokenizer of a model's folder; None: there is none."""
    files = (at_path(folder) / name for name in ("tokenizer.json", "tokenizer.bin"))
    return next((file for file in files if file.is_file()), None)


def _ends(folder: Path) -> frozenset[int]:
    """The tokens that end a text, as generation_config.json or config.json says."""
    for name in ("generation_config.json", "config.json"):
        with suppress(OSError, ValueError):
            found = json.loads((folder / name).read_text(encoding="utf-8")).get("eos_token_id")
            if found is not None:
                return frozenset([found] if isinstance(found, int) else found)
    return frozenset()


@torch.no_grad()
def generate(
    module: nn.Module,
    tokenizer: Tokenizer,
    prompt: str,
    tokens: int = 64,
    temperature: float = 0.0,
    seed: int = 0,
    context: int | None = None,
) -> str:
    """A text that begins with the prompt.

    Args:
        module: tokens [1, positions] to scores of the next one [1, positions, vocabulary]. It is evaluated.
        tokens: how many are added at most.
        temperature: scores are divided by it before one is drawn; 0: the likeliest token is taken.
        seed: of the draws.
        context: how many tokens the module sees at most; None: what its attribute `context` says, or all.
    """
    if tokens < 1 or temperature < 0:
        raise ConfigError(f"tokens must be 1 or more and temperature 0 or more; got {tokens}, {temperature}")
    found, draw = [int(token) for token in tokenizer.encode(prompt)], Draw.seeded(seed).fold("tokens")
    ends: frozenset[int] = getattr(tokenizer, "ends", frozenset())
    if not found:
        raise ConfigError("the prompt has no token to go on from; give it a word")
    own = getattr(module, "context", None)
    context = own if context is None and isinstance(own, int) else context
    with _evaluated(module):
        for number in range(tokens):
            scores = _scores(module, found if context is None else found[-context:])
            if temperature == 0:
                token = int(scores.argmax())
            else:
                bounds = (scores / temperature).softmax(-1).cumsum(-1)
                drawn = draw.fold(number).uniform(1, torch.float64) * bounds[-1]
                token = min(int(torch.searchsorted(bounds, drawn, right=True)), len(scores) - 1)
            if token in ends:
                break
            found.append(token)
    return tokenizer.decode(found)


def _scores(module: nn.Module, seen: list[int]) -> Tensor:
    """The scores of what may come after some tokens."""
    device = next(module.parameters()).device
    try:
        return tensor_of(module(torch.tensor([seen], device=device)))[0, -1].double().cpu()
    except IndexError as error:
        raise ConfigError(
            f"the module does not know token {max(seen)}, which the tokenizer made, or takes fewer than "
            f"{len(seen)} tokens: {error}; give the tokenizer that it was trained with, or context"
        ) from error


@contextmanager
def _evaluated(module: nn.Module) -> Iterator[None]:
    """Nothing is dropped, and each part is in its own mode again afterwards."""
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True
