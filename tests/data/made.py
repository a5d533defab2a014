"""Small files in the official formats, and the source entries that describe them."""

import gzip
import hashlib
import struct
from pathlib import Path

import numpy as np

from fedcom.data.sources import Source

CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}


def idx(array):
    """An array as the content of an IDX file."""
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, CODES[array.dtype.str[1:]], array.ndim, *array.shape)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


def zipped(content):
    """Gzip without a time stamp, so that the same content gives the same bytes."""
    return gzip.compress(content, mtime=0)


def sha256(content):
    """A checksum as the table of sources has it."""
    return hashlib.sha256(content).hexdigest()


def lay(folder, files):
    """Write files into a folder."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (Path(folder) / name).write_bytes(content)


def mnist_like(n=12, tests=5, shift=0):
    """A few images of 28x28 pixels in MNIST's four files: content by file name, not yet zipped."""
    pixels = np.arange((n + tests) * 784).reshape(-1, 28, 28) * 7 % 256
    labels = (np.arange(n + tests) + shift) % 10
    pixels, labels = pixels.astype(np.uint8), labels.astype(np.uint8)
    return {
        "train-images-idx3-ubyte.gz": idx(pixels[:n]),
        "train-labels-idx1-ubyte.gz": idx(labels[:n]),
        "t10k-images-idx3-ubyte.gz": idx(pixels[n:]),
        "t10k-labels-idx1-ubyte.gz": idx(labels[n:]),
    }


def source_of(folder, contents, mirrors=("http://127.0.0.1:9/",)):
    """The source of zipped files with these contents."""
    return Source(
        folder=folder,
        files={name: sha256(content) for name, content in contents.items()},
        archives={name: sha256(zipped(content)) for name, content in contents.items()},
        mirrors=mirrors,
    )


def zip_all(contents):
    """The same contents zipped, as files on disk hold them."""
    return {name: zipped(content) for name, content in contents.items()}
