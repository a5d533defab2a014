"""Checkpoints of workers: each writes its own, and after a failure all go on from the last in common."""

import re
import warnings
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
    """Write what this worker needs to go on with the same bits; call it after an outer step.

    Args:
        folder: of the run; every process has files of its own in it.
        parts: what else has a state, by name: model, optimizer, schedule, loader and so on. The state of
            torch's random numbers is written too, that of `random` and of numpy is not.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if (later := _steps(folder, outer.process)[-1:]) and later[0] > outer.steps:
        raise StorageError(
            f"{folder} has a checkpoint of step {later[0]}, and this run is at {outer.steps}; "
            "restore it first, or choose another folder"
        )
    state = {
        "outer": outer.state_dict(),
        "parts": {name: part.state_dict() for name, part in parts.items()},
        "random": torch.get_rng_state(),
        "random_gpu": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }
    path = _path(folder, outer.process, outer.steps)
    write_whole(path, lambda aside: torch.save(state, aside))
    for step in _steps(folder, outer.process)[:-_KEPT]:
        _path(folder, outer.process, step).unlink(missing_ok=True)
    return path


def restore(folder: str | Path, outer: Outer, **parts: Stateful) -> bool:
    """Go on from the last checkpoint that the workers have in common; all processes call this at once.

    A worker that has none, or was away, gets the outer parameters and moments from another, and begins with
    an optimiser as it is. Returns whether there was a checkpoint.
    """
    folder, process = Path(folder), outer.process
    own = _steps(folder, process)
    common = _common(outer, own)
    if common < 0:
        return False
    state = _read(_path(folder, process, common), parts) if common in own else None
    has = outer.gather(int(state is not None))
    if not any(has):
        raise StorageError(
            f"{folder} has no checkpoint of step {common}, the last that workers have in common"
        )
    if state is not None and has[outer.worker]:  # all processes of a site go on from theirs, or none
        _load(state, outer, parts)
    if not all(has):
        outer.join(has.index(1), common, not has[outer.worker])
    for step in own:
        if step > common:  # they are taken anew
            _path(folder, process, step).unlink(missing_ok=True)
    return True


def _common(outer: Outer, own: list[int]) -> int:
    """The step to go on from, or -1: the last of all, or the one before, if a worker has that alone.

    Those that have neither are new, or were away for longer; the others do not go back for them.
    """
    last = max(outer.gather(max(own, default=-1)))
    before = max(outer.gather(max((step for step in own if step < last), default=-1)))
    has_last, has_before = (outer.gather(int(step in own)) for step in (last, before))
    return before if any(b > a for a, b in zip(has_last, has_before, strict=True)) else last


def _read(path: Path, parts: dict[str, Stateful]) -> dict[str, Any] | None:
    """A checkpoint; None, and a warning, if it is damaged."""
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        held = set(state["parts"])
    except Exception as error:  # what is raised depends on where the damage is
        warnings.warn(f"{path} cannot be read ({_first(error)}); this worker joins the others", stacklevel=3)
        return None
    if held != set(parts):
        raise StorageError(f"{path} holds {sorted(held)}, not {sorted(parts)}; give the same parts")
    return state


def _first(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _load(state: dict[str, Any], outer: Outer, parts: dict[str, Stateful]) -> None:
    for name, part in parts.items():
        part.load_state_dict(state["parts"][name])
    outer.load_state_dict(state["outer"])
    torch.set_rng_state(state["random"])
    if state["random_gpu"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["random_gpu"])


def _path(folder: Path, process: int, step: int) -> Path:
    return folder / f"worker-{process}-{step}.pt"


def _steps(folder: Path, process: int) -> list[int]:
    """The steps of which a process has checkpoints, in order."""
    found = (re.fullmatch(rf"worker-{process}-(\d+)\.pt", path.name) for path in folder.glob("worker-*.pt"))
    return sorted(int(match[1]) for match in found if match)
