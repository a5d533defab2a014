"""The local engine: a run on one device, its sampled clients stacked, in chunks that fit its memory."""

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from fedcom import vectors
from fedcom.algorithms import Algorithm
from fedcom.draws import Draw
from fedcom.engines.local.players import Engine, Player, player
from fedcom.engines.local.stack import Run, Stack
from fedcom.engines.state.placement import clients_that_fit
from fedcom.engines.state.stores import Storage
from fedcom.errors import ConfigError, Diverged, WireError
from fedcom.rounds.round import Rules, Steps
from fedcom.tasks.task import Task
from fedcom.traffic.ledger import Ledger
from fedcom.traffic.links import Links
from fedcom.traffic.network import Network
from fedcom.vectors import Vectors

Row = dict[str, Any]
_CHECK_EVERY = 16  # rounds on a GPU between two questions whether the model is finite


class Simulation:
    """A federated run in one process; iterate over `run()` for its rows, or `step()` through its rounds.

    Args:
        task: the clients' data and the objective.
        algorithm: the method, with its hyper-parameters.
        links: the codecs; None: the algorithm's own.
        rounds: how many `run()` does.
        participation: the share of clients sampled each round.
        seed: of all randomness but the model's start, which is the module's own.
        eval_every: rounds between two evaluations.
        device: "cpu", "cuda" or "auto".
        chunk: clients computed at once; None: as many as fit in memory and suit the processor.
        engine: "eager"; "graph": rounds are replayed as one CUDA graph; "compiled": that of fused kernels,
            which pays from some thousand rounds on; "auto": graph on a GPU.
        tf32: matrix products on a GPU at ten bits of precision.
        storage: where clients' state is kept.
        network: speeds that rows give modelled seconds for.
    """

    def __init__(
        self, task: Task, algorithm: Algorithm, links: Links | None = None, *, rounds: int = 100,
        participation: float = 1.0, seed: int = 0, eval_every: int = 1, device: str = "auto",
        chunk: int | None = None, engine: Engine = "auto", tf32: bool = False,
        storage: Storage | None = None, network: Network | None = None,
    ) -> None:  # fmt: skip
        self.task, self.algorithm = task.to(pick_device(device)), algorithm
        self.rounds, self.eval_every, self.tf32 = rounds, eval_every, tf32
        layout, m = task.objective.layout, task.clients
        rules = Rules(algorithm, links or Links.of(algorithm), layout, m, sample_size(participation, m))
        server = algorithm.init_server(self.task.objective.start.clone())
        weights = client_weights(algorithm, self.task)
        steps, tau = local_steps(algorithm, self.task)
        draw = Draw.seeded(seed)
        self._run = Run(rules, server, weights, steps, tau, draw, Ledger(m), network=network)
        self._seconds, self._index = 0.0, 0
        self._engine, self._storage = engine, storage
        self._stack = Stack.of([self._run], self.task, chunk, storage, rounds)

    @cached_property
    def player(self) -> Player:
        """What steps through the rounds."""
        return player(self._stack, self._engine)

    @property
    def rules(self) -> Rules:
        """What goes through which codec."""
        return self._run.rules

    @property
    def server(self) -> Any:
        """The server's state: `.w`, the model, and what else the algorithm keeps."""
        return self._run.server

    @property
    def weights(self) -> Tensor:
        """p_j, the weights of the clients."""
        return self._run.weights

    @property
    def ledger(self) -> Ledger:
        """Every byte so far."""
        return self._run.ledger

    @property
    def round(self) -> int:
        """How many rounds are done."""
        return self._stack.round

    @property
    def q(self) -> float | None:
        """The measured q of the last round."""
        return float(self._stack.q[self._index]) if self.round else None

    @property
    def alpha(self) -> float | None:
        """The damping of the last round."""
        return float(self._stack.alpha[self._index]) if self.round else None

    @property
    def chunk(self) -> int:
        """How many clients are computed at once."""
        return self._stack.group

    def run(
        self,
        callbacks: Sequence[Callable[[Row], object]] = (),
        on_round: Callable[[int], object] = lambda index: None,
    ) -> Iterator[Row]:
        """Train; a row at round 0, every eval_every rounds and at the end goes to callbacks and out."""
        while True:
            if self.round % self.eval_every == 0 or self.round == self.rounds:
                row = self.row()
                for callback in callbacks:
                    callback(row)
                yield row
            if self.round >= self.rounds:
                return
            self.step()
            on_round(self.round)

    def row(self) -> Row:
        """The figures of this moment."""
        started = time.perf_counter()
        self.check()
        with repeatable(self.tf32):
            scores = self.task.evaluate(self.server.w, self.weights)
        up, down = self.ledger.total("uplink"), self.ledger.total("downlink")
        self._seconds += time.perf_counter() - started
        return {
            "round": self.round,
            **{key: _finite(value) for key, value in scores._asdict().items()},
            "uplink_bytes": up / self.rules.clients,
            "downlink_bytes": down / self.rules.clients,
            "uplink_bytes_total": up,
            "downlink_bytes_total": down,
            "q": _finite(self.q),
            "damping": _finite(self.alpha),
            "seconds": self._seconds,
            **self._stack.clock.read(self._index),
        }

    def step(self) -> None:
        """One round."""
        started = time.perf_counter()
        try:
            with repeatable(self.tf32):
                self.player.step()
        except WireError:  # a client's vector was not finite, so that it could not be sent
            raise self._diverged(self.round + 1) from None
        if self.server.w.device.type == "cpu" or self.round % _CHECK_EVERY == 0:
            self.check()
        self._seconds += time.perf_counter() - started

    def check(self) -> None:
        """Raise Diverged where the model is no longer finite."""
        sound = int(self._stack.sound[self._index])
        if sound < self.round:
            raise self._diverged(sound + 1)

    def sample(self) -> Tensor:
        """The clients of this round, in order."""
        return self._run.sample(self.round)

    def client_states(self, clients: Tensor | None = None) -> Any:
        """What the algorithm keeps of some clients, or all, stacked; a tracker's `.delta`, for example."""
        return self._stack.store.look(self._places(clients))[0]

    def client_memory(self, clients: Tensor | None = None) -> Vectors:
        """What the codec of some clients, or all, dropped and its memory keeps, in the model's units."""
        return self._stack.store.look(self._places(clients))[1]

    def _places(self, clients: Tensor | None) -> Tensor:
        """Where clients of this run are in the stack."""
        m = self.rules.clients
        return self._index * m + (torch.arange(m) if clients is None else clients.cpu())

    def module(self) -> nn.Module:
        """A copy of the module with the model as it stands."""
        module = copy.deepcopy(self.task.objective.module)
        vectors.load(module, self.server.w)
        return module

    def _diverged(self, done: int) -> Diverged:
        a = self.algorithm
        return Diverged(
            f"the model is no longer finite after round {done} ({a.name}, eta={a.eta:g}, "
            f"gamma={a.gamma:g}); {_ADVICE}"
        )


