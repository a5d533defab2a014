"""Gradients of every step through a codec: a communication hook for DistributedDataParallel.

    model = DistributedDataParallel(module)
    gradients = fedcom.outer.Gradients(codec="rotated", bits=2, group=model.process_group)
    model.register_comm_hook(gradients, fedcom.outer.hook)

Every process sends its gradient of each bucket to all others of its group and decodes all in the same order,
so that all have the same mean. Steps of their own between exchanges cost far fewer bytes: see `Outer`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fedcom.codecs import Codec, Identity
from fedcom.draws import Draw
from fedcom.errors import NotFinite, WireError
from fedcom.outer.links import Links
from fedcom.outer.outer import codec_of
from fedcom.vectors import Layout

_FEW = 4096  # so many numbers in a bucket, or fewer, are sent as they are: codecs at low rates need more


class Gradients:
    """What the hook keeps; every process makes one, at the same time, also those of other groups or of none.

    Args:
        codec: its name, a table with its name and settings, or a codec; an unbiased one.
        bits: per number, for a codec that is given by its name.
        group: the processes whose gradients are averaged, as DistributedDataParallel has them; None: all.
        seed: of the codec's random numbers; the same on all processes.
        timeout: seconds to wait for another process.

    Attributes:
        steps: that were taken.
    """

    def __init__(
        self,
        codec: str | dict[str, Any] | Codec = "rotated",
        bits: float | None = 2.0,
        *,
        group: "dist.ProcessGroup | int | None" = None,
        seed: int = 0,
        timeout: float = 1800.0,
    ) -> None:
        self.codec, self.steps = codec_of(codec, bits), 0
        self._ranks = _members(group)
        self._links, self._draw = Links(1, False, timeout, self._ranks), Draw.seeded(seed)

    @property
    def sent(self) -> int:
        """Bytes this process has sent, each receiver counted."""
        return self._links.sent

    @property
    def received(self) -> int:
        """Bytes this process has received."""
        return self._links.received

    @torch.no_grad()
    def mean(self, g: Tensor, bucket: int) -> Tensor:
        """The mean of all processes' gradients of a bucket; not a number if one of them is not finite."""
        layout = Layout.vector(g.numel(), torch.promote_types(g.dtype, torch.float32))
        codec = self.codec if g.numel() > _FEW else Identity()
        try:
            message = codec.encode(g.to(layout.dtype), layout, self._key(bucket, self._links.number, g))
        except NotFinite:
            message = b""
        mail, mean = self._links.exchange(message), torch.zeros_like(g, dtype=layout.dtype)
        for number, data in enumerate(mail):
            if not len(data):
                return torch.full_like(g, torch.nan)
            with self._of_process(number):
                own = codec.decode(data, layout, self._key(bucket, number, g))
            mean.add_(own, alpha=1 / len(mail))
        return mean.to(g.dtype)

    @contextmanager
    def _of_process(self, number: int) -> Iterator[None]:
        """Inside, a process's message is read."""
        try:
            yield
        except WireError as error:
            raise WireError(
                f"step {self.steps}: the gradient of process {self._ranks[number]} cannot be read: {error}"
            ) from None

    def _key(self, bucket: int, number: int, g: Tensor) -> Draw:
        """The random numbers of a process's message."""
        one = torch.tensor([number], device="cpu")
        key = self._draw.fold(self.steps).fold(one).fold("gradient").fold(bucket)
        return Draw(key.key[0].to(g.device))


def _members(group: "dist.ProcessGroup | int | None") -> list[int]:
    """The ranks of a group's processes, this one's among them; an int is what new_group gives to others."""
    if not (dist.is_available() and dist.is_initialized()):
        return [0]
    if group is None:
        return list(range(dist.get_world_size()))
    if isinstance(group, int):
        return [dist.get_rank()]  # alone, but it takes part where groups are made
    return sorted(dist.get_process_group_ranks(group))


def hook(
    state: Gradients,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    """What DistributedDataParallel calls with each bucket of gradients."""
    g = bucket.buffer()
    future = torch.futures.Future[Tensor](devices=[g.device] if g.is_cuda else None)
    future.set_result(state.mean(g, bucket.index()))
    state.steps += bucket.is_last()
    return future
