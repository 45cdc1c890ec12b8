"""Steps on a server about transactions: producers that commit and abort, and a member that reads what they left.

The catalogue's logs have no markers where they do not matter (`10-14x 15-19`): such an abort is told to the storage
itself, which takes no offset. Everything else is requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowshare.protocol.batches import batch_headers
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    FetchPartition,
    FetchRequest,
    InitProducerIdRequest,
    ProduceRequest,
    ProducerIdentity,
)
from tests.scenarios import records, words
from tests.scenarios.composite import ranges
from tests.scenarios.language import Outcome, Step, parse_step
from tests.scenarios.words import Batch, Place

if TYPE_CHECKING:
    from tests.scenarios.server import ServerSubject


class TransactionSteps:
    """The part of the server subject that knows transactions."""

    def __init__(self, subject: ServerSubject) -> None:
        self.subject = subject
        self.open: dict[tuple[Place, int], tuple[str, ProducerIdentity]] = {}

    async def close(self) -> None:
        """Nothing to let go of."""

    async def begin(self, name: str, where: Place, batch: Batch, timestamp_ms: int) -> ProducerIdentity:
        """A producer of its own with a batch in an open transaction."""
        ask = self.subject.ask
        await self.subject.prepare_transactions(name)
        producer = (await ask(InitProducerIdRequest(transactional_id=name))).producer
        added = await ask(
            AddPartitionsToTxnRequest(
                transactional_id=name, producer=producer, partitions=((where.topic, where.partition),)
            )
        )
        assert added.error is ErrorCode.NONE, added
        built = records.transactional(records.build(batch, timestamp_ms=timestamp_ms), *producer)
        answer = await ask(
            ProduceRequest(topic=where.topic, partition=where.partition, records=built, transactional_id=name)
        )
        assert (answer.error, answer.base_offset) == (ErrorCode.NONE, batch.first), answer
        return producer

    async def end(self, name: str, producer: ProducerIdentity, *, committed: bool) -> None:
        """Commit or abort; the marker takes the next offset."""
        answer = await self.subject.ask(EndTxnRequest(transactional_id=name, producer=producer, committed=committed))
        assert answer.error is ErrorCode.NONE, answer

    async def write(self, where: Place, batch: Batch, timestamp_ms: int) -> None:
        """One batch of a transaction: `o` open, `k` and `x` ended without a marker that would take an offset."""
        name = f"txn-{where}-{batch.first}"
        producer = await self.begin(name, where, batch, timestamp_ms)
        if batch.kind == "o":
            self.open[where, batch.first] = (name, producer)
        else:
            await self.subject.end_in_place(where, name, producer, committed=batch.kind == "k")

    async def do_transactions(self, step: Step) -> Outcome:
        """`transactions 10 abort_every=5`: that many transactions of one record, each ended by its marker."""
        where, every = Place(words.TOPIC, 0), int(step.options.get("abort_every", "0"))
        await self.subject.ensure()
        for number in range(1, int(step.words[0]) + 1):
            end = self.subject.end_of(where)
            producer = await self.begin("txn", where, Batch(end, end), self.subject.world.clock.now_ms())
            await self.end("txn", producer, committed=not every or number % every != 0)
            await self.subject.appended(where, end + 1)
        return Outcome()

    async def do_resolve(self, step: Step) -> Outcome:
        """`resolve 5-9k`: the open transaction of this batch is committed (`k`) or aborted (`x`)."""
        for where, ended in words.batches(step.words):
            await self.end(*self.open.pop((where, ended.first)), committed=ended.kind == "k")
        return Outcome()

    async def do_consume(self, step: Step) -> Outcome:
        """`consume M1`: fetch until nothing comes; accept records, acknowledge control records as gaps."""
        control, count = await self._controls(), 0
        while True:
            fetched = await self.subject.do_fetch(parse_step(f"fetch {step.words[0]}"))
            offsets = [offset for first, last, _ in ranges(fetched.main) for offset in range(first, last + 1)]
            if not offsets:
                return Outcome("ok", {"records": str(count)})
            count += sum(offset not in control for offset in offsets)
            said = " ".join(f"{offset}:{'gap' if offset in control else 'accept'}" for offset in offsets)
            answer = await self.subject.do_ack(parse_step(f"ack {step.words[0]} {said}"))
            if answer.main != "NONE":
                return answer

    async def _controls(self) -> set[int]:
        """Offsets of control batches, as a member finds them in the records it is sent."""
        asked = FetchRequest(partitions=(FetchPartition(words.TOPIC, 0, 0, 50 << 20),))
        (log,) = (await self.subject.ask(asked)).partitions
        return {header.base_offset for header in batch_headers(log.records) if header.is_control}
