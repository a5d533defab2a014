"""Outer steps for any PyTorch training loop: workers train apart and exchange compressed changes.

outer = Outer(model, codec="rotated", bits=0.25, every=50)
for batch in loader:
    loss(model, batch).backward(); optimizer.step(); optimizer.zero_grad()
    outer.step()
outer.finish()
"""

from fedcom.outer.hook import Gradients, hook
from fedcom.outer.links import start
from fedcom.outer.outer import Outer
from fedcom.outer.store import restore, save

__all__ = ["Gradients", "Outer", "hook", "restore", "save", "start"]
