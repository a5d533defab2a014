"""A federated run in one process: what most people use, on top of the engines."""

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from fedcom.algorithms import Algorithm
from fedcom.codecs import Codec
from fedcom.draws import Draw
from fedcom.engines.arguments import (
    ROW_KEYS,
    Callbacks,
    Metrics,
    algorithm_of,
    callbacks_of,
    links_of,
    metrics_of,
    pick_device,
)
from fedcom.engines.base import Engine, Exchange, Options
from fedcom.engines.choice import check_engine, make_engine
from fedcom.engines.description import arguments_in, described, refuse_earlier
from fedcom.engines.local.eager import repeatable
from fedcom.engines.ranks.ranks import ALONE, Ranks
from fedcom.engines.results import Results
from fedcom.engines.results import Row as Row
from fedcom.engines.state.placement import ClientCounts, plan_store
from fedcom.engines.state.stores import Storage
from fedcom.engines.stopping import Best, Stopping, asks_to_stop, read_best, write_best
from fedcom.errors import ConfigError, Diverged, NotFinite, StorageError
from fedcom.formats import html_table, size
from fedcom.rounds.client_ranks import ClientRanks
from fedcom.rounds.cohort import Cohort
from fedcom.rounds.products import Products
from fedcom.rounds.rules import OWN, Measure, Rules, relative_error
from fedcom.rounds.state import RunState
from fedcom.saving.in_memory import InMemory
from fedcom.saving.series import Series
from fedcom.settings import at_least, convert
from fedcom.tasks.adapters import own_base
from fedcom.tasks.objective import Objective
from fedcom.tasks.scores import Metric
from fedcom.tasks.task import Task
from fedcom.theory import settle
from fedcom.traffic.ledger import Ledger
from fedcom.traffic.links import Links
from fedcom.traffic.network import Network
from fedcom.vectors import Vectors

_LOWEST_SHARE = 0.01  # a run warns if decay leaves less of eta
_GROWN = 20.0  # a run warns if its loss is so many times the first
_CHECK_EVERY = 16  # rounds on a GPU between two checks whether the model is finite


