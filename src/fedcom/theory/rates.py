"""The rates that the paper's tables state: rounds R and local steps tau to an accuracy, without constants."""

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

from fedcom.errors import ConfigError


class Factors(Protocol):
    """What the tables' rates are functions of."""

    @property
    def q(self) -> float:
        """The codec's relative variance."""

    @property
    def m(self) -> int:
        """Clients."""

    @property
    def kappa(self) -> float:
        """The condition number."""

    @property
    def n(self) -> int:
        """Samples per client."""

    @property
    def epsilon(self) -> float:
        """The accuracy to reach."""


Formula = Callable[[Factors], float]


def _log(s: Factors) -> float:
    return math.log(1 / s.epsilon)


# Rounds, by the way they are written.
ROUNDS: dict[str, Formula] = {
    "κ(q/m + 1) log(1/ε)": lambda s: s.kappa * (s.q / s.m + 1) * _log(s),
    "κ(q + 1) log(1/ε)": lambda s: s.kappa * (s.q + 1) * _log(s),
    "κ log(1/ε)": lambda s: s.kappa * _log(s),
    "mκ log(1/ε)": lambda s: s.m * s.kappa * _log(s),
    "κ(q + 1)/√ε": lambda s: s.kappa * (s.q + 1) / math.sqrt(s.epsilon),
    "m + (q + 1)/(mε)": lambda s: s.m + (s.q + 1) / s.m / s.epsilon,
    "κ + κq/m + q": lambda s: s.kappa + s.kappa * s.q / s.m + s.q,
    "κ + κq/m + q + n": lambda s: s.kappa + s.kappa * s.q / s.m + s.q + s.n,
    "(1/ε)^(1/3)": lambda s: s.epsilon ** (-1 / 3),
    "1/ε": lambda s: 1 / s.epsilon,
    "m/ε": lambda s: s.m / s.epsilon,
    "1/ε^1.5": lambda s: s.epsilon**-1.5,
    "(q + 1)/ε": lambda s: (s.q + 1) / s.epsilon,
    "(q + 1)/ε^1.5": lambda s: (s.q + 1) * s.epsilon**-1.5,
    "(1 + q/m)/ε log(1/ε)": lambda s: (1 + s.q / s.m) / s.epsilon * _log(s),
    "(1 + q)/ε log(1/ε)": lambda s: (1 + s.q) / s.epsilon * _log(s),
    "1/ε log(1/ε)": lambda s: _log(s) / s.epsilon,
    "(1 + q/m)^½ (n^⅔ + q)/ε": lambda s: math.sqrt(1 + s.q / s.m) * (s.n ** (2 / 3) + s.q) / s.epsilon,
    "((1 + q/m)√n + q/√n)/ε": lambda s: ((1 + s.q / s.m) * s.n**0.5 + s.q * s.n**-0.5) / s.epsilon,
}
# Local steps, by the way they are written.
LOCAL_STEPS: dict[str, Formula] = {
    "1": lambda s: 1.0,
    "(q + 1)/(m(q/m + 1)ε)": lambda s: (s.q + 1) / s.m / (s.q / s.m + 1) / s.epsilon,
    "(q + 1)/(mε)": lambda s: (s.q + 1) / s.m / s.epsilon,
    "((q/m)² + 1)/ε": lambda s: ((s.q / s.m) ** 2 + 1) / s.epsilon,
    "1/(mε)": lambda s: 1 / s.m / s.epsilon,
    "1/(m²ε)": lambda s: 1 / s.m**2 / s.epsilon,
    "1/(mε²)": lambda s: 1 / s.m / s.epsilon**2,
    "1/(m√ε)": lambda s: 1 / s.m / math.sqrt(s.epsilon),
    "1/(m(q + 1)√ε)": lambda s: 1 / s.m / (s.q + 1) / math.sqrt(s.epsilon),
    "(q + 1)²/(m(q/m + 1)²ε²)": lambda s: (s.q + 1) ** 2 / s.m / (s.q / s.m + 1) ** 2 / s.epsilon**2,
}


class Rate(NamedTuple):
    """One cell of a table.

    Args:
        rounds: a key of ROUNDS.
        tau: a key of LOCAL_STEPS.
    """

    rounds: str
    tau: str

    def at(self, s: Factors) -> tuple[float, float]:
        """R and tau, without constants."""
        return ROUNDS[self.rounds](s), LOCAL_STEPS[self.tau](s)


