"""The two directions of traffic: which codec each uses, and what becomes of what it drops."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from fedcom import settings
from fedcom.algorithms import Algorithm
from fedcom.codecs import CODECS, Codec, Identity
from fedcom.errors import ConfigError

Memory = Literal["none", "error-feedback", "paper"]
DownlinkMemory = Literal["none", "error-feedback"]


@dataclass(frozen=True)
class Links:
    """The codecs of a run, and what surrounds them.

    Args:
        uplink: what clients' vectors go through.
        downlink: what the mean goes through; the model itself, where it is sent, travels dense.
        uplink_memory: what a client does with what its codec dropped: "none"; "error-feedback", which adds it
            to its next message; or the rule as the "paper" prints it. None: the method's own choice.
        downlink_memory: the same for the server, where a codec compresses the mean.
        clip: the largest norm, in the model's units, of what a client sends; longer vectors are scaled down
            to it before memory and codec. None: no limit.
        encode: make every message's real bytes and decode them, instead of counting them.
        budgets: the uplink's bits per coordinate for each client, in place of the codec's own.
    """

    uplink: Codec
    downlink: Codec = field(default_factory=Identity)
    uplink_memory: Memory | None = field(default=None, kw_only=True)
    downlink_memory: DownlinkMemory = field(default="error-feedback", kw_only=True)
    clip: float | None = field(default=None, kw_only=True)
    encode: bool = field(default=False, kw_only=True)
    budgets: tuple[float, ...] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        settings.check(self)
        if self.clip is not None and self.clip <= 0:
            raise ConfigError(f"clip must be above 0; got {self.clip}")

    def uplinks(self, clients: Tensor) -> list[tuple[Codec, Tensor]]:
        """The codecs of some clients, each with the rows that use it."""
        if self.budgets is None:
            return [(self.uplink, torch.arange(len(clients), device=clients.device))]
        bits = self._bits[clients.cpu()]
        rows = [(b, (bits == b).nonzero()[:, 0].to(clients.device)) for b in sorted(set(bits.tolist()))]
        return [(with_bits(self.uplink, b), chosen) for b, chosen in rows]

    @cached_property
    def _bits(self) -> Tensor:
        return torch.tensor(self.budgets, dtype=torch.float64)

    @classmethod
    def of(cls, algorithm: Algorithm) -> "Links":
        """The codecs an algorithm uses unless told otherwise."""
        parameters = {key: value for key, value in algorithm.uplink.items() if key != "memory"}
        return cls(CODECS[parameters.pop("name")](**parameters))


def with_bits(codec: Codec, bits: float) -> Codec:
    """The same codec at another rate."""
    known = {f.name for f in fields(codec)}
    if "bits" not in known:
        raise ConfigError(f"budgets are bits, and codec {codec.name} has none; use rotated, dithered or int")
    other = {"q": None} if "q" in known else {}
    return replace(codec, bits=int(bits) if bits == int(bits) else bits, **other)  # type: ignore[call-arg]


def budgets_from(bandwidths: Sequence[float], bits: float) -> tuple[float, ...]:
    """Bits that make every client's message take as long as that of the fastest, which sends `bits`."""
    if min(bandwidths, default=0) <= 0:
        raise ConfigError(f"bandwidths must be above 0; got {list(bandwidths)}")
    return tuple(max(0.05, round(bits * b / max(bandwidths), 3)) for b in bandwidths)
