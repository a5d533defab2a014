"""A round that is open: who was called, who has replied, and the mean of what was heard so far."""

import math

import torch

from fedcom.rounds.cohort import mean_weights
from fedcom.rounds.round import Mean
from fedcom.rounds.state import RunState


class OpenRound:
    """A round from its first call to its end.

    Vectors are added to the mean in the order of the clients, so that the sum has the same bits every time.

    Args:
        index: the number of the round.
        called: its clients, in order.
        clip: how long a vector may be, in the model's units; None: no limit.

    Attributes:
        turn: the client whose vectors are added next.
        done: clients from which no reply is awaited any more.
        aside: clients whose replies came before their turn.
        lost: clients that say that their state is lost.
        share: the weight of its clients among all.
        p: the weight of each of them in the mean.
        qs: what each counted client measured of its codec's error.
        factors: by what the vectors of a client were multiplied, if they were too long.
        bounds: how long each vector may be, by name.
        keys: of the nodes that were called.
        norms: of each client's vectors in the model's units.
        hashes: of each client's reply.
        offended: clients that sent a bad reply.
    """

    def __init__(self, run: RunState, index: int, called: list[int], clip: float | None) -> None:
        self.index, self.called, self.draw, self.turn = index, tuple(called), run.draw.fold(index), 0
        self.done, self.aside, self.lost = set[int](), set[int](), list[int]()
        p, share = mean_weights(run.cohort.weights[torch.tensor(called, dtype=torch.int64)].reshape(1, -1))
        self.share, self.p = float(share), dict(zip(called, p[0].to(run.server.w.dtype), strict=True))
        self.bounds = dict.fromkeys(run.rules.algorithm.uploads, math.inf if clip is None else clip)
        self.mean, self.qs = Mean(), list[float]()
        self.counted, self.factors = list[int](), dict[int, tuple[float, ...]]()
        self.keys, self.offended = dict[int, str](), set[int]()
        self.norms, self.hashes = dict[int, dict[str, float]](), dict[int, str]()

    @property
    def medians(self) -> dict[str, float]:
        """The median length of each vector; of an even number the lower of the two in the middle."""
        middle = (len(self.norms) - 1) // 2
        names = next(iter(self.norms.values()), {})
        return {name: sorted(own[name] for own in self.norms.values())[middle] for name in names}

    @property
    def missing(self) -> tuple[int, ...]:
        """The clients whose reply is still awaited."""
        return tuple(client for client in self.called if client not in self.done)

    @property
    def next(self) -> int | None:
        """The client whose turn it is."""
        return self.called[self.turn] if self.turn < len(self.called) else None
