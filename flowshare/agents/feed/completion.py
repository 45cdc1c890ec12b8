"""Outcomes become acknowledgements; outputs and dead letters are produced and confirmed first.

    accept with sends   -> produce all, confirmed        -> ACCEPT; not confirmed -> as a retried exception, or dead
    release, retry      ->                                  RELEASE with the delay
    dead                -> dead letter, confirmed        -> REJECT; not confirmed -> RELEASE with a delay
                                                            ACCEPT where the server may write a letter of each reject
    dead, no topic      -> an error log                  -> REJECT

While the group's breaker is not closed, every failed record is released without costing an attempt.

With `exactly_once`, outputs and dead letters are settled with their records instead (`settler`).

All runs on the service loop. The agent's held records bound the records that wait for the producer.
"""

from __future__ import annotations

import asyncio
import logging
import random as random_module
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from flowshare.agents.feed.ack_sender import AckSender
from flowshare.agents.feed.acknowledgements import ACCEPT, REJECT, RELEASE, Acknowledging
from flowshare.agents.feed.dead_letter import dead_letter, without_record, without_trace
from flowshare.agents.feed.delays import Delays, too_large
from flowshare.agents.feed.settle_units import Ending, Records, Unit
from flowshare.agents.feed.settler import Decided, Settler
from flowshare.agents.feed.spans import AckSpans
from flowshare.agents.handler.chunk import Chunk
from flowshare.agents.handler.delivery import about
from flowshare.agents.handler.outcomes import Outcome, OutcomeKind
from flowshare.agents.handler.send import ProducerRecord, SendGroup
from flowshare.agents.handler.texts import REASON_MAX, clip, named, of_user, place_of, said
from flowshare.client.errors import BufferFull
from flowshare.protocol.decoding import DecodedRecord, RawRecord
from flowshare.share.types import AckRange
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from flowshare.agents.feed.outcome_watch import OutcomeWatch
    from flowshare.agents.handler.agent import ShareAgent
    from flowshare.agents.run.stats import AgentStats
    from flowshare.agents.telemetry.settling import SettleSpans
    from flowshare.agents.telemetry.telemetry import Telemetry
    from flowshare.client.producer.producer import Producer
    from flowshare.clock import Clock

logger = logging.getLogger("flowshare.agents")

DEAD_LETTER_DELAY_S: Final = 10.0
"""Seconds until a record comes again whose dead letter could not be produced."""

FAILED_DELAY_S: Final = 10.0
"""Seconds until a record comes again whose outcome could not be carried out."""
FULL_WAIT_S: Final = 0.005
"""Seconds between two looks for room in the producer's buffer."""

Done = Callable[[BaseException | None], None]


Form = Callable[[ProducerRecord], ProducerRecord]
FORMS: Final[Sequence[Form]] = (lambda letter: letter, without_trace, without_record)
"""Forms of a dead letter, the largest first."""


