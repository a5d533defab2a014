"""Runs of NIID-Bench are those of its code: torch modules and optimisers in a loop, client by client."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedcom import ConfigError, Simulation, Task
from fedcom.config.methods import variant
from fedcom.draws import Draw
from fedcom.reproduce import STUDIES, Scale, command, niid, rates
from fedcom.reproduce.results import StudyResults
from fedcom.reproduce.study import panel
from fedcom.tasks.models import Lenet
from fedcom.tasks.oracle import DataOracle
from fedcom.vectors import Layout, flatten, load
from tests.conftest import close

ROUNDS, BATCH = 2, 4
TABLE = panel("niid-bench/mnist.toml", Scale(), niid.METHODS, tuned=False).table
TABLE["algorithm"] |= {"epochs": 2, "batch": BATCH}


def images(sizes: list[int]) -> Task:
    torch.manual_seed(0)
    count = sum(sizes)
    x, y = torch.rand(count, 1, 16, 16, dtype=torch.float64), torch.randint(0, 3, (count,))
    owners = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    return Task.from_arrays(Lenet().module((1, 16, 16), 3), x, y, partition=owners, dtype="float64")


class Loop:
    """Rounds as their code has them; minibatches are those of ours.

    Args:
        mu: of FedProx.
    """

    def __init__(self, run: Simulation, mu: float = 0.0) -> None:
        self.run, self.task, self.mu = run, run.task, mu
        self.w = self.task.objective.start.clone()
        self.c = torch.zeros_like(self.w)
        self.own = [torch.zeros_like(self.w) for _ in self.task.sizes]

    def client(self, number: int, j: int, corrects: bool) -> tuple[Tensor, int]:
        """A client's model after its steps, and how many they were."""
        net, a = copy.deepcopy(self.task.objective.module), self.run.algorithm
        load(net, self.w)
        first = [p.detach().clone() for p in net.parameters()]
        sgd = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-5)
        who = torch.tensor([j])
        oracle = DataOracle.of(self.task, who, Draw.seeded(0).fold(number).fold(who), a)
        steps = 2 * -(-int(self.task.sizes[j]) // BATCH)
        for c in range(steps):
            x, y, weight = (part[0] for part in oracle.at(c).minibatch(BATCH, torch.float64))
            loss = nn.functional.cross_entropy(net(x[weight > 0]), y[weight > 0])
            pull = sum(((p - q) ** 2).sum() for p, q in zip(net.parameters(), first, strict=True))
            sgd.zero_grad()
            (loss + self.mu / 2 * pull).backward()  # type: ignore[no-untyped-call]
            sgd.step()
            if corrects:
                load(net, flatten(net, torch.float64) - 0.01 * (self.c - self.own[j]))
        return flatten(net, torch.float64), steps

    def round(self, number: int, method: str) -> None:
        p = self.task.sizes.double() / self.task.sizes.sum()
        ends = [self.client(number, j, method == "scaffold") for j in range(len(p))]
        if method == "fednova":
            a = [(k - 0.9 * (1 - 0.9**k) / 0.1) / 0.1 for _, k in ends]
            effective = sum(pj * aj for pj, aj in zip(p, a, strict=True))
            means = sum(pj * (self.w - w) / aj for pj, aj, (w, _) in zip(p, a, ends, strict=True))
            self.w = self.w - effective * means
            return
        if method == "scaffold":
            new = [
                own - self.c + (self.w - w) / (0.01 * k) for own, (w, k) in zip(self.own, ends, strict=True)
            ]
            self.c = self.c + sum(pj * (b - a) for pj, a, b in zip(p, self.own, new, strict=True))
            self.own = new
        self.w = sum(pj * w for pj, (w, _) in zip(p, ends, strict=True))  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("label", "sizes"),
    [
        ("fedavg", [5, 12, 8]),
        ("fedprox 1", [5, 12, 8]),
        ("fednova", [5, 12, 8]),
        ("scaffold", [10, 9, 12]),  # of equal steps: else ours weigh the gradients of a few steps otherwise
    ],
)
def test_runs_are_those_of_a_loop_over_torch_modules(label: str, sizes: list[int]) -> None:
    run = Simulation(images(sizes), variant(TABLE, label).algorithm, rounds=ROUNDS, device="cpu")
    loop = Loop(run, mu=1.0 if label == "fedprox 1" else 0.0)
    for number in range(ROUNDS):
        run.step()
        loop.round(number, label)
        assert close(run.server.w, loop.w, 1e-12)


