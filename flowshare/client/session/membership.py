"""`Membership`: joins a share group, sends heartbeats, keeps epoch and assignment, leaves (ShareGroupHeartbeat).

Assignments name topics by id; the name of a topic is asked for once. Partitions of a topic without a known name are not
assigned until it is known. `_refused` maps the answers' errors to reactions (SG-17.4).
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from flowshare.client.errors import NO_COORDINATOR, ClientError, Closed, ConnectionLost, NotConnected, ServerError
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    MetadataRequest,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    TopicPartition,
)
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    import uuid
    from collections.abc import Awaitable, Callable, Sequence

    from flowshare.client.net.link import Link
    from flowshare.client.settings import MemberSettings
    from flowshare.clock import Clock

EPOCH_JOIN: Final = 0
EPOCH_LEAVE: Final = -1
REJOIN: Final = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID})
UNSURE_S: Final = 1.0
"""Longest wait, in seconds, for the answer to a leave of a member that has not heard of its own join."""
LATER: Final = NO_COORDINATOR | {ErrorCode.KAFKA_STORAGE_ERROR}
NAME_RETRY_S: Final = 1.0
QUICK_S: Final = 0.1
QUICK_UNTIL_S: Final = 10.0
"""The longest time, in seconds after joining, of heartbeats every `QUICK_S` while no partition is assigned: Kafka's
brokers initialise the partitions first and send the assignment with a later heartbeat, which by itself comes 5 s
later."""

logger = logging.getLogger(__name__)


class Membership:
    """Keeps one member in its group; `assignment` holds the partitions that the member may fetch from now."""

    def __init__(
        self,
        link: Link,
        *,
        group_id: str,
        member_id: str,
        topics: Sequence[str],
        clock: Clock,
        settings: MemberSettings,
        on_assignment: Callable[[], None],
        on_given_up: Callable[[], object],
        joins_again: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        """on_given_up: called when the group says that it no longer has this member. joins_again: asked if the member
        joins again then; None: it joins."""
        self._link = link
        self._clock = clock
        self._settings = settings
        self._on_assignment = on_assignment
        self._on_given_up = on_given_up
        self._joins_again = joins_again
        self.group_id = group_id
        self.member_id = member_id
        self.epoch = EPOCH_JOIN
        self._asked_in = False
        """True if the group may count this member: a heartbeat that joins was sent, and not refused."""
        self.topics = tuple(sorted(set(topics)))
        self.names: dict[uuid.UUID, str] = {}
        self.assignment: frozenset[TopicPartition] = frozenset()
        self.failed: ClientError | None = None
        self.trouble: str | None = None
        self._assigned: frozenset[TopicPartition] = frozenset()
        self._announced: tuple[str, ...] | None = None
        self._interval_s = 5.0
        self._quick_until_s = 0.0
        self._failures = 0
        self.rebalances = 0
        """The number of changes of the assignment."""
        self.beaten_s: float | None = None
        """The time of the last heartbeat, in the clock's monotonic seconds; None before the first."""
        self._sent = 0
        self._answered = 0
        """The number of the last heartbeat that was answered well; `_sent`: of the last one sent."""
        self._heard = asyncio.Event()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def heartbeats(self) -> int:
        """The number of heartbeats sent."""
        return self._sent

    def topic_name(self, topic_id: uuid.UUID) -> str:
        """Return the name of a topic that is or was assigned; its id as text while the name is not known."""
        return self.names.get(topic_id) or str(topic_id)

    async def join(self) -> None:
        """Join and return after the first answer; heartbeats are sent from then on.

        Raises: NotConnected, ServerError (the group refuses the member).
        """
        if self._task is not None:
            return
        self.failed = None
        self._failures = 0
        deadline_s = self._clock.monotonic() + self._settings.link.connect_timeout
        while not await self._beat():
            if self._clock.monotonic() >= deadline_s:
                raise NotConnected(f"member {self.member_id} cannot join {self.group_id}: {self.trouble}")
            await self._clock.sleep(self._link.pause_s(self._failures))
        self._task = asyncio.create_task(self._run(), name=f"heartbeat {self.group_id}/{self.member_id}")

    def subscribe(self, topics: Sequence[str]) -> None:
        """Replace the topics; the group is told at once, or with the next try of a heartbeat."""
        self.topics = tuple(sorted(set(topics)))
        self._wake.set()

    def refresh(self) -> None:
        """Send a heartbeat now, unless one is being retried: the assignment may be out of date."""
        self._wake.set()

    async def confirm(self) -> None:
        """Wait until a heartbeat that is sent from now on was answered well.

        Raises: the error with which the group refuses the member; Closed when the member has left.
        """
        sent = self._sent
        self._wake.set()
        while self._answered <= sent:
            if self._task is None:
                raise self.failed or Closed(f"member {self.member_id} has left {self.group_id}")
            self._heard.clear()
            await self._heard.wait()

    async def leave(self) -> None:
        """Stop the heartbeats and leave the group; errors of the group or the connection are not raised."""
        await self.stop()
        if self._asked_in and self._link.current is not None:
            limit_s = UNSURE_S if self.epoch == EPOCH_JOIN else None
            try:
                await self._clock.wait_for(self._link.send(self._request(EPOCH_LEAVE)), limit_s)
            except (ConnectionLost, NotConnected, Closed, TimeoutError) as error:
                logger.info("%s/%s left without an answer: %s", self.group_id, self.member_id, error)
        self._out()

    async def stop(self) -> None:
        """Stop the heartbeats without telling the group."""
        task, self._task = self._task, None
        self._heard.set()
        await cancelled(task)

    async def _run(self) -> None:
        try:
            while True:
                await self._wait(self._next_s())
                if self.epoch == EPOCH_JOIN and not await self._may_join_again():
                    break
                await self._beat()
        except Closed:
            return
        except ClientError as error:
            self._fail(error)
        except Exception as error:
            logger.exception("heartbeats of %s/%s ended", self.group_id, self.member_id)
            self._fail(ClientError(f"heartbeats of {self.group_id} ended: {error!r}"))
        self._task = None
        self._heard.set()
        self._out()

    async def _may_join_again(self) -> bool:
        """Tell if a member that the group gave up may join again; without a topic, none can."""
        return bool(self.topics) and (self._joins_again is None or await self._joins_again())

    def _fail(self, error: ClientError) -> None:
        self.failed = error
        logger.error("member %s is out of group %s: %s", self.member_id, self.group_id, error)

    def _out(self) -> None:
        """Reset the state of a member that is out of the group."""
        self.epoch, self._announced, self._assigned = EPOCH_JOIN, None, frozenset()
        self._asked_in = False
        self._publish()

    def _next_s(self) -> float:
        if self._failures:
            return self._link.pause_s(self._failures)
        if self.topics and not self._assigned and self._clock.monotonic() < self._quick_until_s:
            return min(self._interval_s, QUICK_S)
        nameless = len(self.assignment) != len(self._assigned)
        return min(self._interval_s, NAME_RETRY_S) if nameless else self._interval_s

    async def _wait(self, delay_s: float) -> None:
        if self._failures:
            await self._clock.sleep(delay_s)  # however often a connection is made and lost meanwhile
            return
        try:
            await self._clock.wait_for(self._wake.wait(), delay_s)
        except TimeoutError:
            return
        self._wake.clear()

    def _request(self, epoch: int) -> ShareGroupHeartbeatRequest:
        tell = epoch != EPOCH_LEAVE and (epoch == EPOCH_JOIN or self._announced != self.topics)
        return ShareGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=epoch,
            rack_id=self._settings.rack_id if tell else None,
            subscribed_topics=self.topics if tell else None,
        )

    async def _beat(self) -> bool:
        """Send one heartbeat and take in its answer; False: try again. Raises: ServerError, NotConnected."""
        request = self._request(self.epoch)
        self._sent = number = self._sent + 1
        self.beaten_s = self._clock.monotonic()
        before, self._asked_in = self._asked_in, True
        try:
            answer = await self._link.send(request)
        except (NotConnected, ConnectionLost) as error:
            if isinstance(error, NotConnected):  # it was not sent
                self._asked_in = before
            self._announced = None
            self._later(str(error))
            return False
        if answer.error is not ErrorCode.NONE:
            self._refused(answer)
            return False
        self._failures = 0
        self.trouble = None
        self.epoch = answer.member_epoch
        self._interval_s = max(0.001, answer.heartbeat_interval_ms / 1000)
        if request.subscribed_topics is not None:
            self._announced = request.subscribed_topics
            self._quick_until_s = self._clock.monotonic() + QUICK_UNTIL_S
        if answer.assignment is not None:
            self._assigned = frozenset(answer.assignment)
        await self._name_topics()
        self._publish()
        self._answered = number
        self._heard.set()
        return True

    def _refused(self, answer: ShareGroupHeartbeatResponse) -> None:
        """React to an error: join again, wait, or give up. Raises: ServerError (give up)."""
        self._asked_in = answer.error in LATER
        lost = answer.error is ErrorCode.GROUP_ID_NOT_FOUND and self.epoch != EPOCH_JOIN
        if lost or answer.error in REJOIN:  # lost: deleted, or its server's data is; who joins makes it again
            logger.info("%s/%s joins again: %s", self.group_id, self.member_id, answer.error.name)
            self.epoch = EPOCH_JOIN
            self._announced = None
            self._on_given_up()
            self._later(answer.error.name)
        elif answer.error in LATER:
            self._later(f"{answer.error.name} {answer.message or ''}".strip())
        else:
            raise ServerError(answer.error, answer.message, about=f"joining group {self.group_id}")

    def _later(self, trouble: str) -> None:
        self._failures += 1
        self.trouble = trouble

    async def _name_topics(self) -> None:
        """Ask for the names of topics that the assignment gives by id only."""
        if all(tp.topic_id in self.names for tp in self._assigned):
            return
        try:
            answer = await self._link.send(MetadataRequest(topics=self.topics or None))
        except (NotConnected, ConnectionLost) as error:
            self.trouble = str(error)
            return
        for topic in answer.topics:
            if topic.topic_id is not None:
                self.names[topic.topic_id] = topic.name

    def _publish(self) -> None:
        usable = frozenset(tp for tp in self._assigned if tp.topic_id in self.names)
        if usable != self.assignment:
            self.assignment = usable
            self.rebalances += 1
            self._on_assignment()
