"""Codecs, one file for each; this is the one place that knows them by name."""

from fedcom.codecs.auto import Auto
from fedcom.codecs.base import Codec
from fedcom.codecs.countsketch import CountSketch
from fedcom.codecs.dithered import Dithered
from fedcom.codecs.identity import Identity
from fedcom.codecs.integers import Int
from fedcom.codecs.lowrank import LowRank
from fedcom.codecs.natural import Natural
from fedcom.codecs.powersgd import PowerSgd
from fedcom.codecs.qsgd import Qsgd
from fedcom.codecs.randk import RandK
from fedcom.codecs.rotated import Rotated
from fedcom.codecs.sign import Sign
from fedcom.codecs.terngrad import TernGrad
from fedcom.codecs.topk import TopK

_CODED = (Dithered, Rotated, LowRank, Auto)
_ALL = (Identity, Int, Qsgd, Natural, TopK, RandK, *_CODED, Sign, TernGrad, PowerSgd, CountSketch)
CODECS: dict[str, type[Codec]] = {c.name: c for c in _ALL}

__all__ = [
    "CODECS",
    "Auto",
    "Codec",
    "CountSketch",
    "Dithered",
    "Identity",
    "Int",
    "LowRank",
    "Natural",
    "PowerSgd",
    "Qsgd",
    "RandK",
    "Rotated",
    "Sign",
    "TernGrad",
    "TopK",
]
