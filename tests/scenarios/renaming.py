"""Topics, groups and producers of a scenario under names that no other scenario on the same broker has."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

from flowshare.protocol.messages import Connection, ListGroupsResponse
from flowshare.protocol.messages.base import FinishedRequest

NAMES = frozenset(
    {"group_id", "group_ids", "topic", "topics", "name", "subscribed_topics", "offsets", "partitions", "outputs"}
)
NAMES_OF_RESOURCES = frozenset({"group", "topic"})
INSIDE = frozenset({"groups", "members", "transactional_id"})


def renamed(message: Any, name: Callable[[str], str]) -> Any:
    """A request or answer with other names of topics, groups and producers."""
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(message):
        value = getattr(message, field.name)
        if field.name in NAMES or field.name in INSIDE:
            changes[field.name] = _inside(value, name)
        elif field.name == "resource" and message.resource_type in NAMES_OF_RESOURCES:
            changes[field.name] = name(value)
    return dataclasses.replace(message, **changes)


def _inside(value: Any, name: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return name(value)
    if isinstance(value, dict):
        return {_inside(key, name): part for key, part in value.items()}
    if isinstance(value, tuple):
        parts = [_inside(part, name) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if dataclasses.is_dataclass(value):
        return renamed(value, name)
    return value


class Renaming:
    """A connection on which a scenario uses its own names."""

    def __init__(self, inner: Connection, suffix: str) -> None:
        self._inner = inner
        self.is_flowshare = inner.is_flowshare
        self.keeps_time = inner.keeps_time
        self._suffix = suffix

    async def send(self, request: Any) -> Any:
        """Answer of the server. Of all groups only the scenario's are listed."""
        answer = await self._inner.send(renamed(request, self._longer))
        if isinstance(answer, ListGroupsResponse):
            ours = tuple(group for group in answer.groups if group.group_id.endswith(self._suffix))
            answer = dataclasses.replace(answer, groups=ours)
        return renamed(answer, self._shorter)

    def begin(self, request: Any, told: Callable[[FinishedRequest], object]) -> None:
        """As `Connection.begin`."""
        asyncio.ensure_future(self.send(request)).add_done_callback(told)

    async def close(self) -> None:
        """Close."""
        await self._inner.close()

    def _longer(self, name: str) -> str:
        return name + self._suffix if name else name

    def _shorter(self, name: str) -> str:
        return name.removesuffix(self._suffix)
