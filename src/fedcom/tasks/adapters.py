"""Low-rank adapters: W + s B A in place of a layer's W, which is frozen and shared by all clients.

s = alpha / rank. B begins at zero, so that a model begins as it was, and A is drawn from a seed. Only the
adapters, and what else is named, are parameters that are trained; see docs/adapters.md.
"""

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Literal, cast, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _NormBase

from fedcom import settings
from fedcom.draws import Draw
from fedcom.errors import ConfigError
from fedcom.plain import build
from fedcom.tasks.norms import STATISTICS
from fedcom.tasks.suitable import check_kind, leave_quick_path, sharing

Kind = Literal["lora", "ffa", "rolora", "fedex", "flora", "het"]
USUAL = ("q_proj", "v_proj")  # the layers of attention that are adapted unless told
PRODUCTS = "fedcom_products"  # the same for layers whose adapters are averaged as products; see Objective
RANKS = "fedcom_ranks"  # the same for layers whose adapters have another rank in each client
TURNS = "fedcom_turns"  # the attribute of a module that says which of its parameters are trained in turn


@dataclass(frozen=True)
class Adapter:
    """Which layers have low-rank adapters, and which half of them is trained when.

    Args:
        name: "lora": A and B are trained and averaged (FedIT). "ffa": A stays as it was drawn, and only B is
            trained and sent. "rolora": B in the first round, A in the second, and so on; only that half is
            sent. "fedex": as lora, and what the means of A and B miss of the mean of B A is added to the
            base. "flora": the mean of B A is added to the base, and adapters start anew after each round.
            "het": clients have adapters of their own ranks, and coordinates are averaged over those that have
            them.
        rank: the columns of B and the rows of A.
        alpha: adapters count alpha / rank times.
        layers: names of layers, or patterns such as layers.3.*; each stands for all names that end so. None:
            q_proj and v_proj, or every linear layer if there are none.
        also: the same for other parameters that are trained beside the adapters.
        ranks: of the clients, for "het": the first number of the first client, and so on, from the beginning
            again after the last. The largest is `rank`.
    """

    name: Kind = "lora"
    rank: int = 8
    alpha: float = 16.0
    layers: tuple[str, ...] | None = None
    also: tuple[str, ...] = ()
    ranks: tuple[int, ...] | None = None

    section: ClassVar[str] = "adapter"

    def __post_init__(self) -> None:
        settings.check(self)
        if self.rank < 1:
            raise ConfigError(f"rank must be 1 or more; got {self.rank}")
        if self.ranks and self.name != "het":
            raise ConfigError(f"ranks are for adapter het; got adapter {self.name}")
        ranks = self.ranks or (0,)
        if self.name == "het" and not (min(ranks) >= 1 and max(ranks) == self.rank):
            raise ConfigError(
                f"adapter het needs the ranks of the clients, the largest of which is rank, as in rank=8 "
                f"ranks=[2,4,8]; got rank {self.rank} and ranks {list(self.ranks or ())}"
            )
        if not 0 < self.alpha < math.inf:
            raise ConfigError(f"alpha must be above 0; got {self.alpha}")

    @classmethod
    def of_plain(cls, given: Any) -> Any:
        """The adapter that a name or a table stands for; anything else as it is."""
        table = {"name": given} if isinstance(given, str) else given
        if not isinstance(table, dict):
            return given
        named = {key: _texts(value) if key in ("layers", "also") else value for key, value in table.items()}
        return build(cls, named, cls.section)

    @classmethod
    def choices(cls) -> str:
        """The names there are, in words."""
        return " or ".join(map(repr, get_args(Kind)))

    def on(self, module: nn.Module, seed: int = 0) -> nn.Module:
        """A copy of a module with adapters; see `lora`."""
        check_kind(module)
        twin = sharing(module, freeze=True)
        adapted = dict(_chosen(twin, self.layers))
        draw = Draw.seeded(seed).fold("adapters")
        for name, layer in adapted.items():
            _replace(twin, layer, _adapted(layer, name, self.rank, self.alpha / self.rank, draw.fold(name)))
        _leave_quick_path(twin)
        _train(twin, self.also)
        parts = {which: [f"{name}.lora_{which}" for name in adapted] for which in "AB"}
        named = dict(twin.named_parameters())
        for name in parts["A"] if self.name == "ffa" else ():
            named[name].requires_grad_(False)
        if self.name == "rolora":
            others = [name for name, p in named.items() if p.requires_grad and ".lora_" not in f".{name}"]
            setattr(twin, TURNS, tuple((*parts[which], *others) for which in "BA"))
        if self.name == "het":
            setattr(twin, RANKS, (tuple(adapted), self.ranks))
        if self.name in ("fedex", "flora"):
            for name in [name for name in adapted if twin.get_parameter(f"{name}.weight").requires_grad]:
                raise ConfigError(
                    f"adapter {self.name} changes the weights of adapted layers itself, so '{name}.weight' "
                    f"cannot be trained also; got also={','.join(self.also)}"
                )
            setattr(twin, PRODUCTS, (tuple(adapted), self.alpha / self.rank, self.name == "flora"))
        return twin


