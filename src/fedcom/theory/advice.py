"""What the constants of a task mean for eta, gamma, tau and the codec, in words."""

import math
from dataclasses import replace

from fedcom.algorithms import Algorithm
from fedcom.rounds.cohort import Cohort
from fedcom.theory.auto import Rates, rates_of, server_step, tracks_slowly, used_up
from fedcom.theory.probes import Estimate, Probe

_QUIET, _LOUD = 0.1, 1.0  # q/n: below the first noise hardly matters, above the second it exceeds the mean


def found(probe: Probe, clients: int) -> dict[str, tuple[Estimate, str]]:
    """The constants by name, each with what it is."""
    s = probe.sharpness
    all_of = "all" if probe.probed == clients else str(probe.probed)
    return {
        "L, mean": (s.mean, "sharpness of the mean loss: the largest eigenvalue of its Hessian"),
        "L, clients": (s.clients, f"that of the sharpest of {all_of} clients"),
        "mu": (s.least, "the least eigenvalue for the mean; below 0: not convex here"),
        "sigma": (probe.sigma, "noise of a client's minibatch gradient"),
        "|grad f|": (Estimate(probe.gradient), "size of the mean gradient"),
        "dissimilarity": (probe.dissimilarity, "root mean square of |grad f_j - grad f|"),
        "q": (probe.q, "the codec's error on an update, |Q(x) - x|^2/|x|^2"),
        "G_q": (probe.G_q, "of the updates, over the square of their mean (Assumption 5)"),
    }


def advise(probe: Probe, algorithm: Algorithm, cohort: Cohort) -> tuple[Rates | None, list[str]]:
    """The step sizes for a method, and what follows from the constants, a sentence each.

    There are no step sizes where clients' steps have a length of their own.
    """
    s, tau, sampled = probe.sharpness, cohort.tau, cohort.sampled
    noise = probe.q.value / sampled
    best = rates_of(algorithm, s, cohort, probe.q.value, gamma=algorithm.fixed.get("gamma"))
    own, mean, local = s.clients.value, s.mean.value, algorithm.local
    weight = local.reach(tau) / tau if local.linear else 1.0  # of a gradient in the local steps, on average
    mine = replace(best, eta=float(f"{best.eta / weight:.3g}"))  # `best` is for steps of weight 1
    lines = [f"auto would take eta = {mine.eta:g} and gamma = {mine.gamma:g}."]
    if not local.linear:
        lines = [
            f"auto has no rates for local {local.name}, whose steps have a length of their own; what follows "
            f"is for steps along gradients, at eta = {best.eta:g} and gamma = {best.gamma:g}."
        ]
    part = "half" if tracks_slowly(algorithm) else "a quarter"
    if algorithm.tracks and own > 0:
        lines.append(
            f"Tracking feeds on itself where eta exceeds 2/L of a client: above {2 / own / weight:.3g} here. "
            f"Clients get sharper in training, so {part} of that is a safe start."
        )
    if mean > 0 and algorithm.server.uses_gamma:
        step, limit = server_step(best.eta * mean, tau, best.gamma, noise), 2 * algorithm.server.reach
        lines.append(
            f"At these rates a round goes {step:.2g} times the way to the minimum along the sharpest "
            f"direction of the mean loss; where a loss is convex, {limit:.3g} is the limit."
        )
    if mean > 0:
        x = min(best.eta * mean, 0.999)
        useful = max(1, round(math.log(0.1) / math.log(1 - x))) if x > 0 else 1
        lines.append(
            f"{tau:g} local steps use up {100 * used_up(x, tau):.0f}% of the gradient along that direction. "
            f"After {useful} it is 90%; more steps serve flatter directions only, at the price of drift."
        )
    lines.append(_codec(probe.q.value, noise, sampled))
    if probe.gradient > 0:
        ratio = probe.dissimilarity.value / probe.gradient
        apart = "tracking has much to correct" if ratio > 1 else "tracking has little to gain"
        lines.append(f"Clients' gradients differ by {ratio:.2g} times the mean gradient: {apart}.")
    return mine if local.linear else None, lines


def _codec(q: float, noise: float, sampled: int) -> str:
    if q == 0:
        return "The codec is lossless."
    cost = (
        "it hardly slows anything down"
        if noise < _QUIET
        else "a finer codec or more clients per round would pay"
        if noise > _LOUD
        else "it costs some rounds"
    )
    return (
        f"The codec's noise is q = {q:.3g} per client, and q/n = {noise:.2g} on the mean of {sampled}: "
        f"{cost}. Damped tracking moves by 1/(1 + q) = {1 / (1 + q):.2g}."
    )
