"""Ways to split the samples among clients; the first line of a partition's docstring is its description."""

import math
import reprlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedcom.draws import Draw
from fedcom.errors import ConfigError, DataError
from fedcom.registry import Registry, function_of

ATTEMPTS = 100


@dataclass(frozen=True)
class Deal:
    """What a partition is made of: labels, natural groups, the number of clients, chance and the settings."""

    y: Tensor
    groups: Tensor | None
    clients: int
    draw: Draw
    classes_per_client: int
    alpha: float


Partition = Callable[[Deal], list[Tensor]]


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
    """The indices of each client's samples; clients=None means every group, for 'natural' only."""
    partition = PARTITIONS[name]
    if classes_per_client < 1:
        raise ConfigError(f"classes_per_client must be at least 1; got {classes_per_client}")
    if not 0 < alpha < math.inf:
        raise ConfigError(f"alpha must be positive and finite; got {alpha}")
    if groups is not None and len(groups) != len(y):
        raise DataError(f"there are {len(groups)} group ids for {len(y)} samples; give one a sample")
    if clients is None:
        clients = _count_groups(name, groups)
    if not 1 <= clients <= len(y):
        raise ConfigError(f"clients must be from 1 to the number of samples, {len(y)}; got {clients}")
    return _checked(name, partition(Deal(y, groups, clients, draw, classes_per_client, alpha)), len(y))


def _checked(name: str, parts: object, samples: int) -> list[Tensor]:
    """What a partition gave, once it is seen to be indices of samples, one tensor per client."""
    if not isinstance(parts, list) or not all(_is_indices(part) for part in parts):
        raise ConfigError(
            f"partition {name!r} must return a list of int64 tensors, the indices of each client's samples; "
            f"it gave {reprlib.repr(parts)}"
        )
    every = torch.cat([torch.zeros(0, dtype=torch.int64), *parts])
    if len(every) and not 0 <= int(every.min()) <= int(every.max()) < samples:
        raise ConfigError(
            f"partition {name!r} must return indices from 0 to {samples - 1}; it gave {int(every.min())} "
            f"to {int(every.max())}"
        )
    return parts


def _is_indices(part: object) -> bool:
    """Whether something is a row of indices."""
    return isinstance(part, Tensor) and part.dim() == 1 and part.dtype == torch.int64


def _count_groups(name: str, groups: Tensor | None) -> int:
    """How many clients there are when the user leaves it to the data."""
    if name != "natural":
        raise ConfigError(f"partition {name!r} needs the number of clients; set clients")
    return len(torch.unique(_authors(groups)))


def _authors(groups: Tensor | None) -> Tensor:
    """The groups, or the error for a set without them."""
    if groups is None:
        raise ConfigError(
            "partition 'natural' needs a data set with authors: mnist-by-writer, femnist, synthetic, "
            "or your own arrays with groups"
        )
    return groups


def _iid(deal: Deal) -> list[Tensor]:
    """Shuffled and dealt evenly: client sizes differ by at most one."""
    return list(torch.tensor_split(deal.draw.fold("iid").permutation(len(deal.y)), deal.clients))


def _classes(deal: Deal) -> list[Tensor]:
    """Sorted by label, cut into equal shards, classes_per_client random shards a client (McMahan et al.).

    Inside a label the order is shuffled by the draw. A shard that lies across a boundary between labels holds
    both, so all clients together hold at most (classes - 1) classes more than clients * classes_per_client.
    """
    k, shards = deal.classes_per_client, deal.clients * deal.classes_per_client
    known = len(torch.unique(_labels("classes", deal.y)))
    if k > known:
        raise ConfigError(f"classes_per_client is {k}, but the data has {known} classes; lower it")
    if shards > len(deal.y):
        raise ConfigError(
            f"clients * classes_per_client is {shards}, more than the {len(deal.y)} samples; lower either"
        )
    pieces = torch.tensor_split(_by_label(deal), shards)
    hands = deal.draw.fold("deal").permutation(shards).view(deal.clients, k).tolist()
    return [torch.cat([pieces[shard] for shard in hand]) for hand in hands]


