"""The methods, one file each; only this module knows them all by name."""

from fedcom.algorithms.base import Algorithm
from fedcom.algorithms.diana import Diana
from fedcom.algorithms.fedavg import FedAvg
from fedcom.algorithms.fedcom import FedCOM
from fedcom.algorithms.fedcomgate import FedCOMGATE
from fedcom.algorithms.fedcomgate_exact import FedCOMGATEExact
from fedcom.algorithms.fedgate import FedGATE
from fedcom.algorithms.fedopt import FedAdagrad, FedAdam, FedAvgM, FedYogi
from fedcom.algorithms.fedpaq import FedPAQ
from fedcom.algorithms.local_sgd import LocalSGD
from fedcom.algorithms.qsparse import Qsparse
from fedcom.algorithms.scafcom import Scafcom
from fedcom.algorithms.scaffold import Scaffold
from fedcom.algorithms.scallion import Scallion
from fedcom.algorithms.vr_diana import VRDiana
from fedcom.algorithms.vrl_sgd import VRLSGD
from fedcom.registry import Registry, derived_from

_FAMILY = (
    LocalSGD,
    FedAvg,
    FedAvgM,
    FedAdam,
    FedYogi,
    FedAdagrad,
    FedPAQ,
    FedCOM,
    FedGATE,
    FedCOMGATE,
    FedCOMGATEExact,
    VRLSGD,
    Scaffold,
    Scallion,
    Scafcom,
    Qsparse,
    Diana,
    VRDiana,
)
ALGORITHMS: Registry[type[Algorithm]] = Registry(
    "algorithm", "fedcom.algorithms", {a.name: a for a in _FAMILY}, derived_from(Algorithm)
)

__all__ = [
    "ALGORITHMS",
    "VRLSGD",
    "Algorithm",
    "Diana",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedCOM",
    "FedCOMGATE",
    "FedCOMGATEExact",
    "FedGATE",
    "FedPAQ",
    "FedYogi",
    "LocalSGD",
    "Qsparse",
    "Scafcom",
    "Scaffold",
    "Scallion",
    "VRDiana",
]
