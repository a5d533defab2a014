"""A fault at every write, flush and rename of a run in turn; each time it goes on to the same bits."""

import errno
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import fedcom
from fedcom import FedCOMGATE, Simulation
from fedcom.runs.files import LONGER as ASIDE
from tests.conftest import CHAOS, mlp_task
from tests.runs.disk import Platter, PowerCut, watched

ROUNDS, LONGER = 4, 6
Results = tuple[bytes, str, list[dict[str, object]]]


def record(out: Path, rounds: int, checkpoints: int | None = 2) -> None:
    method = FedCOMGATE(eta=0.05, gamma=1.0, tau=2, batch=5)
    run = Simulation(mlp_task(), method, rounds=rounds, participation=0.5, seed=3, device="cpu")
    fedcom.record(run, out, start="resume", quiet=True, rounds=checkpoints)


def results(out: Path) -> Results:
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    rows = [{key: value for key, value in row.items() if key != "seconds"} for row in rows]
    return (out / "model.safetensors").read_bytes(), (out / "ledger.json").read_text(), rows


def operations(folder: Path, play: Callable[[], None]) -> list[tuple[str, str]]:
    """Every write, flush and rename of a run."""
    found = list[tuple[str, str]]()
    with watched(folder, lambda kind, path: found.append((kind, path.name))):
        play()
    return found


FAULTS: dict[str, Callable[[], BaseException]] = {
    "broken": lambda: OSError(errno.EIO, "Input/output error"),
    "full": lambda: OSError(errno.ENOSPC, "No space left on device"),
    "memory": MemoryError,
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Results]:
    """The results of the run, and of the same made longer, by its rounds."""
    folder = tmp_path_factory.mktemp("undisturbed")
    for rounds in (ROUNDS, LONGER):
        record(folder / str(rounds), rounds)
    return {rounds: results(folder / str(rounds)) for rounds in (ROUNDS, LONGER)}


@pytest.fixture(scope="module", params=[2, None])
def checkpoints(request: pytest.FixtureRequest) -> Any:
    """Every so many rounds, or none."""
    return request.param


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory, checkpoints: int | None) -> dict[int, int]:
    """How many operations the run has, and the same made longer after it."""
    folder = tmp_path_factory.mktemp("counted")
    return {n: len(operations(folder, lambda n=n: record(folder, n, checkpoints))) for n in (ROUNDS, LONGER)}  # type: ignore[misc]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_at_every_operation(
    tmp_path: Path,
    fault: str,
    checkpoints: int | None,
    many: dict[int, int],
    undisturbed: dict[int, Results],
) -> None:
    """Of a run, and of the same made longer; in the suite at some of them."""
    wanted, finished = undisturbed[LONGER], undisturbed[ROUNDS]
    assert min(many.values()) > 20
    places = [(rounds, k) for rounds in many for k in range(many[rounds])]
    for rounds, place in places if CHAOS else places[:: 13 if fault == "broken" else 37]:
        out, left = tmp_path / f"{rounds}-{place}", [place]
        if rounds == LONGER:
            record(out, ROUNDS, checkpoints)

        def fail(kind: str, path: Path, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == -1:
                raise FAULTS[fault]()

        with watched(out, fail), suppress(fedcom.FedcomError, OSError, MemoryError):
            record(out, rounds, checkpoints)
        assert left[0] < 0, "the fault never came"
        if rounds == LONGER and checkpoints is None and not replaced(out):
            assert results(out) == finished  # until the longer run is done
        record(out, LONGER, checkpoints)
        assert results(out) == wanted, (rounds, place)
        assert not list(out.rglob("*.part"))


def replaced(out: Path) -> bool:
    """Whether a longer run is done, and is taking or has taken the place of the shorter one."""
    aside = out / ASIDE / "summary.json"
    return not aside.exists() or json.loads(aside.read_text())["status"] == "done"


def test_a_power_cut_at_every_operation(
    tmp_path: Path, checkpoints: int | None, many: dict[int, int], undisturbed: dict[int, Results]
) -> None:
    """What was not flushed is gone; the run goes on from what is left."""
    wanted = undisturbed[LONGER]
    for place in range(0, many[ROUNDS], 1 if CHAOS else 9):
        out, platter, left = tmp_path / f"{place}", Platter(tmp_path / f"{place}"), [place]

        def cut(kind: str, path: Path, left: list[int] = left, platter: Platter = platter) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise PowerCut
            if kind == "flush":
                platter.flush(path)

        with watched(out, cut), pytest.raises(PowerCut):
            record(out, ROUNDS, checkpoints)
        after = tmp_path / f"{place}-after"
        platter.restore(after)
        platter.close()
        record(after, LONGER, checkpoints)
        assert results(after) == wanted, place
