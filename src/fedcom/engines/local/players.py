"""Who plays a stack's rounds: the host, or a GPU from a recording, of plain or of compiled kernels."""

from typing import Literal, Protocol

from fedcom.engines.local.compiled import fuse
from fedcom.engines.local.graph import Replay
from fedcom.engines.local.stack import Stack
from fedcom.errors import ConfigError

Engine = Literal["auto", "eager", "graph", "compiled"]


class Player(Protocol):
    """What steps a stack."""

    def step(self) -> None:
        """One round of every run."""


def player(stack: Stack, engine: Engine) -> Player:
    """The player an engine's name means."""
    on_gpu = stack.inputs.key.is_cuda
    if engine in ("graph", "compiled") and not on_gpu:
        raise ConfigError(f"engine {engine} replays rounds on a GPU, and this is a CPU; use auto or eager")
    whole = stack.group >= len(stack.inputs.client)
    if engine == "compiled":
        fuse(stack)
    return Replay(stack) if on_gpu and whole and engine != "eager" else stack