def _dirichlet(deal: Deal) -> list[Tensor]:
    """Each class shared out in proportions drawn from Dirichlet(alpha); smaller alpha, more uneven."""
    sizes = torch.unique(_labels("dirichlet", deal.y), return_counts=True)[1]
    for attempt in range(ATTEMPTS):
        counts = _shares(deal.draw.fold("shares", attempt), sizes, deal.clients, deal.alpha)
        if counts.sum(dim=0).min() > 0:
            break
    else:
        raise ConfigError(
            f"alpha = {deal.alpha} left one of {deal.clients} clients without a sample in each of "
            f"{ATTEMPTS} draws; raise alpha or lower clients"
        )
    pieces = torch.split(_by_label(deal), counts.flatten().tolist())
    return [torch.cat(pieces[client :: deal.clients]) for client in range(deal.clients)]


def _natural(deal: Deal) -> list[Tensor]:
    """By author, one group a client; fewer clients than groups are drawn, and the rest is unused."""
    groups = _authors(deal.groups)
    ids = torch.unique(groups)
    if deal.clients > len(ids):
        raise ConfigError(f"clients is {deal.clients}, but the data has {len(ids)} natural groups; lower it")
    chosen = deal.draw.fold("natural").permutation(len(ids))[: deal.clients].sort().values
    order = torch.argsort(groups, stable=True)
    ends = torch.searchsorted(groups[order], ids, right=True)
    starts = torch.searchsorted(groups[order], ids)
    return [order[starts[i] : ends[i]] for i in chosen.tolist()]


_OWN: dict[str, Partition] = {
    "iid": _iid,
    "classes": _classes,
    "dirichlet": _dirichlet,
    "natural": _natural,
}
PARTITIONS: Registry[Partition] = Registry(
    "partition", "fedcom.partitions", _OWN, function_of("a fedcom.data.Deal")
)


def _labels(name: str, y: Tensor) -> Tensor:
    """The labels, or the error for targets that are not classes."""
    if y.is_floating_point():
        raise ConfigError(
            f"partition {name!r} needs class labels; these are {y.dtype}; use 'iid' or 'natural'"
        )
    return y


def _by_label(deal: Deal) -> Tensor:
    """All indices, label by label, in random order inside a label."""
    order = deal.draw.fold("order").permutation(len(deal.y))
    return order[torch.argsort(deal.y[order], stable=True)]


def _shares(draw: Draw, sizes: Tensor, clients: int, alpha: float) -> Tensor:
    """How many samples of each class (row) each client (column) gets; rows sum to the sizes."""
    shares = torch.softmax(log_gamma(draw.fold(torch.arange(len(sizes))), alpha, clients), dim=-1)
    inner = torch.round(shares.cumsum(dim=-1)[:, :-1] * sizes[:, None]).to(torch.int64)
    cuts = torch.cat((torch.zeros_like(sizes)[:, None], inner, sizes[:, None]), dim=-1)
    return cuts.diff(dim=-1)


def log_gamma(draw: Draw, alpha: float, n: int) -> Tensor:
    """Logarithms of n Gamma(alpha) numbers a key (Marsaglia and Tsang 2000): for small alpha they underflow.

    Gamma(alpha) is Gamma(alpha + 1) times U^(1/alpha), so the rejection only ever sees a shape above 1.
    """
    d = alpha + 1.0 - 1.0 / 3.0
    c = 1.0 / math.sqrt(9.0 * d)
    waiting, log_v = torch.tensor(True), torch.tensor(0.0, dtype=torch.float64)
    for attempt in range(64):  # each number is refused less than one time in twenty
        x = draw.fold("x", attempt).normal(n, torch.float64)
        u = 1.0 - draw.fold("u", attempt).uniform(n, torch.float64)
        v = (1.0 + c * x).clamp(min=0.0) ** 3
        good = torch.log(u) < 0.5 * x**2 + d - d * v + d * torch.log(v)  # v = 0 gives -inf: refused
        log_v = torch.where(waiting & good, torch.log(v), log_v)
        waiting = waiting & ~good
        if not waiting.any():
            break
    boost = torch.log(1.0 - draw.fold("boost").uniform(n, torch.float64)) / alpha
    return math.log(d) + log_v + boost
