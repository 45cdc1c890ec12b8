"""A fleet of three workers on a real Kafka as a subject: the same steps in real time, as on Kafka itself (`kafka`).

Records are produced to the brokers, and the workers hear of them a moment later, of topics that change within seconds.
So a step about records or topics ends when the workers know of it: a group that consumes nothing tells.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    DescribeShareGroupOffsetsRequest,
    FetchPartition,
    FetchRequest,
    IncrementalAlterConfigsRequest,
    MetadataRequest,
    ShareGroupHeartbeatRequest,
)
from flowshare.server.runtime.state import ShareKey, delete_state, initial_writes
from flowshare.share.types import AcquiredRange, PartitionState
from tests.scenarios import words
from tests.scenarios.composite import ranges
from tests.scenarios.fleet_local import LocalFleet
from tests.scenarios.fleet_wire import FleetWire
from tests.scenarios.fleet_world import FleetWorld
from tests.scenarios.kafka import KafkaSubject
from tests.scenarios.kafka_world import until
from tests.scenarios.language import Outcome, Scenario, Step
from tests.scenarios.server import ServerSubject
from tests.scenarios.settings import GROUP_NAMES
from tests.scenarios.words import Place

SETTINGS: Final[Mapping[str, str]] = {
    "share.auto.offset.reset": "earliest",
    "share.assignment.interval.ms": "1000",
    "share.record.lock.duration.ms": "30000",
    "share.session.timeout.ms": "45000",
    "share.heartbeat.interval.ms": "5000",
    # As the scenarios' servers have it.
    "share.partition.max.window": "locks",
}


PARTS_MAX: Final = 10
DEAD_LETTERS: Final = GROUP_NAMES["dead_letters"]


class FleetSubject(KafkaSubject):
    """Runs steps on a fleet."""

    settings = SETTINGS

    def __init__(self, kafka: str, workers: Sequence[str], scenario: Scenario, local: LocalFleet | None = None) -> None:
        self.fleet = FleetWorld(kafka, workers, scenario, local)
        super().__init__(kafka, scenario, self.fleet)
        self._config = scenario.config
        self._watch: FleetWire | None = None
        self._watched: dict[str, str] = {}

    async def perform(self, step: Step) -> Outcome:
        """As on Kafka; what a request in the background needs is there before it is sent."""
        if step.background is not None and step.operation == "fetch":
            await self.ready(step)
        if step.operation == "letters":  # written behind the acknowledgement's back
            return await until(lambda: self._letters(step), lambda outcome: step.check(outcome) is None)
        if step.operation == "outputs":  # a transaction's markers follow the answer that it is committed
            outputs = super().perform
            return await until(lambda: outputs(step), lambda outcome: step.check(outcome) is None)
        return await super().perform(step)

    async def _letters(self, step: Step) -> Outcome:
        """As on a server; they name the topic that they come from as the brokers know it."""
        outcome = await self.admin_steps.do_letters(step)
        origin = outcome.fields["origin"].replace(self.fleet.suffix, "")
        return Outcome(outcome.main, {**outcome.fields, "origin": origin})

    async def do_fetch(self, step: Step) -> Outcome:
        """As on Kafka. A fetch brings what a worker has in memory; the rest of it may come with the next one."""
        outcome = await super().do_fetch(step)
        if {"epoch", "ack", "max", "heads", "chain", "bytes", "batch", "mode", "wait"} & set(step.options):
            return outcome
        wanted = max((_count(expected.main or "") for expected in step.expected), default=0)
        for _ in range(PARTS_MAX):
            if not 0 < _count(outcome.main) < wanted or ":" in outcome.main:
                break
            more = await super().do_fetch(step)
            outcome = Outcome(_joined(f"{outcome.main} {more.main}"), outcome.fields)
        return outcome

    async def loaded(self, group: str) -> bool:
        """As on Kafka, unless the sessions are counted: looking takes one."""
        return bool(self._config) or await super().loaded(group)

    async def do_reload(self, step: Step) -> Outcome:
        """As on a server."""
        where, start = words.placed(step.words[0])
        await self.ensure(where.topic)
        await self.found(words.GROUP)
        store = self.fleet.storage
        assert store is not None, "state is put into the slots of a fleet of this process"
        key = ShareKey(self.fleet.real(words.GROUP), self.topic_id(where.topic), where.partition)
        state = PartitionState(start_offset=int(start), runs=tuple(words.runs(step.words[1:])))
        await store.write([*await delete_state(store, [key]), *initial_writes(key, state)])
        return Outcome()

    # --- groups ---

    async def configured_now(self, group: str, configs: dict[str, str]) -> Any:
        """A group's settings act when they have been answered for."""
        if DEAD_LETTERS in configs:
            configs = {**configs, DEAD_LETTERS: self.fleet.real(configs[DEAD_LETTERS])}
        return await ServerSubject.configure(self, group, configs)

    async def found_group(self, group: str) -> None:
        """All settings that scenarios take for given."""
        answer = await self.configure(group, dict(self.settings))
        assert answer.error is ErrorCode.NONE, answer

    # --- records ---

    async def do_log(self, step: Step) -> Outcome:
        """As on Kafka; the workers know of it when this ends."""
        outcome = await super().do_log(step)
        for where in dict.fromkeys(where for where, _ in words.batches(step.words)):
            await self.noticed(where)
        return outcome

    async def do_resolve(self, step: Step) -> Outcome:
        """As `do_log`."""
        outcome = await super().do_resolve(step)
        for where in dict.fromkeys(where for where, _ in words.batches(step.words)):
            await self.noticed(where)
        return outcome

    async def do_logstart(self, step: Step) -> Outcome:
        """As `do_log`."""
        outcome = await super().do_logstart(step)
        await self.noticed(words.placed(step.words[0])[0])
        return outcome

    async def noticed(self, where: Place) -> None:
        """Wait until the leader of a partition knows its records as the broker has them."""
        asked = FetchRequest(partitions=(FetchPartition(where.topic, where.partition, self.end_of(where), 1),))
        watch, group = await self.watching(where.topic)
        look = DescribeShareGroupOffsetsRequest(
            group_id=group, topics={self.fleet.real(where.topic): (where.partition,)}
        )

        async def known() -> tuple[int, int]:
            (log,) = (await self.ask(asked)).partitions
            answer = await watch.send(look)
            assert answer.error is ErrorCode.NONE, answer
            return log.high_watermark - max(0, log.log_start), int(answer.partitions[0].lag)

        there, seen = await until(known, lambda counts: counts[0] == counts[1])
        assert seen == there, f"{where} has {there} records, the workers know of {seen}"

    async def watching(self, topic: str) -> tuple[FleetWire, str]:
        """A group that consumes nothing of a topic, from its beginning on."""
        if self._watch is None:
            self._watch = await self.fleet.plain("watch")
        watch, group = self._watch, f"watch-{topic}{self.fleet.suffix}-"
        if self._watched.get(topic) != str(self.topics[topic]):
            self._watched[topic] = str(self.topics[topic])
            configs = {"share.auto.offset.reset": "earliest"}
            await watch.send(IncrementalAlterConfigsRequest(resource_type="group", resource=group, configs=configs))
            beat = ShareGroupHeartbeatRequest(
                group_id=group, member_id="watch", member_epoch=0, subscribed_topics=(self.fleet.real(topic),)
            )
            held = await until(lambda: watch.send(beat), lambda told: len(told.assignment or ()) == self.topics[topic])
            assert held.error is ErrorCode.NONE, held
        return watch, group

    # --- topics ---

    async def ensure(
        self, topic: str = words.TOPIC, partitions: int = 1, configs: dict[str, str] | None = None
    ) -> None:
        """Make a topic if there is none; every worker knows it when this ends."""
        if topic not in self.topics and topic not in self.deleted:
            await super().ensure(topic, partitions, configs)
            await self.told(topic, partitions)

    async def do_partitions(self, step: Step) -> Outcome:
        """As on Kafka."""
        outcome = await super().do_partitions(step)
        await self.told(step.words[0], int(step.words[1]))
        return outcome

    async def do_delete_topic(self, step: Step) -> Outcome:
        """As on Kafka."""
        outcome = await super().do_delete_topic(step)
        await self.told(step.words[0], 0)
        return outcome

    async def told(self, topic: str, partitions: int) -> None:
        """Wait until every worker knows so many partitions of a topic; 0: that it is gone."""
        _, workers = await self.fleet.known()
        asked = MetadataRequest(topics=(self.fleet.real(topic),))
        for node in tuple(workers.topology.nodes):
            line = await workers.open_node(node, "look")

            def right(answer: Any) -> bool:
                (found,) = answer.topics
                return found.partitions == partitions and not (found.error and partitions)

            answer = await until(partial(line.send, asked), right)
            assert right(answer), answer
            workers.topology.apply(answer)
            await line.close()
            await asyncio.sleep(0)


def _count(main: str) -> int:
    """How many records an outcome tells of."""
    return sum(last - first + 1 for first, last, _ in ranges(main))


def _joined(main: str) -> str:
    """Ranges as one fetch would have told them."""
    found: list[AcquiredRange] = []
    for part in ranges(main):
        if found and found[-1].last + 1 == part.first and found[-1].delivery_count == part.delivery_count:
            found[-1] = found[-1]._replace(last=part.last)
        else:
            found.append(part)
    return words.show_ranges(found)
