"""Communication-efficient federated learning: the FedCOM family of methods, with exact byte counts."""

from fedcom.algorithms import (
    ALGORITHMS,
    VRLSGD,
    Algorithm,
    Diana,
    DiLoCo,
    EControl,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedCM,
    FedCOM,
    FedCOMGATE,
    FedCOMGATEExact,
    FedDyn,
    FedExP,
    FedGATE,
    FedNova,
    FedPAQ,
    FedYogi,
    LocalSGD,
    MuLoCo,
    Qsparse,
    Scafcom,
    Scaffold,
    ScaffoldM,
    Scallion,
    SparseLoCo,
    VRDiana,
)
from fedcom.algorithms.base import (
    Oracle,
    Round,
)
from fedcom.algorithms.local_optimisers import (
    LOCAL_OPTIMISERS,
    AdamWSteps,
    LocalOptimiser,
    LocalStep,
    MomentumSteps,
    MuonSteps,
    PlainSteps,
)
from fedcom.algorithms.optimisers import (
    OPTIMISERS,
    SGD,
    Adagrad,
    Adam,
    Momentum,
    Nesterov,
    ServerOptimiser,
    Yogi,
)
from fedcom.algorithms.schedules import (
    SCHEDULES,
    Schedule,
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
from fedcom.codecs.wire import (
    Field,
)
from fedcom.data import (
    DATASETS,
    PARTITIONS,
    Dataset,
    Partition,
    Population,
    Request,
    SplitRequest,
    Tokens,
    from_arrays,
    from_text,
    load,
    read_tokens,
    save_tokens,
    split,
)
from fedcom.draws import (
    Draw,
)
from fedcom.engines.results import (
    Results,
    Row,
)
from fedcom.engines.simulation import (
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
from fedcom.runs.callbacks import (
    Csv,
    MLflow,
    TensorBoard,
    WandB,
)
from fedcom.runs.curve import (
    Curve,
)
from fedcom.runs.record import (
    Outcome,
    record,
)
from fedcom.studies.compare import (
    Comparison,
)
from fedcom.studies.shown import (
    plot,
    report,
)
from fedcom.studies.sweep_report import (
    Sweep,
)
from fedcom.studies.workflow import (
    compare,
    sweep,
)
from fedcom.tasks.adapters import (
    Adapter,
    lora,
    merged,
)
from fedcom.tasks.export import (
    save_merged,
    save_peft,
)
from fedcom.tasks.generate import (
    generate,
    tokenizer_in,
)
from fedcom.tasks.language import (
    Gru,
    Transformer,
)
from fedcom.tasks.llama import (
    llama,
)
from fedcom.tasks.losses import (
    batch_loss,
    token_cross_entropy,
)
from fedcom.tasks.model import (
    Model,
)
from fedcom.tasks.models import (
    MODELS,
)
from fedcom.tasks.objective import (
    Objective,
)
from fedcom.tasks.scores import (
    Metric,
)
from fedcom.tasks.survival import (
    concordance_index,
    cox,
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
    Vectors,
)
from fedcom.version import VERSION as __version__

__all__ = [
    "ALGORITHMS",
    "CODECS",
    "DATASETS",
    "LOCAL_OPTIMISERS",
    "MODELS",
    "OPTIMISERS",
    "PARTITIONS",
    "SCHEDULES",
    "SGD",
    "VRLSGD",
    "Adagrad",
    "Adam",
    "AdamWSteps",
    "Adapter",
    "Algorithm",
    "Auto",
    "Codec",
    "Comparison",
    "ConfigError",
    "CountSketch",
    "Csv",
    "Curve",
    "DataError",
    "Dataset",
    "DiLoCo",
    "Diana",
    "Dithered",
    "Diverged",
    "Draw",
    "EControl",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedCM",
    "FedCOM",
    "FedCOMGATE",
    "FedCOMGATEExact",
    "FedDyn",
    "FedExP",
    "FedGATE",
    "FedNova",
    "FedPAQ",
    "FedYogi",
    "FedcomError",
    "Field",
    "Gru",
    "Identity",
    "Int",
    "Layout",
    "Links",
    "LocalOptimiser",
    "LocalSGD",
    "LocalStep",
    "LowRank",
    "MLflow",
    "Metric",
    "Model",
    "Momentum",
    "MomentumSteps",
    "MuLoCo",
    "MuonSteps",
    "Natural",
    "Nesterov",
    "Network",
    "Objective",
    "Oracle",
    "OutOfMemory",
    "Outcome",
    "Partition",
    "Peaks",
    "PlainSteps",
    "Population",
    "PowerSgd",
    "Qsgd",
    "Qsparse",
    "RandK",
    "Request",
    "Results",
    "Rotated",
    "Round",
    "Row",
    "Scafcom",
    "Scaffold",
    "ScaffoldM",
    "Scallion",
    "Schedule",
    "ServerOptimiser",
    "Sign",
    "Simulation",
    "SparseLoCo",
    "SplitRequest",
    "Storage",
    "StorageError",
    "Sweep",
    "Task",
    "TensorBoard",
    "TernGrad",
    "Tokens",
    "TopK",
    "Transformer",
    "VRDiana",
    "Vectors",
    "WandB",
    "WireError",
    "Yogi",
    "__version__",
    "batch_loss",
    "compare",
    "concordance_index",
    "cox",
    "from_arrays",
    "from_text",
    "generate",
    "llama",
    "load",
    "lora",
    "merged",
    "plot",
    "read_tokens",
    "record",
    "report",
    "save_merged",
    "save_peft",
    "save_tokens",
    "split",
    "sweep",
    "token_cross_entropy",
    "tokenizer_in",
]
