"""Settings made in Python are checked like those from a file."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from fedcom import ConfigError, FedAvg, FedCOMGATE, Int, Links, Qsgd, RandK, Storage, TopK
from fedcom.tasks.models import Mlp


@pytest.mark.parametrize(
    ("cls", "settings", "message"),
    [
        (Int, {"rounding": "up"}, "rounding must be 'stochastic' or 'nearest'; got 'up'"),
        (Int, {"bits": 2.5}, "bits must be a whole number; got 2.5"),
        (Int, {"bits": True}, "bits must be a whole number; got True"),
        (FedAvg, {"eta": float("inf")}, "eta must be a number or 'auto'; got inf"),
        (Qsgd, {"scale": "layer"}, "scale must be 'tensor' or 'vector'"),
        (TopK, {"values": "half"}, "values must be 'float' or 'int'"),
        (RandK, {"ratio": float("nan")}, "ratio must be a number; got nan"),
        (FedAvg, {"weights": "sizes"}, "weights must be 'uniform' or 'size'"),
        (FedAvg, {"batch": "all"}, "batch must be a whole number or 'full'; got 'all'"),
        (FedAvg, {"tau": (1, 2.5)}, "tau must be a whole number or whole numbers"),
        (FedAvg, {"eta": "0.1"}, "eta must be a number or 'auto'; got '0.1'"),
        (Links, {"uplink": Int(), "uplink_memory": "ef"}, "uplink_memory must be 'none' or 'error-feedback'"),
        (Links, {"uplink": Int(), "downlink_memory": False}, "downlink_memory must be 'none' or"),
        (Links, {"uplink": Int(), "clip": 0.0}, "clip must be above 0; got 0"),
        (FedCOMGATE, {"damping": "on"}, "damping must be a number or 'auto'; got 'on'"),
        (Mlp, {"hidden": ("a",)}, "hidden must be whole numbers"),
        (FedAvg, {"tau": 5, "epochs": 2}, "epochs sets the local steps, so tau=5 would have no effect"),
        (Storage, {"home": "cloud"}, "home must be 'auto' or 'memory' or 'disk'; got 'cloud'"),
    ],
)
def test_wrong_types_and_choices_are_refused(cls: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        cls(**settings)


@pytest.mark.parametrize(
    ("made", "plain"),
    [
        (FedAvg(eta=np.float32(0.5), tau=np.int64(3)), FedAvg(eta=0.5, tau=3)),
        (FedAvg(eta=torch.tensor(0.5), tau=np.array([1, 2])), FedAvg(eta=0.5, tau=(1, 2))),
        (FedAvg(tau=[1, np.int32(2)], batch=20.0), FedAvg(tau=(1, 2), batch=20)),
        (Int(bits=np.uint8(2)), Int(bits=2)),
        (Mlp(hidden=64), Mlp(hidden=(64,))),
    ],
)
def test_numbers_of_numpy_and_torch_become_pythons_own(made: Any, plain: Any) -> None:
    assert repr(made) == repr(plain)  # a codec's repr is part of its messages' fingerprint


def test_any_annotation_of_a_class_of_ones_own_will_do() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Own(FedAvg):
        how: Callable[[float], float] = math.sqrt
        thing: Any = True
        table: Mapping[str, int] = field(default_factory=dict)
        several: list[int] = field(default_factory=lambda: [1, 2])
        pair: tuple[str, float] = ("a", 1)

        name: ClassVar[str] = "own"

    own = replace(Own(), eta=0.1)
    assert own.how(4) == 2
    assert own.several == (1, 2)
    with pytest.raises(ConfigError, match="how must be "):
        Own(how=3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="pair must be "):
        Own(pair=("a", "b"))  # type: ignore[arg-type]
