"""A job: a config, and a module of the user's with the model and the data of each client.

The module has these functions; the last three may be left out:

    model() -> torch.nn.Module
    client_data(client, clients) -> x, y      on the machine of that client
    test_data() -> x, y                       on the server
    loss(outputs, targets) -> Tensor
    sizes(clients) -> list[int]               how many samples each client has
"""

from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedcom.config import Config
from fedcom.data import Dataset, from_arrays
from fedcom.deployment.endpoint import Endpoint
from fedcom.engines.remote.engine import RemoteEngine, Transport
from fedcom.engines.remote.memory import return_large_blocks
from fedcom.engines.remote.participant import Participant
from fedcom.engines.simulation import Simulation
from fedcom.errors import ConfigError
from fedcom.runs import logs
from fedcom.runs.facts import table_of
from fedcom.runs.files import CHECKPOINTS, FAULTS
from fedcom.runs.prepare import objective_of
from fedcom.runs.record import Outcome, record
from fedcom.tasks.losses import Loss, Terms
from fedcom.tasks.rehearsal import rehearse
from fedcom.tasks.task import Task, fitted


@dataclass(frozen=True)
class Job:
    """What the server and every client make for themselves from the same files.

    Args:
        config: with data.clients; its other settings of data and model are not used, except adapters.
        parts: the user's module.
    """

    config: Config
    parts: Any

    @property
    def clients(self) -> int:
        """How many clients there are."""
        if self.config.data.clients is None:
            raise ConfigError("a deployment needs data.clients, the number of clients")
        return self.config.data.clients

    def serve(self, transport: Transport, out: Path) -> Outcome:
        """Play the server's part to its end; go on with the run in the folder if there is one."""
        logs.set_up()
        return_large_blocks()
        simulation = self.simulation(self.server_task())
        engine = RemoteEngine(
            simulation.state,
            transport,
            out / CHECKPOINTS / "remote",
            self.config.round,
            out / FAULTS,
            simulation.task.checksum,
            simulation.task.objective.frozen,
        )
        simulation.join(engine, 0)
        used = (out / "config.toml").is_file()
        run, port = self.config.run, self.config.round.metrics_port
        given = {key: value for key, value in asdict(self.config.round).items() if value is not None}
        with nullcontext() if port is None else closing(Endpoint(port)) as endpoint:
            return record(
                simulation,
                out,
                start="resume" if used else "new",
                target=run.target_accuracy,
                minutes=0,
                rounds=1,
                quiet=True,
                callbacks=[] if endpoint is None else [endpoint],
                table={**table_of(simulation), "round": given},
            )

    def participant(self, client: int, folder: Path) -> Participant:
        """The client of that number.

        Args:
            folder: for its state.
        """
        if not 0 <= client < self.clients:
            raise ConfigError(f"there are clients 0 to {self.clients - 1} (data.clients); got {client}")
        task = self.client_task(client)
        return Participant(self.simulation(task).state, task, client, folder)

    def simulation(self, task: Task) -> Simulation:
        """The run on a task; its engine is not used on clients."""
        config = self.config
        return Simulation(
            task,
            config.algorithm,
            config.links,
            rounds=config.run.rounds,
            participation=config.run.participation,
            seed=config.run.seed,
            eval_every=config.run.eval_every,
            stop=config.run.stop,
            patience=config.run.patience,
            best=config.run.best,
            device="cpu",
        )

    def server_task(self) -> Task:
        """The test set alone: the server never sees what clients have."""
        return self._task(None, self._data(getattr(self.parts, "test_data", None)))

    def client_task(self, client: int) -> Task:
        """The samples of one client alone."""
        found = self._data(self.parts.client_data, client, self.clients)
        assert found is not None
        sizes = self._sizes()
        if sizes is not None and int(sizes[client]) != len(found.x):
            raise ConfigError(
                f"sizes() says that client {client} has {int(sizes[client])} samples; it has {len(found.x)}"
            )
        return self._task(client, found)

    def _task(self, client: int | None, data: Dataset | None) -> Task:
        """The task of one client, or with None that of the server, whose data is the test set."""
        objective = objective_of(
            self.config.run, self._model, self._loss, getattr(self.parts, "batch_norm", None)
        )
        objective = objective if data is None else fitted(objective, data)
        sizes, classes = self._sizes(), 0 if data is None else data.classes
        x = torch.zeros(0) if data is None else objective.inputs(data.x)
        y = torch.zeros(0) if data is None else objective.targets(data.y)
        if sizes is None:
            self._refuse_without_sizes()
            sizes = torch.ones(self.clients, dtype=torch.int64)
            if client is not None:
                sizes[client] = len(x)
        held = range(0) if client is None else range(client, client + 1)
        train, test = ((x[:0], y[:0]), (x, y)) if client is None else ((x, y), (x[:0], y[:0]))
        if client is None and len(y):
            classes = rehearse(objective, x, y, classes)
        if client is not None:
            objective.look_inside(x[:1])
        return Task(objective, *train, sizes, *test, classes, self._name, held=held)

    def _model(self) -> torch.nn.Module:
        """The user's module, with the adapters that the config says."""
        module: torch.nn.Module = self.parts.model()
        adapter = self.config.model.adapter
        return module if adapter is None else adapter.on(module, self.config.run.seed)

    def _sizes(self) -> Tensor | None:
        told = getattr(self.parts, "sizes", None)
        return None if told is None else torch.tensor(told(self.clients), dtype=torch.int64)

    def _refuse_without_sizes(self) -> None:
        algorithm = self.config.algorithm
        if algorithm.weights == "size" or algorithm.epochs is not None:
            raise ConfigError(
                "algorithm.weights=size and algorithm.epochs need to know how many samples each client has: "
                f"add sizes(clients) to {self._name}"
            )

    def _data(self, function: Any, *arguments: int) -> Dataset | None:
        if function is None:
            return None
        x, y = function(*arguments)
        loss, terms = self._loss, Terms.of(self._loss)
        any_targets = loss is not None and not terms.tokens
        return from_arrays(x, y, name=self._name, any_targets=any_targets, ignored=terms.ignored)

    @property
    def _loss(self) -> Loss | None:
        return getattr(self.parts, "loss", None)

    @property
    def _name(self) -> str:
        return str(getattr(self.parts, "__name__", "task")).rpartition(".")[2]