def lora(
    module: nn.Module,
    rank: int = 8,
    alpha: float = 16.0,
    layers: Sequence[str] | str | None = None,
    also: Sequence[str] | str = (),
    seed: int = 0,
    method: Kind = "lora",
    ranks: Sequence[int] | None = None,
) -> nn.Module:
    """A copy of a module whose layers have low-rank adapters; all else is frozen and shared with the module.

    Args:
        rank: the columns of B and the rows of A.
        alpha: adapters count alpha / rank times.
        layers: names of linear layers, embeddings and convolutions, or patterns such as layers.3.*; each
            stands for all names that end so. None: q_proj and v_proj, or all linear layers if there are none.
        also: the same for other parameters that are trained beside the adapters.
        seed: from which A is drawn.
        method: "lora", "ffa", "rolora", "fedex", "flora" or "het"; `Adapter` explains them, and `ranks`.
    """
    return Adapter(method, rank, alpha, cast(Any, layers), cast(Any, also), cast(Any, ranks)).on(module, seed)


class Adapted(nn.Module):
    """What the layers with an adapter share; it is beside their own class in each of them.

    Attributes:
        scale: alpha / rank.
        narrow: the dtype of an embedding's outputs, if it is not that of its weight.
    """

    lora_A: nn.Parameter
    lora_B: nn.Parameter
    weight: Tensor
    scale: float
    narrow: torch.dtype | None = None

    def low_rank(self, x: Tensor) -> Tensor:
        """s B A x, in the dtype of the layer's weight."""
        raise NotImplementedError

    def product(self) -> Tensor:
        """s B A in the shape of the layer's weight, which it adds to."""
        b, a = self.lora_B.detach().flatten(1), self.lora_A.detach()
        return self.scale * (b @ a.flatten(1)).reshape(b.shape[0], *a.shape[1:])


class AdaptedLinear(Adapted, nn.Linear):
    """A linear layer with an adapter."""

    def low_rank(self, x: Tensor) -> Tensor:
        return F.linear(self.scale * F.linear(x, self.lora_A.to(x.dtype)), self.lora_B.to(x.dtype))

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.linear(x, self.weight.to(x.dtype), bias) + self.low_rank(x)


