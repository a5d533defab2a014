"""Local steps w - eta (g - delta) of stacked clients with a fully connected network, on a GPU.

Or the same with momentum or by AdamW.

One kernel per layer takes a step and, while it holds the new matrix, multiplies it with the next minibatch:
in each step the models are read once and written once, and gradients never. Products are made of three TF32
products each, which is about as near as float32, or of one where TF32 is allowed.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedcom.algorithms.local_optimisers import AdamWSteps, Begun, LocalOptimiser, MomentumSteps
from fedcom.draws import Draw, salt
from fedcom.tasks.dense import Dense

_HAS_TRITON = find_spec("triton") is not None
_MOST_SAMPLES = 128  # of a minibatch
_MOST_CLASSES = 128
_STREAMS = 8  # each with some of the clients: the kernels of one fill the gaps of another


class Minibatches(NamedTuple):
    """The samples of several local steps."""

    x: Tensor  # all samples there are, one row each
    y: Tensor  # their classes
    rows: Tensor  # which samples are in a minibatch [steps, clients, samples]
    weight: Tensor  # of each in the loss, of the same shape


class Moments(NamedTuple):
    """How clients step with moments; these are written over."""

    first: Tensor  # [clients, d]
    second: Tensor | None  # the same, of Adam; None: the steps have momentum
    shares: tuple[float, float]  # momentum: what b keeps, and nothing; Adam: of a gradient in the moments
    eps: float  # of Adam
    keep: Tensor  # the share of w that weight decay leaves [steps, clients]
    root: Tensor  # what corrects the bias of Adam's root [steps, clients]


class Walk(NamedTuple):
    """How clients step."""

    eta: Tensor  # [steps, clients]; a client whose eta is zero stays where it is
    delta: Tensor | None = None  # subtracted from every gradient [clients, d]
    decay: float = 0.0  # this times w is added to every gradient
    moments: Moments | None = None  # None: plain steps


class _Tiles(NamedTuple):
    """How a kernel divides its work among programs, and how they run."""

    columns: int
    inner: int
    warps: int
    stages: int


_TILES = {"layer": _Tiles(32, 64, 4, 2), "last": _Tiles(16, 64, 4, 3), "back": _Tiles(32, 32, 4, 2)}


def ready(dense: Dense, x: Tensor, y: Tensor, samples: int) -> bool:
    """Whether the kernels can take the local steps of a network on some data.

    Args:
        samples: of a minibatch.
    """
    fits = samples <= _MOST_SAMPLES and dense.classes <= _MOST_CLASSES
    known = x.dtype == torch.float32 and y.dtype == torch.int64 and x.is_contiguous() and y.dim() == 1
    return _HAS_TRITON and x.is_cuda and known and fits


def knows(local: LocalOptimiser) -> bool:
    """Whether the kernels can take a local optimiser's steps."""
    kind, around = type(local), local.clip is None and not local.mu
    heavy = isinstance(local, MomentumSteps) and not local.nesterov
    return local.plain or (around and (kind is AdamWSteps or (kind is MomentumSteps and heavy)))


def walk_of(
    local: LocalOptimiser, eta: Tensor, delta: Tensor | None, decay: float, begun: Begun | None
) -> Walk:
    """How clients step by an optimiser that the kernels know.

    Args:
        eta: [steps, clients]; a client whose eta is zero stays where it is.
        begun: what the optimiser begins from; its moments are written over. None: steps are plain.
    """
    if begun is None:
        return Walk(eta, delta, decay)
    keep, root, number = 1 - local.weight_decay * eta, torch.ones_like(eta), begun.numbers(*eta.shape)
    first = begun.moments["momentum"]
    if isinstance(local, MomentumSteps):
        return Walk(eta, delta, decay, Moments(first, None, (local.momentum, 0.0), 0.0, keep, root))
    assert isinstance(local, AdamWSteps)
    root = (1 - local.beta2**number).rsqrt().to(eta.dtype)
    eta = (eta / (1 - local.beta1**number)).to(eta.dtype).contiguous()
    shares = (1 - local.beta1, 1 - local.beta2)
    return Walk(
        eta, delta, decay, Moments(first, begun.moments["square"], shares, local.eps, keep, root.contiguous())
    )


def drawn(draw: Draw, sizes: Tensor, offsets: Tensor, steps: int, samples: int) -> Tensor:
    """Which samples are in each client's minibatches [steps, clients, samples], drawn with replacement.

    Args:
        draw: one key per client; the numbers are those of draw.fold("batch", step).integers(sizes, samples).
        sizes: how many samples each client has.
        offsets: which is its first.
    """
    from fedcom.tasks.kernels import triton_kernels

    rows = torch.empty(steps, len(sizes), samples, dtype=torch.int64, device=sizes.device)
    known = {"N": samples, "ROWS": _power_of_2(samples)}
    triton_kernels.draw[rows.shape[:2]](draw.key, salt("batch"), sizes, offsets, rows, len(sizes), **known)
    return rows


