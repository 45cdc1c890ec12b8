"""`ShareMember`: one member of one share group, in ranges and bytes. `ShareConsumer` and the agents are built on it.

No work here is done per record. `client.session.core` decides what is fetched and acknowledged, at which broker and
when; `client.session.shell` does it. Heartbeats go to the group's coordinator (`client.session.membership`).

When a connection to a Kafka broker ends, the broker gives the records held over it to others: an acknowledgement with
an unknown outcome is reported as an error and never sent again. With flowshare's servers, members keep their records
when another process or worker takes over; unanswered acknowledgements are sent to it once it has confirmed the records.
"""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, Final

from flowshare.client.errors import ClientError, Closed, IllegalState
from flowshare.client.net.link import Connect, Link
from flowshare.client.session.arrivals import Arrivals
from flowshare.client.session.custody import Generations
from flowshare.client.session.membership import Membership
from flowshare.client.session.ranges import AckResult, Fetched, TopicIdPartition
from flowshare.client.session.share_session import RELEASE, Plan
from flowshare.client.session.shell import SessionShell, answered
from flowshare.client.settings import MIB, MemberSettings
from flowshare.protocol.messages import MetadataRequest, SettleOutput, TopicPartition
from flowshare.protocol.settle_codec import problem
from flowshare.share.ranges import merged
from flowshare.share.types import AckRange, AcquireMode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from flowshare.client.session.shell import Late, Told
    from flowshare.clock import Clock
    from flowshare.protocol.messages import TopicMetadata

__all__ = ["AckResult", "Fetched", "ShareMember", "TopicIdPartition"]

LAST_FETCH_S: Final = 1.0
"""The longest time, in seconds, that a member that stops waits for the records of its last fetches."""

logger = logging.getLogger(__name__)


