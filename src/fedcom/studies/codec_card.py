"""The codec report card: real bits, error, bias, gap to the bound and speed of every codec."""

import math
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from fedcom.codecs import CODECS, Codec
from fedcom.draws import Draw
from fedcom.errors import ConfigError, FedcomError, Stopped, flag
from fedcom.formats import MB, NOTHING, is_number, significant
from fedcom.registry import describe
from fedcom.reports.comparison import write_csv
from fedcom.reports.figures import rate_distortion
from fedcom.reports.markdown import markdown_table
from fedcom.runs.display import times
from fedcom.runs.folder import claim, clear
from fedcom.saving.whole import write_json, write_text
from fedcom.studies.card_vectors import DIM, Vector, made_up
from fedcom.version import VERSION

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.table import Table

Shown = tuple[str, Callable[[Mapping[str, Any]], str]]  # a heading, and the text of a cell
CardPoint = Mapping[str, Any]  # what was measured of one codec at one setting on one vector

RATES = "0.1,0.5,1,2,4,8"
REPEAT = 8  # messages per point
FIGURES = ("bits", "q", "bias", "bias_ratio", "gap", "encode_mb_per_s", "decode_mb_per_s")
FILES = ("card.json", "card.csv", "card.md", "rate_distortion.png")


class CodecSetting(NamedTuple):
    """A codec with its parameters.

    Args:
        rate: the bits per coordinate that were asked for; None for a codec at its defaults.
        label: the parameters that differ from the defaults, as in a config.
    """

    codec: Codec
    rate: float | None
    label: str


@dataclass(frozen=True)
class Card:
    """What was measured.

    Args:
        points: one per vector and codec setting, in order of vectors.
        repeat: messages per point.
        stopped: the signal that stopped it before all points were measured, if one did.
    """

    points: list[dict[str, Any]]
    repeat: int
    stopped: Stopped | None = None

    def table(self) -> dict[str, Any]:
        """The content of card.json."""
        machine = {"machine": platform.machine(), "threads": 1, "torch": torch.__version__}
        return {"fedcom": VERSION, **machine, "repeat": self.repeat, "points": self.points}


def listing(dim: int = DIM) -> list[dict[str, Any]]:
    """Every codec at its defaults: parameters, promised variance, real bits on a Gaussian vector of `dim`."""
    entries, (_, x, layout, _) = [], made_up(dim)[0]
    for name, kind in CODECS.items():
        codec = kind()
        entry = {"codec": name, "parameters": asdict(codec), "unbiased": codec.unbiased}
        entry |= dict.fromkeys(("variance", "bits"))
        with suppress(FedcomError):  # a codec may refuse a vector of this size
            promise = codec.variance(layout)
            entry["variance"] = promise if is_number(promise) else None
            entry["bits"] = 8 * len(codec.encode(x, layout, Draw.seeded(0))) / dim
        entries.append({**entry, "description": describe(kind)})
    return entries


def rates(text: str) -> list[float]:
    """The numbers in a text such as "0.5,1,2", sorted."""
    try:
        found = sorted({float(word) for word in text.split(",")})
    except ValueError:
        raise ConfigError(
            f"{flag('bits')} takes numbers with commas between, such as {RATES}; got {text!r}"
        ) from None
    for rate in found:
        if not 0 < rate <= 32:
            raise ConfigError(f"{flag('bits')} must be above 0 and at most 32 per coordinate; got {rate:g}")
    return found


def settings(rates: Sequence[float]) -> list[CodecSetting]:
    """Every codec at each rate it can reach; a codec that can reach none of them, at its defaults."""
    found = []
    for kind in CODECS.values():
        asked = {codec: rate for rate in reversed(rates) if (codec := kind().at(rate)) is not None}
        choices: dict[Codec, float | None] = {**asked} if asked else {kind(): None}
        tables = [asdict(codec) for codec in choices]
        changed = [f.name for f in fields(kind) if any(table[f.name] != f.default for table in tables)]
        for (codec, rate), table in reversed(list(zip(choices.items(), tables, strict=True))):
            found.append(CodecSetting(codec, rate, _parameters({key: table[key] for key in changed})))
    return found


