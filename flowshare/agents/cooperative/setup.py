"""The topics that a cooperative agent needs: what it reads, its dead letters and its sinks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from flowshare.agents.feed.setup import need_topic, retried
from flowshare.agents.handler.errors import UsageError

if TYPE_CHECKING:
    from flowshare.agents.cooperative.agent import CooperativeAgent
    from flowshare.backend.base import Capabilities
    from flowshare.client.admin.admin import ShareAdmin
    from flowshare.clock import Clock

CONSUMERS: Final = ("classic", "consumer")


async def prepare(agent: CooperativeAgent, admin: ShareAdmin, capabilities: Capabilities, clock: Clock) -> None:
    """Make missing topics if the app allows it, and see that the group can be. Raises: UsageError (what to change),
    ServerError, BackendError."""
    if not capabilities.key_order:
        raise UsageError(
            f"cooperative agent {agent.name}: Kafka's brokers keep no committed sets; run the app on an embedded path, "
            "or on a cluster with fs.App(…, share='workers')"
        )
    await retried(agent, clock, lambda: _prepare(agent, admin))


async def _prepare(agent: CooperativeAgent, admin: ShareAdmin) -> None:
    channels = [*agent.channels, *agent.options.sink]
    if agent.dead_letter_topic is not None:
        given = agent.options.dead_letter
        channels.append(agent.dead_letter_topic if given is True else given)
    for channel in channels:
        await need_topic(agent, admin, channel)
    kind = await admin.group_kind(agent.group)
    if kind is not None and kind not in CONSUMERS:
        raise UsageError(
            f"cooperative agent {agent.name}: {agent.group!r} is a {kind} group, and members of a cooperative group "
            "are in a consumer group: give it another name with group=…"
        )
