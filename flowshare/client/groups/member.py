"""`GroupMember`: keeps one membership of a consumer group over a separate connection.

The connection is separate because a broker parks JoinGroup, and answers no other request on it meanwhile. Assignments
are reported to `on_assigned`. Before the member joins the next round it awaits `on_revoked`, which may take
`REVOKE_PART` of the round's time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

from flowshare.backoff import QUICK
from flowshare.client.errors import ClientError, ConnectionLost, NotConnected
from flowshare.client.groups.assignors import RANGE, Assignor, Subscriber, range_assignor
from flowshare.client.groups.membership import (
    Generation,
    GenerationOver,
    GroupRefused,
    GroupSettings,
    Membership,
    Verdict,
)
from flowshare.client.net.link import Connect, Link
from flowshare.client.settings import LinkSettings
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import MetadataRequest
from flowshare.slots.consumer_protocol import Subscription, decode_subscription, encode_assignment, encode_subscription
from flowshare.slots.errors import MembershipError
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowshare.clock import Clock
    from flowshare.protocol.messages import JoinGroupResponse, OffsetToCommit

DELAY_S: Final = 5.0
"""The longest wait, in seconds, of a broker for more members of an empty group (group.initial.rebalance.delay.ms is 3
s)."""
LEAVE_S: Final = 2.0
REFUSED_S: Final = 10.0
"""The pause, in seconds, after a refusal that an operator has to mend."""
LOOK_S: Final = 10.0
"""The seconds between two checks of a round's leader for new partitions of the topics."""
REVOKE_PART: Final = 0.5
COMMIT_TRIES: Final = 5

logger = logging.getLogger(__name__)


