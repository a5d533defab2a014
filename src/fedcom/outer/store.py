"""Checkpoints of workers: each writes its own, and after a failure all go on from the last in common."""

import re
from pathlib import Path
from typing import Any, Protocol

import torch

from fedcom.errors import StorageError
from fedcom.outer.outer import Outer
from fedcom.saving.whole import write_whole

_KEPT = 2  # of each worker: another may not have written its last one


class Stateful(Protocol):
    """A module, an optimiser, a schedule, a loader: whatever has a state."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state: Any, /) -> Any: ...


def save(folder: str | Path, outer: Outer, **parts: Stateful) -> Path:
    """Write all that this worker needs to go on with the same bits; call it after an outer step.

    Args:
        folder: of the run; every process has files of its own in it.
        parts: what else has a state, by name: model, optimizer, schedule and so on.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    state = {
        "outer": outer.state_dict(),
        "parts": {name: part.state_dict() for name, part in parts.items()},
        "random": torch.get_rng_state(),
        "random_gpu": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }
    path = folder / f"worker-{outer.process}-{outer.steps}.pt"
    write_whole(path, lambda aside: torch.save(state, aside))
    for step in _steps(folder, outer.process)[:-_KEPT]:
        (folder / f"worker-{outer.process}-{step}.pt").unlink(missing_ok=True)
    return path


def restore(folder: str | Path, outer: Outer, **parts: Stateful) -> bool:
    """Go on from the last checkpoint that the workers have in common; all processes call this at once.

    A worker that has none, as a new one, gets the outer parameters and moments from another, and begins with
    an optimiser as it is. Returns whether there was a checkpoint.
    """
    folder, process = Path(folder), outer.process
    own = _steps(folder, process)
    newest = outer.gather(max(own, default=-1))
    common = min((step for step in newest if step >= 0), default=-1)
    if common < 0:
        return False
    missing = common not in own
    if not missing:
        _load(folder / f"worker-{process}-{common}.pt", outer, parts)
    has = outer.gather(int(not missing))
    if not any(has):
        raise StorageError(
            f"{folder} has no checkpoint of step {common}, the last that workers have in common"
        )
    if not all(has):
        outer.join(has.index(1), common, missing)
    return True


def _load(path: Path, outer: Outer, parts: dict[str, Stateful]) -> None:
    state = torch.load(path, map_location="cpu", weights_only=True)
    if set(state["parts"]) != set(parts):
        raise StorageError(f"{path} holds {sorted(state['parts'])}, not {sorted(parts)}; give the same parts")
    for name, part in parts.items():
        part.load_state_dict(state["parts"][name])
    outer.load_state_dict(state["outer"])
    torch.set_rng_state(state["random"])
    if state["random_gpu"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["random_gpu"])


def _steps(folder: Path, process: int) -> list[int]:
    """The steps of which a process has checkpoints, in order."""
    found = (re.fullmatch(rf"worker-{process}-(\d+)\.pt", path.name) for path in folder.glob("worker-*.pt"))
    return sorted(int(match[1]) for match in found if match)
