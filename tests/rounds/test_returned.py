"""What a method or codec of the user's returns is checked where it comes back, in one line."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from torch import Tensor

from fedcom import Codec, ConfigError, FedAvg, FedCOM, FedCOMGATE, FedGATE, Int, Links, Scaffold, Simulation
from fedcom.algorithms.optimisers import ServerOptimiser
from fedcom.codecs.wire import Field
from fedcom.rounds import returned
from tests.conftest import mlp_task

TASK = mlp_task(sizes=[3, 4, 5])
D = TASK.objective.layout.size


class Kept(NamedTuple):
    """What a client keeps."""

    nu: Tensor


class KeptByServer(NamedTuple):
    """What a server keeps."""

    w: Tensor
    last: Tensor


class Other(NamedTuple):
    """What it should not become."""

    nu: Tensor


class Pair(NamedTuple):
    """A server's state without the model's name."""

    model: Tensor


@dataclass(frozen=True, kw_only=True)
class Own(FedCOM):
    """A method whose every part works, unless one is replaced."""

    name: ClassVar[str] = "own"
    needs_mean: ClassVar[bool] = True

    def init_client(self, w: Tensor) -> Any:
        return Kept(torch.zeros_like(w))

    def local_step(self, w: Tensor, client: Any, down: Any, oracle: Any, rnd: Any) -> Any:
        return w - rnd.eta * oracle.batch(w)

    def client_step(self, client: Any, meant: Any, sent: Any, mean: Any, rnd: Any) -> Any:
        return client._replace(nu=client.nu + sent["D"])


def with_part(part: str, made: Callable[..., Any]) -> FedCOM:
    kind = type("Changed", (Own,), {part: lambda self, *given: made(*given), "__module__": __name__})
    changed: FedCOM = dataclass(frozen=True, kw_only=True)(kind)(tau=2)
    return changed


WRONG: list[tuple[str, Callable[..., Any], str]] = [
    ("upload", lambda c, down, w, r: {"E": w}, "a dict of D, as `uploads` says; got a dict of E"),
    ("upload", lambda c, down, w, r: w, f"a dict of D, as `uploads` says; got float64 [3, {D}]"),
    ("upload", lambda c, down, w, r: None, "a dict of D, as `uploads` says; got None"),
    (
        "upload",
        lambda c, down, w, r: {"D": w.mean(0)},
        f"D with one row per client, float64 [3, {D}]; got float64 [{D}]",
    ),
    (
        "upload",
        lambda c, down, w, r: {"D": w.float()},
        f"D with one row per client, float64 [3, {D}]; got float32 [3, {D}]",
    ),
    (
        "local_step",
        lambda w, *rest: w[:, :2],
        f"the clients' models, float64 [3, {D}]; got float64 [3, 2]",
    ),
    ("local_step", lambda w, *rest: None, f"the clients' models, float64 [3, {D}]; got None"),
    ("client_step", lambda c, *rest: None, "a state as it came, a Kept; got None"),
    ("client_step", lambda c, *rest: Other(c.nu), "a state as it came, a Kept; got a Other"),
    (
        "client_step",
        lambda c, *rest: c._replace(nu=c.nu.sum(-1)),
        f"nu of the state, float64 [3, {D}]; got float64 [3]",
    ),
    ("begin", lambda c, *rest: c._replace(nu=0.0), f"nu of the state, float64 [3, {D}]; got a float"),
    ("server_step", lambda s, mean, r: s.w, f"a state as it came, a Server; got float64 [{D}]"),
    (
        "server_step",
        lambda s, mean, r: s._replace(w=s.w.unsqueeze(0)),
        f"w of the state, float64 [{D}]; got float64 [1, {D}]",
    ),
    ("init_client", lambda w: {"nu": w}, "a NamedTuple of tensors; got a dict"),
    ("init_client", lambda w: Kept(0.0), "a NamedTuple of tensors; got a float as nu"),  # type: ignore[arg-type]
    ("init_server", lambda w: Pair(w), "a NamedTuple with w; got one of model"),
    ("broadcast", lambda s: {"model": s.w}, "tensors by name, the model as w among them; got model"),
    (
        "broadcast",
        lambda s: {"w": s.w, "n": s.w[:1]},
        f"n like the model, float64 [{D}]; got float64 [1]",
    ),
]


@pytest.mark.parametrize(("part", "made", "message"), WRONG)
def test_a_method_that_returns_something_else_is_refused_in_one_line(
    part: str, made: Callable[..., Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        Simulation(TASK, with_part(part, made), "int", rounds=2, device="cpu").run()
    assert str(caught.value) == f"method own: {part} must return {message}"


@dataclass(frozen=True, kw_only=True)
class Forgetful(FedCOMGATE):
    """FedCOMGATE whose server does not keep the sum of the clients' corrections."""

    name: ClassVar[str] = "forgetful"

    def init_server(self, w: Tensor) -> Any:
        return KeptByServer(w, w)


