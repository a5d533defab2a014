"""Outer steps: every so many of its own steps a worker exchanges what changed in its model with the others.

Worker j begins at the outer parameters w and takes some steps with any optimiser, to w_j. It sends its change
Delta_j = w - w_j, compressed. Everybody decodes the same messages in the same order, and takes the same
outer step along their mean, by default Nesterov's as in DiLoCo (Douillard et al., 2023):

    m <- mu m + Delta,   w <- w - rate (Delta + mu m),   w_j <- w

With a delay the exchange goes on while workers take their next steps. They keep what they have gained since:

    w_j <- w + (w_j - w_j as it was when Delta_j was sent)

So every gain is sent once, and applied one interval late.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from zlib import crc32

import torch
from torch import Tensor, nn

from fedcom import codecs
from fedcom.algorithms.optimisers import ServerOptimiser
from fedcom.codecs import CODECS, Codec
from fedcom.draws import Draw, mix
from fedcom.errors import ConfigError, Diverged, NotFinite, RankLost, WireError
from fedcom.formats import MB
from fedcom.outer import coders, messages
from fedcom.outer.aside import Aside
from fedcom.outer.coders import Coders
from fedcom.outer.links import Links
from fedcom.outer.messages import Header
from fedcom.outer.shards import Model, Piece, divided, form, is_sharded, let_go, named, trainable
from fedcom.plain import pick
from fedcom.vectors import Vectors, overwrite

Heard = dict[int, tuple[Header, list[memoryview]]]  # messages by worker
_NOT_FINITE = "its change is not finite"
_ODD = 0x9E3779B97F4A7C1


class Outer:
    """Outer steps of one worker; call `step` after each step of its own optimiser.

    Args:
        model: a module, or its parameters with or without names; only trainable ones are exchanged.
        codec: its name, a table with its name and settings, or a codec.
        bits: per number, for a codec that is given by its name; None: the codec's own setting.
        every: steps of the worker between outer steps.
        rate: of the outer step, in the published units: DiLoCo's 0.7. Adaptive optimisers have their own.
        optimiser: of the outer step: nesterov, momentum, sgd, adam, yogi or adagrad, a table with its name
            and settings, or a ServerOptimiser.
        fragments: parts of the model that take turns, so that messages are smaller and more frequent.
        delay: 0: wait for the others' messages; 1: they travel during the next interval.
        memory: the share of what a codec has not sent that is added to the next change: SparseLoCo's 0.95
            for top-k. Leave it 0 for unbiased codecs.
        weight: of this worker in the mean, as its number of samples; all the same by default.
        leader: whether messages go to the first worker, which averages them and sends one message to all,
            instead of each to every other worker.
        down: the codec of the leader's message, as `codec`; None: that of the workers. "identity" is exact.
        per_site: processes with the same parameters (DDP) or shards of them (FSDP) on one site; their ranks
            are consecutive.
        seed: of the codec's random numbers; the same on all workers.
        timeout: seconds to wait for another worker.
        log: called with a line of progress after each outer step, as print is.

    Attributes:
        steps: that the worker has taken.
        size: how many numbers are exchanged.
    """

    def __init__(
        self,
        model: Model,
        codec: str | dict[str, Any] | Codec = "rotated",
        bits: float | None = None,
        every: int = 50,
        *,
        rate: float = 0.7,
        optimiser: str | dict[str, Any] | ServerOptimiser = "nesterov",
        fragments: int = 1,
        delay: int = 0,
        memory: float = 0.0,
        weight: float = 1.0,
        leader: bool = False,
        down: str | dict[str, Any] | Codec | None = None,
        per_site: int = 1,
        seed: int = 0,
        timeout: float = 1800.0,
        log: Callable[[str], object] | None = None,
    ) -> None:
        _check(every=every, rate=rate, delay=delay, memory=memory, weight=weight, fragments=fragments)
        self._model: Model = model if isinstance(model, nn.Module) else list[Any](model)
        let_go(model)
        self._trained = parameters = trainable(self._model)
        self._forms = [form(p) for _, p in parameters]
        if is_sharded(parameters) and not isinstance(model, nn.Module):
            raise ConfigError("under FSDP give the module, not its parameters")
        self.codec, self.optimiser = codec_of(codec, bits), ServerOptimiser.of_plain(optimiser)
        if down is not None and not leader:
            raise ConfigError("down is the codec of the leader's message; set leader=True")
        self.leader, self.down = leader, self.codec if down is None else codec_of(down, None)
        codecs.vet(codec=self.codec, down=self.down)
        self.every, self.delay, self.memory, self.weight = every, delay, memory, weight
        self._gamma = rate / (1 - self.optimiser.kept) if self.optimiser.uses_gamma else 1.0
        self._links = Links(per_site, is_sharded(parameters), timeout)
        self._draw, self._log = Draw.seeded(seed), log
        self._why: dict[int, str] = {}  # messages of this outer step are left out
        self._fragments = [
            Fragment(number, pieces, self.optimiser, memory)
            for number, pieces in enumerate(divided(parameters, fragments))
        ]
        whole = [piece for fragment in self._fragments for piece in fragment.pieces]
        self._coders = Coders(coders.threads(whole))
        self.steps, self.size = 0, sum(fragment.size for fragment in self._fragments)
        self._aside = Aside("fedcom-outer") if delay else None
        self._streams: dict[torch.device, Any] = {}  # of that thread, by GPU
        facts, gather = self._facts(), self._links.gather
        if len({*gather(facts), *(~most for most in gather(~facts))}) > 1:  # of a site: least and most
            raise ConfigError(
                "workers differ in model, codec, optimiser, rate, every, fragments, seed or starting "
                "parameters; give all the same, and set the same torch.manual_seed before the model is made"
            )

    @property
    def workers(self) -> int:
        """How many sites exchange messages."""
        return self._links.sites

    @property
    def process(self) -> int:
        """The number of this process among all."""
        return self._links.process

    @property
    def worker(self) -> int:
        """The number of this process's site among them."""
        return self._links.number

    @property
    def turns(self) -> list[int]:
        """Outer steps of each fragment so far."""
        return [fragment.turn for fragment in self._fragments]

    @property
    def sent(self) -> int:
        """Bytes this process has sent to other sites, each receiver counted."""
        return self._links.sent

    @property
    def received(self) -> int:
        """Bytes this process has received from other sites."""
        return self._links.received

    def step(self) -> bool:
        """Count a step of the worker, and take the outer step that is due; returns whether one was."""
        self.steps += 1
        due = [fragment for fragment in self._fragments if self._due(fragment)]
        if due:
            self._look()
        for fragment in due:
            self._land(fragment)
            self._launch(fragment)
            if not self.delay:
                self._land(fragment)
        return bool(due)

    def finish(self) -> None:
        """Bring in what is in flight, and exchange what was gained since: all workers are the same then.

        All call it, in the same interval between outer steps.
        """
        self._look()
        for fragment in self._fragments:
            self._land(fragment)
        whole = self._meet()
        for fragment in self._fragments:
            if whole or fragment.at != self.steps:
                self._launch(fragment)
                self._land(fragment)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside, the model has the outer parameters, which are the same on all workers; its own after."""
        self._look()
        own = [[piece.read() for piece in fragment.pieces] for fragment in self._fragments]
        for fragment in self._fragments:
            fragment.wait()
        try:
            for fragment in self._fragments:
                fragment.show(fragment.w)
            yield
        finally:
            let_go(self._model)
            for fragment, before in zip(self._fragments, own, strict=True):
                fragment.show(before)

    def seconds(self, megabits: float) -> float:
        """How long the messages so far take a site on a link of so many megabits per second each way."""
        return 8 * max(self.sent, self.received) / (1e6 * megabits)

    def __str__(self) -> str:
        full = sum(4 * fragment.turn * fragment.size for fragment in self._fragments)
        to = 1 if self.leader and self._links.number else self.workers - 1
        said = f"step {self.steps}, outer step {max(self.turns)}: {self.sent / MB:.3g} MB sent, "
        said += f"{self.received / MB:.3g} MB received"
        return f"{said}, {full * to / self.sent:.0f} times fewer than 32 bits" if self.sent and to else said

    def state_dict(self) -> dict[str, Any]:
        """All that another process needs to go on with the same bits; waits for what is in flight."""
        own = [fragment.state_dict() for fragment in self._fragments]  # nothing is in flight after this
        return {"steps": self.steps, "sent": self.sent, "received": self.received, "fragments": own}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; the model's own parameters are the caller's, as with an optimiser."""
        if len(state["fragments"]) != len(self._fragments):
            raise ConfigError(
                f"the state has {len(state['fragments'])} fragments, not {len(self._fragments)}"
            )
        pairs = list(zip(self._fragments, state["fragments"], strict=True))
        for fragment, own in pairs:
            fragment.refuse_others(own)
        self.steps, self._links.sent, self._links.received = (state[k] for k in ("steps", "sent", "received"))
        for fragment, own in pairs:
            fragment.load_state_dict(own, self._last(fragment))

    def join(self, source: int, steps: int, missing: bool) -> None:
        """Hand the outer state of one worker to those that miss it; all workers call this at once.

        Args:
            source: the number of the worker that has it.
            steps: that the others have taken.
            missing: whether this worker misses it. It then begins at the outer parameters.
        """
        for fragment in self._fragments:
            counts = torch.tensor([fragment.turn, fragment.at], device="cpu")
            moments = [x for own in fragment.moments for x in own.values()]
            found = [x.clone() for x in (counts, *fragment.w, *moments)]
            self._links.hand(found, source)
            if missing:
                fragment.turn, fragment.at = found[0].tolist()
                fragment.launched, fragment.before = False, None
                for own, new in zip((*fragment.w, *moments), found[1:], strict=True):
                    own.copy_(new)
                for i, w in enumerate(fragment.w):
                    fragment.give(i, w)
        self.steps = steps

    def gather(self, word: int) -> list[int]:
        """A whole number of every worker, the least that its processes give; all call this at once."""
        return self._links.gather(self._links.least(word))

    def _look(self) -> None:
        """See to it that the parameters are those that are exchanged."""
        let_go(self._model)
        before = {id(p): name for name, p in self._trained}
        now = {id(p): name for name, p in named(self._model) if p.requires_grad}
        if new := [name for p, name in now.items() if p not in before]:
            raise ConfigError(
                f"parameter {new[0]!r} is new or trainable only since the Outer was made, so it would not be "
                "exchanged; make another Outer, on all workers"
            )
        pairs = zip(self._trained, self._forms, strict=True)
        if other := [name for (name, p), its in pairs if form(p) != its]:
            raise ConfigError(
                f"parameter {other[0]!r} has another dtype, shape or order in memory than when the Outer was "
                "made; change the model before, or make another Outer, on all workers"
            )
        if frozen := [name for p, name in before.items() if p not in now]:
            warnings.warn(
                f"parameter {frozen[0]!r} was frozen or replaced since the Outer was made, but outer steps "
                "still move it; make another Outer, on all workers",
                stacklevel=3,
            )

    def _meet(self) -> bool:
        """Make sure that all workers finish; whether all send all fragments, as their steps differ."""
        gained = any(fragment.at != self.steps for fragment in self._fragments)
        header = Header(0, self.steps, int(gained), self.weight, end=True)
        own = messages.pack(header, []) if self._links.leads else b""
        if not self.leader:
            return self._differ(self._links.exchange(own))
        mail, down = self._links.collect(own), b""
        try:
            if mail:
                down = messages.pack(replace(header, empty=True), [])
                down = messages.pack(replace(header, checksum=int(self._differ(mail))), [])
        finally:  # if it fails the others hear of it
            told = self._links.spread(down)
        return self._differ([told])

    def _differ(self, mail: list[memoryview]) -> bool:
        """Whether some worker has gained something, and they have not taken the same number of steps."""
        heard = [messages.head(data) for data in mail]
        for number, header in enumerate(heard):
            if not header.end:
                raise RankLost(f"worker {number} takes further steps{self._uneven}")
            if header.empty:
                raise RankLost("not all workers finish; the leader says which")
        several = len({header.turn for header in heard} | {self.steps}) > 1
        return any(header.checksum for header in heard) and (several or len(mail) == 1 < self.workers)

    @property
    def _uneven(self) -> str:
        return f", this one has taken {self.steps}; give all workers as many, and call finish on all"

    def _due(self, fragment: "Fragment") -> bool:
        """Whether a fragment is exchanged after this step."""
        return self._last(fragment) == self.steps

    def _last(self, fragment: "Fragment") -> int:
        """The last step so far after which a fragment was due; they take turns."""
        offset = fragment.number * self.every // len(self._fragments)
        last = self.steps - (self.steps - offset) % self.every
        return last if last > 0 else 0

    def _facts(self) -> int:
        """A number that differs between workers that cannot exchange messages."""
        found = crc32(repr((self.optimiser, self._gamma)).encode())
        for fragment in self._fragments:
            for piece in fragment.pieces:
                self.codec.variance(piece.layout)  # refuses a rate for which there are too few parameters
                found = mix(found, self.codec.fingerprint(piece.layout))
                found = mix(found, self.down.fingerprint(piece.layout) if self.leader else 0)
            found = mix(found, fragment.checksum())
        return _signed(mix(mix(found, int(self._draw.key)), self.every))

    def _launch(self, fragment: "Fragment") -> None:
        """Send the change of a fragment, and take the outer step when all messages are here."""
        fragment.at = self.steps
        fragment.before = [piece.read() for piece in fragment.pieces] if self.delay else None
        if self._aside is None:
            self._turn(fragment)
        else:
            ready = _recorded(fragment)
            fragment.flight = self._aside.submit(partial(self._turn_aside, fragment, ready))

    def _land(self, fragment: "Fragment") -> None:
        """Give the worker the outer parameters after the last step, with what it has gained meanwhile."""
        fragment.wait()
        if not fragment.launched:
            return
        fragment.launched = False
        for i, piece in enumerate(fragment.pieces):
            w = fragment.w[i]
            fragment.give(i, w if fragment.before is None else w + (piece.read() - fragment.before[i]))
        fragment.before = None
        if self._log is not None and self._links.process == 0:
            self._log(str(self))

    def _turn_aside(self, fragment: "Fragment", ready: Mapping[torch.device, Any]) -> None:
        """`_turn` in another thread; a GPU does it on a stream of its own, beside the worker's steps."""
        for device, event in ready.items():
            if device not in self._streams:  # always the same one: torch keeps memory for each
                self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._streams[device].wait_event(event)
        with _on(self._streams):
            self._turn(fragment)
        for stream in self._streams.values():
            stream.synchronize()

    @torch.no_grad()
    def _turn(self, fragment: "Fragment") -> None:
        """Exchange messages, and step along the mean of what they hold."""
        checksum = fragment.checksum()
        header = Header(fragment.number, fragment.turn, checksum, self.weight)
        message = self._encode(fragment, header) if self._links.leads else b""
        if self.leader:
            means = self._mean_by_leader(fragment, message, header)
        else:
            heard = self._heard(fragment, self._links.exchange(message), checksum)
            means = self._mean(fragment, self._agreed(fragment, heard))
        for i, mean in enumerate(means):
            w, moments = self.optimiser.step(fragment.w[i], fragment.moments[i], mean, 1.0, self._gamma)
            own = fragment.moments[i]
            overwrite((fragment.w[i], *own.values()), (w, *(moments[name] for name in own)))
        fragment.turn += 1
        fragment.launched = True

    def _mean(self, fragment: "Fragment", heard: Heard) -> Iterator[Tensor]:
        """The weighted mean of what was heard, piece by piece."""
        total = sum(header.weight for header, _ in heard.values())
        if not total and set(self._why.values()) == {_NOT_FINITE}:
            raise Diverged(
                f"outer step {fragment.turn}: no worker has sent a change that is finite; lower the rates, "
                "and go on from a checkpoint"
            )
        if not total:
            why = "; ".join(f"that of worker {number}: {why}" for number, why in self._why.items())
            raise RankLost(
                f"outer step {fragment.turn}: there is no message that all workers can read ({why}); are all "
                "at the same outer step? go on from a checkpoint that all have, with fedcom.outer.restore"
            )
        shares = {number: header.weight / total for number, (header, _) in heard.items()}
        return self._means(fragment, heard, shares)

    def _means(self, fragment: "Fragment", heard: Heard, shares: Mapping[int, float]) -> Iterator[Tensor]:
        """The mean of what was heard of each piece, given each worker's share in it."""
        vectors = self._coders.decoded(
            self.codec,
            (
                (parts[i], piece.layout, self._key(fragment, i, number))
                for i, piece in enumerate(fragment.pieces)
                for number, (_, parts) in heard.items()
            ),
        )
        for w in fragment.w:
            mean = torch.zeros_like(w)
            for number, share in shares.items():
                with self._of_worker(fragment, number):
                    mean.add_(next(vectors), alpha=share)
            yield mean

    def _mean_by_leader(self, fragment: "Fragment", message: bytes, header: Header) -> Iterator[Tensor]:
        """The mean as the leader's message tells it, which it decodes itself too."""
        mail, down, pieces = self._links.collect(message), b"", fragment.pieces
        if mail:
            down = messages.pack(replace(header, empty=True), [])
            try:
                means = self._mean(fragment, self._heard(fragment, mail, header.checksum))
                keys = (self._key(fragment, i) for i in range(len(pieces)))
                layouts = [piece.layout for piece in pieces]
                parts = self._coders.encoded(self.down, zip(means, layouts, keys, strict=True))
                down = messages.pack(header, list(parts))
            finally:  # if it fails the others hear of it
                told = self._links.spread(down)
        else:
            told = self._links.spread(b"")
        with self._of_leader(fragment):
            said, found = messages.unpack(told, fragment.number, fragment.turn, len(pieces))
        if said.end:
            raise RankLost(f"worker 0 has finished after {said.turn} steps{self._uneven}")
        if said.empty:
            raise RankLost(
                f"outer step {fragment.turn}: the leader could not average the messages; see there"
            )
        return self._told(fragment, found)

    def _told(self, fragment: "Fragment", found: list[memoryview]) -> Iterator[Tensor]:
        """What the leader's message says of each piece."""
        given = (
            (part, piece.layout, self._key(fragment, i))
            for i, (part, piece) in enumerate(zip(found, fragment.pieces, strict=True))
        )
        vectors = self._coders.decoded(self.down, given)
        for _ in found:
            with self._of_leader(fragment):
                vector = next(vectors)
            yield vector

    @contextmanager
    def _of_leader(self, fragment: "Fragment") -> Iterator[None]:
        """Inside, the leader's message is read, which nobody can leave out."""
        try:
            yield
        except WireError as error:
            raise WireError(
                f"outer step {fragment.turn}: the message of the leader, worker 0, cannot be read: {error}; "
                "go on from a checkpoint"
            ) from None

    @contextmanager
    def _of_worker(self, fragment: "Fragment", number: int) -> Iterator[None]:
        """Inside, a worker's message is read."""
        try:
            yield
        except WireError as error:
            raise WireError(f"outer step {fragment.turn}: worker {number} sent nonsense: {error}") from None

    def _encode(self, fragment: "Fragment", header: Header) -> bytes:
        """This worker's message; an empty one if its change is not finite."""
        rest, layouts = list[Tensor](), [piece.layout for piece in fragment.pieces]
        keys = [self._key(fragment, i, self._links.number) for i in range(len(layouts))]

        def changes() -> Iterator[Tensor]:
            for i in range(len(layouts)):
                change = self._change(fragment, i)
                if self.memory:
                    rest.append(change)
                yield change

        try:
            given = zip(changes(), layouts, keys, strict=True)
            parts = list(self._coders.encoded(self.codec, given))
            if self.memory:
                heard = self._coders.decoded(self.codec, zip(parts, layouts, keys, strict=True))
                for i, vector in enumerate(heard):
                    rest[i] = rest[i] - vector
        except NotFinite:
            fragment.before = None  # what it gains meanwhile is not finite either
            return messages.pack(replace(header, empty=True), [])
        for kept, x in zip(fragment.rest, rest, strict=True):
            kept.copy_(x)
        return messages.pack(header, parts)

    def _change(self, fragment: "Fragment", i: int) -> Tensor:
        """What the worker sends of a piece: its change, and what it still has to send."""
        piece = fragment.pieces[i]
        change = fragment.w[i] - (piece.read() if fragment.before is None else fragment.before[i])
        change = change + fragment.slack[i] if piece.coarse else change
        return change + self.memory * fragment.rest[i] if self.memory else change

    def _heard(self, fragment: "Fragment", mail: list[memoryview], checksum: int) -> Heard:
        """The messages that can be read, by worker; others are named."""
        heard, pieces, codec = {}, len(fragment.pieces), self.codec
        self._why.clear()
        for number, data in enumerate(mail):
            try:
                header, parts = messages.unpack(data, fragment.number, fragment.turn, pieces)
                if header.end:
                    raise RankLost(f"worker {number} has finished after {header.turn} steps{self._uneven}")
                if header.empty:
                    raise WireError(_NOT_FINITE)
                for piece, part in zip(fragment.pieces, parts, strict=True):
                    if type(codec).decode is Codec.decode:  # else it alone knows what its messages are like
                        codec.format.unframe(codec.id, codec.fingerprint(piece.layout), part)
            except WireError as error:
                self._left_out(fragment, number, error)
                continue
            if header.checksum != checksum:
                raise RankLost(
                    f"before outer step {fragment.turn} worker {number} has other outer parameters than "
                    f"worker {self._links.number}: do all run the same versions on the same kind of "
                    "hardware? go on from a checkpoint"
                )
            heard[number] = header, parts
        return heard

    def _agreed(self, fragment: "Fragment", heard: Heard) -> Heard:
        """The messages that all workers can read; others are named."""
        agreed = self._links.agree([number in heard for number in range(self.workers)])
        for number in [number for number in heard if not agreed[number]]:
            self._left_out(fragment, number, "another worker cannot read it")
        return {number: own for number, own in heard.items() if agreed[number]}

    def _left_out(self, fragment: "Fragment", number: int, why: object) -> None:
        self._why[number] = str(why)
        warnings.warn(
            f"outer step {fragment.turn}: the message of worker {number} is left out: {why}", stacklevel=2
        )

    def _key(self, fragment: "Fragment", piece: int, worker: int | None = None) -> Draw:
        """The random numbers with which a worker's message of a piece, or the leader's, is made and read."""
        way = "downlink" if worker is None else "uplink"
        key = self._draw.fold(fragment.turn).fold(torch.tensor([worker or 0], device="cpu")).fold(way, "D")
        several = len(self._fragments) > 1 or len(fragment.pieces) > 1
        key = key.fold(fragment.number, piece) if several else key
        return Draw(key.key[0].to(fragment.w[piece].device))


