"""Steps on a server about groups: heartbeats, descriptions, offsets, deletion."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from flowshare.protocol.batches import DecodedRecord, decode_all
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    AlterShareGroupOffsetsRequest,
    DeleteGroupsRequest,
    DeleteShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequest,
    FetchPartition,
    FetchRequest,
    ListGroupsRequest,
    ShareGroupDescribeRequest,
    ShareGroupHeartbeatRequest,
)
from tests.scenarios import words
from tests.scenarios.core_groups import show_assigned
from tests.scenarios.language import Outcome, Step
from tests.scenarios.words import Place

if TYPE_CHECKING:
    from tests.scenarios.server import ServerSubject


class AdminSteps:
    """The part of the server subject that knows groups."""

    def __init__(self, subject: ServerSubject) -> None:
        self.subject = subject
        self.told: dict[tuple[str, str], tuple[int, tuple[Place, ...]]] = {}

    async def close(self) -> None:
        """Nothing to let go of."""

    async def do_join(self, step: Step) -> Outcome:
        """`join M1 topics=foo [rack=r]`: a heartbeat with epoch 0."""
        group = words.member(step.words[0])[0]
        self.subject.founded.add(group)
        if words.TOPIC in step.options["topics"].split(","):
            await self.subject.ensure()
        await self.subject.ensure_group(group)
        return await self._beat(step, 0)

    async def do_leave(self, step: Step) -> Outcome:
        """`leave M1`."""
        return await self._beat(step, -1)

    async def do_beat(self, step: Step) -> Outcome:
        """`beat M1 [epoch=3] [topics=foo,bar]`: a heartbeat with the epoch told last."""
        known = self.told.get(words.member(step.words[0]), (1, ()))[0]
        return await self._beat(step, int(step.options.get("epoch", known)))

    async def _beat(self, step: Step, epoch: int) -> Outcome:
        group, member = words.member(step.words[0])
        named = step.options.get("topics")
        session = await self.subject.session(step.words[0])
        answer = await session.connection.send(
            ShareGroupHeartbeatRequest(
                group_id=group,
                member_id=member,
                member_epoch=epoch,
                rack_id=step.options.get("rack"),
                subscribed_topics=None if named is None else tuple(filter(None, named.split(","))),
            )
        )
        if answer.error is not ErrorCode.NONE:
            return Outcome(f"error {answer.error.name}")
        assigned = None
        if answer.assignment is not None:
            assigned = tuple(sorted(self.subject.place(*at) for at in answer.assignment))
        before = self.told.get((group, member), (0, ()))[1]
        self.told[group, member] = (answer.member_epoch, before if assigned is None else assigned)
        shown = "same" if assigned is None else words.show_places(assigned)
        interval = str(answer.heartbeat_interval_ms)
        return Outcome("ok", {"epoch": str(answer.member_epoch), "assigned": shown, "interval": interval})

    async def do_assigned(self, step: Step) -> Outcome:
        """`assigned`: what the members were told last, together."""
        return show_assigned([places for _, places in self.told.values()])

    async def do_describe(self, step: Step) -> Outcome:
        """`describe [partition] [group=g]`: start offset and lag of one share-partition."""
        where = words.place(step.words[0]) if step.words else Place(words.TOPIC, 0)
        answer = await self.subject.ask(
            DescribeShareGroupOffsetsRequest(
                group_id=step.options.get("group", words.GROUP), topics={where.topic: (where.partition,)}
            )
        )
        if answer.error is not ErrorCode.NONE:
            return Outcome(f"error {answer.error.name}")
        (found,) = answer.partitions
        if found.error is not ErrorCode.NONE:
            return Outcome(f"error {found.error.name}")
        return Outcome("ok", {"start": str(found.start_offset), "lag": str(found.lag)})

    async def do_describe_group(self, step: Step) -> Outcome:
        """`describe_group g`: state, epoch, members."""
        group = await self.subject.ask(ShareGroupDescribeRequest(group_id=step.words[0]))
        fields = {
            "state": group.state,
            "epoch": str(group.group_epoch),
            "assignor": group.assignor,
            "members": ",".join(member.member_id for member in group.members) or "none",
        }
        return Outcome("ok" if group.error is ErrorCode.NONE else f"error {group.error.name}", fields)

    async def do_letters(self, step: Step) -> Outcome:
        """`letters topic [partition=0]`: what lies in a dead-letter topic."""
        topic = step.words[0]
        partitions = range(self.subject.topics[topic])
        if "partition" in step.options:
            partitions = range(int(step.options["partition"]), int(step.options["partition"]) + 1)
        found = [(partition, record) for partition in partitions for record in await self._all(topic, partition)]
        heads = [{name: (value or b"").decode() for name, value in record.headers} for _, record in found]

        def all_of(name: str) -> str:
            return ",".join(sorted({head[f"__dlq.errors.{name}"] for head in heads})) or "none"

        at = Counter(partition for partition, _ in found)
        payload = [
            f"{record.key.decode()}={record.value.decode()}" for _, record in found if record.value and record.key
        ]
        fields = {
            "records": str(len(found)),
            "at": ",".join(f"{partition}:{count}" for partition, count in sorted(at.items())) or "none",
            "payload": ",".join(payload) or "no",
            "offsets": words.show_offsets(int(head["__dlq.errors.offset"]) for head in heads),
            "origin": f"{all_of('topic')}-{all_of('partition')}",
            "counts": all_of("delivery.count"),
            "reason": "limit" if "limit" in all_of("message") else "rejected",
        }
        return Outcome("ok", fields)

    async def _all(self, topic: str, partition: int) -> list[DecodedRecord]:
        """Every record of a partition."""
        asked = FetchRequest(partitions=(FetchPartition(topic, partition, 0, 1 << 30),), max_bytes=1 << 30)
        (answer,) = (await self.subject.ask(asked)).partitions
        assert answer.error is ErrorCode.NONE, answer
        return list(decode_all(answer.records))

    async def do_groups(self, step: Step) -> Outcome:
        """`groups [types=share] [states=Empty]`: ids of the groups listed."""
        answer = await self.subject.ask(
            ListGroupsRequest(
                states=tuple(filter(None, step.options.get("states", "").split(","))),
                types=tuple(filter(None, step.options.get("types", "").split(","))),
            )
        )
        return Outcome(" ".join(sorted(group.group_id for group in answer.groups)) or "nothing")

    async def do_delete_group(self, step: Step) -> Outcome:
        """`delete_group g`."""
        (result,) = (await self.subject.ask(DeleteGroupsRequest(group_ids=(step.words[0],)))).groups
        return Outcome(result.error.name)

    async def do_alter(self, step: Step) -> Outcome:
        """`alter 40 1@5 [group=g]`: reset start offsets."""
        group = step.options.get("group", words.GROUP)
        await self.subject.ensure()
        await self.subject.ensure_group(group)
        offsets = {(where.topic, where.partition): int(at) for where, at in map(words.placed, step.words)}
        answer = await self.subject.ask(AlterShareGroupOffsetsRequest(group_id=group, offsets=offsets))
        if answer.error is not ErrorCode.NONE:
            return Outcome(f"error {answer.error.name}")
        found = {Place(part.topic, part.partition): part.error.name for part in answer.partitions}
        return Outcome(words.show_by_place(found, alone=self.subject.alone(list(found)), empty="nothing"))

    async def do_delete_offsets(self, step: Step) -> Outcome:
        """`delete_offsets topic [group=g]`: the group forgets the topic."""
        answer = await self.subject.ask(
            DeleteShareGroupOffsetsRequest(group_id=step.options.get("group", words.GROUP), topics=(step.words[0],))
        )
        if answer.error is not ErrorCode.NONE:
            return Outcome(f"error {answer.error.name}")
        return Outcome(" ".join(result.error.name for result in answer.topics))
