"""The methods, one file each; only this module knows them all by name."""

from fedcom.algorithms.base import Algorithm
from fedcom.algorithms.diana import Diana
from fedcom.algorithms.diloco import DiLoCo, MuLoCo, SparseLoCo
from fedcom.algorithms.econtrol import EControl
from fedcom.algorithms.fedavg import FedAvg
from fedcom.algorithms.fedcm import FedCM
from fedcom.algorithms.fedcom import FedCOM
from fedcom.algorithms.fedcomgate import FedCOMGATE
from fedcom.algorithms.fedcomgate_exact import FedCOMGATEExact
from fedcom.algorithms.feddyn import FedDyn
from fedcom.algorithms.fedexp import FedExP
from fedcom.algorithms.fedgate import FedGATE
from fedcom.algorithms.fednova import FedNova
from fedcom.algorithms.fedopt import FedAdagrad, FedAdam, FedAvgM, FedYogi
from fedcom.algorithms.fedpaq import FedPAQ
from fedcom.algorithms.local_sgd import LocalSGD
from fedcom.algorithms.qsparse import Qsparse
from fedcom.algorithms.scafcom import Scafcom
from fedcom.algorithms.scaffold import Scaffold
from fedcom.algorithms.scaffold_m import ScaffoldM
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
    FedNova,
    FedExP,
    FedCM,
    FedDyn,
    FedPAQ,
    FedCOM,
    FedGATE,
    FedCOMGATE,
    FedCOMGATEExact,
    VRLSGD,
    Scaffold,
    ScaffoldM,
    Scallion,
    Scafcom,
    Qsparse,
    EControl,
    Diana,
    VRDiana,
    DiLoCo,
    MuLoCo,
    SparseLoCo,
)
ALGORITHMS: Registry[type[Algorithm]] = Registry(
    "algorithm", "fedcom.algorithms", {a.name: a for a in _FAMILY}, derived_from(Algorithm)
)

__all__ = [
    "ALGORITHMS",
    "VRLSGD",
    "Algorithm",
    "DiLoCo",
    "Diana",
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
    "LocalSGD",
    "MuLoCo",
    "Qsparse",
    "Scafcom",
    "Scaffold",
    "ScaffoldM",
    "Scallion",
    "SparseLoCo",
    "VRDiana",
]
