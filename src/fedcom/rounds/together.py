"""Which methods, links, optimisers and adapters go together: what is refused, and what is usual."""

import warnings

import torch

from fedcom.algorithms import ALGORITHMS, Algorithm
from fedcom.codecs import Codec
from fedcom.errors import ConfigError
from fedcom.rounds import loops
from fedcom.traffic.links import DefaultUplink, DownlinkMemory, Links, Memory


def memory_of(algorithm: Algorithm, links: Links) -> Memory:
    """What clients do with what their codec drops: as the links say, else as the method does by default."""
    return links.uplink_memory or DefaultUplink.of(algorithm).memory


def default_downlink_memory(algorithm: Algorithm, downlink: Codec) -> DownlinkMemory:
    """What the server does with what its codec drops, unless the links say.

    Nothing if the method makes up for it, or if the server has momentum and the codec is unbiased: momentum
    averages its noise away, and would multiply what a memory sends late.
    """
    averaged = bool(algorithm.server.kept) and downlink.unbiased
    return "none" if algorithm.corrects_downlink or averaged else "error-feedback"


def fewest(algorithm: Algorithm) -> int:
    """How many clients a round needs: tracking learns from the differences between them."""
    return 2 if algorithm.needs_mean else 1


def check(algorithm: Algorithm, links: Links, clients: int, sampled: int) -> None:
    """Refuse an algorithm, codecs and numbers of clients that do not go together.

    Args:
        clients: m, how many there are.
        sampled: n, how many take part in a round.
    """
    a, m, n, memory = algorithm, clients, sampled, memory_of(algorithm, links)
    if a.compresses is not None and not links.uplink.lossless:
        raise takes_no_codec(a, f"got uplink {links.uplink.name!r}")
    if a.compresses is not None and memory != "none":
        raise takes_no_codec(a, f"got uplink.memory {memory!r}")
    if a.remembers and memory != "none":
        raise ConfigError(
            f"{a.name} itself keeps what the codec dropped, and would send it twice with another memory; "
            f"leave uplink.memory out; got {memory!r}"
        )
    check_local(a)
    if not (a.server.plain or names(a, "server_step", "server_direction")):
        raise ConfigError(
            f"{a.name} has a server_step of its own and does not say along which direction it steps, so "
            f"server {a.server.name} cannot take its place; give it a server_direction, or use server sgd"
        )
    if n < fewest(a):
        raise ConfigError(
            f"{a.name} tracks differences between clients and needs two per round; got {n} of {m}"
        )
    if not (links.downlink.lossless or a.needs_mean or a.option == "I" or memory == "paper"):
        raise ConfigError(
            f"a downlink codec compresses the mean, but {a.name} sends the model down, which is never "
            "compressed; set algorithm.option=I to send the mean instead"
        )
    usual = default_downlink_memory(a, links.downlink)
    if not links.downlink.lossless and a.server.kept and links.downlink_memory == "error-feedback" != usual:
        warnings.warn(
            f"server {a.server.name} and downlink.memory=error-feedback may diverge together: momentum "
            "multiplies what is sent late; leave downlink.memory out",
            stacklevel=2,
        )
    if not links.downlink.lossless and links.downlink_memory == "none" != usual:
        warnings.warn(
            f"downlink {links.downlink.name!r} without memory loses what it drops, which leaves an error "
            "floor; downlink.memory=error-feedback keeps it",
            stacklevel=2,
        )
    if links.budgets is not None and len(links.budgets) != m:
        raise ConfigError(
            f"budgets and bandwidths need one number per client ({m}); got {len(links.budgets)}"
        )
    if not isinstance(a.tau, int) and len(a.tau) != m:
        raise ConfigError(f"tau needs one number, or one per client ({m}); got {len(a.tau)}")


def check_products(algorithm: Algorithm, remembers: bool, restarts: bool) -> None:
    """Refuse a method whose adapters cannot be averaged as products."""
    a = algorithm
    if "D" not in a.uploads:
        raise ConfigError(
            f"{a.name} does not send how far clients went, so adapters fedex and flora have nothing to "
            "average; use fedavg or fedcom"
        )
    keeps = a.needs_mean or a.tracks or remembers or a.local.keep or bool(a.server.init(torch.zeros(1)))
    if restarts and keeps:
        raise ConfigError(
            f"with adapter flora adapters start anew after each round, and {a.name} keeps something of them "
            "from round to round; use fedavg or fedcom with server sgd and without a memory, or adapter fedex"
        )


def check_ranks(algorithm: Algorithm, links: Links, remembers: bool) -> None:
    """Refuse what does not go with adapters whose ranks differ by client."""
    a = algorithm
    if a.uploads != ("D",) or a.tracks or remembers or len(a.init_client(torch.zeros(1))):
        raise ConfigError(
            f"with adapter het clients send parts of the adapters, and {a.name} as set keeps something of "
            "whole ones, or sends something else; use fedavg or fedcom without a memory"
        )
    if links.budgets is not None or links.correlated:
        raise ConfigError(
            "with adapter het messages differ in length by rank; leave uplink.budgets, bandwidths and "
            "correlated out"
        )


def check_local(algorithm: Algorithm) -> None:
    """Refuse a local optimiser that a method cannot have."""
    a, local = algorithm, algorithm.local
    if local.plain:
        return
    if not names(a, "local_step", "gradient"):
        raise ConfigError(
            f"{a.name} has a local_step of its own and does not say along which gradient it goes, so local "
            f"{local.name} cannot take its place; give it a gradient, or use local sgd"
        )
    own_lines = [line for line in ("gradient", "direction") if not loops.is_plain(a, line)]
    if local.correction == "outside" and own_lines:
        raise ConfigError(
            f"local.correction=outside adds what `corrections` names, and {a.name} has a {own_lines[0]} "
            "of its own; use local.correction=inside"
        )
    corrects = a.tracks or not loops.is_plain(a, "corrections")
    if local.correction == "inside" and corrects and not local.linear:
        raise ConfigError(
            f"{a.name} learns gradients from how far clients went, and steps of local {local.name} are no "
            "sums of gradients; use local sgd or momentum, local.correction=outside, or a method that does "
            "not track, such as fedcom"
        )


def names(algorithm: Algorithm, step: str, part: str) -> bool:
    """Whether the class that last changed a step of a method, or a later one, names that part of it."""
    kinds = [next(kind for kind in type(algorithm).__mro__ if name in vars(kind)) for name in (step, part)]
    return issubclass(kinds[1], kinds[0])


def takes_no_codec(algorithm: Algorithm, got: str) -> ConfigError:
    """The error for a codec on a method without one.

    It names the method that takes one, or, to the author of a class of their own, the class to derive from.
    """
    kind = type(algorithm)
    base = next(one for one in kind.__mro__ if vars(one).get("compresses"))
    if base is not kind and ALGORITHMS.get(kind.name) is not kind:
        twin = ALGORITHMS[str(algorithm.compresses)].__name__
        return ConfigError(
            f"{kind.__name__} derives from {base.__name__}, which sends its updates uncompressed; derive it "
            f"from {twin}, which takes a codec, or set compresses = None in it; {got}"
        )
    return ConfigError(
        f"{algorithm.name} sends its updates uncompressed; its twin with a codec is {algorithm.compresses} "
        f"(algorithm.name={algorithm.compresses}); {got}"
    )
