"""Everything a run needs to know, made from a table and written back as one."""

from collections.abc import Mapping
from dataclasses import Field, asdict, dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar

from fedcom.algorithms import ALGORITHMS, Algorithm
from fedcom.algorithms.local_optimisers import PLAIN_STEPS, AdamWSteps
from fedcom.algorithms.optimisers import PLAIN, Optimiser
from fedcom.codecs import CODECS, Codec
from fedcom.config.sections import DataConfig, DownlinkConfig, RunConfig, UplinkConfig
from fedcom.config.tables import Table, check_sections
from fedcom.data import DATASETS
from fedcom.engines.remote.terms import Terms
from fedcom.plain import build, keys, pick, plain
from fedcom.registry import Registry
from fedcom.rounds.together import default_downlink_memory, takes_no_codec
from fedcom.tasks.adapters import Adapter
from fedcom.tasks.model import Model
from fedcom.tasks.models import MODELS
from fedcom.tasks.scores import Metric
from fedcom.tasks.task import Task
from fedcom.traffic.links import DefaultUplink, Links
from fedcom.traffic.network import Network, over_preset

T = TypeVar("T")
DEFAULT = "fedcomgate"  # the method of a config that names none
ADAPTER_ETA = {"adamw": 1e-3, "muon": 1e-3, "sgd": 1e-2}  # for adapters by local optimiser, if none is given


class RunSettings(Protocol):
    """What a run is told, by a config (`Config`) or in Python (`runs.given.Given`); both are dataclasses."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def algorithm(self) -> Algorithm: ...

    @property
    def links(self) -> Links: ...

    @property
    def run(self) -> RunConfig: ...

    @property
    def network(self) -> Network | None: ...

    @property
    def metrics(self) -> Mapping[str, Metric]:
        """Metrics of the user's own; see Simulation."""

    @property
    def task(self) -> Task | None:
        """The task made in Python. None: the settings describe it, so that another process can build it."""

    def table(self) -> Table:
        """The settings as plain data."""


@dataclass(frozen=True)
class Config:
    """Everything a run needs to know, as a config says it."""

    data: DataConfig
    model: Model
    algorithm: Algorithm
    links: Links
    run: RunConfig
    network: Network | None = None
    round: Terms = field(default_factory=Terms)

    @classmethod
    def of(cls, table: Table) -> "Config":
        """Check a table and make it a config."""
        check_sections(table)
        algorithm = _named("algorithm", ALGORITHMS, DEFAULT, _with_optimisers(_with_rates(table)))
        run = build(RunConfig, table.get("run", {}), "run")
        down = dict(table.get("downlink", {}))
        below = build(DownlinkConfig, {k: down.pop(k) for k in keys(DownlinkConfig) if k in down}, "downlink")
        up = dict(table.get("uplink", {}))
        if algorithm.compresses is not None and "name" not in up and set(up) - {"memory"}:
            raise takes_no_codec(algorithm, f"got uplink settings {up}")
        around = build(UplinkConfig, {k: up.pop(k) for k in keys(UplinkConfig) if k in up}, "uplink")
        usual = DefaultUplink.of(algorithm)
        uplink = _codec("uplink", up, usual.codec)
        downlink = _codec("downlink", down, {"name": "identity"})
        links = Links(
            uplink=uplink,
            downlink=downlink,
            uplink_memory=around.memory or usual.memory,
            downlink_memory=below.memory or default_downlink_memory(algorithm, downlink),
            first=below.first,
            clip=around.clip,
            encode=run.encode,
            budgets=around.bits(uplink),
            correlated=around.correlated,
        )
        data = build(DataConfig, table.get("data", {}), "data")
        network = build(Network, over_preset(table["network"]), "network") if "network" in table else None
        terms = build(Terms, table.get("round", {}), "round")
        model: Model = _named("model", MODELS, "mlp", _with_adapter(table))
        return cls(data, model, algorithm, links, run, network, terms)

    @property
    def metrics(self) -> Mapping[str, Metric]:
        """Empty: a config cannot name any."""
        return {}

    @property
    def task(self) -> None:
        """None: it is built from the config; see `runs.prepare.build_task`."""

    def table(self) -> Table:
        """The config as plain data, every default spelled out."""
        links = self.links
        up: Table = {"memory": links.uplink_memory, "clip": links.clip, "budgets": links.budgets}
        up["correlated"] = links.correlated or None
        down = {"memory": links.downlink_memory, "first": links.first}
        model = plain(self.model, MODELS)
        adapter = model.pop("adapter") if isinstance(self.model.adapter, Adapter) else None
        table: Table = {
            "data": asdict(self.data),
            "model": model,
            **({} if adapter is None else {"adapter": adapter}),
            **method_sections(self.algorithm),
            "uplink": plain(links.uplink, CODECS) | up,
            "downlink": plain(links.downlink, CODECS) | down,
            "run": asdict(self.run),
            **({} if self.network is None else {"network": asdict(self.network)}),
            **({} if self.round == Terms() else {"round": asdict(self.round)}),
        }
        return {name: {k: v for k, v in section.items() if v is not None} for name, section in table.items()}


