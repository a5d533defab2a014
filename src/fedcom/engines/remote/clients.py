"""What a coordinator knows of each client: when it was counted, which node it is, how it behaved."""

from collections import Counter
from typing import Any

import torch

from fedcom.engines.remote.faults import Faults
from fedcom.engines.remote.messages import NEVER
from fedcom.engines.remote.open_round import OpenRound
from fedcom.engines.remote.terms import Terms
from fedcom.vectors import Vectors

FORGOTTEN = -2  # a client with it must be sent the whole model
_LONG = 10.0  # a vector that is so many times as long as the median of its round is named


class Clients:
    """The clients of one job.

    Args:
        count: how many there are.
        faults: where what they do wrong is entered.

    Attributes:
        counted: the last round in which each client was counted; NEVER: in none.
        known: the round at whose beginning each client had the server's vectors; NEVER: in none; FORGOTTEN:
            nobody knows what it has.
        owed: which clients are still to be told the end of the round in which they were last counted.
        losses: how often each client has said that its state is lost.
        keys: of the node that each client is; not of clients that were never counted.
        factors: by what the vectors of a client were multiplied when it was last counted, if they were.
        offences: how often in a row a client's reply was not as it must be.
        resting: the round until which a client is left out.
    """

    def __init__(self, count: int, terms: Terms, faults: Faults) -> None:
        self.terms, self.faults = terms, faults
        self.counted, self.known = torch.full((count,), NEVER), torch.full((count,), NEVER)
        self.owed, self.losses = torch.zeros(count, dtype=torch.bool), torch.zeros(count, dtype=torch.int64)
        self.keys, self.factors = dict[int, str](), dict[int, tuple[float, ...]]()
        self.offences, self.resting = Counter[int](), dict[int, int]()

    def facts(self) -> dict[str, Any]:
        """What a checkpoint needs beside tensors."""
        return {name: dict(getattr(self, name)) for name in ("offences", "resting", "keys", "factors")}

    def tensors(self) -> Vectors:
        """What a checkpoint needs of the clients, by name."""
        return {f"clients.{name}": getattr(self, name) for name in ("counted", "known", "owed", "losses")}

    def restore(self, facts: dict[str, Any], tensors: Vectors) -> None:
        """Go on from a checkpoint; JSON made the clients' numbers texts, and tuples lists."""
        found = {name: {int(j): value for j, value in facts[name].items()} for name in self.facts()}
        self.offences, self.resting = Counter(found["offences"]), found["resting"]
        self.keys = found["keys"]
        self.factors = {client: tuple(factors) for client, factors in found["factors"].items()}
        for name, x in self.tensors().items():
            x.copy_(tensors[name])

    def to_call(self, sampled: list[int], round_index: int) -> list[int]:
        """The sampled clients that are not left out for good or, if others remain, for some rounds."""
        left = [j for j in sampled if self.losses[j] <= self.terms.restarts]
        return [j for j in left if self.resting.get(j, 0) <= round_index] or left

    def may_be(self, client: int, key: str) -> bool:
        """Whether the node with a key may be a client."""
        return self.terms.rebind or self.keys.get(client, key) == key

    def count(self, now: OpenRound) -> None:
        """Enter whose replies counted in a round: these show that they were told all they were owed."""
        for client in now.counted:
            self.known[client], self.owed[client] = now.index, False
            self.factors.pop(client, None)
            if (key := now.keys.get(client)) is not None:
                if self.keys.setdefault(client, key) != key:
                    self.faults.note(now.index, client=client, handed_over=key)
                self.keys[client] = key

    def judge(self, now: OpenRound) -> None:
        """Name clients whose vectors are far longer than the others'; leave out who offends repeatedly."""
        medians = now.medians
        for client in now.counted:
            long = {name: x for name, x in now.norms[client].items() if x > _LONG * medians[name] > 0}
            if long:
                now.offended.add(client)
                self.faults.name_long(now.index, client, long, {name: medians[name] for name in long})
            elif client not in now.offended:
                self.offences.pop(client, None)
        for client in now.offended - {NEVER}:
            self.offences[client] += 1
            if self.offences[client] >= self.terms.offences and self.terms.rest:
                del self.offences[client]
                self.resting[client] = now.index + 1 + self.terms.rest
                self.faults.leave_out(now.index, client, self.resting[client])
        self.resting = {client: until for client, until in self.resting.items() if until > now.index}

    def owe(self, now: OpenRound) -> None:
        """The clients that were counted in a round are to be told its end."""
        self.counted[now.counted], self.owed[now.counted] = now.index, True
        self.factors |= now.factors

    def lose(self, now: OpenRound, generation: int) -> None:
        """Enter who has lost its state in a round.

        Args:
            generation: that of the next round.
        """
        for client in now.lost:
            self.losses[client] += 1
            self.counted[client], self.known[client], self.owed[client] = NEVER, FORGOTTEN, False
        if now.lost:
            out = [j for j in now.lost if self.losses[j] > self.terms.restarts]
            self.faults.note(now.index, lost=now.lost, generation=generation, left_out=out)
