"""Exactly-once outcomes: an accept or reject goes to its leader in one step with its outputs (SG-19).

A *unit* is settled together: one record and its outputs, or a batch's accepted records and its result. Units of one
partition and generation (`Key`) gather while a settle of them is under way; then all of them leave in one settle,
within bounds. Invariants:

1. The outputs of a unit are only ever sent with the accept (reject) of all its records, and never otherwise. 2. A unit
is in one place: it waits, is under way, or has ended. A unit under way ends by its answer, once. 3. A unit is sent
again only after an answer that says that nothing of it was written. 4. Each wait has an end: a unit whose outputs are
refused for a reason that may pass is tried for `delivery_timeout` and then handled as outputs that cannot be produced.
5. Locks of units under way are not renewed (the leader keeps their records); locks of waiting units are.

    state      event                                              next
    waits      its key has nothing under way, its time has come   under way
    waits      one of its records is lost                         ended: the others go back
    under way  written                                            ended: accepted (dead-lettered)
    under way  some of its records are not held any more          ended: lost; the others of a batch go back
    under way  nothing written, for another unit's sake           waits
    under way  its topic is not known there                       waits for it to be looked up, once; then failed
    under way  a batch with its records is too large              waits for smaller ones; alone in it: failed
    under way  an output with its records is refused              waits to be settled alone; alone already: failed
    under way  the server cannot do it now                        waits, longer each time; after its time: failed
    under way  no answer, or its outcome is not known             ended: unknown; it comes again if it was not written
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from flowshare.agents.feed.acknowledgements import ACCEPT, LOST, NOT_DONE, Key
from flowshare.agents.feed.settle_units import Unit, acks_of, attempt_of
from flowshare.backoff import USUAL
from flowshare.client.errors import ClientError, DeliveryTimeout, RecordTooLarge, ServerError
from flowshare.client.producer.message import Message
from flowshare.client.producer.outputs import BATCH_BYTES, OutputBatches, OutputFor
from flowshare.protocol.errors import ErrorCode
from flowshare.share.types import AckRange
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from flowshare.agents.feed.ack_sender import AckSender
    from flowshare.agents.feed.members import SettlingMember
    from flowshare.agents.feed.spans import AckSpans
    from flowshare.agents.handler.chunk import Chunk
    from flowshare.agents.handler.send import ProducerRecord
    from flowshare.agents.run.stats import AgentStats
    from flowshare.client.producer.channel import TopicPlace
    from flowshare.client.producer.producer import Producer
    from flowshare.client.session.ranges import AckResult
    from flowshare.clock import Clock, TimerHandle
    from flowshare.protocol.decoding import DecodedRecord, RawRecord
    from flowshare.protocol.messages import RefusedOutput

logger = logging.getLogger("flowshare.agents")

SETTLE_RECORDS_MAX: Final = 5_000
ORDERED_MAX: Final = 64
"""Most settles of one key under way with outputs in order, but for a settle that all others wait for."""
RECORDS_MAX: Final = 50_000
"""Most records whose handlers have ended and that are not settled."""
ORDERED_RECORDS_MAX: Final = 5_000
"""The same limit where records wait for their turn."""
SETTLE_BYTES_MAX: Final = 1024 * 1024
"""Most bytes of outputs of one settle; a single unit may have more."""
UNIT_BYTES_MAX: Final = 32 * 1024 * 1024
"""Most bytes of outputs of one unit: they cross the socket, and are written, in one piece."""
PLACES_MAX: Final = 4_000
"""Most outputs of one settle; one unit has no more partitions than that."""
BATCH_BYTES_MIN: Final = 1_024
"""Size in bytes below which a refused batch is not made smaller: each of its owners is settled alone."""
TWICE: Final = "its lock had lapsed, and the record was acquired again before its outputs were written"
GONE: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


class _Waiting:
    """Units of one key that wait to be settled.

    under_way: first offset of each settle under way; at most one, unless outputs are in order.
    """

    __slots__ = ("under_way", "units")

    def __init__(self) -> None:
        self.units: deque[Unit] = deque()
        self.under_way: set[int] = set()

    def may_begin(self, now_s: float) -> bool:
        """Tell if the first unit may be sent, for outputs in order.

        A unit that comes before all settles under way may always be sent once it is due, whatever their number.
        """
        first = self.units[0]
        return len(self.under_way) < ORDERED_MAX or (first.first < min(self.under_way) and first.due_s <= now_s)


Built = list[OutputFor[Unit]]
Sized = tuple[str, Message, int]
"""An output: its topic, and its bytes at most."""
Told = Callable[["list[AckResult]"], None]
Decided = Callable[["Chunk", "Sequence[DecodedRecord | RawRecord]", str], None]


class Settler:
    """Settler of one agent's units; on the service loop."""

    def __init__(
        self,
        agent: str,
        *,
        clock: Clock,
        producer: Producer,
        acks: AckSender,
        stats: AgentStats,
        on_decided: Decided,
        ordered: bool = False,
        spans: AckSpans | None = None,
    ) -> None:
        """on_decided: called with the records of units that have ended, before their outcome is counted.

        ordered: outputs become visible in the order of the partition's offsets: a settle waits at its server for all
        offsets before it. So each settle has one run of offsets, many settles are under way, and the first one can
        always be sent: no two settles wait for each other.
        """
        self._ordered = ordered
        self._spans = spans
        self.on_added: Callable[[Unit], object] | None = None
        """Called with each new unit."""
        self._agent = agent
        self._clock = clock
        self._producer = producer
        self._acks = acks
        self._stats = stats
        self._on_decided = on_decided
        self._member: SettlingMember | None = None
        self._waiting: dict[Key, _Waiting] = {}
        self._batch_bytes: dict[str, int] = {}
        self._settles = 0
        self.records = 0
        """Number of records of units that have not ended: no handler waits for them."""
        self._bytes = 0
        self._turn_due = False
        self._timer: TimerHandle | None = None
        self._lookups: dict[str, asyncio.Task[None]] = {}
        self._stopped = False

    def start(self, member: SettlingMember) -> None:
        """Begin to settle over this member."""
        self._member = member
        self._soon()

    async def stop(self) -> None:
        """End; waiting units are left to the closing of the session."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        await cancelled(*self._lookups.values())

    @property
    def full(self) -> bool:
        """True if so many records or bytes are unsettled that nothing more should be fetched."""
        records_max = ORDERED_RECORDS_MAX if self._ordered else RECORDS_MAX
        return self.records >= records_max or self._bytes >= self._producer.settings.buffer_memory

    def add(self, unit: Unit) -> None:
        """Settle a unit; other units of this turn of the loop go with it."""
        self._count(unit, 1)
        if self.on_added is not None:
            self.on_added(unit)
        unit.until_s = self._clock.monotonic() + self._producer.settings.delivery_timeout
        self._at(unit.key).units.append(unit)
        self._soon()

    def _count(self, unit: Unit, sign: int) -> None:
        self.records += sign * len(unit.records)
        for one in unit.outputs:
            if one.value is not None:
                self._bytes += sign * len(one.value)

    def _at(self, key: Key) -> _Waiting:
        found = self._waiting.get(key)
        if found is None:
            found = self._waiting[key] = _Waiting()
        return found

    def _soon(self) -> None:
        if not self._turn_due and self._member is not None and not self._stopped:
            self._turn_due = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_due = False
        if self._stopped:
            return
        due_s: float | None = None
        for key, waiting in list(self._waiting.items()):
            if waiting.under_way and not (self._ordered and waiting.units):
                continue
            if not waiting.units:
                del self._waiting[key]
                continue
            later_s = self._begin_runs(key, waiting) if self._ordered else self._begin(key, waiting)
            if later_s is not None:
                due_s = later_s if due_s is None else min(due_s, later_s)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due_s is not None:
            self._timer = self._clock.call_later(max(0.0, due_s - self._clock.monotonic()), self._soon)

    # --- sending ------------------------------------------------------------------------------------------------

    def _begin_runs(self, key: Key, waiting: _Waiting) -> float | None:
        """Begin settles as `_begin`, run by run."""
        waiting.units = deque(sorted(waiting.units, key=lambda unit: unit.first))
        left = len(waiting.units) + 1
        while waiting.units and len(waiting.units) < left and waiting.may_begin(self._clock.monotonic()):
            left = len(waiting.units)
            self._begin(key, waiting)
        now_s = self._clock.monotonic()
        return min((unit.due_s for unit in waiting.units if unit.due_s > now_s), default=None)

    def _begin(self, key: Key, waiting: _Waiting) -> float | None:
        """Send the units that can be sent; return the next due time, if known."""
        batches = OutputBatches[Unit](
            _Known(self._producer),
            settings=self._producer.settings,
            batch_bytes=self._batch_bytes,
            now_ms=self._clock.now_ms(),
            spread=self._settles,
        )
        units, due_s = self._pick(waiting, batches)
        if not units:
            return due_s
        offsets = sorted([record.offset for unit in units for _, record in unit.records])
        if len(set(offsets)) < len(offsets):
            self._blame(units, ClientError(TWICE), waiting)
            self._soon()
            return None
        self._settles += 1
        for unit in units:
            for chunk, record in unit.records:
                chunk.settling.add(record.offset)
        waiting.under_way.add(offsets[0])
        assert self._member is not None
        self._stats.acknowledgements += 1
        try:
            built = batches.build()
            acks = acks_of(units, offsets)
            told: Told = partial(self._told, key, units, built, acks)
            if self._spans is not None:
                told = self._with_span(self._spans, key, units, acks, told)
            outputs = [one.output for one in built]
            self._member.begin_settle(key[0], acks, outputs, told, generation=key[1])
        except Exception as error:
            logger.exception("agent=%s: a settle could not be sent", self._agent)
            self._over(waiting, units)
            self._blame(units, ClientError(f"a settle could not be sent: {error!r}"), waiting)
            self._soon()
        return None

    def _with_span(self, spans: AckSpans, key: Key, units: list[Unit], acks: list[AckRange], told: Told) -> Told:
        """Return `told` with a span that ends at the answer; a settle that is never answered has no span."""
        settling = spans.begin_settle(key[0], units, acks, sum(len(unit.outputs) for unit in units))

        def answered(results: list[AckResult]) -> None:
            spans.settled(settling, results[0])
            told(results)

        return answered

    def _pick(self, waiting: _Waiting, batches: OutputBatches[Unit]) -> tuple[list[Unit], float | None]:
        """Return the units that are sent now, their outputs packed; and the next due time, if none can be."""
        now_s = self._clock.monotonic()
        units: list[Unit] = []
        later: list[Unit] = []
        due_s: float | None = None
        records = 0
        topics: set[str] = set()
        while waiting.units:
            unit = waiting.units.popleft()
            if unit.has_lost():
                self._lost(unit, ())
                continue
            if unit.trouble is not None and unit.trouble.due_s > now_s:
                later.append(unit)
                due_s = unit.trouble.due_s if due_s is None else min(due_s, unit.trouble.due_s)
                continue
            try:
                outputs = self._outputs(unit, topics, batches)
            except Exception as error:  # noqa: BLE001 - whatever it is, no other unit may stay behind for it
                self._failed(unit, error)
                continue
            if outputs is None:
                later.append(unit)
                continue
            full = records + len(unit.records) > SETTLE_RECORDS_MAX or batches.count + len(unit.outputs) > PLACES_MAX
            full = full or (self._ordered and bool(units) and unit.first != units[-1].last + 1)
            if units and (unit.alone or units[0].alone or full or batches.bytes >= SETTLE_BYTES_MAX):
                waiting.units.appendleft(unit)
                break
            try:
                for topic, message, size in outputs:
                    batches.add(unit, topic, message, size)
            except Exception as error:  # noqa: BLE001 - as above
                # Nobody knows what of it is in the batches: the units before it are packed anew.
                self._failed(unit, error)
                waiting.units.extendleft(reversed(units))
                self._soon()
                units = []
                break
            units.append(unit)
            records += len(unit.records)
        waiting.units.extendleft(reversed(later))
        return units, due_s

    def _outputs(self, unit: Unit, known: set[str], batches: OutputBatches[Unit]) -> Sequence[Sized] | None:
        """Return a unit's outputs with their sizes; None: a topic of them is being looked up (`_know`).

        Raises: RecordTooLarge, ServerError, and what a value raises that is no part of a record.
        """
        if not self._know(unit, known):
            return None
        sized = [(one.topic, message := _message(one), batches.check(one.topic, message)) for one in unit.outputs]
        size = sized[0][2] if len(sized) == 1 else sum(size for _, _, size in sized)
        if size > UNIT_BYTES_MAX or len(sized) > PLACES_MAX:
            raise _too_much(len(sized), size)
        return sized

    def _know(self, unit: Unit, known: set[str]) -> bool:
        """Tell if all of a unit's topics are known, and look up those that are not.

        known: topics found to be known; the method adds to it, and takes out those that may have grown.
        """
        unknown = self._forget_grown(unit)
        known -= unknown
        for one in unit.outputs:
            if one.topic not in known:
                (unknown if self._producer.known_topic(one.topic) is None else known).add(one.topic)
        for topic in unknown:
            if topic not in self._lookups:
                task = asyncio.create_task(self._look_up(topic), name=f"topic {topic} of {self._agent}")
                self._lookups[topic] = task
        return not unknown

    def _forget_grown(self, unit: Unit) -> set[str]:
        """Forget topics without a partition that an output names, once for each unit, and return them."""
        grown: set[str] = set()
        for one in unit.outputs:
            place = None if one.partition is None else self._producer.known_topic(one.topic)
            if place is not None and (one.partition or 0) >= place.partitions:
                grown.add(one.topic)
        if not grown or unit.in_trouble().looked_up:
            return set()
        unit.in_trouble().looked_up = True
        for topic in grown:
            self._producer.forget_topic(topic)
        return grown

    async def _look_up(self, topic: str) -> None:
        error: BaseException | None = None
        try:
            await self._producer.topic(topic)
        except Exception as caught:  # noqa: BLE001 - whatever it is, nobody else ends these units
            error = caught
        finally:
            del self._lookups[topic]
        if error is not None:
            for waiting in list(self._waiting.values()):
                units, waiting.units = waiting.units, deque[Unit]()
                for unit in units:
                    if any(one.topic == topic for one in unit.outputs):
                        self._failed(unit, error)
                    else:
                        waiting.units.append(unit)
        self._soon()

    # --- answers ------------------------------------------------------------------------------------------------

    def _told(self, key: Key, units: list[Unit], built: Built, acks: list[AckRange], results: list[AckResult]) -> None:
        """Take in the answer to a settle. Must not raise."""
        waiting = self._at(key)
        self._over(waiting, units)
        [result] = results
        code = result.error
        if code is ErrorCode.NONE:
            self._written(units, acks, result)
        elif code is ErrorCode.INVALID_RECORD_STATE:
            self._not_held(units, acks, result, waiting)
        elif result.outputs:
            self._refused(units, built, result.outputs, waiting)
        elif code in NOT_DONE:
            error = ServerError(code, result.message, about=f"settling {result.topic}-{result.partition}")
            self._back_off(units, error, waiting)
        elif code is ErrorCode.NETWORK_EXCEPTION or code is ErrorCode.UNKNOWN_SERVER_ERROR or code in LOST:
            self._ended(units, acks, result)
        else:
            error = ServerError(code, result.message, about=f"settling {result.topic}-{result.partition}")
            self._blame(units, error, waiting)
        self._soon()

    def _over(self, waiting: _Waiting, units: list[Unit]) -> None:
        waiting.under_way.discard(min(offset for unit in units for offset in unit.offsets()))
        for unit in units:
            for chunk, record in unit.records:
                chunk.settling.discard(record.offset)

    def _written(self, units: list[Unit], acks: list[AckRange], result: AckResult) -> None:
        for unit in units:
            if unit.ending.types == ACCEPT:
                self._stats.sent += len(unit.outputs)
            if unit.ending.done is not None:
                unit.ending.done()
        self._ended(units, acks, result)

    def _ended(self, units: list[Unit], acks: list[AckRange], result: AckResult) -> None:
        """Count units that have their outcome."""
        ended: dict[tuple[Chunk, str], list[DecodedRecord | RawRecord]] = {}
        for unit in units:
            self._count(unit, -1)
            for chunk, record in unit.records:
                ended.setdefault((chunk, unit.ending.reason), []).append(record)
        for (chunk, reason), records in ended.items():
            self._on_decided(chunk, records, reason)
        self._acks.count(acks, result._replace(refused=(), outputs=()))

    def _not_held(self, units: list[Unit], acks: list[AckRange], result: AckResult, waiting: _Waiting) -> None:
        """Handle a settle that was not written, as some records were not this member's."""
        refused = result.refused or tuple((ack.first, ack.last) for ack in acks)
        gone = {offset for first, last in refused for offset in range(first, last + 1)}
        left = [unit for unit in units if gone.isdisjoint(unit.offsets())]
        for unit in units:
            if not gone.isdisjoint(unit.offsets()):
                self._lost(unit, gone, result)
        if len(left) == len(units):  # the refused offsets are none of ours: do not send again
            self._ended(units, acks, result)
            return
        waiting.units.extendleft(reversed(left))

    def _lost(self, unit: Unit, gone: Iterable[int], result: AckResult | None = None) -> None:
        """End a unit with lost records: a batch's result is void then, and the remaining records are released."""
        self._count(unit, -1)
        offsets, ending = set(gone), unit.ending
        kept: list[tuple[Chunk, DecodedRecord | RawRecord]] = []
        for chunk, record in unit.records:
            if record.offset not in offsets and record.offset not in chunk.lost:
                kept.append((chunk, record))
                continue
            known = record.offset in chunk.lost
            self._on_decided(chunk, [record], ending.reason)
            if result is not None and not known:
                attempt = attempt_of(chunk, record.offset)
                ack = ending.ack(record.offset, record.offset, attempt)
                self._acks.count([ack], result._replace(refused=(), outputs=()))
        if kept:
            ending.given_back(kept)

    def _refused(self, units: list[Unit], built: Built, refused: Sequence[RefusedOutput], waiting: _Waiting) -> None:
        """Handle a settle that was not written, as outputs were refused: their units are checked, the others go
        again."""
        first: dict[Unit, tuple[OutputFor[Unit], ServerError]] = {}
        for one in refused:
            if 0 <= one.place < len(built):
                output = built[one.place]
                error = ServerError(one.error, one.message, about=f"an output for {output.output.topic}")
                for unit in output.owners:
                    first.setdefault(unit, (output, error))
        if not first:
            self._blame(units, ServerError(ErrorCode.INVALID_REQUEST, "outputs were refused, none is named"), waiting)
            return
        again = [unit for unit in units if unit not in first]
        for unit, (output, error) in first.items():
            if self._goes_again(unit, output, error):
                again.append(unit)
        order = {unit: at for at, unit in enumerate(units)}
        waiting.units.extendleft(sorted(again, key=order.__getitem__, reverse=True))

    def _goes_again(self, unit: Unit, output: OutputFor[Unit], error: ServerError) -> bool:
        """Decide about a unit with a refused output: True: it is tried once more; False: it has failed."""
        topic = output.output.topic
        if error.code in NOT_DONE:
            return self._waits(unit, error)
        if error.code in GONE:
            self._producer.forget_topic(topic)
            trouble = unit.in_trouble()
            again, trouble.looked_up = not trouble.looked_up, True
        elif error.code in TOO_LARGE and output.records > 1 and len(output.output.records) > BATCH_BYTES_MIN:
            smaller = len(output.output.records) // 2  # by the batch, not once for each of its owners
            self._batch_bytes[topic] = min(smaller, self._batch_bytes.get(topic, BATCH_BYTES))
            again = True
        else:
            trouble = unit.in_trouble()
            again, trouble.alone = not trouble.alone and len(output.owners) > 1, True
        if not again:
            self._failed(unit, error)
        return again

    def _waits(self, unit: Unit, error: BaseException) -> bool:
        """Let a unit wait to be tried again; False if its time is over, and it has failed."""
        now_s = self._clock.monotonic()
        if now_s >= unit.until_s:
            self._failed(unit, DeliveryTimeout(f"outputs could not be written in time: {error}"))
            return False
        trouble = unit.in_trouble()
        trouble.tries += 1
        trouble.due_s = now_s + USUAL.after(trouble.tries)
        return True

    def _back_off(self, units: list[Unit], error: BaseException, waiting: _Waiting) -> None:
        waiting.units.extendleft(reversed([unit for unit in units if self._waits(unit, error)]))

    def _blame(self, units: list[Unit], error: ClientError, waiting: _Waiting) -> None:
        """Handle a refusal that names no output: settle each unit by itself; a single one has failed."""
        if len(units) == 1:
            self._failed(units[0], error)
            return
        for unit in units:
            unit.in_trouble().alone = True
        waiting.units.extendleft(reversed(units))

    def _failed(self, unit: Unit, error: BaseException) -> None:
        self._count(unit, -1)
        try:
            unit.ending.failed(unit.records, error)
        except Exception:
            logger.exception("agent=%s: what follows a failed output failed", self._agent)


class _Known(dict[str, "TopicPlace"]):
    """Topics that the producer knows, looked up lazily."""

    def __init__(self, producer: Producer) -> None:
        super().__init__()
        self._producer = producer

    def __missing__(self, topic: str) -> TopicPlace:
        place = self._producer.known_topic(topic)
        if place is None:
            raise ServerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, about=f"topic {topic}")
        self[topic] = place
        return place


def _too_much(outputs: int, size: int) -> RecordTooLarge:
    return RecordTooLarge(
        f"{outputs} outputs of {size} bytes are more than are settled in one step ({PLACES_MAX}, {UNIT_BYTES_MAX} "
        "bytes): send less for one record, or make batches smaller"
    )


def _message(one: ProducerRecord) -> Message:
    return Message(one.value, one.key, one.headers, one.timestamp, one.partition)
