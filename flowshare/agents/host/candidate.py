"""This process as a member of its app's lease group, which names the process that runs `on_leader` functions.

The group, `__flowshare_leader.<app id>`, is a consumer group that reads nothing. On a Kafka cluster the brokers
coordinate it, also where workers lead the share groups; on an embedded path the holder of the path does. This module
asks for the lease; `Lease` says when it is held, and why never in two processes at once.

    OUT ──join, sync──▶ IN ──a heartbeat says that there is a new generation──▶ OUT, as a member that is known
     ▲                  │
     └─ given up, refused, no answer for so long that the connection was lost ─┘

The member that the coordinator makes the group's leader names one member to all: the member that was named last, as far
as the members know, if it is still there; else the member with the lowest id.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Final

import orjson

from flowshare.agents.host.lease import Lease, Moment
from flowshare.backoff import Backoff
from flowshare.client.errors import ClientError
from flowshare.client.groups.membership import GroupRefused, GroupSettings, Membership, Verdict
from flowshare.client.net.link import Connect, Link
from flowshare.client.settings import LinkSettings
from flowshare.clock import Clock
from flowshare.groups.types import JoinedMember
from flowshare.protocol.errors import ErrorCode
from flowshare.tasks import cancelled

PROTOCOL_TYPE: Final = "flowshare-leader"
PROTOCOL: Final = "1"
SESSION_S: Final = 6.0
"""Seconds until a dead process is noticed: the least that Kafka's brokers allow."""
REBALANCE_S: Final = 3.0
"""Seconds that a new generation waits for members that stand still."""
DELAY_S: Final = 5.0
"""Seconds that a broker may wait for more members of an empty group (group.initial.rebalance.delay.ms is 3 s)."""
BEAT_S: Final = 0.5
ANSWER_S: Final = 2.0
"""Seconds that a heartbeat may take; then it is sent over another connection."""
LEAVE_S: Final = 1.0
REFUSED_S: Final = 10.0
"""Seconds of pause after a refusal that an operator has to mend."""
ADVICE: Final = {
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "its login needs READ on this group",
    ErrorCode.INVALID_SESSION_TIMEOUT: f"the brokers' group.min.session.timeout.ms is above {SESSION_S:g} s: lower it",
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "there is a group of another kind under this name: delete it",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "the brokers' group.max.size does not allow more processes",
}

logger = logging.getLogger("flowshare.agents")


def leader_group(app_id: str) -> str:
    """Return the name of an app's lease group."""
    return f"__flowshare_leader.{app_id}"


@dataclass(frozen=True, slots=True)
class Known:
    """A member's knowledge of the lease: the last named member that it heard of, and the generation that named it."""

    generation: int = 0
    member_id: str = ""

    def encode(self) -> bytes:
        """Encode it, as metadata of a member and as an assignment."""
        return orjson.dumps({"generation": self.generation, "member": self.member_id})

    @classmethod
    def decode(cls, data: bytes) -> Known:
        """Read the output of `encode`; other bytes give a `Known` that names nobody."""
        try:
            read = orjson.loads(data)
            return cls(int(read["generation"]), str(read["member"]))
        except (ValueError, TypeError, KeyError):
            return cls()


def choose(members: tuple[JoinedMember, ...]) -> str:
    """Return the member to name: the last named one, if it is there, else the lowest id."""
    ids = {one.member_id for one in members}
    last = max((Known.decode(one.metadata) for one in members), key=lambda known: known.generation)
    return last.member_id if last.member_id in ids else min(ids)


