"""What a model is to the command line: settings, and a function that makes the module."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

from torch import nn

from fedcom import settings
from fedcom.tasks.adapters import Adapter
from fedcom.tasks.generate import Tokenizer
from fedcom.tasks.losses import Loss
from fedcom.tasks.norms import Choice


@dataclass(frozen=True)
class Model(ABC):
    """Makes a module; its settings are the fields of the dataclass.

    Args:
        batch_norm: what becomes of the statistics of BatchNorm layers: frozen, averaged or own.
        adapter: of the module, which is frozen then; or its name. None: all parameters are trained.
    """

    batch_norm: Choice | None = field(default=None, kw_only=True)
    adapter: Adapter | None = field(default=None, kw_only=True)

    name: ClassVar[str]
    needs_data: ClassVar[bool] = True  # must the shape of samples be known to make the module?

    def __post_init__(self) -> None:
        settings.check(self)

    @abstractmethod
    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """A new module with PyTorch's default initialisation.

        Args:
            shape: of one sample.
            classes: how many outputs there are.
        """

    def tokenizer(self) -> Tokenizer | None:
        """What turns text into the module's inputs; None: it is no language model, or has none of its own."""
        return None

    def norms(self) -> Choice | None:
        """The setting `batch_norm`, unless a module of the user's has an argument of that name."""
        return self.batch_norm

    def loss(self) -> Loss | None:
        """The loss of (outputs, targets); None: cross-entropy."""
        return None
