"""`ShareConsumer`: records one by one over a `ShareMember`, with the rules of Kafka's KafkaShareConsumer (KIP-932).

    async with ShareConsumer(connect, group_id="billing", clock=LoopClock()) as consumer:
        consumer.subscribe(["orders"])
        async for record in consumer:
            ...

Nothing is fetched ahead: what a poll did not return yet was not acquired (or, after a wake-up or a record that could
not be decoded, is returned by the next poll first). One task uses a consumer; only `wakeup` may come from elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Generic, Self, TypeVar, overload

from flowshare.client.arguments import check_argument, settings_of
from flowshare.client.consumer.backlog import Backlog, Decoder
from flowshare.client.consumer.commits import CommitCallback, Commits, Outcomes
from flowshare.client.consumer.inflight import ShareRecord, named_of, neighbours
from flowshare.client.consumer.isolation import set_isolation
from flowshare.client.consumer.partitions import PartitionInfo, partitions_of
from flowshare.client.consumer.settles import Settles
from flowshare.client.errors import Closed, IllegalState, RecordError, Unsupported, Wakeup
from flowshare.client.producer.outputs import Outputs, messages_of
from flowshare.client.session.member import ShareMember
from flowshare.client.settings import ConsumerSettings
from flowshare.share.types import AcknowledgeType
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

    from flowshare.client.net.link import Connect
    from flowshare.clock import Clock, TimerHandle

K = TypeVar("K")
V = TypeVar("V")
FOREVER_S: Final = 3600.0
"""The longest wait of one round of an iteration, in seconds; then the next round begins."""
CLOSE_LEFT_MIN_S: Final = 0.1
WAIT_MIN_S: Final = 0.001
"""The shortest time, in seconds, that a server can be asked to wait: with less left a poll ends."""

logger = logging.getLogger(__name__)


class ShareConsumer(Generic[K, V]):
    """A member of a share group that hands out records; for one task."""

    @overload
    def __init__(
        self: ShareConsumer[bytes | None, bytes | None],
        connect: Connect,
        *,
        group_id: str,
        clock: Clock,
        settings: ConsumerSettings | None = None,
        member_id: str | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self,
        connect: Connect,
        *,
        group_id: str,
        clock: Clock,
        settings: ConsumerSettings | None = None,
        member_id: str | None = None,
        key_decoder: Decoder[K],
        value_decoder: Decoder[V],
    ) -> None: ...
    def __init__(
        self,
        connect: Connect,
        *,
        group_id: str,
        clock: Clock,
        settings: ConsumerSettings | None = None,
        member_id: str | None = None,
        key_decoder: Decoder[K] | None = None,
        value_decoder: Decoder[V] | None = None,
    ) -> None:
        """Create a consumer that joins at its first poll. Decoders turn bytes (or None) into keys and values."""
        if not group_id:
            raise ValueError("a share consumer needs a group_id")
        check_argument("group_id", group_id, str)
        self._clock = clock
        self._connect = connect
        self._group_id = group_id
        self._settings = settings_of(settings, ConsumerSettings)
        self._explicit = self._settings.acknowledgement_mode == "explicit"
        self._member = ShareMember(
            connect, group_id=group_id, topics=(), clock=clock, member_id=member_id, settings=self._settings.member
        )
        self._commits: Commits[K, V] = Commits(self._member, clock=clock, timeout_s=self._settings.default_api_timeout)
        self._settles: Settles[K, V] = Settles(self._member, self._commits, clock=clock)
        self._topics: frozenset[str] = frozenset()
        self._backlog: Backlog[K, V] = Backlog(self._commits, key_decoder, value_decoder)
        self._joined = False
        self._joining: asyncio.Task[None] | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waker = Waker(clock)
        self._polled_s: float | None = None
        self._busy = False
        self._closed = False
        self._overdue: TimerHandle | None = None

    # --- subscription -------------------------------------------------------------------------------------------

    def subscribe(self, topics: Sequence[str]) -> None:
        """Replace the subscription; the group is told at once, or with the first poll.

        Raises: ValueError (empty), TypeError.
        """
        self._check_usable()
        if isinstance(topics, str) or not topics:
            raise ValueError("subscribe to a list of at least one topic; to stop, await unsubscribe()")
        check_argument("topics", topics, Sequence[str])
        self._topics = frozenset(topics)
        self._member.subscribe(sorted(self._topics))

    async def unsubscribe(self) -> None:
        """Leave the group. `subscribe` starts again."""
        with self._turn():
            self._topics = frozenset()
            await self._leave()

    def subscription(self) -> frozenset[str]:
        """Return the subscribed topics."""
        return self._topics

    @property
    def member(self) -> ShareMember:
        """The share member of this consumer: assignment, `trouble` (why no records arrive)."""
        return self._member

    @property
    def acquisition_lock_timeout(self) -> float | None:
        """Seconds for which records are locked, as of the last fetch or renewal; None before the first."""
        return self._member.lock_timeout_ms / 1000 if self._member.lock_timeout_ms else None

    async def partitions_for(self, topic: str, timeout: float | None = None) -> list[PartitionInfo]:
        """Return the partitions of a topic with their leaders and replicas, as far as brokers report them.

        timeout: seconds (default: default_api_timeout). Raises: ServerError (there is no such topic, or it may not be
        seen), NotConnected, ClientError (not in time), Closed.
        """
        self._check_usable()
        return await partitions_of(
            self._connect,
            topic,
            clock=self._clock,
            settings=self._settings.member.link,
            timeout_s=self._settings.default_api_timeout if timeout is None else timeout,
        )

    def metrics(self) -> dict[str, float]:
        """Return the counters of this consumer, by the names of Kafka's share consumer; docs/clients.md explains each
        one.

        May be called at any time, also when the consumer is closed.
        """
        return {
            "records_consumed_total": self._backlog.records,
            "bytes_consumed_total": self._backlog.bytes,
            "acknowledgements_send_total": self._commits.sent,
            "acknowledgements_error_total": self._commits.failed,
            "last_poll_seconds_ago": -1.0 if self._polled_s is None else self._clock.monotonic() - self._polled_s,
            **self._member.counts(),
        }

    # --- polling ------------------------------------------------------------------------------------------------

    async def poll(self, timeout: float) -> list[ShareRecord[K, V]]:
        """Return records, or an empty list when none came within `timeout` seconds.

        Implicit mode: accepts the records of earlier polls. Explicit mode: all records must have been acknowledged.
        After renewals only the renewed records are returned, so that they can be acknowledged again.
        Raises: IllegalState, Wakeup, RecordError and CorruptRecords (the records around them come with the next polls),
        ServerError, Closed.
        """
        check_argument("poll: timeout", timeout, float)
        with self._turn():
            await self._begin_poll()
            await self._renewals_answered(timeout)
            renewed = self._commits.hand_out_renewed()
            if renewed:
                self._arm()
                return renewed
            if not self._backlog:
                await self._fill(timeout)
            self._arm()
            return self._backlog.hand_out()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ShareRecord[K, V]:
        """Return the next record, without a time limit; the iteration ends when the consumer is closed. Raises: as
        `poll`."""
        if self._closed:
            raise StopAsyncIteration
        with self._turn():
            try:
                while not self._backlog:
                    renewed = self._commits.hand_out_renewed(1)
                    if renewed:
                        self._arm()
                        return renewed[0]
                    await self._begin_poll()
                    await self._renewals_answered(FOREVER_S)
                    if not self._commits.has_renewed:
                        await self._fill(FOREVER_S)
                self._waker.raise_if_woken()
                self._arm()
                return self._backlog.hand_out_first()
            except Closed:
                raise StopAsyncIteration from None

    def wakeup(self) -> None:
        """Make the waiting poll, or else the next one, raise `Wakeup`. May be called from any thread."""
        loop = self._loop
        if loop is None or loop is _running_loop():
            self._wake()
        else:
            loop.call_soon_threadsafe(self._wake)

    # --- acknowledging ------------------------------------------------------------------------------------------

    @overload
    def acknowledge(self, record: ShareRecord[K, V], type_: AcknowledgeType = ..., /) -> None: ...
    @overload
    def acknowledge(self, topic: str, partition: int, offset: int, type_: AcknowledgeType, /) -> None: ...
    def acknowledge(
        self,
        record: ShareRecord[K, V] | str,
        type_or_partition: AcknowledgeType | int = AcknowledgeType.ACCEPT,
        offset: int = -1,
        type_: AcknowledgeType = AcknowledgeType.ACCEPT,
        /,
    ) -> None:
        """Acknowledge a record; the acknowledgement is sent with the next poll or commit.

        `acknowledge(record)` accepts the record, `acknowledge(record, type)` sets the type, and `acknowledge(topic,
        partition, offset, type)` does so for a record that raised `RecordError`.
        Raises: IllegalState (implicit mode; not in hand; acknowledged and sent already; renewed since the last poll).
        """
        self._check_explicit()
        check_argument("acknowledge: what was delivered", record, ShareRecord | str)
        if isinstance(record, ShareRecord):
            self._commits.acknowledge(record.topic, record.partition, record.offset, AcknowledgeType(type_or_partition))
        else:
            self._commits.acknowledge(record, int(type_or_partition), offset, type_)

    def release(self, record: ShareRecord[K, V] | RecordError, *, delay: float = 0.0) -> None:
        """Release a record: it is delivered again, to any member, not before `delay` seconds (30 days at most); sent
        with the next poll or commit.

        Raises: IllegalState (as `acknowledge`), Unsupported (a delay at Kafka's own brokers, which cannot delay).
        """
        self._check_explicit()
        topic, partition, offset = named_of("release", record)
        check_argument("release: delay", delay, float)
        if not 0 <= delay < math.inf:
            raise ValueError(f"release: delay must be a number of seconds from 0 on, not {delay!r}")
        if delay and not self._member.at_flowshare:
            raise Unsupported(
                "Kafka's own brokers cannot delay a released record: release it without a delay, or keep it and renew "
                "its lock (AcknowledgeType.RENEW) until the time has come"
            )
        self._commits.acknowledge(topic, partition, offset, AcknowledgeType.RELEASE, delay_ms=math.ceil(delay * 1000))

    async def settle(
        self,
        records: Sequence[ShareRecord[K, V] | RecordError],
        outputs: Outputs,
        *,
        ordered: bool = False,
        timeout: float | None = None,
    ) -> bool:
        """Accept records of one partition and write outputs, in one step or not at all: even if a process is killed,
        the outputs are there exactly if the records are accepted, and once.

        outputs: records by topic, values or `Message`s as of `Producer.send_many`. ordered: the outputs become visible
        in the order of the partition's offsets: not before all records before these are finished; these are neighbours
        then. Acknowledgements made for records before these are sent first. timeout: seconds (default:
        default_api_timeout). Settles of different records may be under way at once. Locks are not renewed meanwhile.

        False: nothing is written, because some of the records are not in hand any more: they were given to others, or
        acknowledged, or (ordered) given back: they come again behind a record that this consumer released. The others
        may be settled again.
        Raises: IllegalState (implicit mode; a record is being renewed), ValueError, TypeError (no such settle is
        possible), ServerError, RecordTooLarge (an output cannot be written: nothing is, the records stay in hand),
        Unsupported (Kafka's own brokers cannot settle), ClientError (the outcome is not known: settle the same records
        again where the text says so, the outputs are written once at most; otherwise the records come again if they
        are not accepted).
        """
        self._check_explicit()
        named = neighbours(records, ordered=ordered)
        limit_s = self._settings.default_api_timeout if timeout is None else timeout
        return await self._settles.settle(named, messages_of(outputs), ordered=ordered, timeout_s=limit_s)

    async def commit_sync(self, timeout: float | None = None) -> Outcomes:
        """Send the acknowledgements made (implicit mode: accept all records in hand) and wait for the outcomes.

        Returns one entry a partition, also for sends of polls and `commit_async` that are not answered yet: None, or
        the error for which its acknowledgements do not hold (the records may run again). timeout: seconds (default:
        default_api_timeout); a missing answer is an error then.
        """
        with self._turn():
            await self._commits.call_back()
            return await self._commits.send_and_wait(
                accept_rest=not self._explicit,
                timeout_s=self._settings.default_api_timeout if timeout is None else timeout,
            )

    def commit_async(self) -> None:
        """Send as `commit_sync`, without waiting; the callback, if set, gets the outcomes within a later call."""
        self._check_usable()
        self._commits.send(accept_rest=not self._explicit)

    def set_acknowledgement_commit_callback(self, callback: CommitCallback | None) -> None:
        """Set a callback for the outcomes of all acknowledgements: called within poll, commit_sync and close, once a
        partition.

        The callback (a function or a coroutine function) gets the partition with the offsets that were acknowledged
        together, and the error or None. It must not call the consumer. Its exceptions are raised by the call within
        which it was called.
        """
        self._check_usable()
        self._commits.set_callback(callback)

    # --- closing ------------------------------------------------------------------------------------------------

    async def close(self, timeout: float = 30.0) -> Outcomes:
        """Send the acknowledgements made, give back all other records, leave the group, disconnect: within `timeout`
        seconds.

        Returns the outcomes of acknowledgements, as `commit_sync`. Records in hand that were not acknowledged are
        released (implicit mode: those since the last poll or commit); records never handed out go back without costing
        an attempt. Calling it again does nothing.
        """
        if self._closed:
            return {}
        self._check_usable()
        self._closed = True
        self._waker.close()
        self._wake()
        if self._overdue is not None:
            self._overdue.cancel()
        started_s = self._clock.monotonic()
        left_s = CLOSE_LEFT_MIN_S
        try:
            await self._settles.finish(timeout)
            outcomes = await self._commits.finish(max(0.0, timeout - (self._clock.monotonic() - started_s)))
            left_s = max(CLOSE_LEFT_MIN_S, timeout - (self._clock.monotonic() - started_s))
        finally:  # also for a caller who waits no longer: the member must not live on
            try:
                await cancelled(self._joining, self._leaving)
            finally:
                await self._member.close(unrun=self._backlog.unrun(self._member.holds), timeout_s=left_s)
        await self._commits.call_back()
        return outcomes

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # --- a poll's parts -----------------------------------------------------------------------------------------

    async def _begin_poll(self) -> None:
        """Do the common first steps of every poll. Raises: Wakeup, IllegalState, any error of the callback."""
        self._polled_s = self._clock.monotonic()
        if self._overdue is not None:
            self._overdue.cancel()
        self._waker.raise_if_woken()
        await self._commits.call_back()
        if not self._topics:
            raise IllegalState("the consumer is not subscribed to any topic; call subscribe() first")
        self._commits.send(accept_rest=not self._explicit)
        left = self._commits.unacknowledged()
        if left:
            raise IllegalState(
                f"{left} records of the last poll are not acknowledged; in explicit mode acknowledge all before polling"
            )

    async def _renewals_answered(self, timeout: float) -> None:
        renewals = self._commits.renewals
        if renewals:
            await self._waker.wait(asyncio.gather(*renewals, return_exceptions=True), timeout)

    async def _fill(self, timeout: float) -> None:
        """Fetch until there are records to hand out or the time is over. Raises: Wakeup, ServerError."""
        deadline_s = self._clock.monotonic() + timeout
        if not self._joined and not await self._join(timeout):
            return
        while not self._backlog:
            left_s = deadline_s - self._clock.monotonic()
            fetched = await self._member.fetch(
                records_max=self._settings.max_poll_records,
                max_wait_s=max(0.0, min(self._settings.fetch_max_wait, left_s)),
                bytes_max=self._settings.fetch_max_bytes,
                mode=self._settings.acquire_mode,
            )
            for part in fetched:
                self._backlog.receive(part)
            if not self._backlog:
                self._waker.raise_if_woken()
                if self._clock.monotonic() >= deadline_s - WAIT_MIN_S:
                    return

    # --- joining, leaving, being late ---------------------------------------------------------------------------

    async def _join(self, timeout: float) -> bool:
        """Join the group; False if that takes longer than `timeout` seconds. Raises: ServerError, NotConnected."""
        if self._leaving is not None:
            await asyncio.gather(self._leaving, return_exceptions=True)
            self._leaving = None
        if self._joining is None:
            self._joining = asyncio.create_task(self._start(), name="join")
        joining = self._joining
        if not await self._waker.wait(joining, timeout):
            return False
        self._joining = None
        joining.result()
        self._joined = True
        return True

    async def _start(self) -> None:
        """Set the group's isolation, then join. Raises: ServerError, NotConnected."""
        level = self._settings.isolation_level
        if level is not None:
            await set_isolation(self._connect, self._group_id, level, clock=self._clock)
        await self._member.start()

    async def _leave(self) -> None:
        self._joined = False
        joining, self._joining = self._joining, None
        await cancelled(joining)
        await self._member.leave()

    def _arm(self) -> None:
        """Start the timer of `max_poll_interval` seconds until the next poll."""
        if self._overdue is not None:
            self._overdue.cancel()
        self._overdue = self._clock.call_later(self._settings.max_poll_interval, self._late)

    def _late(self) -> None:
        if self._busy or self._closed or not self._joined:
            return
        logger.warning(
            "no poll for %g s: leaving group %s, the next poll joins again; poll more often, or raise "
            "max_poll_interval",
            self._settings.max_poll_interval,
            self._member.group_id,
        )
        self._joined = False
        self._leaving = asyncio.get_running_loop().create_task(self._leave(), name="leave")

    # --- one at a time, and waking ------------------------------------------------------------------------------

    @contextmanager
    def _turn(self) -> Generator[None]:
        self._check_usable()
        if self._busy:
            raise IllegalState("a consumer is used by one task at a time; only wakeup() may come from elsewhere")
        self._loop = asyncio.get_running_loop()
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    def _check_explicit(self) -> None:
        self._check_usable()
        if not self._explicit:
            raise IllegalState("acknowledgements are implicit; set acknowledgement_mode='explicit' to give them")

    def _check_usable(self) -> None:
        if self._closed:
            raise Closed("the consumer was closed")
        if self._commits.in_callback:
            raise IllegalState("the commit callback must not call the consumer")

    def _wake(self) -> None:
        self._waker.wake()
        if self._busy:
            self._member.wakeup()


class Waker:
    """Waits for a future, for a time, or for `wake`; a wake-up without a wait counts for the next wait."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: asyncio.Future[None] | None = None
        self._woken = False
        self._closed = False

    def wake(self) -> None:
        """End the wait under way, or the next one."""
        self._woken = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def close(self) -> None:
        """Make `raise_if_woken` raise Closed from now on."""
        self._closed = True

    def raise_if_woken(self) -> None:
        """Raise an error after a wake-up. Raises: Closed, Wakeup (once for all wake-ups so far)."""
        if self._closed:
            raise Closed("the consumer was closed")
        if self._woken:
            self._woken = False
            raise Wakeup("wakeup() was called")

    async def wait(self, awaited: asyncio.Future[Any], timeout_s: float) -> bool:
        """Wait for a future, for the time, or for a wake-up; True: the future is done. Raises: Wakeup, Closed."""
        self._waiting = asyncio.get_running_loop().create_future()
        both: set[asyncio.Future[Any]] = {awaited, self._waiting}
        try:
            await self._clock.wait_for(asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED), timeout_s)
        except TimeoutError:
            return awaited.done()
        finally:
            self._waiting = None
        if not awaited.done():
            self.raise_if_woken()
        return awaited.done()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
