"""Checks that need Flower's own classes, run in the environment that has it; prints what it finds as JSON."""

import json
from types import SimpleNamespace

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.common.serde import message_to_proto
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.task_identity import TaskIdentity

from fedcom.codecs import Int, TopK
from fedcom.deployment.flower.apps import FlowerTransport, _reply
from fedcom.deployment.flower.plug import Compressed, compression
from fedcom.errors import ConfigError


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


class Nodes:
    """A grid whose nodes say that they are the clients in `says`, and answer calls with their own key."""

    def __init__(self, keys: dict[int, bytes], says: dict[int, int]) -> None:
        self.keys, self.says, self.called = keys, says, list[int]()
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
print(json.dumps(found))