@dataclass(frozen=True, kw_only=True)
class Remembering(Forgetful):
    """The same, with a memory on a lossy downlink in place of that sum."""

    name: ClassVar[str] = "remembering"
    corrects_downlink: ClassVar[bool] = False


def test_a_server_state_without_what_a_lossy_downlink_needs_is_refused_at_once() -> None:
    Simulation(TASK, Forgetful(tau=2), "int", rounds=1, device="cpu").run()
    links = Links(Int(), Int(bits=4))
    wanted = "FedGATE's reply needs H in the server's state, .* returned w, last;"
    with pytest.raises(ConfigError, match=wanted):
        Simulation(TASK, Forgetful(tau=2), links=links, rounds=0, device="cpu").run()
    Simulation(TASK, Remembering(tau=2), links=links, rounds=2, device="cpu").run()


@dataclass(frozen=True, kw_only=True)
class Wrong(Scaffold):
    """SCAFFOLD whose states lack its control variates, on the server or at clients."""

    at_server: bool = True

    name: ClassVar[str] = "wrong"

    def init_server(self, w: Tensor) -> Any:
        return KeptByServer(w, w) if self.at_server else super().init_server(w)

    def init_client(self, w: Tensor) -> Any:
        return super().init_client(w) if self.at_server else Kept(w)


class Careless(FedCOM):
    """A method that reads a field its state does not have."""

    name: ClassVar[str] = "careless"

    def init_server(self, w: Tensor) -> Any:
        return KeptByServer(w, w)

    def broadcast(self, server: Any) -> Any:
        return {"w": server.model}


@pytest.mark.parametrize("settings", [{}, {"chunk": 1}])
def test_a_state_without_what_an_inherited_line_reads_is_refused(settings: dict[str, Any]) -> None:
    for at_server, told in (
        (True, "state KeptByServer has no field c, which fedcom's Scaffold.broadcast reads"),
        (False, "state Kept has no field c, which fedcom's Scaffold.corrections reads"),
    ):
        with pytest.raises(ConfigError, match=told):
            Simulation(TASK, Wrong(at_server=at_server), rounds=1, device="cpu", **settings).run()
    with pytest.raises(AttributeError, match="'KeptByServer' object has no attribute 'model'"):
        Simulation(TASK, Careless(), rounds=1, device="cpu", **settings).run()


@dataclass(frozen=True)
class Counting(ServerOptimiser):
    """Steps along the direction, and what `init` and `step` say is kept."""

    began: Any = None
    after: Any = None

    name: ClassVar[str] = "counting"

    def init(self, w: Tensor) -> Any:
        return self.began

    def step(self, w: Tensor, moments: Any, direction: Tensor, eta: Any, gamma: float) -> Any:
        return self.after(w - eta * gamma * direction, moments)


ONE = {"n": torch.zeros(1)}


