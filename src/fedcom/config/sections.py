"""The sections of a config that are neither a method, a model nor a codec."""

from dataclasses import dataclass
from typing import Literal

from fedcom.codecs import Codec
from fedcom.engines.base import Exchange
from fedcom.engines.choice import AUTO, check_name
from fedcom.engines.state.stores import Storage
from fedcom.engines.stopping import Stopping
from fedcom.errors import ConfigError, unknown
from fedcom.traffic.links import DownlinkMemory, First, Memory, at_budget, budgets_from

TEXT = "text"  # the data.name of text in data.path
TRACKERS = ("csv", "tensorboard", "mlflow", "wandb")  # what run.log may name
_LEAST = {  # of the settings under [run]
    "rounds": 0,
    "eval_every": 1,
    "seed": 0,
    "chunk": 1,
    "microbatch": 1,
    "checkpoint_minutes": 0,
    "checkpoint_rounds": 1,
    "patience": 1,
}


@dataclass(frozen=True)
class DataConfig:
    """Which data, and how it is dealt to clients; None: what suits the data set.

    Args:
        path: a file of the user's own, in place of name; see `read_own`. With name = "text" a folder of text,
            or .jsonl; see `read_texts`.
        label_column: of its columns or arrays, the one with the labels.
        client_column: of its columns or arrays, the one with the client of each row; of .jsonl, the field.
        text_column: of .jsonl, the field with the text.
        time_column: of its columns, the one with times, for survival; then there is no label.
        event_column: the one that says whether the event came then (1) or not until then (0).
        normalise: scale each feature by its mean and standard deviation: "client": each client by its own
            training samples, so that nothing is shared; "all": by those of all clients.
        test: a file with the test set, or the share of rows to hold out (of each client's, if they have
            a client column); of text, of each client's lines.
        length: how many tokens a sequence of text has; beyond 2048, no more than the longest text needs.
        tokenizer: a tokenizer.json that cuts text into tokens, or llama2.c's tokenizer.bin; None: they are
            characters.
        tokens: a file of text that is cut already, in place of the text; `fedcom cut` writes one.
        validation: the share of each client's training samples that is held out and scored in place of the
            test set; for choosing settings.
        pixels: "unit": those of images are from 0 to 1; None: minus their mean, over their deviation.
        augment: whether clients shift and flip their images at random; see `Augment`. None: no.
    """

    name: str | None = None
    root: str | None = None
    clients: int | None = None
    partition: str | None = None
    classes_per_client: int = 2
    alpha: float = 0.5
    beta: float = 0.5
    lazy: bool | None = None
    path: str | None = None
    label_column: str | None = None
    client_column: str | None = None
    time_column: str | None = None
    event_column: str | None = None
    text_column: str | None = None
    length: int | None = None
    tokenizer: str | None = None
    tokens: str | None = None
    normalise: Literal["client", "all"] | None = None
    test: float | str | None = None
    validation: float | None = None
    pixels: Literal["unit"] | None = None
    augment: bool | None = None

    @property
    def file(self) -> str | None:
        """The user's own file or folder, if there is one."""
        return self.path or self.tokens

    def __post_init__(self) -> None:
        text = self.name == TEXT
        for key in ("path", "root", "test", "tokenizer"):
            if self.tokens is not None and getattr(self, key) is not None:
                raise ConfigError(f"data.tokens is text that is cut already; leave data.{key} out")
        if self.path is not None and self.name is not None and not text:
            raise ConfigError(
                "data.path is a data set by itself; leave data.name out, or data.path (unset=data.path takes "
                "it out of a config file)"
            )
        if text and self.path is None and self.tokens is None:
            raise ConfigError(
                "data.name=text is text of your own; set data.path to its folder or .jsonl file"
            )
        if self.length is not None and self.length < 1:
            raise ConfigError(f"length must be 1 or more; got {self.length}")
        for key in ("label_column", "time_column", "event_column", "normalise"):
            if text and getattr(self, key) is not None:
                raise ConfigError(f"data.{key} is for tables, and data.name=text is text; leave it out")
        for key in ("text_column", "length", "tokenizer"):
            if self.path is not None and not text and getattr(self, key) is not None:
                raise ConfigError(f"data.{key} is for text; set data.name=text")
        for key in ("label_column", "client_column", "time_column", "event_column", "text_column", "test"):
            if self.path is None and getattr(self, key) is not None:
                raise ConfigError(f"data.{key} is about the file that data.path names; set data.path")
        if (self.time_column is None) != (self.event_column is None):
            raise ConfigError("survival needs data.time_column and data.event_column; set both or neither")
        if self.time_column is not None and self.label_column is not None:
            raise ConfigError(
                "with data.time_column the targets are times and events; leave label_column out"
            )
        if self.validation is not None and not 0 < self.validation < 1:
            raise ConfigError(
                f"validation is a share of the training samples, below 1; got {self.validation}"
            )
        if self.clients is not None and self.clients < 1:
            raise ConfigError(f"clients must be 1 or more; got {self.clients}")


