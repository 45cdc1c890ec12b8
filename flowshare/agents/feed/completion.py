"""Outcomes become acknowledgements: what must be produced is produced and confirmed first.

    accept with sends   -> produce all, confirmed        -> ACCEPT; not confirmed -> as a retried exception, or dead
    release, retry      ->                                  RELEASE with the delay
    dead                -> dead letter, confirmed        -> REJECT; not confirmed -> RELEASE with a delay
    dead, no topic      -> an error log                  -> REJECT

On the service loop. What waits for the producer is bounded by what the agent holds.
"""

from __future__ import annotations

import asyncio
import logging
import random as random_module
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from flowshare.agents.acks import ACCEPT, REJECT, RELEASE, AckSender
from flowshare.agents.chunk import Chunk
from flowshare.agents.dead_letter import dead_letter, without_record, without_trace
from flowshare.agents.delays import Delays, too_large
from flowshare.agents.logs import where
from flowshare.agents.outcomes import Kind, Outcome
from flowshare.agents.send import Produce, SendGroup
from flowshare.agents.texts import REASON_MAX, clip, named, of_user, place_of, said
from flowshare.client.errors import BufferFull
from flowshare.protocol.decoding import DecodedRecord

if TYPE_CHECKING:
    from flowshare.agents.agent import ShareAgent
    from flowshare.agents.stats import AgentStats
    from flowshare.client.producing import RecordProducer
    from flowshare.clock import Clock

logger = logging.getLogger("flowshare.agents")

DEAD_LETTER_DELAY_S: Final = 10.0
"""When a dead letter cannot be produced, its record comes again after this long."""

FULL_WAIT_S: Final = 0.005
"""How long to wait for room in the producer's buffer before looking again."""

Done = Callable[[BaseException | None], None]


