"""`ShareMember`: one member of one share group in ranges and bytes. `ShareConsumer` and the agents stand on it.

Nothing here is done per record. What is fetched and acknowledged, at which broker and when, is decided by
`client.session.core` and done by `client.session.shell`; heartbeats go to the group's coordinator
(`client.session.membership`).

When a connection to one of Kafka's brokers ends, it gives what this member held over it to others: an acknowledgement
whose outcome is not known is reported as an error and never sent again. Where flowshare leads, members keep what they
hold when another process or worker takes over; what was not answered is sent to it once it has said that the records
are still the member's.
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
from flowshare.protocol.messages import AckBatch, SettleOutput, TopicPartition
from flowshare.protocol.settle_codec import problem
from flowshare.share.types import AcquireMode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from flowshare.client.session.shell import Late, Told
    from flowshare.clock import Clock

__all__ = ["AckResult", "Fetched", "ShareMember", "TopicIdPartition"]

LAST_FETCH_S: Final = 1.0
"""How long a member that stops waits for what its last fetches bring."""

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
        """A member that is not started.

        generations, arrivals: where its connections get their numbers, and where what it fetches goes, for members
        that work together. adopts: it takes an earlier process's place, and `adopt` will be called. joins_again: asked
        whether it joins again when the group has given it up, as it did also when another process took its place;
        None: it does.
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
        """Partitions that this member fetches from."""
        names = self._membership.names
        return frozenset(
            TopicIdPartition(names[tp.topic_id], tp.partition, tp.topic_id) for tp in self._membership.assignment
        )

    @property
    def lock_timeout_ms(self) -> int:
        """How long acquired records are locked, as of the last answer; 0 before the first."""
        return self._shell.core.lock_timeout_ms

    @property
    def generation(self) -> int:
        """How often something that was held was lost; a change means: ask `holds` of all that is held."""
        return self._shell.core.custody.losses

    def holds(self, tp: TopicPartition, generation: int) -> bool:
        """Whether what a `Fetched` of this generation brought can still be this member's."""
        return self._shell.core.holds(tp, generation)

    def acquired_over(self, generation: int) -> bool:
        """Whether this number is one of this member's."""
        return self._shell.core.custody.gave(generation)

    @property
    def trouble(self) -> str | None:
        """Why nothing arrives, in words; None when all is well (there may just be nothing to fetch)."""
        if self._membership.failed is not None:
            return str(self._membership.failed)
        trouble = self._membership.trouble or self._link.trouble or self._shell.trouble
        if trouble:
            return trouble
        if not self._membership.assignment:
            return f"no partition is assigned; do the topics exist: {', '.join(self._membership.topics)}?"
        return None

    # --- joining ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join; returns after the first heartbeat's answer.

        Raises: NotConnected (no server within the settings' connect_timeout), ServerError (the group refuses).
        """
        self._check_open()
        await self._membership.join()
        self._shell.route(await self._link.connection())

    async def adopt(self, held: Mapping[TopicPartition, Sequence[tuple[int, int]]], *, limit_s: float = 10.0) -> None:
        """Take the place of an earlier process with this member id, which held these ranges (first, last: inclusive).

        Call it when partitions are assigned, before the first fetch. What of `held` is still the member's can be
        acknowledged and renewed with `generation=None`; where flowshare leads, what else that process held goes back
        at once, without costing an attempt (on Kafka's brokers when its locks lapse).
        Raises: NotConnected, ConnectionLost, Closed.
        """
        self._check_open()
        await self._shell.adopt(held, limit_s)

    async def confirm(self) -> None:
        """Wait until the group has answered a heartbeat that was sent from now on: then it has not given this member
        up, or has taken it back; in a fleet, what it held before is known as lost then (`holds`).

        Raises: Closed, ServerError (the group refuses the member).
        """
        self._check_open()
        await self._membership.confirm()

    def subscribe(self, topics: Sequence[str]) -> None:
        """Replace the subscribed topics; the group is told at once."""
        self._membership.subscribe(topics)

    def unsubscribe(self) -> None:
        """Leave all partitions to other members, but stay one: what is held stays held, and is acknowledged as ever.

        For a member that stops and finishes its work first: else nobody would fetch meanwhile what only it has.
        """
        self._membership.subscribe(())

    async def leave(self) -> None:
        """Leave the group but stay usable: `start` joins again. What is held may still be acknowledged."""
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

        Empty when there was nothing, when `wakeup` was called, or while the server cannot be reached (then after a
        pause; `trouble` says why). Acquired ranges aim at `batch_size` offsets. With `bytes_max=0` ranges come
        without records. What a cancelled or woken call was about to get is returned by the next call.
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
        """Begin to fetch where no fetch is under way; `fetched` gives what comes of it.

        Raises: ServerError (refused), Closed.
        """
        try:
            self._check_open()
        except ClientError:
            self._shell.act()  # what was to ride on it goes by itself
            raise
        self._shell.ask(plan)

    async def fetched(self) -> list[Fetched]:
        """What the fetches that were asked for bring, once the first has ended; as `fetch`."""
        await self._arrivals.wait()
        return self.take_fetched()

    def on_fetched(self, listener: Callable[[], object] | None) -> None:
        """Call `listener` as soon as a fetch has ended, for who takes it with `take_fetched` and waits for nothing; at
        once when one has ended already. It must not raise. None: nobody any more."""
        self._arrivals.listener = listener
        if listener is not None and self._arrivals.ready:
            listener()

    def take_fetched(self) -> list[Fetched]:
        """What the fetches that have ended brought. Raises: ServerError, Closed, and what they failed with."""
        return [] if self._closing else self._arrivals.take()

    def wakeup(self) -> None:
        """Make the fetch that waits (or else the next one) return at once, empty. Call on the member's loop."""
        self._arrivals.wake()

    async def last_fetch(self) -> list[Fetched]:
        """What is on its way from fetches under way, for a member that stops: what nobody takes waits for `close`.

        Flowshare's servers answer them at once, brokers within their wait; LAST_FETCH_S at most is waited for.
        """
        await self.end_fetches()
        return self._arrivals.take()

    async def end_fetches(self) -> None:
        """Wait for the fetches under way, as `last_fetch`, and leave what they bring."""
        try:
            await self._clock.wait_for(self._shell.end_fetches(), LAST_FETCH_S)
        except TimeoutError:
            logger.info("member %s of %s stops with fetches unanswered", self.member_id, self.group_id)

    # --- acknowledging ------------------------------------------------------------------------------------------

    async def acknowledge(
        self,
        acks: Mapping[TopicPartition, Sequence[AckBatch]],
        *,
        generation: int | None = None,
        on_late: Late | None = None,
    ) -> list[AckResult]:
        """Send acknowledgements now, in one request; one result a partition, in order.

        A result with an error means that nothing of that partition's is known to hold: the records may run again.
        Never raises for what the server or the connection does. With `generation` (of the `Fetched`) of a connection
        that ended nothing is sent and all fail; a partition that another broker leads by now fails alone. RENEW among
        the types makes the request a renewal (KIP-1222).

        In a fleet a partition's leader may be another one meanwhile: what it did not answer is sent to the next one
        while that may know it as this member's. `on_late` is told such outcomes, and those of all nodes but the first
        to answer, which then are not in the list; without it they are waited for. Renewals never wait for a leader:
        LEADER_NOT_AVAILABLE, and what is held stays held.
        """
        return await answered(lambda told: self._shell.acknowledge(acks, told, generation, on_late))

    def begin_acknowledge(
        self,
        acks: Mapping[TopicPartition, Sequence[AckBatch]],
        told: Told,
        *,
        generation: int | None = None,
        on_late: Late | None = None,
        rides: bool = False,
    ) -> None:
        """As `acknowledge`, for who waits in no task: `told` is called once with the results, as soon as they are
        known, maybe before this returns, and must not raise. rides: `ask` is called right after this, and nothing need
        be sent before."""
        self._shell.acknowledge(acks, told, generation, on_late, rides=rides)

    def begin_settle(
        self,
        tp: TopicPartition,
        acks: Sequence[AckBatch],
        outputs: Sequence[SettleOutput],
        told: Told,
        *,
        generation: int | None = None,
        on_late: Late | None = None,
    ) -> None:
        """Accept and reject records of one partition and write outputs, all in one step or nothing: only flowshare's
        servers can (`ApiKey.FLOWSHARE_SETTLE`), others are UNSUPPORTED_VERSION.

        acks: ascending, ACCEPT and REJECT only, each with its attempt. `told` is called once with a list of one result,
        or with none when `on_late` will be told of it, as of `begin_acknowledge`. Any number may be under way; what
        they write counts among the connection's `max_in_flight_bytes`, behind which renewals would wait. With an error
        nothing was done, and the records stay in hand but for those that the result calls refused, or that `holds` says
        are lost. Nobody knows whether it was done where the result's message begins with `outcome unknown`.
        Raises: ValueError (there can be no such settle).
        """
        given = tuple(outputs)
        wrong = problem(acks, given)
        if wrong is not None:
            raise ValueError(f"this cannot be settled: {wrong}")
        self._shell.settle(tp, acks, given, told, generation, on_late)

    # --- closing ------------------------------------------------------------------------------------------------

    async def close(
        self,
        *,
        unrun: Mapping[TopicPartition, Sequence[tuple[int, int]]] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Stop in order, within `timeout_s` (default: the settings').

        No new fetch; acknowledgements in flight are waited for; `unrun` ranges (first, last: inclusive) and what a
        fetch brought that nobody took go back without costing an attempt; the session is closed, which releases
        whatever else is held; the member leaves; the connection is closed. Calling it again does nothing.
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
        """As `close`, for a member whose handlers go on: `unrun` goes back, and what else is held stays locked until
        its locks lapse. The group hears of nothing before the member's time is over."""
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
        back: dict[TopicPartition, list[AckBatch]] = {}
        for tp, runs in unrun.items():
            back[tp] = [AckBatch(first, last, RELEASE, unrun=True) for first, last in runs]
        for fetched in self._arrivals.left:
            more = [AckBatch(run.first, run.last, RELEASE, unrun=True) for run in fetched.acquired]
            back[fetched.tp] = sorted([*back.get(fetched.tp, ()), *more])
        self._shell.acknowledge(back, lambda _: None, None)
        await self._shell.all_told()

    async def abandon(self) -> None:
        """End the connections and say nothing: for a member whose place another process has taken. What is held is that
        process's, by the same member id, and a word about it would give it away."""
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
