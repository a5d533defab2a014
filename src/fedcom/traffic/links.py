"""The two directions of traffic: which codec each uses, and what happens to what it drops."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from fedcom import settings
from fedcom.algorithms import Algorithm
from fedcom.codecs import CODECS, Codec, Identity, codec_of, vet
from fedcom.errors import ConfigError
from fedcom.plain import pick

Memory = Literal["none", "error-feedback", "decayed-feedback", "paper"]
DownlinkMemory = Literal["none", "error-feedback"]
First = Literal["dense", "seed"]


class DefaultUplink(NamedTuple):
    """What clients of a method send through by default.

    Args:
        codec: its name and settings, as in a config.
        memory: what clients do with what the codec drops.
    """

    codec: Mapping[str, Any]
    memory: Memory

    @classmethod
    def of(cls, method: Algorithm | type[Algorithm]) -> "DefaultUplink":
        """The default of a method: what its `uplink` says."""
        codec = dict(method.uplink)
        return cls(codec, codec.pop("memory", "none"))

    @property
    def compresses(self) -> bool:
        """Whether messages are made shorter."""
        return bool(self.codec["name"] != Identity.name)


@dataclass(frozen=True)
class Links:
    """The codecs of a run, their memories and other settings.

    Args:
        uplink: compresses what clients send.
        downlink: compresses the mean that the server sends; the model, if it is sent, is not compressed.
        uplink_memory: what a client does with what its codec dropped: "none"; "error-feedback", which adds it
            to the next message; "decayed-feedback", which adds 0.95 of it; "paper", the rule as the
            paper prints it. None: the method's default.
        downlink_memory: the same for the server.
        first: how clients get the first model: "dense", or from the "seed" that it was drawn from.
        clip: the largest norm, in the model's units, of what a client sends; longer vectors are scaled down
            to it before memory and codec. None: no limit.
        encode: make the real bytes of every message and decode them, instead of only counting them.
        budgets: the uplink's bits per coordinate, one number per client; None: as the codec is set.
        correlated: spread the random numbers by which clients round evenly over the clients of a round. Each
            message is as long and as random as without, but in the mean the errors cancel in part.
    """

    uplink: Codec
    downlink: Codec = field(default_factory=Identity)
    uplink_memory: Memory | None = field(default=None, kw_only=True)
    downlink_memory: DownlinkMemory | None = field(default=None, kw_only=True)
    first: First = field(default="dense", kw_only=True)
    clip: float | None = field(default=None, kw_only=True)
    encode: bool = field(default=False, kw_only=True)
    budgets: tuple[float, ...] | None = field(default=None, kw_only=True)
    correlated: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        for way in ("uplink", "downlink"):
            object.__setattr__(self, way, codec_of(getattr(self, way)))
        settings.check(self)
        vet(uplink=self.uplink, downlink=self.downlink)
        if self.clip is not None and self.clip <= 0:
            raise ConfigError(f"clip must be above 0; got {self.clip}")
        if self.correlated and not (self.uplink.dithers and self.uplink.unbiased):
            raise ConfigError(
                f"correlated spreads over clients the numbers a codec rounds with, and {self.uplink.name} "
                "as set has none; use int (stochastic), qsgd, dithered, lowrank or auto, or leave it out"
            )

    def uplinks(self, clients: Tensor) -> list[tuple[Codec, Tensor]]:
        """The codecs of some clients, each with the positions in `clients` of those that use it."""
        if self.budgets is None:
            return [(self.uplink, torch.arange(len(clients), device=clients.device))]
        bits = self._bits[clients.cpu()]
        rows = [(b, (bits == b).nonzero()[:, 0].to(clients.device)) for b in sorted(set(bits.tolist()))]
        return [(at_budget(self.uplink, b), chosen) for b, chosen in rows]

    @cached_property
    def _bits(self) -> Tensor:
        return torch.tensor(self.budgets, dtype=torch.float64)

    @classmethod
    def of(cls, algorithm: Algorithm) -> "Links":
        """The codecs that an algorithm uses by default."""
        return cls(pick(CODECS, DefaultUplink.of(algorithm).codec, "uplink"))


def at_budget(codec: Codec, bits: float) -> Codec:
    """The codec at a budget of bits per coordinate, or a ConfigError if it cannot be set to that."""
    # A whole number becomes an int, as in a config: how it is written decides the message's fingerprint.
    found = codec.at(int(bits) if bits == int(bits) else bits)
    if found is None:
        raise ConfigError(
            f"codec {codec.name} has no setting of {bits:g} bits per coordinate; change that budget, or use "
            "auto (0.0001 to 8 bits), peaks (0.0001 to 1), rotated (0.05 to 8), dithered (0.05 to 16) or "
            "int (1 to 16, whole)"
        )
    return found


def budgets_from(bandwidths: Sequence[float], codec: Codec) -> tuple[float, ...]:
    """The bits per coordinate at which every client's message takes as long as the fastest client's.

    None is below the codec's lowest rate.

    Args:
        bandwidths: one number per client, in any unit.
        codec: with the bits of the fastest client.
    """
    bits = getattr(codec, "bits", None)
    if bits is None or codec.at(bits) != codec:  # topk's bits are per value kept, not per coordinate
        raise ConfigError(
            f"bandwidths lower the codec's bits for slower clients, and {codec.name} is not set to any; "
            "set uplink.bits (auto, peaks, rotated, dithered, int), or give uplink.budgets instead"
        )
    if min(bandwidths, default=0) <= 0:
        raise ConfigError(f"bandwidths must be above 0; got {list(bandwidths)}")
    shares = (bits * b / max(bandwidths) for b in bandwidths)
    return tuple(max(codec.lowest_rate, _rounded(share)) for share in shares)


def _rounded(bits: float) -> float:
    """A rate to three places after the point; a low one to three digits."""
    return round(bits, 3) if bits >= 0.05 else float(f"{bits:.3g}")
