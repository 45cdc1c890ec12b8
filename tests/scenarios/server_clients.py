"""Steps through `flowshare.client`: share consumers on connections to the in-process server.

A consumer waits on the clock, so these steps move time: from timer to timer until the call they make is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from flowshare.client.consumer.consumer import ShareConsumer, ShareRecord
from flowshare.client.errors import ClientError
from flowshare.client.settings import ConsumerSettings
from flowshare.protocol.messages import Connection
from flowshare.share.types import AcknowledgeType, AcquireMode
from tests.scenarios import words
from tests.scenarios.language import Outcome, Step
from tests.scenarios.words import Place

if TYPE_CHECKING:
    from tests.scenarios.server import ServerSubject

FIRST_LOOKS: Final = 20
"""Polls until the first records are there, at most."""
TOLD_S: Final = 11.0
"""After joining, a member hears of its share with its next heartbeats, 5 s apart."""
Consumer = ShareConsumer[bytes | None, bytes | None]
Record = ShareRecord[bytes | None, bytes | None]


@dataclass(slots=True)
class Seat:
    """A consumer with what it handed out last, and what it was told of its acknowledgements."""

    consumer: Consumer
    connections: list[Connection]
    records: dict[tuple[Place, int], Record] = field(default_factory=dict)
    told: list[tuple[Place, frozenset[int], str]] = field(default_factory=list)
    dead: bool = False


class ClientSteps:
    """The part of the server subject that knows consumers."""

    def __init__(self, subject: ServerSubject) -> None:
        self.subject = subject
        self.seats: dict[str, Seat] = {}

    async def close(self) -> None:
        """Close all consumers."""
        for name in list(self.seats):
            await self.drive(self.seats.pop(name).consumer.close(timeout=1.0))

    async def drive(self, work: Awaitable[Any]) -> Any:
        """Let time pass until `work` is done."""
        return await self.subject.world.drive(work)

    async def take(
        self, name: str, *, group: str = words.GROUP, topics: list[str] | None = None, **options: str
    ) -> Seat:
        """A consumer, subscribed, not joined yet."""
        await self.subject.ensure()
        await self.subject.ensure_group(group)
        self.subject.founded.add(group)
        connections: list[Connection] = []
        settings = ConsumerSettings(
            acknowledgement_mode="explicit" if options.get("mode") == "explicit" else "implicit",
            max_poll_records=int(options.get("max", "500")),
            acquire_mode=AcquireMode[options.get("acquire", "batch_optimized").upper()],
        )

        async def connect() -> Connection:
            if name in self.seats and self.seats[name].dead:
                raise ConnectionError("this consumer is gone")
            connections.append(await world.consume(name))
            return connections[-1]

        world = self.subject.world
        consumer: Consumer = ShareConsumer(
            connect, group_id=world.real(group), clock=world.clock, settings=settings, member_id=name
        )
        consumer.subscribe([world.real(topic) for topic in topics or [words.TOPIC]])
        seat = self.seats[name] = Seat(consumer, connections)

        def told(outcomes: Mapping[Any, frozenset[int]], error: ClientError | None) -> None:
            for at, offsets in outcomes.items():
                where = Place(world.named(at.topic), at.partition)
                seat.told.append((where, offsets, type(error).__name__ if error else "none"))

        consumer.set_acknowledgement_commit_callback(told)
        return seat

    async def do_consumer(self, step: Step) -> Outcome:
        """`consumer C1 [mode=explicit] [max=10] [acquire=record_limit] [group=g]`."""
        await self.take(step.words[0], **step.options)
        return Outcome()

    async def do_poll(self, step: Step) -> Outcome:
        """`poll C1 [timeout=1000]`: offsets that one poll returns."""
        seat = self.seats[step.words[0]]
        try:
            records = await self.drive(seat.consumer.poll(int(step.options.get("timeout", "1000")) / 1000))
        except ClientError as error:
            return Outcome(f"raises {type(error).__name__}")
        found: dict[Place, list[int]] = {}
        for record in records:
            where = Place(self.subject.world.named(record.topic), record.partition)
            seat.records[where, record.offset] = record
            found.setdefault(where, []).append(record.offset)
        shown = {where: words.show_offsets(offsets) for where, offsets in sorted(found.items())}
        counts = ",".join(map(str, sorted({record.attempt for record in records}))) or "none"
        alone = self.subject.alone(list(shown))
        return Outcome(words.show_by_place(shown, alone=alone, empty="nothing"), {"counts": counts})

    async def do_acknowledge(self, step: Step) -> Outcome:
        """`acknowledge C1 0-4:accept 5:reject`: say what became of polled records."""
        seat = self.seats[step.words[0]]
        for ack in words.acks(step.words[1:]):
            for offset in range(ack.first, ack.last + 1):
                try:
                    seat.consumer.acknowledge(seat.records[ack.place, offset], AcknowledgeType(ack.types[0]))
                except ClientError as error:
                    return Outcome(f"raises {type(error).__name__}")
        return Outcome()

    async def do_commit(self, step: Step) -> Outcome:
        """`commit C1 [how=async]`."""
        consumer = self.seats[step.words[0]].consumer
        if step.options.get("how") == "async":
            consumer.commit_async()
            return Outcome()
        outcomes = await self.drive(consumer.commit_sync())
        failed = [getattr(error, "code", error) for error in outcomes.values() if error is not None]
        return Outcome(" ".join(f"error {getattr(code, 'name', code)}" for code in failed) or "ok")

    async def do_callbacks(self, step: Step) -> Outcome:
        """`callbacks C1`: what the acknowledgement callback was told so far."""
        told = self.seats[step.words[0]].told
        shown = " ".join(f"{where}:{words.show_offsets(offsets)}:{error}" for where, offsets, error in sorted(told))
        return Outcome(shown or "nothing", {"acknowledged": str(sum(len(offsets) for _, offsets, _ in told))})

    async def do_lock_timeout(self, step: Step) -> Outcome:
        """`lock_timeout C1`: how long its locks last, as the consumer knows it."""
        timeout_s = self.seats[step.words[0]].consumer.acquisition_lock_timeout
        return Outcome("none" if timeout_s is None else str(round(timeout_s * 1000)))

    async def do_kill(self, step: Step) -> Outcome:
        """`kill C1`: its process is gone, the connections with it."""
        seat = self.seats[step.words[0]]
        seat.dead = True
        for connection in seat.connections:
            await connection.close()
        return Outcome()

    async def do_close_consumer(self, step: Step) -> Outcome:
        """`close_consumer C1`: it leaves in order."""
        await self.drive(self.seats.pop(step.words[0]).consumer.close(timeout=30.0))
        return Outcome()

    # --- whole stories ---

    async def do_crowd(self, step: Step) -> Outcome:
        """`crowd consumers=4 records=2000 [groups=3] [work=200] [max=10] [acquire=record_limit]`.

        Each group's consumers poll, work `work` ms on each record, and poll again, until each group has seen all. With
        work, they have all joined and been told their share before that, so that it is the work that takes time.
        """
        options = dict(step.options)
        groups = [f"{options.get('group', 'crowd')}{number}" for number in range(int(options.get("groups", "1")))]
        total, work_s = int(options["records"]), int(options.get("work", "0")) / 1000
        taken = {name: options[name] for name in ("max", "acquire") if name in options}
        seen: dict[str, dict[tuple[Place, int], int]] = {group: {} for group in groups}
        busy: set[str] = set()
        clock = self.subject.world.clock
        ended_ms: list[int] = []
        names = [(group, f"{group}-{i}") for group in groups for i in range(int(options["consumers"]))]
        seats = {name: await self.take(name, group=group, **taken) for group, name in names}
        if work_s:
            await self.drive(asyncio.gather(*(seat.consumer._join(30.0) for seat in seats.values())))
            await self.drive(clock.sleep(TOLD_S))
        started_ms = clock.now_ms()

        async def one(group: str, name: str) -> None:
            seat, counted = seats[name], seen[group]
            while len(counted) < total:
                for record in await seat.consumer.poll(1.0):
                    busy.add(name)
                    if work_s:
                        await self.subject.world.clock.sleep(work_s)
                    at = (Place(record.topic, record.partition), record.offset)
                    counted[at] = counted.get(at, 0) + 1
            ended_ms.append(self.subject.world.clock.now_ms())
            await seat.consumer.commit_sync()

        await self.drive(asyncio.gather(*(one(group, name) for group, name in names)))
        last_s = (min(ended_ms) - started_ms) / 1000
        return Outcome(
            "ok",
            {
                "seen": ",".join(str(len(counted)) for counted in seen.values()),
                "twice": str(sum(times - 1 for counted in seen.values() for times in counted.values())),
                "busy": str(len(busy)),
                "seconds": str(round(last_s)),
            },
        )

    async def do_poison(self, step: Step) -> Outcome:
        """`poison C1 offset=37`: fail every batch that holds this record, accept the others, until nothing comes."""
        seat, bad = self.seats[step.words[0]], int(step.options["offset"])
        accepted: list[int] = []
        deliveries = looks = 0
        # A fleet on a busy machine may take longer than a poll until the first records are there.
        while (records := await self.drive(seat.consumer.poll(1.0))) or (not accepted and looks < FIRST_LOOKS):
            looks += 1
            failed = any(record.offset == bad for record in records)
            deliveries += failed
            for record in records:
                seat.consumer.acknowledge(record, AcknowledgeType.RELEASE if failed else AcknowledgeType.ACCEPT)
            accepted += [] if failed else [record.offset for record in records]
        return Outcome(
            "ok",
            {"accepted": words.show_offsets(accepted), "times": str(len(accepted)), "poisoned": str(deliveries)},
        )

    async def do_etl(self, step: Step) -> Outcome:
        """`etl records=200 stages=3`: topics in a chain, two consumers a stage.

        A record's role at a stage is (its number + the stage) mod 4: 0 accept, 1 release once, 2 reject, 3 release
        twice; what is accepted goes on to the next topic.
        """
        count, stages = int(step.options["records"]), int(step.options["stages"])
        for stage in range(stages + 1):
            await self.subject.ensure(f"e{stage}")
        now_ms = self.subject.world.clock.now_ms()
        await self.subject.produce(Place("e0", 0), words.Batch(0, count - 1), now_ms)
        deliveries = 0
        passed = [str(number).encode() for number in range(count)]
        for stage in range(stages):
            seats = [
                await self.take(f"e{stage}-{i}", group=f"etl{stage}", topics=[f"e{stage}"], mode="explicit", max="10")
                for i in range(2)
            ]
            passed, delivered = await self._stage(seats, stage, len(passed))
            deliveries += delivered
            for value in passed:
                await self.subject.produce_value(f"e{stage + 1}", value)
        numbers = [int(value) for value in passed]
        return Outcome(
            "ok",
            {
                "ends": str(len(numbers)),
                "twice": str(len(numbers) - len(set(numbers))),
                "roles": ",".join(sorted({str(number % 4) for number in numbers})),
                "deliveries": str(deliveries),
            },
        )

    async def _stage(self, seats: list[Seat], stage: int, expected: int) -> tuple[list[bytes], int]:
        """Let the consumers of one stage work in turn until all records are settled; (accepted values, deliveries)."""
        accepted: list[bytes] = []
        settled = deliveries = 0
        for turn in range(100 * expected):
            if settled == expected:
                break
            seat = seats[turn % len(seats)]
            for record in await self.drive(seat.consumer.poll(1.0)):
                deliveries += 1
                value = record.value or b""
                role = (int(value) + stage) % 4
                again = {1: 1, 3: 2}.get(role, 0)
                if record.attempt <= again:
                    seat.consumer.acknowledge(record, AcknowledgeType.RELEASE)
                    continue
                settled += 1
                seat.consumer.acknowledge(record, AcknowledgeType.REJECT if role == 2 else AcknowledgeType.ACCEPT)
                accepted += [] if role == 2 else [value]
            await self.drive(seat.consumer.commit_sync())
        return accepted, deliveries
