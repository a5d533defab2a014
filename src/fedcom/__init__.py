"""Communication-efficient federated learning: the FedCOM family of methods, with exact byte counts."""

__version__ = "0.1.0"
