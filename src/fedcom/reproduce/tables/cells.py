"""Which cells of the six tables are checked, and at which values of q, m, kappa, n and epsilon."""

from typing import Any

from fedcom.reproduce.tables.checks import Case, Check
from fedcom.theory.rates import rate


def _case(method: str, objective: Any = "quadratic", **own: Any) -> Case:
    return Case(method, objective, **own)


def _check(
    tables: tuple[int, ...],
    case: Case,
    factor: str,
    values: tuple[float, ...],
    *,
    local: bool = False,
    of: str | None = None,
) -> Check:
    """A check of what the first of some tables states of a case.

    Args:
        local: with the local steps that it states, instead of the case's own.
        of: whose rate it is, if not that of the case's method.
    """
    stated = rate(tables[0], of or case.method.removesuffix(" damped"), case.column)
    return Check(tables, case, factor, values, stated.rounds, stated.tau if local else None)


_GRID_Q = (0.0, 1.0, 3.0, 7.0, 15.0, 31.0)
_FINE_Q = (0.0, 1 / 7, 1 / 3, 0.6, 1.0, 3.0)  # tracking as printed diverges for q above about 1
_KAPPAS, _CLIENTS = (8.0, 16.0, 32.0, 64.0, 128.0), (1.0, 2.0, 4.0, 8.0, 16.0)
_SAMPLES = (64.0, 128.0, 256.0, 512.0)
_SMALL = (0.1, 0.03, 0.01, 0.003, 0.001)
_LINEAR = (0.1, 0.05, 0.02, 0.01, 0.005)
_WAVE, _FLAT = (0.1, 0.05, 0.03, 0.02), (0.1, 0.03, 0.01, 0.003, 0.001)
_SUB = {"epsilon": 0.1}  # for wave and logistic, where a smaller epsilon would take long
_HOM, _HET = {"alike": True}, {"alike": False}


def _checks() -> list[Check]:
    return [*_homogeneous(), *_uncompressed(), *_heterogeneous(), *_tracked(), *_diana()]


def _homogeneous() -> list[Check]:
    """Table 1."""
    return [
        _check((1, 5), _case("fedcom"), "q", _GRID_Q),
        _check((1, 5), _case("fedcom", q=31), "m", (*_CLIENTS, 32.0)),
        _check((1, 5), _case("fedcom", q=7), "kappa", _KAPPAS),
        _check((1,), _case("fedcom", q=7), "epsilon", (*_LINEAR, 0.002), local=True),
        _check((1,), _case("fedpaq", noisy=True), "q", _GRID_Q[2:]),
        _check((1,), _case("fedpaq", q=7, noisy=True), "epsilon", (*_LINEAR, 0.002, 0.001)),
        _check((1,), _case("qsparse"), "q", _GRID_Q),
        _check((1,), _case("qsparse", q=7), "kappa", _KAPPAS),
        _check((1,), _case("qsparse", q=7), "epsilon", _SMALL),
        _check((1,), _case("fedcom", "wave", q=7), "epsilon", _WAVE, local=True),
        _check((1,), _case("fedcom", "wave", m=2, **_SUB), "q", _GRID_Q, local=True),
        _check((1,), _case("fedpaq", "wave", q=7), "epsilon", _WAVE, local=True),
        _check((1,), _case("qsparse", "wave", q=7), "epsilon", _WAVE, local=True),
        _check((1,), _case("fedcom", "flat", q=7), "epsilon", _FLAT),
        _check((1, 5), _case("fedcom", "flat"), "q", _GRID_Q),
        _check((1, 5), _case("fedcom", "logistic", **_SUB), "q", _GRID_Q),
    ]


