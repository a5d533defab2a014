"""The names of sites: from all kinds of data to all that tells results client by client."""

import csv
import json
import re
from collections.abc import Iterable, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedcom import (
    ConfigError,
    Curve,
    Draw,
    FedAvg,
    Simulation,
    Task,
    compare,
    from_arrays,
    from_text,
)
from fedcom.data import Dataset, load, read_tokens, save_tokens
from fedcom.data.own_files import read_own
from fedcom.data.text import read_text
from fedcom.errors import Stopped
from fedcom.reports import page
from fedcom.reports.comparison import compare_table, html, markdown, write_csv
from fedcom.reports.page.build import build
from fedcom.reports.page.collect import collect
from fedcom.reports.page.points import accuracies
from fedcom.runs.callbacks import Csv
from fedcom.runs.files import read_rows
from fedcom.runs.record import record
from fedcom.tasks.objective import Objective
from tests.cli.test_cli import Command, command
from tests.data.test_hospitals import root
from tests.engines.remote.clients import Perfect, deployed, participants
from tests.processes import finished

__all__ = ["command", "root"]

EVIL = '<script>alert("1")</script>|a\\|b,\n' + "long" * 30
SITES = (EVIL, "Lyon", "Oslo")  # in the order in which clients are numbered


def sites_task(names: Sequence[str] = SITES, **more: Any) -> Task:
    """Twelve training and six test samples of each site; the test labels of the second are turned round."""
    draw = Draw.seeded(3)
    x, test_x = draw.normal(36).reshape(36, 1), draw.fold("test").normal(18).reshape(18, 1)
    owner, test_owner = np.repeat(np.arange(3), 12), np.repeat(np.arange(3), 6)
    y, test_y = (x[:, 0] > 0).long(), (test_x[:, 0] > 0).long()
    test_y[6:12] = 1 - test_y[6:12]
    groups, test_groups = np.array(names)[owner], np.array(names)[test_owner]
    torch.manual_seed(0)
    return Task.from_arrays(
        nn.Linear(1, 2), x, y, test_x, test_y, groups=groups, test_groups=test_groups, **more
    )


def played(task: Task) -> Simulation:
    simulation = Simulation(task, FedAvg(eta=0.5, tau=2), rounds=3, eval_every=3, device="cpu")
    simulation.run()
    return simulation


def test_scores_by_client_and_rows_name_the_sites() -> None:
    simulation = played(sites_task())
    found = simulation.clients()
    assert found["name"] == list(SITES)
    assert list(found[0])[:3] == ["client", "name", "samples"]
    assert found["client"] == [0, 1, 2]
    worst = min(found, key=lambda row: row["test_accuracy"])
    last = simulation.results[-1]
    assert (last["client_worst"], last["client_worst_name"]) == (worst["test_accuracy"], "Lyon")
    assert worst["name"] == "Lyon"


def test_clients_without_names_have_their_numbers_alone() -> None:
    for names in ((0, 1, 2), ("0", "1", "2")):
        simulation = played(sites_task(names))
        assert simulation.task.names is None
        assert "name" not in simulation.clients()[0]
        assert "client_worst" in simulation.results[-1]
        assert "client_worst_name" not in simulation.results[-1]
    known = sites_task((101, 7, 12))  # numbers that are not the clients' own
    assert known.names == ("7", "12", "101")


def test_of_equal_scores_the_first_site_is_named_and_sites_without_test_rows_are_not() -> None:
    x = torch.zeros(4, 1)
    task = Task.from_arrays(
        nn.Linear(1, 2), x, [0, 1, 1, 0], x[:2], [1, 1], groups=list("abcd"), test_groups=list("cb")
    )
    scores = task.evaluate(torch.tensor([0.0, 0.0, 1.0, 0.0]), torch.ones(4) / 4)
    assert (scores["client_worst"], scores["client_worst_name"]) == (0.0, "b")


def test_names_are_of_the_clients_that_a_partition_gives() -> None:
    x, y = torch.arange(6.0).reshape(6, 1), torch.arange(6) % 2
    data = from_arrays(x, y, groups=["Rome", "Lyon", "Oslo"] * 2)
    objective = Objective(nn.Linear(1, 2))
    assert Task.build(objective, data, [[0, 3], [2, 5]]).names == ("Rome", "Oslo")  # two of three
    assert Task.build(objective, data, [[0], [3]]).names is None  # both are Rome's
    assert Task.build(objective, data, [[0, 1], [2, 3]]).names is None
    owners = np.array(["Rome", "Lyon", "Oslo"] * 2)
    for form in (owners, np.array(owners, dtype=object)):  # as pandas has texts
        assert Task.from_arrays(nn.Linear(1, 2), x, y, partition=form).names == ("Lyon", "Oslo", "Rome")
    assert Task.from_arrays(nn.Linear(1, 2), x, y, partition="iid", clients=2).names is None
    made = Task.from_arrays(nn.Linear(1, 2), x, y, partition="iid", clients=2).named(["a", "b"])
    assert made.held_out(0.5).names == made.only(range(1)).names == ("a", "b")
    with pytest.raises(ConfigError, match="3 names for 2 clients"):
        made.named("abc")


