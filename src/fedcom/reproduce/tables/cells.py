"""Which cells of the six tables are checked, and at which values of q, m, kappa, n and epsilon."""

from typing import Any

from fedcom.reproduce.tables.checks import Case, Check


def _case(method: str, objective: Any = "quadratic", **own: Any) -> Case:
    return Case(method, objective, **own)


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
    linear, paq, sparse = "κ(q/m + 1) log(1/ε)", "m + (q + 1)/(mε)", "κ(q + 1)/√ε"
    return [
        Check((1, 5), _case("fedcom"), "q", _GRID_Q, linear),
        Check((1, 5), _case("fedcom", q=31), "m", (*_CLIENTS, 32.0), linear),
        Check((1, 5), _case("fedcom", q=7), "kappa", _KAPPAS, linear),
        Check((1,), _case("fedcom", q=7), "epsilon", (*_LINEAR, 0.002), linear, "(q + 1)/(m(q/m + 1)ε)"),
        Check((1,), _case("fedpaq", noisy=True), "q", _GRID_Q[2:], paq),
        Check((1,), _case("fedpaq", q=7, noisy=True), "epsilon", (*_LINEAR, 0.002, 0.001), paq),
        Check((1,), _case("qsparse"), "q", _GRID_Q, sparse),
        Check((1,), _case("qsparse", q=7), "kappa", _KAPPAS, sparse),
        Check((1,), _case("qsparse", q=7), "epsilon", _SMALL, sparse),
        Check((1,), _case("fedcom", "wave", q=7), "epsilon", _WAVE, "1/ε", "(q + 1)/(mε)"),
        Check((1,), _case("fedcom", "wave", m=2, **_SUB), "q", _GRID_Q, "1/ε", "(q + 1)/(mε)"),
        Check((1,), _case("fedpaq", "wave", q=7), "epsilon", _WAVE, "1/ε", "((q/m)² + 1)/ε"),
        Check((1,), _case("qsparse", "wave", q=7), "epsilon", _WAVE, "(q + 1)/ε^1.5", "1/(m(q + 1)√ε)"),
        Check((1,), _case("fedcom", "flat", q=7), "epsilon", _FLAT, "(1 + q/m)/ε log(1/ε)"),
        Check((1, 5), _case("fedcom", "flat"), "q", _GRID_Q, "(1 + q/m)/ε log(1/ε)"),
        Check((1, 5), _case("fedcom", "logistic", **_SUB), "q", _GRID_Q, "(1 + q/m)/ε log(1/ε)"),
    ]


def _uncompressed() -> list[Check]:
    """Table 3."""
    return [
        Check((3,), _case("local-sgd"), "m", _CLIENTS, "mκ log(1/ε)", "1/(m²ε)"),
        Check((3,), _case("local-sgd"), "epsilon", _LINEAR, "(1/ε)^(1/3)", "1/(mε)"),
        Check((3,), _case("fedcom"), "m", _CLIENTS, "κ log(1/ε)", "1/(mε)"),
        Check((3,), _case("fedcom"), "kappa", _KAPPAS, "κ log(1/ε)"),
        Check((3,), _case("fedcom"), "epsilon", _LINEAR, "κ log(1/ε)", "1/(mε)"),
        Check((3,), _case("local-sgd", "wave", **_SUB), "m", _CLIENTS, "m/ε", "1/(m²ε)"),
        Check((3,), _case("fedcom", "wave", **_SUB), "m", _CLIENTS, "1/ε", "1/(mε)"),
        Check((3,), _case("fedcom", "wave"), "epsilon", _WAVE, "1/ε", "1/(mε)"),
        Check((3,), _case("local-sgd", "flat", m=2), "epsilon", _FLAT[:-1], "m/ε", "1/(m²ε)"),
        Check((3,), _case("fedcom", "flat"), "epsilon", _FLAT, "1/ε log(1/ε)"),
    ]


