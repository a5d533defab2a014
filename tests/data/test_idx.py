import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcom.data.idx import parse_idx
from fedcom.errors import DataError
from tests.data.made import CODES, idx


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("shape", [(5,), (2, 3), (2, 3, 4), (1, 2, 2, 2)])
def test_arrays_are_read_back(code, shape):
    array = np.arange(np.prod(shape)).reshape(shape).astype(code)
    np.testing.assert_array_equal(parse_idx(idx(array), "file"), array)


@given(st.binary(max_size=64) | st.binary(max_size=24).map(lambda tail: b"\0\0\x08\x01" + tail))
def test_any_bytes_parse_or_are_refused(content):
    try:
        array = parse_idx(content, "file")
    except DataError:
        return
    assert idx(array) == content


@given(st.data())
def test_truncated_or_extended_files_are_refused(data):
    content = idx(np.arange(30, dtype="i4").reshape(3, 5, 2))
    cut = data.draw(st.integers(0, len(content) - 1))
    for damaged in (content[:cut], content + b"x" * (cut + 1)):
        with pytest.raises(DataError, match=r"here\.idx"):
            parse_idx(damaged, "here.idx")


def test_a_header_that_promises_terabytes_is_refused_before_any_allocation():
    header = struct.pack(">BBBB4I", 0, 0, 0x0E, 4, *[2**32 - 1] * 4)
    with pytest.raises(DataError, match="its header says"):
        parse_idx(header + bytes(64), "file")


def test_an_empty_axis_is_refused():
    with pytest.raises(DataError, match=r"\(0, 28, 28\)"):
        parse_idx(struct.pack(">BBBB3I", 0, 0, 0x08, 3, 0, 28, 28), "file")
