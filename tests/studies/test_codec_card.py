"""The codec report card against closed forms, and the command that prints it."""

import csv
import json
import math
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fedcom.codecs import CODECS, Codec, Identity, Int, Natural, RandK, TopK, wire
from fedcom.errors import ConfigError, DataError, Stopped
from fedcom.reports.figures import _between, rate_distortion
from fedcom.studies import card_vectors
from fedcom.studies import codec_card as card
from fedcom.studies.card_vectors import Vector, made_up, read_vector, real_update
from fedcom.studies.codec_card import measure, needed, rates, report_card, settings
from fedcom.vectors import Layout
from tests.cli.test_cli import Command, command

__all__ = ["command"]  # a fixture: pytest finds it by its name here

torch.set_num_threads(1)
D = 2000
GAUSSIAN = made_up(D)[0]
KEYS = [
    *("vector", "d", "codec", "setting", "rate", "unbiased", "bits", "q", "bias", "bias_ratio", "gap"),
    *("encode_mb_per_s", "decode_mb_per_s", "note"),
]


def number(codec: Codec, key: str, vector: Vector = GAUSSIAN, repeat: int = 8) -> float:
    value = measure(codec, vector, repeat)[key]
    assert value is not None
    return value


# Closed forms


def test_no_compression_is_32_bits_and_a_header_without_error() -> None:
    got = measure(Identity(), GAUSSIAN, 2)
    assert got["bits"] == 32 + 8 * wire.HEADER / D
    assert got["q"] == got["bias"] == 0
    assert got["bias_ratio"] is got["gap"] is None


def test_rand_k_has_q_d_over_k_less_one() -> None:
    constant = Vector("constant", torch.full((D,), 3.0), GAUSSIAN.layout)  # any k coordinates give the same q
    for ratio in (0.1, 0.5):
        assert number(RandK(ratio), "q", constant) == pytest.approx(1 / ratio - 1, rel=1e-5)
        assert number(RandK(ratio), "bits") == 8 * (4 * ratio * D + wire.HEADER) / D
    # On a Gaussian vector, |x|^2 of k coordinates varies by sqrt(2/k), and its mean over N messages by less.
    assert number(RandK(0.5), "q", repeat=50) == pytest.approx(1, abs=5 * math.sqrt(4 / D / 50))


def test_top_k_of_a_known_vector_loses_the_rest() -> None:
    x = torch.tensor([3.0, 0.0, 4.0, 0.0])
    vector = Vector("known", x, made_up(4)[0].layout)
    assert number(TopK(0.25), "q", vector) == pytest.approx(9 / 25)
    assert number(TopK(0.25), "bias", vector) == pytest.approx(9 / 25)


@pytest.mark.parametrize("codec", [Int(1), Int(4), Natural(), RandK(0.1)], ids=repr)
def test_the_bias_of_an_unbiased_codec_is_no_more_than_chance(codec: Codec) -> None:
    # The ratio is a mean over d coordinates of a chi-square, if all have the same share of the error.
    assert number(codec, "bias_ratio", repeat=20) == pytest.approx(1, abs=0.25)


def test_the_bias_of_a_deterministic_codec_is_all_its_error() -> None:
    for repeat in (2, 8):
        assert number(TopK(0.1), "bias_ratio", repeat=repeat) == pytest.approx(repeat)


def test_the_gap_is_the_bits_above_the_bound() -> None:
    for bits in (0.1, 0.5, 1, 2, 4):
        assert needed(1 / (2 ** (2 * bits) - 1)) == pytest.approx(bits)
    got = measure(RandK(0.1), GAUSSIAN, 4)
    assert got["gap"] == pytest.approx(got["bits"] - 0.5 * math.log2(1 + 1 / got["q"]))  # type: ignore[operator]
    assert measure(TopK(0.1), GAUSSIAN, 2)["gap"] is None


def test_speeds_are_positive_and_the_number_of_threads_is_restored(tmp_path: Path) -> None:
    got = measure(Int(8), GAUSSIAN, 3)
    assert got["encode_mb_per_s"] > 0  # type: ignore[operator]
    assert got["decode_mb_per_s"] > 0  # type: ignore[operator]
    torch.set_num_threads(2)
    try:
        report_card([GAUSSIAN], [32.0], 2, tmp_path, quiet=True)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_the_same_card_twice_except_for_speed() -> None:
    one, two = (measure(Int(2), made_up(D)[0], 3) for _ in range(2))
    assert {k: v for k, v in one.items() if "_per_s" not in k} == {
        k: v for k, v in two.items() if "_per_s" not in k
    }


