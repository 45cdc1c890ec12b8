"""The in-process server as a subject: every step is a request over a connection, time stands on a manual clock.

What the steps need of a server is `World`; the rest is requests, so that the same steps run over a socket too
(`server_tcp`) and on a real Kafka (`kafka`).
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    Connection,
    CreatePartitionsRequest,
    CreateTopicRequest,
    DeleteRecordsRequest,
    DeleteShareGroupStateRequest,
    DeleteTopicRequest,
    IncrementalAlterConfigsRequest,
    MetadataRequest,
    ProduceRequest,
    ProducerIdentity,
    ReadShareGroupStateSummaryRequest,
)
from flowshare.server.runtime.state import ShareKey, delete_state, initial_writes, read_state
from flowshare.share.types import PartitionState
from tests.scenarios import records, words
from tests.scenarios.language import BadStep, Outcome, Scenario, Step
from tests.scenarios.server_members import MemberSteps, Session
from tests.scenarios.settings import GROUP_NAMES, TOPIC_NAMES
from tests.scenarios.words import Batch, Place
from tests.scenarios.world import ThreadsLoop, World, idle


class ServerSubject(MemberSteps):
    """Runs steps on a server."""

    new_loop = ThreadsLoop

    def __init__(self, scenario: Scenario, world: World | None = None) -> None:
        from tests.scenarios.server_admin import AdminSteps
        from tests.scenarios.server_clients import ClientSteps
        from tests.scenarios.server_settles import SettleSteps
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
        self.founding: dict[str, asyncio.Lock] = {}
        self.founded: set[str] = set()
        self.admin: Connection | None = None
        self.transactions = TransactionSteps(self)
        self.parts = (self, AdminSteps(self), ClientSteps(self), self.transactions, SettleSteps(self))

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
        """Return the outcome of a step so far; `pending` if the step is not done."""
        return task.result() if task.done() else Outcome("pending")

    async def do_await(self, step: Step) -> Outcome:
        """Return the outcome of a step in the background."""
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
        """Groups of scenarios start at the log's beginning unless they say otherwise; who joins meanwhile waits."""
        async with self.founding.setdefault(group, asyncio.Lock()):
            if group not in self.configured:
                await self.found_group(group)
                self.configured.add(group)

    async def found_group(self, group: str) -> None:
        """Give it its settings."""
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
        """True if only one share-partition is in play."""
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
        """`log 0-9 1@0-4 [ago=ms] [size=bytes] [keys=aab-] [headers=xx-y]`: produce batches at these offsets."""
        now_ms = self.world.clock.now_ms() - int(step.options.get("ago", "0"))
        for where, batch in words.logged(step):
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
        key = self.key(where)
        state = PartitionState(start_offset=int(start), runs=tuple(words.runs(step.words[1:])))
        await self.world.storage.write([*await delete_state(self.world.storage, [key]), *initial_writes(key, state)])
        return Outcome()

    def key(self, where: Place) -> ShareKey:
        """The share-partition of a place."""
        return ShareKey(words.GROUP, self.topic_id(where.topic), where.partition)

    async def do_stored(self, step: Step) -> Outcome:
        """`stored [partition]`: how many updates the store has since the snapshot, and the number of the last."""
        key = self.key(words.place(step.words[0]) if step.words else Place(words.TOPIC, 0))
        stored = await read_state(self.world.storage, key)
        if stored is None:
            return Outcome("nothing")
        updates = stored.next_number - stored.first_number
        return Outcome("ok", {"updates": str(updates), "number": str(stored.next_number - 1)})

    async def do_summary(self, step: Step) -> Outcome:
        """`summary`: start offset and delivery-complete count, by the state API."""
        return await self.ask_state(ReadShareGroupStateSummaryRequest)

    async def do_delete_state(self, step: Step) -> Outcome:
        """`delete_state`: the state is forgotten, by the state API."""
        return await self.ask_state(DeleteShareGroupStateRequest)

    async def ask_state(self, kind: type[ReadShareGroupStateSummaryRequest | DeleteShareGroupStateRequest]) -> Outcome:
        """Ask in process, as coordinators alone do: flowshare's clients know no such request."""
        group_id, topic_id, partition = self.key(Place(words.TOPIC, 0))
        connection = await World.connect(self.world, "coordinator")
        answer = await connection.send(kind(group_id=group_id, topic_id=topic_id, partition=partition))
        told = {"start": str(answer.told.start_offset), "complete": str(answer.told.delivery_complete_count)}
        return Outcome(answer.error.name, told)

    async def do_restart(self, step: Step) -> Outcome:
        """The server stops in order and starts again."""
        return await self.again(crash=False)

    async def do_crash(self, step: Step) -> Outcome:
        """`crash [writes=lost]`: the server is gone without a word; the next one knows what was written.

        What is being written is stored all the same, or is lost with it.
        """
        if step.options.get("writes") == "lost":
            self.world.lose_writes()
        return await self.again(crash=True)

    async def again(self, *, crash: bool) -> Outcome:
        """Another server on the same storage; all connections are gone."""
        await self.world.stop(crash=crash)
        self.sessions.clear()
        self.admin = None
        await self.world.start()
        return Outcome()
