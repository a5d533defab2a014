"""Communication-efficient federated learning: the FedCOM family of methods, with exact byte counts."""

from fedcom.algorithms import *
from fedcom.clients import Storage
from fedcom.codecs import *
from fedcom.data import Dataset, Population, from_arrays, load, split
from fedcom.draws import Draw
from fedcom.engines.local import Row, Simulation
from fedcom.errors import ConfigError, DataError, Diverged, FedcomError, WireError
from fedcom.links import Links
from fedcom.network import Network
from fedcom.objective import Objective
from fedcom.task import Task
from fedcom.vectors import Layout

__version__ = "0.1.0"
