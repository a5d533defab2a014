"""The frozen parameters of a module by checksums, to tell one base from another."""

import zlib

import torch
from torch import Tensor, nn

from fedcom.tasks.adapters import PRODUCTS


def checksums(module: nn.Module) -> dict[str, int]:
    """The CRC-32 of each frozen parameter, by name.

    Weights that adapters fedex and flora change are left out: the run itself keeps them. Real values count in
    float32, so those of a file have the same checksum in any run.dtype.
    """
    layers, *_ = getattr(module, PRODUCTS, ((),))
    changed = {f"{layer}.weight" for layer in layers}
    known: dict[int, int] = {}
    found = {}
    for name, p in module.named_parameters(remove_duplicate=False):
        if not p.requires_grad and name not in changed:
            if id(p) not in known:
                known[id(p)] = _crc(p.detach())
            found[name] = known[id(p)]
    return found


def _crc(x: Tensor) -> int:
    """The CRC-32 of a tensor's shape and values."""
    head = zlib.crc32(repr(tuple(x.shape)).encode())
    if not x.numel():  # which torch cannot always view as bytes
        return head
    values = (x.float() if x.is_floating_point() else x).cpu().contiguous().flatten()
    return zlib.crc32(values.view(torch.uint8).numpy().data, head)
