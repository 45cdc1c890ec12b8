"""Reads what a fetch brought: chunks for the pool, and at once the acknowledgements of what needs no handler.

A member that is given a part of a record batch is sent the whole batch, and again with the next part (KIP-1206: the
server never looks inside a batch). The last batch is kept read, so that the next part of it costs next to nothing.

Records of an agent with an order are read at once, never by who handles them: which of them may be begun has to be
known before the first one is, and what is not read cannot stand behind a record of its key. Such answers are small.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from flowshare.agents.feed.acknowledgements import GAP, REJECT, RELEASE
from flowshare.agents.handler.chunk import COUNT_MAX, Chunk, Postponed, Unread
from flowshare.agents.handler.outcomes import Outcome, OutcomeKind
from flowshare.garbage import collector_paused
from flowshare.protocol.batches import DecodeError
from flowshare.protocol.decoding import LastBatch, RawDecoded, decode_raw
from flowshare.protocol.key_hash import KeyOrder
from flowshare.protocol.lazy_records import LazyRecords, lazy_records

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flowshare.agents.feed.ack_sender import AckSender
    from flowshare.agents.feed.acknowledgements import Key
    from flowshare.agents.feed.completion import Completion
    from flowshare.agents.feed.delays import RetryTopicReader
    from flowshare.agents.handler.agent import ShareAgent
    from flowshare.agents.handler.chains import Chains
    from flowshare.agents.run.stats import AgentStats
    from flowshare.client.session.ranges import Fetched
    from flowshare.protocol.decoding import RawDecoded, RawRecord

logger = logging.getLogger("flowshare.agents")

UNREADABLE_DELAY_MS: Final = 1_000
NO_ORDER_DELAY_MS: Final = 5_000
"""After which records come again that were handed out in no order."""
TELL_AGAIN_S: Final = 60.0


class Reader:
    """Reads for one agent; on the service loop."""

    def __init__(
        self,
        agent: ShareAgent,
        *,
        acks: AckSender,
        completion: Completion,
        waiting: RetryTopicReader | None,
        stats: AgentStats,
        service_loop: asyncio.AbstractEventLoop,
        observed: bool,
        unreadable: Callable[[Chunk, int, Fetched], None],
    ) -> None:
        """waiting: reads the retry topic, where there is one. observed: attempts are kept for an observer.

        unreadable: called, on any thread, with a chunk, the offset from which on its records were not read, and where
        they came from.
        """
        self._agent = agent
        self._acks = acks
        self._completion = completion
        self._waiting = waiting
        self._stats = stats
        self._service_loop = service_loop
        self._observed = observed
        self._unreadable = unreadable
        self._order = KeyOrder.parse(agent.options.key_order or "")
        self._tell_no_order_s = 0.0
        self._last_batch = LastBatch()
        self.batch_records = 0
        """Offsets of the longest record batch in the last answer; 0 before the first."""

    def chunks(self, part: Fetched, now: float, bytes_max: int, *, at_once: bool = False) -> list[Chunk]:
        """The records of one partition that are to be handled now; `at_once`: read here and not by who handles them.

        bytes_max: no record batch is read here when so many bytes without compression were; it is when the pool gets
        to it.
        """
        if self._order is not None:
            return self._in_order(part, now, max(1, bytes_max))  # one batch at least, or it would come again at once
        at_once |= self._agent.options.at_most_once
        if not at_once and (lazy := self._lazy(part)) is not None:
            self.batch_records = lazy.batch_records
            return [self._chunk(part, now, (), self._unread(part, lazy))]
        decoded = self._decode(part, bytes_max)
        if decoded is None:
            return []
        later = [self._chunk(part, now, (), self._unread(part, Postponed(*one))) for one in decoded.later]
        return [*self._read(part, decoded, now), *later] if decoded.runs else later

    def _in_order(self, part: Fetched, now: float, bytes_max: int) -> list[Chunk]:
        """What was read; the rest goes back, as it may stand behind a record of its key that is in another chunk."""
        if part.fence is None:
            self._no_order(part, now)
            return []
        decoded = self._decode(part, bytes_max)
        if decoded is None:
            return []
        for first, last, _ in decoded.later:
            self._acks.acknowledge((part.tp, part.generation), first, last, RELEASE, "unrun", unrun=True)
        return self._read(part, decoded, now) if decoded.runs else []

    def _no_order(self, part: Fetched, now: float) -> None:
        """The group has lost its order (its settings are gone with its path or state topic): nothing of it is run."""
        for first, last, _ in part.acquired:
            ack = self._acks.acknowledge
            ack((part.tp, part.generation), first, last, RELEASE, "unrun", unrun=True, delay_ms=NO_ORDER_DELAY_MS)
        if now >= self._tell_no_order_s:
            self._tell_no_order_s = now + TELL_AGAIN_S
            logger.error(
                "agent=%s: group %s keeps no order (share.key.order is not set, though this agent has set it): nothing "
                "of it is run; stop all workers of the group, and start them again",
                self._agent.name,
                self._agent.group,
            )

    def _unread(self, part: Fetched, lazy: LazyRecords | Postponed) -> Unread:
        return Unread(lazy, lambda chunk, first: self._unreadable(chunk, first, part))

    def _read(self, part: Fetched, decoded: RawDecoded, now: float) -> list[Chunk]:
        """Chunks of what was read."""
        if self._waiting is not None and part.topic == self._waiting.topic:
            chunks = self._waiting.chunks(part, decoded.runs, now)
            for chunk in chunks:
                self._redelivered(chunk)
            return chunks
        chunk = self._chunk(part, now, decoded.runs)
        chunk.plain_bytes = decoded.size
        if self._order is not None:
            if part.following:
                self._following(chunk, dict(part.following))
            chunk.keep_order(self._order)
        if self._observed:
            chunk.attempts = {raw.offset: count for raws, count in decoded.runs for raw in raws}
        if any(count > 1 for _, _, count in part.acquired):
            self._redelivered(chunk)
        return [chunk]

    def _chunk(
        self, part: Fetched, now: float, records: Sequence[tuple[list[RawRecord], int]], unread: Unread | None = None
    ) -> Chunk:
        return Chunk(
            self._agent.name,
            part.topic,
            part.tp,
            records,
            decode=self._agent.decoder(part.topic),
            decode_key=self._agent.key_decoder(part.topic),
            deadline=part.lock_deadline,
            generation=part.generation,
            arrived=now,
            unread=unread,
            fence=part.fence,
            exactly_once=self._agent.options.exactly_once,
            group=self._agent.group,
        )

    def _lazy(self, part: Fetched) -> LazyRecords | None:
        """What may be left for the handlers' loop to read: first deliveries, nobody looks at them before."""
        if self._observed or (self._waiting is not None and part.topic == self._waiting.topic):
            return None
        try:
            lazy = lazy_records(part.records, part.acquired)
        except DecodeError:
            return None  # reading at once says what is wrong with them
        return lazy if lazy is not None and lazy.delivery_count == 1 else None

    def _decode(self, part: Fetched, bytes_max: int) -> RawDecoded | None:
        """The records; offsets without one are acknowledged here."""
        key = (part.tp, part.generation)
        if part.read is not None:
            return part.read
        try:
            with collector_paused():
                decoded = decode_raw(part.records, part.acquired, bytes_max=bytes_max, last=self._last_batch)
        except (DecodeError, MemoryError) as error:
            # Not one batch of it can be told apart: the answer is more likely at fault than the log, so ask again. Or
            # there is no memory for it here and now, which says nothing of the records.
            said = "agent=%s topic=%s partition=%d: an answer cannot be read, its records are given back: %s"
            why = str(error) or "out of memory"
            logger.error(said, self._agent.name, part.topic, part.partition, why)  # noqa: TRY400 - no trace is of use
            for first, last, _ in part.acquired:
                self._acks.acknowledge(key, first, last, RELEASE, "released", delay_ms=UNREADABLE_DELAY_MS)
            return None
        self.batch_records = decoded.batch_records
        for first, last in decoded.gaps:
            self._acks.acknowledge(key, first, last, GAP, "gaps")
        for first, last in decoded.missing:
            self._acks.acknowledge(key, first, last, RELEASE, "unrun", unrun=True)
        for first, last, reason in decoded.corrupt:
            self._corrupt(part, key, first, last, reason)
        return decoded

    def _following(self, chunk: Chunk, following: Mapping[int, int]) -> None:
        """Records of parked keys become dead letters unrun."""
        parked = [record for record in chunk.records if record.offset in following]
        chunk.records = [record for record in chunk.records if record.offset not in following]
        for record in reversed(parked):
            first = f"{chunk.topic}-{chunk.partition}@{following[record.offset]}"
            outcome = Outcome(OutcomeKind.DEAD, None, f"its key is parked: {first} became a dead letter", unrun=True)
            self._service_loop.call_soon(self._completion.complete, chunk, chunk.whole(record), outcome)

    def _redelivered(self, chunk: Chunk) -> None:
        """Records whose attempts are used up go to the dead letter unrun: crashes and lapsed locks did that."""
        attempts_max = self._agent.options.retry.max_attempts
        if self._agent.options.at_most_once:
            attempts_max = COUNT_MAX  # what was delivered and not accepted did not run
        attempts = [chunk.attempt(record.offset) for record in chunk.records]
        self._stats.redelivered += sum(attempt > 1 for attempt in attempts)
        if chunk.chains is not None:
            self._redelivered_behind(chunk, chunk.chains)
        dead = [
            chunk.whole(record)
            for record, attempt in zip(chunk.records, attempts, strict=True)
            if attempt > attempts_max
        ]
        if not dead:
            return
        chunk.records = [
            record for record, attempt in zip(chunk.records, attempts, strict=True) if attempt <= attempts_max
        ]
        for record in reversed(dead):
            reason = (
                f"attempts used up ({record.delivery_count} of {attempts_max}) without an outcome: the worker crashed, "
                "was killed or stopped, or lost the lock while handling it"
            )
            self._service_loop.call_soon(
                self._completion.complete, chunk, record, Outcome(OutcomeKind.DEAD, None, reason)
            )

    def _redelivered_behind(self, chunk: Chunk, chains: Chains) -> None:
        """The same of what waits: it becomes a dead letter when the record before it is settled, and it comes alone."""
        attempts = {record.offset: chunk.attempt(record.offset) for record in chains.followers()}
        self._stats.redelivered += sum(attempt > 1 for attempt in attempts.values())
        attempts_max = self._agent.options.retry.max_attempts
        chains.refuse([offset for offset, attempt in attempts.items() if attempt > attempts_max])

    def _corrupt(self, part: Fetched, key: Key, first: int, last: int, reason: str) -> None:
        """Bytes that are no records: nothing to keep in a dead letter but the fact."""
        logger.error(
            "agent=%s record=%s-%d@%d..%d: the stored bytes cannot be read, rejected: %s",
            self._agent.name,
            part.topic,
            part.partition,
            first,
            last,
            reason,
        )
        self._stats.undecodable += last - first + 1
        self._acks.acknowledge(key, first, last, REJECT, "rejected")