class Simulation:
    """A federated run: `run()` plays it to its end, `rows()` yields its rows, `step()` plays one round.

    Args:
        task: the clients' data and the objective.
        algorithm: the method, with its hyper-parameters; or its name, with the defaults.
        links: the codecs; or the uplink's codec alone, or its name; None: the algorithm's default.
        rounds: how many to play.
        participation: the share of clients sampled in each round.
        seed: of all randomness except the initial model, which is the module's.
        eval_every: rounds between two evaluations.
        device: "cpu", "cuda", "cuda:1" or "auto".
        chunk: clients computed at once; None: as many as fit in memory and suit the processor.
        microbatch: samples of a client computed at once, whose gradients are added up; None: as the task does
            it, which is all of a minibatch unless it was told otherwise.
        engine: "eager"; "graph": rounds are replayed as one CUDA graph; "compiled": the graph has fewer and
            larger kernels, which pays from some thousand rounds on; "auto": graph on a GPU, else eager.
        tf32: matrix products on a GPU at ten bits of precision.
        storage: where clients' state is kept; "memory" or "disk" for short.
        network: link speeds, or the name of a preset; with them rows give modelled seconds.
        metrics: functions of the outputs and targets of the whole test set, by the name in the rows; one
            function, or a list of them, has the functions' own names.
        stop: a figure of the rows and a bound that ends the run, such as "test_accuracy>=0.9".
        patience: evaluations without a better model that end the run.
        best: the figure that tells which model is the best; None: that of `stop` (not if it is a cost such as
            seconds), else test_accuracy, or test_loss or train_loss if there is none.
        measure: computes q from what the server heard and what clients meant, one number per client.
        ranks: the processes that play the run together.
        transport: what travels between them; see Options.
    """

    def __init__(
        self,
        task: Task,
        algorithm: Algorithm | str,
        links: Links | Codec | str | None = None,
        *,
        rounds: int = 100,
        participation: float = 1.0,
        seed: int = 0,
        eval_every: int = 1,
        device: str = "auto",
        chunk: int | None = None,
        microbatch: int | None = None,
        engine: str = "auto",
        tf32: bool = False,
        storage: Storage | str | None = None,
        network: Network | str | None = None,
        metrics: Metrics | None = None,
        stop: str | None = None,
        patience: int | None = None,
        best: str | None = None,
        measure: Measure = relative_error,
        ranks: Ranks = ALONE,
        transport: Exchange = "chain",
    ) -> None:
        rounds, eval_every = at_least("rounds", rounds, 0), at_least("eval_every", eval_every, 1)
        seed, chunk = at_least("seed", seed, 0), None if chunk is None else at_least("chunk", chunk, 1)
        participation = convert(participation, float, "participation")
        tf32, transport = convert(tf32, bool, "tf32"), convert(transport, Exchange, "transport")
        if not isinstance(task, Task):
            raise ConfigError(f"task must be a fedcom.Task, as Task.from_arrays makes; got {_kind(task)}")
        algorithm = algorithm_of(algorithm)
        links = links_of(links, algorithm)
        home: Any = Storage(storage) if isinstance(storage, str) else storage  # type: ignore[arg-type]
        home = convert(home, Storage | None, "storage")
        if microbatch is not None:
            parts = task.objective.in_parts(at_least("microbatch", microbatch, 1))
            task = replace(task, objective=parts)
        self._given = self.task = task.to(pick_device(device))
        if task.objective.products is not None:
            self.task = replace(self._given, objective=self._given.objective.with_own_base())
        algorithm, self.why_rates = settle(self.task, algorithm, links, participation, seed)
        self.algorithm = algorithm
        self.rounds, self.eval_every = rounds, eval_every
        _warn_of_decay(algorithm, rounds)
        _warn_of_whole_batches(algorithm, task)
        self.engine_name, w = engine, self.task.objective.start.clone()
        self.options = Options(chunk, rounds, home or Storage(), tf32, ranks, transport)
        if transport == "bytes" and ranks.size > 1:
            links = replace(links, encode=True)
        cohort = Cohort.of(algorithm, self.task.sizes, participation)
        rules = _rules_of(algorithm, links, self.task.objective, cohort, measure)
        speeds: Any = Network.preset(network) if isinstance(network, str) else network
        speeds = convert(speeds, Network | None, "network")
        draw, ledger = Draw.seeded(seed), Ledger(cohort.clients)
        base = {} if rules.products is None else {"weights": self.task.objective.base, "start": w.clone()}
        side = rules.init_server(w)._replace(base=base)
        self.state = RunState(rules, cohort, side, draw, ledger, speeds, rounds)
        for done in {0, rounds // 2, max(rounds - 1, 0)}:  # a schedule that gives no rate is refused at once
            self.state.inputs(done)
        check_engine(engine, w.device)
        plan_store(ClientCounts.of(cohort.clients, cohort.sampled, rounds), rules, w, self.options.storage)
        self._index, self._seconds, self._saves = 0, 0.0, dict[Path, Series]()
        self.backoffs: list[dict[str, Any]] = []  # each time the run went back: from and to which round, eta
        self.notes: Mapping[str, Any] = {}  # of the checkpoint that the run goes on from
        self.results, self.metrics, self._warned = Results(), metrics_of(metrics), False
        if self.metrics and not len(self.task.test_x):
            raise ConfigError("metrics are measured on the test set; give the task one, as in test_x, test_y")
        patience = convert(patience, int | None, "patience")
        self.stopping = Stopping(
            convert(stop, str | None, "stop"), patience, convert(best, str | None, "best")
        )
        self.best = Best()
        self.stopping.check([*ROW_KEYS, *self.metrics])
        self.ended: str | None = None  # why the run ended before its last round
        self.settings: dict[str, Any] = {
            "rounds": rounds,
            "participation": participation,
            "seed": seed,
            "eval_every": eval_every,
            "chunk": chunk,
            "microbatch": microbatch,
            "engine": engine,
            "tf32": tf32,
            **asdict(self.stopping),
        }
        self._others: dict[str, Any] = {
            "device": device,
            "metrics": self.metrics,
            "measure": measure,
            "ranks": ranks,
            "transport": transport,
        }

    def _saved(self) -> dict[str, Any]:
        """The arguments that a checkpoint keeps."""
        kept = {"algorithm": self.algorithm, "links": self.rules.links, **self.settings}
        return {**kept, "storage": self.options.storage, "network": self.state.network}

    def replaced(self, **changes: Any) -> "Simulation":
        """The same run before its first round, with some arguments changed."""
        return Simulation(**{"task": self._given, **self._saved(), **self._others, **changes})

    def __repr__(self) -> str:
        done = self.round
        codec, round = self.rules.links.uplink.name, f"round {done} of {self.rounds}"
        return f"Simulation({self.task.name}, {self.algorithm.name}, {codec}, {round})"

    def _repr_html_(self) -> str:
        """The run's settings and last figures, as a table, for notebooks."""
        links, a = self.rules.links, self.algorithm
        rows: list[tuple[object, ...]] = [
            ("method", f"{a.name}, eta {a.eta:g}, gamma {a.gamma:g}, {a.epochs or a.tau} "
             + ("epochs" if a.epochs else "local steps")),
            ("uplink, downlink", f"{links.uplink!r}, {links.downlink!r}"),
            ("task", f"{self.task.name}, {self.rules.clients:,} clients, {self.rules.sampled:,} per round"),
            ("round", f"{self.round} of {self.rounds}"),
        ]  # fmt: skip
        if self.results:
            last = self.results[-1]
            rows += [(key, last[key]) for key in ("train_loss", "test_accuracy") if last[key] is not None]
            rows.append(("sent up per client", size(last["uplink_bytes"])))
        return html_table(rows, title="simulation")

    @cached_property
    def engine(self) -> Engine:
        """The engine that plays the rounds, made when it is first needed."""
        return make_engine(self.engine_name, [self.state], self.task, self.options)

    def join(self, engine: Engine, index: int) -> None:
        """Let an engine of several runs play this one.

        Args:
            index: of this run among the engine's.
        """
        self.engine, self._index = engine, index

    @property
    def rules(self) -> Rules:
        """What goes through which codec."""
        return self.state.rules

    @property
    def server(self) -> Any:
        """The server's state: `.w`, the model, and what else the algorithm keeps."""
        return self.state.server

    @property
    def weights(self) -> Tensor:
        """p_j, the weights of the clients."""
        return self.state.cohort.weights

    @property
    def ledger(self) -> Ledger:
        """The bytes sent so far."""
        return self.state.ledger

    @property
    def round(self) -> int:
        """How many rounds are done; 0 until the engine is made, for which memory may be too small."""
        return self.engine.round if "engine" in vars(self) else 0

    @property
    def q(self) -> float | None:
        """The measured q of the last round."""
        return self.engine.gauge(self._index).q if self.round else None

    @property
    def alpha(self) -> float | None:
        """The damping of the last round."""
        return self.engine.gauge(self._index).alpha if self.round else None

    @property
    def chunk(self) -> int:
        """How many clients are computed at once."""
        return self.engine.chunk

    def run(self, callbacks: Callbacks = ()) -> Results:
        """Train to the end, and return the rows of round 0, every eval_every rounds and the last.

        If the run diverges, the rows until then are in `results`. If it ends early, `ended` says why.

        Args:
            callbacks: called with each row as it is measured; a list of functions, or one. The run ends if
                one of them returns True.
        """
        calls = callbacks_of(callbacks)
        for row in self.rows():
            if asks_to_stop(calls, row):
                self.end_here()
                break
        return self.results

    def end_here(self) -> None:
        """Say that a callback has ended the run, unless it had all its rounds."""
        if self.round < self.rounds:
            self.ended = f"a callback ended it after round {self.round}"

    def rows(self, on_round: Callable[[int], object] = lambda index: None) -> Iterator[Row]:
        """Train while being iterated over: each row is yielded when it is measured.

        Args:
            on_round: called after each round with the number of rounds done.
        """
        for _, row in in_step({0: self}, self._evaluates, on_round):
            if isinstance(row, Diverged):
                raise row
            self.results.add(row)
            self.best, why = self.stopping.see(row, self.best, self._with_base())
            self.ended = why if self.round < self.rounds else None
            yield {**row}
            self._warn_of_growth(row)
            if self.ended is not None:
                return

    def _evaluates(self, done: int) -> bool:
        """Whether there is a row of the round."""
        return done % self.eval_every == 0 or done == self.rounds

    def _warn_of_growth(self, row: Row) -> None:
        """Warn once if the training loss is many times what it was."""
        first, loss = self.results[0]["train_loss"], row["train_loss"]
        if self._warned or first is None or loss is None or loss <= _GROWN * abs(first):
            return
        self._warned = True
        warnings.warn(
            f"the training loss has grown from {first:.3g} to {loss:.3g} by round {row['round']}; {_ADVICE}",
            stacklevel=3,
        )

    def follow(self) -> None:
        """On a rank other than 0: play this rank's part of the run until rank 0 says that all is done."""
        ranks = self.options.ranks
        while ranks.size > 1 and (told := ranks.hear()).facts["do"] != "end":
            self.engine.obey(told)

    def row(self) -> Row:
        """The figures of the current model."""
        started = time.perf_counter()
        self.check()
        with repeatable(self.options.tf32):
            scores = self.task.evaluate(
                self.server.w, self.weights, self.metrics, self.engine.scored(), self.own()
            )
        up, down = self.ledger.total("uplink"), self.ledger.total("downlink")
        gauge = self.engine.gauge(self._index)
        self._seconds += time.perf_counter() - started
        return {
            "round": self.round,
            **{key: _finite(value) for key, value in scores.items()},
            "uplink_bytes": up / self.rules.clients,
            "downlink_bytes": down / self.rules.clients,
            "uplink_bytes_total": up,
            "downlink_bytes_total": down,
            "q": _finite(gauge.q if self.round else None),
            "damping": _finite(gauge.alpha if self.round else None),
            "seconds": self._seconds,
            **gauge.time,
            **gauge.counts,
            **self._backed_off(),
        }

    def _backed_off(self) -> Row:
        """What a row says of a run that went back: how often, and the eta of the round."""
        if not self.backoffs:
            return {}
        return {"backoffs": len(self.backoffs), "eta": self.state.inputs(self.round).eta}

    def clients(self) -> Results:
        """The scores of the current model on each client's training data, one row per client."""
        with repeatable(self.options.tf32):
            return Results(self.task.evaluate_clients(self.server.w, self.metrics, self.own()), "client")

    def step(self) -> None:
        """One round."""
        for diverged in _step({0: self}).values():
            raise diverged

    def check(self) -> None:
        """Raise Diverged if the model is no longer finite."""
        finite_rounds = self.engine.finite_rounds(self._index)
        if finite_rounds < self.round:
            raise self._diverged(finite_rounds + 1)

    def sample(self) -> Tensor:
        """The numbers of the clients that take part in the next round, in increasing order."""
        return self.state.sample(self.round)

    def client_states(self, clients: Tensor | None = None) -> Any:
        """The state of some clients, or all, one row per client: its `.delta` if they track, for example."""
        return self.engine.peek(self._index, self._numbers(clients))[0]

    def client_memory(self, clients: Tensor | None = None) -> Vectors:
        """What some clients, or all, remember of what the codec dropped: by vector, in its `memory_unit`.

        And the moments of their local optimiser, if it keeps them: "local momentum" and the like.
        """
        return self.engine.peek(self._index, self._numbers(clients))[1]

    def own(self) -> Tensor | None:
        """What stays with each evaluated client, one row per client.

        None if nothing stays with clients, or if it is not here: real clients keep it to themselves.
        """
        if self.rules.own is None or self.task.blind:
            return None
        return self.client_memory(self.task.shown)[OWN]

    def _numbers(self, clients: Tensor | None) -> Tensor:
        return torch.arange(self.rules.clients) if clients is None else clients

    def _with_base(self) -> Tensor:
        """The current model as one vector, with the base behind it if that changes."""
        base = self.state.server_side.base
        return torch.cat((self.server.w, base["weights"])) if base else self.server.w

    def module(self, best: bool = False, client: int | None = None) -> nn.Module:
        """A copy of the task's module with the parameters of the current model.

        Args:
            best: take the best of the evaluated models instead; `best` says which one that is.
            client: take this client's own parameters, if some stay with clients;
                None: the mean of the clients' own.
        """
        if best and self.best.w is None:
            raise ConfigError("no model has been evaluated yet; play the run first")
        w = self.best.w if best and self.best.w is not None else self.server.w
        w, base = w[: len(self.server.w)], w[len(self.server.w) :]
        if client is not None and self.rules.own is not None:
            w = torch.cat((w, self.client_memory(torch.tensor([client]))[OWN][0].to(w)))
        elif (own := self.own()) is not None:
            w = torch.cat((w, own.mean(0).to(w)))
        module = self.task.objective.loaded(w)
        if len(base):
            own_base(module, base.dtype).copy_(base)
        return module

    def save(
        self, path: str | Path, *, wait: bool = True, notes: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        """Write a checkpoint of the run into a folder, from which `load` goes on.

        Args:
            path: the folder; the last two checkpoints in it are kept. If this run was saved there before,
                only those clients' state is written that has changed.
            wait: until it is on the disk; else a thread writes it, and errors are raised by the next call.
            notes: the caller's own, of a kind that JSON can hold; a run that goes on from here has them as
                `notes`.
        """
        if len(self.engine.runs) > 1:
            raise ConfigError("a run that is played in step with others cannot be saved by itself")
        series = self._saves.setdefault(Path(path), Series(Path(path)))
        told: dict[str, Any] = {"notes": dict(notes), "best": write_best(Path(path), self.best)}
        told |= {"backoffs": self.backoffs} if self.backoffs else {}
        self.engine.save(series, {"simulation": described(self._saved()), "seconds": self._seconds, **told})
        if wait:
            series.wait()

    def keep(self) -> InMemory:
        """A copy of the run in memory, for `gone_back`."""
        kept = InMemory()
        self.engine.save(kept, {"seconds": self._seconds, "best": self.best})
        return kept

    def gone_back(self, kept: InMemory, eta: float) -> "Simulation":
        """The same run as it stood when it was kept, with another eta from there on.

        What was sent since then, and the time it took, stay counted.
        """
        for series in self._saves.values():
            series.wait()  # else a thread might write a checkpoint of what is left behind
        lost = {"round": self.round, "back_to": kept.number, "eta": eta}
        twin = self.replaced(algorithm=replace(self.algorithm, eta=eta))
        saved = kept.latest()
        if self.state.network is not None:
            now = self.engine.gauge(self._index).time["modelled_seconds"]
            saved.tensors["clock.seconds"].fill_(now)
        twin.engine.restore(saved)
        twin.ledger.load(self.ledger.as_dict())
        twin._seconds, twin.why_rates = self._seconds, self.why_rates
        twin.backoffs, twin.best = [*self.backoffs, lost], saved.facts["best"]
        return twin

    def restore(self, path: str | Path) -> bool:
        """Go on from the newest whole checkpoint in a folder, before round 1; False if there is none."""
        series = self._saves.setdefault(Path(path), Series(Path(path)))
        saved = series.latest()
        if saved is not None:
            refuse_earlier(saved.facts["simulation"], self.rules.links)
            self.backoffs = saved.facts.get("backoffs", [])
            if self.backoffs:
                self.algorithm = replace(self.algorithm, eta=self.backoffs[-1]["eta"])
                self.state.rules = replace(self.rules, algorithm=self.algorithm)
            self.engine.restore(saved)
            self._seconds = saved.facts["seconds"]
            self.notes = saved.facts.get("notes", {})
            self.best = read_best(Path(path), saved.facts.get("best"), self.server.w)
        return saved is not None

    @classmethod
    def load(
        cls,
        path: str | Path,
        task: Task,
        algorithm: Algorithm | None = None,
        links: Links | None = None,
        *,
        rounds: int | None = None,
        device: str = "auto",
        metrics: Mapping[str, Metric] | None = None,
        stop: str | None = None,
        patience: int | None = None,
        measure: Measure = relative_error,
    ) -> "Simulation":
        """The run that `save` wrote into a folder, ready to go on with the same bits.

        Args:
            task: the same as before: its data and its model's layout are compared with the checkpoint's.
            algorithm: needed if its class is your own and not registered; None: the saved one.
            links: needed if a codec's class is your own and not registered; None: the saved ones.
            rounds: how many there are in all; None: as many as before.
            metrics: functions cannot be saved, so give them again, as you give the task.
            stop: None: the saved one. A run that it has ended goes on only with another one.
            patience: the same.
        """
        saved = Series(Path(path)).latest()
        if saved is None:
            raise StorageError(f"{path} holds no whole checkpoint; `Simulation.save` writes one")
        kept = saved.facts["simulation"]
        changes = {
            "rounds": rounds,
            "algorithm": algorithm,
            "links": links,
            "stop": stop,
            "patience": patience,
        }
        given = {name: value for name, value in changes.items() if value is not None}
        arguments = arguments_in(kept, given) | {"device": device, "metrics": metrics, "measure": measure}
        simulation = cls(task, **arguments)
        simulation.restore(path)
        return simulation

    def __getstate__(self) -> Any:
        raise TypeError(
            "a Simulation cannot be pickled; use simulation.save(path) and Simulation.load(path, task)"
        )

    def _diverged(self, done: int) -> Diverged:
        a = self.algorithm
        return Diverged(
            f"the model is no longer finite after round {done} ({a.name}, eta={a.eta:g}, "
            f"gamma={a.gamma:g}); {_ADVICE}"
        )


def in_step(
    runs: Mapping[int, Simulation],
    due: Callable[[int], bool],
    on_round: Callable[[int], object] = lambda index: None,
) -> Iterator[tuple[int, Row | Diverged]]:
    """Play runs that share an engine, round by round, to their end.

    Yields each row with the number of its run, and the error that ends a run early; the others go on.

    Args:
        due: whether rows are to be measured after that many rounds.
        on_round: called after each round with the number of rounds done.
    """
    alive = dict(runs)
    while alive:
        first = next(iter(alive.values()))
        engine = first.engine
        for i, run in list(alive.items()) if due(engine.round) else []:
            row: Row | Diverged
            try:
                row = run.row()
            except Diverged as error:
                row = error
                del alive[i]
            yield i, row
        if not alive or engine.round >= first.rounds:
            return
        for i, end in _step(alive).items():
            del alive[i]
            yield i, end
        if alive:
            on_round(engine.round)


def _step(runs: Mapping[int, Simulation]) -> dict[int, Diverged]:
    """Play one round of runs that share an engine; returns what ended some of them."""
    started, (first, *others) = time.perf_counter(), runs.values()
    ended = dict[int, Diverged]()
    try:
        first.engine.step()
        if not others and (first.server.w.device.type == "cpu" or first.round % _CHECK_EVERY == 0):
            first.check()
    except NotFinite:
        ended = {i: run._diverged(run.round + 1) for i, run in runs.items()}
    except Diverged as error:
        ended = dict.fromkeys(runs, error)
    for run in runs.values():
        run._seconds += time.perf_counter() - started
    return ended


def _rules_of(
    algorithm: Algorithm, links: Links, objective: Objective, cohort: Cohort, measure: Measure
) -> Rules:
    """The rules of a run: what is sent of the objective's model, and by how many clients."""
    layout, products, ranks = objective.layout, objective.products, objective.ranks
    return Rules(
        algorithm,
        links,
        layout,
        cohort.clients,
        cohort.sampled,
        measure,
        seed=objective.seed,
        own=objective.own,
        statistics=objective.statistics,
        whole=objective.whole_layout,
        turns=objective.turns,
        products=None if products is None else Products(layout, *products),
        ranks=None if ranks is None else ClientRanks.of(layout, *ranks, cohort.weights),
    )


def _warn_of_decay(algorithm: Algorithm, rounds: int) -> None:
    """Warn if eta falls so low that the last rounds change nothing."""
    last = algorithm.decay**rounds
    if last < _LOWEST_SHARE:
        warnings.warn(
            f"decay={algorithm.decay:g} leaves {last:.0e} of eta after {rounds} rounds: the last ones "
            f"hardly count; set decay=1 for a constant eta, or {0.1 ** (1 / rounds):.6g} to end at a tenth",
            stacklevel=3,
        )


def _warn_of_whole_batches(algorithm: Algorithm, task: Task) -> None:
    """Warn if images are to be changed in minibatches, and there are none."""
    if task.augment is not None and algorithm.batch == "full":
        warnings.warn(
            "images are not shifted or flipped: data.augment changes those of minibatches, and batch=full "
            "has none; give a batch size, or leave data.augment out",
            stacklevel=3,
        )


_ADVICE = (
    "try a smaller eta, with a larger gamma to keep their product, or damping (fedcomgate: damping=auto), "
    "or a finer codec"
)


def _kind(thing: object) -> str:
    return f"{type(thing).__name__} {thing!r}"[:60]


def _finite(value: Any) -> Any:
    """None instead of a number that JSON cannot hold."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
