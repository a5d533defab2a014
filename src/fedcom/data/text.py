"""Clients' text as sequences of tokens, each with the token that follows it as its target."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedcom.data.dataset import Dataset
from fedcom.data.files import memory
from fedcom.data.tokens import IGNORED, PADDING, Tokens
from fedcom.errors import ConfigError, DataError, nearest

LENGTH = 80  # tokens of a sequence, unless told otherwise
FAR = 2**11  # up to here sequences have the length asked for, even if no text is that long
_BYTES = 4 * 8  # of a token in memory: it and its target, which are put together from those of each client
TEST = 0.2  # the share of each client's lines to test on, unless told otherwise
_LIST = (".jsonl", ".ndjson")
_TEXT, _CLIENT = "text", "client"  # what the fields of jsonl are called, unless told otherwise


class Halves(NamedTuple):
    """A client's text to train on and to test on."""

    train: str
    test: str


def from_text(
    texts: Mapping[str, str | tuple[str, str]],
    *,
    test: float = TEST,
    length: int = LENGTH,
    tokenizer: str | Path | None = None,
    characters: str | None = None,
    name: str = "text",
) -> Dataset:
    """A data set of clients' texts, to predict the next character or token of each.

    A text is cut into sequences of `length` tokens. The last one is padded, and what is padded has the target
    -100. Beyond 2048 tokens, sequences are no longer than the longest text needs. The vocabulary is that of
    all clients' training text; characters that only the test text has are all one unknown character.

    Args:
        texts: of each client, by name; or a pair of texts, to train on and to test on.
        test: the share of each client's lines, the last ones, to test on, where there is no such pair.
        tokenizer: a tokenizer.json (package tokenizers) to cut the text into tokens; None: characters.
        characters: the vocabulary; None: found.
    """
    if not texts:
        raise DataError("there is no text; give that of one client or more, as {name: text}")
    if not 0 <= test < 1:
        raise ConfigError(f"data.test is the share of each client's lines, from 0 to below 1; got {test}")
    halves = {str(client): _halves(str(client), text, test) for client, text in texts.items()}
    if characters is not None and tokenizer is not None:
        raise ConfigError("give a tokenizer or characters, not both")
    known = [half.train for half in halves.values()]
    tokens = Tokens(characters) if characters is not None else Tokens.of(known, tokenizer)
    codes = {client: (tokens.encode(half.train), tokens.encode(half.test)) for client, half in halves.items()}
    return from_codes(codes, tokens, length, name)


def from_codes(texts: Mapping[str, tuple[Tensor, Tensor]], tokens: Tokens, length: int, name: str) -> Dataset:
    """A data set of clients' texts that are cut into tokens already.

    Args:
        texts: the codes to train on and to test on of each client, by name.
    """
    if length < 1:
        raise ConfigError(f"the length of a sequence is 1 or more; got {length}")
    length = _fitting(length, [len(codes) - 1 for half in texts.values() for codes in half])
    parts = []
    for half in zip(*texts.values(), strict=True):
        cut = [sequences(codes, length) for codes in half]
        groups = torch.arange(len(cut)).repeat_interleave(torch.tensor([len(x) for x, _ in cut]))
        parts.append((torch.cat([x for x, _ in cut]), torch.cat([y for _, y in cut]), groups))
    (x, y, groups), (test_x, test_y, test_groups) = parts
    silent = sorted(set(range(len(texts))) - set(groups.tolist()))
    if silent:
        who = list(texts)[silent[0]]
        raise DataError(
            f"client {who!r} has less than two tokens to train on; leave it out, or lower data.test"
        )
    names = tuple(texts)
    return Dataset(name, x, y, test_x, test_y, tokens.size, groups, test_groups, tokens=tokens, names=names)


