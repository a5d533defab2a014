"""Ways to split samples among clients; the first line of a partition's docstring is its description."""

import math
import reprlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedcom.draws import Draw
from fedcom.errors import ConfigError, DataError
from fedcom.registry import Registry, function_of

ATTEMPTS = 100  # draws of a Dirichlet partition before it is given up


@dataclass(frozen=True)
class SplitRequest:
    """What a partition is given.

    Args:
        y: the label of each sample.
        groups: the author of each sample; None: not known.
        clients: how many clients to split the samples among.
        draw: the source of randomness.
        classes_per_client: how many shards each client gets, for "classes".
        alpha: of the Dirichlet distribution, for "dirichlet".
    """

    y: Tensor
    groups: Tensor | None
    clients: int
    draw: Draw
    classes_per_client: int
    alpha: float


Partition = Callable[[SplitRequest], list[Tensor]]


def split(
    name: str,
    y: Tensor,
    groups: Tensor | None,
    clients: int | None,
    draw: Draw,
    *,
    classes_per_client: int = 2,
    alpha: float = 0.5,
) -> list[Tensor]:
    """The indices of each client's samples.

    Args:
        name: of the partition.
        y: the label of each sample.
        groups: the author of each sample; None: not known.
        clients: how many; None: one per author, for "natural" only.
        draw: the source of randomness.
        classes_per_client: how many shards each client gets, for "classes".
        alpha: of the Dirichlet distribution, for "dirichlet"; the smaller, the more uneven.
    """
    partition = PARTITIONS[name]
    if classes_per_client < 1:
        raise ConfigError(f"classes_per_client must be at least 1; got {classes_per_client}")
    if not 0 < alpha < math.inf:
        raise ConfigError(f"alpha must be positive and finite; got {alpha}")
    if groups is not None and len(groups) != len(y):
        raise DataError(f"there are {len(groups)} group ids for {len(y)} samples; give one per sample")
    if clients is None:
        clients = _count_groups(name, groups)
    if not 1 <= clients <= len(y):
        raise ConfigError(f"clients must be from 1 to the number of samples, {len(y)}; got {clients}")
    return _checked(
        name, partition(SplitRequest(y, groups, clients, draw, classes_per_client, alpha)), len(y)
    )


def _checked(name: str, parts: object, samples: int) -> list[Tensor]:
    """What a partition returned, if it is a list of indices of samples, one tensor per client."""
    if not isinstance(parts, list) or not all(_is_indices(part) for part in parts):
        raise ConfigError(
            f"partition {name!r} must return a list of int64 tensors, the indices of each client's samples; "
            f"it gave {reprlib.repr(parts)}"
        )
    indices = torch.cat([torch.zeros(0, dtype=torch.int64), *parts])
    if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < samples:
        raise ConfigError(
            f"partition {name!r} must return indices from 0 to {samples - 1}; it gave {int(indices.min())} "
            f"to {int(indices.max())}"
        )
    return parts


def _is_indices(part: object) -> bool:
    """Whether something is a vector of int64."""
    return isinstance(part, Tensor) and part.dim() == 1 and part.dtype == torch.int64


def _count_groups(name: str, groups: Tensor | None) -> int:
    """How many authors there are: the number of clients if none is given."""
    if name != "natural":
        raise ConfigError(f"partition {name!r} needs the number of clients; set clients")
    return len(torch.unique(_authors(groups)))


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


def _natural(request: SplitRequest) -> list[Tensor]:
    """By author, one per client; with fewer clients than authors, the authors are drawn at random."""
    groups = _authors(request.groups)
    ids = torch.unique(groups)
    if request.clients > len(ids):
        raise ConfigError(
            f"clients is {request.clients}, but the data has {len(ids)} natural groups; lower it"
        )
    chosen = request.draw.fold("natural").permutation(len(ids))[: request.clients].sort().values
    order = torch.argsort(groups, stable=True)
    ends = torch.searchsorted(groups[order], ids, right=True)
    starts = torch.searchsorted(groups[order], ids)
    return [order[starts[i] : ends[i]] for i in chosen.tolist()]


_BUILTIN: dict[str, Partition] = {
    "iid": _iid,
    "classes": _classes,
    "dirichlet": _dirichlet,
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
    inner = torch.round(shares.cumsum(dim=-1)[:, :-1] * sizes[:, None]).to(torch.int64)
    cuts = torch.cat((torch.zeros_like(sizes)[:, None], inner, sizes[:, None]), dim=-1)
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
