"""The arguments of a run as plain data, which a checkpoint keeps, and back."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from fedcom.algorithms import ALGORITHMS
from fedcom.codecs import CODECS
from fedcom.engines.state.stores import Storage
from fedcom.errors import ConfigError
from fedcom.plain import build, pick, plain
from fedcom.traffic.links import Links
from fedcom.traffic.network import Network

_MADE = ("algorithm", "links", "storage", "network")  # the arguments that are objects


def described(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A Simulation's arguments as plain data, without its task and what `load` is given anew."""
    links, network, storage = arguments["links"], arguments["network"], arguments["storage"]
    codecs = {way: plain(getattr(links, way), CODECS) for way in ("uplink", "downlink")}
    return {
        "algorithm": plain(arguments["algorithm"], ALGORITHMS),
        "codecs": codecs,
        "links": {f.name: getattr(links, f.name) for f in fields(links) if f.name not in codecs},
        "storage": {**asdict(storage), "folder": storage.folder and str(storage.folder)},
        "network": network and asdict(network),
        "settings": {key: value for key, value in arguments.items() if key not in _MADE},
    }


def refuse_earlier(kept: Mapping[str, Any], links: Links) -> None:
    """Raise ConfigError if a checkpoint's codec lacks a setting: its messages were made in another way.

    Args:
        kept: what `described` wrote, perhaps in an earlier version of fedcom.
        links: of the run that is to go on.
    """
    for way, before in kept["codecs"].items():
        now = plain(getattr(links, way), CODECS)
        missing = sorted(now.keys() - before.keys())
        if missing and now["name"] == before["name"]:
            raise ConfigError(
                f"the checkpoint is of an earlier version of fedcom, whose {before['name']} had no "
                f"{', '.join(missing)} and made other messages: begin anew, or go on with that version"
            )


def arguments_in(kept: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that `described` wrote; those that are given take their place."""
    made: dict[str, Any] = {
        "storage": build(Storage, kept["storage"], "storage"),
        "network": kept["network"] and build(Network, kept["network"], "network"),
    }
    if "algorithm" not in given:  # its class may be the user's own and not be known here; so may codecs'
        made["algorithm"] = pick(ALGORITHMS, kept["algorithm"], "algorithm")
    if "links" not in given:
        codecs = {way: pick(CODECS, codec, way) for way, codec in kept["codecs"].items()}
        made["links"] = build(Links, {**kept["links"], **codecs}, "links")
    return {**kept["settings"], **made, **given}
