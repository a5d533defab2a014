"""What looks like a secret is left out of what is written about the machine: results, pages, error files."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

_GONE, _US = "***", Path(__file__).parent.name
_WORDS = "token|secret|passw(?:or)?d|passphrase|credential|signature|(?:api|private|access)[-_]?key"
_NAME = rf"[\w.-]*(?:{_WORDS})[\w.-]*"
_ASSIGNED = re.compile(rf"({_NAME})(\s*[=:]\s*)(\"[^\"]*\"|'[^']*'|[^\s&,;]+)", re.IGNORECASE)
_FLAG = re.compile(rf"-{{1,2}}{_NAME}", re.IGNORECASE)
_IN_URL = re.compile(r"(?<=://)[^/\s@]+(?=@)")
_BEARER = re.compile(r"(\b(?:bearer|basic)\s+)[\w.~+/=-]{8,}", re.IGNORECASE)


def redacted(text: str) -> str:
    """A text with `***` for the values of tokens, keys and passwords, and for the credentials in URLs."""
    text = _BEARER.sub(rf"\1{_GONE}", _IN_URL.sub(_GONE, text))
    return _ASSIGNED.sub(rf"\1\2{_GONE}", text)


def own_command() -> list[str] | None:
    """The command that started this process, without secrets; None if it is not one of fedcom's.

    The arguments of other programs are none of our business: Flower gives its ServerApp a token there.
    """
    return redacted_command(sys.argv)


def redacted_command(words: Sequence[str]) -> list[str] | None:
    """A command of fedcom's without secrets; None if it is another program's."""
    program = Path(words[0].replace("\\", "/") if words else "")
    if _US not in (program.stem, program.parent.name if program.stem == "__main__" else ""):
        return None
    words = [_US, *words[1:]]
    found = [redacted(word) for word in words]
    for i, word in enumerate(words[:-1]):
        if _FLAG.fullmatch(word):
            found[i + 1] = _GONE
    return found
