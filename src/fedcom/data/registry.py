"""Every data set by name; the first line of a loader's docstring is its description."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from fedcom.data.cifar import read_cifar
from fedcom.data.dataset import Arrays, Dataset, from_arrays, images, normalised
from fedcom.data.femnist import read_femnist
from fedcom.data.files import Found, locate
from fedcom.data.hospitals import read_brca, read_heart
from fedcom.data.idx import parse_idx
from fedcom.data.plays import CHARACTERS, roles_of
from fedcom.data.synthetic import Synthetic
from fedcom.data.text import LENGTH, from_text
from fedcom.draws import Draw
from fedcom.errors import ConfigError, DataError
from fedcom.imports import optional
from fedcom.registry import Registry, accepts, function_of, short_name


@dataclass(frozen=True)
class Request:
    """What a loader of a data set is given; clients, alpha, beta and seed matter to sets that are generated.

    Args:
        root: a folder that must hold the files; None: the usual places are searched.
        clients: how many to generate; None: the default.
        alpha: of Synthetic(alpha, beta).
        beta: of Synthetic(alpha, beta).
        length: of the sequences of text; None: the default.
        tokenizer: a file that cuts text into tokens; None: characters.
    """

    root: str | Path | None = None
    clients: int | None = None
    alpha: float = 0.5
    beta: float = 0.5
    seed: int = 0
    length: int | None = None
    tokenizer: str | None = None


Loader = Callable[[Request], Dataset]


def load(
    name: str,
    root: str | Path | None = None,
    *,
    clients: int | None = None,
    alpha: float = 0.5,
    beta: float = 0.5,
    seed: int = 0,
    normalise: str | None = None,
    length: int | None = None,
    tokenizer: str | None = None,
) -> Dataset:
    """A data set by name: its files are found or downloaded, or its samples are generated.

    Args:
        root: a folder that must hold the files; None: the usual places are searched.
        clients: how many to generate, for "synthetic"; None: 30.
        alpha: of Synthetic(alpha, beta).
        beta: of Synthetic(alpha, beta).
        seed: of generated samples.
        normalise: "client" or "all", see `normalised`; None: as the data set is published, which is by
            client for "heart-disease" and not again for the others.
        length: how many tokens a sequence of text has; None: 80.
        tokenizer: a tokenizer.json that cuts text into tokens; None: characters.
    """
    loader: Any = DATASETS[name]
    alone = name not in _BUILTIN and not accepts(loader, None)
    found: object = (
        loader() if alone else loader(Request(root, clients, alpha, beta, seed, length, tokenizer))
    )
    pairs = isinstance(found, list) and len(found) > 0 and isinstance(found[0], tuple | Mapping)
    if pairs or isinstance(found, tuple | Mapping | TorchDataset | DataLoader):
        parts = found if isinstance(found, tuple) else (found,)
        if len(parts) == 2 and all(isinstance(part, TorchDataset) for part in parts):
            parts = (parts[0], None, parts[1])
        if 1 <= len(parts) <= 4:
            found = replace(from_arrays(*parts), name=short_name(name))
    if not isinstance(found, Dataset):
        raise DataError(
            f"data set {name!r} ({DATASETS.where(name)}) gave a {type(found).__name__}; its function must "
            "return a fedcom.Dataset, such as fedcom.from_arrays makes, (x, y), (x, y, test_x, test_y), or "
            "torch Datasets"
        )
    if found.tokens is None and (length is not None or tokenizer is not None):
        raise ConfigError(f"data.length and data.tokenizer are for text, and {name} is none; leave them out")
    by = normalise or _NORMALISED.get(name)
    return found if by is None else normalised(found, by)


def _digits(request: Request) -> Dataset:
    """1,797 handwritten digits of 8x8 pixels in 10 classes, bundled with scikit-learn; no files needed."""
    x, y = _sklearn_digits()
    order = Draw.seeded(0).fold("digits").permutation(len(y)).numpy()
    test, train = np.split(order, [len(order) // 5])
    x = x.reshape(-1, 1, 8, 8).astype(np.uint8)
    return images("digits", Arrays(x[train], y[train]), Arrays(x[test], y[test]), 10)


def _sklearn_digits() -> tuple[Any, Any]:
    """Pixels and classes, from scikit-learn's file: importing scikit-learn takes longer than a short run."""
    found = find_spec("sklearn")
    for folder in (found.submodule_search_locations or ()) if found else ():
        file = Path(folder, "datasets", "data", "digits.csv.gz")
        if file.is_file():
            table = np.loadtxt(file, delimiter=",")
            return table[:, :-1], table[:, -1].astype(np.int64)
    return optional("sklearn.datasets", "scikit-learn").load_digits(return_X_y=True)  # type: ignore[no-any-return]


