"""Delayed releases where the servers have none: held with their locks renewed, or put into the retry topic.

    short delay, few others held, nobody far ahead   -> held and renewed, released when it is due
    anything else                                    -> the retry topic, confirmed, then accepted
    in the retry topic and not due yet               -> held and renewed; after a while written anew at its end

A broker counts everything between the first and the last record in flight against the record locks, so a held record
stops its partition once that many others have passed it. Hence at most a quarter of the locks is held, and a record
that is a quarter of the locks behind goes to the retry topic early. What cannot be produced stays held: a release
would cost an attempt, and the last one would lose the record.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from flowshare.agents.logs import where
from flowshare.agents.retry_topic import waiting
from flowshare.client.errors import RecordTooLarge, ServerError
from flowshare.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from flowshare.agents.agent import ShareAgent
    from flowshare.agents.chunk import Chunk
    from flowshare.agents.send import Produce
    from flowshare.clock import Clock, TimerHandle
    from flowshare.protocol.decoding import DecodedRecord
    from flowshare.protocol.messages import TopicPartition

logger = logging.getLogger("flowshare.agents")

HOLD_S: Final = 5.0
"""Longest delay that is waited for with the lock held."""
REWRITE_S: Final = 30.0
"""How long a record that is not due yet is held in the retry topic before it is written anew at the end."""
AGAIN_S: Final = 5.0
"""Pause before what could not be produced is tried again."""

Produced = Callable[[BaseException | None], None]


class _Held(NamedTuple):
    due_s: float
    number: int
    chunk: Chunk
    record: DecodedRecord
    then: Callable[[], None]
    movable: bool


class Delays:
    """What an agent holds without working on it; on the service loop.

    produce: hands a record to the producer. release, accept: acknowledge a record: (chunk, record, reason, delay).
    """

    def __init__(
        self,
        agent: ShareAgent,
        *,
        clock: Clock,
        produce: Callable[[Produce, Produced], None],
        release: Callable[[Chunk, DecodedRecord, str, float, str], None],
        accept: Callable[[Chunk, DecodedRecord, str, float, str], None],
    ) -> None:
        self._agent = agent
        self._clock = clock
        self._produce = produce
        self._release = release
        self._accept = accept
        self._heap: list[_Held] = []
        self._numbers = itertools.count()
        self._timer: TimerHandle | None = None
        self._waiting_s: dict[tuple[int, int], tuple[str, float, str]] = {}
        self._stopping = False
        self.locks = 0
        """Record locks of this process: the brokers' limit, shared with the other members."""
        self.producing = 0

    @property
    def parked(self) -> int:
        """Records in hand that no handler waits for."""
        return len(self._heap) + self.producing

    # --- delays ---------------------------------------------------------------------------------------------------

    def release(self, chunk: Chunk, record: DecodedRecord, reason: str, delay_s: float, counter: str) -> None:
        """Let a record come again after `delay_s` seconds."""
        few = sum(held.movable for held in self._heap) < self.locks // 4
        if delay_s <= HOLD_S and few and not self._stopping:
            self._waiting_s[id(chunk), record.offset] = (reason, delay_s, counter)
            self.hold(chunk, record, delay_s, lambda: self._due(chunk, record), movable=True)
        else:
            due_ms = self._clock.now_ms() + round(delay_s * 1000)
            self._put(chunk, record, due_ms, (reason, delay_s, counter))

    def hold(
        self, chunk: Chunk, record: DecodedRecord, delay_s: float, then: Callable[[], None], *, movable: bool = False
    ) -> None:
        """Keep a record's lock and call `then` after `delay_s` seconds. movable: it may go to the retry topic early."""
        due_s = self._clock.monotonic() + delay_s
        heapq.heappush(self._heap, _Held(due_s, next(self._numbers), chunk, record, then, movable))
        self._arm()

    def wait_in_topic(self, chunk: Chunk, record: DecodedRecord, due_ms: int, run: Callable[[], None]) -> None:
        """A record of the retry topic that is not due yet: `run` it when it is."""
        delay_s = (due_ms - self._clock.now_ms()) / 1000
        if delay_s <= REWRITE_S and not self._stopping:
            self.hold(chunk, record, max(0.0, delay_s), run)
        else:
            self.hold(chunk, record, REWRITE_S, lambda: self.rewrite(chunk, record, due_ms))

    def rewrite(self, chunk: Chunk, record: DecodedRecord, due_ms: int) -> None:
        """Put a waiting record at the end of the retry topic, as it is."""
        self._put(chunk, record, due_ms, None)

    def passed(self, tp: TopicPartition, last: int) -> None:
        """Records of the partition up to offset `last` are in flight: who is far behind makes way."""
        behind = last - self.locks // 4
        late = [held for held in self._heap if held.movable and held.record.offset < behind and held.chunk.tp == tp]
        if late:
            self._take_out(late)
            for held in late:
                self._move(held)

    def drain(self) -> None:
        """The worker stops: what is held goes to the retry topic, with the delay it has left."""
        self._stopping = True
        heap, self._heap = self._heap, []
        for held in heap:
            self._move(held)

    def stop(self) -> None:
        """Nothing more happens; what is held is released with the session."""
        self._stopping = True
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- helpers --------------------------------------------------------------------------------------------------

    def _due(self, chunk: Chunk, record: DecodedRecord) -> None:
        reason, delay_s, counter = self._waiting_s.pop((id(chunk), record.offset))
        self._release(chunk, record, reason, delay_s, counter)

    def _move(self, held: _Held) -> None:
        left_s = max(0.0, held.due_s - self._clock.monotonic())
        due_ms = self._clock.now_ms() + round(left_s * 1000)
        said = self._waiting_s.pop((id(held.chunk), held.record.offset), None)
        origin = held.chunk.origin(held.record.offset)
        if said is None and origin is not None:
            due_ms = origin.due_ms
        self._put(held.chunk, held.record, due_ms, said)

    def _put(self, chunk: Chunk, record: DecodedRecord, due_ms: int, said: tuple[str, float, str] | None) -> None:
        """Into the retry topic, confirmed, then accepted. `said` None: it was not run, it only waits on."""
        reason, delay_s, counter = said or ("waits for its retry", 0.0, "deferred")
        if record.offset in chunk.lost:
            self._accept(chunk, record, reason, delay_s, counter)  # somebody else has it: nothing is sent
            return
        letter = waiting(self._agent.group, chunk, record, due_ms, counted=said is not None)
        self.producing += 1

        def produced(error: BaseException | None) -> None:
            self.producing -= 1
            if error is None:
                self._accept(chunk, record, reason, delay_s, counter)
                return
            logger.error(
                "%s: its retry cannot be written to %s, it stays locked and goes on in %g s: %s",
                where(chunk.agent, chunk.topic, chunk.partition, chunk.place(record.offset), record.delivery_count),
                letter.topic,
                delay_s if said is not None and too_large(error) else AGAIN_S,
                error,
            )
            if said is not None and too_large(error) and not self._stopping:  # it never fits: its lock is kept instead
                self.hold(chunk, record, delay_s, lambda: self._release(chunk, record, reason, delay_s, counter))
            elif not self._stopping:
                self.hold(chunk, record, AGAIN_S, lambda: self._put(chunk, record, due_ms, said))

        self._produce(letter, produced)

    def _take_out(self, gone: list[_Held]) -> None:
        numbers = {held.number for held in gone}
        self._heap = [held for held in self._heap if held.number not in numbers]
        heapq.heapify(self._heap)

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
    """Whether a record was refused for its size, so that no other try can succeed."""
    return isinstance(error, RecordTooLarge) or (
        isinstance(error, ServerError) and error.code is ErrorCode.MESSAGE_TOO_LARGE
    )
