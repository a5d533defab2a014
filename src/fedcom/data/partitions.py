"""Ways to split samples among clients; the first line of a partition's docstring is its description."""

import math
import reprlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedcom.data.dataset import group_ids, names_of
from fedcom.draws import Draw
from fedcom.errors import ConfigError, DataError
from fedcom.registry import Registry, function_of
from fedcom.settings import convert

ATTEMPTS = 100  # draws of a Dirichlet partition before it is given up


@dataclass(frozen=True)
class SplitRequest:
    """What a partition is given.

    Args:
        y: the label of each sample.
        groups: the author of each sample; None: not known.
        clients: how many clients to split the samples among.
        draw: the source of randomness.
        classes_per_client: how many shards each client gets, for "classes", or labels, for "labels".
        alpha: of the Dirichlet distribution, for "dirichlet" and "dirichlet-capped".
    """

    y: Tensor
    groups: Tensor | None
    clients: int
    draw: Draw
    classes_per_client: int
    alpha: float


Partition = Callable[[SplitRequest], Sequence[Any]]  # to the indices of each client's samples


def split(
    partition: str | Partition | Any,
    y: Tensor,
    groups: Tensor | None,
    clients: int | str | None,
    draw: Draw,
    *,
    classes_per_client: int = 2,
    alpha: float = 0.5,
) -> list[Tensor]:
    """The indices of each client's samples.

    Args:
        partition: its name; a function of a SplitRequest; the indices of each client's samples; or the client
            of each sample, as numbers or names.
        y: the label of each sample.
        groups: the author of each sample; None: not known.
        clients: how many; None: one per author or part, if the partition says so.
        draw: the source of randomness.
        classes_per_client: how many shards each client gets, for "classes".
        alpha: of the Dirichlet distribution, for "dirichlet"; the smaller, the more uneven.
    """
    count = _count(clients)
    if not isinstance(partition, str) and not callable(partition):
        return _covering(_given(partition, count, len(y)), len(y))
    function, name = (
        (PARTITIONS[partition], partition) if isinstance(partition, str) else (partition, "yours")
    )
    if classes_per_client < 1:
        raise ConfigError(f"classes_per_client must be at least 1; got {classes_per_client}")
    if not 0 < alpha < math.inf:
        raise ConfigError(f"alpha must be positive and finite; got {alpha}")
    if groups is not None and len(groups) != len(y):
        raise DataError(f"there are {len(groups)} group ids for {len(y)} samples; give one per sample")
    if count is None and name != "natural":
        raise ConfigError(f"partition {name!r} needs the number of clients; set clients")
    if count is None:
        count = len(torch.unique(_authors(groups)))
    if not 1 <= count <= len(y):
        raise ConfigError(f"clients must be from 1 to the number of samples, {len(y)}; got {count}")
    found = function(SplitRequest(y, groups, count, draw, classes_per_client, alpha))
    parts = indices(found, len(y), f"partition {name!r} must return")
    return parts if name in _BUILTIN else _covering(parts, len(y))


def _given(parts: Any, clients: int | None, samples: int) -> list[Tensor]:
    """The indices of each client's samples from these, or from the client of each sample."""
    if _is_flat(parts):
        ids = group_ids(parts, samples, "partition")
        parts = [(ids == client).nonzero()[:, 0] for client in range(int(ids.max()) + 1)]
    found = indices(parts, samples)
    if clients not in (None, len(found)):
        raise ConfigError(f"clients is {clients}, but the partition has {len(found)}; leave clients out")
    return found


def client_names(partition: Any) -> tuple[str, ...] | None:
    """The names of the clients, if a partition gives the client of each sample; None if it does not."""
    if isinstance(partition, str) or callable(partition) or not _is_flat(partition):
        return None
    return names_of(partition)


def _is_flat(parts: Any) -> bool:
    """Whether something holds one number or name per item, and not several."""
    if hasattr(parts, "dtype") and parts.dtype != object:
        return bool(parts.ndim == 1)
    return len(parts) > 0 and all(isinstance(part, int | float | str | np.generic | None) for part in parts)


