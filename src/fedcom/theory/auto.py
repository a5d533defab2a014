"""Step sizes for a task from its sharpness: what `eta = "auto"` and `gamma = "auto"` mean.

On a quadratic with curvature h, tau local steps of size eta leave (1 - eta h)^tau of a client's gradient. So
two numbers say whether a round is stable. `echo` is what tracking's error is multiplied by in every round: it
is below 1 in size only if eta h < 2. `server_step` is how far the server goes, relative to the minimum along
that curvature: above 2 the next round is worse. With momentum at the server that limit is higher by its
`reach`; `farther` uses a part of this. The constants below were found by trial on top of that
(docs/decisions/auto-rates.md).
"""

import math
from dataclasses import dataclass, replace
from typing import Any

from fedcom.algorithms import Algorithm
from fedcom.algorithms.optimisers import PLAIN as PLAIN_SERVER
from fedcom.algorithms.optimisers import ServerOptimiser
from fedcom.errors import ConfigError
from fedcom.rounds.cohort import Cohort
from fedcom.rounds.together import memory_of
from fedcom.tasks.task import Task
from fedcom.theory.probes import Prober, Sharpness
from fedcom.traffic.links import Links

CLIENTS, SAMPLES, PRODUCTS = 20, 64, 12  # of the probe that auto makes
TRACKED = 0.5  # eta times the sharpest client's sharpness where clients track: a quarter of what is stable
SLOWLY = 1.0  # the same where momentum slows tracking down
PLAIN = 2.0  # the same where they do not track
CONVEX = 1.0  # the same where, besides, the loss is convex: nothing there leads away from a sharp place
FAR, CONVEX_FAR = 2.0, 1.0  # the most that `server_step` may be: in general, and where the loss is convex
MOST, LEAST = 4.0, 0.25  # the bounds of gamma; momentum raises the first
NONE = 1e-12  # a curvature up to here is none
FLAT = 0.01  # a loss counts as convex if no curvature is below minus this share of the largest


def used_up(x: float, tau: float) -> float:
    """How much of a client's gradient tau local steps use up, 1 - (1 - eta h)^tau, for x = eta h.

    Args:
        x: from 0 on; above 1 steps overshoot, and it counts as 1.
    """
    return float(1 - (1 - min(x, 1.0)) ** tau)


def _reaching(way: float, tau: float) -> float:
    """eta h at which tau local steps use up this share of a gradient; infinite for all of it."""
    return math.inf if way >= 1 else 1 - (1 - way) ** (1 / tau)


def echo(x: float, tau: int) -> float:
    """What tracking's error is multiplied by in a round, at x = eta h.

    A client whose delta is off by d takes tau steps on it and sends D = d (1 - (1 - x)^tau)/x; delta moves by
    D/tau. It dies out if it is between -1 and 1: for x in (0, 2), and for hardly any other x.
    """
    return 1 - (1 - (1 - x) ** tau) / (x * tau)


def server_step(x: float, tau: float, gamma: float, noise: float = 0.0) -> float:
    """How far the server goes along a curvature h, over the way to the minimum; stable below 2.

    Args:
        x: eta h.
        noise: q/n, the codec's on the mean of n clients.
    """
    return gamma * used_up(x, tau) * (1 + noise)


def farther(server: ServerOptimiser, share: float = 1.0, averages: bool = False) -> float:
    """How many times as far as SGD's a step goes: the root of what is stable; 1 for SGD.

    The fewer clients take part, the less do the directions of following rounds agree: share^2 of the clients
    are in both of two rounds. Two running means, one after the other, lag too far behind for steps that long.

    Args:
        share: of the clients in a round.
        averages: whether the method's direction is a running mean already.
    """
    if averages:
        return 1 - server.kept
    return math.sqrt(1 + (server.reach - 1) * share**2)


@dataclass(frozen=True)
class Rates:
    """Step sizes and where they come from.

    Args:
        why: in a sentence.
    """

    eta: float
    gamma: float
    why: str


