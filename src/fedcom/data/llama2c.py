"""The tokenizer of llama2.c, a tokenizer.bin: text to tokens and back."""

import re
import struct
from functools import lru_cache
from heapq import heappop, heappush
from pathlib import Path

from fedcom.errors import DataError

_BYTE = b"<0x%02X>"  # the word of a single byte
_BYTES = {_BYTE % byte: bytes([byte]) for byte in range(256)}
_BETWEEN = re.compile("(?<=[^ ])(?= )")  # where a text may be cut if no token reaches across
_SIGNS = 3  # the first tokens: an unknown one, the beginning and the end of a text
START = 1  # the token before each text
_PLAIN = [chr(byte).encode() for byte in range(256)]  # the words of single bytes in older files


class Tokenizer:
    """Text to tokens and back, by a tokenizer.bin of llama2.c: pairs are joined, the best first."""

    ends = frozenset({1, 2})

    def __init__(self, path: Path) -> None:
        self._words, self._scores = list[bytes](), list[float]()
        try:
            data, place = path.read_bytes(), 4
            while place < len(data):
                score, length = struct.unpack_from("<fi", data, place)
                if not 0 <= length <= len(data) - place - 8:
                    raise struct.error
                self._words.append(data[place + 8 : place + 8 + length])
                self._scores.append(score)
                place += 8 + length
            if len(self._words) < _SIGNS:
                raise struct.error
        except (OSError, struct.error):
            raise DataError(f"{path} is no tokenizer of llama2.c, or cut short") from None
        after = _SIGNS + len(_PLAIN)
        if self._words[_SIGNS:after] == _PLAIN:  # which would hide the words that are meant
            self._words[_SIGNS:after] = _BYTES
        self._number = {word: i for i, word in reversed(list(enumerate(self._words)))}
        self._apart = not any(re.search(b"[^ ] ", word) for word in self._words)
        self._joined = lru_cache(2**16)(self._join)

    def __len__(self) -> int:
        return len(self._words)

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, the one of its beginning first."""
        whole = f" {text}" if text else ""
        pieces = _BETWEEN.split(whole) if self._apart else [whole]
        return [START, *(token for piece in pieces for token in self._joined(piece))]

    def _join(self, text: str) -> list[int]:
        found, known = list[int](), self._number
        for letter in text:
            raw = letter.encode()
            found += [known[raw]] if raw in known else [known.get(_BYTE % byte, 0) for byte in raw]
        return self._merged(found)

    def _merged(self, found: list[int]) -> list[int]:
        """Some tokens after pairs of them are joined: the best pair first, and of equal ones the leftmost.

        It takes little more than a step per token: pairs wait in a heap, and tokens are left out by links.
        """
        end, heap = len(found), list[tuple[float, int, int]]()
        before, after = list(range(-1, end)), list(range(1, end + 1))  # the places of a token's neighbours

        def joined(i: int) -> int | None:
            """The token that those at a place and after it make, if there is one."""
            if i < 0 or after[i] == end:
                return None
            return self._number.get(self._words[found[i]] + self._words[found[after[i]]])

        def offer(i: int) -> None:
            if (both := joined(i)) is not None:
                heappush(heap, (-self._scores[both], i, both))

        for i in range(end):
            offer(i)
        while heap:
            _, i, both = heappop(heap)
            if joined(i) == both:  # else one of the two was joined with another meanwhile
                j, found[i] = after[i], both
                after[i], before[after[j]], after[j] = after[j], i, end
                offer(before[i])
                offer(i)
        kept, i = list[int](), 0
        while i < end:
            kept.append(found[i])
            i = after[i]
        return kept

    def decode(self, tokens: list[int]) -> str:
        """The text of some tokens."""
        words = [self._words[t] for t in tokens if _SIGNS <= t < len(self._words)]
        raw = b"".join(_BYTES.get(word, word) for word in words)
        text = raw.decode(errors="replace")
        return text.removeprefix(" ") if tokens[:1] == [START] else text