# What is measured


def test_every_codec_is_measured_at_its_rates_or_at_its_defaults() -> None:
    found = settings([1.0, 4.0])
    assert list(dict.fromkeys(setting.codec.name for setting in found)) == list(CODECS)
    for name, kind in CODECS.items():
        own = [(s.codec, s.rate) for s in found if s.codec.name == name]
        asked = [(kind().at(rate), rate) for rate in (1.0, 4.0) if kind().at(rate) is not None]
        assert own == (asked or [(kind(), None)])
    labels = {(setting.codec.name, setting.label) for setting in found}
    assert {("int", "bits=1"), ("int", "bits=4"), ("randk", "ratio=0.125"), ("natural", "")} <= labels


def test_a_setting_that_fits_two_rates_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Natural, "at", lambda self, bits: self)
    found = [setting for setting in settings([1.0, 2.0]) if setting.codec.name == "natural"]
    assert [(setting.codec, setting.rate) for setting in found] == [(Natural(), 1.0)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,two", "bits takes numbers with commas between, such as 0.1,0.5,1,2,4,8; got '1,two'"),
        ("", "bits takes numbers"),
        ("1,0", "bits must be above 0 and at most 32 per coordinate; got 0"),
        ("33", "got 33"),
        ("nan", "got nan"),
    ],
)
def test_rates_out_of_range_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        rates(text)
    assert message in str(error.value)


def test_rates_are_sorted_and_unique() -> None:
    assert rates("4, 0.5,4,32") == [0.5, 4, 32]


def test_made_up_vectors_are_what_they_are_called() -> None:
    gaussian, heavy, sparse = made_up(20_000)
    kurtosis = [float((x**4).mean() / (x**2).mean() ** 2) for x in (gaussian.x, heavy.x)]
    assert kurtosis[0] == pytest.approx(3, abs=0.3)
    assert kurtosis[1] > 20
    assert int(sparse.x.count_nonzero()) == 200
    assert gaussian.layout.shapes == ((125, 160),)
    for dim in (1, 7):
        assert [vector.layout.size for vector in made_up(dim)] == [dim] * 3
        assert all(vector.x.any() for vector in made_up(dim))


def test_the_real_update_is_a_clients_step_of_fedavg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDCOM_DATA", raising=False)
    vector = real_update()
    assert vector.name == "digits update"
    assert vector.layout.size == 64 * 200 + 200 + 200 * 200 + 200 + 200 * 10 + 10 == len(vector.x)
    assert len(vector.layout.shapes) == 6
    parts = vector.layout.tensors(vector.x)
    last = parts[vector.layout.names[-1]]  # two classes per client: their outputs rise, the others fall
    assert int((last < 0).sum()) == 2
    assert torch.equal(vector.x, real_update().x)


def test_a_data_folder_without_mnist_leaves_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDCOM_DATA", str(tmp_path))
    assert real_update().name == "digits update"


# Files


def test_arrays_and_tensors_from_files(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.arange(6.0))
    np.save(tmp_path / "two.npy", np.arange(6, dtype=">i2").reshape(2, 3))
    tensors = {"a": torch.ones(2, 3, dtype=torch.bfloat16), "b": torch.zeros(4), "none": torch.zeros(0)}
    save_file(tensors, tmp_path / "all.safetensors")
    one, two, both = (read_vector(tmp_path / name) for name in ("one.npy", "two.npy", "all.safetensors"))
    assert one.layout.shapes == ((6,),)
    assert two.layout.shapes == ((2, 3),)
    assert one.x.tolist() == two.x.tolist() == list(range(6))
    assert dict(zip(both.layout.names, both.layout.shapes, strict=True)) == {"a": (2, 3), "b": (4,)}
    assert both.x.dtype == torch.float32
    assert sorted(both.x.tolist()) == [0.0] * 4 + [1.0] * 6


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"1 2 3", "is neither .npy nor .safetensors; save the vector as one of these"),
        ("a.npy", None, "no vector file"),
        ("a.npy", b"1 2 3", "cannot be read"),
        ("a.safetensors", b"1 2 3", "cannot be read"),
        ("a.npy", np.array([{}, 1], dtype=object), "cannot be read"),
        ("a.npy", np.array([1j]), "it holds complex128, not real numbers"),
        ("a.npy", np.ones((2, 2, 2)), "an array of shape (2, 2, 2); save one or two axes"),
        ("a.npy", np.array(1.0), "an array of shape (); save one or two axes"),
        ("a.npy", np.array([1.0, np.nan]), "NaN, infinity or a number beyond float32; remove or scale it"),
        ("a.npy", np.array([1.0, 1e300]), "beyond float32"),
        ("a.npy", np.zeros(5), "holds no number but zero"),
        ("a.npy", np.zeros(0), "holds no number but zero"),
    ],
)
def test_files_that_hold_no_vector_are_refused(tmp_path: Path, name: str, content: Any, message: str) -> None:
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        np.save(path, content)
    with pytest.raises(DataError) as error:
        read_vector(path)
    assert str(path) in str(error.value)
    assert message in str(error.value)