def report_card(
    vectors: Sequence[Vector],
    rates: Sequence[float],
    repeat: int,
    out: Path,
    *,
    force: bool = False,
    quiet: bool = False,
) -> Card:
    """Measure every codec on every vector and write the card into a folder, also if interrupted.

    Args:
        rates: in bits per coordinate.
        repeat: messages per point; the card has their means.
        force: replace an earlier card in the folder.
        quiet: show no progress.
    """
    with claim(out, used=force):
        points, stopped = list[dict[str, Any]](), None
        try:
            for point in _measured(vectors, settings(rates), repeat, quiet):
                points.append(point)
        except Stopped as signal:
            stopped = Stopped(signal.signal, between_rounds=True)
            if not points:
                raise stopped from None
        card = Card(points, repeat, stopped)
        clear(out, FILES)
        write_json(out / "card.json", card.table())
        write_csv(card.points, out / "card.csv")
        write_text(out / "card.md", markdown(card))
        drawn = {vector.name for vector in vectors if vector.drawn}
        rate_distortion([point for point in card.points if point["vector"] in drawn], out / FILES[-1])
    return card


def _measured(
    vectors: Sequence[Vector], choices: Sequence[CodecSetting], repeat: int, quiet: bool
) -> Iterator[dict[str, Any]]:
    with _bar(quiet) as bar, _one_thread():
        task = bar.add_task("", total=len(vectors) * len(choices))
        for vector in vectors:
            for codec, rate, label in choices:
                bar.update(task, description=f"{vector.name}: {codec.name} {label}")
                about = {"vector": vector.name, "d": vector.layout.size, "codec": codec.name}
                about |= {"setting": label, "rate": rate, "unbiased": codec.unbiased}
                try:
                    yield {**about, **measure(codec, vector, repeat), "note": None}
                except FedcomError as error:  # for example a rate that this vector's shapes do not allow
                    yield {**about, **dict.fromkeys(FIGURES), "note": str(error)}
                bar.advance(task)


def measure(codec: Codec, vector: Vector, repeat: int) -> dict[str, float | None]:
    """Bits, error, bias and speed of one codec on one vector; messages are really encoded and decoded.

    Args:
        repeat: messages to send, after one that does not count.
    """
    draw, x, d = Draw.seeded(0).fold("card"), vector.x, vector.layout.size
    _send(codec, vector, draw)  # the first call compiles and loads code
    sent, total = [], torch.zeros(d, dtype=torch.float64)
    power = float(x.double().square().sum())
    for i in range(repeat):
        heard, *figures = _send(codec, vector, draw.fold(i))
        error = heard.double().sub_(x)
        total += error
        sent.append((*figures, float(error @ error) / power))
    nbytes, encoding, decoding, errors = zip(*sent, strict=True)
    bits, q = 8 * statistics.fmean(nbytes) / d, statistics.fmean(errors)
    bias = float(total @ total) / repeat**2 / power
    ratio = bias * repeat / q if q else None
    gap = bits - needed(q) if q and codec.unbiased else None
    speeds = (4 * d / MB / statistics.median(seconds) for seconds in (encoding, decoding))
    return dict(zip(FIGURES, (bits, q, bias, ratio, gap, *speeds), strict=True))


def needed(q: float) -> float:
    """The fewest bits per coordinate of a Gaussian vector with which an unbiased codec can have error q."""
    return math.log1p(1 / q) / math.log(4)


def _send(codec: Codec, vector: Vector, draw: Draw) -> tuple[Tensor, int, float, float]:
    """The decoded vector, the bytes of its message, and the seconds to encode and to decode it."""
    start = time.perf_counter()
    message = codec.encode(vector.x, vector.layout, draw)
    middle = time.perf_counter()
    heard = codec.decode(message, vector.layout, draw)
    return heard, len(message), middle - start, time.perf_counter() - middle


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _bar(quiet: bool) -> "Progress":
    """A progress bar on standard error if that is a terminal, else nothing."""
    from rich import progress as rich
    from rich.console import Console

    console = Console(stderr=True)
    what = rich.TextColumn("{task.description}", markup=False)
    parts = (what, rich.BarColumn(24), rich.MofNCompleteColumn(), times())
    return rich.Progress(*parts, console=console, disable=quiet or not console.is_terminal, transient=True)


