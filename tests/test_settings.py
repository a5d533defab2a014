"""Settings made in Python are checked like those from a file."""

from typing import Any

import pytest

from fedcom import ConfigError, FedAvg, FedCOMGATE, Int, Links, Qsgd, RandK, TopK
from fedcom.tasks.models import Mlp


@pytest.mark.parametrize(
    ("cls", "settings", "message"),
    [
        (Int, {"rounding": "up"}, "rounding must be 'stochastic' or 'nearest'; got 'up'"),
        (Int, {"bits": 2.5}, "bits must be a whole number; got 2.5"),
        (Int, {"bits": True}, "bits must be a whole number; got True"),
        (Int, {"bits": 2.0}, "bits must be a whole number; got 2.0"),
        (FedAvg, {"eta": float("inf")}, "eta must be a number or 'auto'; got inf"),
        (Mlp, {"hidden": 64}, "hidden must be whole numbers, such as 200,200; got 64"),
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
    ],
)
def test_wrong_types_and_choices_are_refused(cls: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        cls(**settings)