_ADVICE = (
    "try a smaller eta, with a larger gamma to keep their product, or damping (fedcomgate: damping=auto), "
    "or a finer codec"
)


def together(simulations: Sequence[Simulation]) -> Player:
    """Let new runs of equal shapes play in step, as one stack; what steps all of them."""
    first = simulations[0]
    if len(simulations) > 1 and not all(map(_stackable, simulations)):
        raise ConfigError("runs with local steps, drawn samples or budgets of each client's own play alone")
    if len({simulation._run.network for simulation in simulations}) > 1:
        raise ConfigError("runs played in step share one network")
    everyone = len(simulations) * first.rules.sampled
    task = Task.stacked([simulation.task for simulation in simulations])
    runs = [simulation._run for simulation in simulations]
    stack = Stack.of(runs, task, everyone, first._storage, first.rounds)
    play = player(stack, first._engine)
    for i, simulation in enumerate(simulations):
        simulation._stack, simulation._index, simulation.player = stack, i, play
    return play


def runs_that_fit(simulation: Simulation) -> int:
    """How many runs like this one a GPU's memory holds at once; a CPU gains nothing from a second."""
    w = simulation.server.w
    fit = clients_that_fit(simulation.task, simulation.algorithm, w) if w.is_cuda else 0
    return max(1, fit // simulation.rules.sampled) if _stackable(simulation) else 1


def _stackable(simulation: Simulation) -> bool:
    """Whether other seeds give the same shapes: not where steps, samples or codecs are a client's own."""
    links, steps = simulation.rules.links, simulation._run.steps
    own_steps = steps.each is not None or simulation.algorithm.epochs is not None
    return not (own_steps or links.encode or links.budgets is not None or simulation.task.source is not None)


@contextmanager
def repeatable(tf32: bool) -> Iterator[None]:
    """Convolutions that give the same bits twice, as matrix products do anyway; in TF32 only if asked."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=tf32):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def pick_device(name: str) -> torch.device:
    """The device a name means; auto: the GPU where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cpu", "cuda"):
        raise ConfigError(f"device must be auto, cpu or cuda; got {name!r}")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device=cuda, but torch sees no GPU; use device=cpu or auto")
    return torch.device(name)


def sample_size(participation: float, clients: int) -> int:
    """n, the number of clients sampled each round."""
    n = math.floor(participation * clients + 1e-9) if 0 < participation <= 1 else 0
    if n < 1:
        raise ConfigError(
            f"participation must be in (0, 1] and sample a client; got {participation} of {clients} clients"
        )
    return n


def client_weights(algorithm: Algorithm, task: Task) -> Tensor:
    """p_j, the clients' weights in the objective and in the mean; they sum to one."""
    p = task.sizes.double() if algorithm.weights == "size" else torch.ones_like(task.sizes).double()
    return p / p.sum()


def local_steps(algorithm: Algorithm, task: Task) -> tuple[Steps, float]:
    """How many local steps each client takes, and the nominal number, tau."""
    tau, sizes = algorithm.tau, task.sizes
    if algorithm.epochs is not None:
        b = task.longest if algorithm.batch == "full" else algorithm.batch
        steps = algorithm.epochs * ((sizes + b - 1) // b)
    elif isinstance(tau, int):
        return Steps(tau), tau
    else:
        steps = torch.tensor(tau, device=sizes.device)
    most, mean = int(steps.max()), float(steps.double().mean())
    return Steps(most, None if mean == most else steps.unsqueeze(-1)), mean


def _finite(value: float | None) -> float | None:
    """None instead of a number that JSON cannot hold."""
    return value if value is None or math.isfinite(value) else None
