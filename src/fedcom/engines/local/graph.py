"""A round as one CUDA graph: after a first round to warm up, a replay is all the host does."""

import torch

from fedcom.engines.local.stack import Stack, log

_WARM = 1  # rounds played before one is recorded: libraries set themselves up in the first


class Replay:
    """Steps a stack on a GPU; where a round cannot be recorded, it goes on playing and says why."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.refused: str | None = None
        self._graph: torch.cuda.CUDAGraph | None = None

    def step(self) -> None:
        """One round of every run."""
        self.stack.tell()
        if self._graph is None and self.refused is None and self.stack.round >= _WARM:
            self._record()
        if self._graph is None:
            self.stack.book(self.stack.play())
        else:
            self._graph.replay()
            self.stack.book(self._bills)

    def _record(self) -> None:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self._bills = self.stack.play()
        except RuntimeError as error:  # something asked the host for a decision
            torch.cuda.synchronize()
            first = error.__context__ or error  # to leave the recording is an error of its own
            self.refused = (str(first).strip() or type(first).__name__).splitlines()[0]
            log.warning("rounds cannot be recorded as a CUDA graph and are played: %s", self.refused)
        else:
            self._graph = graph
