"""How many partitions a topic has, as the producer knows it; an unknown topic is created if that is wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowshare.client.errors import ConnectionLost, NotConnected, ServerError
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import CreateTopicRequest, MetadataRequest

if TYPE_CHECKING:
    from flowshare.client.link import Link
    from flowshare.clock import Clock


class TopicSizes:
    """Partition counts by topic name, believed for `age_max_s` seconds."""

    def __init__(self, link: Link, *, clock: Clock, age_max_s: float, create: bool) -> None:
        self._link = link
        self._clock = clock
        self._age_max_s = age_max_s
        self._create = create
        self._known: dict[str, tuple[int, float]] = {}

    def get(self, topic: str) -> int | None:
        """Partitions of the topic; None when not known or known too long ago."""
        known = self._known.get(topic)
        if known is None or known[1] < self._clock.monotonic():
            return None
        return known[0]

    def forget(self, topic: str) -> None:
        """What was known turned out wrong."""
        self._known.pop(topic, None)

    async def ask(self, topic: str, *, timeout_s: float) -> int:
        """Partitions of the topic, asked for until there is an answer, for `timeout_s` seconds.

        Raises: ServerError (no such topic, a bad name, …), NotConnected, ConnectionLost (not in time).
        """
        deadline_s = self._clock.monotonic() + timeout_s
        tries = 0
        while True:
            tries += 1
            try:
                return await self._ask_once(topic, max(0.0, deadline_s - self._clock.monotonic()))
            except (ServerError, ConnectionLost) as error:
                again = not isinstance(error, ServerError) or self._passing(error)
                if not again or self._clock.monotonic() + self._link.pause_s(tries) >= deadline_s:
                    raise
            except NotConnected:
                if self._clock.monotonic() >= deadline_s:
                    raise
            await self._clock.sleep(self._link.pause_s(tries))

    @staticmethod
    def _passing(error: ServerError) -> bool:
        return error.retriable and error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    async def _ask_once(self, topic: str, timeout_s: float) -> int:
        found = await self._describe(topic, timeout_s)
        if found is None and self._create:
            made = await self._link.send(CreateTopicRequest(name=topic), connect_timeout_s=timeout_s)
            if made.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                raise ServerError(made.error, made.message, about=f"creating topic {topic}")
            found = await self._describe(topic, timeout_s)
            if found is None:  # brokers learn of it a moment later
                raise ServerError(ErrorCode.LEADER_NOT_AVAILABLE, about=f"topic {topic} was made just now")
        if found is None:
            raise ServerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, about=f"topic {topic}")
        self._known[topic] = (found, self._clock.monotonic() + self._age_max_s)
        return found

    async def _describe(self, topic: str, timeout_s: float) -> int | None:
        answer = await self._link.send(MetadataRequest(topics=(topic,)), connect_timeout_s=timeout_s)
        for found in answer.topics:
            if found.name == topic and found.error is ErrorCode.NONE and found.partitions > 0:
                return found.partitions
            if found.name == topic and found.error not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                raise ServerError(found.error, about=f"topic {topic}")
        return None
