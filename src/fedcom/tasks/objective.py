"""A module and its loss as functions of one flat vector of parameters."""

import copy
import functools
import operator
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import embedding
from torch.overrides import TorchFunctionMode

from fedcom.data.inputs import Inputs
from fedcom.errors import ConfigError, DataError
from fedcom.tasks import convolve
from fedcom.tasks.adapters import PRODUCTS, RANKS, TURNS, own_base
from fedcom.tasks.dense import Dense
from fedcom.tasks.dropout import Masks, has_dropout, has_frozen_recurrence
from fedcom.tasks.frozen import checksums
from fedcom.tasks.idle import check_idle, watched
from fedcom.tasks.losses import Loss, Terms, cross_entropy, placed
from fedcom.tasks.norms import STATISTICS, Choice, check_norms, converted, counting, norms, write
from fedcom.tasks.pooled import Pooled
from fedcom.tasks.pooling import halved
from fedcom.tasks.suitable import (
    check_module,
    copied,
    dtype_of,
    embeds,
    inputs,
    leave_quick_path,
    sharing,
    told,
    translated,
)
from fedcom.tasks.survival import cox
from fedcom.vectors import Layout, Piece, Vectors

_AFFINE = ("weight", "bias")
_LARGE = 1 << 18  # numbers that convolutions give in a step, from which on a CPU is slower with stacks
_NO_RULE = "Batching rule not implemented"  # for torch's recurrent layers, unless torch.func takes them apart
_WAYS = threading.RLock()  # how attention is computed is set for all threads of a process
_DROPPING = (0, 0, 0, 0, 0, None)  # all that a loss is given is of one client, but for the last

# Attention on a CPU is computed client by client, which costs little; nobody can do anything about it.
if hasattr(torch._C._functorch, "_set_vmap_fallback_warning_enabled"):
    torch._C._functorch._set_vmap_fallback_warning_enabled(False)


