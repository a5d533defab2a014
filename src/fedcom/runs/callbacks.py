"""Callbacks that receive each row as it is measured: CSV, TensorBoard, MLflow, Weights & Biases.

Any function of one row can be a callback. Figures that are None or not finite are left out.
"""

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

from fedcom.engines.results import Row
from fedcom.errors import ConfigError
from fedcom.formats import is_number
from fedcom.imports import optional
from fedcom.runs.files import status_of


class RunTracker(Protocol):
    """A callback that has something to finish."""

    def __call__(self, row: Row) -> None:
        """Take a row."""

    def close(self, status: str = "done") -> None:
        """Finish; rows that come later are errors.

        Args:
            status: how the run ended, as in its summary.json: done, diverged, interrupted or failed.
        """


class Csv:
    """Writes every row as a line of a CSV file. A run that goes on replaces the lines of rounds played again.

    Args:
        path: the file.
    """

    def __init__(self, path: str | Path) -> None:
        self._path, self._rows = Path(path), list[dict[str, Any]]()
        self._fresh = True

    def __call__(self, row: Row) -> None:
        if self._fresh and self._path.is_file():
            with self._path.open(newline="", encoding="utf-8") as file:
                kept = list(csv.DictReader(file))
            self._rows = [line for line in kept if int(line["round"]) < row["round"]]
        rewrite = self._fresh or any(key not in self._rows[-1] for key in row)
        self._rows.append({k: v if isinstance(v, str) or is_number(v) else "" for k, v in row.items()})
        names = list(dict.fromkeys(key for line in self._rows for key in line))
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("w" if rewrite else "a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, names)
            if rewrite:
                writer.writeheader()
            writer.writerows(self._rows if rewrite else self._rows[-1:])
        self._fresh = False

    def close(self, status: str = "done") -> None:
        """Every line is on the disk already."""


class TensorBoard:
    """Writes every number of a row as a TensorBoard scalar; needs `pip install 'fedcom[tensorboard]'`.

    Args:
        folder: where TensorBoard's event files go.
    """

    def __init__(self, folder: str | Path) -> None:
        package = optional("torch.utils.tensorboard", "'fedcom[tensorboard]'", ConfigError)
        self._kind, self._folder = package.SummaryWriter, str(folder)
        self._writer: Any = None

    def __call__(self, row: Row) -> None:
        if self._writer is None:
            # Of a run that goes on, later steps that were written before are void.
            self._writer = self._kind(self._folder, purge_step=row["round"] or None)
        for key, value in _numbers(row).items():
            self._writer.add_scalar(key, value, row["round"])
        self._writer.flush()

    def close(self, status: str = "done") -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()


class MLflow:
    """Writes every number of a row as a metric of a new MLflow run; needs `pip install mlflow`.

    Args:
        experiment: the experiment's name; it is made if there is none.
        name: of the run.
        settings: its parameters, by section and key.
        uri: of the tracking server or store; None: as MLflow is set up, for example by MLFLOW_TRACKING_URI.
    """

    def __init__(
        self,
        experiment: str = "fedcom",
        name: str | None = None,
        settings: Mapping[str, Any] | None = None,
        uri: str | None = None,
    ) -> None:
        tracking = optional("mlflow.tracking", "mlflow", ConfigError)
        with _blaming("MLflow"):
            self._client = tracking.MlflowClient(uri)
            known = self._client.get_experiment_by_name(experiment)
            where = known.experiment_id if known else self._client.create_experiment(experiment)
            self._run = self._client.create_run(where, run_name=name).info.run_id
            for key, value in _flat(settings or {}).items():
                self._client.log_param(self._run, key, value)

    def __call__(self, row: Row) -> None:
        for key, value in _numbers(row).items():
            self._client.log_metric(self._run, key, value, step=row["round"])

    def close(self, status: str = "done") -> None:
        """Mark the run as finished, or as killed or failed if it had not all its rounds."""
        self._client.set_terminated(self._run, _ENDINGS.get(status, "FAILED"))


class WandB:
    """Writes every number of a row to a new run of Weights & Biases; needs `pip install wandb`.

    Args:
        project: the project's name.
        name: of the run.
        settings: its config, by section and key.
        folder: where its files go; None: as wandb is set up.
        mode: "online", "offline" or "disabled"; None: as wandb is set up, for example by WANDB_MODE.
    """

    def __init__(
        self,
        project: str = "fedcom",
        name: str | None = None,
        settings: Mapping[str, Any] | None = None,
        folder: str | Path | None = None,
        mode: str | None = None,
    ) -> None:
        wandb = optional("wandb", "wandb", ConfigError)
        with _blaming("Weights & Biases"):
            self._run = wandb.init(
                project=project,
                name=name,
                config=dict(settings or {}),
                dir=None if folder is None else str(folder),
                mode=mode,
                reinit="create_new",
                settings=wandb.Settings(console="off", silent=True),
            )

    def __call__(self, row: Row) -> None:
        self._run.log(_numbers(row), step=row["round"])

    def close(self, status: str = "done") -> None:
        """Finish the run, as one that failed if it had not all its rounds."""
        self._run.finish(exit_code=0 if status == "done" else 1)


class _Later:
    """A tracker that is made when the first row comes: a run that is refused leaves nothing.

    Args:
        out: the folder of the run, whose summary says how it ended.
    """

    def __init__(self, make: Callable[[], RunTracker], out: Path) -> None:
        self._make, self._out, self._made = make, out, list[RunTracker]()

    def __call__(self, row: Row) -> None:
        if not self._made:
            self._made.append(self._make())
        self._made[0](row)

    def close(self) -> None:
        """Close it if it was made."""
        for tracker in self._made:
            tracker.close(status_of(self._out))


_ENDINGS = {"done": "FINISHED", "interrupted": "KILLED"}  # MLflow's words
_PACKAGES = {"mlflow": "mlflow", "wandb": "wandb", "tensorboard": "'fedcom[tensorboard]'"}


def check_installed(names: Iterable[str]) -> None:
    """Raise ConfigError if a tracker that run.log names needs a package that is not there."""
    for name in names:
        if name in _PACKAGES:
            optional(name, _PACKAGES[name], ConfigError)


@contextmanager
def opened(
    names: Sequence[str], out: Path, label: str, settings: Mapping[str, Any] | None
) -> Iterator[list[Callable[[Row], None]]]:
    """The trackers that run.log names, for a run in a folder; they are closed as its summary says it ended.

    Args:
        label: of the run.
        settings: by section and key.
    """
    makers: dict[str, Callable[[], RunTracker]] = {
        "csv": lambda: Csv(out / "metrics.csv"),
        "tensorboard": lambda: TensorBoard(out / "tensorboard"),
        "mlflow": lambda: MLflow(name=label, settings=settings),
        "wandb": lambda: WandB(name=label, settings=settings, folder=out),
    }
    with ExitStack() as stack:
        yield [stack.enter_context(closing(_Later(makers[name], out))) for name in names]


def _numbers(row: Row) -> dict[str, float]:
    """The finite numbers of a row, except the round."""
    return {key: value for key, value in row.items() if key != "round" and is_number(value)}


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by section and key as one level: algorithm.eta."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        inner = _flat(value) if isinstance(value, Mapping) else None
        flat |= {name: value} if inner is None else {f"{name}.{key}": v for key, v in inner.items()}
    return flat


@contextmanager
def _blaming(what: str) -> Iterator[None]:
    """Make any error of another package, which may be set up wrongly, a ConfigError of one line."""
    try:
        yield
    except Exception as error:
        told = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise ConfigError(f"{what} cannot be used: {told}") from error
