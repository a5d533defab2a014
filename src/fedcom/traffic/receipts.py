"""The bytes that clients receive: what all of a round are told, and what those who missed rounds catch up on.

Clients that repeat the server's step need the first model and every mean. One that missed some of them is
sent those, or what it would have made of them (the model as it is now), whichever is shorter.
"""

import torch
from torch import Tensor

from fedcom.traffic.ledger import Ledger
from fedcom.vectors import Vectors


class Receipts:
    """What clients of runs played in step receive, on their device, where a replayed round adds to it.

    Args:
        clients: how many each run has; 0 if none ever has to catch up.
        sampled: how many of them take part in a round.

    Attributes:
        sent: the bytes of the first model and of all means so far, one number per run.
        heard: what `sent` was when a client last took part, one row per run; zero before it first does.
    """

    def __init__(self, runs: int, clients: int, sampled: int, device: torch.device) -> None:
        self.sent = torch.zeros(runs, 1, dtype=torch.int64, device=device)
        self.heard = self.sent.repeat(1, clients)
        self._sent_now = torch.zeros_like(self.sent)  # this round, to each sampled client
        self._caught_up = self.sent.repeat(1, sampled)  # this round, by each of them

    def tensors(self) -> Vectors:
        """What is kept between rounds, by name."""
        return {"receipts.sent": self.sent, "receipts.heard": self.heard}

    def start(self) -> None:
        """A round begins."""
        self._sent_now.zero_()
        self._caught_up.zero_()

    def meter(self, run: int) -> Tensor:
        """Where the bytes that a run's server sends to each sampled client are to be added up."""
        return self._sent_now[run]

    def catch_up(self, run: int, clients: Tensor, first: int, model: int, ledger: Ledger) -> None:
        """Enter what the sampled clients of a run are sent so that they are where the server is.

        Args:
            clients: their numbers.
            first: the bytes of the first model.
            model: the bytes of all that clients would make of the first model and the means.
        """
        heard = self.heard[run, clients]
        missed, start = self.sent[run] - heard, torch.where(heard == 0, first, 0)
        whole = missed > model
        parts = {
            "first model": start.masked_fill(whole, 0),
            "means": (missed - start).masked_fill(whole, 0),
            "model": model * whole,
        }
        ledger.add("downlink", "catch-up", parts)
        self._caught_up[run] = missed.clamp(max=model)

    def stop(self, clients: Tensor) -> Tensor:
        """A round is over; returns the bytes that each sampled client received in it, one row per run.

        Args:
            clients: those that took part, of all runs in order.
        """
        self.sent += self._sent_now
        if self.heard.numel():
            self.heard.scatter_(1, clients.view_as(self._caught_up), self.sent.expand_as(self._caught_up))
        return self._sent_now + self._caught_up
