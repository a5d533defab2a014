"""Communication-efficient federated learning: the FedCOM family of methods, with exact byte counts."""

from fedcom.algorithms import *
from fedcom.codecs import *
from fedcom.data import Dataset, Population, from_arrays, load, split
from fedcom.draws import Draw
from fedcom.engines.simulation import Row, Simulation
from fedcom.engines.state.stores import Storage
from fedcom.errors import ConfigError, DataError, Diverged, FedcomError, WireError
from fedcom.tasks.objective import Objective
from fedcom.tasks.task import Task
from fedcom.traffic.links import Links
from fedcom.traffic.network import Network
from fedcom.vectors import Layout
from fedcom.version import VERSION as __version__