class AdaptedEmbedding(Adapted, nn.Embedding):
    """An embedding with an adapter."""

    def low_rank(self, x: Tensor) -> Tensor:
        dtype = self.weight.dtype
        return F.linear(self.scale * F.embedding(x, self.lora_A.to(dtype).T), self.lora_B.to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        y = nn.Embedding.forward(self, x) + self.low_rank(x)
        return y if self.narrow is None else y.to(self.narrow)

    def product(self) -> Tensor:
        return super().product().T


class _AdaptedConv(Adapted):
    bias: Tensor | None

    def low_rank(self, x: Tensor) -> Tensor:
        convolve = (F.conv1d, F.conv2d, F.conv3d)[self.lora_B.dim() - 3]
        low = self._convolved(x, self.lora_A, None)
        return convolve(self.scale * low, self.lora_B.to(x.dtype))

    def forward(self, x: Tensor) -> Tensor:
        return self._convolved(x, self.weight, self.bias) + self.low_rank(x)

    def _convolved(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        part: Any = self
        y: Tensor = part._conv_forward(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))
        return y


class AdaptedConv1d(_AdaptedConv, nn.Conv1d):
    """A convolution with an adapter."""


class AdaptedConv2d(_AdaptedConv, nn.Conv2d):
    """A convolution with an adapter."""


class AdaptedConv3d(_AdaptedConv, nn.Conv3d):
    """A convolution with an adapter."""


_KINDS: dict[type[nn.Module], type[Adapted]] = {
    nn.Linear: AdaptedLinear,
    nn.Embedding: AdaptedEmbedding,
    nn.Conv1d: AdaptedConv1d,
    nn.Conv2d: AdaptedConv2d,
    nn.Conv3d: AdaptedConv3d,
}


def adapted_layers(module: nn.Module) -> Iterator[tuple[str, Adapted]]:
    """The layers of a module that have an adapter, by name."""
    return ((name, part) for name, part in module.named_modules() if isinstance(part, Adapted))


def whole_weight(layer: nn.Linear, dtype: torch.dtype) -> Tensor:
    """The weight of a linear layer with its adapter, if any, for modules that do not call the layer."""
    weight = layer.weight.to(dtype)
    if not isinstance(layer, AdaptedLinear):
        return weight
    return weight + layer.scale * layer.lora_B.to(dtype) @ layer.lora_A.to(dtype)


def own_base(module: nn.Module, dtype: torch.dtype) -> Tensor:
    """Give the adapted layers of a module weights of their own; returns the memory of all, as one vector.

    They are in the order and form of B A: [outputs, inputs], of an embedding [its width, its rows].
    """
    layers = [layer for _, layer in adapted_layers(module)]
    whole = [isinstance(layer, AdaptedEmbedding) for layer in layers]
    forms = [
        layer.weight.detach().T if turned else layer.weight.detach()
        for layer, turned in zip(layers, whole, strict=True)
    ]
    flat = torch.cat([x.to(dtype).flatten() for x in forms])
    parts = torch.split(flat, [x.numel() for x in forms])
    for layer, turned, form, part in zip(layers, whole, forms, parts, strict=True):
        if form.dtype in (torch.float16, torch.bfloat16):
            layer.narrow = form.dtype
        view = part.view(form.shape)
        layer.weight = nn.Parameter(view.T if turned else view, requires_grad=False)
    return flat


def kept(module: nn.Module) -> dict[str, Tensor]:
    """What a run's folder keeps of a module: all of its state, or without the base if it has adapters.

    If the base of adapted layers changes, it is kept too, and so are the statistics of BatchNorm. What a
    module adds to its state that is no tensor (get_extra_state) is not.
    """
    state = {key: x for key, x in module.state_dict().items() if isinstance(x, Tensor)}
    if next(adapted_layers(module), None) is None:
        return state
    named, changes = dict(module.named_parameters(remove_duplicate=False)), hasattr(module, PRODUCTS)
    layers = [
        name for name, part in module.named_modules(remove_duplicate=False) if isinstance(part, Adapted)
    ]
    more = {*_statistics(module), *(f"{name}.weight" for name in layers if changes)}
    return {
        key: x for key, x in state.items() if ".lora_" in f".{key}" or key in more or _trained(named.get(key))
    }


def _statistics(module: nn.Module) -> set[str]:
    """The names of the running statistics of BatchNorm layers."""
    layers = [name for name, part in module.named_modules() if isinstance(part, _NormBase)]
    return {f"{name}.{kind}".removeprefix(".") for name in layers for kind in STATISTICS}


def _trained(parameter: nn.Parameter | None) -> bool:
    return parameter is not None and parameter.requires_grad


def load_kept(module: nn.Module, state: dict[str, Tensor]) -> None:
    """Load what `kept` returned; a RuntimeError if the names or shapes are others.

    Version 0.2.0 left the statistics of BatchNorm out. If the base of adapted layers changes, they get
    weights of their own, in the dtype of the state: those that they share with other layers stay as they are.
    """
    weights = [state[key] for name, _ in adapted_layers(module) if (key := f"{name}.weight") in state]
    if hasattr(module, PRODUCTS) and weights:
        own_base(module, weights[0].dtype)
    names = {*kept(module)}
    fits = names - _statistics(module) <= {*state} <= names
    module.load_state_dict(state, strict=not fits)


def merged(module: nn.Module) -> nn.Module:
    """A copy of a module without adapters: each is added to the weight of its layer."""
    twin = sharing(module)
    for _, layer in list(adapted_layers(twin)):
        plain = next(kind for kind, other in _KINDS.items() if type(layer) is other)
        total = layer.weight.detach().double() + layer.product().double()
        dtype = layer.narrow or layer.weight.dtype
        layer.weight = nn.Parameter(total.to(dtype), requires_grad=False)
        layer.__class__ = plain  # type: ignore[assignment]
        del layer.lora_A, layer.lora_B, layer.scale
    for mark in (TURNS, PRODUCTS, RANKS):
        if hasattr(twin, mark):
            delattr(twin, mark)
    return twin


def _chosen(module: nn.Module, layers: tuple[str, ...] | None) -> list[tuple[str, nn.Module]]:
    """The layers that are to have an adapter, each by its first name; others are refused."""
    named = [(name, part) for name, part in module.named_modules(remove_duplicate=False) if name]
    if layers is None:
        usual = [(name, part) for name, part in named if _fits(name, USUAL) and type(part) in _KINDS]
        found = usual or [(name, part) for name, part in named if type(part) is nn.Linear]
        if not found:
            raise ConfigError("the module has no linear layer to adapt; name layers, as in layers=conv1")
        return _once(module, found)
    if not layers:
        raise ConfigError("layers names no layer to adapt; leave it out for the usual ones")
    for pattern in layers:
        matching = [(name, part) for name, part in named if _fits(name, (pattern,))]
        if not any(type(part) in _KINDS for _, part in matching):
            can = [name for name, part in named if type(part) in _KINDS]
            kind = f"is a {type(matching[0][1]).__name__}" if matching else "is not there"
            raise ConfigError(
                f"layer {pattern!r} {kind}; adapters are for linear layers, embeddings and convolutions, "
                f"such as {', '.join(can[:4]) or 'none in this module'}"
            )
    return _once(
        module, [(name, part) for name, part in named if type(part) in _KINDS and _fits(name, layers)]
    )


def _once(module: nn.Module, found: list[tuple[str, nn.Module]]) -> list[tuple[str, nn.Module]]:
    """Each of some parts once, in the module's order; a module may have one part under several names."""
    parts = {id(part) for _, part in found}
    return [(name, part) for name, part in module.named_modules() if id(part) in parts]


def _texts(names: Any) -> Any:
    """Names as text; those of nn.Sequential's layers are numbers where a config has them.

    Several names with commas between are what is typed on a command line.
    """
    if isinstance(names, str) and "," in names:
        inner = names[1:-1] if names.startswith("[") and names.endswith("]") else names
        return [name.strip() for name in inner.split(",") if name.strip()]
    if isinstance(names, list | tuple):
        return [_texts(name) for name in names]
    return str(names) if type(names) is int else names


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, p) or fnmatchcase(name, f"*.{p}") for p in patterns)


