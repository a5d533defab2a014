"""The local engine: all sampled clients stacked on one device, in chunks that fit its memory."""

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from fedcom import vectors
from fedcom.algorithms import Algorithm
from fedcom.algorithms.base import Round
from fedcom.clients import ClientStore
from fedcom.draws import Draw
from fedcom.engines.memory import clients_that_fit
from fedcom.errors import ConfigError, Diverged, WireError
from fedcom.ledger import Ledger
from fedcom.links import Channel, Links
from fedcom.round import Heard, Rules, Work, broadcast, client_finish, client_work, server_work
from fedcom.task import Oracle, Task
from fedcom.vectors import Vectors

Row = dict[str, Any]


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
        chunk: clients computed at once; None: as many as fit in memory.
    """

    def __init__(
        self, task: Task, algorithm: Algorithm, links: Links | None = None, *, rounds: int = 100,
        participation: float = 1.0, seed: int = 0, eval_every: int = 1, device: str = "auto",
        chunk: int | None = None,
    ) -> None:  # fmt: skip
        self.task, self.algorithm = task.to(pick_device(device)), algorithm
        self.rounds, self.eval_every = rounds, eval_every
        layout, m = task.objective.layout, task.clients
        self.rules = Rules(algorithm, links or Links.of(algorithm), layout, m, sample_size(participation, m))
        self.server = algorithm.init_server(self.task.objective.start.clone())
        self.weights = client_weights(algorithm, self.task)
        self.steps, self.tau = local_steps(algorithm, self.task)
        self.chunk = chunk or clients_that_fit(self.task, algorithm, self.server.w)
        self.ledger = Ledger(m)
        self.round = 0
        self.q: float | None = None  # the measured q of the last round
        self.alpha: float | None = None  # and its damping
        self._residual: Vectors = {}
        self._up = Channel("uplink", self.ledger, self.rules.links.encode)
        self._down = Channel("downlink", self.ledger, self.rules.links.encode)
        remembered = algorithm.uploads if algorithm.memory != "none" else ()
        nu = {name: torch.zeros_like(self.server.w) for name in remembered}
        self._store = ClientStore(m, algorithm.init_client(self.server.w), nu)
        self._draw = Draw.seeded(seed, self.server.w.device)
        self._seconds = 0.0

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
        with _repeatable():
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
        }

    def step(self) -> None:
        """One round."""
        started = time.perf_counter()
        try:
            with _repeatable():
                self._round()
        except WireError:  # a client's vector was not finite, so that it could not be sent
            raise self._diverged() from None
        if not torch.isfinite(self.server.w).all():
            raise self._diverged()
        self._seconds += time.perf_counter() - started

    def _round(self) -> None:
        draw, sampled = self._draw.fold(self.round), self.sample()
        down = broadcast(self.rules, self.server, self._down, draw, first=self.round == 0)
        share = float(self.weights[sampled].sum())
        works: list[tuple[Tensor, Work]] = []
        mean: Vectors = {}
        q = self.server.w.new_zeros(())
        rnd = self._facts(share, draw)
        for clients in torch.split(sampled, self.chunk):
            work = self._work(clients, down, rnd, draw.fold(clients))
            p = (self.weights[clients] / share).to(self.server.w.dtype)
            mean = {name: mean.get(name, 0) + p @ sent for name, sent in work.sent.items()}
            q = q + work.q.sum() / len(sampled)
            works.append((clients, work))
        heard = server_work(self.rules, self.server, self._residual, mean, q, rnd, self._down, draw)
        self._commit(works, heard, q)

    def sample(self) -> Tensor:
        """The clients of this round, in order."""
        m, n = self.rules.clients, self.rules.sampled
        if n == m:
            return self._everyone
        return self._draw.fold(self.round, "sample").permutation(m)[:n].sort().values

    def client_states(self) -> Any:
        """What the algorithm keeps of each client, stacked; a tracker's `.delta`, for example."""
        return self._store.take(self._everyone)[0]

    def client_memory(self) -> Vectors:
        """What each client's codec dropped and its memory keeps, in the model's units."""
        return self._store.take(self._everyone)[1]

    @property
    def _everyone(self) -> Tensor:
        return torch.arange(self.rules.clients, device=self.server.w.device)

    def module(self) -> nn.Module:
        """A copy of the module with the model as it stands."""
        module = copy.deepcopy(self.task.objective.module)
        vectors.load(module, self.server.w)
        return module

    def _facts(self, share: float, draw: Draw) -> Round:
        eta = self.algorithm.eta * self.algorithm.decay**self.round
        coin = float(draw.fold("coin").uniform(1))
        return Round(eta, self.tau, eta * self.tau, share, coin)

    def _work(self, clients: Tensor, down: Vectors, rnd: Round, draw: Draw) -> Work:
        a = self.algorithm
        batch = None if a.batch == "full" else a.batch
        oracle = Oracle(self.task, clients, draw, batch, a.epochs is not None, a.weight_decay)
        state, memory = self._store.take(clients)
        steps = self.steps if isinstance(self.steps, int) else self.steps[clients]
        if not isinstance(steps, int):
            rnd = rnd._replace(path=rnd.eta * steps.to(self.server.w.dtype))
        return client_work(self.rules, state, memory, down, oracle, steps, rnd, self._up, draw)

    def _commit(self, works: list[tuple[Tensor, Work]], heard: Heard, q: Tensor) -> None:
        """Make the round final."""
        self.server, self._residual = heard.server, heard.residual
        for clients, work in works:
            self._store.put(clients, *client_finish(self.rules, work, heard))
        self.round += 1
        self.q, self.alpha = float(q), float(heard.rnd.alpha)

    def _diverged(self) -> Diverged:
        a = self.algorithm
        return Diverged(
            f"the model is no longer finite after round {self.round} ({a.name}, eta={a.eta:g}, "
            f"gamma={a.gamma:g}); {_ADVICE}"
        )


_ADVICE = (
    "try a smaller eta, with a larger gamma to keep their product, or damping (fedcomgate: damping=auto), "
    "or a finer codec"
)


def _repeatable() -> AbstractContextManager[None]:
    """Convolutions that give the same bits twice, in float32 and not in TF32; matrix products do anyway."""
    flags: AbstractContextManager[None] = torch.backends.cudnn.flags(
        enabled=True, benchmark=False, deterministic=True, allow_tf32=False
    )
    return flags


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


def local_steps(algorithm: Algorithm, task: Task) -> tuple[int | Tensor, float]:
    """How many local steps each client takes (a column where they differ), and the nominal number, tau."""
    tau, sizes = algorithm.tau, task.sizes
    if algorithm.epochs is not None:
        b = task.longest if algorithm.batch == "full" else algorithm.batch
        steps = algorithm.epochs * ((sizes + b - 1) // b)
    elif isinstance(tau, int):
        return tau, tau
    else:
        steps = torch.tensor(tau, device=sizes.device)
    if bool((steps == steps[0]).all()):
        return int(steps[0]), float(steps[0])
    return steps.unsqueeze(-1), float(steps.double().mean())


def _finite(value: float | None) -> float | None:
    """None instead of a number that JSON cannot hold."""
    return value if value is None or math.isfinite(value) else None
