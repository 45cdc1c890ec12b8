"""`Leaders` of a fleet: a coordinator's requests go to the worker that leads the share-partition.

Kafka's coordinators speak to leaders through the state topic; flowshare's ask them, by the private API, because a
leader has the state in memory and is the only one that may write it. Every call can be made twice. A worker that is
asked for a share-partition that it does not lead refuses, and the right one is looked for, for a bounded time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from flowshare.client.errors import ClientError, ServerError
from flowshare.fleet.directory import NOBODY
from flowshare.fleet.messages import (
    BeginStates,
    BrowseLed,
    InterveneLed,
    MemberGone,
    OffsetsRequest,
    ParkedRequest,
    ReplaceStates,
    StateStart,
)
from flowshare.log.base import NotLed
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import Request, Response
from flowshare.server.runtime.failures import Refused
from flowshare.server.runtime.state import ShareKey
from flowshare.share.types import PartitionState, RecordState, StateRun

if TYPE_CHECKING:
    import uuid
    from contextlib import AbstractAsyncContextManager

    from flowshare.clock import Clock
    from flowshare.fleet.directory import Directory
    from flowshare.fleet.messages import Version
    from flowshare.fleet.peers import Peers
    from flowshare.log.base import StateStore
    from flowshare.protocol.messages import SharePartitionOffsets
    from flowshare.protocol.messages.browse import (
        ShareBrowseRequest,
        ShareBrowseResponse,
        ShareInterveneRequest,
        ShareInterveneResponse,
    )
    from flowshare.server.runtime.state import Write
    from flowshare.server.share.leaders import LocalLeaders, ParkedRows
    from flowshare.share.config import GroupConfig
    from flowshare.share.group import ShareGroup
    from flowshare.share.group_state import ToInitialize


LIMIT_S: Final = 10.0
"""Time, in s, for finding the leaders of a request's share-partitions."""
PAUSE_S: Final = 0.1
AT_ONCE: Final = 200
"""Share-partitions named in one call: finished calls count even if a later one takes too long."""

R = TypeVar("R")
Ask = Callable[[int, list[ShareKey]], Awaitable[Any]]
"""(node, share-partitions that it leads) -> their answers; raises OSError, ClientError, NotLed, Refused."""
Here = Callable[[list[ShareKey]], "AbstractAsyncContextManager[Sequence[Write]]"]
There = Callable[[list[ShareKey]], Request[Response]]
"""Here: returns the writes for share-partitions that are led here. There: returns the call with which another worker
does the same."""


