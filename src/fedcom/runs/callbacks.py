"""Callbacks that receive each row as it is measured; any function of one row can be a callback."""

from pathlib import Path

from fedcom.engines.simulation import Row
from fedcom.errors import ConfigError


class TensorBoard:
    """Writes every number of a row as a TensorBoard scalar; needs `pip install 'fedcom[tensorboard]'`.

    Args:
        folder: where TensorBoard's event files go.
    """

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ConfigError("TensorBoard is not installed; pip install 'fedcom[tensorboard]'") from None
        self._writer = SummaryWriter(str(folder))

    def __call__(self, row: Row) -> None:
        for key, value in row.items():
            if key != "round" and value is not None:
                self._writer.add_scalar(key, value, row["round"])
        self._writer.flush()