class Objective:
    """Losses, outputs and per-client gradients of a module at any flat vector of its parameters.

    Args:
        module: any module whose outputs depend on its parameters and inputs alone, but for torch's dropout;
            its trainable parameters are the model. It is copied, not changed, and stays in the mode it is in,
            train() or eval(); if it drops or has BatchNorm, it is evaluated as after eval(). If it
            returns a mapping or an object with "logits", those are used, or else its only value; of a tuple,
            the first item.
        loss: loss(outputs, targets) of a batch, as in torch.nn.functional; for a batch of one sample it must
            be that sample's loss, except that weight and ignore_index of torch's losses of classes are
            understood. Or a loss of whole batches, see `batch_loss`. None: cross-entropy.
        dtype: of parameters and data, or its name.
        seed: from which the module's parameters were drawn, so that it can travel in their place; None: they
            cannot be drawn again.
        batch_norm: what becomes of the statistics of BatchNorm layers in training. "frozen": they stay as
            they are; "averaged": they are part of the model; "own": they and the layers' parameters stay with
            each client (FedBN). None: such layers are refused.

    Attributes:
        terms: what is known of the loss.
        layout: of the parameters in the flat vector, statistics that are averaged last.
        start: the module's parameters as a flat vector.
        whole_layout: of those and of what stays with each client.
        own: what stays with each client, as the module has it, statistics last; None: nothing does.
        statistics: how many coordinates are statistics.
        computed: the module as it is computed.
        products: the layers whose adapters are averaged as products, how many times these count, and whether
            they start anew after a round; None: there are none.
        base: the weights of these layers, one after the other, if they are this objective's own.
        turns: the names of the parameters that are trained in each of some rounds, in turn; empty: all are.
        dense: the module as a fully connected network; None: it is none, or has a loss of its own.
        pooled: the same as a convolutional network with max-pooling, which a GPU computes by matrix products.
        drops: whether it drops something in training; found by `rehearse` if only its forward says so.
        convolved: how many numbers its convolutions give per sample; found by `rehearse`.
        writes: whether the module writes into its input, and is given copies; found by `rehearse`.
        several: how the inputs of the module lie in the rows of x, if it takes several.
        microbatch: of how many samples per client a gradient is computed at once, at most; None: of all.
        same_in_any_stack: whether, on a CPU, a client's gradient has the same bits in any stack of clients.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Loss | None = None,
        dtype: torch.dtype | str = torch.float32,
        seed: int | None = None,
        batch_norm: Choice | None = None,
    ) -> None:
        check_module(module)
        check_norms(module, batch_norm)
        dtype = dtype_of(dtype)
        if seed is not None and not 0 <= seed < 2**64:
            raise ConfigError(f"the seed of a model must be from 0 to 2^64 - 1; got {seed}")
        self.module = copied(module, dtype)
        self.batch_norm, self.computed = batch_norm, converted(self.module, batch_norm)
        self._local, self._unfolded = threading.local(), convolve.unfolded(self.computed)
        device = next(self.module.parameters()).device
        self.loss, self.seed = placed(loss, dtype, device), seed
        self.terms = Terms.of(self.loss)
        self._lay_out(dtype)
        self.products: tuple[tuple[str, ...], float, bool] | None = getattr(module, PRODUCTS, None)
        self.base = self.start[:0]
        self.turns: tuple[tuple[str, ...], ...] = getattr(module, TURNS, ())
        self.ranks: tuple[tuple[str, ...], tuple[int, ...]] | None = getattr(module, RANKS, None)
        self.dense = Dense.of(module, self.layout) if loss is None else None
        self.pooled = Pooled.of(module, self.layout) if loss is None else None
        self.drops, self.several = has_dropout(self.module), cast(Inputs | None, None)
        self.convolved, self.writes = 0, False
        self._embeds, self._recurs = embeds(self.module), has_frozen_recurrence(self.module)
        self.microbatch = cast(int | None, None)
        self._gradients = self.dense.gradients if self.dense else vmap(grad(self._weighted_loss))
        self._gradients_dropping = vmap(grad(self._weighted_loss), in_dims=_DROPPING)
        self.same_in_any_stack = self.dense is not None

    def _lay_out(self, dtype: torch.dtype) -> None:
        """Set where each tensor lies: what is shared, what each client keeps, and statistics last."""
        trained = ((name, p) for name, p in self.computed.named_parameters() if p.requires_grad)
        parameters = {name: p.detach() for name, p in trained if p.numel()}
        layers = norms(self.computed)
        last = [name for name in parameters if name in _inside(layers, STATISTICS)]
        own = [] if self.batch_norm != "own" else [n for n in parameters if n in _inside(layers, _AFFINE)]
        shared = [name for name in parameters if name not in (*own, *last)]
        sent = shared if self.batch_norm == "own" else [*shared, *last]
        if not sent:
            raise ConfigError("all parameters are BatchNorm's, which clients keep; choose another batch_norm")
        kept = [*own, *last] if self.batch_norm == "own" else []
        self.layout, self.whole_layout = (
            Layout(tuple(names), tuple(tuple(parameters[name].shape) for name in names), dtype)
            for names in (sent, [*sent, *kept])
        )
        parts = [parameters[name].reshape(-1) for name in self.whole_layout.names]
        self._sent, self._lacks = self.layout.size, self.whole_layout.size - self.layout.size
        start = torch.cat(parts).to(dtype)
        self.start = start[: self._sent].clone() if kept else start
        self.own = start[self._sent :].clone() if kept else None
        self.statistics = sum(parameters[name].numel() for name in last)

    def statistics_in(self, w: Tensor) -> int:
        """How many of the last coordinates of w are statistics; w may be without what clients keep."""
        return self.statistics if self.own is None or w.shape[-1] > self._sent else 0

    def complete(self, w: Tensor) -> Tensor:
        """w with what stays with each client, as the module has it, if w is without."""
        if self.own is None or w.shape[-1] > self._sent:
            return w
        return torch.cat((w, self.own.expand(*w.shape[:-1], -1)), -1)

    def loaded(self, w: Tensor) -> nn.Module:
        """A copy of the user's module with parameters w."""
        module, names = copy.deepcopy(self.module), _inside(norms(self.computed), STATISTICS)
        write(module, self.whole_layout.tensors(self.complete(w)), names)
        return module

    @functools.cached_property
    def frozen(self) -> dict[str, int]:
        """The checksums of the module's frozen parameters, by name."""
        return checksums(self.module)

    @property
    def survival(self) -> bool:
        """Whether the loss is Cox's, so that targets are times and events."""
        return self.loss is cox

    def inputs(self, x: Tensor) -> Tensor:
        """Samples in the model's dtype; whole numbers stay whole if the module has an embedding."""
        found = _finite(inputs(self.module, x, self.layout.dtype))
        whole = self.several is not None and "whole" in self.several.kinds
        if whole and not torch.equal(self._whole_numbers(x), self._whole_numbers(found)):
            raise DataError(f"an input has whole numbers beyond those of {found.dtype}; give dtype='float64'")
        return found

    def _whole_numbers(self, x: Tensor) -> Tensor:
        """The inputs of whole numbers, of a module that takes several."""
        return torch.cat([part.flatten() for part in self.whole_parts(x)])

    def whole_parts(self, x: Tensor) -> list[Tensor]:
        """The inputs of whole numbers, each by itself [samples, ...]."""
        args, named = ((x,), {}) if self.several is None else self.several.apart(x, keeps=True)
        numbers = (part for part in (*args, *named.values()) if part.dtype != torch.bool)
        return [part for part in numbers if not part.is_floating_point()]

    def taking(self, several: Inputs | None) -> "Objective":
        """The same objective for a module of several inputs.

        Args:
            several: how they lie in the rows of x; None: there is one.
        """
        if several == self.several:
            return self
        twin = copy.copy(self)
        twin.several = several
        return twin

    def in_parts(self, microbatch: int | None) -> "Objective":
        """The same objective, for gradients whose samples do not fit into memory at once: they are added up.

        Args:
            microbatch: of how many samples per client a gradient is computed at once; None: of all.
        """
        if microbatch == self.microbatch:
            return self
        whole = "the loss" if self.terms.of_batch else "BatchNorm's statistics" if self.statistics else ""
        if microbatch is not None and whole:
            raise ConfigError(
                f"microbatch={microbatch} takes minibatches apart, but {whole} must see whole ones; leave it "
                "out, or lower chunk or batch"
            )
        twin = copy.copy(self)
        twin.microbatch = microbatch
        return twin

    def targets(self, y: Tensor) -> Tensor:
        """Floating-point targets, and answers of yes or no, in the model's dtype; classes as they are."""
        y = y.to(self.layout.dtype) if y.is_floating_point() or self.terms.threshold is not None else y
        return _finite(y)

    def outputs(self, w: Tensor, x: Tensor) -> Tensor:
        """The module's outputs for a batch, with parameters w; nothing is dropped."""
        if not self.drops and self.batch_norm is None:
            return self._call(self._module_of_this_thread(), self.whole_layout.tensors(w), x)
        tensors = self.whole_layout.tensors(self.complete(w))
        with Masks(None):
            return self._call(self._module_of_this_thread("evaluated"), tensors, x)

    def in_training(self, w: Tensor, x: Tensor) -> Tensor:
        """The same in the module's own mode."""
        with Masks(None):
            return self._call(self._module_of_this_thread(), self.whole_layout.tensors(self.complete(w)), x)

    def _call(self, module: nn.Module, tensors: Vectors, x: Tensor) -> Tensor:
        x = x.clone() if self.writes else x
        args, named = ((x,), {}) if self.several is None else self.several.apart(x, self._embeds)
        found = tensor_of(functional_call(module, tensors, args, named))
        given = tensors[self.layout.names[0]].dtype
        return found.to(given) if found.dtype in (torch.float16, torch.bfloat16) else found

    def _module_of_this_thread(self, use: Literal["trained", "evaluated"] = "trained") -> nn.Module:
        """A copy: a call sets the parameters for a while, and Ctrl-C may come before they are put back."""
        if not hasattr(self._local, use):
            twin = halved(sharing(self.computed))
            if use == "trained":  # vmap and second derivatives know no quick path
                for part in twin.modules():
                    leave_quick_path(part)
            setattr(self._local, use, twin if use == "trained" else twin.eval())
        return cast(nn.Module, getattr(self._local, use))

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The loss of each sample of a batch, times the weight of its class; 0 if its target is ignored."""
        return cross_entropy(outputs, y) if self.loss is None else self.terms.losses(self.loss, outputs, y)

    def whole(self, outputs: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
        """The loss of a whole batch, if it is one of batches; without weights all samples weigh the same."""
        weight = outputs.new_full((len(y),), 1 / len(y)) if weight is None else weight
        assert self.loss is not None
        return self.loss(outputs, y.clone(), weight)  # which may write into it

    def balanced(self, y: Tensor, weight: Tensor, share: Tensor | None = None) -> Tensor:
        """The weights of samples that make the weighted sum of `losses` the mean that the loss defines.

        Where targets are ignored or classes have weights, that is the sum of `losses` over the sum of what
        each sample counts, as in torch; 0 if no sample counts.

        Args:
            y: the targets of each client [clients, samples, ...].
            weight: of each sample if all counted the same [clients, samples].
            share: what the samples of each client count on average [clients, 1]; None: found from y.
        """
        if share is None:
            mass = self.terms.mass(y, axes=2)
            if mass is None:
                return weight
            share = (weight * mass.to(weight.dtype)).sum(-1, keepdim=True) / weight.sum(-1, keepdim=True)
        return weight / torch.where(share > 0, share, 1.0)

    def gradients(
        self, w: Tensor, x: Tensor, y: Tensor, weight: Tensor, key: Tensor | None = None, first: int = 0
    ) -> Tensor:
        """The gradient of each client's weighted sum of losses, one row per client.

        Args:
            w: the parameters of each client, one row per client; with or without what stays with the client,
                and so is the gradient.
            x: the samples of each client [clients, samples, ...].
            y: their targets [clients, samples, ...].
            weight: of each sample [clients, samples].
            key: of each client, from which it draws what it drops [clients]; None: nothing is dropped.
            first: how many samples of the minibatch come before these.
        """
        if self._lacks and w.shape[-1] == self._sent:
            return self.gradients(self.complete(w), x, y, weight, key)[..., : self._sent]
        if parts := self._parts(x):
            return _total(self.gradients(w, x[:, p], y[:, p], weight[:, p], key, p.start) for p in parts)
        if self.pooled is not None and w.is_cuda and not torch.compiler.is_compiling():
            return self.pooled.gradients(w, x, y, weight)
        if not self._large(w, x):
            return self.stacked(w, x, y, weight, key, first)
        found = torch.empty_like(w)
        for rows, place, g in self._one_by_one(w, x, y, weight, key, first):
            found[rows, place] = g
        return found

    def stacked(
        self, w: Tensor, x: Tensor, y: Tensor, weight: Tensor, key: Tensor | None = None, first: int = 0
    ) -> Tensor:
        """The same for all clients at once, which not every module can; w is with what stays with clients."""
        gradients = self._gradients if key is None else self._gradients_dropping
        more = () if key is None else (key, first)
        if torch.compiler.is_compiling():
            return cast(Tensor, gradients(w, x, y, weight, *more))
        try:
            return cast(Tensor, gradients(w, x, y, weight, *more))
        except RuntimeError as error:
            if said := translated(error):
                raise said from error
            raise

    def _large(self, w: Tensor, x: Tensor) -> bool:
        """Whether clients are computed one by one: a CPU takes twice as long for a stack's convolutions."""
        on_cpu = w.device.type == "cpu" and not torch.compiler.is_compiling()
        return on_cpu and self.convolved * x.shape[1] >= _LARGE

    def _one_by_one(
        self, w: Tensor, x: Tensor, y: Tensor, weight: Tensor, key: Tensor | None, first: int = 0
    ) -> Iterator[Piece]:
        """The gradients in pieces, one per client and tensor."""
        layout = self.whole_layout
        for i, own in enumerate(w.detach()):
            tensors = {name: part.requires_grad_() for name, part in layout.tensors(own).items()}
            with torch.enable_grad():
                of_client = None if key is None else key[i]
                loss = self._loss(tensors, x[i], y[i], weight[i], of_client, first)
            if not loss.requires_grad:
                yield Piece(slice(i, i + 1), slice(None), torch.zeros_like(w[i : i + 1]))
                continue
            start, parts = 0, torch.autograd.grad(loss, [*tensors.values()], materialize_grads=True)
            for part, size in zip(parts, layout.sizes, strict=True):
                yield Piece(slice(i, i + 1), slice(start, start + size), part.reshape(1, size))
                start += size

    def pieces(
        self, w: Tensor, x: Tensor, y: Tensor, weight: Tensor, key: Tensor | None = None
    ) -> Iterator[Piece]:
        """The same gradients in pieces, each to be used before the next is asked for.

        They do not depend on what is written to w meanwhile.
        """
        if self._large(w, x) and not self._parts(x) and w.shape[-1] == self.whole_layout.size:
            yield from self._one_by_one(w, x, y, weight, key)
        elif self.dense is None or self._parts(x):
            yield Piece(slice(None), slice(None), self.gradients(w, x, y, weight, key))
        else:
            yield from self.dense.pieces(w, x, y, weight)

    def _parts(self, x: Tensor) -> list[slice]:
        """Which of each client's samples are computed at once, if not all are."""
        samples, size = x.shape[1], self.microbatch or x.shape[1]
        return [slice(i, i + size) for i in range(0, samples, size)] if size < samples else []

    def look_inside(self, x: Tensor) -> Tensor:
        """Set `drops`, `convolved` and `writes` by a call of the module on some samples; returns its outputs.

        A module that changes its buffers or parameters by that is refused, and so are adapters that it passes
        by.
        """
        w = self.complete(self.start)
        module, tensors = self._module_of_this_thread(), self.whole_layout.tensors(w.clone())
        before = {name: buffer.clone() for name, buffer in module.named_buffers()}
        with Masks(None) as masks, convolve.counting(module) as given, watched(module) as idle:
            outputs = self._call(module, tensors, own := x.clone())
        self.convolved, self.writes = sum(given) // len(x), own._version > 0
        self.drops = self.drops or masks.calls > 0
        for name, buffer in module.named_buffers():
            if _differ(before.get(name, buffer), buffer):
                raise ConfigError(
                    f"the module changes its buffer {name!r} when it is called, which clients that are "
                    "computed side by side cannot; leave that out, or call the eval() of the part if it does "
                    "so in training alone"
                )
        for name, old in self.whole_layout.tensors(w).items():
            if _differ(old, tensors[name]):
                raise ConfigError(
                    f"the module changes its parameter {name!r} when it is called, as weight.data.clamp_() "
                    "does; compute with a changed copy in forward instead"
                )
        with Masks(None):
            check_idle(module, idle, lambda: self._call(module, tensors, x))
        return outputs

    def curvatures(
        self,
        w: Tensor,
        v: Tensor,
        x: Tensor,
        y: Tensor,
        weight: Tensor,
        key: Tensor | None = None,
        first: int = 0,
    ) -> Tensor:
        """The Hessian of each client's weighted sum of losses times a vector, one row per client.

        It is zero at statistics, which no rate moves.

        Args:
            v: the vector of each client, one row per client; `gradients` explains the others.
        """
        if self._lacks and w.shape[-1] == self._sent:
            v = torch.nn.functional.pad(v, (0, self._lacks))
            return self.curvatures(self.complete(w), v, x, y, weight, key)[..., : self._sent]
        if parts := self._parts(x):
            return _total(self.curvatures(w, v, x[:, p], y[:, p], weight[:, p], key, p.start) for p in parts)
        given = (w, x, y, weight) if key is None else (w, x, y, weight, key, first)
        with torch.enable_grad(), _attention_twice_differentiable(), _FixedPadding():
            try:
                return self._flat_at_statistics(self._product(v, *given))
            except RuntimeError as error:
                if re.match(r"(the )?derivative for .* is not implemented", str(error)):
                    raise ConfigError(
                        "the module or its loss has no second derivative, by which auto rates are set "
                        f"({told(error)}); give eta and gamma"
                    ) from error
                if not str(error).startswith(_NO_RULE):
                    raise
            return self._flat_at_statistics(self._slow_product(v, *given))

    def _flat_at_statistics(self, product: Tensor) -> Tensor:
        last = self.statistics
        return torch.nn.functional.pad(product[..., :-last], (0, last)) if last else product

    def _product(self, v: Tensor, w: Tensor, *given: Any) -> Tensor:
        w = w.detach().requires_grad_()
        loss = vmap(self._weighted_loss, in_dims=_DROPPING[: 1 + len(given)])(w, *given).sum()
        (g,) = torch.autograd.grad(loss, w, create_graph=True)
        if not g.requires_grad:  # the loss is linear
            return torch.zeros_like(g)
        (product,) = torch.autograd.grad((g * v).sum(), w)
        return product

    def _slow_product(self, v: Tensor, w: Tensor, *given: Any) -> Tensor:
        """The same by torch.func.grad, which takes recurrent layers apart but imports the compiler."""
        slope = grad(self._weighted_loss)

        def of_client(v: Tensor, w: Tensor, *given: Any) -> Tensor:
            found: Tensor = grad(lambda w: (slope(w, *given) * v).sum())(w)
            return found

        found: Tensor = vmap(of_client, in_dims=(0, *_DROPPING[: 1 + len(given)]))(v, w, *given)
        return found

    def _weighted_loss(
        self, w: Tensor, x: Tensor, y: Tensor, weight: Tensor, key: Tensor | None = None, first: int = 0
    ) -> Tensor:
        return self._loss(self.whole_layout.tensors(w), x, y, weight, key, first)

    def _loss(
        self, tensors: Vectors, x: Tensor, y: Tensor, weight: Tensor, key: Tensor | None, first: int
    ) -> Tensor:
        module = self._unfolded if torch.compiler.is_compiling() else self._module_of_this_thread()
        if self.statistics:
            with counting(module, weight) as gaps:
                outputs = self._trained(module, tensors, x, key, first)
        else:
            outputs, gaps = self._trained(module, tensors, x, key, first), []
        if self.terms.of_batch:
            loss = self.whole(outputs, y, weight)
        else:
            loss = (self.losses(outputs, y) * weight).sum()
        return sum(gaps, loss)

    def _trained(
        self, module: nn.Module, tensors: Vectors, x: Tensor, key: Tensor | None, first: int
    ) -> Tensor:
        """The outputs of a step of training."""
        if not (self.drops or self._recurs):
            return self._call(module, tensors, x)
        with Masks(key, first, len(x)):
            return self._call(module, tensors, x)

    def with_own_base(self) -> "Objective":
        """The same objective with a base that may be written over."""
        module = sharing(self.module)
        base = own_base(module, self.layout.dtype)
        twin = Objective(module, self.loss, self.layout.dtype, self.seed, self.batch_norm)
        twin.base = base
        vars(twin).update(self._found())
        return twin

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles are made anew: what belongs to a thread stays here."""
        return (
            Objective,
            (self.module, self.loss, self.layout.dtype, self.seed, self.batch_norm),
            self._found(),
        )

    def _found(self) -> dict[str, Any]:
        """What was found out about the module with the data, and how it is to compute."""
        names = ("drops", "several", "microbatch", "convolved", "writes")
        return {name: getattr(self, name) for name in names}

    def to(self, device: torch.device) -> "Objective":
        """The same objective with all its tensors on a device."""
        if self.start.device == device:
            return self
        module = sharing(self.module).to(device)
        there = Objective(module, self.loss, self.layout.dtype, self.seed, self.batch_norm)
        there.start = self.start.to(device)
        vars(there).update(self._found())
        return there


def _finite(x: Tensor) -> Tensor:
    if not torch.isfinite(x).all():
        raise DataError(f"the data holds NaN, infinity or a number beyond {x.dtype}; scale it")
    return x


def _differ(old: Tensor, new: Tensor) -> bool:
    """Whether a number of a tensor is another one now, which NaN cannot be."""
    return old.shape == new.shape and bool((old.ne(new) & old.eq(old)).any())


def _total(parts: Iterable[Tensor]) -> Tensor:
    """The sum of some tensors, of which no more are kept."""
    return functools.reduce(operator.add, parts)


def _inside(layers: Mapping[str, nn.Module], names: Sequence[str]) -> list[str]:
    """The full names of some tensors of each layer."""
    return [f"{layer}.{name}".removeprefix(".") for layer in layers for name in names]


@contextmanager
def _attention_twice_differentiable() -> Iterator[None]:
    """Attention is computed in the one way that has a second derivative."""
    with _WAYS:
        before = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            with sdpa_kernel(SDPBackend.MATH):
                yield
        finally:
            torch.backends.mha.set_fastpath_enabled(before)


class _FixedPadding(TorchFunctionMode):
    """Inside it an embedding's padding has no gradient, which torch forgets where vmap is inside autograd."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return (_embedding if func is embedding else func)(*args, **(kwargs or {}))


