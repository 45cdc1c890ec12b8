"""A real Kafka as a subject: the same steps through flowshare's client, in real time.

What takes a manual clock elsewhere takes a fifth of that time here (`kafka_world.scale_of`). A step that should bring
something may take its time (a share-partition is loaded after its first fetch, settings arrive after they are taken);
one that should bring nothing looks for `NOTHING_MS`.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    CreatePartitionsRequest,
    CreateTopicRequest,
    DeleteRecordsRequest,
    DescribeConfigsRequest,
    FetchPartition,
    FetchRequest,
    FindCoordinatorRequest,
    IncrementalAlterConfigsRequest,
    MetadataRequest,
    ProduceRequest,
    ProducerIdentity,
    ShareGroupHeartbeatRequest,
)
from tests.scenarios import records, words
from tests.scenarios.kafka_world import LIMIT_S, LOOK_S, KafkaWorld, until
from tests.scenarios.language import BadStep, Outcome, Scenario, Step, parse_step
from tests.scenarios.server import ServerSubject
from tests.scenarios.server_admin import AdminSteps
from tests.scenarios.words import Batch, Place
from tests.waiting import pause

EARLY = 0.6
"""`time 14999` stands for "the lock is far from over": this part of it passes, the rest with the next step of time."""
SLACK_S = 0.3
NOTHING_MS = 300
FETCH_MS = 10_000
BUSY = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }
)
SETTINGS = {
    "share.auto.offset.reset": "earliest",
    "share.assignment.interval.ms": "0",
    "share.record.lock.duration.ms": "30000",
    "share.session.timeout.ms": "45000",
    "share.heartbeat.interval.ms": "5000",
}
FENCE = "share.partition.max.record.locks"


class KafkaSubject(ServerSubject):
    """Runs steps on a real broker. `settings`: those that each group begins with."""

    settings: Mapping[str, str] = SETTINGS

    def __init__(self, address: str, scenario: Scenario, world: KafkaWorld | None = None) -> None:
        self.kafka = world or KafkaWorld(address, scenario)
        super().__init__(scenario, self.kafka)  # type: ignore[arg-type]
        self.admin_steps = next(part for part in self.parts if isinstance(part, AdminSteps))
        self.ends: dict[Place, int] = {}
        self.owed_s = 0.0
        self.fences = 0
        self.configuring = asyncio.Lock()
        self.found_by_us: set[str] = set()
        self.known_as_loaded: set[str] = set()

    async def perform(self, step: Step) -> Outcome:
        """Do one step; looking is repeated until it shows what is expected."""
        method = next((m for part in self.parts if (m := getattr(part, f"do_{step.operation}", None))), None)
        if method is None:
            raise BadStep(f"Kafka knows no step {step.operation!r}")
        if step.background is not None:
            self.background[step.background] = asyncio.get_running_loop().create_task(method(step))
            await pause(SLACK_S, "nothing tells a client that its request is parked")
            return Outcome()
        if step.operation in REPEATED:
            return await until(lambda: method(step), lambda outcome: step.check(outcome) is None)
        if step.operation == "poll" and any(expected.main != "nothing" for expected in step.expected):
            return await until(lambda: method(step), lambda outcome: outcome.main != "nothing")
        return await method(step)

    # --- time ---

    async def do_await(self, step: Step) -> Outcome:
        """Return the outcome of a step in the background, or `pending` if the step takes too long; where `pending` is
        expected, wait only a moment."""
        task = self.background[step.words[0]]
        waits = any(expected.main == "pending" for expected in step.expected)
        await asyncio.wait([task], timeout=SLACK_S if waits else LIMIT_S)
        return self.result(task)

    async def do_time(self, step: Step) -> Outcome:
        """`time 15000`: a fifth of that passes, and a little."""
        whole_s = int(step.words[0]) / 1000 / self.kafka.scale
        if int(step.words[0]) % 10 == 9:
            await pause(whole_s * EARLY, "a real broker's time passes")
            self.owed_s += whole_s * (1 - EARLY)
        else:
            await pause(whole_s + self.owed_s + SLACK_S, "a real broker's time passes")
            self.owed_s = 0.0
        return Outcome()

    # --- what there is ---

    async def ask(self, request: Any) -> Any:
        """Send a request that belongs to no member; a broker that is not ready yet is asked again."""
        return await until(lambda: super(KafkaSubject, self).ask(request), lambda answer: _ready(request, answer))

    async def ensure(
        self, topic: str = words.TOPIC, partitions: int = 1, configs: dict[str, str] | None = None
    ) -> None:
        """Make a topic if there is none, and wait until it has leaders."""
        if topic in self.topics or topic in self.deleted:
            return
        made = await self.ask(CreateTopicRequest(name=topic, partitions=partitions, configs=configs or {}))
        assert made.error is ErrorCode.NONE, made
        self.topics[topic] = partitions
        self.topic_ids[topic] = await self.led(topic, partitions)

    async def led(self, topic: str, partitions: int) -> uuid.UUID:
        """Wait until every partition has a leader; the topic's id."""
        answer = await until(
            lambda: self.ask(MetadataRequest(topics=(topic,))),
            lambda answer: sum(leader >= 0 for leader in _leaders(answer)) == partitions,
        )
        return answer.topics[0].topic_id

    async def do_topic(self, step: Step) -> Outcome:
        """As on a server; several partitions are loaded before there are records, so that they come together."""
        outcome = await super().do_topic(step)
        if step.words[0] == words.TOPIC and int(step.options.get("partitions", "1")) > 1:
            await self.load(words.GROUP)
        return outcome

    async def do_delete_topic(self, step: Step) -> Outcome:
        """`delete_topic name`, and wait until the broker knows it no more."""
        outcome = await super().do_delete_topic(step)
        await until(
            lambda: self.ask(MetadataRequest(topics=(step.words[0],))),
            lambda answer: answer.topics[0].error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        )
        return outcome

    async def do_partitions(self, step: Step) -> Outcome:
        """`partitions name 5`: the topic has that many partitions now."""
        topic, total = step.words[0], int(step.words[1])
        await self.ensure(topic)
        result = await self.ask(CreatePartitionsRequest(name=topic, total=total))
        self.topics[topic] = total
        await self.led(topic, total)
        for group in self.found_by_us:
            await self.join_until_assigned(group)
        return Outcome("ok" if result.error is ErrorCode.NONE else f"error {result.error.name}")

    async def found_group(self, group: str) -> None:
        """All settings that scenarios take for given."""
        answer = await self.configure(group, dict(self.settings))
        assert answer.error is ErrorCode.NONE, answer

    async def configure(self, group: str, configs: dict[str, str]) -> Any:
        """Set group settings and wait until the broker acts on them."""
        scale = max(1, self.world.scale)  # type: ignore[attr-defined]
        times = {name for name, value in self.settings.items() if name.endswith(".ms") and value != "0"}
        scaled = {name: str(int(value) // scale) if name in times else value for name, value in configs.items()}
        async with self.configuring:
            return await self.configured_now(group, scaled)

    async def configured_now(self, group: str, configs: dict[str, str]) -> Any:
        """One change at a time."""
        answer = await super().configure(group, configs)
        if answer.error is ErrorCode.NONE:
            await self.seen(group, configs)
            self.fences += 1  # changes are acted on one after another: once a later one is seen, the former is done
            fence = {FENCE: str(1000 + self.fences)}
            await self.ask(IncrementalAlterConfigsRequest(resource_type="group", resource="fence", configs=fence))
            await self.seen("fence", fence)
        return answer

    async def seen(self, group: str, configs: dict[str, str]) -> None:
        """Wait until the broker tells these settings."""

        def told(answer: Any) -> bool:
            return configs.items() <= {entry.name: entry.value for entry in answer.entries}.items()

        answer = await until(lambda: self.ask(DescribeConfigsRequest(resource_type="group", resource=group)), told)
        assert told(answer), answer

    async def produce(self, where: Place, batch: Batch, timestamp_ms: int, size: int = 0) -> None:
        """Append one batch at its offset; what would lie before the first one is deleted again."""
        end = self.end_of(where)
        if batch.first > end and end == 0:
            await self.produce(where, Batch(0, batch.first - 1), timestamp_ms)
            deleted = await self.ask(
                DeleteRecordsRequest(topic=where.topic, partition=where.partition, before=batch.first)
            )
            assert deleted.error is ErrorCode.NONE, deleted
        if batch.kind == "c" and batch.first < self.end_of(where):
            return  # the transaction's end has written its marker already
        assert batch.kind != "c", "control records come from transactions"
        assert batch.first == self.end_of(where), "a hole takes compaction"
        if batch.kind:
            await self.transactions.write(where, batch, timestamp_ms)
        else:
            built = records.build(batch, timestamp_ms=timestamp_ms, size=size)
            answer = await self.ask(ProduceRequest(topic=where.topic, partition=where.partition, records=built))
            assert (answer.error, answer.base_offset) == (ErrorCode.NONE, batch.first), answer
        self.ends[where] = batch.last + 1
        if batch.kind in ("x", "k"):
            await self.appended(where, batch.last + 1)

    def end_of(self, where: Place) -> int:
        """The offset of the next record."""
        return self.ends.get(where, 0)

    async def appended(self, where: Place, last: int) -> None:
        """Records up to this offset are there as soon as the broker has written the marker of a transaction."""
        self.ends[where] = last + 1
        asked = FetchRequest(partitions=(FetchPartition(where.topic, where.partition, 0, 1),))
        answer = await until(lambda: self.ask(asked), lambda answer: answer.partitions[0].last_stable == last + 1)
        assert answer.partitions[0].last_stable == last + 1, answer

    async def prepare_transactions(self, name: str) -> None:
        """The broker makes its topic for transactions when it is asked for their coordinator."""
        await self.ask(FindCoordinatorRequest(key=name, kind="transaction"))

    async def end_in_place(self, where: Place, name: str, producer: ProducerIdentity, *, committed: bool) -> None:
        """End a transaction; its marker takes the next offset."""
        del where
        await self.transactions.end(name, producer, committed=committed)

    async def do_resolve(self, step: Step) -> Outcome:
        """As on a server; the marker takes the next offset."""
        outcome = await self.transactions.do_resolve(step)
        for where, _ in words.batches(step.words):
            await self.appended(where, self.end_of(where))
        return outcome

    # --- members ---

    async def found(self, group: str) -> None:
        """Let somebody join the group until everything is assigned, and leave, so that its state is there."""
        await self.ensure_group(group)
        if group not in self.founded:
            self.founded.add(group)
            self.found_by_us.add(group)
            await self.join_until_assigned(group)

    async def load(self, group: str) -> None:
        """Let the broker load all share-partitions, while there is nothing to acquire.

        A first fetch does not wait for that and brings what is loaded.
        """
        await self.found(group)
        await super().do_fetch(parse_step(f"fetch {group}:loader wait=1"))
        await self.loaded(group)

    async def loaded(self, group: str) -> bool:
        """Wait until what somebody began to fetch is loaded; whether it was already.

        An acknowledgement tells: it is refused in another way then. The session that it takes stays open, since a
        group's last one takes everything loaded with it.
        """
        if group in self.known_as_loaded:
            return True
        self.known_as_loaded.add(group)
        acks = " ".join(f"{where.topic}.{where.partition}@0:accept" for where in self.places())
        asking = parse_step(f"ack {group}:loader {acks}")
        looks = 0

        async def look() -> Outcome:
            nonlocal looks
            looks += 1
            return await self.do_ack(asking)

        await until(look, lambda outcome: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.name not in outcome.main)
        return looks == 1

    async def join_until_assigned(self, group: str) -> None:
        """Join, beat until all partitions are assigned, leave."""
        wanted = sum(self.topics.values())
        epoch, held = 0, 0
        admin = self.ask

        async def beat() -> int:
            nonlocal epoch, held
            answer = await admin(
                ShareGroupHeartbeatRequest(
                    group_id=group, member_id="founder", member_epoch=epoch, subscribed_topics=tuple(self.topics)
                )
            )
            assert answer.error is ErrorCode.NONE, answer
            epoch = answer.member_epoch
            held = held if answer.assignment is None else len(answer.assignment)
            return held

        await self.ask(FindCoordinatorRequest(key=group))
        await until(beat, lambda held: held == wanted)
        await admin(ShareGroupHeartbeatRequest(group_id=group, member_id="founder", member_epoch=-1))

    async def do_fetch(self, step: Step) -> Outcome:
        """As on a server; a fetch that brings nothing is repeated if not everything was loaded then."""
        brings = any("[" in (expected.main or "") for expected in step.expected)
        options = {**step.options, "wait": str(self.wait_ms(step, FETCH_MS if brings else NOTHING_MS))}
        outcome = await super().do_fetch(replace(step, options=options))
        may_repeat = not {"epoch", "ack"} & set(step.options)
        if may_repeat and outcome.main == "nothing" and not await self.loaded(words.member(step.words[0])[0]):
            outcome = await super().do_fetch(replace(step, options=options))
        if may_repeat and brings and outcome.main == "nothing":  # a fetch that meets a new log start brings nothing
            again = super().do_fetch
            outcome = await until(
                lambda: again(replace(step, options=options)), lambda outcome: outcome.main != "nothing"
            )
        lock_ms = int(outcome.fields["lock"]) * max(1, self.world.scale)  # type: ignore[attr-defined]
        return Outcome(outcome.main, {**outcome.fields, "lock": str(lock_ms)})

    def lasting(self, delay_ms: int) -> int:
        """A fifth of it where time is that much shorter."""
        return int(delay_ms / self.world.scale)  # type: ignore[attr-defined]

    def wait_ms(self, step: Step, usual_ms: int) -> int:
        """How long a fetch may be parked."""
        named = step.options.get("wait")
        return usual_ms if named is None else int(int(named) / self.world.scale)  # type: ignore[attr-defined]

    async def do_beat(self, step: Step) -> Outcome:
        """As on a server; beaten until the member was told what is expected of its assignment."""
        admin = self.admin_steps
        outcome = await admin.do_beat(step)
        wanted = {dict(expected.fields).get("assigned") for expected in step.expected} - {None, "same"}
        deadline = asyncio.get_running_loop().time() + LIMIT_S
        while wanted and asyncio.get_running_loop().time() < deadline:
            told = words.show_places(admin.told[words.member(step.words[0])][1])
            outcome = Outcome(outcome.main, {**outcome.fields, "assigned": told})
            if step.check(outcome) is None:
                break
            await pause(LOOK_S, "a member beats again after a while")
            outcome = await admin.do_beat(step)
        return outcome

    async def do_delete_offsets(self, step: Step) -> Outcome:
        """As on a server; who wants the topic again must join again."""
        outcome = await self.admin_steps.do_delete_offsets(step)
        self.founded.discard(step.options.get("group", words.GROUP))
        return outcome


REPEATED = frozenset({"describe", "describe_group", "groups", "assigned"})


def _leaders(answer: Any) -> list[int]:
    return [int(leader) for topic in answer.topics for leader in topic.leaders]


def _ready(request: Any, answer: Any) -> bool:
    """True if the broker did what was asked, or will not."""
    if isinstance(request, MetadataRequest | DescribeConfigsRequest):
        return True
    return getattr(answer, "error", ErrorCode.NONE) not in BUSY
