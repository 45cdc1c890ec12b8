"""`Reader` turns a fetch's bytes into chunks for the pool, and acknowledges at once offsets that need no handler.

A member that is given a part of a record batch is sent the whole batch, and again with the next part (KIP-1206: the
server never looks inside a batch). The last batch is kept decoded, so that the next part of it costs next to nothing.

With an order, records are read at once, never by the pool: the feeder must know which of them may be begun before the
first one is, and an unread record cannot wait behind a record of its key. Such answers are small.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from flowshare.agents.feed.acknowledgements import GAP, RELEASE, unrun_range
from flowshare.agents.handler.chunk import COUNT_MAX, Chunk, Postponed, Unread
from flowshare.agents.handler.outcomes import Outcome, OutcomeKind
from flowshare.garbage import collector_paused
from flowshare.protocol.batches import DecodeError
from flowshare.protocol.decoding import LastBatch, RawDecoded, decode_raw
from flowshare.protocol.each_record import UNREADABLE_MAX, Unreadable
from flowshare.protocol.key_hash import KeyOrder
from flowshare.protocol.lazy_records import LazyRecords, lazy_records
from flowshare.share.types import AckRange

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flowshare.agents.feed.ack_sender import AckSender
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
"""Milliseconds until records come again that were handed out in no order."""
TELL_AGAIN_S: Final = 60.0


class Reader:
    """Reader of one agent's records; on the service loop."""

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
        """waiting: reads the retry topic, if there is one. observed: attempts are kept for an observer.

        unreadable: called, on any thread, with a chunk, the offset from which on its records were not read, and their
        fetch.
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
        """Return the records of one partition that are to be handled now. at_once: read them here, not in the pool.

        bytes_max: after so many bytes without compression no further record batch is read here; the pool reads it
        later.
        """
        if self._order is not None:
            return self._in_order(part, now, max(1, bytes_max))  # at least one batch, or it would come again at once
        at_once |= self._agent.options.at_most_once
        if not at_once and (lazy := self._lazy(part)) is not None:
            self.batch_records = lazy.batch_records
            return [self._chunk(part, now, (), self._unread(part, lazy))]
        decoded = self._decode(part, bytes_max)
        if decoded is None:
            return []
        later = [self._chunk(part, now, (), self._unread(part, Postponed(*one))) for one in decoded.later]
        return [*self._chunks(part, decoded, now), *later]

    def _in_order(self, part: Fetched, now: float, bytes_max: int) -> list[Chunk]:
        """Return chunks of the records read, and give back the rest.

        A record of the rest may stand behind a record of its key that is in another chunk.
        """
        if part.fence is None:
            self._no_order(part, now)
            return []
        decoded = self._decode(part, bytes_max)
        if decoded is None:
            return []
        for first, last, _ in decoded.later:
            self._acks.acknowledge((part.tp, part.generation), unrun_range(first, last))
        return self._chunks(part, decoded, now)

    def _no_order(self, part: Fetched, now: float) -> None:
        """Release all records, as the group has lost its order (its settings are gone with its path or state topic)."""
        for first, last, _ in part.acquired:
            ack = unrun_range(first, last, delay_ms=NO_ORDER_DELAY_MS)
            self._acks.acknowledge((part.tp, part.generation), ack)
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

    def _chunks(self, part: Fetched, decoded: RawDecoded, now: float) -> list[Chunk]:
        """Return chunks of readable records, and of unreadable ones, which go to their dead letters as undecodable
        values."""
        found = self._read(part, decoded, now) if decoded.runs else []
        runs = self._unreadable_runs(part, decoded)
        return found if not runs else [*found, *self._one(part, RawDecoded(runs=runs), now)]

    def _read(self, part: Fetched, decoded: RawDecoded, now: float) -> list[Chunk]:
        """Return chunks of readable records."""
        if self._waiting is not None and self._is_retry(part):
            chunks = self._waiting.chunks(part, decoded.runs, now)
            for chunk in chunks:
                self._redelivered(chunk)
            return chunks
        return self._one(part, decoded, now)

    def _is_retry(self, part: Fetched) -> bool:
        """Tell if the fetch is of the retry topic."""
        return self._waiting is not None and part.topic == self._waiting.topic

    def _one(self, part: Fetched, decoded: RawDecoded, now: float) -> list[Chunk]:
        """Make one chunk of all records."""
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
        # Nothing of a retry topic is decoded that was not read by who knows where it comes from: it is damaged, or its
        # turn to be read is later.
        is_retry = self._is_retry(part)
        return Chunk(
            self._agent.name,
            part.topic,
            part.tp,
            records,
            decode=None if is_retry else self._agent.decoder(part.topic),
            decode_key=None if is_retry else self._agent.key_decoder(part.topic),
            deadline=part.lock_deadline,
            generation=part.generation,
            arrived=now,
            unread=unread,
            fence=part.fence,
            exactly_once=self._agent.options.exactly_once,
            group=self._agent.group,
        )

    def _lazy(self, part: Fetched) -> LazyRecords | None:
        """Return records that the handlers' loop may read later; None: they must be read now.

        Only for first deliveries of records that nobody looks at before their handlers.
        """
        if self._observed or self._is_retry(part):
            return None
        try:
            lazy = lazy_records(part.records, part.acquired)
        except DecodeError:
            return None  # reading at once tells the error
        return lazy if lazy is not None and lazy.delivery_count == 1 else None

    def _decode(self, part: Fetched, bytes_max: int) -> RawDecoded | None:
        """Decode the records; offsets without a record are acknowledged here."""
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
                ack = AckRange(first, last, RELEASE, UNREADABLE_DELAY_MS, counter="released")
                self._acks.acknowledge(key, ack)
            return None
        self.batch_records = decoded.batch_records
        for first, last in decoded.gaps:
            self._acks.acknowledge(key, AckRange(first, last, GAP, counter="gaps"))
        for first, last in decoded.missing:
            self._acks.acknowledge(key, unrun_range(first, last))
        return decoded

    def _following(self, chunk: Chunk, following: Mapping[int, int]) -> None:
        """Send records of parked keys to the dead letters unrun."""
        parked = [record for record in chunk.records if record.offset in following]
        chunk.records = [record for record in chunk.records if record.offset not in following]
        for record in reversed(parked):
            first = f"{chunk.topic}-{chunk.partition}@{following[record.offset]}"
            outcome = Outcome(OutcomeKind.DEAD, None, f"its key is parked: {first} became a dead letter", unrun=True)
            self._service_loop.call_soon(self._completion.complete, chunk, chunk.whole(record), outcome)

    def _redelivered(self, chunk: Chunk) -> None:
        """Send records whose attempts are used up to the dead letters unrun: crashes and lapsed locks used them."""
        attempts_max = self._agent.options.retry.max_attempts
        if self._agent.options.at_most_once:
            attempts_max = COUNT_MAX  # a record that was delivered and not accepted did not run
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
        """Refuse such records that wait: each becomes a dead letter when the record before it is settled, and it comes
        alone."""
        attempts = {record.offset: chunk.attempt(record.offset) for record in chains.followers()}
        self._stats.redelivered += sum(attempt > 1 for attempt in attempts.values())
        attempts_max = self._agent.options.retry.max_attempts
        chains.refuse([offset for offset, attempt in attempts.items() if attempt > attempts_max])

    def _unreadable_runs(self, part: Fetched, decoded: RawDecoded) -> list[tuple[list[RawRecord], int]]:
        """Make a record for each offset of damaged bytes, by delivery count; of very many, for the first ones. The
        others come again when these have their letters."""
        runs: list[tuple[list[RawRecord], int]] = []
        left = UNREADABLE_MAX
        for damage in decoded.corrupt:
            for acquired in part.acquired:
                first, last = max(damage[0], acquired.first), min(damage[1], acquired.last)
                told = min(last, first + left - 1)
                if first <= told:
                    left -= told - first + 1
                    runs.append(([*Unreadable(first, told, damage[2]).records], acquired.delivery_count))
                if max(first, told + 1) <= last:
                    rest = unrun_range(max(first, told + 1), last, delay_ms=UNREADABLE_DELAY_MS)
                    self._acks.acknowledge((part.tp, part.generation), rest)
        return runs
