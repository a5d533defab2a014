"""Play a simulation to its end and write its folder; however it ends, what was measured is kept."""

import errno
import json
import logging
import os
import shutil
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from fedcom.config import Table, dumps
from fedcom.config.config import PLAIN_SECTIONS
from fedcom.engines.arguments import Callback, Callbacks, callbacks_of
from fedcom.engines.remote.faults import AUDIT
from fedcom.engines.results import Row
from fedcom.engines.simulation import Simulation
from fedcom.engines.stopping import asks_to_stop
from fedcom.errors import ConfigError, Diverged, OutOfMemory, Stopped, StorageError, flag
from fedcom.redaction import redacted
from fedcom.runs import stops
from fedcom.runs.base import check_base
from fedcom.runs.callbacks import check_installed, opened
from fedcom.runs.curve import Curve, milestones
from fedcom.runs.display import Display, progress
from fedcom.runs.facts import accuracy_of, environment, partition_of, similarity_of, table_of
from fedcom.runs.files import (
    BASE,
    CHARACTERS,
    CHECKPOINTS,
    DATA_CHECKSUM,
    FAULTS,
    FILES,
    LEGEND,
    LOGS,
    LONGER,
    SAMPLES,
    append,
    checksum,
    lines,
    open_log,
    overwrite,
    read_json,
    read_rows,
    read_toml,
    status_of,
)
from fedcom.runs.folder import claim, clear
from fedcom.runs.samples import samples_of, tokens_per_round
from fedcom.runs.watch import OnDivergence, Watch
from fedcom.saving.series import write_tensors
from fedcom.saving.timer import SaveTimer
from fedcom.saving.whole import disk_errors, flush, write_json, write_text
from fedcom.tasks.adapters import kept