@dataclass(eq=False, kw_only=True)
class FleetLeaders:
    """All workers of the fleet, this one among them.

    configured: makes all leaders, the local ones too, follow a group's settings. version: returns the next one of a
    group.
    """

    local: LocalLeaders
    store: StateStore
    directory: Directory
    peers: Peers
    clock: Clock
    configured: Callable[[str], Awaitable[object]]
    version: Callable[[str], Version]

    def known(self, group: ShareGroup) -> frozenset[ShareKey]:
        """Return the share-partitions that the group had initialised."""
        return frozenset(ShareKey(group.group_id, *key) for key in group.initialized)

    def release_member(self, group_id: str, member_id: str, *, died: bool = False, gone: bool = False) -> None:
        """Release a member's records: here at once, elsewhere when the leaders hear of it."""
        self.local.release_member(group_id, member_id, died=died, gone=gone)
        version = self.version(group_id)
        self.peers.tell_leaders(MemberGone(group_id=group_id, member_id=member_id, version=version, died=died))

    async def configure(self, group_id: str) -> None:
        """Make leaders follow a group's settings: here at once, elsewhere when they have heard; silent ones are told
        on."""
        await self.configured(group_id)

    def idle(self, group_id: str) -> bool:
        """True if no member holds or awaits records in the share-partitions led here. The members are long gone when
        this is called."""
        return self.local.idle(group_id)

    def topic_ids(self) -> frozenset[uuid.UUID]:
        """Return the topics of the share-partitions led here; other workers see to theirs."""
        return self.local.topic_ids()

    def deleting(self, topic_id: uuid.UUID) -> AbstractAsyncContextManager[Sequence[Write]]:
        """Delete the share-partitions led here; other workers see to theirs."""
        return self.local.deleting(topic_id)

    @asynccontextmanager
    async def beginning(
        self, group_id: str, config: GroupConfig, items: Sequence[ToInitialize]
    ) -> AsyncGenerator[Sequence[Write]]:
        """Write the first states before the block begins; the group that names them is written after them."""
        by_key = {ShareKey(group_id, item.topic_id, item.partition): item for item in items}
        await self._write(
            list(by_key),
            lambda keys: self.local.beginning(group_id, config, [by_key[key] for key in keys]),
            lambda keys: BeginStates(group_id=group_id, items=tuple(by_key[key] for key in keys)),
        )
        yield ()

    @asynccontextmanager
    async def replacing(self, states: Mapping[ShareKey, PartitionState | None]) -> AsyncGenerator[Sequence[Write]]:
        """Write the new states before the block begins."""
        await self._write(
            list(states),
            lambda keys: self.local.replacing({key: states[key] for key in keys}),
            lambda keys: ReplaceStates(states=tuple((key, tell_state(states[key])) for key in keys)),
        )
        yield ()

    async def _write(self, keys: list[ShareKey], here: Here, there: There) -> None:
        """Make the leaders of these share-partitions write their states. Raises Refused."""

        async def ask(node: int, mine: list[ShareKey]) -> list[None]:
            if self.directory.is_me(node):
                async with here(mine) as writes:
                    await self.store.write(writes)
            else:
                await self.peers.call(node, there(mine))
            return [None] * len(mine)

        await self._everywhere(keys, ask)

    async def offsets(self, keys: Sequence[ShareKey]) -> list[SharePartitionOffsets]:
        """Return the offsets of share-partitions; each leader is asked once. Raises Refused."""

        async def ask(node: int, mine: list[ShareKey]) -> Sequence[SharePartitionOffsets]:
            if self.directory.is_me(node):
                return await self.local.offsets(mine)
            return (await self.peers.call(node, OffsetsRequest(keys=tuple(mine)))).offsets

        found = await self._everywhere(list(keys), ask)
        return [found[key] for key in keys]

    async def parked(self, keys: Sequence[ShareKey], act: str, key: bytes) -> list[ParkedRows]:
        """Ask each leader about parked keys; a replay may begin twice, the last one counts. Raises Refused."""

        async def ask(node: int, mine: list[ShareKey]) -> Sequence[ParkedRows]:
            if self.directory.is_me(node):
                return await self.local.parked(mine, act, key)
            return (await self.peers.call(node, ParkedRequest(keys=tuple(mine), act=act, key=key))).parked

        found = await self._everywhere(list(keys), ask)
        return [found[one] for one in keys]

    async def browse(self, key: ShareKey, request: ShareBrowseRequest) -> ShareBrowseResponse:
        """Ask the share-partition's leader. Raises Refused."""

        async def ask(node: int, _mine: list[ShareKey]) -> list[ShareBrowseResponse]:
            _, epoch = self.directory.leader_of(key.topic_id, key.partition)
            if self.directory.is_me(node):
                found = await self.local.browse(key, request)
            else:
                found = await self._asked(node, BrowseLed(key=key, ask=request))
            return [replace(found, leader=node, leader_epoch=epoch)]

        found: Any = (await self._everywhere([key], ask))[key]
        return cast("ShareBrowseResponse", found)

    async def intervene(self, key: ShareKey, request: ShareInterveneRequest) -> ShareInterveneResponse:
        """Ask the share-partition's leader; after a lost answer it is asked again, and answers for the remaining work.

        Raises: Refused
        """

        async def ask(node: int, _mine: list[ShareKey]) -> list[ShareInterveneResponse]:
            if self.directory.is_me(node):
                return [await self.local.intervene(key, request)]
            return [await self._asked(node, InterveneLed(key=key, ask=request))]

        found: Any = (await self._everywhere([key], ask))[key]
        return cast("ShareInterveneResponse", found)

    async def _asked(self, node: int, request: Request[R]) -> R:
        """Ask another worker about one share-partition that it leads. Raises Refused, ServerError
        (NOT_LEADER_OR_FOLLOWER), ..."""
        try:
            return await self.peers.call(node, request)
        except ServerError as error:
            if error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
                raise
            raise Refused(error.code, error.message or str(error)) from None

    async def _everywhere(self, keys: list[ShareKey], ask: Ask) -> dict[ShareKey, Any]:
        """Ask the leaders until all share-partitions are answered for. Raises: Refused."""
        end_s = self.clock.monotonic() + LIMIT_S
        found: dict[ShareKey, Any] = {}
        problem: Exception | None = None
        left = keys
        while left:
            by_node: dict[int, list[ShareKey]] = {}
            for key in left:
                node, _ = self.directory.leader_of(key.topic_id, key.partition)
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
            if self.clock.monotonic() + PAUSE_S >= end_s:
                reason = problem or "nobody leads them at the moment"
                raise Refused(
                    ErrorCode.COORDINATOR_NOT_AVAILABLE,
                    f"{len(left)} share-partitions cannot be reached ({reason}); try again",
                )
            await self.clock.sleep(PAUSE_S)
        return found


def tell_state(state: PartitionState | None) -> StateStart | None:
    """Return the state with which a share-partition is to begin anew; None: it is to be forgotten. Only finished runs
    travel."""
    if state is None:
        return None
    finished = tuple((run.first, run.last) for run in state.runs if run.state.terminal)
    return StateStart(state.state_epoch, state.start_offset, finished)


def state_of(told: StateStart | None) -> PartitionState | None:
    """Return the state that `tell_state` was given."""
    if told is None:
        return None
    runs = tuple(StateRun(first, last, RecordState.ACKNOWLEDGED, 1) for first, last in told.finished)
    return PartitionState(
        state_epoch=told.state_epoch,
        start_offset=told.start_offset,
        delivery_complete_count=sum(run.last - run.first + 1 for run in runs),
        runs=runs,
    )