class Completion:
    """Carries out the outcomes of one agent."""

    def __init__(
        self,
        agent: ShareAgent,
        *,
        clock: Clock,
        producer: Producer,
        acks: Acknowledging,
        random: random_module.Random,
        stats: AgentStats,
        on_decided: Callable[[Chunk, DecodedRecord | RawRecord, str, float], None],
        on_settled: Decided,
        on_ended: Callable[[Chunk, DecodedRecord | RawRecord, str, str], object] = lambda *_: None,
        letters_by_choice: bool = True,
        telemetry: Telemetry | None = None,
        spans: SettleSpans | None = None,
    ) -> None:
        """on_decided: called with each record whose acknowledgement is queued, its reason and its delay in seconds.
        on_settled: with records that were settled with outputs, and the reason. on_ended: with records that were
        accepted before they ran, their counter otherwise, and the reason. letters_by_choice: of `Capabilities`.
        telemetry, spans: record sends and settles."""
        self._agent = agent
        self._clock = clock
        self._producer = producer
        self._sender = producer if telemetry is None else telemetry.sends(producer)
        self._spans = spans
        self._acks = acks
        self._random = random
        self._stats = stats
        self._on_decided = on_decided
        self._on_ended = on_ended
        # Kafka's brokers from 4.4 on write a letter of every reject where the group names a topic for them (KIP-1191),
        # also when the topic is named while the agent runs.
        self._has_letter = REJECT if letters_by_choice else ACCEPT
        """Type of the acknowledgement of a record whose dead letter is confirmed."""
        self._outbox: deque[tuple[ProducerRecord, Done]] = deque()
        self._pump: asyncio.Task[None] | None = None
        self.dead_letter_trouble: str | None = None
        """Reason why dead letters cannot be produced now."""
        self.delays: Delays | None = None
        """Delays releases if the server does not."""
        self.breaker: OutcomeWatch | None = None
        """Decides if a failure costs an attempt, for an agent with `breaker`."""
        self.settler: Settler | None = None
        """Settles outputs together with their records, for an agent with `exactly_once`."""
        if agent.options.exactly_once:
            assert isinstance(acks, AckSender), "settling is for share groups"
            self.settler = Settler(
                agent.name,
                clock=clock,
                producer=producer,
                acks=acks,
                stats=stats,
                on_decided=on_settled,
                ordered=agent.ordered_outputs,
                spans=None if spans is None else AckSpans(spans),
            )
        self._accepted = Ending(ACCEPT, "accepted", self._outputs_failed, self._give_back)
        self._gathering: dict[SendGroup, list[tuple[Chunk, DecodedRecord | RawRecord, Sequence[ProducerRecord]]]] = {}
        """Accepted records that are settled with their batch's result, while others of the batch are missing."""

    def own_delays(self) -> Delays:
        """Delay releases in this process from now on, instead of on the server."""
        self.delays = Delays(
            self._agent,
            clock=self._clock,
            produce=self._produce_again,
            acknowledge=self._ack,
            partitions=self._partitions,
        )
        return self.delays

    def _partitions(self, topic: str) -> int:
        known = self._producer.known_topic(topic)
        return 1 if known is None else known.partitions

    def complete(self, chunk: Chunk, raw: DecodedRecord | RawRecord, outcome: Outcome) -> None:
        """Carry out the outcome. An error in doing so is this record's alone: others come in the same hand-over."""
        try:
            self._complete(chunk, raw, outcome)
        except Exception as error:
            record = chunk.whole(raw)
            with about(chunk, record):
                logger.exception("%s: its outcome could not be carried out", chunk.where(record.offset))
            if record.offset not in chunk.settled:
                self._not_carried_out(chunk, record, outcome, error)

    def _not_carried_out(self, chunk: Chunk, record: DecodedRecord, outcome: Outcome, error: Exception) -> None:
        """Let a record come again, or its outcome be tried again, as after a dead letter that could not be produced."""
        if self.delays is not None and not chunk.is_accepted:
            self.delays.hold(chunk, record, FAILED_DELAY_S, lambda: self.complete(chunk, record, outcome))
            return
        reason = clip(f"its outcome could not be carried out: {named(error)}", REASON_MAX)
        last = record.delivery_count >= self._agent.options.retry.max_attempts
        self._release(chunk, record, reason, FAILED_DELAY_S, "released", unrun=last)

    def _complete(self, chunk: Chunk, raw: DecodedRecord | RawRecord, outcome: Outcome) -> None:
        if outcome.kind is OutcomeKind.ACCEPT:
            self._accept(chunk, raw, outcome)
            return
        record = chunk.whole(raw)
        if self.breaker is not None and self.breaker.spares(chunk, outcome):
            self._spare(self.breaker, chunk, record, outcome)
            return
        match outcome.kind:
            case OutcomeKind.RELEASE:
                counter = "unrun" if outcome.unrun else "released"
                self._release(chunk, record, outcome.reason, outcome.delay_s, counter, unrun=outcome.unrun)
            case OutcomeKind.RETRY:
                self._retry(chunk, record, outcome)
            case OutcomeKind.DEAD:
                if outcome.error is None and self._agent.dead_letter_topic is not None:  # not logged yet
                    with about(chunk, record):
                        logger.info("%s: rejected: %s", chunk.where(record.offset), clip(outcome.reason, REASON_MAX))
                self._dead_letter(chunk, record, outcome)

    async def stop(self) -> None:
        """Stop producing; waiting records are left unacknowledged."""
        if self.delays is not None:
            self.delays.stop()
        pump, self._pump = self._pump, None
        self._outbox.clear()
        await cancelled(pump)
        if self.settler is not None:
            await self.settler.stop()

    # --- accept -------------------------------------------------------------------------------------------------

    def _accept(self, chunk: Chunk, record: DecodedRecord | RawRecord, outcome: Outcome) -> None:
        if not outcome.has_outputs:
            self._ack(chunk, record, ACCEPT, "accepted")
        elif self.settler is not None:
            self._settle(self.settler, chunk, record, outcome)
        else:
            groups = [SendGroup(outcome.outputs)] if outcome.outputs else []
            if outcome.shared is not None:
                groups.append(outcome.shared)
            self._confirm(groups, lambda error: self._confirmed(chunk, record, error))

    def _confirmed(self, chunk: Chunk, record: DecodedRecord | RawRecord, error: BaseException | None) -> None:
        """Go on after all outputs are confirmed, or one has failed."""
        if error is None:
            self._ack(chunk, record, ACCEPT, "accepted")
        else:
            self._send_failed(chunk, chunk.whole(record), error)

    def _confirm(self, groups: Sequence[SendGroup], done: Done) -> None:
        """Produce the groups that are not on their way; `done` is called once, when all are confirmed or refused."""
        missing = [group for group in groups if not group.started or group.missing]

        def ended() -> None:
            done(next((group.error for group in groups if group.error is not None), None))

        def confirmed(_: BaseException | None) -> None:
            missing.pop()
            if not missing:
                ended()

        if not missing:
            ended()
            return
        for group in tuple(missing):
            group.waiting.append(confirmed)
            if not group.started:
                group.started = True
                for one in group.produces:
                    self._produce(one, partial(self._sent, group))

    def _settle(self, settler: Settler, chunk: Chunk, record: DecodedRecord | RawRecord, outcome: Outcome) -> None:
        """Accept a record in one step with its outputs; with a batch's result when all of the batch have come."""
        group = outcome.shared
        if group is None:
            settler.add(Unit(((chunk, record),), outcome.outputs, self._accepted))
            return
        gathered = self._gathering.setdefault(group, [])
        gathered.append((chunk, record, outcome.outputs))
        if len(gathered) >= group.records:
            del self._gathering[group]
            own = [one for _, _, outputs in gathered for one in outputs]
            records = [(each, one) for each, one, _ in gathered]
            settler.add(Unit(records, (*group.produces, *own), self._accepted))

    def _outputs_failed(self, records: Records, error: BaseException) -> None:
        for chunk, record in records:
            self._send_failed(chunk, chunk.whole(record), error)

    def _give_back(self, records: Records) -> None:
        for chunk, record in records:
            self._release(chunk, chunk.whole(record), "another record of its batch was lost", 0.0, "released")

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

    def _send_failed(self, chunk: Chunk, record: DecodedRecord, error: BaseException) -> None:
        """Retry a record whose output could not be produced, as after an error in `retry.on`; a too large one never
        fits."""
        self._stats.send_failed += 1
        attempt = record.delivery_count
        text = clip(f"an output could not be produced: {named(error)}", REASON_MAX)
        if not too_large(error) and attempt < self._agent.options.retry.max_attempts:
            self._retry(chunk, record, Outcome(OutcomeKind.RETRY, error, text))
            return
        with about(chunk, record):
            logger.error("%s: %s", chunk.where(record.offset), text)
        reason = text if too_large(error) else f"attempts used up ({attempt}): {text}"
        self._dead_letter(chunk, record, Outcome(OutcomeKind.DEAD, error, reason))

    # --- release ------------------------------------------------------------------------------------------------

    def _spare(self, breaker: OutcomeWatch, chunk: Chunk, record: DecodedRecord, outcome: Outcome) -> None:
        """Release a record that failed while the breaker is open: the failure blames the dependency, not the record."""
        delay_s = max(self._delay_s(chunk, record), breaker.least_s(chunk, record.offset))
        with about(chunk, record):
            logger.warning(
                "%s: failed while %s; it comes again in %.3g s, and has cost no attempt: %s",
                chunk.where(record.offset),
                breaker.trouble,
                delay_s,
                clip(outcome.reason, REASON_MAX),
            )
        self._release(chunk, record, outcome.reason, delay_s, "unrun", unrun=True)

    def _delay_s(self, chunk: Chunk, record: DecodedRecord) -> float:
        """Return seconds until the record's next attempt."""
        try:
            return self._agent.options.retry.delay_s(record.delivery_count, self._random)
        except BaseException:  # the application's code; this loop must go on after any error
            with about(chunk, record):
                logger.exception("%s: the retry's delay function failed; 1 s is used", chunk.where(record.offset))
            return 1.0

    def _retry(self, chunk: Chunk, record: DecodedRecord, outcome: Outcome) -> None:
        delay_s = self._delay_s(chunk, record)
        if not outcome.told:
            self._log_retry(chunk, record, outcome, delay_s)
        self._release(chunk, record, outcome.reason, delay_s, "retried")

    def _log_retry(self, chunk: Chunk, record: DecodedRecord, outcome: Outcome, delay_s: float) -> None:
        """Log a retry in one line: during an outage every record has one, and the dead letter shows the whole trace."""
        error = outcome.error
        assert error is not None
        with about(chunk, record):
            logger.warning(
                "%s of %d: tried again in %.3g s: %s (%s)",
                chunk.where(record.offset),
                self._agent.options.retry.max_attempts,
                delay_s,
                clip(outcome.reason, REASON_MAX),
                place_of(error),
                exc_info=(type(error), error, of_user(error)) if logger.isEnabledFor(logging.DEBUG) else None,
            )

    def _release(
        self, chunk: Chunk, record: DecodedRecord, reason: str, delay_s: float, counter: str, *, unrun: bool = False
    ) -> None:
        if self.delays is not None and delay_s > 0 and not chunk.is_accepted:
            self.delays.release(chunk, record, (counter, reason, delay_s))
            return
        delay_ms = round(delay_s * 1000)
        self._ack(chunk, record, RELEASE, counter, reason, delay_s, delay_ms=delay_ms, unrun=unrun)

    # --- dead ---------------------------------------------------------------------------------------------------

    def _dead_letter(self, chunk: Chunk, record: DecodedRecord, outcome: Outcome) -> None:
        topic = self._agent.dead_letter_topic
        if topic is None:
            with about(chunk, record):
                logger.error(
                    "%s: rejected without dead letter: %s", chunk.where(record.offset), clip(outcome.reason, REASON_MAX)
                )
            self._ack(chunk, record, REJECT, "rejected", outcome.reason, unrun=outcome.unrun)
            return
        letter = dead_letter(topic, self._agent.group, chunk, record, outcome)

        self._send_letter(chunk, record, outcome, letter, FORMS)

    def _send_letter(
        self, chunk: Chunk, record: DecodedRecord, outcome: Outcome, letter: ProducerRecord, forms: Sequence[Form]
    ) -> None:
        """Send a letter in the first of the forms, or in a smaller form if that is too large.

        A method, because a function that calls itself would keep the handler's exception and all its frames alive until
        the garbage collector runs.
        """
        one, smaller = forms[0](letter), forms[1:]
        if self._spans is not None:
            one = self._spans.caused_by(chunk, record.offset, one)

        def sent(error: BaseException | None) -> None:
            if error is None:
                self.dead_letter_trouble = None
                if self.settler is None:
                    self._ack(chunk, record, self._has_letter, "dead_lettered", outcome.reason, unrun=outcome.unrun)
            elif smaller and too_large(error):
                if smaller[0] is without_record:
                    with about(chunk, record):
                        logger.error(
                            "%s: its dead letter is too large and goes to %s without the record, which stays at "
                            "its place until retention deletes it: %s",
                            chunk.where(record.offset),
                            letter.topic,
                            said(error),
                        )
                self._send_letter(chunk, record, outcome, letter, smaller)
            else:
                self._dead_letter_failed(chunk, record, outcome, error)

        if self.settler is None:
            self._produce(one, sent)
            return
        ending = Ending(
            REJECT,
            "dead_lettered",
            failed=lambda _, error: sent(error),
            given_back=self._give_back,
            done=lambda: sent(None),
            reason=outcome.reason,
            unrun=outcome.unrun,
        )
        self.settler.add(Unit([(chunk, record)], (one,), ending))

    def _dead_letter_failed(self, chunk: Chunk, record: DecodedRecord, outcome: Outcome, error: BaseException) -> None:
        """Release the record: never reject one without a dead letter. At the last attempt the delivery is not
        counted."""
        self._stats.dead_letter_failed += 1
        self.dead_letter_trouble = (
            f"the dead letter for {self._agent.dead_letter_topic} cannot be produced: {named(error)}"
        )
        with about(chunk, record):
            logger.error(
                "%s: %s; the record %s",
                chunk.where(record.offset),
                self.dead_letter_trouble,
                "was accepted before it ran, and is lost"
                if chunk.is_accepted
                else f"comes again in {DEAD_LETTER_DELAY_S:g} s",
            )
        if chunk.is_accepted:
            self._ack(chunk, record, RELEASE, "released", self.dead_letter_trouble)
            return
        if self.delays is not None:  # a release costs an attempt, and the last one loses the record
            self.delays.hold(chunk, record, DEAD_LETTER_DELAY_S, lambda: self._dead_letter(chunk, record, outcome))
            return
        last = record.delivery_count >= self._agent.options.retry.max_attempts
        self._release(chunk, record, self.dead_letter_trouble, DEAD_LETTER_DELAY_S, "released", unrun=last)

    # --- doing it -----------------------------------------------------------------------------------------------

    def _ack(
        self,
        chunk: Chunk,
        record: DecodedRecord | RawRecord,
        types: bytes,
        counter: str,
        reason: str = "",
        delay_s: float = 0.0,
        *,
        delay_ms: int = 0,
        unrun: bool = False,
    ) -> None:
        """Acknowledge. counter: what the record counts as; one that waits in the retry topic ends here without being an
        accept."""
        if chunk.is_accepted:
            self._on_ended(chunk, record, counter, reason)
            return
        offset = record.offset
        self._on_decided(chunk, record, reason, delay_s)
        if offset in chunk.lost:
            return
        if self._spans is not None:
            self._spans.note(chunk, [offset])
        key = (chunk.tp, chunk.generation)
        [(attempt, _)] = chunk.counted([offset])
        if counter == "accepted":
            self._acks.accept(key, [offset], attempt)
        else:
            self._acks.acknowledge(key, AckRange(offset, offset, types, delay_ms, unrun, False, attempt, counter))

    def _produce_again(self, chunk: Chunk, record: DecodedRecord, one: ProducerRecord, done: Done) -> None:
        """Produce the copy of a record that waits for its retry."""
        if self._spans is not None:
            one = self._spans.caused_by(chunk, record.offset, one)
        self._produce(one, done)

    def _produce(self, one: ProducerRecord, done: Done) -> None:
        """Hand a record to the producer; `done` is called with the error, or with None when it is confirmed."""
        if self._pump is not None or not self._produce_now(one, done):
            self._outbox.append((one, done))
            if self._pump is None:
                self._pump = asyncio.create_task(self._run_pump(), name=f"outbox {self._agent.name}")

    def _produce_now(self, one: ProducerRecord, done: Done) -> bool:
        """Produce now; return False when the producer's buffer is full."""
        try:
            future = one.send_by(self._sender.send_nowait)
        except BufferFull:
            return False
        except BaseException as error:  # noqa: BLE001 - whatever it is, the output is not produced
            asyncio.get_running_loop().call_soon(done, error)  # an error of `done` is not that of the records behind
            return True
        future.add_done_callback(lambda sent: done(_error_of(sent)))
        return True

    async def _run_pump(self) -> None:
        """Send records that did not fit into the producer's buffer, as it gets room."""
        try:
            while self._outbox:
                if self._produce_now(*self._outbox[0]):
                    self._outbox.popleft()
                else:
                    await self._clock.sleep(FULL_WAIT_S)
        finally:
            self._pump = None


def _error_of(future: asyncio.Future[Any]) -> BaseException | None:
    return asyncio.CancelledError("the producer was closed") if future.cancelled() else future.exception()