# Refusals


def test_a_codec_that_refuses_a_vector_loses_only_that_point(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: Command
) -> None:
    def refuse(*arguments: Any) -> bytes:
        raise ConfigError("no use for [this] vector; raise bits")

    monkeypatch.setattr(Natural, "encode", refuse)
    found = report_card([GAUSSIAN], [2.0], 2, tmp_path / "a", quiet=True)
    (point,) = (point for point in found.points if point["codec"] == "natural")
    assert list(point) == KEYS
    assert point["note"] == "no use for [this] vector; raise bits"
    assert {point[key] for key in card.FIGURES} == {None}
    assert all(point["note"] is None for point in found.points if point["codec"] in ("int", "randk"))
    assert "- natural : no use for [this] vector" in (tmp_path / "a" / "card.md").read_text()
    (entry,) = (e for e in card.listing(100) if e["codec"] == "natural")
    assert (entry["variance"], entry["bits"]) == (1 / 8, None)
    assert command("codecs", "--dim", "100").code == 0
    shown = command("codecs", "--measure", "--vector", _saved(), "--bits", "2", "--repeat", "2").out
    assert "natural : no use for [this] vector; raise bits" in shown


def _saved() -> str:
    np.save("mine.npy", np.linspace(-1, 1, 300))
    return "mine.npy"


# The figure


def test_the_figure_has_one_panel_per_vector_and_leaves_out_exact_codecs(tmp_path: Path) -> None:
    from matplotlib.image import imread

    point = {"vector": "a", "d": 10, "codec": "one", "bits": 1.0, "q": 0.5, "unbiased": True}
    exact = {**point, "codec": "exact", "bits": 32.0, "q": 0.0}
    rate_distortion([point, exact], tmp_path / "one.png")
    rate_distortion([point, exact, {**point, "vector": "b", "q": 1e-15}], tmp_path / "two.png")
    rate_distortion([exact], tmp_path / "none.png")
    assert imread(tmp_path / "two.png").shape[0] == 2 * imread(tmp_path / "one.png").shape[0]
    assert not (tmp_path / "none.png").exists()


def test_lines_between_points_on_the_bound_stay_above_it() -> None:
    bits = np.array([0.1, 0.5, 2.0, 8.0])
    x, y = _between(np.stack([bits, 1 / np.expm1(np.log(4) * bits)], axis=1)).T
    assert (y >= 1 / np.expm1(np.log(4) * x) * (1 - 1e-9)).all()


# The command


def test_the_list_has_every_codec_and_what_it_promises(command: Command) -> None:
    code, out, err = command("codecs", "--dim", "1000")
    assert (code, err) == (0, "")
    assert {*CODECS, "ratio=0.1", "yes", "no"} <= set(out.split())
    entries = {
        entry["codec"]: entry for entry in json.loads(command("codecs", "--dim", "1000", "--json").out)
    }
    assert list(entries) == list(CODECS)
    assert list(entries["randk"]) == [
        "codec",
        "parameters",
        "unbiased",
        "variance",
        "bits",
        "description",
    ]
    assert entries["randk"]["parameters"] == {"ratio": 0.1}
    assert entries["randk"]["variance"] == pytest.approx(9)
    assert entries["identity"]["bits"] == 32 + 8 * wire.HEADER / 1000
    assert not entries["topk"]["unbiased"]


