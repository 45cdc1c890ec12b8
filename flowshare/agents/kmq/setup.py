"""Topics that a KMQ agent needs: queue and markers with the same number of partitions, and its sinks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from flowshare.agents.feed.setup import declaration, need_topic, retried
from flowshare.agents.handler.errors import UsageError
from flowshare.agents.handler.send import topic_name
from flowshare.client.errors import ServerError
from flowshare.client.kmq.topics import APPEND_TIME, TIMESTAMP_TYPE, PartitionMismatch, partitions_of
from flowshare.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from flowshare.agents.kmq.agent import KmqAgent
    from flowshare.client.admin.admin import ShareAdmin
    from flowshare.clock import Clock

CONSUMERS: Final = ("classic", "consumer")


async def prepare(agent: KmqAgent, admin: ShareAdmin, clock: Clock) -> None:
    """Make missing topics if the app allows it, and check that they fit.

    Raises: UsageError (what to change), ServerError, BackendError.
    """
    await retried(agent, clock, lambda: _prepare(agent, admin))


async def rehearse(agent: KmqAgent, admin: ShareAdmin, groups: ShareAdmin) -> None:
    """Check if `prepare` would be refused; change nothing. groups: client that knows groups. Raises: as `prepare`."""
    missing = False
    for channel in (agent.channels[0], agent.markers_channel, *agent.options.sink):
        missing |= not await need_topic(agent, admin, channel, dry_run=True)
    await _check_group(agent, groups)
    if not missing:
        await _check_partitions(agent, admin)


async def _prepare(agent: KmqAgent, admin: ShareAdmin) -> None:
    await need_topic(agent, admin, agent.channels[0])
    partitions = (await admin.describe_topic(agent.queue)).partitions
    await _need_markers(agent, admin, partitions)
    for channel in agent.options.sink:
        await need_topic(agent, admin, channel)
    await _check_group(agent, admin)
    await _check_partitions(agent, admin)


async def _need_markers(agent: KmqAgent, admin: ShareAdmin, partitions: int) -> None:
    """Make the topic of markers, with as many partitions as the queue and the broker's time on each marker."""
    try:
        await admin.describe_topic(agent.markers)
    except ServerError as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or not agent.app.conf.topic_allow_declare:
            raise
        _, configs = declaration(agent.markers_channel, partitions)
        configs = {TIMESTAMP_TYPE: APPEND_TIME, **configs}
        await admin.create_topic(
            topic_name(agent.markers_channel), partitions=partitions, configs=configs, exist_ok=True
        )


async def _check_partitions(agent: KmqAgent, admin: ShareAdmin) -> None:
    try:
        await partitions_of(admin, agent.rules)
    except PartitionMismatch as error:
        raise UsageError(f"KMQ agent {agent.name}: {error}") from error


async def _check_group(agent: KmqAgent, admin: ShareAdmin) -> None:
    """Check that the group's name is free for a consumer group. Raises: UsageError."""
    kind = await admin.group_kind(agent.group)
    if kind is not None and kind not in CONSUMERS:
        raise UsageError(
            f"KMQ agent {agent.name}: {agent.group!r} is a {kind} group, and consumers of a KMQ queue are in a "
            "consumer group: give it another name with group=…"
        )
