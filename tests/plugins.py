"""Other people's code, for tests: one of each kind that a registry takes, and a package of any of them."""

from pathlib import Path

CODEC = """
from dataclasses import dataclass
from typing import ClassVar
from fedcom.codecs.wire import Field
from fedcom import Codec

@dataclass(frozen=True)
class Half(Codec):
    '''Every coordinate as a float16.'''
    name: ClassVar[str] = "half"
    id: ClassVar[int] = 130
    unbiased = False
    def variance(self, layout): return 1e-6
    def fields(self, layout): return [Field("values", layout.size, 16, floating=True)]
    def compress(self, x, layout, draw): return {"values": x.half()}
    def expand(self, parts, layout, draw): return parts["values"].to(layout.dtype)
"""
METHOD = """
from dataclasses import dataclass
from typing import ClassVar
from fedcom import FedCOM

@dataclass(frozen=True, kw_only=True)
class Fast(FedCOM):
    '''FedCOM with twice the rate.'''
    boost: float = 2.0
    name: ClassVar[str] = "fast"
    def local_step(self, w, client, down, oracle, rnd):
        return w - self.boost * rnd.eta * oracle.batch(w)
"""
MODEL = """
from dataclasses import dataclass
from typing import ClassVar
from torch import nn
from fedcom.tasks.models import Model

@dataclass(frozen=True)
class Tiny(Model):
    '''One layer of tanh.'''
    width: int = 4
    name: ClassVar[str] = "tiny"
    def module(self, shape, classes):
        return nn.Sequential(nn.Linear(2, self.width), nn.Tanh(), nn.Linear(self.width, classes))
"""
DATA = """
import torch
from fedcom import Draw, from_arrays

def clouds(request):
    '''Two clouds.'''
    draw = Draw.seeded(request.seed)
    y = draw.fold("y").integers(2, 60)
    x = draw.fold("x").normal(120).reshape(60, 2) + 3 * y[:, None]
    return from_arrays(x, y, x[:20], y[:20])  # its name stays "arrays"

def stripes(request):
    '''Every so-manieth sample.'''
    return [torch.arange(client, len(request.y), request.clients) for client in range(request.clients)]
"""
PARTS = CODEC + METHOD + MODEL + DATA


def offer(site: Path, package: str, code: str, **groups: str) -> None:
    """Lay a package out as pip does: a module of the package's name, and its metadata.

    groups: lines of entry points, such as codecs="half = extras:Half".
    """
    (site / f"{package}.py").write_text(code)
    folder = site / f"{package}-1.2.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
    points = "".join(f"[fedcom.{group}]\n{lines}\n" for group, lines in groups.items())
    (folder / "entry_points.txt").write_text(points)