def named(data: Dataset) -> tuple[str, ...] | None:
    return data.names


def test_files_of_all_kinds_name_their_sites(tmp_path: Path) -> None:
    sites, x, y = np.array(["Oslo", "Lyon"] * 4), np.arange(8.0)[:, None], np.arange(8) % 2
    np.savez(tmp_path / "a.npz", x=x, y=y, client=sites)
    np.savez(tmp_path / "b.npz", x=x, y=y, client=np.where(sites == "Oslo", 20, 3))
    np.savez(tmp_path / "c.npz", x=x, y=y, client=sites.astype("S"))
    rows = "".join(f"{site},{a},{b}\n" for site, a, b in zip(sites, x[:, 0], y, strict=True))
    (tmp_path / "a.csv").write_text(f"client,a,label\n{rows}")
    want = {
        "a.npz": ("Lyon", "Oslo"),
        "b.npz": ("3", "20"),
        "c.npz": ("Lyon", "Oslo"),
        "a.csv": ("Lyon", "Oslo"),
    }
    for file, names in want.items():
        for test in (None, 0.25):
            assert named(read_own(tmp_path / file, None, None, test, Draw.seeded(0))) == names


def test_frames_and_parquet_name_their_sites(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame({"client": ["Oslo", "Lyon"] * 4, "a": np.arange(8.0), "label": [0, 1] * 4})
    frame.to_parquet(tmp_path / "a.parquet", index=False)
    assert named(read_own(tmp_path / "a.parquet", None, None, 0.25, Draw.seeded(0))) == ("Lyon", "Oslo")
    for sites in (frame["client"], frame["client"].astype("category")):
        task = Task.from_arrays(nn.Linear(1, 2), frame[["a"]].to_numpy(), frame["label"], groups=sites)
        assert task.names == ("Lyon", "Oslo")


def test_texts_name_their_clients_also_once_they_are_cut(tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    for name in ("bob", "ann"):
        (tmp_path / "letters" / f"{name}.txt").write_text("some words\n" * 9)
    (tmp_path / "log.jsonl").write_text(
        '{"client": "x y", "text": "words of x"}\n{"client": 7, "text": "more"}\n'
    )
    assert named(read_text(tmp_path / "letters")) == ("ann", "bob")
    assert named(read_text(tmp_path / "log.jsonl", test=0.0)) == ("x y", "7")
    data = from_text({"Hamlet, HORATIO": "my lord\n" * 9, "Macbeth, FIRST WITCH": "when\n" * 20})
    back = read_tokens(save_tokens(data, tmp_path / "cut.npz"))
    assert named(back) == named(data) == ("Hamlet, HORATIO", "Macbeth, FIRST WITCH")
    whole = dict(np.load(tmp_path / "cut.npz"))
    about = json.loads(str(whole["about"]))
    for clients, names in ((None, ("0", "1")), (["a", "a"], None), (["a"], None), (3, None)):
        changed = {k: v for k, v in about.items() if k != "clients"} | (
            {} if clients is None else {"clients": clients}
        )
        np.savez(tmp_path / "other.npz", **{**whole, "about": np.array(json.dumps(changed))})
        if names is None:
            with pytest.raises(Exception, match="is no file of tokens"):
                read_tokens(tmp_path / "other.npz")
        else:
            assert named(read_tokens(tmp_path / "other.npz")) == names


def test_hospitals_and_regions_have_their_names(root: Path) -> None:
    heart, brca = load("heart-disease", root), load("tcga-brca", root)
    assert named(heart) == ("cleveland", "hungarian", "switzerland", "va")
    assert named(brca) == ("Northeast", "South", "West", "Midwest", "Europe", "Canada")
    assert brca.groups is not None
    assert len(brca.groups.unique()) == 6


def test_a_runs_folder_has_the_names_and_a_resumed_run_too(tmp_path: Path) -> None:
    def run(rounds: int, callbacks: Sequence[Any] = ()) -> None:
        simulation = Simulation(sites_task(), FedAvg(eta=0.5, tau=2), rounds=rounds, device="cpu")
        record(simulation, tmp_path, start="resume", rounds=1, minutes=0, quiet=True, callbacks=callbacks)

    def stop(row: dict[str, Any]) -> None:
        if row["round"] == 2:
            raise Stopped(15)

    run(4, [Csv(tmp_path / "metrics.csv"), stop])
    run(4, [Csv(tmp_path / "metrics.csv")])
    rows = read_rows(tmp_path)
    assert [(row["round"], row["client_worst_name"]) for row in rows] == [
        (row["round"], row["client_worst_name"]) for row in played_to(4)
    ]
    for name in ("partition", "accuracy", "similarity"):
        assert json.loads((tmp_path / f"{name}.json").read_text())["names"] == list(SITES)
    with (tmp_path / "metrics.csv").open(newline="") as file:
        listed = list(csv.DictReader(file))
    assert [row["client_worst_name"] for row in listed] == [row["client_worst_name"] for row in rows]
    assert (
        json.loads((tmp_path / "summary.json").read_text())["client_worst_name"]
        == rows[-1]["client_worst_name"]
    )


def played_to(rounds: int) -> Iterable[dict[str, Any]]:
    return Simulation(sites_task(), FedAvg(eta=0.5, tau=2), rounds=rounds, device="cpu").run()


def test_the_command_line_names_the_sites(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{('Oslo', 'Lyon', 'Rome')[i % 3]},{i},{i // 3 % 2}\n" for i in range(60))
    Path("mine.csv").write_text(f"site,a,label\n{rows}")
    task = ("data.path=mine.csv", "data.client_column=site", "data.test=0.25", "data.normalise=client")
    quick = ("model.name=logistic", "algorithm.tau=2", "run.rounds=2", "--device", "cpu", "-q")
    assert command("run", *task, *quick, "run.log=csv,tensorboard", "--out", "a").code == 0
    found = json.loads(command("evaluate", "a", "--by-client").out)
    assert [client["name"] for client in found["clients"]] == ["Lyon", "Oslo", "Rome"]
    assert [client["test_samples"] for client in found["clients"]] == [5, 5, 5]
    worst = min(found["clients"], key=lambda client: client["test_accuracy"])
    assert (found["client_worst"], found["client_worst_name"]) == (worst["test_accuracy"], worst["name"])
    for overrides in ((), ("run.rounds=3",)):
        told = command("run", "--resume", "a", *overrides, "--device", "cpu", "-q")
        assert told.code == 0
    shown = command("compare", *task, *quick, "--methods", "fedavg,fedcom", "--out", "b").out
    assert "worst" in shown
    assert re.search("Lyon|Oslo|Rome", shown)
    for file in ("table.md", "table.csv", "report.html"):
        assert re.search("Lyon|Oslo|Rome", Path("b", file).read_text())
    refused = command("run", *task, *quick, "run.stop=client_worst_name>=1", "--out", "c")
    assert "rows do not hold" in refused.err


def test_unknown_sites_of_a_test_file_are_told_once_for_all_runs(tmp_path: Path) -> None:
    rows = "".join(f"{('Oslo', 'Lyon')[i % 2]},{i},{i // 2 % 2}\n" for i in range(20))
    (tmp_path / "mine.csv").write_text(f"client,a,label\n{rows}")
    (tmp_path / "test.csv").write_text(f"client,a,label\n{rows}Rome,1,1\n")
    data = ("data.path=mine.csv", "data.test=test.csv", "model.name=logistic", "run.rounds=1")
    some = ("--methods", "fedavg,fedcom", "--seeds", "2", "--device", "cpu", "-q")
    told = finished(tmp_path, "compare", *data, *some, "--out", "a")
    assert told.code == 0, told.err
    assert told.err.count("in no client's own: 1 of 'Rome'") == 1


class Seen(HTMLParser):
    """The tags that a browser would see, and the text of table cells."""

    def __init__(self) -> None:
        super().__init__()
        self.tags, self.text = list[str](), ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def curves_of(*names: str) -> list[Curve]:
    row = {"round": 1, "train_loss": 1.0, "test_accuracy": 0.5, "uplink_bytes": 1.0, "downlink_bytes": 1.0}
    scores = {"client_mean": 0.5, "client_worst": 0.25, "client_spread": 0.1}
    return [
        Curve("fedavg", seed, [{**row, **scores, "client_worst_name": name}], "done")
        for seed, name in enumerate(names)
    ]


def test_tables_name_the_worst_site_whatever_it_is_called(tmp_path: Path) -> None:
    table = compare_table(curves_of(EVIL), None)
    assert table[0]["client_worst_name"] == EVIL
    shown = markdown(table, None)
    heading, rule, line = shown.splitlines()[:3]
    assert "| worst client's name |" in heading
    bare = re.sub(r"\\.", "", line)  # without what is escaped
    assert bare.count("|") == heading.count("|") == rule.count("|")
    assert "<" not in bare
    assert len(line) < 200
    seen = Seen()
    seen.feed(html(table, None))
    assert "script" not in seen.tags
    assert '<script>alert("1")' in seen.text
    write_csv(table, tmp_path / "table.csv")
    with (tmp_path / "table.csv").open(newline="") as file:
        assert next(csv.DictReader(file))["client_worst_name"] == EVIL


def test_the_worst_sites_of_several_seeds_are_counted() -> None:
    assert (
        compare_table(curves_of("Lyon", "Oslo", "Oslo"), None)[0]["client_worst_name"] == "Oslo (2), Lyon (1)"
    )
    assert compare_table(curves_of("Lyon", "Lyon"), None)[0]["client_worst_name"] == "Lyon"
    nameless = curves_of("Lyon")
    del nameless[0].rows[0]["client_worst_name"]
    table = compare_table(nameless, None)
    assert "client_worst_name" not in table[0]
    assert "name" not in markdown(table, None).splitlines()[0]


def test_the_report_names_sites_and_none_becomes_markup(tmp_path: Path) -> None:
    record(
        Simulation(sites_task(), FedAvg(eta=0.5, tau=2), rounds=2, device="cpu"), tmp_path / "run", quiet=True
    )
    found = collect([tmp_path / "run"])
    text = build(found)
    seen = Seen()
    seen.feed(text)
    assert seen.tags.count("script") == text.count("</script") == 2
    data = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)
    assert data
    told = json.loads(data.group(1))
    (partition,) = told["partitions"]
    assert partition["names"] == partition["similarity"]["names"]
    assert partition["names"][1:] == ["Lyon", "Oslo"]
    assert partition["names"][0].startswith('<script>alert("1")')
    assert len(partition["names"][0]) <= 41
    accuracy = json.loads((tmp_path / "run" / "accuracy.json").read_text())["clients"]
    lowest = partition["names"][accuracy.index(min(accuracy))]
    assert told["accuracies"]["methods"][0]["least_name"] == lowest
    assert "worst client&#x27;s name" in text


def test_names_that_do_not_fit_are_left_out_of_the_report(tmp_path: Path) -> None:
    record(
        Simulation(sites_task(), FedAvg(eta=0.5, tau=2), rounds=1, device="cpu"), tmp_path / "run", quiet=True
    )
    for name in ("partition", "accuracy", "similarity"):
        file = tmp_path / "run" / f"{name}.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"names": ["one"]}))
    found = collect([tmp_path / "run"])
    assert not found.notices
    assert accuracies(found.runs)["methods"][0]["least_name"] == ""
    assert '"names":null' in build(found)
    page.write([tmp_path / "run"], tmp_path / "report.html")


def test_a_name_of_any_bytes_can_be_written(tmp_path: Path) -> None:
    task = sites_task(("a\udcff", "Lyon", "Oslo"))
    assert task.names is not None
    " ".join(task.names).encode()
    found = compare(task, ["fedavg"], rounds=2, out=tmp_path, device="cpu", quiet=True)
    assert "Lyon" in str(found)


def test_no_name_travels_to_or_from_remote_clients(tmp_path: Path) -> None:
    names = ("a-hospital-in-Lyon", "a-hospital-in-Oslo", "a-hospital-in-Rome")
    task, heard = sites_task(names), list[bytes]()
    settings = {"algorithm": FedAvg(eta=0.5, tau=2), "rounds": 2}

    class Listening(Perfect):
        def carry(self, calls: Any, hear: Any, *others: Any) -> None:
            def noted(client: int, reply: Any) -> Any:
                heard.append(bytes(reply))
                return hear(client, reply)

            kept = [(client, bytes(call)) for client, call in calls]
            heard.extend(call for _, call in kept)
            super().carry(kept, noted, *others)

    transport = Listening(participants(task, settings, tmp_path / "clients"))
    simulation, _ = deployed(task, settings, tmp_path, transport)
    simulation.run()
    assert len(heard) >= 12
    assert not any(b"hospital" in message for message in heard)