class Fragment:
    """A part of the model that is exchanged at one time: its outer parameters and their moments, by piece.

    Attributes:
        w: the outer parameters.
        moments: of the outer optimiser.
        rest: what the codec has not sent, if it is remembered.
        slack: how far the worker's own parameters were from what was written last, as bfloat16 rounds it.
        before: the worker's own parameters when it last sent its change, if it goes on meanwhile.
        launched: whether an outer step was taken that the worker does not have yet.
        turn: outer steps taken.
        at: steps of the worker when it last sent its change.
    """

    def __init__(self, number: int, pieces: list[Piece], optimiser: ServerOptimiser, memory: float) -> None:
        self.number, self.pieces, self.turn, self.at, self.launched = number, pieces, 0, 0, False
        self.w = [piece.read() for piece in pieces]
        self.moments: list[Vectors] = [optimiser.init(w.clone()) for w in self.w]  # it may keep w
        self.rest = [torch.zeros_like(w) for w in self.w] if memory else []
        self.slack = [x.read().zero_() if x.coarse else torch.empty(0) for x in pieces]
        self.before: list[Tensor] | None = None
        self.flight: Future[None] | None = None
        self.size = sum(piece.layout.size for piece in pieces)

    def wait(self) -> None:
        """Until no message of this fragment is under way; raises what went wrong with them."""
        if self.flight is not None:
            flight, self.flight = self.flight, None
            flight.result()

    def give(self, i: int, x: Tensor) -> None:
        """Write a piece of the worker's own parameters, and keep what was lost to their dtype."""
        self.pieces[i].write(x)
        if self.pieces[i].coarse:
            self.slack[i] = self.pieces[i].read() - x

    def show(self, vectors: list[Tensor]) -> None:
        """Write vectors over the worker's own parameters."""
        for piece, x in zip(self.pieces, vectors, strict=True):
            piece.write(x)

    def checksum(self) -> int:
        """A number of 63 bits that changes with every bit of the outer parameters."""
        found = 0
        for w in self.w:
            words = w.view(torch.int64 if w.dtype == torch.float64 else torch.int32).to(torch.int64)
            places = torch.arange(1, 2 * words.numel(), 2, device=w.device)
            found = mix(found, int((words * (places * _ODD)).sum())) % 2**63
        return found

    def state_dict(self) -> dict[str, Any]:
        self.wait()
        return {
            "turn": self.turn,
            "at": self.at,
            "launched": self.launched,
            "w": self.w,
            "moments": self.moments,
            "rest": self.rest,
            "slack": self.slack,
            "before": self.before,
        }

    def refuse_others(self, state: Mapping[str, Any]) -> None:
        """Raise ConfigError on a state of another model or of other settings."""
        if _described(state["w"]) != _described(self.w):
            raise ConfigError("the state is of a model with other parameters, or of another torch dtype")
        if [set(x) for x in state["moments"]] != [set(x) for x in self.moments]:
            raise ConfigError("the state is of another outer optimiser; give the same")
        if len(state["rest"]) != len(self.rest):
            has, asked = ("a memory", "0") if state["rest"] else ("no memory", "above 0")
            raise ConfigError(f"the state has {has}, but memory is {asked}; give the same")

    def load_state_dict(self, state: Mapping[str, Any], at: int) -> None:
        """Take over a state.

        Args:
            at: which it has if it is one of fedcom 0.2.0, whose states do not say it.
        """
        self.wait()
        self.turn, self.launched, before = state["turn"], state["launched"], state["before"]
        self.at = state.get("at", at)
        kept = [*state["w"], *state["rest"], *state.get("slack", self.slack)]
        for own, new in zip([*self.w, *self.rest, *self.slack], kept, strict=True):
            own.copy_(new)
        for moments, new in zip(self.moments, state["moments"], strict=True):
            for name, x in new.items():
                moments[name].copy_(x)
        self.before = before and [x.to(w.device, w.dtype) for x, w in zip(before, self.w, strict=True)]


