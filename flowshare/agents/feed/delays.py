"""Delayed releases for servers without them: records are held with their locks renewed, or put into the retry topic.

    short delay, few others held, nobody far ahead   -> held and renewed, released when it is due
    anything else                                    -> the retry topic, confirmed, then accepted
    in the retry topic and not due yet               -> held and renewed; after a while written anew at its end
    there, of a topic that this agent does not read  -> the same, due or not: another agent or version reads it
    that for a day after it was due, and an hour     -> a dead letter; without a topic for them the same, on and on

A broker counts all records between the first and the last one in flight against the record locks, so a held record
stops its partition once that many others have passed it. Hence at most a quarter of the locks is held, and a record
that is a quarter of the locks behind goes to the retry topic early. A copy that cannot be produced keeps its record
held: a release would cost an attempt, and at the last one the record would be lost. `Delays` has the held records,
`RetryTopicReader` reads the retry topic.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from flowshare.agents.feed.acknowledgements import ACCEPT, RELEASE
from flowshare.agents.feed.locks import HeldRecords
from flowshare.agents.handler.agent import ShareAgent
from flowshare.agents.handler.chunk import Chunk
from flowshare.agents.handler.outcomes import Outcome, OutcomeKind
from flowshare.agents.handler.retry_headers import RetryOrigin, origin_of, retry_topic, waiting
from flowshare.agents.handler.send import ProducerRecord
from flowshare.client.errors import RecordTooLarge, ServerError
from flowshare.client.session.member import Fetched
from flowshare.clock import Clock, TimerHandle
from flowshare.protocol.decoding import DecodedRecord, RawRecord
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import TopicPartition

if TYPE_CHECKING:
    from flowshare.agents.feed.completion import Completion

logger = logging.getLogger("flowshare.agents")

HOLD_S: Final = 5.0
"""Longest delay in seconds for which a record is held."""
REWRITE_S: Final = 30.0
"""Seconds that a record of the retry topic is held before its due time, then it is written anew at the topic's end."""
AGAIN_S: Final = 5.0
"""Seconds until a copy that could not be produced is tried again."""
OTHERS_S: Final = (5.0, 15.0)
"""Least and longest seconds for which a due record of another agent is held, then it is written anew."""

UNREAD_S: Final = 86_400.0
"""Seconds after its due time from which on a record of another agent becomes a dead letter."""
ROUNDS: Final = 240
"""Times that such a record is passed on before that, each after the longest of OTHERS_S: an hour in all. Its agent may
run, and have been kept from it for that day: the brokers were away, or all of the group's processes."""

Produced = Callable[[BaseException | None], None]
DELIVERIES_MAX: Final = 2
"""Most deliveries of a waiting record; then it is written anew."""
Run = tuple[list["RawRecord"], int]
Said = tuple[str, str, float]
"""Counter, reason and delay of a release."""
WAITS: Final[Said] = ("deferred", "waits for its retry", 0.0)


class _Held(NamedTuple):
    due_s: float
    number: int
    chunk: Chunk
    record: DecodedRecord
    then: Callable[[], None]
    said: Said | None
    """The release's counter, reason and delay; None: the record may not go to the retry topic early."""


