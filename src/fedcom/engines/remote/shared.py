"""What coordinator and participants each compute for themselves: the public facts of rounds and clients."""

import zlib
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from fedcom.algorithms.base import Round
from fedcom.draws import Draw, Strata
from fedcom.rounds.round import Senders, facts
from fedcom.rounds.state import RunState


def agreement(run: RunState, frozen: Mapping[str, int]) -> int:
    """A 32-bit fingerprint of all that both sides must have set alike.

    Args:
        frozen: the checksums of the model's frozen parameters, which are never sent.
    """
    rules, cohort = run.rules, run.cohort
    links = replace(rules.links, encode=True)
    parts = (rules.algorithm, links, rules.layout.fingerprint, cohort.clients, cohort.sampled, cohort.tau)
    scheduled = rules.algorithm.eta_schedule or rules.algorithm.gamma_schedule  # by the number of rounds
    more = ((run.rounds,) if scheduled else ()) + ((rules.turns,) if rules.turns else ())
    ranks = (rules.ranks.ranks,) if rules.ranks else ()
    base = (sorted(frozen.items()),) if frozen else ()
    return zlib.crc32(repr((*parts, rules.seed, int(run.draw.key), *more, *ranks, *base)).encode())


def round_facts(run: RunState, round_index: int, share: float) -> Round:
    """The facts of a round, in the types that the local engine has them in."""
    inputs = run.inputs(round_index)
    eta, weight, gamma, number = (
        torch.tensor(x, dtype=torch.float64) for x in (inputs.eta, share, inputs.gamma, round_index)
    )
    when = {"gamma": gamma, "number": number, "rounds": run.rounds}
    return facts(run.rules, eta, run.cohort.tau, weight, inputs.coin[0], **when)


def sender(run: RunState, round_index: int, client: int, share: float) -> Senders:
    """What is known to all of a client that takes part in a round."""
    numbers, key = torch.tensor([client]), run.draw.fold(round_index)
    steps = run.cohort.steps.of(numbers)
    draw = Draw(key.fold(numbers).key, _strata(run, round_index, numbers))
    return Senders(numbers, steps, round_facts(run, round_index, share), draw)


def _strata(run: RunState, round_index: int, client: Tensor) -> Strata | None:
    """How the clients of a round spread the numbers they round with, if they do."""
    if not run.rules.links.correlated:
        return None
    key, sampled = run.draw.fold(round_index), run.sample(round_index)
    ranks, n = key.fold("ranks").permutation(len(sampled)), len(sampled)
    return Strata(key, ranks, n).at((sampled == client).nonzero()[:, 0])