def local_steps(dense: Dense, w: Tensor, walk: Walk, batches: Minibatches) -> Tensor:
    """The clients' models [clients, d] after their local steps.

    Args:
        w: their models before: one per client, or one that all have.
    """
    delta = walk.delta if walk.delta is None else walk.delta.contiguous()
    crowd = _Crowd(dense, w.contiguous(), walk._replace(delta=delta), batches)
    steps, clients, _ = batches.rows.shape
    parts = min(_STREAMS, clients)
    bounds = [k * clients // parts for k in range(parts + 1)]
    with _streams(w.device, parts) as streams:
        for part, stream in zip(pairwise(bounds), streams, strict=True):
            with stream:
                for turn in range(steps + 1):
                    crowd.go(turn, range(*part), looks=turn < steps)
    return crowd.new


@contextmanager
def _streams(device: torch.device, count: int) -> Iterator[list[AbstractContextManager[Any]]]:
    """This stream and others beside it: they wait for its earlier work, and its later work waits for them."""
    if device.type != "cuda":
        yield [nullcontext()] * count
        return
    here, others = torch.cuda.current_stream(device), _other_streams(device, count - 1)
    for stream in others:
        stream.wait_stream(here)
    yield [torch.cuda.stream(stream) for stream in (here, *others)]
    for stream in others:
        here.wait_stream(stream)


@lru_cache(maxsize=8)
def _other_streams(device: torch.device, count: int) -> list[torch.cuda.Stream]:
    return [torch.cuda.Stream(device) for _ in range(count)]  # type: ignore[no-untyped-call]


class _Layer(NamedTuple):
    """A layer in the flat vector."""

    place: int  # where its matrix begins
    inputs: int
    outputs: int
    bias: bool  # whether one follows the matrix


class _Crowd:
    """Clients' models while they step, and what each layer computed on their last two minibatches.

    Attributes:
        seen: the inputs of each layer.
        errors: the loss's gradients by the outputs of each layer.
    """

    def __init__(self, dense: Dense, w: Tensor, walk: Walk, batches: Minibatches) -> None:
        _, self.clients, self.samples = batches.rows.shape
        self.w, self.walk, self.batches, self.layers = w, walk, batches, _layers(dense)
        self.new = w.new_empty(self.clients, dense.layout.size)
        rooms = [w.new_empty(2, self.clients, self.samples, layer.outputs) for layer in 2 * self.layers]
        self.errors, self.seen = rooms[: len(self.layers)], [batches.x, *rooms[len(self.layers) : -1]]

    def go(self, turn: int, some: range, looks: bool) -> None:
        """Let some clients step on minibatch turn - 1, if there is one, and look at minibatch `turn`."""
        for k in range(len(self.layers)):
            self._layer(k, turn, some, looks)
        for k in range(len(self.layers) - 2, 0, -1) if looks else ():
            self._back(k, turn, some)

    def _layer(self, k: int, turn: int, some: range, looks: bool) -> None:
        layer, last, (_, y, rows, weight) = self.layers[k], k == len(self.layers) - 1, self.batches
        tiles = _TILES["last" if last else "layer"]
        if last:  # a program sees all classes
            tiles = tiles._replace(columns=max(tiles.columns, _power_of_2(layer.outputs)))
        eta, delta, decay, moments = self.walk
        first, second, shares, eps, keep, root = moments or Moments(self.new, None, (0.0, 0.0), 0.0, eta, eta)
        self._run(
            "layer",
            layer,
            -(-layer.outputs // tiles.columns),
            tiles,
            some,
            *(
                self.w if turn <= 1 else self.new,
                self.new,
                self.new if delta is None else delta,
                eta,
                keep,
                root,
            ),
            *(first, first if second is None else second, *shares, eps, decay),
            *(self.seen[k], self.errors[k], self.errors[k] if last else self.seen[k + 1]),
            *(self.errors[k - 1], rows, y, weight, turn),
            BIAS=layer.bias,
            SHARED=turn <= 1 and self.w.dim() == 1,
            STEP=turn > 0,
            LOOK=looks,
            FIRST=k == 0,
            LAST=last,
            TRACKS=delta is not None,
            DECAYS=decay > 0,
            HEAVY=moments is not None and second is None,
            ADAM=second is not None,
        )

    def _back(self, k: int, turn: int, some: range) -> None:
        layer, tiles = self.layers[k], _TILES["back"]
        self._run(
            "back",
            layer,
            -(-layer.inputs // tiles.columns),
            tiles,
            some,
            *(self.new if turn else self.w, self.errors[k], self.seen[k], self.errors[k - 1], turn),
            SHARED=turn == 0 and self.w.dim() == 1,
        )

    def _run(
        self,
        kernel: str,
        layer: _Layer,
        programs: int,
        tiles: _Tiles,
        some: range,
        *given: Any,
        **known: bool,
    ) -> None:
        """Launch a kernel on a layer of some clients.

        Args:
            programs: of each client.
        """
        from fedcom.tasks.kernels import triton_kernels

        getattr(triton_kernels, kernel)[(len(some) * programs,)](
            *given,
            self.clients,
            some.start,
            D=self.new.shape[1],
            PLACE=layer.place,
            N=self.samples,
            IN=layer.inputs,
            OUT=layer.outputs,
            EXACT=not torch.backends.cuda.matmul.allow_tf32,
            ROWS=max(16, _power_of_2(self.samples)),
            COLUMNS=tiles.columns,
            INNER=tiles.inner,
            num_warps=tiles.warps,
            num_stages=tiles.stages,
            **known,
        )


def _layers(dense: Dense) -> list[_Layer]:
    layers, parts, place = [], iter(zip(dense.layout.shapes, dense.layout.sizes, strict=True)), 0
    for bias in dense.biases:
        (outputs, inputs), size = next(parts)
        layers.append(_Layer(place, inputs, outputs, bias))
        place += size + (next(parts)[1] if bias else 0)
    return layers


def _power_of_2(n: int) -> int:
    """The smallest power of 2 that is n or more."""
    return 1 << (n - 1).bit_length()