POINT_COLUMNS: list[Shown] = [
    ("codec", lambda p: str(p["codec"])),
    ("setting", lambda p: str(p["setting"])),
    ("bits", lambda p: significant(p["bits"], 3)),
    ("q", lambda p: significant(p["q"], 3)),
    ("bias ratio", lambda p: NOTHING if p["bias_ratio"] is None else f"{p['bias_ratio']:.2f}"),
    ("gap", lambda p: NOTHING if p["gap"] is None else f"{p['gap']:.2f}"),
    ("encode MB/s", lambda p: significant(p["encode_mb_per_s"], 3)),
    ("decode MB/s", lambda p: significant(p["decode_mb_per_s"], 3)),
]
LISTING_COLUMNS: list[Shown] = [
    ("codec", lambda e: str(e["codec"])),
    ("parameters", lambda e: _parameters(e["parameters"])),
    ("unbiased", lambda e: "yes" if e["unbiased"] else "no"),
    ("promise", lambda e: significant(e["variance"], 3)),
    ("bits", lambda e: significant(e["bits"], 3)),
    ("description", lambda e: str(e["description"])),
]


def render(card: Card) -> "list[Table]":
    """The measured points for a terminal, one table per vector."""
    return [_table(POINT_COLUMNS, points, _title(points), _notes(points)) for points in _by_vector(card)]


def render_listing(entries: Sequence[Mapping[str, Any]]) -> "Table":
    """The entries of `listing` for a terminal."""
    return _table(LISTING_COLUMNS, entries)


def markdown(card: Card) -> str:
    """The measured points in Markdown, one table per vector."""
    lines, headings = [], [heading for heading, _ in POINT_COLUMNS]
    for points in _by_vector(card):
        rows = [[cell(point) for _, cell in POINT_COLUMNS] for point in points]
        lines += [_title(points), "", markdown_table(headings, rows, "ll" + "r" * (len(headings) - 2)), ""]
        lines += [line for note in _notes(points) for line in (f"- {note}", "")]
    return "\n".join(lines)


def _title(points: Sequence[CardPoint]) -> str:
    return f"{points[0]['vector']}, {points[0]['d']:,} coordinates"


def _notes(points: Sequence[CardPoint]) -> list[str]:
    """What was not measured, and why."""
    return [f"{p['codec']} {p['setting']}: {p['note']}" for p in points if p["note"]]


def _by_vector(card: Card) -> list[list[CardPoint]]:
    return [list(points) for _, points in groupby(card.points, key=itemgetter("vector"))]


def _table(
    columns: Sequence[Shown],
    rows: Sequence[Mapping[str, Any]],
    title: str = "",
    notes: Sequence[str] = (),
) -> "Table":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left", caption_justify="left")
    drawn.padding = (0, 1, 0, 0)  # 80 columns are few
    drawn.title, drawn.caption = (
        Text(title) if title else None,
        Text("\n".join([*notes, ""])) if notes else None,
    )
    for heading, _ in columns:
        words = heading in ("codec", "setting", "parameters", "unbiased", "description")
        fixed = not words or heading == "codec"  # in a narrow terminal only words are wrapped
        lines = heading if words else heading.replace(" ", "\n")
        drawn.add_column(lines, justify="left" if words else "right", no_wrap=fixed)
    for row in rows:
        drawn.add_row(*(Text(cell(row)) for _, cell in columns))
    return drawn


def _parameters(table: Mapping[str, Any]) -> str:
    """Parameters as they are written in a config; those that are None are left out."""
    known = {key: value for key, value in table.items() if value is not None}
    return " ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in known.items())
