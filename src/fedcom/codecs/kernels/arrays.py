"""The numpy arrays that compiled loops take, by what they hold."""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]  # coordinates of vectors
Reals = NDArray[np.float64]  # tables and sums
Codes = NDArray[np.int32]  # what a quantiser makes of coordinates
Whole = TypeVar("Whole", NDArray[np.int32], NDArray[np.int8])  # codes, of eight bits where they fit
Ints = NDArray[np.int64]  # counts, frequencies and positions
Keys = NDArray[np.int64]  # the keys of draws
Symbols = NDArray[np.uint8]  # what an entropy coder takes
