"""`SlotSender`: carries an owner's records into its slot's log, one Kafka batch each, and learns which are confirmed.

`Confirming` decides; this module carries requests and answers. A batch with unknown outcome is sent again unchanged,
producer id, epoch and sequence included, when all batches under way have come back, and with it all unanswered ones, in
their order; meanwhile no new batch is sent. These end the ownership:

- a sequence error of the first unanswered batch: the broker has forgotten the batches before, or another producer
  wrote;
- a newer producer epoch: another owner has begun to write;
- a refusal that will not pass;
- `deadline_s` without a confirmation.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from flowshare.client.errors import ClientError, ServerError, check
from flowshare.fleet.state.reading import SlotReading, SlotRecords, passes
from flowshare.log.base import LogError
from flowshare.protocol.batches import BatchBuilder
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import InitProducerIdRequest, ProduceRequest
from flowshare.protocol.messages.transactions import NOBODY, ProducerIdentity
from flowshare.slots.confirm import Ticket
from flowshare.slots.errors import SlotError
from flowshare.slots.records import CHUNK_BYTES, Record
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from flowshare.protocol.messages.base import FinishedRequest
    from flowshare.slots.confirm import Confirming

FENCED: Final = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    }
)
OUT_OF_STEP: Final = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})
TRANSACTION_TIMEOUT_MS: Final = 10_000
"""Timeout of a transactional id whose producer never opens a transaction; brokers may allow little."""
RECORD_BYTES_MAX: Final = CHUNK_BYTES + 4096

Written = asyncio.Future[None]
logger = logging.getLogger(__name__)


class SlotBatch:
    """A record on its way. `answers`: futures that wait for it. `size`: bytes of entries. `since_s`: when it was
    made."""

    __slots__ = ("answers", "records", "sent", "since_s", "size", "ticket")

    def __init__(self, ticket: Ticket, records: bytes, answers: Sequence[Written], size: int, since_s: float) -> None:
        self.ticket = ticket
        self.records = records
        self.answers = answers
        self.size = size
        self.since_s = since_s
        self.sent = False


class SlotSender:
    """The sender of one slot's records. All methods are called on one event loop."""

    def __init__(
        self,
        reading: SlotReading,
        confirming: Confirming,
        *,
        settled: Callable[[list[SlotBatch]], None],
        give_up: Callable[[str], None],
    ) -> None:
        """settled: called with confirmed batches, in order. give_up: called with the reason why nothing is confirmed
        any more."""
        self._reading = reading
        self._clock = reading.clock
        self._settings = reading.settings
        self._tell_settled = settled
        self._give_up = give_up
        self._loop = asyncio.get_running_loop()
        self._producer: ProducerIdentity = NOBODY
        self._sequence = 0
        self._open: deque[SlotBatch] = deque()
        self._flying: set[SlotBatch] = set()
        self._again = False
        self._failures = 0
        self._catching_up: asyncio.Task[None] | None = None
        self._watching = False
        self._ended = False
        self.confirming = confirming

    @property
    def waiting(self) -> int:
        """The number of batches that are not confirmed."""
        return len(self._open)

    @property
    def troubled(self) -> bool:
        """True if batches have to be sent again before any new one."""
        return self._again

    async def begin(self) -> None:
        """Become the producer with the newest epoch; no batch may be waiting. Raises StorageError."""
        name = f"{self._reading.topic}.{self._reading.slot}"
        request = InitProducerIdRequest(transactional_id=name, timeout_ms=TRANSACTION_TIMEOUT_MS)
        answer = await self._reading.tried(request)
        self._producer, self._sequence = answer.producer, 0

    def add(self, record: Record, answers: Sequence[Written], size: int) -> None:
        """Send a record as soon as there is room for it."""
        ticket = self.confirming.sent(record)
        producer_id, epoch = self._producer
        builder = BatchBuilder(size_max=RECORD_BYTES_MAX, producer=(producer_id, epoch, self._sequence))
        builder.add(ticket.key, ticket.value, timestamp_ms=self._clock.now_ms())
        self._sequence += 1
        self._open.append(SlotBatch(ticket, builder.build(), answers, size, self._clock.monotonic()))
        self._transmit()
        if not self._watching:
            self._watch()

    def read(self, found: SlotRecords) -> None:
        """Take in records that the log's follower found; those that do not follow the known ones are ignored."""
        confirming, confirmed = self.confirming, list[Ticket]()
        if found.start > confirming.reader.position:
            return
        try:
            for record in found.records:
                ticket = confirming.read(*record)
                if ticket is not None:
                    confirmed.append(ticket)
        except SlotError as error:
            confirming.give_up(str(error))
        confirming.read_up_to(found.position)
        self._settle(confirmed + confirming.settle())

    def end(self, reason: str) -> list[SlotBatch]:
        """Send nothing any more; return the batches that were not confirmed."""
        self.confirming.give_up(reason)
        self._ended = True
        left, self._open = list(self._open), deque()
        return left

    async def closed(self) -> None:
        """Wait until nothing runs any more; call after `end`."""
        await cancelled(self._catching_up)

    # --- there --------------------------------------------------------------------------------------------------

    def _transmit(self) -> None:
        for batch in tuple(self._open):
            if self._again or self._ended or len(self._flying) >= self._settings.flying_max:
                return
            if not batch.sent:
                batch.sent = True
                self._flying.add(batch)
                request = ProduceRequest(topic=self._reading.topic, partition=self._reading.slot, records=batch.records)
                self._reading.kafka.begin(request, partial(self._told, batch))

    def _told(self, batch: SlotBatch, finished: FinishedRequest) -> None:
        offset: int | None = None
        problem: Exception | None = None
        try:
            answer = finished.result()
            if answer.error is not ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                check(answer.error, answer.message, f"writing to {self._reading.where}")
                offset = answer.base_offset if answer.base_offset >= 0 else None
        except (OSError, ClientError) as error:
            problem = error
        except Exception as error:
            logger.exception("a write failed unexpectedly: %s", self._reading.where)
            self.confirming.give_up(f"{type(error).__name__}: {error}")
        self._flying.discard(batch)
        self._back(batch, offset, problem)

    # --- and back -----------------------------------------------------------------------------------------------

    def _back(self, batch: SlotBatch, offset: int | None, problem: Exception | None) -> None:
        """Handle the result of a batch that was sent."""
        if self._ended:
            return
        if self.confirming.lost is not None:
            self._give_up(self.confirming.lost)
            return
        if problem is None:
            self._failures = 0
            self._settle(self.confirming.answered(batch.ticket, offset))
        elif batch in self._open:  # else the batch was read in the log meanwhile
            self._failed(batch, problem)
        if self._again and not self._flying and not self._ended:
            self._send_again_later()
        self._transmit()

    def _failed(self, batch: SlotBatch, problem: Exception) -> None:
        """Handle a batch that was refused, or whose outcome is unknown."""
        if isinstance(problem, ServerError) and self._is_final(batch, problem):
            self._give_up(str(problem))
            return
        if not self._again:
            logger.warning("what was written is sent again: %s %s", problem, self._reading.where)
        self._again = True

    def _is_final(self, batch: SlotBatch, problem: ServerError) -> bool:
        if problem.code in OUT_OF_STEP:
            return batch is next((one for one in self._open if not one.ticket.found), None)
        return problem.code in FENCED or not passes(problem)

    def _send_again_later(self) -> None:
        self._failures += 1
        self._clock.call_later(self._settings.backoff.after(self._failures), self._send_again)

    def _send_again(self) -> None:
        """Send all unanswered batches again, in order."""
        if self._ended:
            return
        self._again = False
        for batch in self._open:
            if not batch.ticket.found:
                batch.sent = False
        self._transmit()
        self._settle([])

    def _settle(self, tickets: list[Ticket]) -> None:
        """Report the confirmed batches, and look for missing records."""
        if self._ended:
            return
        confirmed = [self._open.popleft() for _ in tickets]
        assert [batch.ticket for batch in confirmed] == tickets, "records are confirmed in their order"
        self._tell_settled(confirmed)
        if self.confirming.lost is not None:
            self._give_up(self.confirming.lost)
        elif self.confirming.wanted and self._catching_up is None:
            self._catching_up = self._loop.create_task(self._catch_up())

    async def _catch_up(self) -> None:
        """Read the log until no record is missing before the answered ones."""
        try:
            while self.confirming.wanted and not self._ended:
                before = self.confirming.reader.position
                self.read(await self._reading.read(before))
                if self.confirming.reader.position == before:
                    await self._clock.sleep(self._settings.backoff.first)
        except LogError as error:
            self._give_up(str(error))
        finally:
            self._catching_up = None

    def _watch(self) -> None:
        """Give the slot up when the oldest record has waited for too long."""
        self._watching = bool(self._open) and not self._ended
        if not self._watching:
            return
        left_s = self._open[0].since_s + self._settings.deadline_s - self._clock.monotonic()
        if left_s <= 0:
            self._give_up(f"a write was not confirmed for {self._settings.deadline_s:g} s")
        else:
            self._clock.call_later(left_s, self._watch)