def cells(name: str) -> dict[str, float]:
    """An accuracy for each label: as published, FedProx best at the third mu, and SCAFFOLD by the side."""
    found = niid.published(name)
    return {
        label: found["fedprox"] - 0.1 * (label != "fedprox 0.1")
        if label.startswith("fedprox")
        else found.get(label, 0.5)
        for label in niid.METHODS
    }


def record(panel_name: str, label: str, accuracy: float | None) -> dict[str, Any]:
    rows = [{"round": 50, "test_accuracy": accuracy}]
    status = "diverged" if accuracy is None else "done"
    return {"panel": panel_name, "method": label, "point": {}, "seed": 0, "status": status, "rows": rows}


def test_cells_are_judged_beside_the_published_ones() -> None:
    study, scale = STUDIES["niid-bench-fashion-mnist"], Scale(seeds=1)
    panels = study.plan(scale)
    assert [p.name for p in panels] == [f"fashion-mnist, {deal}" for deal in niid.DEALS]
    found = {(p.name, label): x for p in panels for label, x in cells(p.name).items()}

    def judged(**changes: float | None) -> tuple[str, str]:
        new = found | {(f"fashion-mnist, {deal}", "fedavg"): x for deal, x in changes.items()}
        results = StudyResults(panels, [record(*key, x) for key, x in new.items()], scale)
        (verdict,) = study.judge(results)
        return verdict.outcome, verdict.numbers

    assert judged()[0] == "holds"
    assert "20 are, 0 of them exceeded" in judged()[1]
    assert "1 of them exceeded" in judged(dirichlet=0.95)[1]
    assert judged(**{"1 label": None})[0] == "holds"  # no longer finite, and published as 10.0
    outcome, numbers = judged(iid=0.86, dirichlet=None, **{"2 labels": 0.7, "3 labels": 0.5})
    assert outcome == "does not hold here"
    assert "16 are" in numbers
    assert "fashion-mnist, iid, fedavg: 86.0 against 89.0" in numbers
    lines = niid.table(
        StudyResults(panels, [record(*key, x) for key, x in found.items()], scale), panels[3].name
    )
    assert [line["method"] for line in lines] == [
        "fedavg",
        "scaffold",
        "fedprox 0.1",
        "fednova",
        "scaffold inside",
    ]
    assert lines[2]["published"] == pytest.approx(78.8)
    assert lines[4]["published"] is None


def test_a_hundredth_of_the_bytes_is_judged_beside_the_best_published_method() -> None:
    study, scale = STUDIES["niid-compressed-mnist"], Scale(seeds=1)
    panels = study.plan(scale)
    d = sum(p.numel() for p in Lenet().module((1, 28, 28), 10).parameters())
    assert d == niid.PARAMETERS["mnist"]
    assert sum(p.numel() for p in Lenet().module((3, 32, 32), 10).parameters()) == niid.PARAMETERS["cifar-10"]
    rounds = {p.name: p.config.run.rounds for p in panels}

    def judged(accuracy: float, sent: float) -> list[str]:
        records = [record(p.name, label, accuracy) for p in panels for label in p.methods]
        for one in records:
            way = {"uplink_bytes": sent, "downlink_bytes": 9 * sent}
            one["rows"][-1] |= {"round": rounds[one["panel"]], **way}
        results = StudyResults(panels, records, scale)
        (line,) = niid.compressed_table(results, panels[0].name)
        assert line["times_fewer_up"] == pytest.approx(200 * d / sent)  # of 50 models in float32
        assert line["times_fewer_both_ways"] == pytest.approx(40 * d / sent)
        return [verdict.outcome for verdict in study.judge(results)]

    assert judged(0.99, 2 * d) == ["holds"] * 4  # with one label per client two of their methods collapse
    assert judged(0.99, 2.1 * d) == ["does not hold here"] * 4
    assert judged(0.97, 2 * d) == [*["does not hold here"] * 2, "holds", "does not hold here"]


