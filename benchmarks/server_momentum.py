"""Momentum at the server beside plain steps: time per round in turn.

python -m benchmarks.server_momentum [--device cuda] [--rounds 20]
"""

from benchmarks.in_turn import compare, rates

import fedcom

if __name__ == "__main__":
    methods = [fedcom.FedCOM(**rates(), server=name) for name in ("sgd", "momentum")]
    compare(methods, __doc__.splitlines()[0])
