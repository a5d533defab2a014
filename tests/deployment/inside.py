"""Checks that need Flower's own classes, run in the environment that has it; prints what it finds as JSON."""

import io
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.common.serde import message_to_proto
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.task_identity import TaskIdentity

from fedcom.codecs import Int, TopK
from fedcom.deployment.flower.apps import FlowerTransport, _reply
from fedcom.deployment.flower.plug import Compressed, compression
from fedcom.draws import Draw
from fedcom.errors import ConfigError
from fedcom.vectors import Layout


class Grid:
    """Two nodes."""

    def get_node_ids(self) -> list[int]:
        return [11, 12]


def overhead(nbytes: int = 199_294) -> dict[str, int]:
    """The bytes of a reply beyond those in it: as one message, and as the objects that Flower sends it in."""
    call = Message(RecordDict(), dst_node_id=2**63, message_type="train", ttl=600.0)
    reply = _reply(call, {"reply": bytes(nbytes)})
    reply.metadata.__dict__["_message_id"] = reply.object_id
    objects = sum(len(part.deflate()) for part in get_all_nested_objects(reply).values())
    tree = get_object_tree(reply).ByteSize()
    return {"message": message_to_proto(reply).ByteSize() - nbytes, "objects": objects + tree - nbytes}


def model(value: float) -> ArrayRecord:
    rng = np.random.default_rng(0)
    w = rng.normal(size=(300, 40)).astype(np.float32) + np.float32(value)
    return ArrayRecord({"w": Array(w), "steps": Array(np.array([3], np.int64)), "b": Array(w[0])})


def train(message: Message, context: Context) -> Message:
    """A ClientApp that adds its node's number over 100 to all parameters."""
    before = message.content["arrays"]
    step = np.float32(context.node_id / 100)
    arrays = {name: array.numpy() for name, array in before.items()}
    after = {name: Array(x + step if x.dtype.kind == "f" else x) for name, x in arrays.items()}
    content = RecordDict({"arrays": ArrayRecord(after), "metrics": MetricRecord({"num-examples": 10})})
    return Message(content, reply_to=message)


def plugged(damage: bool = False) -> dict[str, float]:
    strategy, mod = Compressed(FedAvg(min_available_nodes=2), Int(8)), compression(Int(8))
    start = model(0.0)
    calls = list(strategy.configure_train(1, start, ConfigRecord(), Grid()))  # type: ignore[arg-type]
    replies, sizes = [], []
    for call in calls:
        node = call.metadata.dst_node_id
        context = Context(0, node, {}, RecordDict(), {})
        reply = mod(call, context, train)
        sizes.append(message_to_proto(reply).ByteSize())
        reply.metadata.__dict__["_src_node_id"] = node
        if damage and node == 11:
            reply.content["fedcom"] = ConfigRecord({"update": b"garbage"})
        replies.append(reply)
    arrays, _ = strategy.aggregate_train(1, replies)
    assert arrays is not None
    moved = arrays["w"].numpy() - start["w"].numpy()
    dense = message_to_proto(train(calls[0], Context(0, 11, {}, RecordDict(), {}))).ByteSize()
    return {
        "mean": float(moved.mean()),
        "spread": float(moved.std()),
        "steps": int(arrays["steps"].numpy()[0]),
        "share": sizes[0] / dense,
    }


