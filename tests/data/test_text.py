"""Text by client: plays by role, a user's own text, sequences and their targets."""

import io
import json
import struct
import sys
import tarfile
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedcom.data import from_text, llama2c, load, read_tokens, save_tokens, split
from fedcom.data.plays import speeches
from fedcom.data.sources import SOURCES, Source
from fedcom.data.text import FAR, read_text, read_texts
from fedcom.data.tokens import Tokens
from fedcom.draws import Draw
from fedcom.errors import ConfigError, DataError
from tests.data.made import lay, sha256

LOUD = """A PLAY

DRAMATIS PERSONAE

KING JOHN, king of England.
HUBERT.

ACT I.

SCENE I. KING JOHN'S palace.

[Enter KING JOHN,
 and HUBERT]

KING JOHN.
Now, say, Chatillon,
   what would   France with us?

[Aside.]

Well.
I go on.

HUBERT. Thus, after greeting,
speaks the King.

KING JOHN.
[To HUBERT] A strange beginning!

SCENE II. France.

Trumpets sound
and nobody speaks.

HUBERT.
Silence. [Exit.] Good mother.

MRS. PAGE.
Sirs,
once.

MRS. PAGE.
Sirs, twice.
"""
PLAIN = """PERSONS.

Ham, a prince.

ACT I.

Ber.
Who's there?

Fran.
Nay, answer me: stand,
and unfold yourself.

Ber.
Long live the king!

Fran. Bernardo?

Fran.
You.

First Clown.
He.

First Clown.
You come
most carefully upon your hour.
"""


def said(text):
    found = {}
    for name, lines in speeches(text):
        found.setdefault(name, []).extend(lines)
    return found


def test_speakers_are_named_in_capitals_or_not_on_a_line_of_their_own_or_before_the_speech():
    assert said(LOUD) == {
        "KING JOHN": [
            *("Now, say, Chatillon,", "what would France with us?", "Well.", "I go on."),
            "A strange beginning!",
        ],
        "HUBERT": ["Thus, after greeting,", "speaks the King.", "Silence. Good mother."],
        "MRS. PAGE": ["Sirs,", "once.", "Sirs, twice."],
    }
    assert said(PLAIN) == {
        "BER": ["Who's there?", "Long live the king!"],
        "FRAN": ["Nay, answer me: stand,", "and unfold yourself.", "Bernardo?", "You."],
        "FIRST CLOWN": ["He.", "You come", "most carefully upon your hour."],
    }
    assert said(PLAIN.replace("\n", "\r\n")) == said(PLAIN)
    assert said("no play at all") == {}


def play(role, lines):
    line = f"{role}.\nLine {{}} of what {role.lower()} says, to be learnt."
    speech = "\n\n".join(line.format(i) for i in range(lines))
    return f"A PLAY\n\nACT I.\n\n{speech}\n\nSMALL.\nA word.\n\nSMALL.\nAnother.\n".encode()


@pytest.fixture
def plays(monkeypatch):
    """Two plays, the official files of the data set shakespeare; in the archive they have other names."""
    contents = {"one.txt": play("ANNE", 40), "two.txt": play("ANNE", 50)}
    files = {name: sha256(content) for name, content in contents.items()}

    def serve(*mirrors):
        source = Source("shakespeare", files, {"plays.tar.gz": None}, mirrors)
        monkeypatch.setitem(SOURCES, "shakespeare", (source,))
        return contents

    return serve