def test_measuring_leaves_table_figure_and_json(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    small = Vector("small update", GAUSSIAN.x[:60], Layout(("a", "b"), ((5, 10), (10,))))
    monkeypatch.setattr(card_vectors, "real_update", lambda: small)
    few = ("codecs", "--measure", "--bits", "2", "--dim", "400", "--repeat", "2")
    code, out, err = command(*few)
    assert (code, err) == (0, "")
    headings = [line.split(",")[0] for line in out.splitlines() if line.strip().endswith("coordinates")]
    assert headings == ["gaussian", "heavy-tailed", "sparse", "small update"]
    assert out.endswith("card and figure in runs/codecs-001\n")
    folder = Path("runs/codecs-001")
    assert {path.name for path in folder.iterdir()} == set(card.FILES)
    written = json.loads((folder / "card.json").read_text())
    assert written["repeat"] == 2
    assert all(list(point) == KEYS for point in written["points"])
    assert {point["codec"] for point in written["points"]} == set(CODECS)
    with (folder / "card.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["codec"] for row in rows] == [point["codec"] for point in written["points"]]
    assert {row["gap"] for row in rows if row["codec"] == "topk"} == {""}
    assert (folder / "card.md").read_text().count("| codec |") == 4
    assert (folder / "rate_distortion.png").read_bytes().startswith(b"\x89PNG")


def test_measuring_files_prints_nothing_but_json(command: Command) -> None:
    _saved()
    save_file({"w": torch.ones(4, 5), "b": torch.arange(5.0)}, "theirs.safetensors")
    files = ("--vector", "mine.npy", "--vector", "theirs.safetensors", "--vector", "mine.npy")
    code, out, err = command(
        "codecs", "--measure", *files, "--bits", "1,4", "--repeat", "2", "--json", "--out", "a"
    )
    assert (code, err) == (0, "card and figure in a\n")
    points = json.loads(out)["points"]
    assert {(point["vector"], point["d"]) for point in points} == {
        ("mine.npy", 300),
        ("theirs.safetensors", 25),
    }
    assert len(points) == 2 * len(settings([1.0, 4.0]))
    assert json.loads(Path("a/card.json").read_text())["points"] == points


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ["--measure", "--bits", "64"],
            2,
            "--bits must be above 0 and at most 32 per coordinate; got 64",
        ),
        (["--measure", "--vector", "none.npy"], 4, "no vector file none.npy; numpy.save makes one"),
        (["--measure", "--vector", "a.csv"], 4, "a.csv is neither .npy nor .safetensors"),
        (["--vector", "none.npy"], 2, "--vector is about measuring; add --measure"),
        (["--bits", "2"], 2, "--bits is about measuring; add --measure"),
        (["--out", "a"], 2, "--out is about measuring; add --measure"),
    ],
)
def test_what_a_user_can_fix_is_one_line(
    command: Command, tmp_path: Path, arguments: list[str], code: int, message: str
) -> None:
    got = command("codecs", *arguments)
    assert (got.code, got.out) == (code, "")
    assert got.err.startswith(f"fedcom: {message}")
    assert got.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_wrong_usage_and_a_full_folder_exit_with_2(command: Command) -> None:
    assert command("codecs", "--dim", "0").code == 2
    assert command("codecs", "--measure", "--repeat", "1").code == 2
    Path("a").mkdir()
    Path("a/mine.txt").write_text("mine")
    got = command("codecs", "--measure", "--out", "a")
    assert got.code == 2
    assert "a is not empty" in got.err


def test_an_interrupt_keeps_what_was_measured(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls = []

    def measure_three(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) > 3:
            raise Stopped(signal.SIGINT)
        return measure(*arguments)

    monkeypatch.setattr(card, "measure", measure_three)
    once = ("codecs", "--measure", "--vector", _saved(), "--repeat", "2")
    assert command(*once, "--out", "a").code == 130
    assert len(json.loads(Path("a/card.json").read_text())["points"]) == 3
    assert command(*once, "--out", "b").code == 130
    assert not Path("b").exists()


def test_a_terminal_sees_a_bar_on_standard_error(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    found = report_card([GAUSSIAN], [2.0], 2, tmp_path)
    out, err = capfd.readouterr()
    assert out == ""
    assert f"/{len(found.points)}" in err
