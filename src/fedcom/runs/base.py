"""The base of a run's model, by checksums in the run's folder: with another one its adapters mean nothing."""

from collections.abc import Mapping
from pathlib import Path

from fedcom.errors import ConfigError, StorageError
from fedcom.runs.files import BASE, read_json


def check_base(folder: Path, now: Mapping[str, int]) -> None:
    """Refuse a base that is not the one which the run in a folder was made with.

    Args:
        folder: one of an earlier version does not say, and is not checked.
        now: the checksums of what is frozen in the model at hand.
    """
    path = folder / BASE
    if not path.exists():
        return
    then = read_json(path).get("frozen")
    if not isinstance(then, dict):
        raise StorageError(f"{path} is damaged; delete it to go on without a check that the base is the same")
    if other := [name for name in {**then, **now} if then.get(name) != now.get(name)]:
        differ = "tensor differs" if len(other) == 1 else "tensors differ"
        raise ConfigError(
            f"{folder} was made with another base: {len(other)} frozen {differ} of {len(then)}, such as "
            f"{other[0]!r}; give the model it was made with (the files in model.path, or the module itself; "
            "a model without files is drawn from run.seed)"
        )
