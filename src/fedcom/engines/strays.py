"""A warning if a round draws random numbers from elsewhere than the run's own draws."""

import pickle
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def watched(first: bool) -> Iterator[None]:
    """Warn if a global random generator is used in what follows.

    Args:
        first: whether this is the run's first round; others are not looked at.
    """
    before = _states() if first else {}
    yield
    after = _states() if first else {}
    used = [name for name, state in after.items() if before.get(name, state) != state]
    if used:
        warnings.warn(
            f"the first round drew from a global generator, {' and '.join(used)}: such a run cannot be "
            "repeated, and depends on how clients are grouped; in a codec use its draw, in a method rnd.coin",
            stacklevel=4,
        )


def _states() -> dict[str, object]:
    """Where each global generator stands; the host knows it for a GPU too."""
    used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    gpus = torch.cuda.default_generators if used else ()
    return {
        "torch's": torch.get_rng_state().numpy().tobytes(),
        "torch's on the GPU": tuple((gpu.initial_seed(), gpu.get_offset()) for gpu in gpus),
        "numpy's": pickle.dumps(np.random.get_state(legacy=False)),
        "Python's": random.getstate(),
    }