class Delays:
    """Records that an agent holds until their delay ends, without working on them; on the service loop.

    produce: hands the copy of a record to the producer. acknowledge: acknowledges a record, with a type and the fields
    of `Said`.
    """

    def __init__(
        self,
        agent: ShareAgent,
        *,
        clock: Clock,
        produce: Callable[[Chunk, DecodedRecord, ProducerRecord, Produced], None],
        acknowledge: Callable[[Chunk, DecodedRecord, bytes, str, str, float], None],
        partitions: Callable[[str], int] = lambda _: 1,
    ) -> None:
        """partitions: returns a topic's number of partitions; 1: it is not known."""
        self._agent = agent
        self._partitions = partitions
        self._clock = clock
        self._produce = produce
        self._acknowledge = acknowledge
        self._heap: list[_Held] = []
        self._numbers = itertools.count()
        self._timer: TimerHandle | None = None
        self._stopping = False
        self.locks = 0
        """Record locks of this process: its share of the brokers' limit, which all members share."""
        self.producing = 0

    @property
    def waiting(self) -> int:
        """Number of held records that no handler waits for."""
        return len(self._heap) + self.producing

    # --- delays ---------------------------------------------------------------------------------------------------

    def release(self, chunk: Chunk, record: DecodedRecord, said: Said) -> None:
        """Release a record so that it comes again after its delay."""
        delay_s = said[-1]
        few = sum(held.said is not None for held in self._heap) < self.locks // 4
        if delay_s <= HOLD_S and few and not self._stopping:
            self.hold(chunk, record, delay_s, lambda: self._acknowledge(chunk, record, RELEASE, *said), said)
        else:
            self._put(chunk, record, self._clock.now_ms() + round(delay_s * 1000), said)

    def hold(
        self, chunk: Chunk, record: DecodedRecord, delay_s: float, then: Callable[[], None], said: Said | None = None
    ) -> None:
        """Keep a record's lock and call `then` after `delay_s` seconds."""
        due_s = self._clock.monotonic() + delay_s
        heapq.heappush(self._heap, _Held(due_s, next(self._numbers), chunk, record, then, said))
        self._arm()

    def wait_in_topic(self, chunk: Chunk, record: DecodedRecord, due_ms: int, run: Callable[[], None]) -> None:
        """Let a retry topic's record that is not due wait, and `run` it when it is due. One that comes while the worker
        stops is left to the others."""
        if self._stopping:
            self._acknowledge(chunk, record, RELEASE, *WAITS)
            return
        delay_s = (due_ms - self._clock.now_ms()) / 1000
        if delay_s <= REWRITE_S:
            self.hold(chunk, record, max(0.0, delay_s), run)
        else:
            self.hold(chunk, record, REWRITE_S, lambda: self.rewrite(chunk, record, due_ms))

    def rewrite(
        self, chunk: Chunk, record: DecodedRecord, due_ms: int, *, elsewhere: bool = False, rounds: int = 0
    ) -> None:
        """Write a waiting record anew at the end of the retry topic, unchanged but for `rounds` more. elsewhere: in the
        next partition, which another member may read; its key would bring it to the same one again."""
        self._put(chunk, record, due_ms, None, elsewhere=elsewhere, rounds=rounds)

    def passed(self, tp: TopicPartition, last: int) -> None:
        """Move records that are far behind to the retry topic. last: highest offset of the partition in flight."""
        behind = last - self.locks // 4
        late = [held for held in self._heap if held.said and held.record.offset < behind and held.chunk.tp == tp]
        if late:
            numbers = {held.number for held in late}
            self._heap = [held for held in self._heap if held.number not in numbers]
            heapq.heapify(self._heap)
            for held in late:
                self._move(held)

    def drain(self) -> None:
        """Move all held records to the retry topic, with the rest of their delay, as the worker stops."""
        self._stopping = True
        heap, self._heap = self._heap, []
        for held in heap:
            self._move(held)

    def stop(self) -> None:
        """Stop; held records are released with the session."""
        self._stopping = True
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- helpers --------------------------------------------------------------------------------------------------

    def _move(self, held: _Held) -> None:
        left_s = max(0.0, held.due_s - self._clock.monotonic())
        due_ms = self._clock.now_ms() + round(left_s * 1000)
        origin = held.chunk.origin(held.record.offset)
        if held.said is None and origin is not None:
            due_ms = origin.due_ms
        self._put(held.chunk, held.record, due_ms, held.said)

    def _put(
        self,
        chunk: Chunk,
        record: DecodedRecord,
        due_ms: int,
        said: Said | None,
        *,
        elsewhere: bool = False,
        rounds: int = 0,
    ) -> None:
        """Write into the retry topic, and accept when that is confirmed. said: None: the record did not run, it only
        waits on."""
        waits = said or WAITS
        if record.offset in chunk.lost:
            self._acknowledge(chunk, record, ACCEPT, *waits)  # another member has the record: nothing is sent
            return
        letter = waiting(self._agent.group, chunk, record, due_ms, counted=said is not None, rounds=rounds)
        if elsewhere and (count := self._partitions(letter.topic)) > 1:
            letter = letter._replace(partition=(chunk.tp.partition + 1) % count)
        self.producing += 1

        def produced(error: BaseException | None) -> None:
            self.producing -= 1
            if error is None:
                self._acknowledge(chunk, record, ACCEPT, *waits)
                return
            keeps = None if said is None or not too_large(error) else said  # a too large record keeps its lock instead
            logger.error(
                "%s: its retry cannot be written to %s, it stays locked and goes on in %g s: %s",
                chunk.where(record.offset),
                letter.topic,
                AGAIN_S if keeps is None else keeps[-1],
                error,
            )
            if keeps is not None and not self._stopping:
                self.hold(chunk, record, keeps[-1], lambda: self._acknowledge(chunk, record, RELEASE, *keeps))
            elif not self._stopping:
                again = partial(self._put, chunk, record, due_ms, said, elsewhere=elsewhere, rounds=rounds)
                self.hold(chunk, record, AGAIN_S, again)

        self._produce(chunk, record, letter, produced)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._heap and not self._stopping:
            wait_s = max(0.0, self._heap[0].due_s - self._clock.monotonic())
            self._timer = self._clock.call_later(wait_s, self._ring)

    def _ring(self) -> None:
        self._timer = None
        now_s = self._clock.monotonic() + 1e-6
        while self._heap and self._heap[0].due_s <= now_s:
            heapq.heappop(self._heap).then()
        self._arm()


def too_large(error: BaseException) -> bool:
    """Tell if a record was refused for its size, so that no other try can succeed."""
    return isinstance(error, RecordTooLarge) or (
        isinstance(error, ServerError) and error.code in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)
    )


