"""A job as a Flower ServerApp and ClientApp, which do no more than carry bytes.

    both = apps(__file__, task)
    server_app = both.server  # Flower wants both at the top level of a module
    client_app = both.client

Settings are read from fedcom.toml beside the file, with `settings` of the run's config laid over it.
"""

import base64
import hashlib
import logging
import math
import re
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedcom.codecs.wire import Data
from fedcom.config import Config, read
from fedcom.deployment.job import Job
from fedcom.engines.remote.stored import usual_folder
from fedcom.errors import ConfigError, WireError
from fedcom.formats import printable
from fedcom.runs import logs

log = logging.getLogger("fedcom")
_RECORD = "fedcom"
_POLL = 0.2  # seconds between two looks for replies
_PEM = re.compile(rb"-----BEGIN PUBLIC KEY-----(.*)-----END PUBLIC KEY-----", re.DOTALL)
_QUERY = 60.0  # seconds that a node has to say which client it is


class Apps(NamedTuple):
    """What Flower starts on the server, and on every client."""

    server: ServerApp
    client: ClientApp


def apps(file: str, parts: Any, config: str = "fedcom.toml") -> Apps:
    """The apps of a job.

    Args:
        file: of the app; the config lies beside it.
        parts: the module with the model and the data; fedcom/deployment/job.py explains it.
    """
    folder = Path(file).parent
    server, client = ServerApp(), ClientApp()

    def job(context: Context) -> Job:
        overrides = shlex.split(str(context.run_config.get("settings", "")))
        return Job(Config.of(read(folder / config, overrides)), parts)

    @server.main()  # type: ignore[untyped-decorator, unused-ignore]
    def serve(grid: Grid, context: Context) -> None:
        out = str(context.run_config.get("out", ""))
        if not out:
            raise ConfigError("the run's config needs out, a folder on the server for the results")
        mine = job(context)
        wait = float(context.run_config.get("wait", _QUERY))
        outcome = mine.serve(FlowerTransport(grid, mine.clients, wait), Path(out).expanduser())
        if outcome.error is not None:
            raise outcome.error

    @client.query()  # type: ignore[untyped-decorator, unused-ignore]
    def who(message: Message, context: Context) -> Message:
        return _reply(message, {"client": client_number(context.node_config)})

    @client.train()  # type: ignore[untyped-decorator, unused-ignore]
    def work(message: Message, context: Context) -> Message:
        logs.set_up()
        number = client_number(context.node_config)
        participant = job(context).participant(number, state_folder(context.node_config))
        call = message.content[_RECORD]["call"]
        if not isinstance(call, bytes):
            raise WireError("the message holds no call")
        return _reply(message, {"reply": participant.answer(call)})

    return Apps(server, client)


def client_number(node: Mapping[str, Any]) -> int:
    """The number of the client that a node is: client, or partition-id, as Flower's simulation calls it."""
    for key in ("client", "partition-id"):
        if key in node:
            return int(node[key])
    raise ConfigError("a SuperNode must know which client it is: --node-config 'client=0'")


def state_folder(node: Mapping[str, Any]) -> Path:
    """Where clients' state is kept: `state` of the node's config, or the usual folder."""
    return Path(str(node["state"])).expanduser() if node.get("state") else usual_folder()


def fingerprint(public_key: bytes) -> str | None:
    """The SHA-256 of a node's key, as docs/deployment.md shows it; None in simulation: nodes have no keys."""
    found = _PEM.fullmatch(public_key.strip())
    return None if found is None else hashlib.sha256(base64.b64decode(found[1])).hexdigest()


def _reply(message: Message, values: dict[str, Any]) -> Message:
    return Message(RecordDict({_RECORD: ConfigRecord(values)}), reply_to=message)


