"""One data set as tensors: samples, labels and, if it is known, who wrote each sample."""

import math
import reprlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcom.data.forms import unpacked
from fedcom.data.inputs import Inputs, arrays, is_truths
from fedcom.data.tokens import IGNORED, PADDING, UNKNOWN, Tokens
from fedcom.errors import ConfigError, DataError, unknown

_NAMES = "OSUT"  # numpy's kinds of objects and texts
_NUMBERS = (int, float, np.number, np.bool_)
_FEW = 3  # clients that a warning names


class Legend(NamedTuple):
    """What the numbers of a table stand for.

    Args:
        features: the names of the columns of x, in order; empty: they have none.
        labels: of the classes, in the order of their numbers; empty: there are none.
    """

    features: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test samples.

    Args:
        x: training samples, along the first axis.
        y: their labels, int64; or their targets, floating, if it is a regression.
        test_x: may be empty.
        classes: how many there are; 0: regression or survival.
        groups: the natural client (the author, the hospital) of each training sample, 0..G-1; None: not
            known.
        test_groups: the same of each test sample, numbered alike; clients without a training sample have the
            numbers from G on. None: not known.
        survival: whether a target is a time and whether the event came then (1) or not until then (0).
        pixels: of images the mean, the standard deviation and the largest of their pixels in the training
            set; x is pixels minus the mean, over the deviation. None: no images, or not known.
        tokens: of text, what the numbers in x and y stand for: y [samples, T] is the next token of each of x.
        inputs: how the inputs of a module that takes several lie in the rows of x; None: it takes one.
        names: of the natural clients, in the order of their numbers; None: they have none.
        legend: of a table or a file of arrays, what the numbers in x and y stand for.
    """

    name: str
    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: int
    groups: Tensor | None = None
    test_groups: Tensor | None = None
    survival: bool = False
    pixels: tuple[float, float, float] | None = None
    tokens: Tokens | None = None
    inputs: Inputs | None = None
    names: tuple[str, ...] | None = None
    legend: Legend | None = None

    def in_unit_range(self) -> "Dataset":
        """The same images with pixels from 0 to 1."""
        if self.pixels is None:
            raise ConfigError(
                f"data.pixels=unit is for images whose range of pixels is known; {self.name} has none"
            )
        mean, deviation, largest = self.pixels
        x, test_x = ((half * deviation + mean) / largest for half in (self.x, self.test_x))
        return replace(self, x=x, test_x=test_x, pixels=None)

    def in_characters(self, characters: str) -> "Dataset":
        """The same text in another vocabulary; what is no text of characters stays as it is."""
        old = self.tokens
        if old is None or old.tokenizer is not None or old.characters == characters:
            return self
        tokens = Tokens(characters)
        codes = torch.cat([torch.tensor([PADDING, UNKNOWN]), tokens.encode(old.characters)])
        halves = (self.x, self.y, self.test_x, self.test_y)
        x, y, test_x, test_y = (torch.where(half < 0, half, codes[half.clamp(min=0)]) for half in halves)
        return replace(self, x=x, y=y, test_x=test_x, test_y=test_y, classes=tokens.size, tokens=tokens)


@dataclass(frozen=True, eq=False)
class Population:
    """Clients too many for all their samples to be held in memory: samples are drawn when they are needed.

    Args:
        data: the samples of some clients, in the order of `shown`, to evaluate a model on.
        shown: the numbers of those clients.
        sizes: the number of training samples of every client.
        samples: a function of client numbers [k] and positions [k, n], each below its client's size, that
            returns x and y of those samples, one row per client.
    """

    data: Dataset
    shown: Tensor
    sizes: Tensor
    samples: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class Arrays(NamedTuple):
    """Samples and labels as a file holds them."""

    x: NDArray[Any]
    y: NDArray[Any]


def images(
    name: str, train: Arrays, test: Arrays, classes: int, groups: NDArray[Any] | None = None
) -> Dataset:
    """A data set of images: pixels minus their mean, over their standard deviation, both of the training set.

    Dividing the pixels by 255 first would change nothing: mean and deviation scale with them.

    Args:
        groups: the author of each training image, as any whole numbers; None: not known.
    """
    if not len(train.x):
        raise DataError(f"{name} has no training samples; fetch its files again")
    for half in (train, test):
        _check_labels(name, half, classes)
    mean, std = _moments(train.x)
    x, test_x = (torch.from_numpy((half.x.astype(np.float32) - mean) / std) for half in (train, test))
    y, test_y = (torch.from_numpy(half.y.astype(np.int64)) for half in (train, test))
    ids = None if groups is None else group_ids(groups, len(y))
    pixels = float(mean), float(std), float(train.x.max()) or 1.0
    return Dataset(name, x, y, test_x, test_y, classes, ids, pixels=pixels)


def _check_labels(name: str, half: Arrays, classes: int) -> None:
    """Refuse images and labels that cannot belong together."""
    if len(half.x) != len(half.y):
        raise DataError(f"{name} has {len(half.x)} images but {len(half.y)} labels; fetch its files again")
    if len(half.y) and not 0 <= half.y.min() <= half.y.max() < classes:
        span = f"{half.y.min()} to {half.y.max()}"
        raise DataError(f"{name} has labels from {span}; they must be 0 to {classes - 1}")


def _moments(x: NDArray[Any]) -> tuple[np.float32, np.float32]:
    """Mean and standard deviation of all numbers, summed in float64 (exact for bytes), piece by piece."""
    pieces = np.array_split(x, len(x) // 4096 + 1)
    mean = sum(float(piece.sum(dtype=np.float64)) for piece in pieces) / x.size
    square = sum(float(np.square(piece, dtype=np.float64).sum()) for piece in pieces) / x.size
    std = math.sqrt(max(square - mean**2, 0.0))
    return np.float32(mean), np.float32(std or 1.0)  # if all pixels are equal, they become 0


def normalised(data: Dataset, by: str) -> Dataset:
    """Each feature minus its mean, over its standard deviation, both of training samples.

    A feature that is the same in all of them is left at 0 there.

    Args:
        by: "client": by the samples of each natural client itself, so that nothing is shared; "all": by those
            of all clients, as if they were in one place.
    """
    if by not in ("client", "all"):
        raise unknown("way to normalise", by, ("client", "all"))
    if data.tokens is not None:
        raise ConfigError("data.normalise is for features, and text has none; leave it out")
    groups, test_groups = data.groups, data.test_groups
    if by == "all":
        groups, test_groups = torch.zeros(len(data.x)).long(), torch.zeros(len(data.test_x)).long()
    if groups is None or (test_groups is None and len(data.test_x)):
        raise DataError(
            f"data.normalise=client needs the client of each sample, of test samples too, and {data.name} "
            "does not say it; name it by data.client_column or groups, or set data.normalise=all"
        )
    if test_groups is not None and len(lost := test_groups[~torch.isin(test_groups, groups)]):
        who = int(lost[0]) if data.names is None else data.names[int(lost[0])]
        raise DataError(
            f"{data.name} has test samples of {who!r}, who has no training sample to scale them by; leave "
            "them out, or set data.normalise=all"
        )
    x, test_x = (
        t if t.is_floating_point() else t.to(torch.get_default_dtype()) for t in (data.x, data.test_x)
    )
    x, test_x = x.clone(), test_x.to(x.dtype, copy=True)
    for group in torch.unique(groups).tolist():
        own = x[groups == group]
        spread = own.std(0) if len(own) > 1 else torch.zeros_like(own[0])
        alike = (own == own[0]).all(0) | (
            spread == 0
        )  # a mean of equal numbers may differ from them in rounding
        mean, spread = torch.where(alike, own[0], own.mean(0)), torch.where(alike, 1.0, spread)
        x[groups == group] = (own - mean) / spread
        if test_groups is not None:
            test_x[test_groups == group] = (test_x[test_groups == group] - mean) / spread
    return replace(data, x=x, test_x=test_x)


def from_arrays(
    x: Any,
    y: Any = None,
    test_x: Any = None,
    test_y: Any = None,
    groups: Any = None,
    name: str = "arrays",
    *,
    any_targets: bool = False,
    ignored: int | None = None,
    test_groups: Any = None,
    survival: bool = False,
) -> Dataset:
    """A data set of the user's numpy arrays, tensors or torch Datasets, copied and checked, not normalised.

    Args:
        x: training samples, along the first axis; for a module of several inputs a tuple of such arrays, or
            a mapping of its arguments; or, without y, samples and targets as a torch Dataset or DataLoader,
            as (x, y), as pairs, or as a mapping or table such as {"x": ..., "label": ...}.
        y: whole numbers 0..C-1 are classes, one per sample or, for text, one per token [samples, T] with -100
            in padding; floats make it a regression (classes=0).
        test_x: test samples, with test_y or in one of the other forms; None: no test set.
        groups: the author of each training sample, as whole numbers or names, which are renumbered 0..G-1 in
            increasing order; None: not known.
        any_targets: whole numbers in y may have any shape and sign, for a loss that is not cross-entropy.
        ignored: a whole number in y that is no class, as ignore_index is in torch; None: there is none.
        test_groups: the author of each test sample; None: not known.
        survival: whether a target is a time and whether the event came then (1) or not until then (0).
    """
    x, y = unpacked(x, y, "x")
    test_x, test_y = unpacked(test_x, test_y, "test_x")
    if isinstance(x, Mapping) and isinstance(test_x, Mapping) and x.keys() == test_x.keys():
        test_x = {key: test_x[key] for key in x}
    if y is None:
        raise DataError("y is missing; give one target per sample of x, or a torch Dataset or pairs as x")
    x, inputs = _joined(x, y, "x")
    test_x, test_inputs = _joined(test_x, test_y, "test_x")
    if test_x is not None and inputs != test_inputs:
        raise DataError(
            f"test samples differ in kind: x is {inputs or 'one array'}, test_x is "
            f"{test_inputs or 'one array'}; make them alike"
        )
    padding = None if any_targets else IGNORED if ignored is None else ignored
    train = _pair(x, y, "x", "y", padding)
    test = _test_pair(test_x, test_y, train, padding)
    if not len(train[0]):
        raise DataError("x has no samples; give at least one")
    y = torch.cat((train[1], test[1]))
    if survival:
        train, test = ((half[0], _lifetimes(half[1])) for half in (train, test))
    ids = None if groups is None else group_ids(groups, len(train[0]))
    names = None if groups is None else names_of(groups)
    test_ids, strangers = _test_groups(names, test_groups, len(test[0]))
    tokens = y.dim() == 2 and padding is not None
    classes = 0 if survival else _classes(y, padding if tokens else ignored, tokens)
    names = None if names is None else (*names, *strangers)
    return Dataset(name, *train, *test, classes, ids, test_ids, survival, inputs=inputs, names=names)


def _joined(x: Any, y: Any, name: str) -> tuple[Any, Inputs | None]:
    """Several inputs of a module as one table, and how they lie in it; one array as it is."""
    samples = len(y) if hasattr(y, "__len__") else -1
    if (found := arrays(x, samples)) is None:
        return x, None
    tensors = [
        _tensor(part, f"{name}[{key!r}]")
        for key, part in zip(found[1] or range(len(x)), found[0], strict=True)
    ]
    if not tensors:
        raise DataError(f"{name} is empty; give the module's arguments by name")
    if len({len(tensor) for tensor in tensors}) > 1:
        raise DataError(
            f"{name} has {', '.join(str(len(t)) for t in tensors)} samples; all inputs need as many"
        )
    inputs = Inputs.of(tensors, found[1], [is_truths(part) for part in found[0]])
    return inputs.table(tensors), inputs


def _lifetimes(y: Tensor) -> Tensor:
    """Times and events as floats, refused if they cannot be such."""
    if y.dim() != 2 or y.shape[1] != 2 or not ((y[:, 1] == 0) | (y[:, 1] == 1)).all():
        raise DataError(
            f"targets of shape {list(y.shape)} are not times and events; give [samples, 2], a time and 1 if "
            "the event came then, 0 if it had not come until then"
        )
    return y if y.is_floating_point() else y.to(torch.get_default_dtype())


def _classes(y: Tensor, ignored: int | None, tokens: bool) -> int:
    """How many classes there are; 0 if these are no classes."""
    if y.is_floating_point() or (y.dim() != 1 and not tokens):
        return 0
    y = y if ignored is None else y[y != ignored]
    return int(y.max()) + 1 if len(y) and int(y.min()) >= 0 else 0


def _test_pair(x: Any, y: Any, train: tuple[Tensor, Tensor], padding: int | None) -> tuple[Tensor, Tensor]:
    """Test samples and labels of the same kind as the training ones; empty if none are given."""
    if (x is None) != (y is None):
        raise DataError("test_x and test_y go together; give both or neither")
    if x is None:
        return train[0][:0], train[1][:0]
    test = _pair(x, y, "test_x", "test_y", padding)
    if [_kind(tensor) for tensor in test] != [_kind(tensor) for tensor in train]:
        raise DataError(
            f"test samples differ in kind: x {_kind(train[0])} and y {_kind(train[1])}, "
            f"test_x {_kind(test[0])} and test_y {_kind(test[1])}; make them alike"
        )
    return test


def _kind(tensor: Tensor) -> str:
    """The shape of one sample and whether it is floating, for comparison and for errors."""
    return f"{list(tensor.shape[1:])} {'floating' if tensor.is_floating_point() else 'whole'}"


def _pair(x: Any, y: Any, x_name: str, y_name: str, padding: int | None) -> tuple[Tensor, Tensor]:
    """Samples and labels, checked against each other.

    Args:
        padding: what is no label where there is one per token; None: whole numbers of any shape and sign.
    """
    samples, labels = _tensor(x, x_name), _tensor(y, y_name)
    if len(samples) != len(labels):
        raise DataError(f"{x_name} has {len(samples)} samples but {y_name} has {len(labels)} labels")
    if not labels.is_floating_point() and padding is not None:
        if labels.dim() > 2 or (labels.dim() == 2 and labels.shape != samples.shape[:2]):
            raise DataError(
                f"{y_name} has shape {list(labels.shape)}; class labels are one number per sample, or one "
                f"per token [samples, T] if {x_name} has T tokens; others need a loss of your own"
            )
        known = labels if labels.dim() == 1 else labels[labels != padding]
        if len(known) and known.min() < 0:
            raise DataError(
                f"{y_name} has the label {int(known.min())}; labels are 0, 1, 2, ...; renumber them"
            )
    return samples, labels


def group_ids(groups: Any, n: int, name: str = "groups") -> Tensor:
    """Group ids, whole numbers or names, renumbered from 0.

    Args:
        name: what errors call them.
    """
    ids = _ids(groups)
    if ids.shape != (n,) or ids.dtype.kind not in f"{_NAMES}biu":
        raise DataError(
            f"{name} has shape {list(ids.shape)} {ids.dtype}; give {n} whole numbers or names, one per sample"
        )
    if ids.dtype.kind == "O" and (gaps := [i for i, g in enumerate(ids) if g is None or g != g]):
        raise DataError(
            f"{name} says {ids[gaps[0]]} of sample {gaps[0]}; leave such samples out, or name them"
        )
    return torch.from_numpy(numbered(ids))


def _test_groups(names: Sequence[str] | None, test_groups: Any, n: int) -> tuple[Tensor | None, list[str]]:
    """The numbers of the test samples' groups, and the names of those who have no training sample.

    Args:
        names: of the training samples' groups, in the order of their numbers.
    """
    if test_groups is None:
        return None, []
    if names is None:
        raise DataError(
            "test_groups gives the author of each test sample; give groups too, the author of each training "
            "sample"
        )
    numbers = group_ids(test_groups, n, "test_groups")
    own, known = names_of(test_groups), set(names)
    strangers = [name for name in own if name not in known]
    place = {name: number for number, name in enumerate([*names, *strangers])}
    found = torch.tensor([place[name] for name in own], dtype=torch.int64)[numbers]
    if strangers:
        count, more = int((found >= len(names)).sum()), len(strangers) - _FEW
        who = ", ".join([*map(repr, strangers[:_FEW]), *[f"{more} more"] * (more > 0)])
        warnings.warn(
            "test samples of clients that have no training sample count in the scores on all test samples, "
            f"and in no client's own: {count} of {who}",
            stacklevel=4,
        )
    return found, strangers


def _ids(groups: Any) -> NDArray[Any]:
    """The group of each sample as an array."""
    return groups.detach().cpu().numpy() if isinstance(groups, Tensor) else np.asarray(groups)


def names_of(groups: Any) -> tuple[str, ...]:
    """The names of groups, in the order in which `numbered` numbers them."""
    return tuple(map(str, np.unique(_comparable(_ids(groups))).tolist()))


def numbered(values: NDArray[Any]) -> NDArray[np.int64]:
    """The values, numbers or names, as whole numbers 0, 1, 2, ... in increasing order."""
    return np.unique(_comparable(values), return_inverse=True)[1]


def _comparable(values: NDArray[Any]) -> NDArray[Any]:
    """Numbers as they are, and names as texts."""
    return values.astype(str) if values.dtype.kind in _NAMES else values


def _tensor(values: Any, name: str) -> Tensor:
    """A copy as int64, float32 or float64 on the CPU, without NaN or infinity."""
    if isinstance(values, Tensor) and not values.is_complex():
        single = torch.float64 if values.dtype == torch.float64 else torch.float32
        tensor = values.detach().to("cpu", single if values.is_floating_point() else torch.int64, copy=True)
    else:
        tensor = torch.from_numpy(_array(values, name))
    if tensor.dim() == 0:
        raise DataError(f"{name} is a single number; its first axis must be the samples")
    if not torch.isfinite(tensor).all():
        first = int((~torch.isfinite(tensor)).nonzero()[0, 0])
        raise DataError(f"{name} holds NaN or infinity, first in sample {first}; clean it first")
    return tensor


def _array(values: Any, name: str) -> NDArray[Any]:
    """Anything numpy can read, as int64, float32 or float64."""
    if np.ma.is_masked(values):
        raise DataError(
            f"{name} has masked entries, which have no value; fill them in, as {name}.filled() does"
        )
    try:
        array = np.asarray(values)
    except (ValueError, TypeError) as error:
        raise DataError(f"{name} is not an array: {error}") from error
    others = [one for one in array.flat if not isinstance(one, _NUMBERS)] if array.dtype == object else []
    if array.dtype == object and array.size and not others:
        array = np.array(array.tolist())
    if array.dtype.kind in _NAMES:
        remedy = f"np.unique({name}, return_inverse=True)[1]"
        if name.endswith("x"):
            remedy = f"pandas.get_dummies({name}) for categories, or a tokenizer for texts"
        held = reprlib.repr((others or array.flatten().tolist())[0]) if array.size else "nothing"
        raise DataError(f"{name} holds {held}, not numbers; give numbers, as {remedy} makes them")
    if array.dtype.kind not in "biuf":
        raise DataError(f"{name} has dtype {array.dtype}; give whole or floating-point numbers")
    single = np.float64 if array.dtype.itemsize >= 8 else np.float32
    return array.astype(single if array.dtype.kind == "f" else np.int64, order="C")
