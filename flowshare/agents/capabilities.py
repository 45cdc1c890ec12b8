"""What an agent asks of its backend, checked against the backend's capabilities when the app starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowshare.agents.errors import UsageError
from flowshare.backend.base import Asked

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flowshare.agents.agent import ShareAgent
    from flowshare.backend.base import Capabilities


def check_asked(agent: ShareAgent, offered: Capabilities) -> None:
    """See that the backend can do what the agent asks for by name. Raises: UsageError with what to do."""
    options = agent.options
    if options.max_in_flight is not None and not offered.group_limit:
        raise UsageError(
            f"agent {agent.name}: max_in_flight={options.max_in_flight} cannot be kept, as Kafka's brokers have no "
            f"limit for a whole group: leave it out, and let concurrency={options.concurrency} times the number of "
            "workers be the limit"
        )
    if options.priority not in (None, "redeliveries") and not offered.priority:
        raise UsageError(
            f"agent {agent.name}: priority={options.priority!r} cannot be kept, as Kafka's brokers deliver what was "
            "delivered before first: leave it out, or let retries wait with a longer delay"
        )


def asked_of(agents: Iterable[ShareAgent]) -> Asked:
    """What agents ask of whoever leads their groups that Kafka's brokers lack."""
    groups: dict[str, list[str]] = {}
    for agent in agents:
        words = groups.setdefault(agent.group, [])
        if agent.options.max_in_flight is not None:
            words.append(f"a limit for the whole group (max_in_flight={agent.options.max_in_flight})")
        if agent.options.priority not in (None, "redeliveries"):
            words.append(f"an order of new records and redeliveries (priority={agent.options.priority!r})")
    return Asked(groups)


def refusals(agent: ShareAgent, kind: str, offered: Capabilities) -> list[str]:
    """What the agent cannot have on this backend, one sentence each with what to do."""
    found = []
    if not offered.group_configs and agent.options.auto_offset_reset != "latest":
        found.append(
            f"agent {agent.name} starts at {agent.options.auto_offset_reset!r}, but groups have no settings on the "
            f"{kind} backend; set start='latest', or configure the group there"
        )
    return found