@pytest.mark.parametrize(
    ("began", "after", "message"),
    [
        (None, None, "init must return tensors by name; got None"),
        ({"n": 1.0}, None, "init must return tensors by name; got a float as n"),
        (ONE, lambda w, m: w, f"step must return the model and the moments n; got float64 [{D}]"),
        (ONE, lambda w, m: (w, {}), "step must return the model and the moments n; got nothing"),
        (ONE, lambda w, m: (w[None], m), f"step must return the model, float64 [{D}]; got float64 [1, {D}]"),
        (
            ONE,
            lambda w, m: (w, {"n": w}),
            f"step must return n of the moments, float32 [1]; got float64 [{D}]",
        ),
    ],
)
def test_a_server_optimiser_that_returns_something_else_is_refused(
    began: Any, after: Any, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        Simulation(TASK, FedCOM(server=Counting(began, after)), rounds=1, device="cpu").run()
    assert str(caught.value) == f"server optimiser counting: {message}"


def test_what_clients_repeat_the_step_with_must_be_like_the_model() -> None:
    method = FedCOM(option="I", server=Counting(ONE, lambda w, m: (w, {"n": m["n"] + 1})))
    Simulation(TASK, method, rounds=2, device="cpu").run()
    wanted = "init must return n like the model, as clients repeat the server's step"
    with pytest.raises(ConfigError, match=wanted):
        Simulation(TASK, method, rounds=2, participation=0.7, device="cpu").run()


@pytest.mark.parametrize("settings", [{}, {"chunk": 1}, {"participation": 0.7}])
@pytest.mark.parametrize("codec", ["int", "topk"])
def test_a_method_that_returns_what_it_should_is_let_through(settings: dict[str, Any], codec: str) -> None:
    simulation = Simulation(TASK, Own(tau=2), codec, rounds=3, device="cpu", **settings)
    simulation.run()
    assert simulation.client_states().nu.shape == (3, D)


def test_uploads_go_out_in_the_order_that_the_method_says() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Two(Own):
        uploads: ClassVar[tuple[str, ...]] = ("D", "E")

    w = torch.zeros(2, 3)
    assert list(returned.uploaded(Two(), w, {"E": w, "D": w})) == ["D", "E"]


@dataclass(frozen=True)
class Wide(Codec):
    """Sends every number, and gives back what `how` says."""

    how: str = "right"

    name: ClassVar[str] = "wide"
    id: ClassVar[int] = 219

    @property
    def unbiased(self) -> bool:
        return True

    def variance(self, layout: Any) -> float:
        return 0.0

    def fields(self, layout: Any) -> list[Field]:
        return [Field("x", layout.size, 64, floating=True)]

    def compress(self, x: Tensor, layout: Any, draw: Any) -> dict[str, Tensor]:
        return {"x": x}

    def expand(self, parts: Any, layout: Any, draw: Any) -> Any:
        changes: dict[str, Callable[[Tensor], Any]] = {
            "right": lambda x: x,
            "single": Tensor.float,
            "column": lambda x: x.unsqueeze(-1),
            "short": lambda x: x[..., :2],
            "list": Tensor.tolist,
        }
        return changes[self.how](parts["x"])


@pytest.mark.parametrize("way", ["uplink", "downlink"])
@pytest.mark.parametrize(
    ("how", "got"),
    [
        ("single", "float32 [{}]"),
        ("column", "float64 [{}, 1]"),
        ("short", "float64 [{}2]"),
        ("list", "a list"),
    ],
)
def test_a_codec_that_expands_to_something_else_is_refused_in_one_line(how: str, got: str, way: str) -> None:
    links = Links(Wide(how)) if way == "uplink" else Links("int", Wide(how))
    shape = f"3, {D}" if way == "uplink" else f"{D}"
    with pytest.raises(ConfigError) as caught:
        Simulation(TASK, Own(tau=1), links, rounds=1, device="cpu").run()
    found = got.format(shape.removesuffix(f"{D}") if how == "short" else shape)
    assert str(caught.value) == f"codec wide: expand must return float64 [{shape}]; got {found}"
    Simulation(TASK, Own(tau=1), Links(Wide()), rounds=1, device="cpu").run()


@dataclass(frozen=True)
class Loose(Wide):
    """The same, with parts and a variance that `how` says."""

    name: ClassVar[str] = "loose"
    id: ClassVar[int] = 220

    def variance(self, layout: Any) -> float:
        return {"negative": -2.0, "nan": float("nan")}.get(self.how, 0.0)

    def compress(self, x: Tensor, layout: Any, draw: Any) -> Any:
        return {"none": None, "list": {"x": x.tolist()}, "tensor": x}.get(self.how, {"x": x})

    def expand(self, parts: Any, layout: Any, draw: Any) -> Any:
        return parts["x"]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("none", "compress must return tensors by name; got None"),
        ("list", "compress must return tensors by name; got a list"),
        ("tensor", f"compress must return tensors by name; got float64 [3, {D}]"),
        ("negative", "variance must be zero or more; got -2.0"),
        ("nan", "variance must be zero or more; got nan"),
    ],
)
def test_a_codec_that_compresses_to_something_else_is_refused_in_one_line(how: str, message: str) -> None:
    links = Links(Loose(how), uplink_memory="error-feedback")
    with pytest.raises(ConfigError) as caught:
        Simulation(TASK, Own(tau=1), links, rounds=1, device="cpu").run()
    assert str(caught.value) == f"codec loose: {message}"


def test_fedcoms_own_are_not_looked_at() -> None:
    x = torch.zeros(2)
    for own in (FedAvg(), FedGATE()):
        assert returned.moved(own, x, None) is None
        assert returned.stepped(own, "client_step", Kept(x), 3) == 3
        assert returned.uploaded(own, x, "anything") == "anything"  # type: ignore[comparison-overlap]


@dataclass(frozen=True, kw_only=True)
class Twice(FedCOMGATE):
    """A method that tracks, whose clients send a second vector."""

    name: ClassVar[str] = "twice"
    uploads: ClassVar[tuple[str, ...]] = ("D", "E")

    def upload(self, client: Any, down: Any, w: Tensor, rnd: Any) -> Any:
        sent = super().upload(client, down, w, rnd)
        return {**sent, "E": 0.5 * sent["D"]}


def test_a_second_vector_of_a_method_that_tracks_passes_a_downlink_codec() -> None:
    both = []
    for kind in (FedCOMGATE, Twice):
        run = Simulation(TASK, kind(tau=2), Links(Int(8), downlink=Int(8)), rounds=3, device="cpu")
        both.append(run.run()[-1])
    assert both[1]["uplink_bytes"] > 1.5 * both[0]["uplink_bytes"]
    assert both[1]["downlink_bytes"] > both[0]["downlink_bytes"]