@dataclass(frozen=True)
class RunConfig:
    """How long and how carefully to run."""

    rounds: int = 100
    participation: float = 1.0
    seed: int = 0
    eval_every: int = 1
    dtype: Literal["float32", "float64"] = "float32"
    target_accuracy: float = 0.9
    init: str | None = None
    chunk: int | None = None
    microbatch: int | None = None
    engine: str = AUTO
    tf32: bool = False
    store: Literal["auto", "memory", "disk"] = "auto"
    store_dtype: Literal["model", "bfloat16"] = "model"
    store_folder: str | None = None
    encode: bool = False
    checkpoint_minutes: float = 10.0
    checkpoint_rounds: int | None = None
    transport: Exchange = "chain"
    log: tuple[str, ...] | None = None
    on_divergence: Literal["stop", "backoff"] | None = None
    stop: str | None = None
    patience: int | None = None
    best: str | None = None

    @property
    def storage(self) -> Storage:
        """Where clients' state is to be kept."""
        return Storage(self.store, self.store_dtype, self.store_folder)

    def __post_init__(self) -> None:
        for key, least in _LEAST.items():
            value = getattr(self, key)
            if value is not None and value < least:
                raise ConfigError(f"{key} must be {least} or more; got {value}")
        check_name(self.engine)
        Stopping(self.stop, self.patience, self.best)
        named = [name.strip() for text in self.log or () for name in text.split(",") if name.strip()]
        for name in named:
            if name not in TRACKERS:
                raise unknown("tracker in log", name, TRACKERS)
        object.__setattr__(self, "log", tuple(dict.fromkeys(named)) or None)
        if self.seed >= 2**62:
            raise ConfigError(f"seed must be below 2^62; got {self.seed}")
        if not 0 < self.target_accuracy <= 1:
            raise ConfigError(f"target_accuracy is a share, such as 0.9; got {self.target_accuracy}")


@dataclass(frozen=True)
class UplinkConfig:
    """What surrounds the uplink's codec, and what clients may send.

    Args:
        memory: what clients do with what their codec drops; None: the method's own way.
        clip: the largest norm of what a client sends; None: no limit.
        budgets: bits per coordinate of each client.
        bandwidths: of each client, to share out the codec's bits by.
        correlated: spread the numbers that the clients of a round round with evenly over them.
    """

    memory: Memory | None = None
    clip: float | None = None
    budgets: tuple[float, ...] | None = None
    bandwidths: tuple[float, ...] | None = None
    correlated: bool = False

    def __post_init__(self) -> None:
        if self.budgets is not None and self.bandwidths is not None:
            raise ConfigError("give budgets or bandwidths, not both")

    def bits(self, codec: Codec) -> tuple[float, ...] | None:
        """The bits of each client, each of them checked against the codec."""
        budgets = self.budgets if self.bandwidths is None else budgets_from(self.bandwidths, codec)
        for bits in set(budgets or ()):
            at_budget(codec, bits)
        return budgets


@dataclass(frozen=True)
class DownlinkConfig:
    """What surrounds the downlink's codec.

    Args:
        memory: what the server does with what its codec drops; None: what suits the method.
        first: how the first model travels.
    """

    memory: DownlinkMemory | None = None
    first: First = "dense"
