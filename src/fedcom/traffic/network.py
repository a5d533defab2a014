"""Modelled time: how long rounds would take with links and devices of given speeds.

A round lasts as long as its slowest client takes:
latency + bytes down / downlink + steps * compute + bytes up / uplink.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedcom import settings
from fedcom.draws import Draw
from fedcom.errors import ConfigError, unknown
from fedcom.vectors import Vectors

_MEGABITS = 8e-6  # in a byte

PRESETS: dict[str, dict[str, float]] = {  # docs/network.md says where the numbers are from
    "3g": {"uplink": 1.6, "downlink": 5.9, "latency": 0.0635, "spread": 0.5},
    "lte": {"uplink": 11.22, "downlink": 35.96, "latency": 0.04, "spread": 0.5},
    "broadband": {"uplink": 45.74, "downlink": 85.73, "latency": 0.021, "spread": 0.5},
    "datacenter": {"uplink": 10_000.0, "downlink": 10_000.0, "latency": 0.0005, "spread": 0.0},
}


@dataclass(frozen=True)
class Network:
    """The speeds of clients' links and devices.

    Args:
        uplink: Mbit/s of the median client.
        downlink: Mbit/s of the median client.
        latency: seconds that every round takes besides transfers and computing.
        spread: standard deviation of the logarithm of clients' speeds.
        compute: seconds per local step on the median client.
    """

    uplink: float
    downlink: float
    latency: float = 0.0
    spread: float = 0.0
    compute: float = 0.0

    def __post_init__(self) -> None:
        settings.check(self)
        for key in ("uplink", "downlink"):
            if getattr(self, key) <= 0:
                raise ConfigError(f"{key} must be above 0 Mbit/s; got {getattr(self, key)}")
        for key in ("latency", "spread", "compute"):
            if getattr(self, key) < 0:
                raise ConfigError(f"{key} must be 0 or more; got {getattr(self, key)}")

    @classmethod
    def preset(cls, name: str, **changes: float) -> "Network":
        """A preset by name, with some of its numbers changed."""
        return cls(**over_preset({"preset": name, **changes}))

    def seconds(self, draw: Draw, down: Tensor, steps: int | Tensor, up: Tensor) -> Tensor:
        """How many seconds a round takes some clients, one number per client.

        Args:
            draw: one key per client, which decides its speeds.
            down: bytes that each client receives.
            steps: local steps, of all or of each client.
            up: bytes that each client sends.
        """
        link, device = self._slowness(draw, "link"), self._slowness(draw, "device")
        transfer = _MEGABITS * (down.double() / self.downlink + up.double() / self.uplink)
        return self.latency + transfer * link + steps * self.compute * device

    def _slowness(self, draw: Draw, what: str) -> float | Tensor:
        """How many times as long as the median client each client takes."""
        if not self.spread:
            return 1.0
        return torch.exp(self.spread * draw.fold(what).normal(1, torch.float64).squeeze(-1))


def over_preset(table: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of the preset that a table names, changed by the table's own."""
    numbers = dict(table)
    name = numbers.pop("preset", None)
    if name is not None and (not isinstance(name, str) or name not in PRESETS):
        raise unknown("network preset", name, PRESETS)
    numbers = {**(PRESETS[name] if name else {}), **numbers}
    for key in ("uplink", "downlink"):
        if key not in numbers:
            raise ConfigError(f"network.{key} is missing; give Mbit/s, or a preset: {', '.join(PRESETS)}")
    return numbers


class Clock:
    """The clock of runs without a network: it measures nothing. A Stopwatch measures modelled time."""

    def uplink_meter(self, rows: slice) -> Tensor | None:
        """Where the bytes that some sampled clients send are to be added up; None: nowhere."""
        return None

    def tensors(self) -> Vectors:
        """What is kept between rounds, by name."""
        return {}

    def start(self) -> None:
        """A round begins."""

    def stop(self, clients: Tensor, down: Tensor, most: int, per_client: Tensor | None) -> None:
        """A round is over.

        Args:
            clients: those that took part, of all runs in order.
            down: the bytes that each of them received, one row per run.
            most: the largest number of local steps.
            per_client: a column with the steps of each of them; None: all took the most.
        """

    def read(self, run: int) -> dict[str, float]:
        """What a row of a run says of modelled time."""
        return {}


class Stopwatch(Clock):
    """The modelled seconds of runs played in step, on their device, where a replayed round can add to them.

    Args:
        draws: the keys that the runs began with.
        sampled: how many clients of each run take part in a round.
    """

    def __init__(self, network: Network, draws: Sequence[Draw], sampled: int, device: torch.device) -> None:
        self.network = network
        self._keys = torch.stack([draw.fold("network").key for draw in draws]).to(device).unsqueeze(-1)
        self._seconds = torch.zeros(len(draws), dtype=torch.float64, device=device)
        self._sent = torch.zeros(len(draws) * sampled, dtype=torch.int64, device=device)

    def uplink_meter(self, rows: slice) -> Tensor:
        return self._sent[rows]

    def tensors(self) -> Vectors:
        return {"clock.seconds": self._seconds}

    def start(self) -> None:
        self._sent.zero_()

    def stop(self, clients: Tensor, down: Tensor, most: int, per_client: Tensor | None) -> None:
        steps = most if per_client is None else per_client.view_as(down)
        draw, up = Draw(self._keys).fold(clients.view_as(down)), self._sent.view_as(down)
        self._seconds.add_(self.network.seconds(draw, down, steps, up).amax(-1))

    def read(self, run: int) -> dict[str, float]:
        return {"modelled_seconds": float(self._seconds[run])}


def clock_of(network: Network | None, draws: Sequence[Draw], sampled: int, device: torch.device) -> Clock:
    """A Stopwatch for runs played in step, or a Clock that measures nothing if there is no network."""
    return Clock() if network is None else Stopwatch(network, draws, sampled, device)
