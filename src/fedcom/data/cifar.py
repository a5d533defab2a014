"""The two formats of CIFAR-10: binary records, and pickles, from which only arrays are read."""

import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

from fedcom.data.dataset import Arrays
from fedcom.data.files import Found
from fedcom.errors import DataError

_PIXELS = 3 * 32 * 32


def read_cifar(found: Found) -> tuple[Arrays, Arrays]:
    """Training and test images [N, 3, 32, 32] with their labels."""
    batches = dict[str, Arrays]()
    for name in found.source.files:
        parse = parse_records if name.endswith(".bin") else parse_pickle
        batches[name] = parse(found.content(name), found.folder / name)
    train = [batch for name, batch in batches.items() if not name.startswith("test")]
    test = [batch for name, batch in batches.items() if name.startswith("test")]
    return _join(train), _join(test)


def _join(batches: list[Arrays]) -> Arrays:
    """Batches one after the other."""
    return Arrays(np.concatenate([b.x for b in batches]), np.concatenate([b.y for b in batches]))


def parse_records(content: bytes, where: object) -> Arrays:
    """The binary version: records of one label and 3072 pixels, plane by plane; `where` names the file."""
    if not content or len(content) % (1 + _PIXELS):
        raise DataError(f"{where} has {len(content)} bytes, not a multiple of {1 + _PIXELS}; fetch it again")
    records = np.frombuffer(content, np.uint8).reshape(-1, 1 + _PIXELS)
    return Arrays(records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0])


def parse_pickle(content: bytes, where: object) -> Arrays:
    """The python version: a dictionary with b'data' [N, 3072] and b'labels'; `where` names the file."""
    try:
        batch = _ArrayUnpickler(io.BytesIO(content), encoding="bytes").load()
        batch = {key.encode() if isinstance(key, str) else key: value for key, value in batch.items()}
        pixels, labels = batch[b"data"], np.array(batch[b"labels"], np.int64)
    except DataError as error:
        raise DataError(f"{where} is refused: {error}") from error
    except Exception as error:  # a damaged pickle may raise any error
        raise DataError(f"{where} is not a pickled CIFAR-10 batch: {error!r}; fetch it again") from error
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (_PIXELS,):
        raise DataError(f"{where}: b'data' is not an array of bytes of shape [N, {_PIXELS}]; fetch it again")
    return Arrays(pixels.reshape(-1, 3, 32, 32), labels)


def _dtype(code: Any, *_: Any) -> Any:
    """numpy.dtype, but without the positional flags of old pickles, and refusing arrays of objects."""
    dtype = np.dtype(code)
    if dtype.hasobject:
        raise DataError(f"the pickle holds an array of {dtype}, not of numbers")
    return dtype


def _latin1(text: str, *_: Any) -> bytes:
    """_codecs.encode, by which pickles of old protocols write bytes."""
    return text.encode("latin1")


_RECONSTRUCT: Any = np.empty(0).__reduce__()[0]  # numpy's function that makes an array from a pickle
_ALLOWED: dict[str, Callable[..., Any]] = {
    "numpy.core.multiarray._reconstruct": _RECONSTRUCT,
    "numpy._core.multiarray._reconstruct": _RECONSTRUCT,
    "numpy.ndarray": np.ndarray,
    "numpy.dtype": _dtype,
    "_codecs.encode": _latin1,
}


class _ArrayUnpickler(pickle.Unpickler):
    """Builds arrays, dictionaries, lists, numbers and bytes; any other name is refused."""

    def find_class(self, module: str, name: str) -> Any:
        """What a name in a pickle stands for; nothing else in a pickle can reach code."""
        if f"{module}.{name}" not in _ALLOWED:
            raise DataError(
                f"the pickle asks for {module}.{name}, which data does not need; do not trust this file"
            )
        return _ALLOWED[f"{module}.{name}"]
