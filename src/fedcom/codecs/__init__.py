"""Codecs, one file for each; this is the one place that knows them by name."""

from typing import Any

from fedcom.codecs.auto import Auto
from fedcom.codecs.base import OTHERS_IDS, Codec
from fedcom.codecs.countsketch import CountSketch
from fedcom.codecs.dithered import Dithered
from fedcom.codecs.identity import Identity
from fedcom.codecs.integers import Int
from fedcom.codecs.lowrank import LowRank
from fedcom.codecs.natural import Natural
from fedcom.codecs.peaks import Peaks
from fedcom.codecs.powersgd import PowerSgd
from fedcom.codecs.qsgd import Qsgd
from fedcom.codecs.randk import RandK
from fedcom.codecs.rotated import Rotated
from fedcom.codecs.sign import Sign
from fedcom.codecs.terngrad import TernGrad
from fedcom.codecs.topk import TopK
from fedcom.errors import ConfigError
from fedcom.registry import Registry, derived_from

_CODED = (Dithered, Rotated, LowRank, Auto, Peaks)
_ALL = (Identity, Int, Qsgd, Natural, TopK, RandK, *_CODED, Sign, TernGrad, PowerSgd, CountSketch)


def _check(thing: Any) -> None:
    """Refuse what is not a codec of somebody else's, complete and with an id of its own."""
    derived_from(Codec)(thing)
    number = getattr(thing, "id", None)
    if not isinstance(number, int) or number not in OTHERS_IDS:
        least, most = OTHERS_IDS[0], OTHERS_IDS[-1]
        raise ConfigError(
            f"its id is {number!r}; below {least} they are fedcom's own: choose one from {least} to {most}"
        )


CODECS: Registry[type[Codec]] = Registry(
    "codec", "fedcom.codecs", {c.name: c for c in _ALL}, _check, unique=("id",)
)


def codec_of(given: Any) -> Any:
    """The codec that a name or a class stands for; anything else as it is."""
    made = CODECS[given] if isinstance(given, str) else given
    if not (isinstance(made, type) and issubclass(made, Codec)):
        return made
    CODECS.vet(made)
    return made()


def vet(**used: Codec) -> None:
    """Refuse what is no codec or could not be registered, and two codecs of one id.

    Args:
        used: the codecs that are used beside each other, by what they are for.
    """
    for what, codec in used.items():
        if not isinstance(codec, Codec):
            raise ConfigError(f"{what} must be a Codec; got {codec!r}")
        CODECS.vet(type(codec))
    kinds = {type(codec) for codec in used.values()}
    if len({kind.id for kind in kinds}) < len(kinds):
        raise ConfigError(
            f"{' and '.join(used)} have codecs with one id, {min(kind.id for kind in kinds)}; change one"
        )


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
    "Peaks",
    "PowerSgd",
    "Qsgd",
    "RandK",
    "Rotated",
    "Sign",
    "TernGrad",
    "TopK",
    "codec_of",
    "vet",
]
