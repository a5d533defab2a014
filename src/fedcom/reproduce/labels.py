"""Labels of a study's points, such as "fedcomgate rotated ¼", and the settings they stand for."""

from fedcom.config import Table
from fedcom.reproduce.panels import package_data


def settings(label: str) -> Table:
    """The settings of a point from its label: a method, then a codec up, then a codec down.

    "exact peaks 0.03, down rotated 0.35" is fedcomgate-exact with those codecs.
    """
    first, _, down = label.partition(", down ")
    method, _, up = first.partition(" ")
    own: Table = {"name": "fedcomgate-exact" if method == "exact" else method}
    codecs = package_data("studies.toml")["codecs"]
    own |= {"uplink": codecs[up]} if up else {}
    return own | ({"downlink": codecs[down], "option": "I"} if down else {})  # I: only the mean goes down
