"""The jobs that every contender does: numbers of clients and steps, random data, and a module."""

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

ETA = 0.1


@dataclass(frozen=True)
class Job:
    """Federated averaging: in each round some clients take local steps of SGD on their own data.

    Args:
        sampled: clients that take part in a round.
        samples: of each client.
        steps: local steps of each client per round.
        shape: of one sample.
        hidden: width of the hidden layers.
        epoch: whether minibatches are drawn without replacement, in one pass over the data.
        words: samples are rows of so many different whole numbers, and labels too; 0: samples are images.
    """

    name: str
    clients: int
    sampled: int
    samples: int
    batch: int
    steps: int
    shape: tuple[int, ...]
    hidden: int
    epoch: bool
    words: int = 0

    def data(self, device: str = "cpu") -> tuple[Tensor, Tensor]:
        """Samples and labels [clients, samples, ...]; random, since speed does not depend on the values."""
        generator = torch.Generator().manual_seed(0)
        rows = (self.clients, self.samples)
        if self.words:
            x = torch.randint(self.words, (*rows, *self.shape), generator=generator)
        else:
            x = torch.rand(*rows, *self.shape, generator=generator)
        y = torch.randint(self.words or 10, rows, generator=generator)
        return x.to(device), y.to(device)

    def module(self) -> nn.Module:
        """The network, with PyTorch's default initialisation."""
        torch.manual_seed(0)
        if self.words:
            return Reader(self.words, self.shape[0], self.hidden)
        return self._images() if len(self.shape) == 3 else self._flat()

    def _flat(self) -> nn.Module:
        h = self.hidden
        layers = (nn.Linear(prod(self.shape), h), nn.ReLU(), nn.Linear(h, h), nn.ReLU(), nn.Linear(h, 10))
        return nn.Sequential(*layers)

    def _images(self) -> nn.Module:
        """Two 3x3 convolutions without padding, one pooling and a hidden layer; no dropout."""
        channels, height, width = self.shape
        pixels = ((height - 4) // 2) * ((width - 4) // 2)
        return nn.Sequential(
            *(nn.Conv2d(channels, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU()),
            *(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64 * pixels, self.hidden), nn.ReLU()),
            nn.Linear(self.hidden, 10),
        )


class Reader(nn.Module):
    """A transformer of two layers that says what follows a row of words; no dropout.

    Args:
        words: how many different ones there are.
        length: of a row.
        width: of a word's vector.
    """

    def __init__(self, words: int, length: int, width: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Parameter(torch.zeros(length, width))
        layers = (
            nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True, norm_first=True)
            for _ in range(2)
        )
        self.layers, self.last = nn.Sequential(*layers), nn.Linear(width, words)

    def forward(self, x: Tensor) -> Tensor:
        """A score for each word, for every row."""
        scores: Tensor = self.last(self.layers(self.words(x) + self.places)[:, -1])
        return scores


JOBS = {
    "mnist": Job("mnist", 100, 100, 600, 50, 10, (784,), 200, epoch=False),
    "cifar-cnn": Job("cifar-cnn", 1000, 50, 50, 10, 5, (3, 32, 32), 128, epoch=True),
    "transformer": Job("transformer", 100, 20, 50, 10, 5, (80,), 64, epoch=True, words=90),
    "tiny": Job("tiny", 4, 4, 20, 5, 2, (12,), 8, epoch=False),
    "tiny-cnn": Job("tiny-cnn", 6, 3, 10, 5, 2, (3, 8, 8), 8, epoch=True),
    "tiny-transformer": Job("tiny-transformer", 6, 3, 10, 5, 2, (8,), 8, epoch=True, words=12),
}
