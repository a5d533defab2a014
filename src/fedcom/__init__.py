"""Communication-efficient federated learning: the FedCOM family of methods, with exact byte counts."""

from fedcom.algorithms import (
    ALGORITHMS,
    VRLSGD,
    Algorithm,
    Diana,
    FedAvg,
    FedCOM,
    FedCOMGATE,
    FedCOMGATEExact,
    FedGATE,
    FedPAQ,
    LocalSGD,
    Qsparse,
    Scafcom,
    Scaffold,
    Scallion,
    VRDiana,
)
from fedcom.codecs import (
    CODECS,
    Auto,
    Codec,
    CountSketch,
    Dithered,
    Identity,
    Int,
    LowRank,
    Natural,
    Peaks,
    PowerSgd,
    Qsgd,
    RandK,
    Rotated,
    Sign,
    TernGrad,
    TopK,
)
from fedcom.data import (
    Dataset,
    Population,
    from_arrays,
    load,
    split,
)
from fedcom.draws import (
    Draw,
)
from fedcom.engines.simulation import (
    Row,
    Simulation,
)
from fedcom.engines.state.stores import (
    Storage,
)
from fedcom.errors import (
    ConfigError,
    DataError,
    Diverged,
    FedcomError,
    OutOfMemory,
    StorageError,
    WireError,
)
from fedcom.runs.record import (
    Outcome,
    record,
)
from fedcom.tasks.objective import (
    Objective,
)
from fedcom.tasks.task import (
    Task,
)
from fedcom.traffic.links import (
    Links,
)
from fedcom.traffic.network import (
    Network,
)
from fedcom.vectors import (
    Layout,
)
from fedcom.version import VERSION as __version__

__all__ = [
    "ALGORITHMS",
    "CODECS",
    "VRLSGD",
    "Algorithm",
    "Auto",
    "Codec",
    "ConfigError",
    "CountSketch",
    "DataError",
    "Dataset",
    "Diana",
    "Dithered",
    "Diverged",
    "Draw",
    "FedAvg",
    "FedCOM",
    "FedCOMGATE",
    "FedCOMGATEExact",
    "FedGATE",
    "FedPAQ",
    "FedcomError",
    "Identity",
    "Int",
    "Layout",
    "Links",
    "LocalSGD",
    "LowRank",
    "Natural",
    "Network",
    "Objective",
    "OutOfMemory",
    "Outcome",
    "Peaks",
    "Population",
    "PowerSgd",
    "Qsgd",
    "Qsparse",
    "RandK",
    "Rotated",
    "Row",
    "Scafcom",
    "Scaffold",
    "Scallion",
    "Sign",
    "Simulation",
    "Storage",
    "StorageError",
    "Task",
    "TernGrad",
    "TopK",
    "VRDiana",
    "WireError",
    "__version__",
    "from_arrays",
    "load",
    "record",
    "split",
]