def indices(parts: Any, samples: int, source: str = "a partition must hold") -> list[Tensor]:
    """The indices of each client's samples as tensors, checked.

    Args:
        parts: one tensor, array or list per client.
        samples: how many there are.
        source: what an error begins with.
    """
    try:
        found = [torch.as_tensor(np.asarray(part)) for part in parts]
        whole = all(len(part) == 0 or not part.is_floating_point() for part in found)
        found = [part.nonzero()[:, 0] if part.dtype == torch.bool else part.to(torch.int64) for part in found]
    except (TypeError, ValueError, RuntimeError):
        whole, found = False, []
    if not whole or any(part.dim() != 1 for part in found):
        raise ConfigError(
            f"{source} the indices of each client's samples, one tensor, array or list of whole numbers per "
            f"client; got {reprlib.repr(parts)}"
        )
    every = torch.cat([torch.zeros(0, dtype=torch.int64), *found])
    low, high = (int(every.min()), int(every.max())) if len(every) else (0, -1)
    if low < 0 or high >= samples:
        raise ConfigError(f"{source} indices from 0 to {samples - 1}; got {low} to {high}")
    return found


def check_parts(parts: Sequence[Tensor], samples: int) -> None:
    """Refuse clients without a sample; warn of samples that are given out twice."""
    empty = [client for client, part in enumerate(parts) if not len(part)]
    if empty or not parts:
        named = f"client {empty[0]} has none" if empty else "there is no client"
        more = f", and {len(empty) - 1} more" if len(empty) > 1 else ""
        raise ConfigError(f"every client needs a sample, but {named}{more}; mend the partition")
    times = torch.bincount(torch.cat(list(parts)), minlength=samples)
    twice = (times > 1).nonzero()[:, 0].tolist()
    if twice:
        warnings.warn(
            f"the partition gives samples to more than one client, or twice to one: {reprlib.repr(twice)}, "
            f"{len(twice)} in all",
            stacklevel=4,
        )


def _covering(parts: list[Tensor], samples: int) -> list[Tensor]:
    """The parts, with a warning if they leave samples out."""
    left = samples - len(torch.unique(torch.cat([torch.zeros(0, dtype=torch.int64), *parts])))
    if left:
        warnings.warn(
            f"the partition leaves {left} of {samples} samples out: no client trains on them", stacklevel=4
        )
    return parts


def _count(clients: int | str | None) -> int | None:
    """The number of clients, which may be written as text."""
    if clients is None:
        return None
    number: int = convert(int(clients) if str(clients).isdecimal() else clients, int, "clients")
    return number


def _authors(groups: Tensor | None) -> Tensor:
    """The groups, or a ConfigError if there are none."""
    if groups is None:
        raise ConfigError(
            "partition 'natural' needs a data set with authors: mnist-by-writer, femnist, synthetic, "
            "or your own arrays with groups"
        )
    return groups


def _iid(request: SplitRequest) -> list[Tensor]:
    """Shuffled and dealt out evenly: client sizes differ by at most one."""
    return list(torch.tensor_split(request.draw.fold("iid").permutation(len(request.y)), request.clients))


def _classes(request: SplitRequest) -> list[Tensor]:
    """Sorted by label and cut into equal shards, classes_per_client for each client (McMahan et al.).

    Samples of one label are shuffled. A shard can straddle two labels, so the numbers of classes of all
    clients sum to at most clients * classes_per_client + classes - 1.
    """
    k, shards = request.classes_per_client, request.clients * request.classes_per_client
    known = len(torch.unique(_labels("classes", request.y)))
    if k > known:
        raise ConfigError(f"classes_per_client is {k}, but the data has {known} classes; lower it")
    if shards > len(request.y):
        raise ConfigError(
            f"clients * classes_per_client is {shards}, more than the {len(request.y)} samples; lower either"
        )
    pieces = torch.tensor_split(_by_label(request), shards)
    hands = request.draw.fold("deal").permutation(shards).view(request.clients, k).tolist()
    return [torch.cat([pieces[shard] for shard in hand]) for hand in hands]


