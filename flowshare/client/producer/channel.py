"""`Channel`: shared by all partitions of a producer: its connection, its producer id, the sizes of topics, the buffer.

Requests that fail are repeated until there is an answer, for a time that the caller gives.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from flowshare.client.errors import ClientError, ConnectionLost, DeliveryTimeout, NotConnected, ServerError, check
from flowshare.client.net.link import Connect, Link
from flowshare.client.net.routing import ClusterConnection
from flowshare.client.producer.batching import Buffer
from flowshare.protocol import messages
from flowshare.protocol.errors import ErrorCode
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    import uuid
    from collections.abc import Awaitable, Callable, Mapping

    from flowshare.client.producer.sequence import Identity
    from flowshare.client.settings import ProducerSettings
    from flowshare.clock import Clock
    from flowshare.protocol.messages import Request

    Declared = Callable[[str], tuple[int, Mapping[str, str]] | None]
    """Finds partitions and settings of a topic that is to be created; None: nothing is known of the topic."""

R = TypeVar("R")
logger = logging.getLogger(__name__)


def may_pass(error: ServerError) -> bool:
    """Tell if the same request may succeed in a moment. A missing topic will not appear by itself."""
    return error.code is ErrorCode.CONCURRENT_TRANSACTIONS or (
        error.retriable and error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )


def out_of_time(error: ClientError) -> bool:
    """Tell if requests were repeated until their time was over: who has time left may go on."""
    if isinstance(error, ServerError):
        return may_pass(error)
    return isinstance(error, NotConnected | ConnectionLost | DeliveryTimeout)


class TopicPlace(NamedTuple):
    """A topic's number of partitions, and its id (None: very old brokers report no id)."""

    partitions: int
    topic_id: uuid.UUID | None


