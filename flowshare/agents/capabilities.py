"""What an agent asks of its backend, checked against the backend's capabilities when the app starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowshare.agents.agent import ShareAgent
    from flowshare.backend.base import Capabilities


def refusals(agent: ShareAgent, kind: str, offered: Capabilities) -> list[str]:
    """What the agent cannot have on this backend, one sentence each with what to do."""
    found = []
    if not offered.group_configs and agent.options.auto_offset_reset != "latest":
        found.append(
            f"agent {agent.name} starts at {agent.options.auto_offset_reset!r}, but groups have no settings on the "
            f"{kind} backend; set start='latest', or configure the group there"
        )
    return found