def _mnist(request: Request) -> Dataset:
    """MNIST: 60,000 + 10,000 handwritten digits of 28x28 pixels in 10 classes."""
    return images("mnist", *_idx_arrays(locate("mnist", request.root)), 10)


def _fashion(request: Request) -> Dataset:
    """Fashion-MNIST: 60,000 + 10,000 pictures of clothes of 28x28 pixels in 10 classes."""
    return images("fashion-mnist", *_idx_arrays(locate("fashion-mnist", request.root)), 10)


def _mnist_by_writer(request: Request) -> Dataset:
    """MNIST with the writer of every digit, from QMNIST's labels: 539 natural clients in 10 classes."""
    train, test = _idx_arrays(locate("mnist", request.root))
    found = locate("mnist-by-writer", request.root)
    rows = _extended_labels(found, "qmnist-train-labels-idx2-int.gz", train.y)
    _extended_labels(found, "qmnist-test-labels-idx2-int.gz", test.y)
    return images("mnist-by-writer", train, test, 10, groups=rows[:, 2])


def _cifar10(request: Request) -> Dataset:
    """CIFAR-10: 50,000 + 10,000 colour pictures of 32x32 pixels in 10 classes."""
    return images("cifar-10", *read_cifar(locate("cifar-10", request.root)), 10)


def _femnist(request: Request) -> Dataset:
    """FEMNIST: handwritten characters of 28x28 pixels in 62 classes, by writer (TFF's or LEAF's files)."""
    train, test, writers = read_femnist(locate("femnist", request.root))
    return images("femnist", train, test, 62, groups=writers)


def _heart(request: Request) -> Dataset:
    """Heart disease: 740 patients of 4 hospitals, 13 features, ill or not (UCI, CC BY 4.0)."""
    return read_heart(locate("heart-disease", request.root))


def _brca(request: Request) -> Dataset:
    """TCGA-BRCA: survival of 1,088 breast cancer patients of 6 regions, 39 features (GDC's terms)."""
    return read_brca(locate("tcga-brca", request.root))


def _shakespeare(request: Request) -> Dataset:
    """Shakespeare's plays by role: 633 clients, 83 characters, the end of each role for testing."""
    roles = roles_of(locate("shakespeare", request.root))
    known = CHARACTERS if request.tokenizer is None else None
    length = LENGTH if request.length is None else request.length
    return from_text(roles, length=length, tokenizer=request.tokenizer, characters=known, name="shakespeare")


def _synthetic(request: Request) -> Dataset:
    """Synthetic(alpha, beta) of FedProx: 60 features in 10 classes, generated, 30 clients by default."""
    clients = 30 if request.clients is None else request.clients
    return Synthetic(request.alpha, request.beta, request.seed).dataset(clients)


_BUILTIN: dict[str, Loader] = {
    "digits": _digits,
    "mnist": _mnist,
    "fashion-mnist": _fashion,
    "mnist-by-writer": _mnist_by_writer,
    "cifar-10": _cifar10,
    "femnist": _femnist,
    "heart-disease": _heart,
    "tcga-brca": _brca,
    "shakespeare": _shakespeare,
    "synthetic": _synthetic,
}
_NORMALISED = {"heart-disease": "client"}  # data sets that are published normalised, and by what
DATASETS: Registry[Loader] = Registry(
    "data set", "fedcom.datasets", _BUILTIN, function_of("a fedcom.Request", or_nothing=True)
)


def _idx_arrays(found: Found) -> tuple[Arrays, Arrays]:
    """The four files of MNIST's layout as images [N, 1, H, W] and labels."""
    train, test = (
        Arrays(
            _idx(found, f"{half}-images-idx3-ubyte.gz", 3)[:, None],
            _idx(found, f"{half}-labels-idx1-ubyte.gz", 1),
        )
        for half in ("train", "t10k")
    )
    return train, test


def _idx(found: Found, name: str, axes: int) -> NDArray[Any]:
    """The array of one verified IDX file, which must have a number of axes."""
    array: NDArray[Any] = parse_idx(found.content(name), found.folder / name)
    if array.ndim != axes:
        raise DataError(f"{found.folder / name} has {array.ndim} axes, not {axes}; fetch it again")
    return array


def _extended_labels(found: Found, name: str, labels: NDArray[Any]) -> NDArray[Any]:
    """QMNIST's rows for MNIST's samples, which come first; refused if they disagree with MNIST's labels."""
    rows = _idx(found, name, 2)[: len(labels)]
    if rows.shape != (len(labels), 8) or not np.array_equal(rows[:, 0], labels):
        raise DataError(f"{found.folder / name} does not match MNIST's labels; fetch both again")
    return rows
