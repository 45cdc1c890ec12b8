"""`SlotGroup`: this worker's membership in the fleet's slot group, an ordinary consumer group over the state topic.

    OUT ──join──▶ JOINED ──sync──▶ IN ──a heartbeat says that there is a new round──▶ JOINED
     ▲                              │
     ├─ expelled (UNKNOWN_MEMBER_ID), in doubt at once ─┤
     ├─ fenced: another process has the static id ──────┤       OUT ──refused before the first map──▶ ENDED
     └─ refused what it was allowed before ─────────────┘

    state    lease                                      action
    OUT      off                                        join under the static id, after a fence under another one;
                                                        bounded pauses between tries, after a refusal `REFUSED_S`
    JOINED   as it was; runs out by itself              sync; the group's leader gives all members the map (`plan`)
    IN       until the last proof + session − margin    a heartbeat every `heartbeat_s`; over a new connection after one
                                                        that was not answered
    ENDED    off                                        `start` raises the reason; nothing more happens
    left     runs out by itself                         the worker gives its slots away meanwhile

A map that answers another process's metadata under the same static id (`SlotMap.stamp`) is not taken: the worker sends
its own and joins again. The group has connections of its own, because the broker parks JoinGroup, and no other part has
to notice so soon that a broker does not answer.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from flowshare.backoff import QUICK
from flowshare.client.errors import ClientError, ConnectionLost, NotConnected
from flowshare.client.groups.membership import GroupRefused, GroupSettings, Membership, Verdict
from flowshare.fleet.inspection import described
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import JoinGroupResponse
from flowshare.slots.errors import MembershipError
from flowshare.slots.membership import PROTOCOL, SlotGroupMember, SlotMap, Told, decode_map, encode_told
from flowshare.slots.planning import plan
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from flowshare.client.net.cluster import Cluster
    from flowshare.client.net.routing import ClusterConnection
    from flowshare.clock import Clock, TimerHandle

START_S: Final = 60.0
LEAVE_S: Final = 3.0
REFUSED_S: Final = 10.0
"""Pause, in s, after a refusal that a person has to mend."""
INSTANCE_MAX: Final = 200
"""The length of a given-up static id that begins the next one."""
REFUSALS: Final[Mapping[ErrorCode, str]] = {
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "the workers need READ and DESCRIBE on this group",
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "the group has members that are no workers of this fleet, or of another "
    "release; end them, or give the fleet another name",
    ErrorCode.INVALID_SESSION_TIMEOUT: "the brokers' group.min.session.timeout.ms and group.max.session.timeout.ms do "
    "not allow the fleet's session; change them",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "the brokers' group.max.size does not allow more workers",
    ErrorCode.INVALID_GROUP_ID: "give the fleet another name",
}
"""Errors that trying again does not mend, with their remedies."""

logger = logging.getLogger(__name__)


class SlotGroupRefused(ClientError):
    """Error: this worker cannot be a member of the fleet's slot group, and trying again does not help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotGroupSettings:
    """Times in seconds. A worker that dies is noticed after `session_s`; a new round is over after `rebalance_s` at
    most.

    margin_s: the lease ends this long before the session can, for clocks that run apart and answers under way.
    """

    session_s: float = 6.0
    heartbeat_s: float = 0.5
    rebalance_s: float = 3.0
    margin_s: float = 1.0

    @property
    def answer_s(self) -> float:
        """The time for a heartbeat: after two that a lost coordinator took, time for more is left."""
        return self.session_s / 5


