"""Sequences: bytes that say, step by step, who asks what over which connection of one server, with remembered values.

A step has eight bytes:

    0  the connection (two bits), and when it has to be made: logged in as `fuzz` (4), as `alice` (8), or not
    1  what is said: a word of `words.WORDS`, beyond those a sample of an API
    2  the version, counted down from the highest
    3  how it is said (`Speaker.arg`); what a sample is made of
    4  which remembered values are taken (`Speaker.known`), 0: the newest
    5  what is done to its bytes, 0: nothing
    6  where that is done
    7  time that passes after it (four bits), the connection is closed then (128), the next step waits for nothing (64)

All follows from the bytes: the same ones say the same. What is over is judged as the stateless inputs are, and every
answer, too: it can be read, and is one to a request of its connection, in their order where there is one.
"""

from __future__ import annotations

import random
import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import orjson
from kio.schema.errors import ErrorCode as KafkaError
from kio.serial.errors import OutOfBoundValue

from flowshare.protocol import cooperative_settle
from flowshare.protocol.client_software import OWN_SOFTWARE
from flowshare.protocol.filter_codec import decode_fetched
from flowshare.protocol.kafka import ApiKey, entity, read_response, request_start, write_request
from flowshare.protocol.settle_codec import decode_settled
from flowshare.server.edge.base import Endpoint
from flowshare.testing.clock import settle
from tests.fuzz.pipe import ADMIN, PATIENCE_S, Target
from tests.fuzz.samples import FAULTS, example, valid
from tests.fuzz.speaker import OTHER_TOPIC, Client, Request, Speaker, codes
from tests.fuzz.words import WORDS, create_topic, groups, metadata, positions, produce, share_heartbeat
from tests.server.edge.kit import build

API_VERSIONS_HIGHEST: Final = 5
STEPS_MAX: Final = 64
LINES: Final = 4
LOGGED_IN, ALICE = 4, 8
CLOSED, AT_ONCE = 128, 64
TIMES_S: Final = (0.0, 0.01, 0.15, 0.5, 1.1, 2.0, 3.1, 6.0, 11.0, 16.0, 25.0, 31.0, 46.0, 61.0, 130.0, 700.0)
"""Seconds that may pass; around what locks, sessions, logins and transactions last."""
PATIENT: Final = frozenset({ApiKey.FETCH, ApiKey.SHARE_FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP})
"""Requests that say themselves how long they may wait."""

AGAIN: Final = frozenset(
    {
        ApiKey.ALTER_SHARE_GROUP_OFFSETS,
        ApiKey.DELETE_GROUPS,
        ApiKey.DELETE_SHARE_GROUP_OFFSETS,
        ApiKey.DELETE_SHARE_GROUP_STATE,
        ApiKey.FLOWSHARE,
        ApiKey.INITIALIZE_SHARE_GROUP_STATE,
        ApiKey.WRITE_SHARE_GROUP_STATE,
    }
)
"""Requests after which accepted records may come again."""
PROBE: Final = (metadata, create_topic, produce, positions, groups, share_heartbeat)
"""Requests that another connection sends at the end."""
PROBE_S: Final = 6.0


class Step(NamedTuple):
    """One step; the fields are its bytes."""

    line: int = LOGGED_IN
    word: int = 0
    version: int = 0
    arg: int = 0
    pick: int = 0
    fault: int = 0
    at: int = 0
    time: int = 0