class Channel:
    """One producer's way to the server."""

    def __init__(
        self,
        connect: Connect,
        *,
        clock: Clock,
        settings: ProducerSettings,
        client_id: str,
        declared: Declared = lambda _: None,
    ) -> None:
        self.clock = clock
        self.settings = settings
        self._declared = declared
        self.buffer = Buffer(settings.buffer_memory)
        self._link = Link(connect, clock=clock, settings=settings.link, name=client_id)
        self._topics: dict[str, tuple[TopicPlace, float]] = {}
        self._identity: Identity | None = None
        self._naming: asyncio.Task[Identity] | None = None

    async def close(self) -> None:
        """Close the connection."""
        await cancelled(self._naming)
        await self._link.close()

    def pause_s(self, tries: int) -> float:
        """Return the pause, in seconds, after so many failures in a row."""
        return self._link.pause_s(tries)

    @property
    def to_cluster(self) -> bool:
        """True if there are several brokers: another one may accept a batch that one broker's disk refuses."""
        return isinstance(self._link.current, ClusterConnection)

    async def ask(self, request: Request[R], limit_s: float) -> R:
        """Send a request and return its answer. limit_s: the longest time to connect, in seconds. Raises: NotConnected,
        ConnectionLost, Closed."""
        connection = await self._link.connection(min(limit_s, self.settings.link.connect_timeout))
        if isinstance(connection, ClusterConnection):  # it goes on without the broker whose connection ended
            try:
                return await connection.send(request)
            except (NotConnected, ConnectionLost):
                raise
            except OSError as error:
                raise ConnectionLost(f"the connection ended: {error}") from error
        return await self._link.send_on(connection, request)

    def is_near(self, deadline_s: float) -> bool:
        """Tell if no time is left for another try before the deadline (monotonic, in seconds)."""
        return self.clock.monotonic() + self.pause_s(1) >= deadline_s

    async def until_answered(
        self,
        ask: Callable[[float], Awaitable[R]],
        timeout_s: float,
        passing: Callable[[ServerError], bool] = may_pass,
    ) -> R:
        """Call `ask`(seconds left) until it returns, or raises an error that is not `passing`; return its result.

        Raises: ServerError, NotConnected, ConnectionLost (not in time).
        """
        deadline_s = self.clock.monotonic() + timeout_s
        tries = 0
        while True:
            tries += 1
            try:
                return await ask(max(0.0, deadline_s - self.clock.monotonic()))
            except (ServerError, ConnectionLost, NotConnected) as error:
                again = not isinstance(error, ServerError) or passing(error)
                if not again or self.clock.monotonic() + self.pause_s(tries) >= deadline_s:
                    raise
            await self.clock.sleep(self.pause_s(tries))

    # --- producer id --------------------------------------------------------------------------------------------

    async def identity(self, timeout_s: float) -> Identity:
        """Return the producer id; concurrent callers share the request. Raises: as `until_answered`, when the caller's
        own `timeout_s` is over."""
        deadline_s = self.clock.monotonic() + timeout_s
        while self._identity is None:
            if self._naming is None or self._naming.done():
                left_s = max(0.0, deadline_s - self.clock.monotonic())
                self._naming = asyncio.create_task(self._name(left_s), name="producer id")
                return await asyncio.shield(self._naming)
            try:
                return await self.clock.wait_for(asyncio.shield(self._naming), deadline_s - self.clock.monotonic())
            except TimeoutError:
                raise NotConnected(f"no producer id in time: {self._link.trouble}") from None
            except ClientError as error:  # perhaps only the time of the caller that began is over
                if not out_of_time(error) or self.is_near(deadline_s):
                    raise
        return self._identity

    def forget(self, identity: Identity) -> None:
        """Forget the producer id, which cannot be used any more."""
        if self._identity is not None and self._identity[0] == identity[0]:
            self._identity = None

    async def _name(self, timeout_s: float) -> Identity:
        self._identity = identity = await self.until_answered(
            lambda left_s: self.init(messages.InitProducerIdRequest(), left_s), timeout_s
        )
        return identity

    async def init(self, request: messages.InitProducerIdRequest, limit_s: float) -> Identity:
        """Return a new producer id and epoch. Raises: ServerError, NotConnected, ConnectionLost."""
        answer = await self.ask(request, limit_s)
        check(answer.error, answer.message, "producer id")
        return answer.producer.producer_id, answer.producer.epoch

    # --- sizes of topics ----------------------------------------------------------------------------------------

    def known_size(self, topic: str) -> int | None:
        """Return the topic's number of partitions; None: not known, or known too long ago."""
        known = self.known_topic(topic)
        return None if known is None else known.partitions

    def known_topic(self, topic: str) -> TopicPlace | None:
        """Return the topic's number of partitions and its id; None: as `known_size`."""
        known = self._topics.get(topic)
        return None if known is None or known[1] < self.clock.monotonic() else known[0]

    def forget_size(self, topic: str) -> None:
        """Forget the topic's size: it turned out to be wrong."""
        self._topics.pop(topic, None)

    async def size(self, topic: str, timeout_s: float) -> int:
        """Return the topic's number of partitions; a missing topic is created with `auto_create_topics`.

        Raises: as `until_answered` (no such topic, a bad name, …).
        """
        return (await self.topic(topic, timeout_s)).partitions

    async def topic(self, topic: str, timeout_s: float) -> TopicPlace:
        """Return the topic's number of partitions and its id, as `size`."""
        return await self.until_answered(lambda left_s: self._look_up(topic, left_s), timeout_s)

    async def _look_up(self, topic: str, limit_s: float) -> TopicPlace:
        found = await self._describe(topic, limit_s)
        if found is None and self.settings.auto_create_topics:
            partitions, configs = self._declared(topic) or (1, {})
            request = messages.CreateTopicRequest(name=topic, partitions=partitions, configs=configs)
            made = await self.ask(request, limit_s)
            if made.error is not ErrorCode.TOPIC_ALREADY_EXISTS:
                check(made.error, made.message, f"creating topic {topic}")
                logger.info("topic %s was missing and is made, partitions=%d", topic, partitions)
            found = await self._describe(topic, limit_s)
            if found is None:  # brokers learn of it a moment later
                raise ServerError(ErrorCode.LEADER_NOT_AVAILABLE, about=f"topic {topic} was made just now")
        if found is None:
            raise ServerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, about=f"topic {topic}")
        self._topics[topic] = (found, self.clock.monotonic() + self.settings.metadata_max_age)
        return found

    async def _describe(self, topic: str, limit_s: float) -> TopicPlace | None:
        answer = await self.ask(messages.MetadataRequest(topics=(topic,)), limit_s)
        for found in answer.topics:
            if found.name == topic and found.error is ErrorCode.NONE and found.partitions > 0:
                return TopicPlace(found.partitions, found.topic_id)
            if found.name == topic and found.error not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                raise ServerError(found.error, about=f"topic {topic}")
        return None