@dataclass(eq=False)
class SlotGroup:
    """One worker's membership. All callbacks are called on the loop, and must not raise.

    topic: the state topic; the group has the same name. instance: the worker's static id. node_id: drawn at random; the
    map may give another one (`SlotMap.node_id`). claims: returns slot -> epoch of this worker's present claims. on_map:
    gets the whole map after each round. on_doubt: gets True when `sure` becomes False, and the reverse. cached: slots
    that it could take up quickest, as it starts. key: the mark of the worker's keys (`fleet.peer_login`).
    """

    brokers: Cluster
    _: KW_ONLY
    topic: str
    slots: int
    instance: str
    node_id: int
    claims: Callable[[], Mapping[int, int]]
    on_map: Callable[[SlotMap], object]
    on_doubt: Callable[[bool], object]
    clock: Clock
    cached: Sequence[int] = ()
    may_lead: bool = True
    key: str = ""
    settings: SlotGroupSettings = SlotGroupSettings()

    def __post_init__(self) -> None:
        self._lease = SlotLease(self.clock, self.settings.session_s - self.settings.margin_s, self.on_doubt)
        self._turn = 0
        self._cluster = self._apart()
        self._kafka = self._cluster.connect(self.instance)
        self._old: list[ClusterConnection | Cluster] = []
        """Connections that were given up, until they are closed; a cancelled close leaves them to the next one."""
        self._address = "", 0
        self._tellings = 0
        self._state = self._membership()
        self._first: asyncio.Future[SlotMap] | None = None
        self._task: asyncio.Task[None] | None = None
        self._now = asyncio.Event()
        self.map: SlotMap | None = None
        """The last map."""

    def _membership(self) -> Membership:
        """Return the state of a worker that was in no round yet, under the present static id."""
        times = GroupSettings(
            session_timeout=self.settings.session_s,
            rebalance_timeout=self.settings.rebalance_s,
            instance_id=self.instance,
        )
        return Membership(self.topic, protocol=PROTOCOL, settings=times, advice=REFUSALS)

    # --- for the worker -----------------------------------------------------------------------------------------

    @property
    def sure(self) -> bool:
        """True if this worker may still act for its slots."""
        return self._lease.sure

    async def start(self, host: str, port: int, limit_s: float = START_S) -> SlotMap:
        """Join as the worker that is reached at this address; return the first map.

        Raises: SlotGroupRefused, ClientError (trying again does not help), NotConnected (not in time).
        """
        assert self._task is None, "a membership starts once"
        self._address = host, port
        self._first = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(), name=f"slot group {self.topic}")
        try:
            return await self.clock.wait_for(asyncio.shield(self._first), limit_s)
        except TimeoutError:
            self._first.cancel()
            await self.close()
            raise NotConnected(
                f"the slot group {self.topic} could not be joined within {limit_s:g} s; look at the brokers' logs"
            ) from None

    def look(self) -> None:
        """Send the next heartbeat now: there may be a new round."""
        self._now.set()

    async def leave(self) -> None:
        """Let others be chosen for the slots, at once. The lease runs out by itself: time to give the slots away."""
        await self._stop()
        leave, self._state = self._state.leave(for_good=True), self._membership()
        if leave is not None:
            try:
                await self._ask(leave, LEAVE_S)
            except (OSError, ClientError) as error:
                logger.info("the slot group was not told that this worker leaves: %s group=%s", error, self.topic)

    async def close(self) -> None:
        """Leave, unless left already, and close all connections."""
        await self.leave()
        self._lease.end()
        for one in (*self._old, self._kafka, self._cluster):
            await one.close()

    async def _stop(self) -> None:
        task, self._task = self._task, None
        await cancelled(task)

    # --- the life of a member -----------------------------------------------------------------------------------

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                if await self._round():
                    failures = 0
                    await self._beat()
                    continue
            except OSError as error:
                logger.info("the slot group's coordinator is not reached: %s group=%s", error, self.topic)
                await self._reconnect()
            except Exception as error:  # noqa: BLE001 - refusals, and faults of ours: told, and tried again
                if not self._tries_again(error):
                    return
                await self.clock.sleep(REFUSED_S)
            failures += 1
            await self.clock.sleep(QUICK.after(failures))

    async def _round(self) -> bool:
        """Join and sync; False: the round has to be done again. Raises OSError, SlotGroupRefused, ClientError."""
        settings = self.settings
        told = self._told()
        join = self._state.join(encode_told(self.topic, told))
        joined = await self._ask(join, settings.session_s + 2 * settings.rebalance_s)
        if not self._goes_on(joined.error):
            return False
        self._state.joined(joined)
        given, planned = self._given(joined)
        sent_s = self.clock.monotonic()
        synced = await self._ask(self._state.sync(joined, given), settings.session_s + settings.rebalance_s)
        if not self._goes_on(synced.error):
            return False
        found = await self._taken(synced.assignment, told, planned)
        if found is None:
            return False
        self._take(found, sent_s)
        return True

    def _told(self) -> Told:
        last, (host, port) = self.map, self._address
        return Told(
            node_id=self.node_id if last is None else last.node_id,
            host=host,
            port=port,
            may_lead=self.may_lead,
            claims=dict(self.claims()),
            assigned=tuple(self.cached) if last is None else last.mine(last.node_id),
            generation=-1 if last is None else last.generation,
            stamp=f"{self.node_id} {host}:{port} {self._tellings}",
            key=self.key,
        )

    def _given(self, joined: JoinGroupResponse) -> tuple[tuple[tuple[str, bytes], ...], SlotMap | None]:
        """Plan assignments for all workers, if this worker is the group's leader. Returns the assignments and their
        map."""
        if joined.leader != joined.member_id or joined.skip_assignment:
            return (), None
        members = [SlotGroupMember(one.member_id, one.metadata) for one in joined.members]
        made = plan(members, topic=self.topic, slots=self.slots, generation=joined.generation)
        for warning in made.warnings:
            logger.warning("%s group=%s", warning, self.topic)
        return made.assignments, made.map

    async def _taken(self, assignment: bytes, told: Told, planned: SlotMap | None) -> SlotMap | None:
        """Return the map that this worker was given; None: unusable, ask again."""
        try:
            found = decode_map(assignment)
        except MembershipError as error:
            logger.warning("the slot group's leader gives what this worker cannot read: %s; upgrade the workers "
                           "that are older group=%s", error, self.topic)  # fmt: skip
            self._tellings += 1
            return None
        if found.stamp != told.stamp:
            self._tellings += 1  # news, so that a new round begins
            return None
        if (found.topic, found.slots) != (self.topic, self.slots):
            raise SlotGroupRefused(
                f"the slot group {self.topic} shares out {found.slots} slots of {found.topic}, this worker knows "
                f"{self.slots} of {self.topic}: restart the worker that is wrong"
            )
        if found.whole:
            return found
        whole = planned or await described(self._kafka, self.topic)
        if whole is None or whole.generation != found.generation:
            return None
        return replace(whole, node_id=found.node_id, stamp=found.stamp)

    def _take(self, found: SlotMap, sent_s: float) -> None:
        """Take over a map: the worker is in."""
        self.map = found
        self.on_map(found)
        self._lease.proved(sent_s)
        if self._first is not None and not self._first.done():
            self._first.set_result(found)

    async def _beat(self) -> None:
        """Send heartbeats until a new round is needed. Raises SlotGroupRefused, ClientError."""
        failures = 0
        while True:
            await self._rest(QUICK.after(failures) or self.settings.heartbeat_s)
            try:
                if not await self._beat_once():
                    return
            except OSError as error:
                failures += 1
                logger.info("a heartbeat was not answered: %s group=%s", error, self.topic)
                await self._reconnect()
            else:
                failures = 0

    async def _rest(self, pause_s: float) -> None:
        """Wait for the pause, or until `look`."""
        self._now.clear()
        with suppress(TimeoutError):
            await self.clock.wait_for(self._now.wait(), pause_s)

    async def _beat_once(self) -> bool:
        """Send a heartbeat; True if the group has not changed. Raises: OSError, SlotGroupRefused, ClientError."""
        sent_s = self.clock.monotonic()
        answer = await self._ask(self._state.beat(), self.settings.answer_s)
        if answer.error in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            self._lease.proved(sent_s)
        return self._goes_on(answer.error)

    def _tries_again(self, error: Exception) -> bool:
        """End the lease after a refusal; True if the refusal may be mended while this worker runs. A worker that never
        was a member gives up."""
        if not isinstance(error, ClientError):
            logger.error("a fault of ours in the slot group group=%s", self.topic, exc_info=error)
            error = ClientError(f"the slot group {self.topic} was left by a fault of flowshare's: {error!r}")
        self._lease.end()
        if self._first is not None and not self._first.done():
            self._first.set_exception(error)
            return False
        logger.error("this worker leads nothing until its fleet takes it back, tried every %g s: %s", REFUSED_S, error)
        return True

    # --- asking -------------------------------------------------------------------------------------------------

    async def _ask(self, request: Any, limit_s: float) -> Any:
        """Send a request. Raises OSError, ClientError (trying again does not help)."""
        try:
            return await self.clock.wait_for(self._kafka.send(request), limit_s)
        except TimeoutError:
            raise ConnectionLost(f"no answer to {type(request).__name__} within {limit_s:g} s") from None

    async def _reconnect(self) -> None:
        """Open new connections for the next request, whatever the fault, and ask another broker for the coordinator.

        A broker that is frozen, or behind a cut, accepts connections and never answers.
        """
        old, self._turn = (self._kafka, self._cluster), self._turn + 1
        self._cluster = self._apart()
        self._kafka = self._cluster.connect(self.instance)
        self._old += old
        while self._old:
            await self._old[-1].close()
            self._old.pop()

    def _apart(self) -> Cluster:
        limit_s = self.settings.answer_s
        settings = replace(self.brokers.settings, connect_timeout=limit_s, request_timeout=limit_s)
        return self.brokers.apart(settings, turn=self._turn)

    def _goes_on(self, error: ErrorCode) -> bool:
        """True if the answer is good; False: a new round has to begin. Raises OSError, SlotGroupRefused."""
        if error is ErrorCode.FENCED_INSTANCE_ID:
            name = f"{self.instance[:INSTANCE_MAX]}-{secrets.token_hex(4)}"
            logger.error("another process joined the fleet as %s: give each worker a state directory of its own; this "
                         "one goes on as %s group=%s", self.instance, name, self.topic)  # fmt: skip
            self.instance = name
            self._state = self._membership()
            self._lease.end()
            return False
        try:
            verdict = self._state.verdict(error)
        except GroupRefused as refused:
            raise SlotGroupRefused(f"slot {refused}") from None
        if verdict is Verdict.GONE:
            logger.warning("the slot group gave this worker up; it joins again group=%s", self.topic)
            self._lease.end()
        return verdict is Verdict.GOOD