def _fitting(length: int, sizes: Sequence[int]) -> int:
    """How long sequences are for a given length; a ConfigError if they take more memory than there is.

    Args:
        sizes: how many tokens of each text are followed by another.
    """
    longest = max(1, *sizes)
    length = length if length <= FAR else min(length, longest)

    def needed(each: int) -> int:
        return sum(-(-max(size, 0) // each) * each for size in sizes) * _BYTES

    if (bytes_ := needed(length)) > memory():
        usual = needed(LENGTH)
        remedy = (
            "use less text" if usual >= min(bytes_, memory()) else f"data.length={LENGTH} needs {usual:,}"
        )
        raise ConfigError(
            f"sequences of {length:,} tokens (data.length) need {bytes_:,} bytes, and this machine has "
            f"{memory():,}; the last one of each text is padded, and the longest text has {longest + 1:,} "
            f"tokens; {remedy}"
        )
    return length


def sequences(codes: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """The sequences of a text, and the targets of each of its tokens: the next one, or IGNORED in padding."""
    count = -(-max(len(codes) - 1, 0) // length)
    x, y = codes.new_full((count * length,), PADDING), codes.new_full((count * length,), IGNORED)
    if count:
        x[: len(codes) - 1], y[: len(codes) - 1] = codes[:-1], codes[1:]
    return x.reshape(count, length), y.reshape(count, length)


def _halves(client: str, text: Any, test: float) -> Halves:
    """The text of a client to train on, and the share at its end to test on."""
    if isinstance(text, tuple) and len(text) == 2 and all(isinstance(part, str) for part in text):
        return Halves(*text)
    if not isinstance(text, str):
        raise DataError(
            f"the text of client {client!r} is a {type(text).__name__}; give a text, or a pair of texts, to "
            "train on and to test on"
        )
    between = "\n" if "\n" in text else " "  # one long line is cut between words
    pieces = text.split(between)
    taken = round(test * len(pieces))
    kept = max(1, len(pieces) - taken)
    while taken and kept > 1 and not any(piece.strip() for piece in pieces[kept:]):
        kept -= 1  # what follows the last line is no line
    return Halves(between.join(pieces[:kept]), between.join(pieces[kept:]))


def read_texts(path: str | Path, text: str | None = None, client: str | None = None) -> dict[str, list[str]]:
    """The documents of each client in a folder of files, in a folder of folders, or in a .jsonl file.

    In a folder each file is a client's, and so are all files of each folder in it. They are named without the
    files' suffixes, unless two would then have one name. In .jsonl each line is an object with a text and a
    client.

    Args:
        text: the name of the field with the text; None: text.
        client: the name of the field with the client; None: client.
    """
    path = Path(path)
    if path.is_file() and path.suffix in _LIST:
        return _read_lines(path, text or _TEXT, client or _CLIENT)
    if text is not None or client is not None:
        raise ConfigError(f"data.text_column and data.client_column are fields of .jsonl, and {path} is none")
    if not path.is_dir():
        raise DataError(
            f"{path} is neither a folder of text files nor a {' or '.join(_LIST)} file; data.path names the "
            "text, from the current folder or in full"
        )
    found = dict[str, list[str]]()
    entries = sorted(each for each in path.iterdir() if not each.name.startswith("."))
    names = [entry.stem if entry.is_file() else entry.name for entry in entries]
    if len({*names}) < len(names):
        names = [entry.name for entry in entries]
    for entry, name in zip(entries, names, strict=True):
        files = [entry] if entry.is_file() else sorted(file for file in entry.rglob("*") if file.is_file())
        documents = [_read(file) for file in files if not _hidden(file.relative_to(path))]
        if documents:
            found[name] = documents
    if not found:
        raise DataError(f"{path} has no files; each file or folder in it is the text of a client")
    return found


def _hidden(file: Path) -> bool:
    """Whether a file or a folder that it is in begins with a dot, as those of editors and of git do."""
    return any(part.startswith(".") for part in file.parts)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file} cannot be read as UTF-8 text: {error}; mend it or move it away") from None


def _read_lines(path: Path, text: str, client: str) -> dict[str, list[str]]:
    found = dict[str, list[str]]()
    for number, line in enumerate(_read(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"line {number} of {path} is not JSON: {error}") from None
        if not isinstance(entry, dict):
            raise DataError(f"line {number} of {path} is not an object with a text and a client")
        for field, key in ((text, "text_column"), (client, "client_column")):
            if field not in entry:
                raise DataError(
                    f"line {number} of {path} has no {field!r}; {nearest(field, entry)}; set data.{key}"
                )
        if not isinstance(entry[text], str):
            raise DataError(f"line {number} of {path} has no text in {text!r}")
        found.setdefault(_name(entry[client], number, path), []).append(entry[text])
    if not found:
        raise DataError(f"{path} has no lines; each is an object with a text and a client")
    return found


def _name(client: Any, number: int, path: Path) -> str:
    """The name of a client in a line of jsonl; tables with gaps write whole numbers as 1.0."""
    if isinstance(client, float) and client.is_integer():
        client = int(client)
    if type(client) not in (str, int) or client == "":
        raise DataError(f"line {number} of {path} has the client {client!r}; give a name or a whole number")
    return str(client)


def read_text(
    path: str | Path,
    text: str | None = None,
    client: str | None = None,
    test: float | str | None = None,
    length: int | None = None,
    tokenizer: str | None = None,
    characters: str | None = None,
) -> Dataset:
    """The data set of a user's own text.

    Args:
        path: see `read_texts`, which explains `text` and `client` too.
        test: the share of each client's lines to test on; None: TEST.
        length: of a sequence; None: LENGTH.
        tokenizer: see `from_text`.
        characters: the vocabulary where there is no tokenizer; None: found.
    """
    if isinstance(test, str):
        raise ConfigError(
            f"data.test is the share of each client's lines for text, such as 0.2; got {test!r}"
        )
    documents = read_texts(path, text, client)
    whole = {name: "\n".join(own) for name, own in documents.items()}
    share, length = TEST if test is None else test, LENGTH if length is None else length
    known = characters if tokenizer is None else None
    return from_text(
        whole, test=share, length=length, tokenizer=tokenizer, characters=known, name=Path(path).stem
    )