def test_bytes_of_a_run_that_diverged_are_those_of_the_rounds_it_had() -> None:
    study, scale = STUDIES["niid-compressed-mnist"], Scale(seeds=2)
    panels = study.plan(scale)
    records = [record(p.name, label, None) for p in panels for label in p.methods]
    for one in records:  # before its first evaluation
        one["rows"] = [{"round": 0, "test_accuracy": 0.1, "uplink_bytes": 0, "downlink_bytes": 0}]
    results = StudyResults(panels, records, scale)
    (line,) = niid.compressed_table(results, panels[0].name)
    assert (line["accuracy"], line["times_fewer_up"]) == (10, 0)
    assert [v.outcome for v in study.judge(results)] == ["does not hold here"] * 4
    sent, rounds = niid.PARAMETERS["mnist"] / 25, panels[0].config.run.rounds  # a hundredth of their round
    for one in records:
        one["rows"] = [{"round": rounds // 5, "test_accuracy": 0.1, "uplink_bytes": 10 * sent}]
    whole = {**records[0], "seed": 1}
    whole["rows"] = [{"round": rounds, "test_accuracy": 1, "uplink_bytes": 50 * sent}]
    results = StudyResults(panels, [*records, whole], scale)
    assert niid.fewer(results, panels[0].name, records[0]["method"]) == pytest.approx(100)


def test_the_form_and_label_that_were_best_on_held_out_samples_run_at_their_rates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "experiments" / "rates"
    folder.mkdir(parents=True)
    for i, (form, told) in enumerate(niid.FORMS.items()):
        text = "".join(
            f'[methods."{label}"]\ngamma = {2.0 + j}\n[found."{label}"]\naccuracy = {80 + i + j / 2}\n'
            for j, label in enumerate(told["over"]["methods"])
        )
        (folder / f"niid-mnist-iid-{form.replace(' ', '-')}.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    panels = {p.name: p for p in STUDIES["niid-compressed-mnist"].panels(Scale())}
    assert [*panels] == [f"mnist, {deal}" for deal in niid.DEALS]
    runs = {name: p.runs(1) for name, p in panels.items()}
    assert {len(own) for own in runs.values()} == {1}
    first, *_, last = (told["over"] for told in niid.FORMS.values() if "vectors" not in told)
    for deal, over, gamma in (("iid", last, 1.0 + len(last["methods"])), ("2 labels", first, 1.0)):
        (run,) = runs[f"mnist, {deal}"]
        assert run.config.run.rounds == over["run"]["rounds"]
        assert run.config.algorithm.epochs == over["algorithm"]["epochs"]
        assert run.config.algorithm.gamma == gamma
        assert run.config.algorithm.eta == over["algorithm"].get("eta", 0.01)


def test_every_label_is_tuned_as_its_form_says_where_methods_do_not_collapse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grids = []

    def note(table: Any, label: str, grid: Any, seeds: int, run: Any) -> Any:
        grids.append((label, grid, table["algorithm"]["eta"], table["run"]["rounds"]))
        raise ConfigError("enough")

    monkeypatch.setattr(rates, "tune_one", note)
    with pytest.raises(ConfigError, match=r"has no rates of exact peaks 0\.06"):
        command.run(["rates", "niid-compressed-mnist"], False, None, tmp_path, "cpu", True)
    forms = [(told["over"], told["tuning"]) for told in niid.FORMS.values() if "vectors" not in told]
    assert {"gamma": [0.5, 1.0, 2.0]} in [grid for _, grid in forms]
    wanted = [
        (label, grid, own["algorithm"].get("eta", 0.01), own["run"]["rounds"])
        for own, grid in forms
        for label in own["methods"]
    ]
    assert grids == 4 * wanted


@pytest.mark.parametrize("data", niid.SETS)
def test_every_form_has_a_hundredth_of_the_bytes(data: str) -> None:
    labels = set()
    for p in STUDIES[f"niid-compressed-{data}"].panels(Scale(), tuning=True):
        name = p.name.rpartition(", ")[0]
        most = niid.vectors(name) * 4 * 50 * niid.PARAMETERS[data] / niid.TIMES
        for run in p.runs(1):
            labels.add(run.method)
            codec, layout = (
                run.config.links.uplink,
                Layout(("w",), ((niid.PARAMETERS[data],),), torch.float32),
            )
            message = codec.encode(torch.randn(layout.size), layout, Draw.seeded(0))
            assert len(message) * run.config.run.rounds <= most, run
    alone = any(niid.vectors(f"{data}, {deal}") > 1 for deal in niid.DEALS)
    forms = [form for form in niid.FORMS.values() if alone or form.get("vectors", 1) == 1]
    assert labels == {label for form in forms for label in form["over"]["methods"]}


def test_where_scaffold_alone_is_best_its_two_vectors_count() -> None:
    alone = {
        f"{data}, {deal}" for data in niid.SETS for deal in niid.DEALS if niid.vectors(f"{data}, {deal}") == 2
    }
    assert alone == {"fashion-mnist, 3 labels", "cifar-10, dirichlet"}  # elsewhere FedProx is as good
    assert niid.best_published("mnist, iid") == ("fedprox", pytest.approx(0.992))
    assert niid.best_published("cifar-10, dirichlet") == ("scaffold", pytest.approx(0.68))
