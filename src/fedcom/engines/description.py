"""The arguments of a run as plain data, which a checkpoint keeps, and back."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from fedcom.algorithms import ALGORITHMS
from fedcom.codecs import CODECS
from fedcom.engines.state.stores import Storage
from fedcom.plain import build, pick, plain
from fedcom.traffic.links import Links
from fedcom.traffic.network import Network

_NUMBERS = ("rounds", "participation", "seed", "eval_every", "chunk", "engine", "tf32")


def described(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A Simulation's arguments, without its task and what is told anew each time, as plain data."""
    links, network, storage = arguments["links"], arguments["network"], arguments["storage"]
    codecs = {way: plain(getattr(links, way), CODECS) for way in ("uplink", "downlink")}
    return {
        "algorithm": plain(arguments["algorithm"], ALGORITHMS),
        "codecs": codecs,
        "links": {f.name: getattr(links, f.name) for f in fields(links) if f.name not in codecs},
        "storage": {**asdict(storage), "folder": storage.folder and str(storage.folder)},
        "network": network and asdict(network),
        "settings": {key: arguments[key] for key in _NUMBERS},
    }


def arguments_in(kept: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that were described, with some that are given in their place."""
    made: dict[str, Any] = {
        "storage": build(Storage, kept["storage"], "storage"),
        "network": kept["network"] and build(Network, kept["network"], "network"),
    }
    if "algorithm" not in given:  # whose class may be unknown here, as those of codecs
        made["algorithm"] = pick(ALGORITHMS, kept["algorithm"], "algorithm")
    if "links" not in given:
        codecs = {way: pick(CODECS, codec, way) for way, codec in kept["codecs"].items()}
        made["links"] = build(Links, {**kept["links"], **codecs}, "links")
    return {**kept["settings"], **made, **given}
