"""The report page: what it collects, that broken files do not stop it, and that all text is escaped."""

import json
import os
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedcom.cli import app
from fedcom.config import read
from fedcom.errors import ConfigError
from fedcom.reports import page
from fedcom.reports.looks import COLOURS, own_looks
from fedcom.reports.page.build import build
from fedcom.reports.page.collect import collect, natural
from fedcom.reports.page.curves import MOST, curves
from fedcom.reports.page.points import accuracies, grids
from fedcom.studies import sweep_report
from fedcom.studies.compare import compare

EVIL = "</script><img src=x onerror=alert(1)>&\"'"
ROW = {"round": 0, "train_loss": 2.0, "test_accuracy": 0.1, "uplink_bytes": 0.0, "downlink_bytes": 0.0}


def make(folder: Path, rows: list[dict[str, Any]] | None = None, seed: int = 0, **changes: Any) -> Path:
    """A run's folder written by hand: two clients, ten parameters, one message per client and direction."""
    folder.mkdir(parents=True)
    later = {
        "round": 1,
        "train_loss": 1.0,
        "test_accuracy": 0.6,
        "uplink_bytes": 18e6,
        "downlink_bytes": 56e6,
    }
    rows = rows or [ROW, later | {"q": 0.5}]
    uplink = {"D": {"header": 32, "codes": 4}}
    downlink = {"w": {"header": 32, "values": 80}}
    files = {
        "summary.json": {"status": "done", "parameters": 10},
        "ledger.json": {"clients": 2, "uplink": {"vectors": uplink}, "downlink": {"vectors": downlink}},
        "partition.json": {"clients": 2, "sizes": [3, 4], "label_counts": [[3, 0], [0, 4]]},
        "similarity.json": {"clients": [0, 1], "cosine": [[1.0, -0.5], [-0.5, 1.0]]},
        "accuracy.json": {"clients": [0.5, 1.0], "confusion": [[3, 1], [0, 4]]},
        "environment.json": {"torch": "2", "command": ["/somewhere/fedcom", "run", "run.seed=0"]},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(changes.get(name.split(".")[0], content)))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    codec = f'[uplink]\nname = "int"\nbits = {changes.get("bits", 2)}\n'
    config = f'[algorithm]\nname = "{changes.get("method", "fedpaq")}"\n{codec}[run]\nseed = {seed}\n'
    (folder / "config.toml").write_text(config + "target_accuracy = 0.5\n" + changes.get("more", ""))
    return folder


