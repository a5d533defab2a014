"""What ranks other than the first do: the runs that rank 0 prepares, played as it tells them to."""

import json
from collections.abc import Mapping

from fedcom.config import Config
from fedcom.engines.base import Engine
from fedcom.engines.ranks.ranks import Ranks
from fedcom.runs import stops
from fedcom.runs.prepare import build_task, simulation_of
from fedcom.runs.spread import Duty, share
from fedcom.tasks.task import Task


def follow(ranks: Ranks, duties: Mapping[str, Duty] | None = None) -> None:
    """Do as rank 0 says until it says that all is done.

    Args:
        duties: what ranks can do by themselves, by name; see `spread`.
    """
    engine: Engine | None = None
    tasks: dict[str, Task] = {}
    while (told := ranks.hear()).facts["do"] != "end":
        if told.facts["do"] == "prepare":
            config = Config.of(told.facts["config"])
            table, run = config.table(), config.run
            of_task = [table.get(section) for section in ("data", "model", "adapter")]
            key = json.dumps([*of_task, run.seed, run.dtype, run.init, run.microbatch])
            if key not in tasks:
                whole = build_task(config)[0]
                tasks = {key: whole.only(ranks.block(whole.clients))}
            engine = simulation_of(tasks[key], config, told.facts["device"]).engine
        elif told.facts["do"] == "share":
            with stops.heeded():
                share((duties or {})[told.facts["duty"]], told.facts["items"])
        elif engine is not None:
            engine.obey(told)