class RetryTopicReader:
    """Reader of one agent's retry topic; on the service loop."""

    def __init__(
        self,
        agent: ShareAgent,
        completion: Completion,
        held: HeldRecords,
        delays: Delays,
        feed: Callable[[list[Chunk]], None],
        *,
        clock: Clock,
    ) -> None:
        """feed: hands chunks to the pool."""
        self.topic = retry_topic(agent.group)
        self._agent = agent
        self._completion = completion
        self._held = held
        self._delays = delays
        self._feed = feed
        self._clock = clock
        self._told: set[str] = set()
        """Topics of others whose records have been told of."""

    def chunks(self, part: Fetched, runs: Sequence[Run], now: float) -> list[Chunk]:
        """Return chunks of due records, one for each partition of origin; hold the others."""
        due: dict[object, tuple[list[Run], dict[int, RetryOrigin]]] = {}
        now_ms = self._clock.now_ms()
        for raws, count in runs:
            for raw in raws:
                origin = origin_of(raw.headers)
                if origin is None:
                    self._stray(self._chunk(part, [([raw], count)], {}, now), raw)
                elif origin.due_ms > now_ms or origin.topic not in self._agent.topics:
                    chunk = self._chunk(part, [([raw], count)], {raw.offset: origin}, now)
                    self._hold(chunk, raw, origin, again=count > DELIVERIES_MAX)
                else:
                    found, origins = due.setdefault(origin.place, ([], {}))
                    found.append(([raw], count))
                    origins[raw.offset] = origin
        return [self._chunk(part, found, origins, now) for found, origins in due.values()]

    def _chunk(self, part: Fetched, runs: Sequence[Run], origins: dict[int, RetryOrigin], now: float) -> Chunk:
        topic = next((origin.topic for origin in origins.values()), part.topic)
        known = topic in self._agent.topics
        chunk = Chunk(
            self._agent.name,
            topic,
            part.tp,
            runs,
            decode=self._agent.decoder(topic) if known else None,
            decode_key=self._agent.key_decoder(topic) if known else None,
            deadline=part.lock_deadline,
            generation=part.generation,
            arrived=now,
            origins=origins or None,
            group=self._agent.group,
        )
        chunk.attempts = {offset: chunk.attempt(offset) for offset in origins}
        return chunk

    def _hold(self, chunk: Chunk, raw: RawRecord, origin: RetryOrigin, *, again: bool) -> None:
        """Hold a record, its lock renewed, from all handlers until it is due; one of another agent, until it is written
        anew, unless that was done for long enough: then it is a dead letter.

        again: write it anew now; workers that died while it waited have nearly used up its deliveries.
        """
        chunk.records.clear()
        self._held.add(chunk)
        record = chunk.whole(raw)
        foreign = origin.topic not in self._agent.topics
        overdue = foreign and self._clock.now_ms() - origin.due_ms >= UNREAD_S * 1000
        if overdue and origin.rounds >= ROUNDS and self._agent.dead_letter_topic is not None:
            self._completion.complete(chunk, record, Outcome(OutcomeKind.DEAD, None, self._unread(origin)))
            return
        if foreign:
            self._tell(origin.topic)

        def run() -> None:
            if foreign:
                self._delays.rewrite(chunk, record, origin.due_ms, elsewhere=True, rounds=int(overdue))
            elif raw.offset in chunk.lost:
                self._held.decided(chunk, [raw.offset])
            else:
                chunk.records.append(raw)
                self._feed([chunk])

        if again:
            self._delays.rewrite(chunk, record, origin.due_ms, elsewhere=foreign)
        else:
            self._delays.wait_in_topic(chunk, record, self._left_ms(origin) if foreign else origin.due_ms, run)

    def _left_ms(self, origin: RetryOrigin) -> int:
        """Return when a record of another agent is written anew: when it is due; if that is over, the later the longer
        nobody has run it."""
        now_ms = self._clock.now_ms()
        least_s, most_s = OTHERS_S
        wait_s = min(max((now_ms - origin.due_ms) / 1000, least_s), most_s)
        return max(origin.due_ms, now_ms + round(wait_s * 1000))

    def _unread(self, origin: RetryOrigin) -> str:
        hours = (self._clock.now_ms() - origin.due_ms) // 3_600_000
        return (
            f"its retry was due {hours} h ago, and no agent of group {self._agent.group} that reads {origin.topic} has "
            "run it: run such an agent, and replay it then (flowshare dlq replay)"
        )

    def _tell(self, topic: str) -> None:
        if topic not in self._told:
            self._told.add(topic)
            logger.warning(
                "agent=%s: records of %s wait in %s for their retry, and this agent does not read %s: they are left to "
                "the group's agents that do, and wait until one of these runs%s",
                self._agent.name,
                topic,
                self.topic,
                topic,
                "" if self._agent.dead_letter_topic is None else "; after a day they become dead letters",
            )

    def _stray(self, chunk: Chunk, raw: RawRecord) -> None:
        """End a record of which nobody can tell what it is a copy of."""
        chunk.records.clear()
        self._held.add(chunk)
        reason = (
            "it waits for no retry: its flowshare.retry.* headers are missing or cannot be read; only flowshare writes "
            "to a retry topic"
        )
        self._completion.complete(chunk, chunk.whole(raw), Outcome(OutcomeKind.DEAD, None, reason))