def _with_rates(table: Table) -> Table:
    """The table with rates "auto" if they are not given and the data is not one that fedcom knows.

    Adapters are trained by AdamW instead: how far a gradient's step goes depends on A and B at once, so that
    the sharpness where B is zero says nothing of rates that serve.
    """
    if adapted(table):
        return _with_adapter_rates(table)
    data, model = (table.get(section, {}).get("name") for section in ("data", "model"))
    own = {"path", "tokens"} & {*table.get("data", {})}
    known_data = not own and (data is None or DATASETS.is_own(data))
    if known_data and (model is None or MODELS.is_own(model)):
        return table
    given = {"name": DEFAULT, **table.get("algorithm", {})}
    method = ALGORITHMS.find(given["name"], "algorithm")
    if not method.local.linear:  # no rates can be found for its steps; it has some of its own
        return table
    rates = {key: "auto" for key in ("eta", "gamma") if key not in method.fixed}
    return {**table, "algorithm": {**rates, **given}}


def adapted(table: Table) -> bool:
    """Whether a table's model has adapters."""
    return "adapter" in table or table.get("model", {}).get("adapter") is not None


def _with_adapter_rates(table: Table) -> Table:
    """The table with AdamW's steps unless another local optimiser is given, at usual rates unless one is."""
    given = {"name": DEFAULT, **table.get("algorithm", {})}
    method = ALGORITHMS.find(given["name"], "algorithm")
    own = _optimiser_table(table.get("local", given.get("local", {})))
    if {"eta"} & {*given, *method.fixed} or not isinstance(own, dict) or method.local != PLAIN_STEPS:
        return table
    own = {"name": AdamWSteps.name, **own}
    outside = own["name"] == AdamWSteps.name and method.tracks
    rates = {"eta": ADAPTER_ETA.get(own["name"], ADAPTER_ETA["sgd"])}
    rates |= {} if "gamma" in method.fixed else {"gamma": 1.0}
    algorithm = {**rates, **{key: value for key, value in given.items() if key != "local"}}
    return {
        **table,
        "algorithm": algorithm,
        "local": {**({"correction": "outside"} if outside else {}), **own},
    }


def usual_adapter_rates(config: Config) -> str | None:
    """The rate that adapters have if none is given, in words; None if this is another."""
    eta, steps = config.algorithm.eta, config.algorithm.local.name
    usual = config.model.adapter is not None and eta == ADAPTER_ETA.get(steps, ADAPTER_ETA["sgd"])
    return f"local {steps} at eta {eta}, a usual rate; algorithm.eta sets another" if usual else None


def _with_adapter(table: Table) -> Table:
    """The table with [adapter] as a setting of the model; it stands for lora if it names none."""
    if "adapter" not in table:
        return table
    model = table.get("model", {})
    named = {"name": model["adapter"]} if isinstance(model.get("adapter"), str) else {}
    return {**table, "model": {**model, "adapter": {**named, **table["adapter"]}}}


# The sections that are settings of the method, with what is not written where it is the method's default.
PLAIN_SECTIONS: Mapping[str, Optimiser] = {"server": PLAIN, "local": PLAIN_STEPS}


def _with_optimisers(table: Table) -> Table:
    """The table with [server] and [local] as settings of the method; keys alone refine the method's own."""
    for section in PLAIN_SECTIONS:
        table = _with_optimiser(table, section)
    return table


def _with_optimiser(table: Table, section: str) -> Table:
    method = {"name": DEFAULT, **table.get("algorithm", {})}
    own, beside = _optimiser_table(method.get(section, {})), table.get(section, {})
    if not (isinstance(own, dict) and (own or beside)):
        return table
    found = _optimiser_table(getattr(ALGORITHMS.find(method["name"], "algorithm"), section))
    for given in (own, beside):
        found = {**found, **given} if given.get("name", found["name"]) == found["name"] else given
    return {**table, "algorithm": {**method, section: found}}


def _optimiser_table(given: Any) -> Any:
    """An optimiser, or its name, as a table; anything else as it is."""
    if isinstance(given, Optimiser):
        return plain(given, given.registry())
    return {"name": given} if isinstance(given, str) else given


def method_sections(algorithm: Algorithm) -> Table:
    """A method as [algorithm], [server] and [local]; plain SGD is not written if it is the default."""
    found = plain(algorithm, ALGORITHMS)
    own = {section: found.pop(section) for section in PLAIN_SECTIONS}
    said = {
        section: table
        for section, table in own.items()
        if not getattr(algorithm, section) == getattr(type(algorithm), section) == PLAIN_SECTIONS[section]
    }
    return {"algorithm": found, **said}


def _named(section: str, registry: Registry[type[T]], default: str, table: Table) -> T:
    return pick(registry, {"name": default, **table.get(section, {})}, section)


def _codec(section: str, table: Table, default: Mapping[str, Any]) -> Codec:
    """A codec; parameters alone refine the default one."""
    if "name" not in table or table["name"] == default["name"]:
        table = {**default, **table}
    return pick(CODECS, table, section)