class Settler:
    """Settles the outcomes of one agent."""

    def __init__(
        self,
        agent: ShareAgent,
        *,
        clock: Clock,
        producer: RecordProducer,
        acks: AckSender,
        random: random_module.Random,
        stats: AgentStats,
        on_decided: Callable[[Chunk, DecodedRecord, str, float], None],
    ) -> None:
        """on_decided: called with each record whose acknowledgement is queued, its reason and its delay."""
        self._agent = agent
        self._clock = clock
        self._producer = producer
        self._acks = acks
        self._random = random
        self._stats = stats
        self._on_decided = on_decided
        self._outbox: deque[tuple[Produce, Done]] = deque()
        self._pump: asyncio.Task[None] | None = None
        self.dead_letter_trouble: str | None = None
        """Why dead letters cannot be produced now."""
        self.delays: Delays | None = None
        """What delays releases where the server does not."""

    def own_delays(self) -> Delays:
        """Delay releases here from now on, instead of leaving it to the server."""
        self.delays = Delays(
            self._agent,
            clock=self._clock,
            produce=self._produce,
            release=self._release_now,
            accept=self._accept_waiting,
        )
        return self.delays

    def settle(self, chunk: Chunk, record: DecodedRecord, outcome: Outcome) -> None:
        """Do what the outcome asks for."""
        match outcome.kind:
            case Kind.ACCEPT:
                self._accept(chunk, record, outcome)
            case Kind.RELEASE:
                self._release(chunk, record, outcome.reason, outcome.delay_s, "released")
            case Kind.RETRY:
                self._retry(chunk, record, outcome)
            case Kind.DEAD:
                if outcome.error is None and self._agent.dead_letter_topic is not None:  # nobody has told of it yet
                    logger.info("%s: rejected: %s", self._where(chunk, record), clip(outcome.reason, REASON_MAX))
                self._dead(chunk, record, outcome)

    def allow(self, record_bytes: int) -> None:
        """Records of up to so many bytes are produced: dead letters are as large as what the agent reads."""
        self._producer.allow(record_bytes)

    async def stop(self) -> None:
        """Stop producing; what waits is left unacknowledged."""
        if self.delays is not None:
            self.delays.stop()
        pump, self._pump = self._pump, None
        self._outbox.clear()
        if pump is not None:
            pump.cancel()
            await asyncio.gather(pump, return_exceptions=True)

    # --- accept -------------------------------------------------------------------------------------------------

    def _accept(self, chunk: Chunk, record: DecodedRecord, outcome: Outcome) -> None:
        group = outcome.sends
        if group is None:
            self._ack(chunk, record, ACCEPT, "accepted")
            return

        def confirmed(error: BaseException | None) -> None:
            if error is None:
                self._ack(chunk, record, ACCEPT, "accepted")
            else:
                self._unsent(chunk, record, error)

        if group.started and group.missing == 0:
            confirmed(group.error)
            return
        group.waiting.append(confirmed)
        if not group.started:
            group.started = True
            for one in group.produces:
                self._produce(one, lambda error: self._sent(group, error))

    def _sent(self, group: SendGroup, error: BaseException | None) -> None:
        group.missing -= 1
        if error is None:
            self._stats.sent += 1
        else:
            group.error = group.error or error
        if group.missing == 0:
            waiting, group.waiting = group.waiting, []
            for done in waiting:
                done(group.error)

    def _unsent(self, chunk: Chunk, record: DecodedRecord, error: BaseException) -> None:
        """A sink cannot be produced: as an exception in `retry.on`; a record that is too large never will be."""
        self._stats.send_failed += 1
        attempt = record.delivery_count
        text = clip(f"an output could not be produced: {named(error)}", REASON_MAX)
        if not too_large(error) and attempt < self._agent.options.retry.max_attempts:
            self._retry(chunk, record, Outcome(Kind.RETRY, error, text))
            return
        logger.error("%s: %s", self._where(chunk, record), text)
        reason = text if too_large(error) else f"attempts used up ({attempt}): {text}"
        self._dead(chunk, record, Outcome(Kind.DEAD, error, reason))

    # --- release ------------------------------------------------------------------------------------------------

    def _retry(self, chunk: Chunk, record: DecodedRecord, outcome: Outcome) -> None:
        try:
            delay_s = self._agent.options.retry.delay_s(record.delivery_count, self._random)
        except BaseException:  # code of the application, and this loop has to go on whatever it raises
            logger.exception("%s: the retry's delay function failed; 1 s is used", self._where(chunk, record))
            delay_s = 1.0
        if not outcome.told:
            self._tell_of_retry(chunk, record, outcome, delay_s)
        self._release(chunk, record, outcome.reason, delay_s, "retried")

    def _tell_of_retry(self, chunk: Chunk, record: DecodedRecord, outcome: Outcome, delay_s: float) -> None:
        """One line: during an outage every record says this, and the dead letter shows the whole trace."""
        error = outcome.error
        assert error is not None
        logger.warning(
            "%s of %d: tried again in %.3g s: %s (%s)",
            self._where(chunk, record),
            self._agent.options.retry.max_attempts,
            delay_s,
            clip(outcome.reason, REASON_MAX),
            place_of(error),
            exc_info=(type(error), error, of_user(error)) if logger.isEnabledFor(logging.DEBUG) else None,
        )

    def _release(
        self, chunk: Chunk, record: DecodedRecord, reason: str, delay_s: float, counter: str, *, unrun: bool = False
    ) -> None:
        if self.delays is not None and delay_s > 0:
            self.delays.release(chunk, record, reason, delay_s, counter)
            return
        delay_ms = round(delay_s * 1000)
        self._ack(chunk, record, RELEASE, counter, reason=reason, delay_s=delay_s, delay_ms=delay_ms, unrun=unrun)

    def _release_now(self, chunk: Chunk, record: DecodedRecord, reason: str, delay_s: float, counter: str) -> None:
        """The delay is over."""
        self._ack(chunk, record, RELEASE, counter, reason=reason, delay_s=delay_s)

    def _accept_waiting(self, chunk: Chunk, record: DecodedRecord, reason: str, delay_s: float, counter: str) -> None:
        """It waits in the retry topic now: done with here, and counted as what it is."""
        offset = record.offset
        self._on_decided(chunk, record, reason, delay_s)
        if offset not in chunk.lost:
            self._acks.other((chunk.tp, chunk.generation), offset, offset, ACCEPT, counter)

    # --- dead ---------------------------------------------------------------------------------------------------

    def _dead(self, chunk: Chunk, record: DecodedRecord, outcome: Outcome) -> None:
        topic = self._agent.dead_letter_topic
        if topic is None:
            logger.error(
                "%s: rejected without dead letter: %s", self._where(chunk, record), clip(outcome.reason, REASON_MAX)
            )
            self._ack(chunk, record, REJECT, "rejected", reason=outcome.reason)
            return
        letter = dead_letter(topic, self._agent.group, chunk, record, outcome)

        def confirmed(error: BaseException | None) -> None:
            if error is None:
                self.dead_letter_trouble = None
                self._ack(chunk, record, REJECT, "dead_lettered", reason=outcome.reason)
            else:
                self._undead(chunk, record, outcome, error)

        def bare_try(error: BaseException | None) -> None:
            if error is not None and too_large(error):
                logger.error(
                    "%s: its dead letter is too large and goes to %s without the record, which stays at its place "
                    "until retention deletes it: %s",
                    self._where(chunk, record),
                    topic,
                    said(error),
                )
                self._produce(without_record(letter), confirmed)
            else:
                confirmed(error)

        def first_try(error: BaseException | None) -> None:
            if error is not None and too_large(error):
                self._produce(without_trace(letter), bare_try)
            else:
                confirmed(error)

        self._produce(letter, first_try)

    def _undead(self, chunk: Chunk, record: DecodedRecord, outcome: Outcome, error: BaseException) -> None:
        """Never reject what no dead letter holds. At the last attempt the delivery is not counted."""
        self._stats.dead_letter_failed += 1
        self.dead_letter_trouble = (
            f"the dead letter for {self._agent.dead_letter_topic} cannot be produced: {named(error)}"
        )
        logger.error(
            "%s: %s; the record comes again in %g s",
            self._where(chunk, record),
            self.dead_letter_trouble,
            DEAD_LETTER_DELAY_S,
        )
        if self.delays is not None:  # a release costs an attempt, and the last one loses the record
            self.delays.hold(chunk, record, DEAD_LETTER_DELAY_S, lambda: self._dead(chunk, record, outcome))
            return
        last = record.delivery_count >= self._agent.options.retry.max_attempts
        self._release(chunk, record, self.dead_letter_trouble, DEAD_LETTER_DELAY_S, "released", unrun=last)

    # --- doing it -----------------------------------------------------------------------------------------------

    def _ack(
        self,
        chunk: Chunk,
        record: DecodedRecord,
        types: bytes,
        counter: str,
        *,
        reason: str = "",
        delay_s: float = 0.0,
        delay_ms: int = 0,
        unrun: bool = False,
    ) -> None:
        offset = record.offset
        self._on_decided(chunk, record, reason, delay_s)
        if offset in chunk.lost:
            return
        key = (chunk.tp, chunk.generation)
        if types is ACCEPT:
            self._acks.accept(key, [offset])
        else:
            self._acks.other(key, offset, offset, types, counter, delay_ms=delay_ms, unrun=unrun)

    def _produce(self, one: Produce, done: Done) -> None:
        """Hand a record to the producer; `done` is called with what went wrong, or None when it is confirmed."""
        if self._pump is not None or not self._produce_now(one, done):
            self._outbox.append((one, done))
            if self._pump is None:
                self._pump = asyncio.create_task(self._run_pump(), name=f"outbox {self._agent.name}")

    def _produce_now(self, one: Produce, done: Done) -> bool:
        """False when the producer's buffer is full."""
        try:
            future = self._producer.send_nowait(
                one.topic,
                one.value,
                key=one.key,
                headers=one.headers,
                partition=one.partition,
                timestamp_ms=one.timestamp_ms,
            )
        except BufferFull:
            return False
        except BaseException as error:  # noqa: BLE001 - whatever it is, the output is not produced
            done(error)
            return True
        future.add_done_callback(lambda settled: done(_error_of(settled)))
        return True

    async def _run_pump(self) -> None:
        """Send what did not fit into the producer's buffer, as it gets room."""
        while self._outbox:
            if self._produce_now(*self._outbox[0]):
                self._outbox.popleft()
            else:
                await self._clock.sleep(FULL_WAIT_S)
        self._pump = None

    def _where(self, chunk: Chunk, record: DecodedRecord) -> str:
        offset = chunk.place(record.offset)
        return where(chunk.agent, chunk.topic, chunk.partition, offset, record.delivery_count)


def _error_of(future: asyncio.Future[Any]) -> BaseException | None:
    return asyncio.CancelledError("the producer was closed") if future.cancelled() else future.exception()