class ShareMember:
    """One member of one share group. One task fetches; any number acknowledge."""

    def __init__(
        self,
        connect: Connect,
        *,
        group_id: str,
        topics: Sequence[str],
        clock: Clock,
        member_id: str | None = None,
        settings: MemberSettings | None = None,
        generations: Generations | None = None,
        arrivals: Arrivals | None = None,
        adopts: bool = False,
        joins_again: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        """Create a member that is not started.

        generations, arrivals: shared by members that work together; the source of their numbers, and the place of their
        fetched records. adopts: the member takes an earlier process's place, and `adopt` will be called. joins_again:
        asked if the member joins again when the group has given it up, also when another process took its place; None:
        it joins.
        """
        self.group_id = group_id
        self.member_id = member_id or str(uuid.uuid4())
        self._clock = clock
        self._settings = settings or MemberSettings()
        name = f"member {self.member_id} of {group_id}"
        self._link = Link(
            connect,
            clock=clock,
            settings=self._settings.link,
            name=name,
            on_lost=lambda: self._shell.lost(),
            on_open=lambda connection: self._shell.opened(connection),
        )
        self._membership = Membership(
            self._link,
            group_id=group_id,
            member_id=self.member_id,
            topics=topics,
            clock=clock,
            settings=self._settings,
            on_assignment=lambda: self._shell.assign(),
            on_given_up=lambda: self._shell.given_up(),
            joins_again=joins_again,
        )
        self._arrivals = arrivals or Arrivals()
        self._shell = SessionShell(
            self._link,
            self._membership,
            clock=clock,
            settings=self._settings.link,
            name=name,
            generations=generations or Generations(),
            arrivals=self._arrivals,
            adopts=adopts,
        )
        self._closing = False

    # --- what is known ------------------------------------------------------------------------------------------

    @property
    def assignment(self) -> frozenset[TopicIdPartition]:
        """The partitions that this member fetches from."""
        names = self._membership.names
        return frozenset(
            TopicIdPartition(names[tp.topic_id], tp.partition, tp.topic_id) for tp in self._membership.assignment
        )

    @property
    def failed(self) -> ClientError | None:
        """The error with which the group refused this member, which is out of it for good; None: it is in, or joins
        again."""
        return self._membership.failed

    @property
    def at_flowshare(self) -> bool:
        """True if the servers are flowshare's own: they settle records with outputs, delay releases, and keep held
        records for a member whose connection ended. False before the member has joined."""
        return self._shell.core.keeps

    @property
    def lock_timeout_ms(self) -> int:
        """The lock duration of acquired records in milliseconds, as of the last answer; 0 before the first."""
        return self._shell.core.lock_timeout_ms

    @property
    def generation(self) -> int:
        """The number of losses of held records; after a change, ask `holds` for all held records."""
        return self._shell.core.custody.losses

    def holds(self, tp: TopicPartition, generation: int) -> bool:
        """Tell if records of a `Fetched` of this generation can still be this member's."""
        return self._shell.core.holds(tp, generation)

    def acquired_over(self, generation: int) -> bool:
        """Tell if this number is one of this member's."""
        return self._shell.core.custody.gave(generation)

    @property
    def trouble(self) -> str | None:
        """The reason why no records arrive, in words; None: no trouble (there may just be nothing to fetch)."""
        if self._membership.failed is not None:
            return str(self._membership.failed)
        trouble = self._membership.trouble or self._link.trouble or self._shell.trouble
        if trouble:
            return trouble
        if not self._membership.assignment:
            return f"no partition is assigned; do the topics exist: {', '.join(self._membership.topics)}?"
        return None

    def counts(self) -> dict[str, float]:
        """Return the counters of this member, by the names of Kafka's consumer metrics."""
        beaten_s = self._membership.beaten_s
        return {
            "fetch_total": self._shell.fetches,
            "heartbeat_total": self._membership.heartbeats,
            "last_heartbeat_seconds_ago": -1.0 if beaten_s is None else self._clock.monotonic() - beaten_s,
            "rebalance_total": self._membership.rebalances,
            "assigned_partitions": len(self._membership.assignment),
        }

    # --- joining ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join the group; return after the answer to the first heartbeat.

        Raises: NotConnected (no server within the settings' connect_timeout), ServerError (the group refuses).
        """
        self._check_open()
        await self._membership.join()
        self._shell.route(await self._link.connection())

    async def adopt(self, held: Mapping[TopicPartition, Sequence[tuple[int, int]]], *, limit_s: float = 10.0) -> None:
        """Take the place of an earlier process with this member id, which held these ranges (first, last: inclusive).

        Call it when partitions are assigned, before the first fetch. Records of `held` that are still the member's can
        be acknowledged and renewed with `generation=None`. Flowshare's servers give back all other records of that
        process at once, without costing an attempt; Kafka's brokers do when the locks lapse. limit_s: the longest wait,
        in seconds.
        Raises: NotConnected, ConnectionLost, Closed.
        """
        self._check_open()
        await self._shell.adopt(held, limit_s)

    async def confirm(self) -> None:
        """Wait until the group has answered a heartbeat that is sent from now on.

        Then the group has not given this member up, or has taken it back; in a fleet, `holds` then knows what was lost.
        Raises: Closed, ServerError (the group refuses the member).
        """
        self._check_open()
        await self._membership.confirm()

    def subscribe(self, topics: Sequence[str]) -> None:
        """Replace the subscribed topics; the group is told at once."""
        self._membership.subscribe(topics)

    def unsubscribe(self) -> None:
        """Leave all partitions to other members, but stay a member: held records stay held and are acknowledged as
        ever.

        For a member that finishes its work and stops: else no member would fetch meanwhile the partitions that only it
        has.
        """
        self._membership.subscribe(())

    async def leave(self) -> None:
        """Leave the group but stay usable: `start` joins again. Held records may still be acknowledged."""
        await self._membership.leave()

    # --- fetching -----------------------------------------------------------------------------------------------

    async def fetch(
        self,
        *,
        records_max: int,
        batch_size: int | None = None,
        max_wait_s: float = 0.5,
        bytes_max: int = 50 * MIB,
        mode: AcquireMode = AcquireMode.BATCH_OPTIMIZED,
    ) -> list[Fetched]:
        """Acquire up to about `records_max` records, waiting up to `max_wait_s` for the first.

        The result is empty when there was nothing to fetch, when `wakeup` was called, or while the server cannot be
        reached (then after a pause; `trouble` gives the reason). Acquired ranges aim at `batch_size` offsets. With
        `bytes_max=0` ranges come without records. The records of a cancelled or woken call are returned by the next
        call.
        Raises: ServerError (refused), Closed, IllegalState (two fetches at once).
        """
        self._check_open()
        if self._arrivals.awaited:
            raise IllegalState("one fetch of a member at a time; wait for the other call")
        if self._arrivals.take_wake():
            return []
        if not self._arrivals.ready:
            self.ask(Plan(records_max, batch_size or max(1, records_max), max_wait_s, bytes_max, mode))
        return await self.fetched()

    def ask(self, plan: Plan) -> None:
        """Begin to fetch where no fetch is under way; `fetched` returns the records.

        Raises: ServerError (refused), Closed.
        """
        try:
            self._check_open()
        except ClientError:
            self._shell.act()  # what was to ride on it goes by itself
            raise
        self._shell.ask(plan)

    async def fetched(self) -> list[Fetched]:
        """Wait until the first requested fetch has ended, and return the records that have arrived; as `fetch`."""
        await self._arrivals.wait()
        return self.take_fetched()

    def on_fetched(self, listener: Callable[[], object] | None) -> None:
        """Set a callback for the end of a fetch, for callers that use `take_fetched` and do not wait; None: no
        callback.

        The callback is called at once when a fetch has ended already. It must not raise.
        """
        self._arrivals.listener = listener
        if listener is not None and self._arrivals.ready:
            listener()

    def take_fetched(self) -> list[Fetched]:
        """Take the records of the fetches that have ended. Raises: ServerError, Closed, any error of a fetch."""
        return [] if self._closing else self._arrivals.take()

    def wakeup(self) -> None:
        """Make the fetch that waits (or else the next one) return at once, empty. Call on the member's loop."""
        self._arrivals.wake()

    async def last_fetch(self) -> list[Fetched]:
        """End the running fetches and return their records, for a member that stops: records that are not taken wait
        for `close`.

        Flowshare's servers answer the fetches at once, brokers within their wait; this waits at most LAST_FETCH_S.
        """
        await self.end_fetches()
        return self._arrivals.take()

    async def end_fetches(self) -> None:
        """Wait for the fetches under way, as `last_fetch`, but do not take their records."""
        try:
            await self._clock.wait_for(self._shell.end_fetches(), LAST_FETCH_S)
        except TimeoutError:
            logger.info("member %s of %s stops with fetches unanswered", self.member_id, self.group_id)

    # --- acknowledging ------------------------------------------------------------------------------------------

    async def acknowledge(
        self,
        acks: Mapping[TopicPartition, Sequence[AckRange]],
        *,
        generation: int | None = None,
        on_late: Late | None = None,
    ) -> list[AckResult]:
        """Send acknowledgements now, in one request; return one result a partition, in order.

        A result with an error means that no acknowledgement of that partition is known to hold: the records may run
        again. Errors of the server or the connection are never raised. With the `generation` (of the `Fetched`) of a
        connection that ended, nothing is sent and all fail; a partition that another broker leads by now fails alone.
        RENEW among the types makes the request a renewal (KIP-1222).

        In a fleet a partition may have a new leader: acknowledgements that the old one did not answer are sent to the
        new one while it may know the records as this member's. `on_late` gets such outcomes, and those of all nodes but
        the first to answer, which then are missing in the list; without `on_late` the call waits for them. Renewals
        never wait for a leader: they fail with LEADER_NOT_AVAILABLE, and the records stay held.
        """
        return await answered(lambda told: self._shell.acknowledge(acks, told, generation, on_late))

    def begin_acknowledge(
        self,
        acks: Mapping[TopicPartition, Sequence[AckRange]],
        told: Told,
        *,
        generation: int | None = None,
        on_late: Late | None = None,
        rides: bool = False,
    ) -> None:
        """Send acknowledgements as `acknowledge`, but without waiting: `told` is called once with the results.

        `told` may be called before this returns, and must not raise. rides: `ask` is called right after this, and
        nothing need be sent before.
        """
        self._shell.acknowledge(acks, told, generation, on_late, rides=rides)

    def begin_settle(
        self,
        tp: TopicPartition,
        acks: Sequence[AckRange],
        outputs: Sequence[SettleOutput],
        told: Told,
        *,
        generation: int | None = None,
        on_late: Late | None = None,
        ordered: bool = False,
    ) -> None:
        """Accept and reject records of one partition and write outputs, in one step or not at all.

        Only flowshare's servers can (`ApiKey.FLOWSHARE_SETTLE`); others give UNSUPPORTED_VERSION.

        acks: ascending, ACCEPT and REJECT only, each with its attempt. ordered: not before all records before these are
        finished; these are one run of offsets then, and the server waits a few seconds at most (REQUEST_TIMED_OUT: ask
        again). `told` is called once with a list of one result,
        or an empty one when `on_late` will get the result, as of `begin_acknowledge`. Any number of settles may be
        under way; their outputs count towards the connection's `max_in_flight_bytes`, behind which renewals would wait.
        After an error nothing was done, and the records stay held, but for those that the result calls refused, or that
        `holds` reports as lost. The outcome is unknown where the result's message begins with `outcome unknown`.
        Raises: ValueError (there can be no such settle).
        """
        given = tuple(outputs)
        wrong = problem(acks, given)
        if wrong is not None:
            raise ValueError(f"this cannot be settled: {wrong}")
        self._shell.settle(tp, acks, given, told, generation, on_late, ordered=ordered)

    async def settle(
        self,
        tp: TopicPartition,
        acks: Sequence[AckRange],
        outputs: Sequence[SettleOutput],
        *,
        generation: int | None = None,
        ordered: bool = False,
    ) -> AckResult:
        """Settle as `begin_settle`, and wait for the outcome, however late it comes. Raises: ValueError."""

        def begin(told: Told) -> None:
            self.begin_settle(tp, acks, outputs, told, generation=generation, ordered=ordered)

        [result] = await answered(begin)
        return result

    async def topics(self, names: Sequence[str]) -> tuple[TopicMetadata, ...]:
        """Look up topics that this member is to write to. Raises: NotConnected, ConnectionLost, Closed."""
        self._check_open()
        return (await self._link.send(MetadataRequest(topics=tuple(names)))).topics

    # --- closing ------------------------------------------------------------------------------------------------

    async def close(
        self,
        *,
        unrun: Mapping[TopicPartition, Sequence[tuple[int, int]]] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Stop in order, within `timeout_s` (default: the settings' `close_timeout`).

        No new fetch is sent, and acknowledgements in flight are waited for. `unrun` ranges (first, last: inclusive) and
        fetched records that were not taken go back without costing an attempt. Then the session is closed, which
        releases all other held records, the member leaves the group, and the connection is closed. Calling it again
        does nothing.
        """
        if self._closing:
            return
        self._closing = True
        self.wakeup()
        limit_s = self._settings.close_timeout if timeout_s is None else timeout_s
        try:
            await self._clock.wait_for(self._close(unrun or {}), limit_s)
        except TimeoutError:
            logger.warning("member %s of %s closed late: not all was answered", self.member_id, self.group_id)
        finally:
            await self._end()

    async def leave_to_locks(
        self, *, unrun: Mapping[TopicPartition, Sequence[tuple[int, int]]], timeout_s: float | None = None
    ) -> None:
        """Close as `close`, for a member whose handlers go on: `unrun` goes back, other held records stay locked until
        the locks lapse. The member does not leave the group: its session there ends by itself."""
        if self._closing:
            return
        self.unsubscribe()
        self._closing = True
        self.wakeup()
        limit_s = self._settings.close_timeout if timeout_s is None else timeout_s
        try:
            await self._clock.wait_for(self._give_back(unrun), limit_s)
        except TimeoutError:
            logger.warning("member %s of %s closed late: not all was answered", self.member_id, self.group_id)
        finally:
            await self._end()

    async def _give_back(self, unrun: Mapping[TopicPartition, Sequence[tuple[int, int]]]) -> None:
        await self.end_fetches()
        back = {tp: list(runs) for tp, runs in unrun.items()}
        for fetched in self._arrivals.left:
            if self._shell.core.custody.holds(fetched.tp, fetched.generation):
                back.setdefault(fetched.tp, []).extend((run.first, run.last) for run in fetched.acquired)
        # The server refuses all of a partition when one range is out of order, and ranges of several chunks are.
        acks = {tp: [AckRange(*run, RELEASE, unrun=True) for run in merged(runs)] for tp, runs in back.items()}
        self._shell.acknowledge(acks, lambda _: None, None)
        await self._shell.all_told()

    async def abandon(self) -> None:
        """End the connections without a message, for a member whose place another process has taken. The held records
        are that process's, by the same member id, and a message about them would give them away."""
        self._closing = True
        self.wakeup()
        await self._end()

    async def _close(self, unrun: Mapping[TopicPartition, Sequence[tuple[int, int]]]) -> None:
        await self.end_fetches()
        await self._shell.all_told()
        back: dict[TopicPartition, list[tuple[int, int, int]]] = {}
        for tp, runs in unrun.items():
            back[tp] = [(first, last, self._shell.core.custody.generation) for first, last in runs]
        for fetched in self._arrivals.left:
            runs_back = back.setdefault(fetched.tp, [])
            runs_back += [(run.first, run.last, fetched.generation) for run in fetched.acquired]
        await self._shell.close_sessions(back)
        await self._membership.leave()

    async def _end(self) -> None:
        await self._membership.stop()
        await self._shell.close()
        await self._link.close()

    # --- helpers ------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closing:
            raise Closed(f"member {self.member_id} of {self.group_id} is closed")
        if self._membership.failed is not None:
            raise self._membership.failed