class GroupMember:
    """One member. All methods and callbacks are called on one event loop.

    topics: the topics to read. protocol: the name of the `assignor`. user_data: sent to the round's leader with each
    join. on_assigned: gets each new generation, and must not raise. on_revoked: awaited with the old generation before
    the next; its errors are logged.
    """

    def __init__(
        self,
        connect: Connect,
        *,
        group_id: str,
        topics: Sequence[str],
        clock: Clock,
        protocol: str = RANGE,
        assignor: Assignor = range_assignor,
        user_data: Callable[[], bytes] = lambda: b"",
        on_assigned: Callable[[Generation], object],
        on_revoked: Callable[[Generation], Awaitable[object]] | None = None,
        settings: GroupSettings | None = None,
    ) -> None:
        self._settings = settings or GroupSettings()
        self._topics = tuple(sorted(topics))
        self._clock = clock
        self._assignor = assignor
        self._user_data = user_data
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._state = Membership(group_id, protocol=protocol, settings=self._settings)
        link = LinkSettings(
            connect_timeout=self._settings.session_timeout / 2,
            request_timeout=self._settings.session_timeout / 2,
            backoff=QUICK,
        )
        self._link = Link(connect, clock=clock, settings=link, name=f"{group_id}: member")
        self._task: asyncio.Task[None] | None = None
        self._again = asyncio.Event()
        self._sizes: Mapping[str, int] | None = None
        """The topics' numbers of partitions as last assigned, if this member leads the round."""
        self.trouble: str | None = None
        """The reason why the member is out of the group; None: it is in, or no reason is known."""

    @property
    def group_id(self) -> str:
        """The group's name."""
        return self._state.group_id

    @property
    def generation(self) -> Generation | None:
        """The round that the member is in; None: in none."""
        return self._state.generation

    @property
    def sure(self) -> bool:
        """True if no other member can have got this member's assignment."""
        return self._state.generation is not None and self._state.sure(self._clock.monotonic())

    def start(self) -> None:
        """Begin to join; calling it twice does no harm."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"{self.group_id}: member")

    def rejoin(self) -> None:
        """Ask for a new round: the member's data has changed."""
        self._again.set()

    async def commit(self, generation: Generation, offsets: Sequence[OffsetToCommit]) -> None:
        """Commit offsets of a generation, with retries while the outcome is unknown.

        Raises: GenerationOver (the generation is over), ClientError, OSError (after some tries).
        """
        if not offsets:
            return
        for tried in range(1, COMMIT_TRIES + 1):
            if self._state.generation != generation:
                raise GenerationOver(f"group {self.group_id}: generation {generation.number} is over")
            try:
                answer = await self._link.send(self._state.commit(generation, offsets))
                for part in answer.partitions:
                    self._check_commit(part.error)
            except (NotConnected, ConnectionLost):
                if tried == COMMIT_TRIES:
                    raise
                await self._clock.sleep(self._link.pause_s(tried))
            else:
                return

    def _check_commit(self, error: ErrorCode) -> None:
        """Check the error of a commit. Raises: GenerationOver, ClientError, NotConnected (not now)."""
        if error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID, ErrorCode.ILLEGAL_GENERATION):
            self._again.set()
            raise GenerationOver(f"group {self.group_id}: {error.name}")
        if error is ErrorCode.REBALANCE_IN_PROGRESS:
            self._again.set()
            raise GenerationOver(f"group {self.group_id}: a new round has begun")
        if error is not ErrorCode.NONE:
            self._state.verdict(error)

    async def close(self) -> None:
        """Leave; errors of the group or the connection are not raised."""
        try:
            await cancelled(self._task)
            await self._revoke()
            leave = self._state.leave()
            if leave is not None and self._link.current is not None:
                await self._clock.wait_for(self._link.send(leave), LEAVE_S)
        except (OSError, ClientError, TimeoutError) as error:
            logger.info("group=%s was not told that its member ends: %s", self.group_id, error)
        finally:
            await self._link.close()

    # --- the life of a member -----------------------------------------------------------------------------------

    async def _run(self) -> None:
        failures = 0
        while True:
            pause_s = 0.0
            try:
                await self._revoke()
                if await self._round():
                    failures, self.trouble = 0, None
                    await self._beats()
                    continue
            except (GroupRefused, MembershipError) as error:
                self.trouble = str(error)
                logger.error("no member of group %s, tried every %g s: %s", self.group_id, REFUSED_S, error)  # noqa: TRY400
                pause_s = REFUSED_S
            except (OSError, ClientError) as error:
                self.trouble = f"group {self.group_id} does not answer: {error}"
                logger.debug("group=%s does not answer: %s", self.group_id, error)
            except Exception:  # a fault of ours must not end it in silence
                self.trouble = f"being a member of group {self.group_id} failed"
                logger.exception("being a member of group %s failed, tried again", self.group_id)
                pause_s = REFUSED_S
            failures += 1
            await self._clock.sleep(pause_s or (0.0 if failures == 1 else self._link.pause_s(failures)))

    async def _revoke(self) -> None:
        """End the generation, which is over or about to be; `on_revoked` gets a moment to finish its work."""
        generation = self._state.generation
        if generation is None:
            return
        try:
            if self._on_revoked is not None:
                limit_s = self._settings.rebalance_timeout * REVOKE_PART
                await self._clock.wait_for(self._on_revoked(generation), limit_s)
        except TimeoutError:
            logger.warning("group=%s: what was assigned was not let go of in time", self.group_id)
        except Exception:
            logger.exception("group=%s: letting go of what was assigned failed", self.group_id)
        finally:
            self._state.over()

    async def _round(self) -> bool:
        """Join and sync; False: join again. Raises: GroupRefused, OSError, ClientError."""
        self._again.clear()
        subscription = encode_subscription(Subscription(self._topics, self._user_data()))
        wait_s = self._settings.session_timeout + self._settings.rebalance_timeout + DELAY_S
        joined = await self._link.send(self._state.join(subscription), wait_s=wait_s)
        if joined.error is ErrorCode.MEMBER_ID_REQUIRED:
            self._state.joined(joined)
            joined = await self._link.send(self._state.join(subscription), wait_s=wait_s)
        if self._state.joined(joined) is not Verdict.GOOD:
            return False
        leads = joined.leader == joined.member_id and not joined.skip_assignment
        self._sizes = await self._topic_sizes() if leads else None
        given = self._given(joined, self._sizes) if self._sizes is not None else ()
        sent_s = self._clock.monotonic()
        synced = await self._link.send(self._state.sync(joined, given), wait_s=self._settings.rebalance_timeout)
        generation = self._state.synced(synced, sent_s)
        if generation is None:
            return False
        logger.debug("group=%s generation=%d: %s", self.group_id, generation.number, generation.places)
        self._on_assigned(generation)
        return True

    def _given(self, joined: JoinGroupResponse, sizes: Mapping[str, int]) -> list[tuple[str, bytes]]:
        """Compute the assignment of each member, as the leader of the rebalance. Raises: MembershipError."""
        members = [
            Subscriber(one.member_id, one.instance_id, decode_subscription(one.metadata)) for one in joined.members
        ]
        given = self._assignor(members, sizes)
        return [(member_id, encode_assignment(assignment)) for member_id, assignment in given.items()]

    async def _topic_sizes(self) -> dict[str, int]:
        answer = await self._link.send(MetadataRequest(topics=self._topics))
        return {topic.name: topic.partitions for topic in answer.topics if topic.error is ErrorCode.NONE}

    async def _beats(self) -> None:
        """Send heartbeats until there is a new round. Raises: GroupRefused, ClientError."""
        failures, looked_s = 0, self._clock.monotonic()
        while not self._again.is_set():
            pause_s = self._link.pause_s(failures) if failures else self._settings.heartbeat_interval
            await self._wait_again(pause_s)
            sent_s = self._clock.monotonic()
            try:
                answer = await self._link.send(self._state.beat())
                if self._sizes is not None and sent_s - looked_s >= LOOK_S:
                    looked_s = sent_s
                    if await self._topic_sizes() != self._sizes:
                        return
            except OSError as error:
                failures += 1
                logger.debug("group=%s does not answer: %s", self.group_id, error)
                continue
            failures = 0
            if answer.error in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
                self._state.proved(sent_s)
            if self._state.verdict(answer.error) is not Verdict.GOOD:
                return

    async def _wait_again(self, pause_s: float) -> None:
        try:
            await self._clock.wait_for(self._again.wait(), pause_s)
        except TimeoutError:
            return