def packed(members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def test_plays_are_downloaded_and_found_in_the_archive_by_their_checksums(plays, server, cache):
    contents = plays(server.url)
    members = {f"pkg/{name[:3]}_gut.txt": content for name, content in contents.items()}
    lay(server.folder, {"plays.tar.gz": packed({**members, "pkg/one.txt": b"something else"})})
    data = load("shakespeare", length=30)
    assert {file.name: file.read_bytes() for file in (cache / "shakespeare").iterdir()} == contents
    assert len(data.groups.unique()) == len(data.test_groups.unique()) == 2  # SMALL says too little
    assert data.classes == data.tokens.size == 85
    # the last fifth of 40 and of 50 lines is for testing, and a sequence overlaps the next by no token
    for client, lines in enumerate((40, 50)):
        text = "\n".join(f"Line {i} of what anne says, to be learnt." for i in range(lines))
        cut = text.index(f"\nLine {lines - lines // 5} of")
        for x, y, groups, want in (
            (data.x, data.y, data.groups, text[:cut]),
            (data.test_x, data.test_y, data.test_groups, text[cut + 1 :]),
        ):
            own, targets = x[groups == client].flatten(), y[groups == client].flatten()
            kept = targets != -100
            assert data.tokens.decode(own[kept]) == want[:-1]
            assert data.tokens.decode(targets[kept]) == want[1:]
            assert (own[~kept] == 0).all()
    with pytest.raises(ConfigError, match="one per token; use 'natural'"):
        split("dirichlet", data.y, data.groups, 2, Draw.seeded(0))
    with pytest.raises(ConfigError, match="text has none"):
        load("shakespeare", normalise="all")


def test_an_archive_without_the_plays_is_refused(plays, server):
    plays(server.url)
    lay(server.folder, {"plays.tar.gz": packed({"one.txt": b"changed", "two.txt": b"changed"})})
    with pytest.raises(DataError, match=r"one\.txt has the wrong checksum"):
        load("shakespeare")


def test_a_text_is_cut_into_sequences_and_unknown_characters_are_one():
    data = from_text({"b": ("abcab", "axb"), "a": "ab\nba\nbb\nab\nab"}, length=3)
    assert data.tokens.characters == "\nabc"
    a, b, c, new = 3, 4, 5, 2
    assert data.x.tolist() == [[a, b, c], [a, 0, 0], [a, b, new], [b, a, new], [b, b, new], [a, 0, 0]]
    assert data.y[:2].tolist() == [[b, c, a], [b, -100, -100]]
    assert data.groups.tolist() == [0, 0, 1, 1, 1, 1]
    assert data.test_x.tolist() == [[a, 1, 0], [a, 0, 0]]
    assert data.test_y.tolist() == [[1, b, -100], [b, -100, -100]]
    assert data.tokens.decode(data.test_y[0, :2]) == "�b"
    assert data.tokens.decode([2, 10**6]) == data.tokens.characters[0] + "�", "a model may have more tokens"
    assert data.classes == 6
    (one,) = (from_text({"a": "one long line of words"}, test=0.4),)
    assert one.tokens.decode(one.x[0]) == "one long lin"
    assert Tokens("ab").encode("aXb").tolist() == [2, 1, 3]
    for bad, match in (
        ({}, "there is no text"),
        ({"a": 3}, "text of client 'a' is a int"),
        ({"a": "hello there", "b": "x"}, "client 'b' has less than two tokens"),
    ):
        with pytest.raises(DataError, match=match):
            from_text(bad)


def test_text_is_written_in_the_characters_of_a_model():
    data = from_text({"b": ("abcab", "axb"), "a": ("ba", "")}, length=3).in_characters("cxb~")
    assert (data.tokens.characters, data.classes) == ("cxb~", 6)
    c, b = 2, 4
    assert data.x.tolist() == [[1, b, c], [1, 0, 0], [b, 0, 0]]
    assert data.y.tolist() == [[b, c, 1], [b, -100, -100], [1, -100, -100]]
    assert data.test_x.tolist() == [[1, 1, 0]]
    assert data.in_characters("cxb~") is data


def test_own_text_is_a_file_or_a_folder_per_client_or_jsonl(tmp_path, monkeypatch):
    lay(tmp_path / "own", {"anna.txt": b"first line\nsecond line\nthird line", ".hidden": b"\xff"})
    lay(tmp_path / "own" / "bert", {"1.txt": b"one and\ntwo", "2.txt": b"three and\nfour\nfive"})
    folder = read_text(tmp_path / "own", length=100)
    assert folder.tokens.decode(folder.x[1]) == "one and\ntwo\nthree and\nfou"
    assert (
        folder.tokens.decode(folder.test_x[1]) == "fi\N{REPLACEMENT CHARACTER}"
    )  # no v in what is trained on
    rows = [{"who": 7, "said": "ab"}, {"who": "8", "said": "cd ef"}, {"who": 7, "said": "gh"}]
    lay(tmp_path, {"log.jsonl": "\n".join(map(json.dumps, rows)).encode()})
    lines = read_text(tmp_path / "log.jsonl", "said", "who", test=0.0)
    assert lines.tokens.decode(lines.x[0]) == "ab\ng"
    assert len(lines.test_x) == 0
    lay(tmp_path, {"gaps.jsonl": b'\xef\xbb\xbf{"text": "a b", "client": 1.0}\n{"text": "c d", "client": 1}'})
    gaps = read_text(tmp_path / "gaps.jsonl", test=0.0)
    assert gaps.tokens.characters == "\n abcd", "without a mark of the order of bytes, and of one client"
    assert gaps.tokens.decode(gaps.x[0]) == "a b\nc "
    assert len(from_text({"a": "one\ntwo\nthree\n"}, test=0.3).test_x) == 1, (
        "the last line is not what follows it"
    )
    for name, client in {"null": "null", "not-a-number": "NaN", "list": "[1]", "yes": "true"}.items():
        lay(tmp_path, {f"{name}.jsonl": f'{{"text": "a b", "client": {client}}}'.encode()})
        with pytest.raises(DataError, match="has the client"):
            read_text(tmp_path / f"{name}.jsonl")
    with pytest.raises(ConfigError, match="1 or more; got 0"):
        read_text(tmp_path / "own", length=0)
    lay(tmp_path, {"deeper.jsonl": b"[" * 100_000})
    lay(tmp_path, {"bad.jsonl": b'{"text": "a"}\n', "worse.jsonl": b"{}\n[1\n", "deep.jsonl": b"[]"})
    lay(tmp_path, {"b.txt": b"", "broken.jsonl": b"\n[1\n"})
    lay(tmp_path / "latin", {"x.txt": b"\xff\xfe\xfa"})
    (tmp_path / "empty").mkdir()
    for name, match in (
        ("bad.jsonl", "no 'client'; .*set data.client_column"),
        ("worse.jsonl", "line 1 .* has no 'text'"),
        ("deeper.jsonl", "line 1 .* is not JSON"),
        ("broken.jsonl", "line 2 .* is not JSON"),
        ("deep.jsonl", "not an object"),
        ("b.txt", "neither a folder of text files nor"),
        ("empty", "has no files"),
        ("latin", "cannot be read as UTF-8"),
        ("nowhere", "neither a folder"),
    ):
        with pytest.raises(DataError, match=match):
            read_text(tmp_path / name)
    for options, match in (({"test": "file.txt"}, "share of each"), ({"test": 1.5}, "from 0 to below 1")):
        with pytest.raises(ConfigError, match=match):
            read_text(tmp_path / "own", **options)
    with pytest.raises(ConfigError, match=r"are fields of \.jsonl"):
        read_text(tmp_path / "own", "said")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    lay(tmp_path, {"tokenizer.json": b"{}"})
    with pytest.raises(Exception, match=r"fedcom\[text\]"):
        read_text(tmp_path / "own", tokenizer=str(tmp_path / "tokenizer.json"))


def llama2c_file(path, joined):
    """A tokenizer.bin of letters, and of longer words with their scores."""
    words = {b"<unk>": 0, b"<s>": 0, b"</s>": 0, **dict.fromkeys((bytes([b]) for b in b" abt"), 0), **joined}
    entries = [struct.pack("<fi", score, len(word)) + word for word, score in words.items()]
    path.write_bytes(struct.pack("<i", 9) + b"".join(entries))
    return path


def test_what_is_hidden_in_a_client_s_folder_is_not_its_text(tmp_path):
    for name in ("anna/1.txt", "anna/.git/index", "anna/notes/.ipynb_checkpoints/1.txt", "bert/2.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"\xff" if ".git" in name else b"dear friend")
    assert read_texts(tmp_path) == {"anna": ["dear friend"], "bert": ["dear friend"]}


def test_two_files_of_one_stem_are_two_clients(tmp_path):
    for name in ("a.txt", "a.md", "b.txt"):
        (tmp_path / name).write_text(name)
    assert read_texts(tmp_path) == {"a.md": ["a.md"], "a.txt": ["a.txt"], "b.txt": ["b.txt"]}
    (tmp_path / "a.md").unlink()
    assert read_texts(tmp_path) == {"a": ["a.txt"], "b": ["b.txt"]}


def test_a_tokenizer_of_llama2c_cuts_text_and_the_file_of_its_tokens_needs_none(tmp_path):
    joined = {b"ab": -1.0, b" a": -3.0, b"abt": -2.0}
    file = llama2c_file(tmp_path / "tokenizer.bin", joined)
    start, ab, a, abt = 1, 7, 8, 9
    tokenizer = llama2c.Tokenizer(file)
    assert tokenizer.encode("abt a t") == [start, 3, abt, a, 3, 6]
    assert tokenizer.decode(tokenizer.encode("ab  bt")) == "ab  bt"
    across = llama2c.Tokenizer(llama2c_file(tmp_path / "across.bin", {**joined, b"t ": 0.0}))
    assert across.encode("abt a") == [start, 3, ab, 10, 4]  # a word ends in a space, so words are not cut
    assert tokenizer.decode([1, ab, 10]) == "ab", "a model may have more tokens than its tokenizer"
    whole = file.read_bytes()
    backwards = whole + struct.pack("<fi", 0.0, -8)  # would be read for ever
    for damaged in (whole[:-1], backwards, whole[:20], b""):
        (tmp_path / "damaged.bin").write_bytes(damaged)
        with pytest.raises(DataError, match="or cut short"):
            llama2c.Tokenizer(tmp_path / "damaged.bin")
    data = from_text({"x": ("ab abt a t", "a b"), "y": ("tab tab", "ab")}, length=3, tokenizer=file)
    assert data.classes == 10
    assert data.x[0].tolist() == [3, ab, 3]
    with pytest.raises(ConfigError, match=r"ends in \.npz"):
        save_tokens(data, tmp_path / "all.txt")
    save_tokens(data, tmp_path / "all.npz")
    file.unlink()
    back = read_tokens(tmp_path / "all.npz", 3)
    assert (back.name, back.classes) == ("text", 10)
    for part in ("x", "y", "test_x", "test_y", "groups", "test_groups"):
        assert torch.equal(getattr(back, part), getattr(data, part)), part
    assert read_tokens(tmp_path / "all.npz", 2).x[0].tolist() == [3, ab]
    with pytest.raises(ConfigError, match="1 or more; got 0"):
        read_tokens(tmp_path / "all.npz", 0)
    with pytest.raises(DataError, match=r"no tokenizer \S*\.bin, here or under FEDCOM_DATA"):
        back.tokens.encode("a")
    whole = dict(np.load(tmp_path / "all.npz"))
    for change, match in (
        ({"train_sizes": whole["train_sizes"][:1]}, "do not add up"),
        ({"train": whole["train"] + 9}, "not all below 10"),
        ({"test_sizes": np.array([5]), "test": whole["test"][:5]}, "different clients"),
        ({"about": np.array("{}")}, "no file of tokens: 'size'"),
    ):
        np.savez(tmp_path / "bad.npz", **{**whole, **change})
        with pytest.raises(DataError, match=match):
            read_tokens(tmp_path / "bad.npz")


def greedily(words, scores, text):
    """Tokens of a text, with the pair of the best score joined again and again, of equal ones the first."""
    found = [words.index(letter.encode()) for letter in text]
    while True:
        pairs = [words[a] + words[b] for a, b in pairwise(found)]
        joined = [(-scores[words.index(pair)], i) for i, pair in enumerate(pairs) if pair in words]
        if not joined:
            return found
        i = min(joined)[1]
        found[i : i + 2] = [words.index(pairs[i])]


@given(
    st.dictionaries(st.text("ab t", min_size=2, max_size=6).map(str.encode), st.integers(-3, 3), max_size=20),
    st.text("ab t", min_size=1, max_size=40),
)
def test_a_tokenizer_of_llama2c_joins_the_best_pair_first(joined, text):
    words = [b"<unk>", b"<s>", b"</s>", b" ", b"a", b"b", b"t", *joined]
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = llama2c.Tokenizer(llama2c_file(Path(folder) / "t.bin", joined))
    assert tokenizer.encode(text) == [1, *greedily(words, [0] * 7 + list(joined.values()), " " + text)]


def test_long_text_without_spaces_is_cut_into_tokens(tmp_path):
    file = llama2c_file(tmp_path / "t.bin", {b"ab": 1.0, b"abab": 2.0, b"ba": 3.0, b"ta": 4.0})
    ab, abab, ba = 7, 8, 9
    tokenizer = llama2c.Tokenizer(file)
    assert tokenizer.encode("ab" * 20_000) == [1, 3, 4, *[ba] * 19_999, 5]
    file = llama2c_file(tmp_path / "t.bin", {b"ab": 1.0, b"abab": 2.0})
    assert llama2c.Tokenizer(file).encode("ab" * 19_999) == [1, 3, *[abab] * 9_999, ab]


def test_bytes_of_older_tokenizers_of_llama2c_do_not_hide_words(tmp_path):
    """Their bytes are written as the characters themselves, so that a comma is there twice."""
    first, later = [b"<unk>", b"\n<s>\n", b"\n</s>\n"], [b" ", b",", b"a", b" a", "é".encode()]
    for file, told in (("old.bin", "{0}"), ("new.bin", "<0x{1:02X}>")):
        words = [*first, *(told.format(chr(byte), byte).encode() for byte in range(256)), *later]
        entries = [struct.pack("<fi", float(i > 258), len(word)) + word for i, word in enumerate(words)]
        (tmp_path / file).write_bytes(struct.pack("<i", 9) + b"".join(entries))
        tokenizer = llama2c.Tokenizer(tmp_path / file)
        assert tokenizer.encode("a,aé\n€") == [1, 262, 260, 261, 263, 3 + 10, 3 + 0xE2, 3 + 0x82, 3 + 0xAC]
        assert tokenizer.decode(tokenizer.encode("a,aé\n€")) == "a,aé\n€"
        tokens = Tokens(tokenizer=str(tmp_path / file))
        assert tokens.decode(tokens.encode("a,aé\n€")) == "a,aé\n€", "without the space put before a text"


def test_a_tokenizer_file_cuts_text_into_tokens(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0, "to": 1, "be": 2}, "<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "t.json"))
    data = from_text({"a": ("to be or to be", "be to")}, length=2, tokenizer=tmp_path / "t.json")
    assert data.x.tolist() == [[1, 2], [0, 1]]
    assert data.y.tolist() == [[2, 0], [1, 2]]
    assert data.classes == 3
    lay(tmp_path, {"no.json": b"{}"})
    with pytest.raises(DataError, match="is no tokenizer"):
        from_text({"a": "to be"}, tokenizer=tmp_path / "no.json")
    assert torch.equal(data.test_x, torch.tensor([[2, 0]]))


def test_a_length_beyond_all_texts_pads_no_further_than_the_longest_needs():
    texts = {"a": ("ab" * 600, "b" * 30), "b": ("abba" * 5, "a")}
    for length, wide in ((600, 600), (FAR, FAR), (FAR + 1, 1199), (10**9, 1199), (10**30, 1199)):
        data = from_text(texts, length=length)
        assert data.x.shape == data.y.shape == (2 if length > 600 else 3, wide)
        assert data.test_x.shape == (1, wide)
        assert int((data.y != -100).sum()) == 1199 + 19
        assert int((data.test_y != -100).sum()) == 29
    long = {"a": ("ab" * 2000, "b" * 5000)}  # the longest may be one to test on
    assert from_text(long, length=10**9).x.shape == (1, 4999)
    assert from_text(long, length=3000).x.shape == (2, 3000)
    assert from_text({"a": ("ab", ""), "b": ("ab", "")}, length=10**9).x.shape == (2, 1)


def test_a_length_that_needs_too_much_memory_is_refused_before_it_is_taken(monkeypatch):
    texts = {"long": ("ab" * 5000, "")} | {str(i): ("ab" * 20, "") for i in range(9)}
    monkeypatch.setattr("fedcom.data.text.memory", lambda: 10**6)
    assert from_text(texts).x.shape == (125 + 9, 80)
    said = r"9,999 tokens .data.length. need 3,199,680 bytes.* has 1,000,000;.* 10,000 tokens; data.length=80"
    with pytest.raises(ConfigError, match=said):
        from_text(texts, length=10**9)
    monkeypatch.setattr("fedcom.data.text.memory", lambda: 10**5)
    for length in (10, 80, 10**9):
        with pytest.raises(ConfigError, match="tokens; use less text"):
            from_text(texts, length=length)
