"""Shakespeare's plays by role: what each character of each play says, from plain texts."""

import re
from collections import Counter

from fedcom.data.files import Found
from fedcom.errors import DataError

LEAST = 1000  # characters that a role must speak to be a client
# What the plays are written in, in the order of their codes.
CHARACTERS = "\n !\"&'(),-./0123456789:;?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[]_abcdefghijklmnopqrstuvwxyz{}"
_DIRECTION = re.compile(r"[\[{][^\[\]{}]{0,2000}[\]}]|\[.*$", re.MULTILINE)  # some are not closed
_BEGIN = re.compile(r"^\s*(?:THE |The )?(?:ACT|Act|PROLOGUE|Prologue|INDUCTION|Induction)\b", re.MULTILINE)
_PLACE = re.compile(r"(?:THE )?(?:ACT|SCENE)\b", re.IGNORECASE)
_LOUD = re.compile(r"(?:[0-9] )?[A-Z][A-Z' .,&-]*(?: (?:and|of|the) [A-Z' .,-]+)*[.:]?")  # a name in capitals
_PLAIN = re.compile(r"(?:[A-Z][A-Za-z']*[ .]*){1,3}[.:]")  # a name as in "First Clown."
_BEFORE = re.compile(r"([A-Z][A-Za-z']+(?: [A-Z0-9][A-Za-z']*){0,3})[.:]\s+(\S.*)")  # a name, then speech
_SEEN = 2  # how often a name must stand before speeches in a play to be taken for one

Speech = tuple[str, list[str]]  # a name, and the lines that follow it


def roles_of(found: Found) -> dict[str, str]:
    """What each role says that says enough, by "play, ROLE"; plays are told apart by their files' names."""
    texts = dict[str, str]()
    for file in found.source.files:
        play = file.split(".")[0]
        try:
            own = speeches(found.content(file).decode("utf-8"))
        except UnicodeDecodeError as error:
            raise DataError(f"{found.folder / file} is not text: {error}; fetch it again") from None
        said = dict[str, list[str]]()
        for name, lines in own:
            said.setdefault(name, []).extend(lines)
        texts |= {f"{play}, {name}": "\n".join(lines) for name, lines in said.items()}
    enough = {role: text for role, text in texts.items() if len(text) >= LEAST}
    if not enough:
        raise DataError(
            f"{found.folder} holds no role of {LEAST:,} characters; are its files plays? fetch them again"
        )
    return enough


def speeches(text: str) -> list[Speech]:
    """The speeches of a play, in order: the speaker in capitals, and the lines without stage directions.

    A speaker is named on a line of its own or on the first line of the speech, in capitals ("MACBETH.") or,
    in plays that write it so, not ("Ham."). What comes before the first act, and headings, are left out. A
    paragraph without a name goes on with the speech before it.
    """
    text = text.replace("\r\n", "\n")
    begin = _BEGIN.search(text)
    body = _DIRECTION.sub("", text[begin.start() if begin else 0 :])
    blocks = [block.strip("\n").split("\n") for block in re.split(r"\n\s*\n", body)]
    blocks = [block for block in blocks if "".join(block).strip()]
    names = _names(blocks)
    found = list[Speech]()
    for block in blocks:
        if _PLACE.match(block[0].strip()):
            found.append(("", []))  # nobody speaks until the next name
            continue
        name, first = _heading(block, names)
        if name:
            found.append((name, []))
        lines = (" ".join(line.split()) for line in [*first, *block[1:]])
        if found:
            found[-1][1].extend(line for line in lines if line)
    return [(name, lines) for name, lines in found if name and lines]


def _names(blocks: list[list[str]]) -> set[str]:
    """The names in a play: those in capitals, or if most are not in capitals also the others.

    What may be no name must stand before several speeches.
    """
    loud, plain, before = Counter[str](), Counter[str](), Counter[str]()
    for block in blocks:
        line = block[0].strip()
        named = _BEFORE.match(line)
        if len(block) > 1 and _LOUD.fullmatch(line):
            loud[_tidy(line)] += _SEEN if line.endswith(".") else 1
        elif len(block) > 1 and _PLAIN.fullmatch(line):
            plain[_tidy(line)] += 1
        elif named and named[1].isupper():
            before[_tidy(named[1])] += 1
    kept = loud + before + (plain if plain.total() > loud.total() else Counter())
    return {name for name, n in kept.items() if n >= _SEEN}


def _heading(block: list[str], names: set[str]) -> tuple[str, list[str]]:
    """The speaker that the first line of a paragraph names, "" if none, and what else that line says."""
    line = block[0].strip()
    alone = _LOUD.fullmatch(line) or (len(block) > 1 and _PLAIN.fullmatch(line))
    if alone and _tidy(line) in names:
        return _tidy(line), []
    found = _BEFORE.match(line)
    if found and _tidy(found[1]) in names:
        return _tidy(found[1]), [found[2]]
    return "", [line]


def _tidy(name: str) -> str:
    """A name without the dot behind it, in capitals."""
    return " ".join(name.rstrip(" .:").upper().split())