class LeaseCandidate:
    """Keeps one process in its app's lease group and its lease up to date; on the service loop."""

    def __init__(self, app_id: str, lease: Lease, *, connect: Connect, clock: Clock) -> None:
        self._group = leader_group(app_id)
        self._lease = lease
        self._clock = clock
        settings = LinkSettings(
            connect_timeout=ANSWER_S,
            request_timeout=ANSWER_S,
            backoff=Backoff(0.1, 0.5),  # the session is short
        )
        self._link = Link(connect, clock=clock, settings=settings, name=f"{self._group}: candidate")
        times = GroupSettings(session_timeout=SESSION_S, rebalance_timeout=REBALANCE_S)
        self._state = Membership(
            self._group, protocol=PROTOCOL, settings=times, protocol_type=PROTOCOL_TYPE, advice=ADVICE
        )
        self._known = Known()
        self._task: asyncio.Task[None] | None = None
        self._told = False

    def start(self) -> None:
        """Begin to ask; harmless when started already."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=self._group)

    async def close(self) -> None:
        """Give up the lease and leave; never raises errors of the group or the connection."""
        self._lease.drop()
        task, self._task = self._task, None
        await cancelled(task)
        leave = self._state.leave()
        if leave is not None:
            try:
                await self._clock.wait_for(self._link.send(leave), LEAVE_S)
            except (OSError, ClientError, TimeoutError) as error:
                logger.info("group=%s was not told that this process ends: %s", self._group, error)
        await self._link.close()

    # --- the life of a member -----------------------------------------------------------------------------------

    async def _run(self) -> None:
        failures = 0
        while True:
            pause_s = None
            try:
                if await self._round():
                    failures = 0
                    await self._beat()
                    continue
            except GroupRefused as error:
                self._lease.drop()
                logger.error("nothing that is on_leader runs in this process, tried every %g s: %s", REFUSED_S, error)  # noqa: TRY400
                pause_s = REFUSED_S
            except (OSError, ClientError) as error:
                logger.debug("group=%s does not answer: %s", self._group, error)
            except Exception:  # a bug must not end the task in silence
                self._lease.drop()
                logger.exception("group=%s: asking who runs what is on_leader failed, tried again", self._group)
                pause_s = REFUSED_S
            failures += 1
            self._tell()
            await self._clock.sleep(pause_s or self._link.pause_s(failures))

    async def _round(self) -> bool:
        """Join and sync; False: join again. Raises: GroupRefused, OSError, ClientError."""
        join_s = SESSION_S + REBALANCE_S + DELAY_S
        joined = await self._link.send(self._state.join(self._known.encode()), wait_s=join_s)
        if joined.error is ErrorCode.MEMBER_ID_REQUIRED:
            self._state.joined(joined)
            joined = await self._link.send(self._state.join(self._known.encode()), wait_s=join_s)
        if not self._good(self._state.joined(joined)):
            return False
        given: tuple[tuple[str, bytes], ...] = ()
        if joined.leader == joined.member_id:
            known = Known(joined.generation, choose(joined.members)).encode()
            given = tuple((one.member_id, known) for one in joined.members)
        asked = Moment.of(self._clock)
        synced = await self._link.send(self._state.sync(joined, given), wait_s=SESSION_S + REBALANCE_S)
        if not self._good(self._state.verdict(synced.error)):
            return False
        self._take(Known.decode(synced.assignment), asked)
        return True

    def _take(self, known: Known, asked: Moment) -> None:
        """Take in the generation's assignment; an unreadable one names no member."""
        generation = self._state.number
        if known.generation == generation:
            self._known = known
        if known == Known(generation, self._state.member_id):
            self._lease.name(generation, asked=asked, now=Moment.of(self._clock))
        else:
            self._lease.drop()
        self._tell()

    async def _beat(self) -> None:
        """Send heartbeats until there is a new generation. Raises: GroupRefused, ClientError."""
        failures = 0
        while True:
            await self._clock.sleep(self._link.pause_s(failures) if failures else BEAT_S)
            asked = Moment.of(self._clock)
            try:
                answer = await self._link.send(self._state.beat())
                if not self._good(self._state.verdict(answer.error)):
                    return
            except OSError as error:
                failures += 1
                logger.debug("group=%s does not answer: %s", self._group, error)
            else:
                failures = 0
                self._lease.beat(self._state.number, asked=asked)
            self._tell()

    def _good(self, verdict: Verdict) -> bool:
        """Tell if an answer was good, and drop the lease if the group has given this process up; False: join again."""
        if verdict is Verdict.GONE:
            self._lease.drop()
        return verdict is Verdict.GOOD

    def _tell(self) -> None:
        """Log when this process got or lost the lease."""
        held = self._lease.held(Moment.of(self._clock))
        if held != self._told:
            self._told = held
            text = "holds the app's lease: what is on_leader runs here" if held else "holds the app's lease no more"
            logger.info("group=%s: this process %s", self._group, text)
