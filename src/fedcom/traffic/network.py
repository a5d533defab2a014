"""Modelled time: how long rounds would take over links and on devices of given speeds.

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

_MEGABITS = 8e-6  # of a byte

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
        downlink: likewise.
        latency: seconds of every round that no bandwidth takes away.
        spread: standard deviation of the logarithm of clients' speeds.
        compute: seconds a local step takes the median client.
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
    def preset(cls, name: str, **own: float) -> "Network":
        """A preset, with some numbers of one's own."""
        return cls(**over_preset({"preset": name, **own}))

    def seconds(self, draw: Draw, down: Tensor, steps: int | Tensor, up: Tensor) -> Tensor:
        """How long a round takes clients of these keys, with the bytes and local steps of each."""
        link, device = self._slowness(draw, "link"), self._slowness(draw, "device")
        transfer = _MEGABITS * (down.double() / self.downlink + up.double() / self.uplink)
        return self.latency + transfer * link + steps * self.compute * device

    def _slowness(self, draw: Draw, what: str) -> float | Tensor:
        """How many times longer than the median client each of these takes."""
        if not self.spread:
            return 1.0
        return torch.exp(self.spread * draw.fold(what).normal(1, torch.float64).squeeze(-1))


def over_preset(table: Mapping[str, Any]) -> dict[str, Any]:
    """A table's numbers laid over those of the preset it names."""
    own = dict(table)
    name = own.pop("preset", None)
    if name is not None and (not isinstance(name, str) or name not in PRESETS):
        raise unknown("network preset", name, PRESETS)
    laid = {**(PRESETS[name] if name else {}), **own}
    for key in ("uplink", "downlink"):
        if key not in laid:
            raise ConfigError(f"network.{key} is missing; give Mbit/s, or a preset: {', '.join(PRESETS)}")
    return laid


class Clock:
    """Measures nothing, at no cost; a Stopwatch does."""

    def sent(self, rows: slice) -> Tensor | None:
        """Where the bytes of some sampled clients are to be counted, if anywhere."""
        return None

    def heard(self, run: int) -> Tensor | None:
        """Where the bytes each client of a run hears are to be counted, if anywhere."""
        return None

    def start(self) -> None:
        """A round begins."""

    def stop(self, clients: Tensor, most: int, each: Tensor | None) -> None:
        """A round is over: who took part; the most local steps, and every client's where they differ."""

    def read(self, run: int) -> dict[str, float]:
        """What a row says of it."""
        return {}


class Stopwatch(Clock):
    """The modelled seconds of some runs in step, on their device, where a replayed round can add to them."""

    def __init__(self, network: Network, draws: Sequence[Draw], sampled: int, device: torch.device) -> None:
        self.network = network
        self._keys = torch.stack([draw.fold("network").key for draw in draws]).to(device).unsqueeze(-1)
        self._seconds = torch.zeros(len(draws), dtype=torch.float64, device=device)
        self._sent = torch.zeros(len(draws) * sampled, dtype=torch.int64, device=device)
        self._heard = torch.zeros(len(draws), dtype=torch.int64, device=device)

    def sent(self, rows: slice) -> Tensor:
        return self._sent[rows]

    def heard(self, run: int) -> Tensor:
        return self._heard[run : run + 1]

    def start(self) -> None:
        self._sent.zero_()
        self._heard.zero_()

    def stop(self, clients: Tensor, most: int, each: Tensor | None) -> None:
        steps = most if each is None else each[clients, 0]
        by_run = (len(self._keys), -1)
        draw, down, up = Draw(self._keys).fold(clients.view(by_run)), self._heard.unsqueeze(-1), self._sent
        self._seconds.add_(self.network.seconds(draw, down, steps, up.view(by_run)).amax(-1))

    def read(self, run: int) -> dict[str, float]:
        return {"modelled_seconds": float(self._seconds[run])}


def clock_of(network: Network | None, draws: Sequence[Draw], sampled: int, device: torch.device) -> Clock:
    """A clock for runs in step, each with the draw it began with; without a network it measures nothing."""
    return Clock() if network is None else Stopwatch(network, draws, sampled, device)