_log = logging.getLogger("fedcom")
MINUTES = 10.0  # between two checkpoints, by default
Start = Literal["new", "over", "resume"]  # in an empty folder, over an earlier run, or where one stopped
_FREE = {
    "rounds",
    "target_accuracy",
    "checkpoint_minutes",
    "checkpoint_rounds",
    "log",
    "on_divergence",
    "stop",
    "patience",
    "best",
}  # a resumed run may change them


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Args:
        error: what stopped the run; None for a run that finished.
        ended: why a finished run ended early; None if it had all rounds.
    """

    curve: Curve
    error: Diverged | Stopped | None
    ended: str | None = None


def record(
    simulation: Simulation,
    out: str | Path,
    *,
    start: Start = "new",
    label: str | None = None,
    target: float = 0.9,
    minutes: float = MINUTES,
    rounds: int | None = None,
    on_divergence: OnDivergence = "stop",
    quiet: bool = False,
    callbacks: Callbacks = (),
    log: Sequence[str] = (),
    table: Table | None = None,
) -> Outcome:
    """Play a simulation to its end and write a run's folder, as `fedcom run` does.

    If a finished run without a checkpoint is to have more rounds, it is played again from its start, in a
    folder inside `out`, whose files replace the finished ones when it is done.

    Args:
        out: the folder.
        start: "new": the folder is empty or does not exist; "over": the files of an earlier run in it are
            replaced; "resume": go on where the run in it stopped, from its last checkpoint if there is one.
        label: the run's name in the progress display and in its curve; None: the algorithm's name.
        target: the test accuracy for which rounds and bytes are counted.
        minutes: between two checkpoints; 0: none by time.
        rounds: between two checkpoints; None: none by rounds.
        on_divergence: "stop", or "backoff": if the loss blows up, go back to the last good round with half
            the eta; callbacks then see rounds again, and `simulation` itself stays where it blew up.
        quiet: show no progress.
        callbacks: each is called with every row; a list of functions, or one. The run ends if one of them
            returns True.
        log: where else rows go: "csv", "tensorboard", "mlflow", "wandb".
        table: the settings for config.toml; None: what the simulation knows.
    """
    if not isinstance(simulation, Simulation):
        raise ConfigError(f"record plays a fedcom.Simulation; got {type(simulation).__name__}")
    if start not in get_args(Start):
        raise ConfigError(f"start must be {', '.join(get_args(Start))}; got {start!r}")
    check_installed(log)
    out, every = Path(out), (minutes, rounds)
    with claim(out, used=start != "new"):
        recorder = _Recorder(simulation, out, table or table_of(simulation), label, target, every)
        if start == "resume":
            _put_in_place(out)
            recorder.refuse_shorter()
            if recorder.finished():
                return Outcome(recorder.curve("done"), None, read_json(out / "summary.json").get("reason"))
        else:
            clear(out, (LONGER,))
        try:
            if start == "resume" and not recorder.restore() and status_of(out) == "done":
                place = out / LONGER  # from the start in `out` itself, a finished run would be lost
                place.mkdir(exist_ok=True)
                recorder = _Recorder(simulation, place, recorder.table, label, target, every)
                recorder.refuse_shorter()
                recorder.restore()
            recorder.watch = Watch(on_divergence, simulation)
            recorder.prepare(fresh=start != "resume")
        except Exception as error:
            if start != "resume":
                recorder.fail(error)
            if short := out_of_memory(error):
                raise short from error
            raise
        with opened(log, recorder.out, recorder.label, table) as trackers:
            outcome = recorder.play(quiet, [*callbacks_of(callbacks), *trackers])
        _put_in_place(out)
        return outcome


def _put_in_place(out: Path) -> None:
    """Replace a finished run by a longer one that was played in a folder inside its own, if that is done."""
    aside = out / LONGER
    if status_of(aside) != "done":
        return
    with disk_errors(out):
        names = sorted(path.name for path in aside.iterdir())
        for name in [*(name for name in names if name != "summary.json"), "summary.json"]:  # it comes last
            if (aside / name).is_dir():
                shutil.rmtree(out / name, ignore_errors=True)
            os.replace(aside / name, out / name)
        aside.rmdir()


class _Recorder:
    """The folder of one run and what is written into it while the run is played."""

    def __init__(
        self,
        simulation: Simulation,
        out: Path,
        table: Table,
        label: str | None,
        target: float,
        every: tuple[float, int | None],
    ) -> None:
        self.simulation, self.out, self.table, self.target = simulation, out, table, target
        self.label = label or simulation.algorithm.name
        self.rows: list[Row] = []
        self._crc = 0  # of their lines
        self._timer = SaveTimer(*every)
        self._any_saved, self._quiet = False, False
        self.watch = Watch("stop", simulation)

    def restore(self) -> bool:
        """Go on from the checkpoint of the run in the folder; False if there is none."""
        self._refuse_other()
        self._any_saved = self.simulation.restore(self.out / CHECKPOINTS)
        if not self._any_saved:
            self._refuse_other_data()
        return self._any_saved

    def finished(self) -> bool:
        """Whether the folder holds the whole run already."""
        summary = read_json(self.out / "summary.json")
        if summary.get("status") != "done":
            return False
        if summary.get("rounds_done") != self.simulation.rounds and not self._ended_by_these_rules(summary):
            return False
        self._refuse_other()
        self.rows = read_rows(self.out)
        return True

    def _ended_by_these_rules(self, summary: Mapping[str, Any]) -> bool:
        """Whether the run ended early, and nothing has been changed that might let it go on."""
        before = read_toml(self.out / "config.toml").get("run", {})
        now = {"rounds": self.simulation.rounds, **asdict(self.simulation.stopping)}
        return bool(summary.get("ended_early")) and all(before.get(key) == now[key] for key in now)

    def refuse_shorter(self) -> None:
        """Raise ConfigError if the folder holds more rounds than are asked for: they would be lost."""
        told = [read_json(self.out / "summary.json").get("rounds_done")]
        told += [row["round"] for row in read_rows(self.out)]
        done, asked = max((n for n in told if isinstance(n, int)), default=0), self.simulation.rounds
        if done > asked:
            raise ConfigError(
                f"{self.out} holds {done} rounds; {asked} (run.rounds) are fewer: raise it to go on, or "
                "begin anew in another folder"
            )

    def curve(self, status: str) -> Curve:
        """The run so far."""
        return Curve(self.label, self.table["run"]["seed"], self.rows, status)

    def prepare(self, fresh: bool) -> None:
        """Write what is known before the next round.

        Args:
            fresh: clear the folder of an earlier run.
        """
        if fresh:
            clear(self.out, (*FILES, BASE, SAMPLES, FAULTS, AUDIT, *LOGS, CHECKPOINTS))
        if not (self.out / "config.toml").exists():
            self._write_config()
        self._write_once("partition.json", partition_of)
        self._write_once("similarity.json", similarity_of)
        if frozen := self.simulation.task.objective.frozen:
            self._write_once(BASE, lambda _: {"frozen": frozen})
        known = read_json(self.out / "environment.json")
        lost = list[int]()
        if self._any_saved:
            self.rows, lost = self._rows_before(self.simulation.round)
        self._write_config()  # only now, as it is no longer refused: settings may have changed
        self._timer.restart(self.simulation.round)
        now = datetime.now().astimezone().isoformat(timespec="seconds")
        this = {"round": self.simulation.round, "at": now, **({"lost_rows": lost} if lost else {})}
        resumed = {"resumed": [*known.get("resumed", []), this]}
        facts = environment(self.simulation) | (resumed if known else {})
        write_json(self.out / "environment.json", facts, private=True)
        self._write_rows(self.rows)

    def _write_rows(self, rows: list[Row]) -> None:
        """Write metrics.jsonl anew."""
        self.rows, self._crc = rows, checksum(rows)
        write_text(self.out / "metrics.jsonl", lines(rows))

    def _rows_before(self, end: int) -> tuple[list[Row], list[int]]:
        """The rows of the rounds before one, checked against its checkpoint, and the rounds without a row.

        Of rows that are there twice the last counts. What is lost or changed is told; it cannot be mended.
        """
        last = {row["round"]: row for row in read_rows(self.out)}
        rows, notes = [last[done] for done in sorted(last)], self.simulation.notes
        lost = [done for done in range(0, end, self.simulation.eval_every) if done not in last]
        if lost:
            _log.warning("%s: the rows of rounds %s are lost", self.out / "metrics.jsonl", lost)
        elif notes and checksum(rows[: notes["rows"]]) != notes["crc32"]:
            _log.warning("%s: rows differ from those that were measured", self.out / "metrics.jsonl")
        return [row for row in rows if row["round"] < end], lost

    def play(self, quiet: bool, callbacks: Sequence[Callback]) -> Outcome:
        """Play all rounds, and write how it ended, whatever ends it."""
        self._summarise("running")
        self._quiet = quiet
        try:
            self.watch.begin(self.rows, self.simulation)
            self._play(quiet, callbacks)
            self._write_results()
        except (Diverged, Stopped) as error:
            status = "diverged" if isinstance(error, Diverged) else "interrupted"
            self._summarise(status, error)
            self._write_results()
            return Outcome(self.curve(status), error)
        except BaseException as error:
            self.fail(error)
            with suppress(Exception):
                self._write_results()
            if short := out_of_memory(error):
                raise short from error
            raise
        self._summarise("done")
        return Outcome(self.curve("done"), None, self.simulation.ended)

    def fail(self, error: BaseException) -> None:
        """Write that an error ended the run, if it can be written: the error matters more."""
        with suppress(Exception):
            self._summarise("interrupted" if isinstance(error, KeyboardInterrupt) else "failed", error)

    def _play(self, quiet: bool, callbacks: Sequence[Callback]) -> None:
        tokens = tokens_per_round(self.simulation)
        with stops.deferred(), progress(self.simulation.rounds, self.label, quiet, tokens=tokens) as show:
            try:
                while not self._play_on([*callbacks, show.update], partial(self._after_round, show)):
                    pass
            except Stopped as stopped:
                if stopped.between_rounds:
                    self._save()
                raise
            if self._any_saved or self._timer.due(self.simulation.round):
                self._save()

    def _play_on(self, callbacks: Sequence[Callback], on_round: Callable[[int], None]) -> bool:
        """Play until the run is done, or has gone back; returns whether it is done."""
        with open_log(self.out / "metrics.jsonl") as log:
            try:
                for row in self.simulation.rows(on_round):
                    self.rows.append(row)
                    self._crc = checksum([row], self._crc)
                    append(log, row)
                    self.watch.see(row, self.simulation)
                    asked = asks_to_stop(callbacks, row)
                    stops.check()
                    if asked:
                        self.simulation.end_here()
                        break
            except Diverged as diverged:
                self._go_back(diverged)
                return False
        return True

    def _go_back(self, diverged: Diverged) -> None:
        """Put the run back to the last good round, with a smaller eta; raises what ended it if it cannot."""
        self.simulation = self.watch.gone_back(self.simulation, diverged)
        if not self._quiet:
            back = f"going back to round {self.simulation.round} with eta {self.simulation.algorithm.eta}"
            print(f"fedcom: {self.label}: {diverged}; {back}", file=sys.stderr)
        self._write_rows([row for row in self.rows if row["round"] < self.simulation.round])
        clear(self.out, (CHECKPOINTS,))  # they may be of later rounds
        self._timer.restart(self.simulation.round)
        if self._any_saved:
            self._save()

    def _after_round(self, show: Display, done: int) -> None:
        show.advance(done)
        stops.check()
        if done < self.simulation.rounds and self._timer.due(done):
            self._save(wait=False)

    def _save(self, wait: bool = True) -> None:
        with disk_errors(self.out):
            flush(self.out / "metrics.jsonl")  # a checkpoint counts on the rows before it
        notes = {"rows": len(self.rows), "crc32": self._crc}
        self.simulation.save(self.out / CHECKPOINTS, wait=wait, notes=notes)
        self._timer.restart(self.simulation.round)
        self._any_saved = True

    def _write_results(self) -> None:
        """Write the ledger, the accuracy by client and by class, and the model."""
        write_json(self.out / "ledger.json", self.simulation.ledger.as_dict())
        finite = bool(self.simulation.server.w.isfinite().all())
        if self.simulation.task.classes and finite:
            write_json(self.out / "accuracy.json", accuracy_of(self.simulation))
        if finite and (told := samples_of(self.simulation)) is not None:
            write_json(self.out / SAMPLES, told)
        self._write_model("model.safetensors", self.simulation.module())
        if self.simulation.best.w is not None:
            self._write_model("best.safetensors", self.simulation.module(best=True))

    def _write_model(self, name: str, module: torch.nn.Module) -> None:
        apart = torch.contiguous_format  # tensors that are tied lie in the same memory, which the file cannot
        tensors = {
            key: value.detach().cpu().clone(memory_format=apart) for key, value in kept(module).items()
        }
        task, told = self.simulation.task, dict[str, str]()
        if task.tokens is not None and not task.tokens.tokenizer:
            told[CHARACTERS] = json.dumps(task.tokens.characters)
        if task.legend is not None:
            told[LEGEND] = json.dumps(task.legend)
        write_tensors(self.out / name, tensors, told or None)

    def _summarise(self, status: str, error: BaseException | None = None) -> None:
        last = dict(self.rows[-1]) if self.rows else {}
        ending = {
            "status": status,
            **self._why(error),
            "rounds_done": self.simulation.round,
            "algorithm": self.simulation.algorithm.name,
            "parameters": self.simulation.server.w.numel(),
            "target_accuracy": self.target,
            **self._origin_of_rates(),
        }
        content = last | milestones(self.rows, self.target) | ending
        try:
            write_json(self.out / "summary.json", content)
        except StorageError as full:
            try:  # writing into the blocks of the old file needs no free space
                overwrite(self.out / "summary.json", json.dumps(content))
            except OSError:
                raise full from None

    def _why(self, error: BaseException | None) -> dict[str, Any]:
        """Why the run ended before its last round, and its best model so far."""
        run, told = self.simulation, dict[str, Any]()
        if error is not None:
            told = {"reason": _reason(error)}
        elif run.ended is not None:
            told = {"reason": run.ended, "ended_early": True}
        round_, figure, value, *_ = run.best
        return told | ({"best_round": round_, "best_by": figure, "best_value": value} if round_ >= 0 else {})

    def _origin_of_rates(self) -> dict[str, Any]:
        """How the rates came about, if they were not given or have changed."""
        run = self.simulation
        why = {} if run.why_rates is None else {"auto_rates": run.why_rates}
        return why | ({"backoffs": run.backoffs} if run.backoffs else {})

    def _write_config(self) -> None:
        write_text(self.out / "config.toml", dumps(self.table))

    def _write_once(self, name: str, content: Callable[[Simulation], Any]) -> None:
        if not (self.out / name).exists():
            write_json(self.out / name, content(self.simulation))

    def _refuse_other(self) -> None:
        """Raise ConfigError if the folder holds a run with other settings."""
        path = self.out / "config.toml"
        if not path.exists():
            return
        try:
            before = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            over = flag("force", 'start="over"')
            raise StorageError(f"{path} cannot be read: {error}; begin anew with {over}") from None
        now = tomllib.loads(dumps(self.table))
        unsaid = {section: {"name": one.name} for section, one in PLAIN_SECTIONS.items()}
        before, now = unsaid | before, unsaid | now
        for section in sorted({*before, *now}):
            old, new = before.get(section, {}), now.get(section, {})
            for key in sorted({*old, *new}, key=lambda key: (key != "name", key)):
                free = section == "round" or (section == "run" and key in _FREE)
                if old.get(key) != new.get(key) and not free:
                    raise ConfigError(
                        f"{self.out} holds a run with {section}.{key}={old.get(key)}, not {new.get(key)}; "
                        "leave it as it was, or begin anew in another folder"
                    )
        check_base(self.out, self.simulation.task.objective.frozen)

    def _refuse_other_data(self) -> None:
        """Raise ConfigError if the folder holds a run on other data, as a checkpoint would."""
        known = read_json(self.out / "partition.json").get(DATA_CHECKSUM)  # earlier versions wrote none
        if known not in (None, self.simulation.task.checksum):
            raise ConfigError(
                f"{self.out} holds a run on other data (its checksum differs); give the same data, or begin "
                "anew in another folder"
            )


def out_of_memory(error: BaseException) -> OutOfMemory | None:
    """The error for the user, if another one says that there was too little memory; None if it does not."""
    short = (
        isinstance(error, MemoryError | torch.OutOfMemoryError)
        or (isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error))
        or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
    )
    if not short:
        return None
    return OutOfMemory(
        f"out of memory ({' '.join(str(error).split())[:200] or type(error).__name__}); use a smaller "
        "run.chunk or run.microbatch, fewer clients per round, a smaller model, a smaller data.length, or "
        "run.store=disk"
    )


def _reason(error: BaseException) -> str:
    if isinstance(error, Stopped):
        return stops.name(error.signal)
    return redacted(" ".join(str(error).split())) or type(error).__name__