def _dirichlet(request: SplitRequest) -> list[Tensor]:
    """Each class is split in proportions drawn from Dirichlet(alpha): the smaller alpha, the more uneven."""
    sizes = torch.unique(_labels("dirichlet", request.y), return_counts=True)[1]
    for attempt in range(ATTEMPTS):
        counts = _shares(request.draw.fold("shares", attempt), sizes, request.clients, request.alpha)
        if counts.sum(dim=0).min() > 0:
            break
    else:
        raise ConfigError(
            f"alpha = {request.alpha} left one of {request.clients} clients without a sample in each of "
            f"{ATTEMPTS} draws; raise alpha or lower clients"
        )
    pieces = torch.split(_by_label(request), counts.flatten().tolist())
    return [torch.cat(pieces[client :: request.clients]) for client in range(request.clients)]


def _capped(request: SplitRequest) -> list[Tensor]:
    """As dirichlet, but a client that has its equal share of all samples gets none of the later classes.

    That is how NIID-Bench splits, which also draws again until every client has ten samples.
    """
    sizes = torch.unique(_labels("dirichlet-capped", request.y), return_counts=True)[1]
    least, share = min(10, len(request.y) // (2 * request.clients)), len(request.y) / request.clients
    for attempt in range(ATTEMPTS):
        draw, held, rows = request.draw.fold("capped", attempt), torch.zeros(request.clients), []
        for label, size in enumerate(sizes):
            weights = log_gamma(draw.fold(label), request.alpha, request.clients)
            weights = weights.masked_fill(held >= share, -math.inf)
            rows.append(_cut(torch.softmax(weights, dim=-1), size))
            held = held + rows[-1]
        if held.min() >= least:
            break
    else:
        raise ConfigError(
            f"alpha = {request.alpha} left one of {request.clients} clients with fewer than {least} samples "
            f"in each of {ATTEMPTS} draws; raise alpha or lower clients"
        )
    pieces = torch.split(_by_label(request), torch.cat(rows).tolist())
    return [torch.cat(pieces[client :: request.clients]) for client in range(request.clients)]


def _labels_each(request: SplitRequest) -> list[Tensor]:
    """classes_per_client labels for each client; a label's samples are shared equally by those who have it.

    Client j has label j, modulo the number of classes, and its others are drawn at random (NIID-Bench), those
    first that nobody would have otherwise.
    """
    known, counts = torch.unique(_labels("labels", request.y), return_counts=True)
    k, classes = request.classes_per_client, len(known)
    if k > classes:
        raise ConfigError(f"classes_per_client is {k}, but the data has {classes} classes; lower it")
    if request.clients * k < classes:
        raise ConfigError(
            f"{request.clients} clients of {k} labels each cannot have all {classes} classes; raise clients "
            "or classes_per_client"
        )
    own, free = list[set[int]](), {*range(request.clients, classes)}  # free: nobody has them yet
    for client in range(request.clients):
        drawn = request.draw.fold("labels", client).permutation(classes).tolist()
        others = sorted(
            (label for label in drawn if label != client % classes), key=lambda label: label not in free
        )
        own.append({client % classes, *others[: k - 1]})
        free -= own[-1]
    parts: list[list[Tensor]] = [[] for _ in own]
    for label, samples in enumerate(torch.split(_by_label(request), counts.tolist())):
        holders = [client for client, labels in enumerate(own) if label in labels]
        for client, piece in zip(holders, torch.tensor_split(samples, len(holders)), strict=True):
            parts[client].append(piece)
    return [torch.cat(pieces) for pieces in parts]


def _natural(request: SplitRequest) -> list[Tensor]:
    """By author, one per client; with fewer clients than authors, the authors are drawn at random."""
    groups = _authors(request.groups)
    ids = torch.unique(groups)
    if request.clients > len(ids):
        raise ConfigError(
            f"clients is {request.clients}, but the data has {len(ids)} natural groups; lower it, or name "
            "another partition"
        )
    chosen = request.draw.fold("natural").permutation(len(ids))[: request.clients].sort().values
    order = torch.argsort(groups, stable=True)
    ends = torch.searchsorted(groups[order], ids, right=True)
    starts = torch.searchsorted(groups[order], ids)
    return [order[starts[i] : ends[i]] for i in chosen.tolist()]


_BUILTIN: dict[str, Partition] = {
    "iid": _iid,
    "classes": _classes,
    "labels": _labels_each,
    "dirichlet": _dirichlet,
    "dirichlet-capped": _capped,
    "natural": _natural,
}
PARTITIONS: Registry[Partition] = Registry(
    "partition", "fedcom.partitions", _BUILTIN, function_of("a fedcom.data.SplitRequest")
)


def _labels(name: str, y: Tensor) -> Tensor:
    """The labels, or a ConfigError if they are not classes."""
    if y.is_floating_point():
        raise ConfigError(
            f"partition {name!r} needs class labels; these are {y.dtype}; use 'iid' or 'natural'"
        )
    if y.dim() > 1:
        raise ConfigError(
            f"partition {name!r} needs one label per sample; text has one per token; use 'natural' or 'iid'"
        )
    return y


def _by_label(request: SplitRequest) -> Tensor:
    """All indices, label by label, in random order within a label."""
    order = request.draw.fold("order").permutation(len(request.y))
    return order[torch.argsort(request.y[order], stable=True)]


def _shares(draw: Draw, sizes: Tensor, clients: int, alpha: float) -> Tensor:
    """How many samples of each class (row) each client (column) gets.

    Args:
        sizes: the number of samples of each class.
    """
    shares = torch.softmax(log_gamma(draw.fold(torch.arange(len(sizes))), alpha, clients), dim=-1)
    return _cut(shares, sizes)


def _cut(shares: Tensor, sizes: Tensor) -> Tensor:
    """How many samples make up each share.

    Args:
        shares: they sum to one along the last axis.
        sizes: how many samples are shared out, without that axis.
    """
    inner = torch.round(shares.cumsum(dim=-1)[..., :-1] * sizes[..., None]).to(torch.int64)
    cuts = torch.cat((torch.zeros_like(sizes)[..., None], inner, sizes[..., None]), dim=-1)
    return cuts.diff(dim=-1)


def log_gamma(draw: Draw, alpha: float, n: int) -> Tensor:
    """Logarithms of n Gamma(alpha) numbers per key (Marsaglia and Tsang 2000).

    They are logarithms because the numbers themselves underflow for small alpha. Gamma(alpha) is
    Gamma(alpha + 1) times U^(1/alpha), so the rejection method only needs shapes above 1.
    """
    d = alpha + 1.0 - 1.0 / 3.0
    c = 1.0 / math.sqrt(9.0 * d)
    waiting, log_v = torch.tensor(True), torch.tensor(0.0, dtype=torch.float64)
    for attempt in range(64):  # each number is rejected less than one time in twenty
        x = draw.fold("x", attempt).normal(n, torch.float64)
        u = 1.0 - draw.fold("u", attempt).uniform(n, torch.float64)
        v = (1.0 + c * x).clamp(min=0.0) ** 3
        good = torch.log(u) < 0.5 * x**2 + d - d * v + d * torch.log(v)  # v = 0 gives -inf: rejected
        log_v = torch.where(waiting & good, torch.log(v), log_v)
        waiting = waiting & ~good
        if not waiting.any():
            break
    boost = torch.log(1.0 - draw.fold("boost").uniform(n, torch.float64)) / alpha
    return math.log(d) + log_v + boost
