"""Steps on a server about records that are settled with outputs, and about members that come back (SG-19)."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from flowshare.client.errors import ClientError
from flowshare.protocol.batches import batch_headers
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    FetchedLog,
    FetchPartition,
    FetchRequest,
    HeldRanges,
    SettleOutput,
    ShareResumeRequest,
    ShareSettleRequest,
)
from flowshare.share.types import AckRange
from tests.scenarios import records, words
from tests.scenarios.language import Outcome, Step

if TYPE_CHECKING:
    from tests.scenarios.server import ServerSubject


class SettleSteps:
    """The part of the server subject that knows settles."""

    def __init__(self, subject: ServerSubject) -> None:
        self.subject = subject

    async def close(self) -> None:
        """Nothing to let go of."""

    async def do_share_settle(self, step: Step) -> Outcome:
        """`share_settle M1 0:accept 1:reject +out.0:3 [attempt=2] [size=bytes] [ordered=yes]`: all or none.

        `refused`: records of it that are why it was refused; `outputs`: the same of its outputs, by their position.
        """
        subject = self.subject
        session = await subject.ready(step)
        (topic, partition), acked, sent = words.settled(step)
        group, member = subject.names(step)
        attempt = int(step.options.get("attempt", "1"))
        request = ShareSettleRequest(
            group_id=group,  # type: ignore[arg-type]
            member_id=member,  # type: ignore[arg-type]
            topic_id=subject.topic_id(topic),
            partition=partition,
            acks=tuple(AckRange(ack.first, ack.last, ack.types, attempt=attempt) for ack in acked),
            outputs=tuple(made for one in sent for made in self._made(one, int(step.options.get("size", "0")))),
            ordered=step.options.get("ordered") == "yes",
        )
        try:
            answer = await session.connection.send(request)
        except ClientError as error:
            if type(error) is not ClientError:
                raise
            return Outcome(ErrorCode.INVALID_REQUEST.name)  # its client does not even send it
        outputs = ",".join(f"{one.place}:{one.error.name}" for one in answer.outputs)
        return Outcome(answer.error.name, {"refused": words.show_spans(answer.refused), "outputs": outputs or "none"})

    def _made(self, sent: words.Sent, size: int) -> list[SettleOutput]:
        topic, partition = sent.place
        topic_id = uuid.uuid4() if sent.kind == "~" else self.subject.topic_id(topic)
        now_ms = self.subject.world.clock.now_ms()
        built = records.build_output(sent.records, sent.kind, timestamp_ms=now_ms, size=size)
        return [SettleOutput(topic, topic_id, partition, built)] * sent.times

    async def do_outputs(self, step: Step) -> Outcome:
        """`outputs out [partition=1] [isolation=read_uncommitted]`: how many records a topic has."""
        committed = step.options.get("isolation") != "read_uncommitted"
        topic, only = step.words[0], step.options.get("partition")
        chosen = range(self.subject.topics[topic]) if only is None else [int(only)]
        found = 0
        for partition in chosen:
            asked = FetchRequest(
                partitions=(FetchPartition(topic, partition, 0, 1 << 30),), max_bytes=1 << 30, committed=committed
            )
            (answer,) = (await self.subject.ask(asked)).partitions
            assert answer.error is ErrorCode.NONE, answer
            found += _count(answer)
        return Outcome("ok", {"records": str(found)})

    async def do_resume(self, step: Step) -> Outcome:
        """`resume M1 0-1`: a member says which records it holds; `held`: those that are its own still."""
        session = await self.subject.session(step.words[0])
        group, member = words.member(step.words[0])
        where, _ = words.placed(step.words[1])
        ranges = tuple(words.span(words.placed(word)[1]) for word in step.words[1:])
        told = HeldRanges(self.subject.topic_id(where.topic), where.partition, ranges)
        answer = await session.connection.send(ShareResumeRequest(group_id=group, member_id=member, partitions=(told,)))
        held = [span for part in answer.partitions for span in part.ranges]
        main = "ok" if answer.error is ErrorCode.NONE else f"error {answer.error.name}"
        return Outcome("elsewhere" if answer.elsewhere else main, {"held": words.show_spans(held)})


def _count(found: FetchedLog) -> int:
    """How many records there are, without those of transactions that were aborted."""
    begun = sorted(found.aborted, key=lambda one: one.first_offset)
    aborted: set[int] = set()
    records_there = 0
    for header in batch_headers(found.records):
        while begun and begun[0].first_offset <= header.base_offset:
            aborted.add(begun.pop(0).producer_id)
        if header.is_control:
            aborted.discard(header.producer_id)
        elif header.producer_id not in aborted:
            records_there += header.record_count
    return records_there
