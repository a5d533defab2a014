"""The largest gamma at which momentum and tracking are stable together, on two clients with quadratic losses.

    python -m benchmarks.momentum_stability

docs/decisions/server-momentum.md has the recursion and what it says.
"""

import numpy as np

TAU = 10
CURVATURES = ((0.5, 0.05), (1.0, 0.0), (1.9, -0.02))  # eta h of the two clients
ALPHAS = (1.0, 0.3, 0.1, 0.03, 0.0)
GAMMAS = np.geomspace(0.1, 400, 300)


def used(x: float) -> float:
    """(1 - (1 - x)^tau)/x, how many of its tau steps count."""
    return float(TAU) if x == 0 else (1 - (1 - x) ** TAU) / x


def growth(x1: float, x2: float, gamma: float, mu: float, alpha: float) -> float:
    """The largest eigenvalue, in size, of one round on (w, v, delta), with eta 1."""
    a1, a2 = used(x1), used(x2)
    v = np.array([(1 - mu) * (a1 * x1 + a2 * x2) / 2, mu, -(1 - mu) * (a1 - a2) / 2])
    w = np.array([1.0, 0.0, 0.0]) - gamma * v
    pull = alpha / TAU
    delta = np.array([pull * (a1 * x1 - a2 * x2) / 2, 0.0, 1 - pull * (a1 + a2) / 2])
    return float(np.abs(np.linalg.eigvals(np.stack([w, v, delta]))).max())


if __name__ == "__main__":
    for x1, x2 in CURVATURES:
        for mu in (0.0, 0.9):
            stable = [[g for g in GAMMAS if growth(x1, x2, g, mu, a) <= 1 + 1e-9] for a in ALPHAS]
            found = "  ".join(
                f"alpha {a:g}: {max(s, default=0):.1f}" for a, s in zip(ALPHAS, stable, strict=True)
            )
            print(f"x {x1:g}, {x2:g}  mu {mu:g}  {found}")