def _adapted(layer: Any, name: str, rank: int, scale: float, draw: Draw) -> Adapted:
    """A layer with an adapter beside its own weight."""
    out, *rest = layer.weight.shape
    if isinstance(layer, nn.Embedding):
        out, rest = rest[0], [out]
    if getattr(layer, "groups", 1) != 1:
        raise ConfigError(f"layer {name!r} is a convolution in {layer.groups} groups, which have no adapter")
    twin = copy.deepcopy(layer, {id(p): p for p in layer.parameters()})
    twin.__class__, twin.scale = _KINDS[type(layer)], scale
    bound, size = 1 / math.sqrt(math.prod(rest)), rank * math.prod(rest)
    a = (2 * draw.uniform(size, torch.float64) - 1) * bound
    dtype = torch.promote_types(layer.weight.dtype, torch.float32)
    device = layer.weight.device
    twin.lora_A = nn.Parameter(a.reshape(rank, *rest).to(device, dtype))
    ones = [1] * (layer.weight.dim() - 2)
    twin.lora_B = nn.Parameter(torch.zeros(out, rank, *ones, dtype=dtype, device=device))
    return cast(Adapted, twin)


def _replace(module: nn.Module, old: nn.Module, new: nn.Module) -> None:
    for name in [name for name, part in module.named_modules(remove_duplicate=False) if part is old]:
        parent, _, last = name.rpartition(".")
        setattr(module.get_submodule(parent), last, new)


def _leave_quick_path(module: nn.Module) -> None:
    """Keep torch's transformer layers from reading the weights of adapted ones past their adapters.

    In evaluation they have a quick path, which calls none of their parts.
    """
    for part in module.modules():
        if next(adapted_layers(part), None) is not None:
            leave_quick_path(part)


def _train(module: nn.Module, also: tuple[str, ...]) -> None:
    """Let other parameters be trained too; one that is tied to another has several names."""
    named = list(module.named_parameters(remove_duplicate=False))
    for pattern in also:
        found = [p for name, p in named if _fits(name, (pattern, f"{pattern}.*"))]
        if not found:
            raise ConfigError(f"the module has no parameter {pattern!r} that could be trained also")
        for p in found:
            p.requires_grad_(True)