class FlowerTransport:
    """Carries the messages of a job's rounds through a Flower grid.

    Args:
        clients: how many there are.
        wait: seconds to wait for their nodes before the first round.
    """

    def __init__(self, grid: Grid, clients: int, wait: float = _QUERY) -> None:
        self.grid, self.clients, self._wait = grid, clients, wait
        self._claims: dict[int, int | None] = {}  # which client each node says it is, in the order of asking
        self._queries: dict[str, int] = {}  # nodes that have not said it yet, by message
        self._asked: dict[int, float] = {}  # when each node was asked last
        self._doubted: set[int] = set()  # nodes to ask again, as their last call failed or had no answer
        self._silences: Counter[int] = Counter()  # how many calls in a row each node left without an answer
        self._nodes: dict[int, int] = {}  # by client

    def carry(
        self,
        calls: Iterable[tuple[int, bytes]],
        hear: Callable[[int, Data], object],
        give_up: Callable[[int], None],
        missing: Callable[[], Sequence[int]],
        deadline: float,
        admit: Callable[[int, str], bool],
    ) -> None:
        """Push the calls one by one; pull replies one by one, so that a few lie in memory at a time."""
        self._find(admit)
        end, waiting = time.monotonic() + deadline, dict[str, int]()
        for client, call in calls:
            node = self._nodes.get(client)
            if node is None:
                _warn(f"no node is client {client}", client=client)
                give_up(client)
            else:
                waiting[self._push(node, "train", {"call": call}, deadline)] = client
        while waiting and missing() and time.monotonic() < end:
            for identity, client in list(waiting.items()):
                reply = self._pull(identity)
                if reply is None:
                    continue
                content = _content(reply, "reply")
                if isinstance(content, bytes):
                    hear(client, content)
                    del waiting[identity]
                    self._silences.pop(self._nodes[client], None)
                else:
                    told = _error(reply)
                    _warn(f"client {client} sent no reply: {told}", client=client, detail=told)
                    give_up(client)
                    self._doubted.add(self._nodes[client])
                    del waiting[identity]
            time.sleep(_POLL)
        silent = [self._nodes[client] for client in waiting.values()]
        self._silences.update(silent)
        self._doubted.update(silent)

    def _find(self, admit: Callable[[int, str], bool]) -> None:
        """Find out which client each node is; before the first round, wait for all of them."""
        end = time.monotonic() + (0 if self._claims else self._wait)
        while True:
            present = {node.node_id: node.public_key for node in self.grid.get_nodes()}
            for node in self._to_ask(present):
                self._queries[self._push(node, "query", {}, _QUERY)] = node
                self._asked[node] = time.monotonic()
                self._doubted.discard(node)
            self._collect_claims()
            claims = [(client, node) for node, client in self._claims.items() if node in present]
            if len({client for client, _ in claims} - {None}) >= self.clients or time.monotonic() >= end:
                break
            time.sleep(_POLL)
        self._nodes = {}
        for client, node in sorted(claims, key=lambda claim: self._silences[claim[1]]):
            # The first node that says so is the client, unless it is silent and another says so too.
            if client is not None and client not in self._nodes:
                key = fingerprint(present[node])
                if key is None or admit(client, key):
                    self._nodes[client] = node

    def _to_ask(self, present: Iterable[int]) -> list[int]:
        """The nodes to ask which client they are: new ones, and those whose number may be put right.

        These are nodes whose last call failed or had no answer, and, once in a while, nodes that are called
        by nobody: those that gave no number or one that another has.
        """
        due, called = time.monotonic() - _QUERY, set(self._nodes.values())
        idle = {node for node in present if node not in called and self._asked.get(node, -math.inf) <= due}
        return sorted((idle | self._doubted & set(present)) - set(self._queries.values()))

    def _collect_claims(self) -> None:
        """Take in which clients nodes say they are; nobody waits for those that say nothing."""
        for identity, node in list(self._queries.items()):
            reply = self._pull(identity)
            if reply is None:
                continue
            del self._queries[identity]
            if reply.has_error():
                told = _error(reply)
                _warn(f"node {node} does not say which client it is: {told}", node=node, detail=told)
                continue  # it is asked again
            client = _content(reply, "client")
            if not isinstance(client, int) or not 0 <= client < self.clients:
                _warn(f"node {node} says that it is client {printable(client)}, of {self.clients}", node=node)
                client = None
            elif client in (claim for other, claim in self._claims.items() if other != node):
                words = f"node {node} says that it is client {client}, as another node does"
                _warn(words, node=node, client=client)
            self._claims[node] = client

    def _push(self, node: int, kind: str, values: dict[str, Any], ttl: float) -> str:
        content = RecordDict({_RECORD: ConfigRecord(values)})
        message = Message(content, dst_node_id=node, message_type=kind, ttl=ttl)
        return str(next(iter(self.grid.push_messages([message]))))

    def _pull(self, identity: str) -> Message | None:
        return next(iter(self.grid.pull_messages([identity])), None)


def _warn(words: str, **facts: Any) -> None:
    """Log a warning, with what it is about for logs in JSON."""
    log.warning("%s", words, extra=facts)


def _content(reply: Message, key: str) -> Any:
    """A value in a reply; None if the reply is an error or holds no such value."""
    if reply.has_error():
        return None
    try:
        return reply.content[_RECORD][key]
    except (KeyError, TypeError):
        return None


def _error(reply: Message) -> str:
    if not reply.has_error():
        return "it holds something else"
    return printable(f"{reply.error.code} {reply.error.reason}")