def claims_much() -> bytes:
    """An .npy file of 128 bytes whose header says that 2e12 numbers follow."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": "<i8", "fortran_order": False, "shape": (2 * 10**12,)}
    )
    return file.getvalue()


def forged(values: dict[str, Array]) -> Callable[[RecordDict], None]:
    def change(content: RecordDict) -> None:
        content["arrays"] = ArrayRecord(values)

    return change


def measured(values: dict[str, object]) -> Callable[[RecordDict], None]:
    def change(content: RecordDict) -> None:
        content["metrics"] = MetricRecord(values)  # type: ignore[arg-type]

    return change


def updated(x: float) -> Callable[[RecordDict], None]:
    def change(content: RecordDict) -> None:
        where = Layout(("w", "b"), ((300, 40), (40,)))
        draw = Draw.seeded(0).fold(1, "node 11")
        data = Int(8).encode(torch.full((12_040,), x), where, draw)
        content["fedcom"] = ConfigRecord({"update": data})

    return change


STEPS = Array(np.array([3], np.int64))
HOSTILE: dict[str, tuple[Callable[[RecordDict], object], str]] = {
    "metrics as arrays": (
        lambda c: c.__setitem__("arrays", MetricRecord({"w": 1.0})),
        "does not hold the arrays",
    ),
    "a great claim": (
        forged({"steps": Array("int64", (1,), "numpy.ndarray", claims_much())}),
        "'steps' is int64",
    ),
    "no array": (forged({"steps": Array("int64", (1,), "numpy.ndarray", b"PK")}), "cannot be read"),
    "another shape": (forged({"steps": Array(np.zeros(7, np.int64))}), "where int64 (1,) was sent"),
    "another type": (forged({"steps": Array(np.array([np.nan]))}), "is float64 (1,)"),
    "one more": (forged({"steps": STEPS, "more": STEPS}), "does not hold the arrays"),
    "a huge update": (updated(1e30), "times as long as the median"),
    "no examples": (measured({"num-examples": 0}), "above 0"),
    "examples below 0": (measured({"num-examples": -5}), "above 0"),
    "a list of examples": (measured({"num-examples": [1, 2]}), "above 0"),
    "nan examples": (measured({"num-examples": float("nan")}), "not finite"),
    "nameless examples": (measured({"loss": 1.0}), "above 0"),
    "a metric more": (measured({"num-examples": 10, "loss\x1b[31m": 1.0}), "not those of the others"),
    "no mod": (lambda c: c.__delitem__("fedcom"), "does the ClientApp have the mod `compression`?"),
    "an update of words": (
        lambda c: c.__setitem__("fedcom", ConfigRecord({"update": "x"})),
        "holds no update",
    ),
    "a long update": (
        lambda c: c.__setitem__("fedcom", ConfigRecord({"update": bytes(10**6)})),
        "are allowed",
    ),
}


def hostile() -> dict[str, object]:
    """Of each hostile reply beside two honest ones: what the mean is without it, and what is logged."""
    found: dict[str, object] = {}
    for name, (change, why) in HOSTILE.items():
        strategy, mod = Compressed(FedAvg(min_available_nodes=3), Int(8)), compression(Int(8))
        grid = SimpleNamespace(get_node_ids=lambda: [11, 12, 13])
        start, replies = model(0.0), list[Message]()
        for call in strategy.configure_train(1, start, ConfigRecord(), grid):  # type: ignore[arg-type]
            node = call.metadata.dst_node_id
            reply = mod(call, Context(0, node, {}, RecordDict(), {}), train)
            reply.metadata.__dict__["_src_node_id"] = node
            if node == 11:
                change(reply.content)
            replies.append(reply)
        with logged() as lines:
            arrays, _ = strategy.aggregate_train(1, replies)
        assert arrays is not None
        mean = float((arrays["w"].numpy() - start["w"].numpy()).mean())
        named = [line for line in lines if "node 11 is left out" in line and why in line]
        found[name] = [round(mean, 3), len(named), len(lines), "\x1b" in "".join(lines)]
    return found


@contextmanager
def logged() -> Iterator[list[str]]:
    """What fedcom logs meanwhile."""
    lines = list[str]()
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("fedcom").addHandler(handler)
    try:
        yield lines
    finally:
        logging.getLogger("fedcom").removeHandler(handler)


class Nodes:
    """A grid whose nodes say that they are the clients in `says`, and answer calls with their own key."""

    def __init__(self, keys: dict[int, bytes], says: dict[int, int]) -> None:
        self.keys, self.says, self.called, self.failing = keys, says, list[int](), set[int]()
        self._replies: dict[str, Message] = {}

    def get_nodes(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(node_id=node, public_key=key) for node, key in self.keys.items()]

    def push_messages(self, messages: list[Message]) -> list[str]:
        (message,) = messages
        node = message.metadata.dst_node_id
        values: dict[str, int | bytes] = {"client": self.says[node]}
        if message.metadata.message_type == "train":
            self.called.append(node)
            values = {"reply": b"a reply"}
        name = str(len(self._replies))
        self._replies[name] = _reply(message, values)
        if message.metadata.message_type == "train" and node in self.failing:
            error = Error(0, "no\nround 9: all is well\x1b[2J")
            self._replies[name] = Message(error, reply_to=message)
        return [name]

    def pull_messages(self, names: list[str]) -> list[Message]:
        return [self._replies[name] for name in names]


def admitted() -> dict[str, object]:
    """Which of two nodes that say that they are client 0 is called, and what the coordinator is asked."""
    keys = {node: b"-----BEGIN PUBLIC KEY-----\n%s\n-----END PUBLIC KEY-----\n" % part
            for node, part in {11: b"YQ==", 12: b"Yg=="}.items()}  # fmt: skip
    grid, asked, refused = Nodes(keys, {11: 0, 12: 0}), list[tuple[int, str]](), set[str]()
    transport, heard = FlowerTransport(grid, 1), list[int]()  # type: ignore[arg-type]

    def admit(client: int, key: str) -> bool:
        asked.append((client, key))
        return key not in refused

    def carry() -> None:
        heard.clear()
        transport.carry([(0, b"")], lambda j, _: heard.append(j), heard.append, lambda: [0], 9.0, admit)

    carry()
    refused.add(asked[0][1])
    carry()
    random = FlowerTransport(Nodes({11: bytes(32)}, {11: 0}), 1)  # type: ignore[arg-type]
    random.carry([(0, b"")], lambda j, _: heard.append(j), heard.append, lambda: [0], 9.0, admit)
    return {"called": grid.called, "asked": asked, "heard": heard}


def corrected() -> dict[str, object]:
    """A node that fails with another client's number, and is then started anew with its own."""
    grid, heard, gone = Nodes({11: bytes(32), 12: bytes(32)}, {11: 0, 12: 0}), list[int](), list[int]()
    transport = FlowerTransport(grid, 2, wait=0.5)  # type: ignore[arg-type]
    grid.failing = {11}

    def carry() -> None:
        calls = [(0, b""), (1, b"")]
        transport.carry(
            calls, lambda j, _: heard.append(j), gone.append, lambda: [0], 0.7, lambda j, key: True
        )

    with logged() as lines:
        carry()
        grid.says, grid.failing = {11: 1, 12: 0}, set()
        first = sorted(heard), sorted(gone)
        heard.clear(), gone.clear()
        carry()
    told = [line for line in lines if "sent no reply" in line]
    return {"first": first, "second": [sorted(heard), gone], "told": told}


def refused() -> str:
    try:
        compression(TopK(0.1))
    except ConfigError as error:
        return str(error)
    return ""


TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 2**63, 2**63, 1
torch.set_num_threads(1)
found = {"overhead": overhead(), "whole": plugged(), "damaged": plugged(True), "refused": refused()}
found["admitted"] = admitted()
found["hostile"] = hostile()
found["corrected"] = corrected()
print(json.dumps(found))