def _uncompressed() -> list[Check]:
    """Table 3."""
    return [
        _check((3,), _case("local-sgd"), "m", _CLIENTS, local=True),
        _check((3,), _case("local-sgd"), "epsilon", _LINEAR, local=True, of="local-sgd of Haddadpour"),
        _check((3,), _case("fedcom"), "m", _CLIENTS, local=True),
        _check((3,), _case("fedcom"), "kappa", _KAPPAS),
        _check((3,), _case("fedcom"), "epsilon", _LINEAR, local=True),
        _check((3,), _case("local-sgd", "wave", **_SUB), "m", _CLIENTS, local=True),
        _check((3,), _case("fedcom", "wave", **_SUB), "m", _CLIENTS, local=True),
        _check((3,), _case("fedcom", "wave"), "epsilon", _WAVE, local=True),
        _check((3,), _case("local-sgd", "flat", m=2), "epsilon", _FLAT[:-1], local=True),
        _check((3,), _case("fedcom", "flat"), "epsilon", _FLAT),
    ]


def _heterogeneous() -> list[Check]:
    """Table 2, and FedCOMGATE's rows of table 6."""
    both = (2, 6)
    checks = [
        _check((2,), _case("qsparse", **_HET), "q", _GRID_Q),
        _check((2,), _case("qsparse", q=7, **_HET), "epsilon", _SMALL),
        _check((2,), _case("qsparse", "wave", q=7, **_HET), "epsilon", _WAVE, local=True),
    ]
    for name, qs, q in (("fedcomgate", _FINE_Q, 0.6), ("fedcomgate damped", _GRID_Q, 7.0)):
        checks += [
            _check(both, _case(name, **_HET), "q", qs),
            _check(both, _case(name, q=q, **_HET), "m", (2.0, 4.0, 8.0, 16.0)),
            _check(both, _case(name, q=q, **_HET), "kappa", _KAPPAS),
            _check((2,), _case(name, q=q, **_HET), "epsilon", _LINEAR, local=True),
            _check(both, _case(name, "wave", **_SUB, **_HET), "q", qs, local=True),
            _check((2,), _case(name, "wave", q=q, **_HET), "epsilon", _WAVE, local=True),
            _check(both, _case(name, "flat", **_HET), "q", qs),
            _check((2,), _case(name, "flat", q=q, **_HET), "epsilon", _FLAT),
        ]
    return checks


def _tracked() -> list[Check]:
    """Table 4."""
    checks = []
    for name in ("scaffold", "fedgate"):
        checks += [
            _check((4,), _case(name, **_HET), "kappa", _KAPPAS),
            _check((4,), _case(name, **_HET), "epsilon", _LINEAR, local=True),
            _check((4,), _case(name, "wave", **_HET), "epsilon", _WAVE, local=True),
            _check((4,), _case(name, "flat", **_HET), "epsilon", _FLAT),
        ]
    some = _CLIENTS[1:]
    return [
        *checks,
        _check((4,), _case("fedgate", "wave", **_SUB, **_HET), "m", some, local=True),
        _check((4,), _case("vrl-sgd", "wave", **_SUB, **_HET), "m", some, local=True),
        _check((4,), _case("vrl-sgd", "wave", m=2, **_HET), "epsilon", _WAVE, local=True),
        _check((4,), _case("local-sgd", "flat", **_HET), "epsilon", _FLAT[:-1], local=True),
    ]


def _diana() -> list[Check]:
    """Tables 5 and 6, except for the paper's own methods."""
    checks = []
    for table, data in ((5, _HOM), (6, _HET)):
        for name in ("diana", "vr-diana"):
            checks += [
                _check((table,), _case(name, n=8, **data), "q", _GRID_Q),
                _check((table,), _case(name, n=8, q=7, **data), "kappa", _KAPPAS),
            ]
        one = {"noisy": True, "batch": 1, **_SUB, **data}
        checks += [
            _check((table,), _case("vr-diana", "wave", **one), "q", _GRID_Q),
            _check((table,), _case("vr-diana", "logistic", **one), "q", _GRID_Q),
            _check((table,), _case("vr-diana", "logistic", q=3, **one), "n", _SAMPLES),
        ]
    return checks


CHECKS = _checks()
