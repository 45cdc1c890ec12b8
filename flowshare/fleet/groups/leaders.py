"""`Leaders` of a fleet: what a coordinator asks goes to whichever worker leads the share-partition.

Kafka's coordinators speak to leaders through the state topic; ours ask them, by the private API, because a leader has
the state in memory and is the only one who may write it. Every call can be made twice. Who is asked for a
share-partition that it does not lead refuses, and the right one is looked for, for a bounded time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from flowshare.client.errors import ClientError
from flowshare.fleet.directory import NOBODY
from flowshare.fleet.forms import offsets_of, tell_first, tell_state
from flowshare.log.base import NotLed
from flowshare.protocol.errors import ErrorCode
from flowshare.server.failures import Refused
from flowshare.server.state import ShareKey

if TYPE_CHECKING:
    import uuid
    from contextlib import AbstractAsyncContextManager

    from flowshare.clock import Clock
    from flowshare.fleet.directory import Directory
    from flowshare.fleet.peers import Peers
    from flowshare.fleet.views import Version
    from flowshare.log.base import StateStore
    from flowshare.protocol.messages import SharePartitionOffsets
    from flowshare.server.leaders import LocalLeaders
    from flowshare.server.state import Write
    from flowshare.share.config import GroupConfig
    from flowshare.share.group import ShareGroup, ToInitialize
    from flowshare.share.types import PartitionState

T = TypeVar("T")

LIMIT_S: Final = 10.0
"""How long the leaders of a request's share-partitions are looked for."""
PAUSE_S: Final = 0.1
BEGIN: Final = "fleet_begin"
REPLACE: Final = "fleet_replace"
OFFSETS: Final = "fleet_offsets"
GONE: Final = "fleet_gone"
"""{"group_id", "member_id", "version": the group's, "died"} -> {}: a member is gone."""
AT_ONCE: Final = 200
"""Share-partitions named in one call: what a call did stays done when a later one takes too long."""

Ask = Callable[[int, list[ShareKey]], Awaitable[Any]]
"""(node, share-partitions that it leads) -> their answers; raises OSError, ClientError, NotLed, Refused."""


class FleetLeaders:
    """All workers of the fleet, this one among them."""

    def __init__(
        self,
        local: LocalLeaders,
        *,
        store: StateStore,
        directory: Directory,
        peers: Peers,
        clock: Clock,
        configured: Callable[[str], object],
        version: Callable[[str], Version],
    ) -> None:
        """configured: tells all leaders of a group's settings. version: the next one of a group."""
        self._local = local
        self._store = store
        self._directory = directory
        self._peers = peers
        self._clock = clock
        self._configured = configured
        self._version = version

    def known(self, group: ShareGroup) -> frozenset[ShareKey]:
        """Those that the group had initialised."""
        return frozenset(ShareKey(group.group_id, *key) for key in group.initialized)

    def release_member(self, group_id: str, member_id: str, *, died: bool = False) -> None:
        """Here at once, elsewhere as soon as they hear of it."""
        self._local.release_member(group_id, member_id, died=died)
        version = self._version(group_id)
        self._peers.tell_leaders(GONE, group_id=group_id, member_id=member_id, version=version, died=died)

    def configure(self, group_id: str) -> None:
        """All leaders are told."""
        self._configured(group_id)
        self._local.configure(group_id)

    def idle(self, group_id: str) -> bool:
        """What is led here; members are gone for long when this is asked."""
        return self._local.idle(group_id)

    def topic_ids(self) -> frozenset[uuid.UUID]:
        """Of the share-partitions led here; other workers see to theirs."""
        return self._local.topic_ids()

    def deleting(self, topic_id: uuid.UUID) -> AbstractAsyncContextManager[Sequence[Write]]:
        """Of the share-partitions led here; other workers see to theirs."""
        return self._local.deleting(topic_id)

    @asynccontextmanager
    async def beginning(
        self, group_id: str, config: GroupConfig, items: Sequence[ToInitialize]
    ) -> AsyncGenerator[Sequence[Write]]:
        """The first states are durable when the block begins; the group that says so is written after them."""
        by_key = {ShareKey(group_id, item.topic_id, item.partition): item for item in items}

        async def ask(node: int, keys: list[ShareKey]) -> list[None]:
            mine = [by_key[key] for key in keys]
            if self._is_me(node):
                async with self._local.beginning(group_id, config, mine) as writes:
                    await self._store.write(writes)
            else:
                await self._peers.call(node, BEGIN, group_id=group_id, items=[tell_first(item) for item in mine])
            return [None] * len(keys)

        await self._everywhere(list(by_key), ask)
        yield ()

    @asynccontextmanager
    async def replacing(self, states: Mapping[ShareKey, PartitionState | None]) -> AsyncGenerator[Sequence[Write]]:
        """The new states are durable when the block begins."""

        async def ask(node: int, keys: list[ShareKey]) -> list[None]:
            mine = {key: states[key] for key in keys}
            if self._is_me(node):
                async with self._local.replacing(mine) as writes:
                    await self._store.write(writes)
            else:
                told = [tell_state(key, state) for key, state in mine.items()]
                await self._peers.call(node, REPLACE, states=told)
            return [None] * len(keys)

        await self._everywhere(list(states), ask)
        yield ()

    async def offsets(self, keys: Sequence[ShareKey]) -> list[SharePartitionOffsets]:
        """Each leader is asked once. Raises: Refused."""

        async def ask(node: int, mine: list[ShareKey]) -> list[SharePartitionOffsets]:
            if self._is_me(node):
                return await self._local.offsets(mine)
            told = [[key.group_id, key.topic_id.hex, key.partition] for key in mine]
            answer = await self._peers.call(node, OFFSETS, keys=told)
            return [offsets_of(row) for row in answer["offsets"]]

        found = await self._everywhere(list(keys), ask)
        return [found[key] for key in keys]

    def _is_me(self, node: int) -> bool:
        place = self._directory.place
        return place is not None and node == place.node_id

    async def _everywhere(self, keys: list[ShareKey], ask: Ask) -> dict[ShareKey, Any]:
        """Ask the leaders until all share-partitions are answered for. Raises: Refused."""
        end_s = self._clock.monotonic() + LIMIT_S
        found: dict[ShareKey, Any] = {}
        problem: Exception | None = None
        left = keys
        while left:
            by_node: dict[int, list[ShareKey]] = {}
            for key in left:
                node, _ = self._directory.leader_of(key.topic_id, key.partition)
                by_node.setdefault(node, []).append(key)
            waiting = by_node.pop(NOBODY, [])
            parts = [
                (node, mine[at : at + AT_ONCE]) for node, mine in by_node.items() for at in range(0, len(mine), AT_ONCE)
            ]
            answers = await asyncio.gather(*(ask(node, part) for node, part in parts), return_exceptions=True)
            for (_, part), answer in zip(parts, answers, strict=True):
                if isinstance(answer, OSError | ClientError | NotLed):
                    problem = answer
                    waiting += part
                elif isinstance(answer, BaseException):
                    raise answer
                else:
                    found.update(zip(part, answer, strict=True))
            left = waiting
            if not left:
                break
            if self._clock.monotonic() + PAUSE_S >= end_s:
                reason = problem or "nobody leads them at the moment"
                raise Refused(
                    ErrorCode.COORDINATOR_NOT_AVAILABLE,
                    f"{len(left)} share-partitions cannot be reached ({reason}); try again",
                )
            await self._clock.sleep(PAUSE_S)
        return found
