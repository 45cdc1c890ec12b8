"""Run an app without a broker, without waiting, and see what became of each record.

    async with fs.testing.harness(app) as bus:
        await bus.send(orders, key="c1", value=Order(id="1", total=5))
        with bus.failing(ledger, "charge", TimeoutError, times=2):
            report = await bus.run_until_idle()
        assert report[bill].attempts == [1, 2, 3]

The log is in memory, `def` handlers run inline, and the harness's clock rules flowshare's delays, locks and timeouts.
That clock stands still until nothing else can go on, then jumps. On an ordinary loop (pytest-asyncio, anyio) the
handlers' own sleeps take their real time; under `fs.testing.run` or the marker `flowshare` they are virtual too.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import orjson

from flowshare.agents.app.app import App
from flowshare.agents.faust.models import decoder_for
from flowshare.agents.feed.acknowledgements import Settled
from flowshare.agents.handler.agent import ShareAgent
from flowshare.agents.handler.errors import UndecodableValue, UsageError, nearest
from flowshare.agents.handler.send import is_topic
from flowshare.agents.handler.values import describe
from flowshare.agents.host.host import Host, HostSettings
from flowshare.agents.kmq.agent import KmqAgent
from flowshare.backend.memory import MemoryBackend
from flowshare.core_errors import FlowshareError
from flowshare.ops.figures import PartitionFigures
from flowshare.ops.reading import groups_of, partitions
from flowshare.protocol.messages.cooperative import CooperativeOffsetsRequest
from flowshare.share.config import ServerConfig
from flowshare.testing.clock import LoopTimeClock, ManualClock, settle
from flowshare.testing.runs import HandlerRun, counted, disorder, is_key, note_runs
from flowshare.testing.virtual import VirtualTimeLoop

IDLE_LIMIT_S: Final = 31 * 86_400.0
"""Virtual seconds, more than the longest delay of a record."""
SELDOM: Final = {"group.share.session.timeout.ms": "3600000", "group.share.heartbeat.interval.ms": "1800000"}
"""Server settings: members of a test do not die, and few heartbeats fall into a month that is jumped over."""
REAL_LIMIT_S: Final = 30.0
READ_LIMIT: Final = 100_000
"""Most records of a partition that the bus reads back."""
QUIET_REAL_S: Final = 0.05
"""Real seconds that running handlers get before the clock is moved."""
QUIET_AGAIN_REAL_S: Final = 0.002
"""Real seconds that running handlers get when nothing has ended since the clock was last moved."""


class NotIdle(FlowshareError, AssertionError):
    """`run_until_idle` gave up; the error's text says which records are left and why."""