class SlotLease:
    """Lease that lets a worker act for its slots, by the answers of its slot group's coordinator.

    Invariant: `sure` is True only while the coordinator cannot have given the worker up by itself. A proof is an answer
    that the coordinator gives only to its members; it counts from the time when the question was sent. The lease is a
    brake, no fence: the slot's log decides who owns the slot. The lease is checked against the clock itself, so a
    process that was frozen notices.

        off ──proved──▶ on, until the question was sent + session − margin ──proved──▶ on, until later
         ▲                │
         └── time is up, or `end` ──┘

    length_s: session less margin. on_doubt: called at each change: True: the lease is off.
    """

    def __init__(self, clock: Clock, length_s: float, on_doubt: Callable[[bool], object]) -> None:
        self._clock = clock
        self._length_s = length_s
        self._on_doubt = on_doubt
        self._until_s = -math.inf
        self._timer: TimerHandle | None = None

    @property
    def sure(self) -> bool:
        """True if the lease is on. This is asked before each answer, so it costs next to nothing."""
        return self._clock.monotonic() < self._until_s

    def proved(self, sent_s: float) -> None:
        """Extend the lease: the coordinator had this worker for a member at `sent_s` or later."""
        until_s = sent_s + self._length_s
        left_s = until_s - self._clock.monotonic()
        if left_s <= 0:
            return  # the answer came too late to prove anything
        if self._timer is not None and not self.sure:
            self.end()  # the lease ran out, and its timer is late
        timer, self._timer = self._timer, self._clock.call_later(left_s, self.end)
        self._until_s = until_s
        if timer is None:
            self._on_doubt(False)
        else:
            timer.cancel()

    def end(self) -> None:
        """End the lease until the next proof."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._until_s = -math.inf
            self._on_doubt(True)
