"""Labels of a study's points, such as "fedcomgate rotated ¼", and the settings they stand for."""

from typing import Any

from fedcom.config import Table

CODECS: dict[str, dict[str, Any]] = {
    "int 8": {"name": "int", "bits": 8},
    "int 4": {"name": "int", "bits": 4},
    "int 2": {"name": "int", "bits": 2},
    "rotated 1": {"name": "rotated", "bits": 1.0},
    "rotated ½": {"name": "rotated", "bits": 0.5},
    "rotated 0.35": {"name": "rotated", "bits": 0.35},
    "rotated ¼": {"name": "rotated", "bits": 0.25},
    "rotated 0.1": {"name": "rotated", "bits": 0.1},
    "dithered 1": {"name": "dithered", "bits": 1.0},
    "auto ¼": {"name": "auto", "bits": 0.25},
    "lowrank ¼": {"name": "lowrank", "bits": 0.25},
    "peaks 0.03": {"name": "peaks", "bits": 0.03},
    "peaks 0.01": {"name": "peaks", "bits": 0.01},
    "peaks 0.005": {"name": "peaks", "bits": 0.005},
    "topk 10%": {"name": "topk", "ratio": 0.1},
    "topk 1%": {"name": "topk", "ratio": 0.01},
    "topk 10% with memory": {"name": "topk", "ratio": 0.1, "memory": "error-feedback"},
    "randk 10%": {"name": "randk", "ratio": 0.1},
    "randk 10% with memory": {"name": "randk", "ratio": 0.1, "memory": "error-feedback"},
    "qsgd 7": {"name": "qsgd", "levels": 7},
    "natural": {"name": "natural"},
    "terngrad": {"name": "terngrad"},
    "sign with memory": {"name": "sign", "memory": "error-feedback"},
}


def settings(label: str) -> Table:
    """The settings of a point from its label: a method, then a codec up, then a codec down.

    "exact peaks 0.03, down rotated 0.35" is fedcomgate-exact with those codecs.
    """
    first, _, down = label.partition(", down ")
    method, _, up = first.partition(" ")
    own: Table = {"name": "fedcomgate-exact" if method == "exact" else method}
    own |= {"uplink": CODECS[up]} if up else {}
    return own | ({"downlink": CODECS[down], "option": "I"} if down else {})  # I: only the mean goes down