@dataclass(slots=True)
class AgentReport:
    """One agent's deliveries since the harness started: `settled` in the order they were settled, `runs` as they
    began."""

    settled: list[Settled] = field(default_factory=list)
    runs: list[HandlerRun] = field(default_factory=list)
    """Runs of the agent's handlers, in the order in which they began."""

    def count(self, *outcomes: str) -> int:
        """Count deliveries with one of these outcomes (see `Settled.outcome`)."""
        return sum(one.outcome in outcomes for one in self.settled)

    @property
    def accepted(self) -> int:
        """Number of records whose accept was confirmed."""
        return self.count("accepted")

    @property
    def retried(self) -> int:
        """Number of deliveries that failed and were released for another attempt."""
        return self.count("retried")

    @property
    def released(self) -> int:
        """Number of deliveries released by `fs.Release`."""
        return self.count("released")

    @property
    def rejected(self) -> int:
        """Number of records that ended without success: dead letters, and rejects of agents without a dead letter
        topic."""
        return self.count("dead_lettered", "rejected")

    @property
    def dead_lettered(self) -> int:
        """Number of records that ended as dead letters."""
        return self.count("dead_lettered")

    @property
    def attempts(self) -> list[int]:
        """Attempt numbers of the deliveries, in the order they were settled: one record that failed twice is [1, 2,
        3]."""
        return [one.attempt for one in self.settled]

    @property
    def delays(self) -> list[float]:
        """Delay in seconds of each released delivery, in order."""
        return [one.delay_s for one in self.settled if one.outcome in {"retried", "released"}]

    @property
    def reasons(self) -> list[str]:
        """Reason of each unsuccessful delivery, in order."""
        return [one.reason for one in self.settled if one.outcome != "accepted"]

    def order_of(self, key: Any) -> list[int]:
        """Return a key's offsets in the order in which their handlers began; a retried record stands there again.

        key: as handlers see it, or its bytes, or its text; with `order=fs.Header(…)` the header's value. A key may lie
        in several partitions (of several topics): all their offsets are in the one list.
        Raises: UsageError when no handler began a record of the key.
        """
        found = [run.offset for run in counted(self.runs) if is_key(run, key)]
        if not found:
            seen = ", ".join(sorted({repr(run.key) for run in self.runs})[:10]) or "none"
            raise UsageError(f"no handler has begun a record of key {key!r}; keys that came: {seen}")
        return found

    def assert_in_order(self) -> None:
        """Fail unless records of each key of a partition ran one after the other, in the order of the log.

        A retry counts: it must come before the later records of its key. Keys are those of the agent's `order=`,
        without `order=` the records' keys; records without a key may run in any order.
        Raises: AssertionError that names the key, the offsets and which of them ran before which; UsageError when no
        record with a key ran, as that would assert nothing.
        """
        __tracebackhide__ = True
        if all(run.raw_key is None for run in self.runs):
            raise UsageError("no handler has begun a record with a key, so there is no order to assert")
        if (wrong := disorder(counted(self.runs))) is not None:
            raise AssertionError(f"not in order: {wrong}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SentRecord:
    """A record as it lies in a topic. `key` and `value` have the topic's types, else decoded JSON, else bytes."""

    topic: str
    partition: int
    offset: int
    key: Any
    value: Any
    headers: dict[str, bytes | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter(SentRecord):
    """A dead letter, and its origin as its headers tell it."""

    def header(self, name: str) -> str:
        """Return a `flowshare.dlq.…` header as text, empty when the header is missing."""
        return (self.headers.get(f"flowshare.dlq.{name}") or b"").decode()

    @property
    def reason(self) -> str:
        """Reason why the record ended as a dead letter."""
        return self.header("reason")

    @property
    def attempts(self) -> int:
        """Number of attempts of the record."""
        return int(self.header("attempts") or 0)

    @property
    def origin(self) -> tuple[str, int, int]:
        """Topic, partition and offset of the original record."""
        return self.header("topic"), int(self.header("partition")), int(self.header("offset"))


class HarnessReport(Mapping[str, AgentReport]):
    """Reports by agent: `report[bill]`, with the decorated function or its name."""

    def __init__(self, agents: Iterable[str]) -> None:
        """agents: names of the app's agents."""
        self._agents = {name: AgentReport() for name in agents}

    def add(self, settled: Settled) -> None:
        """Add one settled delivery."""
        self._agents[settled.agent].settled.append(settled)

    def __getitem__(self, agent: Any) -> AgentReport:
        name = agent if isinstance(agent, str) else getattr(agent, "name", None)
        if name not in self._agents:
            raise _no_agent(agent, self._agents)
        return self._agents[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._agents)

    def __len__(self) -> int:
        return len(self._agents)


class Bus:
    """The harness's handle, made by `harness`: send, run, move time, read."""

    def __init__(self, app: App, host: Host, clock: ManualClock | LoopTimeClock, report: HarnessReport) -> None:
        self.app = app
        self.host = host
        self.clock = clock
        self.report = report
        """All deliveries settled so far; grows while the harness runs."""
        self._records: dict[str, list[SentRecord]] = {}
        self._ended = 0
        self._patience_s = QUIET_REAL_S
        self._queued: list[Callable[[], Awaitable[Any]]] = []

    async def send(
        self, topic: Any, value: Any = None, *, key: Any = None, headers: Mapping[str, bytes] | None = None
    ) -> None:
        """Queue one record, encoded as the app would; `topic` is a topic of the app or a name.

        The record is produced when the harness runs next (`run_until_idle`, `advance`), so that a test can set up more
        before the record is handled.
        """
        target = self.app.topic(topic) if isinstance(topic, str) else topic
        self._queued.append(lambda: target.send(key=key, value=value, headers=dict(headers or {})))

    async def advance(self, seconds: float) -> HarnessReport:
        """Move time forward by `seconds`; timers that fall due on the way run. Raises: NotIdle when time cannot move on
        because handlers always have something to do."""
        await self._produce()
        if not await self._advance(seconds, time.monotonic() + REAL_LIMIT_S):
            raise NotIdle(await self._why_not_idle(f"{REAL_LIMIT_S:.0f} s of real time"))
        await self._read_topics()
        return self.report

    async def run_until_idle(self, *, limit: float = IDLE_LIMIT_S) -> HarnessReport:
        """Run until every record of every agent that is not paused has ended, jumping over delays.

        limit: virtual seconds until the harness gives up. Raises: NotIdle.
        """
        await self._produce()
        until_s = self.clock.monotonic() + limit
        real_until_s = time.monotonic() + REAL_LIMIT_S
        while True:
            await self._let_handlers_run(real_until_s)
            if await self._all_ended():
                await self._read_topics()
                return self.report
            if self.clock.monotonic() >= until_s:
                raise NotIdle(await self._why_not_idle(f"{limit:.0f} s of the harness's time"))
            if time.monotonic() >= real_until_s:
                raise NotIdle(await self._why_not_idle(f"{REAL_LIMIT_S:.0f} s of real time"))
            await self._jump(real_until_s)

    @contextmanager
    def failing(
        self, target: Any, name: str, error: type[BaseException] | BaseException, *, times: int
    ) -> Iterator[None]:
        """Let the next `times` calls of `target.name` raise `error`; works for functions and coroutines."""
        real = getattr(target, name)
        left = times

        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            if left > 0:
                left -= 1
                raise error
            return real(*args, **kwargs)

        async def call_async(*args: Any, **kwargs: Any) -> Any:
            return await call(*args, **kwargs)

        setattr(target, name, call_async if inspect.iscoroutinefunction(real) else call)
        try:
            yield
        finally:
            setattr(target, name, real)

    def records(self, topic: Any) -> list[SentRecord]:
        """Return the records of a topic (a sink, say), as of the last `run_until_idle` or `advance`.

        Keys and values have the `key_type` and `value_type` of the given topic, or of a topic of this name that an
        agent of the app reads or sends to; without such types they are decoded JSON, or bytes.
        """
        name = topic if isinstance(topic, str) else topic.get_topic_name()
        channel = self._channel(name) if isinstance(topic, str) else topic
        return [self._typed(record, channel) for record in self._records.get(name, ())]

    def _channel(self, name: str) -> Any:
        for agent in _agents(self.app).values():
            for channel in (*agent.channels, *agent.options.sink):
                if not isinstance(channel, str) and channel.get_topic_name() == name:
                    return channel
        return None

    def _typed(self, record: SentRecord, channel: Any) -> SentRecord:
        key_type, key_serializer = getattr(channel, "key_type", None), getattr(channel, "key_serializer", None)
        value_type, serializer = getattr(channel, "value_type", None), getattr(channel, "value_serializer", None)
        key, value = record.key, _decoded(record.value)
        if getattr(channel, "key_codec", None) is not None:
            key = _as_declared(record, "key", record.key, key_type, channel)
        elif key_type is not None or key_serializer is not None:
            key = _as_declared(record, "key", record.key, key_type, key_serializer)
        if getattr(channel, "value_codec", None) is not None:
            value = _as_declared(record, "value", record.value, value_type, channel)
        elif value_type is not None or serializer is not None:
            value = _as_declared(record, "value", record.value, value_type, serializer)
        return replace(record, key=key, value=value)

    def dead_letters(self, agent: Any) -> list[DeadLetter]:
        """Return an agent's dead letters, as of the last `run_until_idle` or `advance`.

        agent: the decorated function, its name, or the name of its dead-letter topic. Raises: UsageError.
        """
        name = self._dead_letter_topic(agent)
        fields = ("topic", "partition", "offset", "key", "value", "headers")
        found = (replace(record, value=_decoded(record.value)) for record in self._records.get(name, ()))
        return [DeadLetter(**{field: getattr(record, field) for field in fields}) for record in found]

    def _dead_letter_topic(self, agent: Any) -> str:
        agents = _agents(self.app)
        found: Any = agents.get(agent) if isinstance(agent, str) else agent
        if found is None and agent in {one.dead_letter_topic for one in agents.values()}:
            return str(agent)
        if found not in agents.values():
            raise _no_agent(agent, agents)
        if isinstance(found, KmqAgent):
            raise UsageError(
                f"agent {found.name} reads a KMQ queue: what that gives up is in bus.records("
                f"{found.rules.undelivered_topic!r})"
            )
        if found.dead_letter_topic is None:
            raise UsageError(f"agent {found.name} has dead_letter=None, so there are no dead letters of it to read")
        return str(found.dead_letter_topic)

    async def _behind(self, agent: ShareAgent) -> int:
        """Count the offsets of a cooperative agent's topics that are before the ends and not known as finished."""
        connection = await self.host.backend.connect("test kit")
        try:
            answer = await connection.send(CooperativeOffsetsRequest(group_id=agent.group))
        finally:
            await connection.close()
        stable = {(one.topic, one.partition): one.stable for one in answer.partitions}
        behind = 0
        for topic in agent.topics:
            for number in range((await self.host.admin.describe_topic(topic)).partitions):
                behind += await self.host.admin.log_end(topic, number) - stable.get((topic, number), 0)
        return behind

    async def _produce(self) -> None:
        queued, self._queued = self._queued, []
        for send in queued:
            await _through_delays(self.clock, send())

    # -- how it goes on -----------------------------------------------------------------------------------------

    async def _let_handlers_run(self, real_until_s: float) -> None:
        """Wait in real time while handlers run on their own; return after a while in which none ended, so that time can
        move."""
        await settle()
        if not isinstance(self.clock, ManualClock):
            return
        quiet_since_s = time.monotonic()
        while self.host.in_flight():
            now_s = time.monotonic()
            if (ended := sum(len(agent.settled) for agent in self.report.values())) != self._ended:
                self._ended, self._patience_s, quiet_since_s = ended, QUIET_REAL_S, now_s
            if now_s - quiet_since_s > self._patience_s or now_s > real_until_s:
                self._patience_s = QUIET_AGAIN_REAL_S
                return
            await asyncio.sleep(0.001)
            await settle()

    async def _all_ended(self) -> bool:
        running = [runtime for runtime in self.host.runtimes.values() if not runtime.paused]
        if not all(runtime.idle for runtime in running):
            return False
        for runtime in running:
            if runtime.agent.name in self.app.cooperative_agents and await self._behind(runtime.agent):
                return False
            if not await runtime.finished():
                return False
        groups = {runtime.agent.group for runtime in running}
        return not any(one.backlog != 0 for one in await self._positions() if one.group in groups)

    async def _positions(self) -> list[PartitionFigures]:
        """Return the figures of each partition of the agents' groups."""
        groups = groups_of(runtime.agent for runtime in self.host.runtimes.values())
        return await partitions(self.host.admin, groups, self.clock.now_ms())

    async def _jump(self, real_until_s: float) -> None:
        due_s = self.clock.next_due_s()
        if due_s is not None:
            await self._advance(due_s, real_until_s)
        else:
            await asyncio.sleep(0.001)
            await settle()

    async def _advance(self, seconds: float, real_until_s: float) -> bool:
        """Move time; return False if the real time was over first: tasks that never wait keep virtual time still."""
        loop = asyncio.get_running_loop()
        if not isinstance(loop, VirtualTimeLoop):
            await self.clock.advance(seconds)
            return True
        moving = asyncio.ensure_future(self.clock.advance(seconds))
        with loop.real_limit(real_until_s, moving.cancel):
            await asyncio.wait({moving})
        return not moving.cancelled()

    async def _why_not_idle(self, limit: str) -> str:
        rows = [one.row() for one in await self._positions() if one.backlog != 0]
        return (
            f"not idle after {limit}: unfinished {rows}; "
            f"in the handlers now {self.host.in_flight(stacks=True)}; problems {list(self.host.ready())}"
        )

    async def _read_topics(self) -> None:
        admin = self.host.admin
        for topic in await admin.list_topics():
            records: list[SentRecord] = []
            for partition in range(topic.partitions):
                found = await admin.read(topic.name, partition, 0, limit=READ_LIMIT)
                records.extend(_sent(topic.name, partition, record) for record in found)
            self._records[topic.name] = records


def _no_agent(given: Any, agents: Iterable[str]) -> UsageError:
    shown = repr(given) if isinstance(given, str) else getattr(given, "__name__", repr(given))
    return UsageError(f"{shown} is no share agent of the app under test. {nearest(str(shown).strip(chr(39)), agents)}")


def _sent(topic: str, partition: int, record: Any) -> SentRecord:
    return SentRecord(
        topic=topic,
        partition=partition,
        offset=record.offset,
        key=record.key,
        value=record.value,
        headers=dict(record.headers),
    )


def _as_declared(record: SentRecord, what: str, raw: bytes | None, typ: Any, serializer: Any) -> Any:
    """Decode a key or value with its topic's type. serializer: one of Faust's, or a topic that has a codec."""
    if raw is None or isinstance(typ, str):
        return _decoded(raw)
    try:
        wanted = Any if typ is None else typ
        if is_topic(serializer):
            return serializer.decoder(what, wanted).of(raw, tuple(record.headers.items()))
        decode = decoder_for(wanted, serializer)
        return raw if decode is None else decode(raw)
    except Exception as error:
        place = f"{record.topic}-{record.partition}@{record.offset}"
        raise UndecodableValue(
            f"the {what} {raw[:80]!r} of {place} does not fit the topic's {what}_type"
            f"{'' if typ is None else f'={describe(typ)}'}: {error}"
        ) from error


def _decoded(value: bytes | None) -> Any:
    try:
        return None if value is None else orjson.loads(value)
    except orjson.JSONDecodeError:
        return value


def _agents(app: App) -> dict[str, ShareAgent]:
    """Return the agents that run in the harness, by name."""
    return {**app.share_agents, **app.cooperative_agents, **app.kmq_agents}


@asynccontextmanager
async def harness(app: App, *, seed: int = 0) -> AsyncIterator[Bus]:
    """Run `app` on a memory log with a clock that does not wait; leaving the block stops it.

    seed: of the jitter of retry delays. Topics are made with one partition when first used. The app's own settings
    (broker, path) are not used and not changed. A KMQ queue always has a tracker, whatever its agent says. Faust's own
    agents and tables need a broker: they do not run here, and a warning says so.
    Raises: UsageError, the start errors of `app.running()`, and AppFailed at the end when a task has failed.
    """
    if not isinstance(app, App):
        raise UsageError(f"harness takes a flowshare.App, not {app!r}")
    await app.sending_thread.give_way()
    if app.host is not None:
        raise UsageError(f"App({app.app_id!r}) runs already; leave its harness or `app.running()` first")
    _tell_left_out(app)
    virtual = isinstance(asyncio.get_running_loop(), VirtualTimeLoop)
    clock: ManualClock | LoopTimeClock = LoopTimeClock() if virtual else ManualClock()
    report = HarnessReport(_agents(app))
    backend = MemoryBackend(clock=clock, config=ServerConfig.embedded(SELDOM))
    await backend.start()
    host = Host(
        app,
        backend=backend,
        clock=clock,
        settings=HostSettings(
            threads=False, inline_threads=True, linger=0, streams=False, trackers=True, virtual_time=True
        ),
        observer=report.add,
        random=random.Random(seed),  # noqa: S311 - jitter, not a secret
    )
    try:
        await _through_delays(clock, host.start())
        for name, runtime in host.runtimes.items():
            note_runs(runtime.agent, runtime.runners, report[name].runs, clock.monotonic)
        yield Bus(app, host, clock, report)
    finally:
        await _through_delays(clock, host.stop())
        await _through_delays(clock, backend.close())
    if (failed := host.failure()) is not None:
        raise failed


def _tell_left_out(app: App) -> None:
    """Warn of Faust agents that do not run in the test kit: a test of them would wait for ever."""
    if app.streams.declared:
        warnings.warn(
            f"the test kit does not run Faust's own {', '.join(app.streams.declared)} of App({app.app_id!r}), which "
            "need a broker: test them with `async with app.running()` on a temporary broker='embedded:///…'",
            stacklevel=4,
        )


async def _through_delays(clock: ManualClock | LoopTimeClock, step: Any) -> None:
    """Await a step that may wait on the clock, and move the clock for that step."""
    task = asyncio.ensure_future(step)
    real_until_s = time.monotonic() + REAL_LIMIT_S
    while not task.done():
        await settle()
        if isinstance(clock, LoopTimeClock):
            await asyncio.wait({task})
        elif not task.done():
            await asyncio.sleep(0.001)
            if not task.done() and (due_s := clock.next_due_s()) is not None:
                await clock.advance(due_s)
        if time.monotonic() > real_until_s:
            task.cancel()
            break
    await task