_ROUGH, _STRONG, _CONVEX = "nonconvex", "strongly convex", "convex"
_QSPARSE = {
    ("qsparse", _ROUGH): Rate("(q + 1)/ε^1.5", "1/(m(q + 1)√ε)"),
    ("qsparse", _STRONG): Rate("κ(q + 1)/√ε", "1/(m(q + 1)√ε)"),
}
_DIANA = {
    ("diana", _STRONG): Rate("κ + κq/m + q", "1"),
    ("vr-diana", _ROUGH): Rate("(1 + q/m)^½ (n^⅔ + q)/ε", "1"),
    ("vr-diana", _STRONG): Rate("κ + κq/m + q + n", "1"),
    ("vr-diana", _CONVEX): Rate("((1 + q/m)√n + q/√n)/ε", "1"),
}
_FEDCOM = {  # table 5 prints other tau, with q/m for q; those of Theorem 5.1 follow from its bounds
    ("fedcom", _ROUGH): Rate("1/ε", "(q + 1)/(mε)"),
    ("fedcom", _STRONG): Rate("κ(q/m + 1) log(1/ε)", "(q + 1)/(m(q/m + 1)ε)"),
    ("fedcom", _CONVEX): Rate("(1 + q/m)/ε log(1/ε)", "(q + 1)²/(m(q/m + 1)²ε²)"),
}
_FEDCOMGATE = {
    ("fedcomgate", _ROUGH): Rate("(q + 1)/ε", "1/(mε)"),
    ("fedcomgate", _STRONG): Rate("κ(q + 1) log(1/ε)", "1/(mε)"),
    ("fedcomgate", _CONVEX): Rate("(1 + q)/ε log(1/ε)", "1/(mε²)"),
}
# The cells of each table, by method and kind of objective. Of local SGD table 3 cites three papers, two of
# them on strongly convex objectives.
TABLES: dict[int, dict[tuple[str, str], Rate]] = {
    1: {
        **_QSPARSE,
        ("fedpaq", _ROUGH): Rate("1/ε", "((q/m)² + 1)/ε"),
        ("fedpaq", _STRONG): Rate("m + (q + 1)/(mε)", "1"),
        **_FEDCOM,
    },
    2: {**_QSPARSE, **_FEDCOMGATE},
    3: {
        ("local-sgd of Haddadpour", _STRONG): Rate("(1/ε)^(1/3)", "1/(mε)"),
        ("local-sgd", _STRONG): Rate("mκ log(1/ε)", "1/(m²ε)"),
        ("local-sgd", _CONVEX): Rate("m/ε", "1/(m²ε)"),
        ("local-sgd", _ROUGH): Rate("m/ε", "1/(m²ε)"),
        ("fedcom", _ROUGH): Rate("1/ε", "1/(mε)"),
        ("fedcom", _STRONG): Rate("κ log(1/ε)", "1/(mε)"),
        ("fedcom", _CONVEX): Rate("1/ε log(1/ε)", "1/(mε²)"),
    },
    4: {
        ("scaffold", _ROUGH): Rate("1/ε", "1/(mε)"),
        ("scaffold", _STRONG): Rate("κ log(1/ε)", "1/(mε)"),
        ("scaffold", _CONVEX): Rate("1/ε", "1/(mε)"),
        ("local-sgd", _CONVEX): Rate("1/ε^1.5", "1/(m√ε)"),
        ("vrl-sgd", _ROUGH): Rate("m/ε", "1/(m²ε)"),
        ("fedgate", _ROUGH): Rate("1/ε", "1/(mε)"),
        ("fedgate", _STRONG): Rate("κ log(1/ε)", "1/(mε)"),
        ("fedgate", _CONVEX): Rate("1/ε log(1/ε)", "1/(mε²)"),
    },
    5: {**_DIANA, **_FEDCOM},
    6: {**_DIANA, **_FEDCOMGATE},
}


def rate(table: int, method: str, objective: str) -> Rate:
    """What a table states of a method on a kind of objective."""
    try:
        return TABLES[table][method, objective]
    except KeyError:
        raise ConfigError(f"table {table} states no rate of {method} on {objective} objectives") from None