def make_sweep(folder: Path) -> Path:
    """A sweep's folder written by hand: FedPAQ at two etas and two gammas, two seeds; one point diverged."""
    folder.mkdir(parents=True)
    lines = []
    for eta, gamma, accuracy in ((0.1, 1, 0.8), (0.2, 1, 0.9), (0.1, 2, 0.7), (0.2, 2, None)):
        for seed in (0, 1):
            record = {
                "key": f"{eta} {gamma} {seed}",
                "method": "fedpaq",
                "point": {"eta": eta, "gamma": gamma},
            }
            scores = {"test_accuracy": accuracy, "train_loss": 1.0} if accuracy else {}
            lines.append(json.dumps({**record, "status": "done" if accuracy else "diverged", **scores}))
    (folder / "results.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "trials.json").write_text('{"trials": 8}')
    (folder / "sweep.json").write_text("{}")
    return folder


def html(*folders: Path) -> str:
    return build(collect(folders))


def shown(*folders: Path) -> str:
    """The text of the page, without its script and style."""
    text = re.sub(r"<(script|style).*?</\1>", "", html(*folders), flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]*>", " ", text).split())


def test_labels_are_those_of_a_comparison_and_seeds_are_together(tmp_path: Path) -> None:
    for label, seed in (("one", 0), ("one", 1), ("two", 0)):
        make(tmp_path / label / f"seed-{seed}", seed=seed)
    found = collect([tmp_path])
    assert [(run.label, run.seed) for run in found.runs] == [("one", 0), ("one", 1), ("two", 0)]
    assert found.notices == []
    assert "one fedpaq, int 2-bit done 2 1.000 ±0 60.00 ±0.00 18.0 56.0 1 18.0" in shown(tmp_path)


def labels(*folders: Path) -> list[str]:
    return [run.label for run in collect(folders).runs]


def test_runs_without_a_label_are_named_by_method_and_codec_in_natural_order(tmp_path: Path) -> None:
    for bits in (10, 2, 1):
        make(tmp_path / f"run-{bits}", bits=bits)
    assert labels(tmp_path / "run-2") == ["fedpaq, int 2-bit"]
    assert labels(tmp_path) == ["fedpaq, int 1-bit", "fedpaq, int 2-bit", "fedpaq, int 10-bit"]


def test_runs_of_one_method_and_codec_are_named_by_what_differs_and_at_last_by_folder(tmp_path: Path) -> None:
    for name, eta in (("a", 0.1), ("b", 0.2), ("c", 0.2)):
        make(tmp_path / name, more=f"[extra]\neta = {eta}\n")
    assert labels(tmp_path / "a", tmp_path / "b") == [
        "fedpaq, int 2-bit, eta 0.1",
        "fedpaq, int 2-bit, eta 0.2",
    ]
    assert labels(tmp_path) == ["fedpaq, int 2-bit, eta 0.1", "b", "c"]


def test_names_sort_by_the_numbers_in_them() -> None:
    names = ["run-10", "run-2", "b", "0.25", "1", "0.1", "A"]
    assert sorted(names, key=natural) == ["0.1", "0.25", "1", "A", "b", "run-2", "run-10"]


def test_runs_that_differ_in_more_than_their_seed_get_different_labels(tmp_path: Path) -> None:
    make(tmp_path / "a" / "x" / "seed-0")
    make(tmp_path / "b" / "x" / "seed-0", more='[data]\nname = "other"\n')
    assert [run.label for run in collect([tmp_path]).runs] == ["a/x", "b/x"]
    assert "a/x — b/x other" in shown(tmp_path)  # the setting that differs


def test_the_same_folder_twice_is_one_run(tmp_path: Path) -> None:
    run = make(tmp_path / "a")
    assert len(collect([run, run, tmp_path]).runs) == 1


@pytest.mark.parametrize(
    ("data", "called"),
    [
        ('path = "/home/me/wards.csv"', "wards.csv"),
        ('name = "text"\npath = "letters/"', "letters"),
        ('name = "digits"', "digits"),
        ("clients = 3", "unknown data"),
    ],
)
def test_the_title_names_the_data(data: str, called: str, tmp_path: Path) -> None:
    make(tmp_path / "a", more=f"[data]\n{data}\n")
    assert f"int 2-bit on {called}" in shown(tmp_path)


def test_curves_have_the_mean_and_range_over_seeds_and_the_methods_colour(tmp_path: Path) -> None:
    for seed, loss in ((0, 1.0), (1, 3.0)):
        rows = [ROW, {**ROW, "round": 1, "train_loss": loss, "uplink_bytes": 2e6, "modelled_seconds": 7.0}]
        make(tmp_path / "fedpaq" / f"seed-{seed}", rows, seed)
    drawn = curves(collect([tmp_path]).runs)
    (line,) = drawn["lines"]
    view = line["views"]["train_loss"]
    assert (view["mean"], view["low"], view["high"]) == ([2, 2], [2, 1], [2, 3])
    assert (view["uplink_bytes"], view["modelled_seconds"]) == ([0, 2], [None, 7])
    assert [axis["key"] for axis in drawn["x"]] == [
        "uplink_bytes",
        "total_bytes",
        "round",
        "modelled_seconds",
    ]
    assert [axis["key"] for axis in drawn["y"]] == ["test_accuracy", "train_loss"]
    assert view["total_bytes"] == [0, 2]
    (method,) = drawn["methods"]
    assert method == {"label": "fedpaq", **own_looks()["fedpaq"]._asdict()}  # as in every picture
    assert method["colour"] == COLOURS["fedpaq"]


def test_there_is_no_time_axis_without_times_and_no_accuracy_without_classes(tmp_path: Path) -> None:
    make(tmp_path / "a", [{"round": 0, "train_loss": 1.0, "test_accuracy": None}])
    drawn = curves(collect([tmp_path]).runs)
    assert [axis["key"] for way in ("x", "y") for axis in drawn[way]] == ["round", "train_loss"]


def test_long_curves_are_thinned_but_keep_their_ends(tmp_path: Path) -> None:
    make(tmp_path / "a", [{"round": i, "train_loss": 1.0 + i} for i in range(5000)])
    view = curves(collect([tmp_path]).runs)["lines"][0]["views"]["train_loss"]
    assert len(view["mean"]) == MOST
    assert (view["round"][0], view["round"][-1]) == (0, 4999)


def test_bits_are_those_of_the_ledger_and_the_bound_is_that_of_their_rate(tmp_path: Path) -> None:
    text = shown(make(tmp_path / "a"))
    # 36 bytes in two messages of ten coordinates: 14.4 bits each; 1 / (4^14.4 - 1)
    assert "int, uplink bits 2 fedpaq, int 2-bit unbiased — 0.500 — 14.4 2.14e-09" in text


def test_bits_count_the_messages_of_the_codec_alone_by_its_own_header(tmp_path: Path) -> None:
    others = {
        "D statistics": {"header": 32},
        "envelope": {"header": 110},
        "refused": {"late": 9},
        "q": {"header": 32},
    }
    books = {"clients": 2, "downlink": {"vectors": {}}}
    own = {"D": {"header": 6, "codes": 4}}  # 10 bytes in two compact messages of ten coordinates
    run = make(tmp_path / "a", ledger={**books, "uplink": {"vectors": {**own, **others}}})
    config = (
        (run / "config.toml").read_text().replace('"int"\nbits = 2', '"peaks"\nbits = 1\ncorrelated = true')
    )
    (run / "config.toml").write_text(config)
    assert "peaks, uplink bits 1, correlated fedpaq, peaks 1-bit unbiased — 0.500 — 4.00 0.00392" in shown(
        run
    )


def test_bits_are_of_the_numbers_that_travelled_where_the_ledger_says_how_many(tmp_path: Path) -> None:
    own = {"vectors": {"D": {"header": 32, "codes": 4}}, "numbers": {"D": 12}}  # of parts of the model
    run = make(tmp_path / "a", ledger={"clients": 2, "uplink": own, "downlink": {"vectors": {}}})
    assert "int, uplink bits 2 fedpaq, int 2-bit unbiased — 0.500 — 24.0" in shown(run)  # 36 bytes


def test_estimated_bytes_are_called_so(tmp_path: Path) -> None:
    books = {"clients": 2, "uplink": {"vectors": {"D": {"codes": 4}}}, "downlink": {"vectors": {}}}
    exact = make(tmp_path / "exact", ledger=books | {"exact": True})
    estimated = make(tmp_path / "estimated", ledger=books | {"exact": False})
    assert "bytes are estimates" not in shown(exact)
    assert "bytes are estimates" in shown(exact, estimated)


def test_bytes_are_itemised_per_client(tmp_path: Path) -> None:
    text = shown(make(tmp_path / "a"))
    assert "fedpaq, int 2-bit uplink D header 1.600e-05 88.89" in text
    assert "fedpaq, int 2-bit downlink w values 4.000e-05 71.43" in text


def test_commands_that_repeat_a_run(tmp_path: Path) -> None:
    text = shown(make(tmp_path / "a b"))
    assert "fedcom run run.seed=0" in text
    assert f"fedcom run &#x27;{tmp_path / 'a b' / 'config.toml'}&#x27;" in text


def broken(folder: Path) -> None:
    """Everything that can be wrong with a run's files, one run each."""
    make(folder / "sound" / "seed-0")
    wild = [ROW, {**ROW, "round": 1, "train_loss": 1e200}]
    make(folder / "wild" / "seed-0", wild, summary={"status": "diverged"})
    (make(folder / "cut" / "seed-0") / "summary.json").unlink()
    with (make(folder / "torn" / "seed-0") / "metrics.jsonl").open("a") as log:
        log.write('{"round": 2, "train\n[1]\n{"round": "x"}\n{"round": 3, "train_loss": NaN}\n')
    for name in ("config.toml", "metrics.jsonl", "ledger.json", "partition.json", "similarity.json"):
        make(folder / f"bytes {name}" / "seed-0").joinpath(name).write_bytes(b"\xff\x00{[")
        make(folder / f"list {name}" / "seed-0").joinpath(name).write_text("[1, 2]")
        make(folder / f"none {name}" / "seed-0").joinpath(name).unlink()
    folders = make(folder / "folder" / "seed-0")
    (folders / "metrics.jsonl").unlink()
    (folders / "metrics.jsonl").mkdir()
    make(
        folder / "odd" / "seed-0",
        ledger={"clients": 0, "uplink": 3},
        partition={"clients": 2, "label_counts": [[1], []]},
        similarity={"clients": [0], "cosine": [[1, 2]]},
        environment={"command": "fedcom"},
    )
    (folder / "empty").mkdir()
    (folder / "empty" / "metrics.jsonl").touch()
    os.symlink(folder / "nowhere", folder / "gone")


def test_the_page_is_made_and_names_every_fault_of_the_runs(tmp_path: Path) -> None:
    broken(tmp_path)
    found = collect([tmp_path])
    status = {run.label: run.status for run in found.runs}
    assert len(status) == 22
    told = [status[label] for label in ("sound", "wild", "cut", "torn")]
    assert told == ["done", "diverged", "dead", "done"]
    torn = next(run for run in found.runs if run.label == "torn")
    assert [row["round"] for row in torn.rows] == [0, 1, 3]
    noted = {(what, Path(where).parent.name) for what, where in found.notices}
    for number in (3, 4, 5):
        assert (f"metrics.jsonl: line {number} is not a row", "torn") in noted
    assert ("summary.json: missing", "cut") in noted
    assert ("metrics.jsonl: Is a directory", "folder") in noted
    assert not any(where in ("sound", "wild") for _, where in noted)
    text = shown(tmp_path)
    assert "Some files were missing or could not be read; the rest is shown." in text
    assert "summary.json: missing" in text
    assert "wild fedpaq, int 2-bit diverged at round 1" in text


def test_a_sweep_is_read_line_by_line_and_averaged_over_seeds(tmp_path: Path) -> None:
    folder = make_sweep(tmp_path / "grid")
    with (folder / "results.jsonl").open("a") as log:
        log.write('{"key": "torn"\n[1]\n{"key": "a", "method": "x", "point": 3, "status": "done"}\n')
        log.write(
            json.dumps(
                {
                    "key": "0.1 1 0",
                    "method": "fedpaq",
                    "point": {"eta": 0.1, "gamma": 1},
                    "status": "done",
                    "test_accuracy": 0.6,
                }
            )
            + "\n"
        )
    found = collect([tmp_path])
    assert [what for what, _ in found.notices] == [
        f"results.jsonl: line {n} is not a record" for n in (9, 10, 11)
    ]
    (grid,) = grids(found.sweeps)
    assert grid["axes"] == {"eta": ["0.1", "0.2"], "gamma": ["1", "2"]}
    scores = {(p["at"]["eta"], p["at"]["gamma"]): p["score"] for p in grid["points"]}
    assert scores[("0.1", "1")] == pytest.approx(0.7)  # its first seed was run again, and counts once
    assert scores[("0.2", "2")] is None  # diverged
    for name in ("results.jsonl", "trials.json"):
        (folder / name).write_bytes(b"\xff{")
    assert "Sweep grid" in html(tmp_path)


@pytest.mark.parametrize(
    ("scores", "by", "words"),
    [
        ({"test_loss": 3.0, "test_accuracy": None}, "test_loss", "test loss"),
        ({"test_loss": 3.0, "test_accuracy": 0.4}, "test_accuracy", "test accuracy"),
        ({"test_accuracy": 0.4, "test_perplexity": 9.0}, "test_perplexity", "test perplexity"),
        ({}, "train_loss", "training loss"),
    ],
)
def test_a_sweep_is_shown_by_what_its_points_are_compared_by(
    scores: dict[str, float | None], by: str, words: str, tmp_path: Path
) -> None:
    folder = make_sweep(tmp_path / "grid")
    record = {"key": "0", "method": "fedavg", "point": {"eta": 0.1}, "status": "done", "train_loss": 2.0}
    (folder / "results.jsonl").write_text(json.dumps({**record, **scores}) + "\n")
    (grid,) = grids(collect([tmp_path]).sweeps)
    assert (grid["score"], grid["title"].removesuffix(" (%)")) == (by, words)
    assert [point["score"] for point in grid["points"]] == [{**record, **scores}[by]]
    (entry,) = sweep_report.summary([{**record, "uplink_bytes": 1.0, "test_accuracy": None, **scores}])
    assert abs(entry["score"]) == {**record, **scores}[by]
    axes = sweep_report.figure([entry]).axes[0]
    assert axes.get_ylabel().removesuffix(" (%)") == words


def test_the_worst_tenth_is_the_one_of_the_table(tmp_path: Path) -> None:
    for seed, worst in ((0, 0.2), (1, 0.6)):
        row = {**ROW, "round": 1, "worst_client_accuracy": worst}
        accuracy = {"clients": [worst, 1.0, 0.9], "confusion": [[1]]}
        make(tmp_path / "one" / f"seed-{seed}", [ROW, row], seed, accuracy=accuracy)
    runs = collect([tmp_path]).runs
    (own,) = accuracies(runs)["methods"]
    assert own["worst"] == pytest.approx(0.4)
    assert (own["least"], sum(own["bins"]), own["confusion"]) == (0.2, 6, [[2]])
    assert "40.00" in shown(tmp_path)


ODD = (None, True, -1, 1e308, 10**400, "x", [], [[]], {}, {"a": "b"})


def places(thing: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path to every value in nested tables and lists."""
    yield path
    if isinstance(thing, dict | list):
        for key in thing if isinstance(thing, dict) else range(len(thing)):
            yield from places(thing[key], (*path, key))


def planted(thing: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copy = thing.copy()
    copy[path[0]] = planted(thing[path[0]], path[1:], value)
    return copy


@pytest.mark.parametrize(
    "name", ["summary", "ledger", "accuracy", "partition", "similarity", "environment", "metrics"]
)
def test_no_value_in_a_file_prevents_the_page(tmp_path: Path, name: str) -> None:
    run = make(tmp_path / "a")
    (path,) = run.glob(f"{name}.json*")
    content = json.loads(path.read_text().splitlines()[-1])
    for place in places(content):
        for odd in ODD:
            path.write_text(json.dumps(planted(content, place, odd)))
            assert "fedpaq" in html(run)


@pytest.mark.parametrize("section", ["run", "uplink", "algorithm", "data", "downlink"])
def test_no_setting_prevents_the_page(tmp_path: Path, section: str) -> None:
    run = make(tmp_path / "fedpaq" / "seed-0")
    for odd in ("3", "true", "-1.5", "[1, [2]]", '{ a = { b = "c" } }', "1979-05-27", "inf", '"x"'):
        for key in ("name", "seed", "bits", "target_accuracy", "clients", "budgets"):
            (run / "config.toml").write_text(f"[{section}]\n{key} = {odd}\n")
            assert "fedpaq" in html(run)
        (run / "config.toml").write_text(f"{section} = {odd}\n")
        assert "fedpaq" in html(run)


def test_a_folder_whose_name_is_not_valid_text(tmp_path: Path) -> None:
    run = make(Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff")) / "seed-0")
    assert b">? on" in page.write([run], tmp_path / "page.html").read_bytes()


@pytest.mark.parametrize("folder", ["", "nowhere"])
def test_no_run_is_an_error_that_says_what_a_run_is(tmp_path: Path, folder: str) -> None:
    (tmp_path / "table.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"no run in .*config\.toml" if not folder else "no folder"):
        collect([tmp_path / folder])


class Tags(HTMLParser):
    """Collects the tags that a browser would see, without the content of scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        assert not {"src", "onerror", "onload"} & {name for name, _ in attrs}
        assert all(not (value or "").startswith("http") for _, value in attrs)


def test_no_text_of_a_run_becomes_markup(tmp_path: Path) -> None:
    label = EVIL.replace("/", "\N{DIVISION SLASH}")
    evil = json.dumps(EVIL)
    make(
        tmp_path / label / "seed-0",
        environment={EVIL: EVIL, "command": [EVIL]},
        more=f"[data]\nname = {evil}\nroot = {evil}\n[{evil}]\n{evil} = {evil}\n",
    )
    make(tmp_path / "other" / EVIL.replace("/", "") / "seed-0", ledger={EVIL: 1})
    text = html(tmp_path)
    tags = Tags()
    tags.feed(text)
    assert "img" not in tags.seen
    assert tags.seen.count("script") == 2
    assert text.count("</script") == 2
    data = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)
    assert data
    assert json.loads(data.group(1))["curves"]["methods"][0]["label"] == label


def test_the_command_writes_into_the_run_folder_and_overwrites_only_reports(tmp_path: Path) -> None:
    run = make(tmp_path / "a")
    for _ in range(2):  # an earlier report may be overwritten
        assert f"report in {run / 'report.html'}" in CliRunner().invoke(app, ["report", str(run)]).output
    assert (run / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    page.write([run], tmp_path / "new" / "page.html")
    assert (tmp_path / "new" / "page.html").is_file()
    before = (run / "config.toml").read_text()
    with pytest.raises(ConfigError, match="is not a fedcom report"):
        page.write([run], run / "config.toml")
    assert (run / "config.toml").read_text() == before
    with pytest.raises(ConfigError, match="is a folder"):
        page.write([run], tmp_path)


def test_a_comparison_leaves_a_report_of_only_its_own_runs(tmp_path: Path) -> None:
    table = read(
        None, ["model.hidden=8", "algorithm.tau=1", "run.rounds=1", "uplink.bits=4", "data.clients=4"]
    )
    compare(table, ["fedavg", "fedcomgate"], tmp_path, device="cpu", quiet=True)
    make(tmp_path / "old" / "seed-0")
    compare(table, ["fedavg", "fedcomgate"], tmp_path, device="cpu", quiet=True)
    drawn = collect([tmp_path / "fedavg", tmp_path / "fedcomgate"])
    assert drawn.notices == []
    similarity = drawn.runs[0].similarity
    assert similarity["clients"] == [0, 1, 2, 3]
    assert similarity["cosine"][2][2] == pytest.approx(1)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "2 methods on digits" in text
    assert ">old<" not in text
    # 8x8 digits, 8 hidden units, 10 classes
    assert drawn.runs[0].summary["parameters"] == 64 * 8 + 8 + 8 * 10 + 10


def test_the_page_opens_with_what_was_found(tmp_path: Path) -> None:
    """Who needed the fewest bytes to the target, beside FedAvg; else who ended best; of how many seeds."""

    def found(then: float | None = None, **methods: list[tuple[float, float]]) -> str:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        for name, runs in methods.items():
            for seed, (top, up) in enumerate(runs):
                rows = [ROW, {**ROW, "round": 1, "test_accuracy": top, "uplink_bytes": up}]
                rows += [] if then is None else [{**rows[1], "round": 2, "test_accuracy": then}]
                make(folder / name / f"seed-{seed}", rows, seed, method=name)
        text = page.write([folder]).read_text(encoding="utf-8")
        return re.search(r'data-part="finding">(.*?)</p>', text)[1]  # type: ignore[index]

    chance = "1 seed each, so small differences may be chance."
    one = found(fedavg=[(0.95, 16e6)], scaffold=[(0.95, 32e6)], fedcomgate=[(0.95, 1e6)])
    assert one == f"fedcomgate reached 50% with 1.00 MB up, 16 times less than fedavg; {chance}"
    two = found(fedavg=[(0.95, 2e6), (0.95, 4e6)], fedcomgate=[(0.95, 1e6), (0.3, 1e6)])
    assert two == "fedavg reached 50% with 3.00 MB up; 2 seeds."
    assert found(fedavg=[(0.3, 2e6)]) == (
        "No method reached 50% in every run. fedavg ended at 30.00% with 2.00 MB up; 1 seed."
    )
    equal = found(scaffold=[(0.4, 4e6)], fedcomgate=[(0.39999, 1e6)], fedavg=[(0.4, 2e6)])
    assert equal.endswith(f"fedcomgate ended at 40.00% with 1.00 MB up; {chance}")
    assert found(then=0.4, fedavg=[(0.95, 2e6)]) == (
        "No method ended at 50% in every run. fedavg ended at 40.00% with 2.00 MB up; 1 seed."
    )


def test_the_best_of_one_seed_has_another_star(tmp_path: Path) -> None:
    for name, top in (("fedavg", 0.9), ("fedcom", 0.95)):
        for seed in (0, 1):
            make(tmp_path / name / f"seed-{seed}", [ROW, {**ROW, "round": 1, "test_accuracy": top}], seed)
    one = [tmp_path / name / "seed-0" for name in ("fedavg", "fedcom")]
    assert "★" in re.search(r"<tbody>.*?</tbody>", html(tmp_path), re.DOTALL)[0]  # type: ignore[index]
    assert "☆" in re.search(r"<tbody>.*?</tbody>", html(*one), re.DOTALL)[0]  # type: ignore[index]


def test_equal_values_have_no_star(tmp_path: Path) -> None:
    for name in ("fedavg", "fedcom"):
        make(tmp_path / name / "seed-0", [ROW, {**ROW, "round": 1, "test_accuracy": 0.95}], method=name)
    assert 'class="best"' not in page.write([tmp_path]).read_text(encoding="utf-8")
