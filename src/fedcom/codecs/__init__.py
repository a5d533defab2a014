"""Codecs: one file each; this is the one place that knows them by name."""

from fedcom.codecs.base import Codec
from fedcom.codecs.identity import Identity
from fedcom.codecs.integers import Int
from fedcom.codecs.natural import Natural
from fedcom.codecs.qsgd import Qsgd
from fedcom.codecs.randk import RandK
from fedcom.codecs.topk import TopK

CODECS: dict[str, type[Codec]] = {c.name: c for c in (Identity, Int, Qsgd, Natural, TopK, RandK)}

__all__ = ["CODECS", "Codec", "Identity", "Int", "Natural", "Qsgd", "RandK", "TopK"]
