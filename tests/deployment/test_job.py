"""Jobs of a user's model and data, without Flower."""

import hashlib
import json
import tomllib
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import URLError

import pytest
import torch
from torch import nn

from fedcom import FedAvg, Simulation, Task, token_cross_entropy
from fedcom.config import Config, read
from fedcom.deployment.flower.new import new
from fedcom.deployment.job import Job
from fedcom.errors import ConfigError
from fedcom.reports import page
from fedcom.runs.files import read_rows
from fedcom.runs.status import statuses
from tests.processes import free_ports

SETTINGS = ["data.clients=3", "algorithm.tau=2", "algorithm.batch=4", "run.rounds=3"]


def data(client: int, clients: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(client)
    x = torch.randn(10 + client, 5, generator=generator)
    return x, (x.sum(1) > 0).long()


def parts(**more: Any) -> Any:
    given = {"model": lambda: nn.Linear(5, 2), "client_data": data, "test_data": lambda: data(9, 3)}
    return SimpleNamespace(__name__="mine", **{**given, **more})


def job(*settings: str, **more: Any) -> Job:
    return Job(Config.of(read(None, [*SETTINGS, *settings])), parts(**more))


class Here:
    """Clients in this process."""

    def __init__(self, job: Job, folder: Path, stop: int | None = None) -> None:
        self.clients = {j: job.participant(j, folder / str(j)) for j in range(3)}
        self.stop, self.carried = stop, 0

    def carry(self, calls: Any, hear: Any, give_up: Any, missing: Any, deadline: float, admit: Any) -> None:
        if self.carried == self.stop:
            raise KeyboardInterrupt
        for client, call in calls:
            assert hear(client, self.clients[client].answer(call)) is None
        self.carried += 1


def test_a_job_leaves_a_run_folder_like_any_other(tmp_path: Path) -> None:
    out = tmp_path / "run"
    outcome = job().serve(Here(job(), tmp_path / "clients"), out)
    assert outcome.error is None
    rows = read_rows(out)
    assert [row["round"] for row in rows] == [0, 1, 2, 3]
    assert [row["counted"] for row in rows] == [0, 3, 3, 3]
    assert [row["void"] for row in rows] == [0, 0, 0, 0]
    assert statuses([out])[0].void == 0
    assert tomllib.loads((out / "config.toml").read_text())["round"]["deadline"] == 600.0
    assert all(row["train_loss"] is None and row["test_accuracy"] is not None for row in rows)
    assert statuses([out])[0].state == "done"
    page.write([out], tmp_path / "report.html")
    assert "fedcomgate" in (tmp_path / "report.html").read_text()
    partition = json.loads((out / "partition.json").read_text())
    assert partition["label_counts"] is None
    assert "names" not in partition  # which only the clients may know
    again = job().serve(Here(job(), tmp_path / "others"), out)  # it is done already
    assert [row["round"] for row in again.curve.rows] == [0, 1, 2, 3]


@pytest.mark.parametrize("more", [{}, {"loss": token_cross_entropy}], ids=["usual loss", "named"])
def test_a_job_of_text_has_the_loss_and_the_scores_of_tokens(tmp_path: Path, more: dict[str, Any]) -> None:
    def text(client: int, clients: int) -> tuple[torch.Tensor, torch.Tensor]:
        y = (torch.arange(5 + client).unsqueeze(1) * torch.arange(4)) % 3
        return y.roll(1, 1), torch.where((torch.arange(4) == 3) & (y != 0), -100, y)

    torch.manual_seed(0)
    module = nn.Sequential(nn.Embedding(3, 4), nn.Linear(4, 3))
    given = {"model": lambda: module, "client_data": text, "test_data": lambda: text(7, 3), **more}
    settings = ("algorithm.name=fedavg", "algorithm.batch=full")
    there = Here(job(*settings, **given), tmp_path / "clients")
    assert job(*settings, **given).serve(there, tmp_path / "run").error is None
    own = [text(client, 3) for client in range(3)]
    x, y = (torch.cat(parts) for parts in zip(*own, strict=True))
    groups = [client for client in range(3) for _ in own[client][0]]
    task = Task.from_arrays(module, x, y, *text(7, 3), groups=groups)
    row = Simulation(task, FedAvg(tau=2, batch="full"), rounds=3, device="cpu").run()[-1]
    last = read_rows(tmp_path / "run")[-1]
    for score in ("test_loss", "test_accuracy", "test_perplexity"):
        assert last[score] == pytest.approx(row[score])


@pytest.mark.parametrize("batch_norm", ["averaged", "own"])
def test_a_job_may_have_a_module_that_drops_normalises_batches_and_takes_two_inputs(
    tmp_path: Path, batch_norm: str
) -> None:
    """Nothing but a call tells that it drops; clients and server find it out for themselves."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.last = nn.BatchNorm1d(5), nn.Linear(5, 2)

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            h = nn.functional.dropout(torch.cat((a, b), -1), 0.2, self.training)
            return self.last(self.norm(h))  # type: ignore[no-any-return]

    def two(client: int, clients: int) -> Any:
        x, y = data(client, clients)
        return {"a": x[:, :2], "b": x[:, 2:]}, y

    more = {"model": Two, "client_data": two, "test_data": lambda: two(9, 3), "batch_norm": batch_norm}
    mine = job("algorithm.name=fedcomgate", "uplink.name=int", **more)
    here = Here(mine, tmp_path / "clients")
    mine.serve(here, tmp_path / "run")
    rows = read_rows(tmp_path / "run")
    assert rows[-1]["round"] == 3
    assert all(client.task.objective.drops for client in here.clients.values())
    assert (here.clients[0]._initial[1].keys() >= {"own"}) == (batch_norm == "own")


def test_losses_of_torchs_mean_the_same_to_real_clients() -> None:
    """Ignored targets are none of the classes, and answers of yes or no have an accuracy."""

    def gaps(*numbers: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = data(*(numbers or (9, 3)))
        return x, torch.where(torch.arange(len(y)) % 3 == 0, -100, y)

    some = job(client_data=gaps, test_data=gaps, loss=nn.CrossEntropyLoss())
    task = some.server_task()
    outputs, (_, y) = task.objective.outputs(task.objective.start, task.test_x), gaps()
    expected = float(nn.functional.cross_entropy(outputs, y).detach())
    scores = task.evaluate(task.objective.start, torch.full((3,), 1 / 3))
    assert scores["test_loss"] == pytest.approx(expected, rel=1e-6)
    right = (outputs.argmax(-1) == y)[y >= 0].double().mean()
    assert scores["test_accuracy"] == pytest.approx(float(right))
    assert some.client_task(1).classes == 2
    answers = job(model=lambda: nn.Sequential(nn.Linear(5, 1), nn.Flatten(0)), loss=nn.BCEWithLogitsLoss())
    task = answers.server_task()
    outputs, (_, y) = task.objective.outputs(task.objective.start, task.test_x), data(9, 3)
    scores = task.evaluate(task.objective.start, torch.full((3,), 1 / 3))
    assert scores["test_accuracy"] == pytest.approx(float(((outputs > 0) == (y > 0)).double().mean()))


def test_a_stopped_server_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    job().serve(Here(job(), tmp_path / "a"), whole)
    for stop in (0, 2):
        out, clients = tmp_path / f"run-{stop}", tmp_path / f"clients-{stop}"
        with pytest.raises(KeyboardInterrupt):
            job().serve(Here(job(), clients, stop), out)
        job().serve(Here(job(), clients), out)
        assert (out / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
        assert [row["round"] for row in read_rows(out)] == [0, 1, 2, 3]


def test_clients_that_count_by_size_need_sizes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"add sizes\(clients\) to mine"):
        job("algorithm.weights=size").server_task()
    sizes = {"sizes": lambda clients: [10, 11, 12]}
    weighted = job("algorithm.weights=size", **sizes)
    outcome = weighted.serve(Here(weighted, tmp_path / "clients"), tmp_path / "run")
    assert outcome.error is None
    wrong = job("algorithm.weights=size", sizes=lambda clients: [10, 11, 99])
    with pytest.raises(ConfigError, match="client 2 has 99 samples; it has 12"):
        wrong.participant(2, tmp_path)
    with pytest.raises(ConfigError, match="clients 0 to 2"):
        job().participant(3, tmp_path)
    with pytest.raises(ConfigError, match=r"needs data\.clients"):
        _ = Job(Config.of(read(None, [])), parts()).clients


def test_a_new_app_is_whole_and_its_job_runs(tmp_path: Path) -> None:
    app = tmp_path / "My App"
    files = new(app, clients=5)
    assert {path.name for path in files} >= {"pyproject.toml", "task.py", "fedcom.toml", "app.py"}
    table = tomllib.loads((app / "pyproject.toml").read_text())
    assert table["tool"]["flwr"]["app"]["components"]["serverapp"] == "my_app.app:server_app"
    space: dict[str, Any] = {"__name__": "task"}
    exec((app / "my_app" / "task.py").read_text(), space)
    made = Job(Config.of(read(app / "my_app" / "fedcom.toml", [])), SimpleNamespace(**space))
    assert made.clients == 5
    assert sum(len(made.client_task(j).x) for j in range(5)) == 1500
    with pytest.raises(ConfigError, match="not an empty folder"):
        new(app)
    with pytest.raises(ConfigError, match="begin it with a letter"):
        new(tmp_path / "7")


@pytest.mark.parametrize("key", ["eta", "gamma"])
def test_auto_rates_need_the_data_of_all_clients(tmp_path: Path, key: str) -> None:
    """Neither the server nor a client has them: each would settle on numbers of its own, or on none."""
    auto = job(f"algorithm.{key}=auto")
    with pytest.raises(ConfigError, match=f"has {key}=auto, which is set from the data of all clients"):
        auto.serve(Here(job(), tmp_path / "clients"), tmp_path / "run")
    with pytest.raises(ConfigError, match=f"has {key}=auto"):
        auto.participant(0, tmp_path / "0")
    assert not (tmp_path / "run").exists()


class Nobody:
    """A transport that reaches no client in some rounds."""

    def __init__(self, inner: Here, deaf: set[int]) -> None:
        self.inner, self.deaf, self.round = inner, deaf, -1

    def carry(self, calls: Any, *rest: Any) -> None:
        self.round += 1
        if self.round in self.deaf:
            list(calls)
        else:
            self.inner.carry(calls, *rest)


def test_void_rounds_are_counted_wherever_one_looks(tmp_path: Path) -> None:
    out, mine = tmp_path / "run", job("run.rounds=5", "round.pause=0.01")
    mine.serve(Nobody(Here(mine, tmp_path / "clients"), {1, 3}), out)
    assert [row["void"] for row in read_rows(out)] == [0, 0, 1, 1, 2, 2]
    assert json.loads((out / "summary.json").read_text())["void"] == 2
    assert statuses([out])[0].void == 2
    lines = [json.loads(line) for line in (out / "faults.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines if line.get("void")] == [1, 3]
    page.write([out], tmp_path / "report.html")
    assert "2: too few clients replied" in (tmp_path / "report.html").read_text()


class Asking(Here):
    """A transport that asks the endpoint for the figures in every round."""

    port, answers = 0, list[str]()

    def carry(self, *args: Any) -> None:
        self.answers.append(urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics").read().decode())
        super().carry(*args)


def test_a_monitor_reads_the_figures_while_a_job_runs(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    mine = job(f"round.metrics_port={port}")
    transport = Asking(mine, tmp_path / "clients")
    transport.port, transport.answers = port, []
    mine.serve(transport, tmp_path / "run")
    figures = [
        dict(line.split() for line in text.splitlines() if line[0] != "#") for text in transport.answers
    ]
    assert [found["fedcom_round"] for found in figures] == ["0", "1", "2"]
    assert [found["fedcom_clients_counted"] for found in figures] == ["0", "3", "3"]
    assert figures[-1]["fedcom_rounds_void_total"] == "0"
    assert float(figures[-1]["fedcom_uplink_bytes"]) > float(figures[1]["fedcom_uplink_bytes"]) > 0
    with pytest.raises(URLError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics")  # it ended with the job


def test_the_audit_says_who_was_counted_by_the_hashes_of_their_replies(tmp_path: Path) -> None:
    mine, sent = job(), list[tuple[int, str]]()

    class Noting(Here):
        def carry(self, calls: Any, hear: Any, *rest: Any) -> None:
            def note(client: int, reply: bytes) -> Any:
                sent.append((client, hashlib.sha256(reply).hexdigest()))
                return hear(client, reply)

            super().carry(calls, note, *rest)

    mine.serve(Noting(mine, tmp_path / "clients"), tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "audit.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [0, 1, 2]
    found = [(int(client), told) for line in lines for client, told in line["counted"].items()]
    assert found == sent
    assert not any(line["void"] for line in lines)
