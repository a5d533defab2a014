"""The settings of a run on a task made in Python; a `Config` holds those of a config file."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from fedcom.algorithms import Algorithm
from fedcom.codecs import CODECS
from fedcom.config import RunConfig, method_sections
from fedcom.plain import plain
from fedcom.tasks.scores import Metric
from fedcom.tasks.task import Task
from fedcom.traffic.links import Links
from fedcom.traffic.network import Network


@dataclass(frozen=True)
class Given:
    """The settings of a run on a task made in Python.

    Args:
        task_of: makes the task for a seed, or has it ready.
        metrics: the user's own; see Simulation.
    """

    task_of: Callable[[int], Task] = field(repr=False)
    algorithm: Algorithm
    links: Links
    run: RunConfig
    network: Network | None = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)

    @property
    def task(self) -> Task:
        """The task for the run's seed."""
        return self.task_of(self.run.seed)

    def table(self) -> dict[str, Any]:
        """The settings as plain data, without the task."""
        links = {key: value for key, value in asdict(self.links).items() if key not in ("uplink", "downlink")}
        return {
            **method_sections(self.algorithm),
            "uplink": plain(self.links.uplink, CODECS),
            "downlink": plain(self.links.downlink, CODECS),
            "links": links,
            "run": asdict(self.run),
            "network": self.network and asdict(self.network),
        }