def _heterogeneous() -> list[Check]:
    """Table 2, and FedCOMGATE's rows of table 6."""
    linear, sparse, slow, both = "κ(q + 1) log(1/ε)", "κ(q + 1)/√ε", "(q + 1)/ε^1.5", (2, 6)
    checks = [
        Check((2,), _case("qsparse", **_HET), "q", _GRID_Q, sparse),
        Check((2,), _case("qsparse", q=7, **_HET), "epsilon", _SMALL, sparse),
        Check((2,), _case("qsparse", "wave", q=7, **_HET), "epsilon", _WAVE, slow, "1/(m(q + 1)√ε)"),
    ]
    for name, qs, q in (("fedcomgate", _FINE_Q, 0.6), ("fedcomgate damped", _GRID_Q, 7.0)):
        checks += [
            Check(both, _case(name, **_HET), "q", qs, linear),
            Check(both, _case(name, q=q, **_HET), "m", (2.0, 4.0, 8.0, 16.0), linear),
            Check(both, _case(name, q=q, **_HET), "kappa", _KAPPAS, linear),
            Check((2,), _case(name, q=q, **_HET), "epsilon", _LINEAR, linear, "1/(mε)"),
            Check(both, _case(name, "wave", **_SUB, **_HET), "q", qs, "(q + 1)/ε", "1/(mε)"),
            Check((2,), _case(name, "wave", q=q, **_HET), "epsilon", _WAVE, "(q + 1)/ε", "1/(mε)"),
            Check(both, _case(name, "flat", **_HET), "q", qs, "(1 + q)/ε log(1/ε)"),
            Check((2,), _case(name, "flat", q=q, **_HET), "epsilon", _FLAT, "(1 + q)/ε log(1/ε)"),
        ]
    return checks


def _tracked() -> list[Check]:
    """Table 4."""
    checks = []
    for name, convex in (("scaffold", "1/ε"), ("fedgate", "1/ε log(1/ε)")):
        checks += [
            Check((4,), _case(name, **_HET), "kappa", _KAPPAS, "κ log(1/ε)"),
            Check((4,), _case(name, **_HET), "epsilon", _LINEAR, "κ log(1/ε)", "1/(mε)"),
            Check((4,), _case(name, "wave", **_HET), "epsilon", _WAVE, "1/ε", "1/(mε)"),
            Check((4,), _case(name, "flat", **_HET), "epsilon", _FLAT, convex),
        ]
    some = _CLIENTS[1:]
    return [
        *checks,
        Check((4,), _case("fedgate", "wave", **_SUB, **_HET), "m", some, "1/ε", "1/(mε)"),
        Check((4,), _case("vrl-sgd", "wave", **_SUB, **_HET), "m", some, "m/ε", "1/(m²ε)"),
        Check((4,), _case("vrl-sgd", "wave", m=2, **_HET), "epsilon", _WAVE, "m/ε", "1/(m²ε)"),
        Check((4,), _case("local-sgd", "flat", **_HET), "epsilon", _FLAT[:-1], "1/ε^1.5", "1/(m√ε)"),
    ]


def _diana() -> list[Check]:
    """Tables 5 and 6, except for the paper's own methods."""
    checks = []
    for table, data in ((5, _HOM), (6, _HET)):
        for name, bound in (("diana", "κ + κq/m + q"), ("vr-diana", "κ + κq/m + q + n")):
            checks += [
                Check((table,), _case(name, n=8, **data), "q", _GRID_Q, bound),
                Check((table,), _case(name, n=8, q=7, **data), "kappa", _KAPPAS, bound),
            ]
        one = {"noisy": True, "batch": 1, **_SUB, **data}
        rough, smooth = "(1 + q/m)^½ (n^⅔ + q)/ε", "((1 + q/m)√n + q/√n)/ε"
        checks += [
            Check((table,), _case("vr-diana", "wave", **one), "q", _GRID_Q, rough),
            Check((table,), _case("vr-diana", "logistic", **one), "q", _GRID_Q, smooth),
            Check((table,), _case("vr-diana", "logistic", q=3, **one), "n", _SAMPLES, smooth),
        ]
    return checks


CHECKS = _checks()