def _described(vectors: list[Tensor]) -> list[Any]:
    return [(x.shape, x.dtype) for x in vectors]


def codec_of(given: str | dict[str, Any] | Codec, bits: float | None) -> Codec:
    """The codec that a name, a table or a codec stands for, at so many bits."""
    codec = pick(CODECS, given, "codec") if isinstance(given, dict) else codecs.codec_of(given)
    codecs.vet(codec=codec)
    if bits is None:
        return codec
    found = codec.at(bits)
    if found is None:
        raise ConfigError(f"codec {codec.name} cannot send {bits:g} bits per number; give its own settings")
    return found


def _check(**given: float) -> None:
    """Refuse settings out of range."""
    for name in ("every", "fragments", "delay"):
        if not hasattr(given[name], "__index__"):
            raise ConfigError(f"{name} must be a whole number; got {given[name]!r}")
    for name in ("every", "rate", "weight", "fragments"):
        if not 0 < given[name] < math.inf:
            raise ConfigError(f"{name} must be above 0 and finite; got {given[name]}")
    if given["delay"] not in (0, 1):
        raise ConfigError(f"delay must be 0 or 1 intervals; got {given['delay']}")
    if not 0 <= given["memory"] <= 1:
        raise ConfigError(f"memory must be from 0 to 1; got {given['memory']}")
    if given["fragments"] > given["every"]:
        raise ConfigError(
            f"fragments must be at most every, {given['every']:g}, to take turns; got {given['fragments']:g}"
        )


def _recorded(fragment: Fragment) -> dict[torch.device, Any]:
    """An event on each GPU after which the fragment's vectors are there."""
    devices = {w.device for w in fragment.w if w.is_cuda}
    return {device: torch.cuda.current_stream(device).record_event() for device in devices}


@contextmanager
def _on(streams: Mapping[torch.device, Any]) -> Iterator[None]:
    """Inside, GPUs compute on these streams."""
    with ExitStack() as stack:
        for stream in streams.values():
            stack.enter_context(torch.cuda.stream(stream))
        yield


def _signed(x: int) -> int:
    """The low 64 bits, as a signed integer."""
    return (x + 2**63) % 2**64 - 2**63
