"""Momentum and AdamW in the clients' steps beside plain steps: time per round in turn.

    python -m benchmarks.local_optimisers [--device cuda] [--engine graph] [--rounds 20]

The bars are 1.25 for momentum and 1.6 for AdamW.
"""

from benchmarks.in_turn import compare, rates

import fedcom

if __name__ == "__main__":
    for name in ("momentum", "adamw"):
        print(f"local sgd, then local {name}")
        methods = [fedcom.FedCOM(**{**rates(), "eta": 0.001}, local=one) for one in ("sgd", name)]
        compare(methods, __doc__.splitlines()[0])
