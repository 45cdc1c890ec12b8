"""The in-process server as a subject: every step is a request over a connection, time stands on a manual clock.

What the steps need of a server is `World`; the rest is requests, so that the same steps run over a socket too
(`server_tcp`) and on a real Kafka (`kafka`).
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from flowshare.log.memory import MemoryStorage
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    AckBatch,
    Connection,
    CreatePartitionsRequest,
    CreateTopicRequest,
    DeleteRecordsRequest,
    DeleteTopicRequest,
    IncrementalAlterConfigsRequest,
    MetadataRequest,
    ProduceRequest,
    ProducerIdentity,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareGroupHeartbeatRequest,
    SharePartitionRequest,
    TopicPartition,
)
from flowshare.server.server import Server
from flowshare.server.state import ShareKey, delete_state, initial_writes
from flowshare.share.types import AcquireMode, PartitionState
from flowshare.testing.clock import ManualClock
from tests.scenarios import records, words
from tests.scenarios.language import BadStep, Outcome, Scenario, Step
from tests.scenarios.settings import GROUP_NAMES, TOPIC_NAMES, server_config
from tests.scenarios.storage import Persister, Severable
from tests.scenarios.words import Batch, Place

ROUNDS_MAX = 100_000
TIMERS_MAX = 200_000


@dataclass(slots=True)
class Session:
    """One member as its peer would be: a connection, the next session epoch, the partitions it asked for."""

    connection: Connection
    epoch: int = 0
    asked: set[Place] = field(default_factory=set)


_idling: list[None] = []


async def idle() -> None:
    """Let every task go on, and every byte arrive, until nothing moves but those that wait here themselves."""
    loop = asyncio.get_running_loop()
    _idling.append(None)
    try:
        for _ in range(ROUNDS_MAX):
            await asyncio.sleep(0)
            if len(loop._ready) < len(_idling) and not getattr(loop, "in_flight", False):  # type: ignore[attr-defined]
                return
    finally:
        _idling.pop()
    raise AssertionError("the server never comes to rest")


class World:
    """A server over a memory storage, with a manual clock; it can be restarted and crashed."""

    def __init__(self, scenario: Scenario, clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock()
        self.config = server_config(scenario.config)
        self.storage = MemoryStorage(self.clock)
        self.persister = Persister(self.storage)
        self.seen = Severable(self.storage)
        self.server: Server | None = None

    async def start(self) -> Server:
        """The server, running."""
        if self.server is None:
            self.server = Server(storage=self.seen, config=self.config, clock=self.clock)  # type: ignore[arg-type]
            await self.server.start()
        return self.server

    async def stop(self, *, crash: bool) -> None:
        """End the server; after a crash nothing more of it reaches the storage."""
        if self.server is not None:
            self.seen.is_cut = crash
            self.persister.settle(good=True)
            await self.server.close()
            self.seen.is_cut = True
        self.server = None
        self.seen = Severable(self.storage)

    async def connect(self, name: str) -> Connection:
        """A new connection."""
        return (await self.start()).connect(client_id=name, host="10.0.0.1")

    async def consume(self, name: str) -> Connection:
        """A new connection for a `ShareConsumer`."""
        return await self.connect(name)

    def real(self, name: str) -> str:
        """What the server knows a scenario's topic or group by."""
        return name

    def named(self, real: str) -> str:
        """What the scenario calls it."""
        return real

    async def drive(self, work: Awaitable[Any]) -> Any:
        """Move time from timer to timer until `work` is done."""
        task = asyncio.ensure_future(work)
        for _ in range(TIMERS_MAX):
            await idle()
            if task.done():
                return task.result()
            due_s = self.clock.next_due_s()
            assert due_s is not None, "waiting for nothing that could come"
            await self.clock.advance(due_s)
        raise AssertionError("the call never ends")

    def settle(self, *, good: bool) -> None:
        """End the writes that are held, and write at once from now on."""
        self.persister.settle(good=good)

    async def close(self) -> None:
        """Let go of everything; the server has ended."""
        await self.storage.close()