def steps(data: bytes) -> list[Step]:
    """The steps that bytes say; what is left over says nothing."""
    size = len(Step._fields)
    whole = min(len(data) // size, STEPS_MAX) * size
    return [Step(*data[at : at + size]) for at in range(0, whole, size)]


@dataclass
class Asked:
    """A request of a connection that is not answered."""

    step: int
    frame: bytes
    raw: bool
    """True if the frame is a bare token of a login."""
    faulty: bool
    request: Request | None = None
    """None: a sample."""

    @property
    def answered(self) -> bool:
        """True if there has to be an answer."""
        return self.request is None or self.request.answered

    @property
    def correlation_id(self) -> int | None:
        """None: it has none."""
        return struct.unpack_from(">i", self.frame, 4)[0] if len(self.frame) >= 8 else None

    @property
    def key(self) -> int | None:
        """Of the API."""
        return struct.unpack_from(">h", self.frame)[0] if len(self.frame) >= 2 else None


class Line:
    """One connection of a sequence."""

    def __init__(self, target: Target, number: int, *, principal: str | None) -> None:
        self.number = number
        self.protocol, self.pipe = target.connect(principal=principal)
        self.asked: deque[Asked] = deque()
        self.left = False
        """True if the client closed the connection."""
        self.faulty = False
        """True if the client ever sent a faulty request, or one whose failure may end the connection instead of an
        answer."""
        self._read = 0

    @property
    def peer(self) -> Any:
        """The server's view of the connection."""
        return self.protocol._peer

    def ask(self, asked: Asked) -> None:
        """Send a request."""
        self.asked.append(asked)
        self.faulty |= asked.faulty or not asked.answered
        self.protocol.data_received(struct.pack(">i", len(asked.frame)) + asked.frame)

    def close(self) -> None:
        """The client goes."""
        self.left = True
        self.pipe.close()

    def judge_end(self, now_s: float) -> None:
        """The server closed it. Raises: AssertionError (for no reason)."""
        known = self.peer.principal is not None and not self.peer.closing and not self.peer.outdated(now_s)
        lost = [asked for asked in self.asked if asked.answered]
        assert self.left or not known or self.faulty or not lost, f"closed in place of an answer to {lost}"

    def answers(self) -> list[tuple[Asked, Any]]:
        """Return the answers since the last look. Raises: AssertionError (an answer that may not come)."""
        found: list[tuple[Asked, Any]] = []
        written = self.pipe.written
        while self._read < len(written):
            (length,) = struct.unpack_from(">i", written, self._read)
            frame = written[self._read + 4 : self._read + 4 + length]
            assert len(frame) == length, "half an answer was written"
            self._read += 4 + length
            asked = self._of(frame)
            found.append((asked, frame if asked.raw else _answer(asked, frame)))
        return found

    def _of(self, frame: bytes) -> Asked:
        """The request that a frame answers."""
        number = struct.unpack_from(">i", frame)[0] if len(frame) >= 4 else None
        if self.peer.software == OWN_SOFTWARE:
            asked = next((one for one in self.asked if one.raw or one.correlation_id == number), None)
            assert asked is not None, f"an answer to no request: {frame.hex()}"
            self.asked.remove(asked)
            return asked
        while self.asked:
            asked = self.asked.popleft()
            if asked.raw or asked.correlation_id == number:
                return asked
            silent = not asked.answered or (asked.faulty and asked.key == ApiKey.PRODUCE)
            assert silent, f"{frame.hex()} answers something else than {asked.frame.hex()}"
        raise AssertionError(f"an answer to no request: {frame.hex()}")


def _answer(asked: Asked, frame: bytes) -> Any:
    """The entity of an answer; None for one that kio does not know."""
    start = request_start(asked.frame)
    if start.key == ApiKey.FLOWSHARE:
        assert isinstance(orjson.loads(frame[5:]), dict)
        return None
    if start.key == ApiKey.FLOWSHARE_SETTLE:
        decode_settled(frame)
        return None
    if start.key == ApiKey.FLOWSHARE_FETCH:
        decode_fetched(frame)
        return None
    if start.key == ApiKey.FLOWSHARE_COOPERATIVE_SETTLE:
        cooperative_settle.decode_settled(frame)
        return None
    name, version = ApiKey(start.key).name.lower(), start.version
    if start.key == ApiKey.API_VERSIONS and not 0 <= version <= API_VERSIONS_HIGHEST:
        version = 0  # the refusal
    try:
        answer = read_response(name, version, frame)[1]
    except OutOfBoundValue:
        return None  # -1, Kafka's word for no time, where kio wants one
    except Exception as error:
        raise AssertionError(f"{frame.hex()} is no {name} v{version} answer to {asked.frame.hex()}") from error
    assert KafkaError.unknown_server_error not in codes(answer), f"{name} v{version} failed: {answer}"
    return answer


class Played(NamedTuple):
    """Result of one step."""

    step: int
    answer: Any
    """None: an answer in no form of Kafka's."""


class Accepted:
    """Records whose acceptance was answered: nobody gets them again."""

    def __init__(self) -> None:
        self._done: set[tuple[Any, ...]] = set()
        self.doubtful = False
        """True if a client asked for records to come again."""

    def see(self, answered: Sequence[tuple[Request, Any]]) -> None:
        """Well-formed requests were answered, at once as far as one knows.

        Raises: AssertionError (a record that had been accepted came again).
        """
        shared = [one for one in answered if one[0].key in (ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE)]
        for request, answer in shared:
            acquired = {
                (request.fields["group_id"], topic.topic_id, one.partition_index, offset)
                for topic in answer.responses
                for one in topic.partitions
                for offset in _offsets(getattr(one, "acquired_records", ()))
            }
            again = acquired & self._done
            assert self.doubtful or not again, f"accepted and acquired again: {sorted(again, key=str)}"
        for request, answer in shared:
            self._accept(request, answer)

    def _accept(self, request: Request, answer: Any) -> None:
        if answer.error_code is not KafkaError.none:
            return
        parts = {(topic.topic_id, one.partition_index): one for topic in answer.responses for one in topic.partitions}
        for topic in request.fields["topics"]:
            for asked in topic.partitions:
                one = parts.get((topic.topic_id, asked.partition_index))
                if one is None or codes(one) != {KafkaError.none}:
                    continue
                for batch in asked.acknowledgement_batches:
                    place = (request.fields["group_id"], topic.topic_id, asked.partition_index)
                    self._done |= {(*place, offset) for offset in _offsets((batch,)) if _type(batch, offset) == 1}


def _offsets(ranges: Any) -> list[int]:
    return [offset for one in ranges for offset in range(one.first_offset, one.last_offset + 1)]


def _type(batch: Any, offset: int) -> int:
    types = batch.acknowledge_types
    return types[0] if len(types) == 1 else types[offset - batch.first_offset]


class Play:
    """Plays one sequence against a target."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._apis = tuple(target.apis.values())
        self._client = Client(target.topic_id)
        self._lines: dict[int, Line] = {}
        self._all: list[Line] = []
        self._accepted = Accepted()
        self.played: list[Played] = []
        """In the order of the answers."""

    async def run(self, data: bytes) -> list[Played]:
        """Play it to its end, and close all. Raises: AssertionError (`Target.judge`, `Line.answers`)."""
        try:
            for number, step in enumerate(steps(data)):
                await self._one(number, step)
            await self._over()
            await self._still_served()
        except AssertionError as error:
            raise AssertionError(f"{error}\nin a sequence {data.hex()}") from error
        await self._target.judge(data)
        return self.played

    async def _one(self, number: int, step: Step) -> None:
        line = self._line(step)
        asked = self._said(number, step, line)
        line.ask(asked)
        self._accepted.doubtful |= asked.key in AGAIN
        if not step.time & AT_ONCE:
            await settle()
            if step.time & 15:
                await self._target.clock.advance(TIMES_S[step.time & 15])
        self._take()
        if step.time & CLOSED:
            line.close()
        elif line.pipe.closed:
            line.judge_end(self._target.clock.monotonic())

    def _line(self, step: Step) -> Line:
        number = step.line % LINES
        line = self._lines.get(number)
        if line is None or line.pipe.closed:
            principal = ADMIN if step.line & LOGGED_IN else "User:alice" if step.line & ALICE else None
            line = self._lines[number] = Line(self._target, number, principal=principal)
            self._all.append(line)
        return line

    def _said(self, number: int, step: Step, line: Line) -> Asked:
        say = Speaker(self._client, line.number, arg=step.arg, pick=step.pick)
        client_id = "fuzz"
        request = WORDS[step.word](say) if step.word < len(WORDS) else None
        raw = line.peer.raw is not None
        if request is not None and raw and request.key is ApiKey.SASL_AUTHENTICATE:
            frame = request.fields["auth_bytes"]
        elif request is not None:
            frame = _framed(self._target.apis[request.key], step.version, request, number, client_id)
        else:
            frame = _sample(self._apis, step, say, number, client_id)
        faulty = request is None or (raw and request.key is not ApiKey.SASL_AUTHENTICATE)
        if step.fault:
            frame, faulty = _faulty(frame, step.fault, step.at), True
        return Asked(
            step=number,
            frame=frame,
            raw=raw,
            faulty=faulty,
            request=request,
        )

    def _take(self) -> None:
        answered: list[tuple[Request, Any]] = []
        for line in self._all:
            for asked, answer in line.answers():
                if answer is not None and not isinstance(answer, bytes):
                    self._client.learn(line.number, answer)
                if asked.request is not None and not asked.faulty and answer is not None:
                    answered.append((asked.request, answer))
                    if asked.request.then is not None:
                        asked.request.then(answer)
                self.played.append(Played(asked.step, answer))
        self._accepted.see(answered)

    async def _over(self) -> None:
        """Whoever asked has an answer or no connection, once there was time enough; then all connections go."""
        await self._target.clock.advance(PATIENCE_S)
        self._take()
        for line in self._all:
            waiting = [] if line.pipe.closed else [asked for asked in line.asked if asked.answered]
            excused = any(asked.faulty and asked.key in PATIENT for asked in waiting)
            lost = [asked for asked in waiting if not (asked.faulty and asked.key == ApiKey.PRODUCE)]
            assert excused or not lost, f"no answer in {PATIENCE_S:g} s to {lost}"
            line.close()

    async def _still_served(self) -> None:
        """Somebody else who comes now is served."""
        line = Line(self._target, LINES, principal=ADMIN)
        say = Speaker(Client(self._target.topic_id), LINES, arg=OTHER_TOPIC, pick=0)
        for number, word in enumerate(PROBE):
            request = word(say)
            frame = _framed(self._target.apis[request.key], 0, request, number, "another")
            line.ask(Asked(step=number, frame=frame, raw=False, faulty=False, request=request))
            await self._target.clock.advance(PROBE_S)
            assert len(line.answers()) == 1, f"nobody else is served any more: {word.__name__}"
        line.close()


def _framed(api: Endpoint, version: int, request: Request, number: int, client_id: str) -> bytes:
    version = api.versions[1] - version % (api.versions[1] - api.versions[0] + 1)
    if api.key is ApiKey.FLOWSHARE:
        name = client_id.encode()
        head = struct.pack(f">hhih{len(name)}sB", api.key, version, number, len(name), name, 0)
        return head + request.fields["body"]
    return write_request(number, client_id, build(api.key.name.lower(), version, **request.fields))[4:]


def _sample(apis: tuple[Endpoint, ...], step: Step, say: Speaker, number: int, client_id: str) -> bytes:
    """A request of any API, with known values in the fields of their names."""
    api = apis[step.word % len(apis)]
    version = api.versions[1] - step.version % (api.versions[1] - api.versions[0] + 1)
    rng = random.Random(step.arg)
    if api.key >= ApiKey.FLOWSHARE:
        return valid(api, version, rng)
    request = example(entity(api.key.name.lower(), version, "request"), rng, say.field)
    return write_request(number, client_id, request)[4:]


def _faulty(frame: bytes, fault: int, at: int) -> bytes:
    """The frame with one byte set, or with one of the samples' faults."""
    if fault & 1 and frame:
        place = at % len(frame)
        return frame[:place] + bytes((fault,)) + frame[place + 1 :]
    return FAULTS[(fault >> 1) % len(FAULTS)](frame, random.Random(fault << 8 | at))


async def play(target: Target, data: bytes) -> list[Played]:
    """Play a sequence; what was answered, in its order.

    Raises AssertionError when a request failed within the server, an answer is none, or something is left behind.
    """
    return await Play(target).run(data)


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Another sequence: steps come, go, are said twice or change their places, or a byte of one is another."""
    said = steps(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(said) + 1)
        kind = rng.randrange(8)
        if kind == 0 or not said:
            said.insert(at, _any_step(rng))
        elif kind == 1:
            said.insert(at, rng.choice(said))
        elif kind == 2:
            del said[min(at, len(said) - 1)]
        elif kind == 3:
            said.insert(at, said.pop(rng.randrange(len(said))))
        else:
            at = min(at, len(said) - 1)
            name = rng.choice(Step._fields)
            said[at] = said[at]._replace(**{name: getattr(_any_step(rng), name)})
    return b"".join(bytes(step) for step in said[:STEPS_MAX])


def _any_step(rng: random.Random) -> Step:
    """A step, most of them without a fault."""
    return Step(
        line=rng.choice((LOGGED_IN, LOGGED_IN, ALICE, 0)) | rng.randrange(LINES),
        word=rng.randrange(len(WORDS)) if rng.random() < 0.8 else rng.randrange(256),
        version=rng.choice((0, rng.randrange(20))),
        arg=rng.randrange(32) if rng.random() < 0.7 else rng.randrange(256),
        pick=rng.choice((0, 0, rng.randrange(256))),
        fault=rng.choice((0, 0, 0, rng.randrange(256))),
        at=rng.randrange(256),
        time=rng.choice((0, 0, rng.randrange(16), rng.choice((AT_ONCE, CLOSED)) | rng.randrange(16))),
    )


def shown(data: bytes) -> list[str]:
    """Return the steps of a sequence as text, a line a step."""
    return [
        f"{number:2} {WORDS[step.word].__name__ if step.word < len(WORDS) else f'sample {step.word}'} {step}"
        for number, step in enumerate(steps(data))
    ]