def _embedding(
    input: Tensor, weight: Tensor, padding_idx: int | None = None, *more: Any, **named: Any
) -> Tensor:
    found = embedding(input, weight, None, *more, **named)
    if padding_idx is None:
        return found
    return torch.where((input == padding_idx % len(weight)).unsqueeze(-1), found.detach(), found)


def _fields(thing: Any) -> list[str]:
    """The names of what an object holds; one of a dataclass may have no dictionary."""
    if is_dataclass(thing):
        return [field.name for field in fields(thing)]
    return list(getattr(thing, "__dict__", {}))


def tensor_of(outputs: Any) -> Tensor:
    """The tensor that a module means by what it returns."""
    found = outputs
    if isinstance(found, Mapping):
        found = found.get("logits", next(iter(found.values())) if len(found) == 1 else None)
    elif isinstance(found, tuple | list) and found and not hasattr(found, "logits"):
        found = found[0]
    elif not isinstance(found, Tensor):
        held = {name: getattr(found, name) for name in _fields(found)}
        found = getattr(found, "logits", next(iter(held.values())) if len(held) == 1 else None)
    if not isinstance(found, Tensor):
        keys = f" with the keys {', '.join(map(str, outputs))}" if isinstance(outputs, Mapping) else ""
        raise ConfigError(
            f"the module returns a {type(outputs).__name__}{keys}; it must return a tensor, a mapping or "
            'an object with "logits" or one value only, or a tuple that begins with a tensor'
        )
    return found
