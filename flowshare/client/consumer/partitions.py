"""The partitions of a topic with their leaders and replicas, as far as brokers report them (Java's `partitionsFor`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from flowshare.client.arguments import check_argument
from flowshare.client.errors import ClientError, ConnectionLost, NotConnected, ServerError, check
from flowshare.client.net.link import Connect, Link
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import MetadataRequest

if TYPE_CHECKING:
    from flowshare.client.settings import LinkSettings
    from flowshare.clock import Clock
    from flowshare.protocol.messages import MetadataResponse, TopicMetadata

PAUSE_S: Final = 0.1
"""The pause, in seconds, between two requests for a topic that was created just now and has no leader yet."""


class Node(NamedTuple):
    """A broker. host, port: empty and −1 where no answer names them."""

    id: int
    host: str
    port: int


class PartitionInfo(NamedTuple):
    """One partition of a topic.

    leader: the broker to fetch from; None: there is no leader now, or there are no brokers (a path in this process).
    replicas, in_sync: the brokers that have the partition, and those that have all of it; empty where not reported.
    """

    topic: str
    partition: int
    leader: Node | None
    replicas: tuple[Node, ...]
    in_sync: tuple[Node, ...]


async def partitions_of(
    connect: Connect, topic: str, *, clock: Clock, settings: LinkSettings, timeout_s: float
) -> list[PartitionInfo]:
    """Return the partitions of a topic, in order; asked for over a separate connection, so that no fetch blocks the
    request.

    Raises: ServerError (there is no such topic, or it may not be seen), NotConnected, ClientError (not in time).
    """
    check_argument("partitions_for: topic", topic, str)
    if not topic:
        raise ValueError("partitions_for takes the name of a topic")
    link = Link(connect, clock=clock, settings=settings, name=f"partitions of {topic}")
    try:
        return await clock.wait_for(_asked(link, topic, clock), timeout_s)
    except TimeoutError:
        trouble = link.trouble or "no broker has answered, or nobody leads the topic yet"
        raise ClientError(f"partitions of topic {topic}: not known within {timeout_s:g} s: {trouble}") from None
    finally:
        await link.close()


async def _asked(link: Link, topic: str, clock: Clock) -> list[PartitionInfo]:
    while True:
        try:
            answer = await link.send(MetadataRequest(topics=(topic,)))
        except (ConnectionLost, NotConnected) as error:
            if isinstance(error, NotConnected) and link.current is None:  # connecting was tried for its full time
                raise
            await clock.sleep(PAUSE_S)
            continue
        found = next((one for one in answer.topics if one.name == topic), None)
        if found is None or found.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise ServerError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"create it (`flowshare topics create {topic}`), or check its name (`flowshare topics ls`)",
                about=f"there is no topic {topic}",
            )
        problem = ServerError(found.error)
        if found.error is ErrorCode.NONE or not problem.retriable:
            check(found.error, None, f"partitions of topic {topic}")
            return [_info(answer, found, number) for number in range(found.partitions)]
        await clock.sleep(PAUSE_S)


def _info(answer: MetadataResponse, topic: TopicMetadata, number: int) -> PartitionInfo:
    def node(of: int) -> Node:
        return Node(of, *answer.nodes.get(of, ("", -1)))

    def nodes(of: tuple[tuple[int, ...], ...]) -> tuple[Node, ...]:
        return tuple(map(node, of[number])) if number < len(of) else ()

    leader = topic.leaders[number] if number < len(topic.leaders) else -1
    return PartitionInfo(
        topic.name, number, None if leader < 0 else node(leader), nodes(topic.replica_nodes), nodes(topic.in_sync)
    )