class ServerSubject:
    """Runs steps on a server."""

    def __init__(self, scenario: Scenario, world: World | None = None) -> None:
        from tests.scenarios.server_admin import AdminSteps
        from tests.scenarios.server_clients import ClientSteps
        from tests.scenarios.server_transactions import TransactionSteps

        self.world = world or World(scenario)
        self.topics: dict[str, int] = {}
        self.topic_ids: dict[str, uuid.UUID] = {}
        self.sessions: dict[tuple[str, str], Session] = {}
        self.background: dict[str, asyncio.Task[Outcome]] = {}
        self.driving: set[asyncio.Task[Outcome]] = set()
        self.apart: set[str] = set()
        self.deleted: set[str] = set()
        self.configured: set[str] = set()
        self.founded: set[str] = set()
        self.admin: Connection | None = None
        self.transactions = TransactionSteps(self)
        self.parts = (self, AdminSteps(self), ClientSteps(self), self.transactions)

    async def close(self) -> None:
        """End everything."""
        self.world.settle(good=True)
        for part in self.parts[1:]:
            await part.close()
        await self.world.stop(crash=False)
        for task in self.background.values():
            task.cancel()
        await asyncio.gather(*self.background.values(), return_exceptions=True)
        await self.world.close()

    async def perform(self, step: Step) -> Outcome:
        """Do one step; one that does not end while time stands still is `pending`."""
        for part in self.parts:
            method: Callable[[Step], Coroutine[Any, Any, Outcome]] | None
            method = getattr(part, f"do_{step.operation}", None)
            if method is not None:
                break
        else:
            raise BadStep(f"the server knows no step {step.operation!r}")
        if step.operation in ("await", "time") or (part is self.parts[2] and step.background is None):
            return await method(step)
        name = step.background or f"step {len(self.background)}"
        task = asyncio.get_running_loop().create_task(method(step))
        self.background[name] = task
        if part is self.parts[2]:
            self.driving.add(task)
        await idle()
        if step.background is not None:
            return Outcome("pending") if not task.done() else Outcome()
        return self.result(task)

    def result(self, task: asyncio.Task[Outcome]) -> Outcome:
        """What a step gave so far."""
        return task.result() if task.done() else Outcome("pending")

    async def do_await(self, step: Step) -> Outcome:
        """What a step in the background gave."""
        await idle()
        task = self.background[step.words[0]]
        if task in self.driving:
            await asyncio.wait([task])  # it moves time itself until it is over
        return self.result(task)

    async def do_time(self, step: Step) -> Outcome:
        """`time 15000`: that many milliseconds pass."""
        await self.world.clock.advance(int(step.words[0]) / 1000)
        await idle()
        return Outcome()

    # --- what there is ---

    async def ask(self, request: Any) -> Any:
        """Send a request that belongs to no member."""
        if self.admin is None:
            self.admin = await self.world.connect("admin")
        return await self.admin.send(request)

    async def ensure(
        self, topic: str = words.TOPIC, partitions: int = 1, configs: dict[str, str] | None = None
    ) -> None:
        """Make a topic if there is none."""
        if topic not in self.topics and topic not in self.deleted:
            result = await self.ask(CreateTopicRequest(name=topic, partitions=partitions, configs=configs or {}))
            assert result.error is ErrorCode.NONE, result
            self.topics[topic] = partitions
            metadata = await self.ask(MetadataRequest(topics=(topic,)))
            self.topic_ids[topic] = metadata.topics[0].topic_id

    async def ensure_group(self, group: str) -> None:
        """Groups of scenarios start at the log's beginning unless they say otherwise."""
        if group not in self.configured:
            self.configured.add(group)
            await self.configure(group, {"share.auto.offset.reset": "earliest"})

    async def configure(self, group: str, configs: dict[str, str]) -> Any:
        """Set group settings by their Kafka names."""
        return await self.ask(IncrementalAlterConfigsRequest(resource_type="group", resource=group, configs=configs))

    def topic_id(self, topic: str) -> uuid.UUID:
        """A topic's id; a random one if there is no such topic."""
        return self.topic_ids.setdefault(topic, uuid.uuid4())

    def place(self, topic_id: uuid.UUID, partition: int) -> Place:
        """A topic's partition by name."""
        return Place(next(name for name, known in self.topic_ids.items() if known == topic_id), partition)

    def places(self) -> list[Place]:
        """All partitions of all topics."""
        fetched = {topic: count for topic, count in self.topics.items() if topic not in self.apart}
        return [Place(topic, partition) for topic, count in fetched.items() for partition in range(count)]

    def alone(self, places: list[Place]) -> bool:
        """Whether only one share-partition is in play."""
        return len(self.places()) <= 1 and all(place == (words.TOPIC, 0) for place in places)

    async def do_topic(self, step: Step) -> Outcome:
        """`topic name partitions=3 [max_bytes=2000] [fetched=no]`; members do not fetch from a topic that is not."""
        configs = {TOPIC_NAMES[name]: value for name, value in step.options.items() if name in TOPIC_NAMES}
        if step.options.get("fetched") == "no":
            self.apart.add(step.words[0])
        await self.ensure(step.words[0], int(step.options.get("partitions", "1")), configs)
        return Outcome()

    async def do_partitions(self, step: Step) -> Outcome:
        """`partitions name 5`: the topic has that many partitions now."""
        topic, total = step.words[0], int(step.words[1])
        await self.ensure(topic)
        result = await self.ask(CreatePartitionsRequest(name=topic, total=total))
        self.topics[topic] = total
        return Outcome("ok" if result.error is ErrorCode.NONE else f"error {result.error.name}")

    async def do_delete_topic(self, step: Step) -> Outcome:
        """`delete_topic name`."""
        result = await self.ask(DeleteTopicRequest(name=step.words[0]))
        del self.topics[step.words[0]]
        self.deleted.add(step.words[0])
        return Outcome("ok" if result.error is ErrorCode.NONE else f"error {result.error.name}")

    async def do_log(self, step: Step) -> Outcome:
        """`log 0-9 1@0-4 [ago=ms] [size=bytes]`: produce batches at these offsets."""
        now_ms = self.world.clock.now_ms() - int(step.options.get("ago", "0"))
        for where, batch in words.batches(step.words):
            await self.ensure(where.topic)
            await self.produce(where, batch, now_ms, int(step.options.get("size", "0")))
        return Outcome()

    async def produce(self, where: Place, batch: Batch, timestamp_ms: int, size: int = 0) -> None:
        """Append one batch at its offset; what would lie before the first one is deleted again."""
        storage = self.world.storage
        end = self.end_of(where)
        if batch.first > end and end == 0:
            await self.produce(where, Batch(0, batch.first - 1), timestamp_ms)
            await storage.delete_records(*where, batch.first)
        elif batch.first > end:
            records.leave_hole(storage, where, batch.first)
        if batch.kind == "c" and batch.first < end:
            return  # the transaction's end has written its marker already
        if batch.kind in ("x", "k", "o"):
            await self.transactions.write(where, batch, timestamp_ms)
            return
        built = records.build(batch, timestamp_ms=timestamp_ms, size=size)
        if batch.kind == "c":
            await storage.append(*where, built)
            records.make_control(storage, where)
            return
        answer = await self.ask(ProduceRequest(topic=where.topic, partition=where.partition, records=built))
        assert (answer.error, answer.base_offset) == (ErrorCode.NONE, batch.first), answer

    def end_of(self, where: Place) -> int:
        """The offset of the next record."""
        return self.world.storage.offsets(*where).high_watermark

    async def appended(self, where: Place, last: int) -> None:
        """Records up to this offset were written."""

    async def prepare_transactions(self, name: str) -> None:
        """Whatever this producer needs before its first transaction."""

    async def end_in_place(self, where: Place, name: str, producer: ProducerIdentity, *, committed: bool) -> None:
        """End a transaction without a marker that would take an offset."""
        del name
        records.end_in_place(self.world.storage, where, producer.producer_id, committed=committed)

    async def produce_value(self, topic: str, value: bytes) -> None:
        """Append one record to partition 0."""
        built = records.build_values([value], timestamp_ms=self.world.clock.now_ms())
        answer = await self.ask(ProduceRequest(topic=topic, partition=0, records=built))
        assert answer.error is ErrorCode.NONE, answer

    async def do_compact(self, step: Step) -> Outcome:
        """`compact 5-9`: these batches are gone from the log."""
        for where, gone in words.batches(step.words):
            records.compact(self.world.storage, where, gone)
        return Outcome()

    async def do_logstart(self, step: Step) -> Outcome:
        """`logstart 20`: records before it are deleted."""
        where, start = words.placed(step.words[0])
        answer = await self.ask(DeleteRecordsRequest(topic=where.topic, partition=where.partition, before=int(start)))
        return Outcome("ok" if answer.error is ErrorCode.NONE else f"error {answer.error.name}")

    async def do_config(self, step: Step) -> Outcome:
        """`config [group] delivery=2 reset=latest …`."""
        group = step.words[0] if step.words else words.GROUP
        await self.ensure_group(group)
        answer = await self.configure(group, {GROUP_NAMES[name]: value for name, value in step.options.items()})
        return Outcome("ok" if answer.error is ErrorCode.NONE else f"error {answer.error.name}")

    async def do_persister(self, step: Step) -> Outcome:
        """`persister ok|fail|hold`: how writes end from now on."""
        self.world.persister.mode = step.words[0]
        return Outcome()

    async def do_settle(self, step: Step) -> Outcome:
        """`settle ok|fail`: how the writes under way end."""
        self.world.settle(good=step.words[0] == "ok")
        return Outcome()

    async def do_reload(self, step: Step) -> Outcome:
        """`reload 10 15-18A2 20-22R1`: what the store says of a share-partition that is not loaded yet."""
        where, start = words.placed(step.words[0])
        await self.ensure(where.topic)
        await self.found(words.GROUP)
        key = ShareKey(words.GROUP, self.topic_id(where.topic), where.partition)
        state = PartitionState(start_offset=int(start), runs=tuple(words.runs(step.words[1:])))
        await self.world.storage.write([*await delete_state(self.world.storage, [key]), *initial_writes(key, state)])
        return Outcome()

    async def do_restart(self, step: Step) -> Outcome:
        """The server stops in order and starts again."""
        return await self.again(crash=False)

    async def do_crash(self, step: Step) -> Outcome:
        """The server is gone without a word; the next one knows what was written."""
        return await self.again(crash=True)

    async def again(self, *, crash: bool) -> Outcome:
        """Another server on the same storage; all connections are gone."""
        await self.world.stop(crash=crash)
        self.sessions.clear()
        self.admin = None
        await self.world.start()
        return Outcome()

    # --- members ---

    async def session(self, member: str) -> Session:
        """The member's side of its share session; a connection is made when there is none."""
        key = words.member(member)
        if key not in self.sessions:
            self.sessions[key] = Session(await self.world.connect(key[1]))
        return self.sessions[key]

    async def ready(self, step: Step) -> Session:
        """The session of a member that fetches or acknowledges without having joined: its group must exist."""
        await self.ensure()
        await self.found(words.member(step.words[0])[0])
        return await self.session(step.words[0])

    async def found(self, group: str) -> None:
        """Let somebody join the group and leave it again, so that it exists."""
        await self.ensure_group(group)
        if group not in self.founded:
            self.founded.add(group)
            for epoch in (0, -1):
                await self.ask(
                    ShareGroupHeartbeatRequest(
                        group_id=group, member_id="founder", member_epoch=epoch, subscribed_topics=tuple(self.topics)
                    )
                )

    async def do_fetch(self, step: Step) -> Outcome:
        """`fetch M1 max=10 mode=record_limit wait=500 epoch=3 add=1 forget=0 ack=0-9:accept;10-19:release …`."""
        session = await self.ready(step)
        acked = words.acks(step.options.get("ack", "").split(";") if "ack" in step.options else ())
        request = self.fetch_request(step, session, acked)
        sent_s = self.world.clock.monotonic()
        answer = await self.sent(session, request)
        waited_ms = round((self.world.clock.monotonic() - sent_s) * 1000)
        return self.show_fetch(answer, {ack.place for ack in acked}, waited_ms)

    def fetch_request(self, step: Step, session: Session, acked: list[words.Ack]) -> ShareFetchRequest:
        """The request that a step describes."""
        options = step.options
        group, member = self.names(step)
        epoch = int(options.get("epoch", session.epoch))
        renewing = any(4 in ack.types for ack in acked)
        forgotten = [words.place(text) for text in options.get("forget", "").split(",") if text]
        return ShareFetchRequest(
            group_id=group,
            member_id=member,
            session_epoch=epoch,
            max_wait_ms=int(options.get("wait", "0")),
            min_bytes=int(options.get("min", "1")),
            max_bytes=int(options.get("bytes", 0x7FFFFFFF)),
            max_records=int(options.get("max", "500")),
            batch_size=int(options.get("batch", options.get("max", "500"))),
            acquire_mode=AcquireMode[options.get("mode", "batch_optimized").upper()],
            is_renew_ack=options.get("renew", str(renewing).lower()) == "true",
            partitions=self.entries(self.added(step, session, epoch), acked, twice="twice" in options),
            forgotten=tuple(TopicPartition(self.topic_id(topic), p) for topic, p in forgotten),
            version=int(options.get("version", "2")),
        )

    def names(self, step: Step) -> tuple[str | None, str | None]:
        """Group and member id of a request; options make them wrong on purpose."""
        group, member = words.member(step.words[0])
        return (
            None if step.options.get("group_id") == "null" else group,
            step.options.get("member_id", member),
        )

    def added(self, step: Step, session: Session, epoch: int) -> list[Place]:
        """Partitions to add to the session: those the step names, else all that the session does not know yet."""
        if epoch == 0:
            session.asked.clear()
        if "add" in step.options:
            places = [words.place(text) for text in step.options["add"].split(",")]
        elif "epoch" in step.options and epoch != 0:
            places = []
        else:
            places = [place for place in self.places() if place not in session.asked]
        session.asked.update(places)
        return places

    def entries(
        self, added: list[Place], acked: list[words.Ack], *, twice: bool = False
    ) -> tuple[SharePartitionRequest, ...]:
        """Partitions of a request with their acknowledgements."""
        by_place: dict[Place, list[AckBatch]] = {place: [] for place in added}
        apart = [SharePartitionRequest(self.topic_id(topic), p) for topic, p in added] if twice else []
        for ack in acked:
            batch = AckBatch(ack.first, ack.last, ack.types, ack.delay_ms, ack.unrun)
            by_place.setdefault(ack.place, []).append(batch)
        named = [
            SharePartitionRequest(self.topic_id(topic), p, tuple(batches))
            for (topic, p), batches in by_place.items()
            if batches or not twice
        ]
        return (*apart, *named)

    async def sent(self, session: Session, request: ShareFetchRequest | ShareAcknowledgeRequest) -> Any:
        """Send over the member's connection and follow the session's epoch as the member would."""
        epoch, before = request.session_epoch, session.epoch
        session.epoch = 0 if epoch == -1 else epoch + 1
        answer = await session.connection.send(request)
        if answer.error is not ErrorCode.NONE:
            session.epoch = before
        return answer

    def show_fetch(self, answer: ShareFetchResponse, acked: set[Place], waited_ms: int) -> Outcome:
        """A fetch's answer in words."""
        fields = {"lock": str(answer.lock_timeout_ms), "waited": str(waited_ms)}
        if answer.error is not ErrorCode.NONE:
            return Outcome(f"error {answer.error.name}", fields)
        found: dict[Place, str] = {}
        carried: list[int] = []
        listed = sorted(self.place(part.topic_id, part.partition) for part in answer.partitions)
        for part in sorted(answer.partitions, key=lambda part: self.place(part.topic_id, part.partition)):
            where = self.place(part.topic_id, part.partition)
            said = [f"ack {part.ack_error.name}"] if where in acked else []
            said += [f"error {part.error.name}"] if part.error is not ErrorCode.NONE else []
            said += [words.show_ranges(part.acquired)] if part.acquired else []
            carried += records.offsets_in(part.records)
            if said:
                found[where] = " ".join(said)
        fields |= {"listed": words.show_places(listed), "bytes": words.show_offsets(carried)}
        return Outcome(words.show_by_place(found, alone=self.alone(listed), empty="nothing"), fields)

    async def do_ack(self, step: Step) -> Outcome:
        """`ack M1 0-4:accept 5-9:release [epoch=2] [renew=false] [version=1]`."""
        session = await self.ready(step)
        if "epoch" not in step.options and session.epoch == 0:
            await self.open(step, session)
        return await self.acknowledge(step, session, int(step.options.get("epoch", session.epoch)))

    async def open(self, step: Step, session: Session) -> None:
        """Open a session that fetches nothing."""
        group, member = words.member(step.words[0])
        request = ShareFetchRequest(
            group_id=group,
            member_id=member,
            session_epoch=0,
            max_records=0,
            max_wait_ms=0,
            partitions=self.entries(self.added(step, session, 0), []),
        )
        answer = await self.sent(session, request)
        assert answer.error is ErrorCode.NONE, answer

    async def acknowledge(self, step: Step, session: Session, epoch: int) -> Outcome:
        """Send a ShareAcknowledge; its answer in words."""
        acked = words.acks(step.words[1:])
        group, member = self.names(step)
        renewing = any(4 in ack.types for ack in acked)
        answer: ShareAcknowledgeResponse = await self.sent(
            session,
            ShareAcknowledgeRequest(
                group_id=group,
                member_id=member,
                session_epoch=epoch,
                is_renew_ack=step.options.get("renew", str(renewing).lower()) == "true",
                partitions=self.entries([], acked),
                version=int(step.options.get("version", "2")),
            ),
        )
        if answer.error is not ErrorCode.NONE:
            return Outcome(f"error {answer.error.name}")
        found = {self.place(part.topic_id, part.partition): part.error.name for part in answer.partitions}
        shown = dict(sorted(found.items()))
        return Outcome(words.show_by_place(shown, alone=self.alone(list(shown)), empty="nothing"))

    async def do_close(self, step: Step) -> Outcome:
        """`close M1 [0-9:accept] [via=fetch]`: close the share session, with last acknowledgements."""
        session = await self.session(step.words[0])
        if step.options.get("via") != "fetch":
            return await self.acknowledge(step, session, -1)
        acked = words.acks(step.words[1:])
        group, member = words.member(step.words[0])
        request = ShareFetchRequest(
            group_id=group, member_id=member, session_epoch=-1, partitions=self.entries([], acked)
        )
        return self.show_fetch(await self.sent(session, request), {ack.place for ack in acked}, 0)

    async def do_disconnect(self, step: Step) -> Outcome:
        """`disconnect M1`: the connection is closed, without a word."""
        await self.sessions.pop(words.member(step.words[0])).connection.close()
        return Outcome()