def rates(
    sharpness: Sharpness,
    tau: float,
    *,
    tracks: bool,
    noise: float = 0.0,
    eta: float | None = None,
    gamma: float | None = None,
    slowly: bool = False,
    server: ServerOptimiser = PLAIN_SERVER,
    share: float = 1.0,
    averages: bool = False,
) -> Rates:
    """Step sizes for a task.

    Args:
        tau: local steps.
        tracks: whether clients correct their steps by what they kept of earlier rounds.
        noise: q/n, the codec's on the mean of n clients.
        eta: if it is given.
        gamma: if it is given.
        slowly: whether tracking is slower than the server's momentum.
        server: how the server steps; one that does not use gamma is bounded by none.
        share: of the clients in a round.
        averages: whether the method's direction is a running mean over rounds already.
    """
    own, mean = max(sharpness.clients.value, NONE), max(sharpness.mean.value, NONE)
    if not (math.isfinite(own) and math.isfinite(mean)):
        raise ConfigError(
            "auto rates need a finite loss at the first model; scale the data, or give eta and gamma"
        )
    if eta is None and own == NONE:
        raise ConfigError(
            f"eta=auto is set from the curvature of the loss, which is {sharpness.clients.value:.2g} at the "
            "first model: absolute errors have none, and tiny features next to none; scale features that are "
            "tiny, or give eta, such as 0.05"
        )
    convex = sharpness.least.value >= -FLAT * mean
    near = (SLOWLY if slowly else TRACKED) if tracks else CONVEX if convex else PLAIN
    times, idle = farther(server, share, averages), not server.uses_gamma
    far = times * (CONVEX_FAR if convex else FAR) / (1 + noise)
    bound = None if idle else gamma
    if eta is None and tau == 1:  # there is only the server's step, eta gamma, and no drift
        eta = 1 / ((1 + noise) * mean) if bound is None else times / ((1 + noise) * mean * bound)
    elif eta is None:
        eta = min(near / own, math.inf if bound is None else _reaching(far / bound, tau) / mean)
    limit = (times / (1 + noise) if tau == 1 else far) / used_up(eta * mean, tau)
    if gamma is None:
        gamma = 1.0 if idle else min(times * MOST, max(LEAST, limit))
    why = (
        f"eta {_short(eta)}, gamma {_short(gamma)}: the sharpest client has {own:.3g}, the mean "
        f"{mean:.3g}{' (convex)' * convex}, q/n is {noise:.2g}"
        f"{f', momentum takes the server {times:.2g} times as far' * (times != 1)}"
    )
    return Rates(_short(eta), _short(gamma), why)


def settle(
    task: Task, algorithm: Algorithm, links: Links, participation: float = 1.0, seed: int = 0
) -> tuple[Algorithm, str | None]:
    """The algorithm with numbers in the place of "auto", and why; itself if it has them already.

    Args:
        participation: the share of clients that takes part in each round.
    """
    given: dict[str, Any] = {"eta": algorithm.eta, "gamma": algorithm.gamma}
    autos = [key for key, value in given.items() if value == "auto"]
    if not autos:
        return algorithm, None
    if task.held is not None:
        raise ConfigError(
            f"{algorithm.name} has {' and '.join(autos)}=auto, which is set from the data of all clients, "
            "and they are not here; give numbers, such as `fedcom tune` or `fedcom plan` finds on data like "
            "theirs"
        )
    local, cohort = algorithm.local, Cohort.of(algorithm, task.sizes.cpu(), participation)
    if not local.linear:
        asked = " and ".join(f"{key}=auto" for key in autos)
        raise ConfigError(
            f"{asked} needs gradients, and steps of local {local.name} have a length of their own; give "
            "numbers, such as eta=0.001 and gamma=1"
        )
    weight = local.reach(cohort.tau) / cohort.tau  # of a gradient in the local steps, on average
    given |= {} if algorithm.eta == "auto" else {"eta": algorithm.eta * weight}
    prober = Prober(task, algorithm, clients=CLIENTS, samples=SAMPLES, seed=seed)
    key = ("sharpness", algorithm.weights, algorithm.weight_decay, seed)
    if key not in task.notes:
        task.notes[key] = prober.sharpness(PRODUCTS)
    sharpness: Sharpness = task.notes[key]
    remembered = memory_of(algorithm, links) != "none"  # what the codec drops is sent later: no noise
    q = 0.0 if remembered else _q(task, prober, links, 0.5 / max(sharpness.clients.value, 1e-12))
    given |= dict.fromkeys(autos)  # None: to be found
    found = rates_of(algorithm, sharpness, cohort, q, **given)
    if weight == 1:
        return replace(algorithm, eta=found.eta, gamma=found.gamma), found.why
    eta = _short(found.eta / weight) if "eta" in autos else algorithm.eta
    why = f"{found.why}; eta of the steps is {eta}, since each gradient counts {weight:.3g} times in them"
    return replace(algorithm, eta=eta, gamma=found.gamma), why


def rates_of(
    algorithm: Algorithm,
    sharpness: Sharpness,
    cohort: Cohort,
    q: float,
    eta: float | None = None,
    gamma: float | None = None,
) -> Rates:
    """Step sizes for a method on a task; its own rates do not count.

    Args:
        q: the codec's.
        eta: if it is given.
        gamma: if it is given.
    """
    return rates(
        sharpness,
        cohort.tau,
        tracks=algorithm.tracks,
        noise=q / cohort.sampled,
        eta=eta,
        gamma=gamma,
        slowly=tracks_slowly(algorithm),
        server=algorithm.server,
        share=cohort.sampled / cohort.clients,
        averages=algorithm.averages,
    )


def tracks_slowly(algorithm: Algorithm) -> bool:
    """Whether corrections move more slowly than the server's momentum; see `fastest_tracking`."""
    damped = algorithm.smoothing() == "auto" and not algorithm.averages
    return algorithm.tracks and algorithm.server.kept > 0 and damped


def _q(task: Task, prober: Prober, links: Links, eta: float) -> float:
    """The codec's q on what clients would send; 0 if it is lossless or biased."""
    if links.uplink.lossless or not links.uplink.unbiased:
        return 0.0
    own = prober.algorithm
    key = ("q", repr(links), eta, own.batch, own.weight_decay, int(prober.draw.key))
    if key not in task.notes:
        task.notes[key] = prober.codec(links, prober.updates(eta, 2), draws=2)[0].value
    return float(task.notes[key])


def _short(x: float) -> float:
    return float(f"{x:.3g}")
