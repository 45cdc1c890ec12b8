"""`Leaders` of a fleet: a coordinator's requests go to the worker that leads the share-partition.

Kafka's coordinators speak to leaders through the state topic; flowshare's ask them, by the private API, because a
leader has the state in memory and is the only one that may write it. Every call can be made twice. A worker that is
asked for a share-partition that it does not lead refuses, and the right one is looked for, for a bounded time.

Requests travel as lists and numbers that JSON has, checked when they are read (`tell_…`, `…_of`).
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, cast

from flowshare.client.errors import ClientError, ServerError
from flowshare.fleet.directory import NOBODY
from flowshare.log.base import NotLed
from flowshare.protocol.browse_codec import CALLS as BROWSE_CALLS
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import SharePartitionOffsets
from flowshare.server.runtime.failures import Refused
from flowshare.server.runtime.state import ShareKey
from flowshare.share.group import ToInitialize
from flowshare.share.parking import ParkedKey
from flowshare.share.types import BlockedKey, PartitionState, RecordState, StateRun

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from flowshare.clock import Clock
    from flowshare.fleet.directory import Directory
    from flowshare.fleet.groups.facts import Version
    from flowshare.fleet.peers import Peers
    from flowshare.log.base import StateStore
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


LIMIT_S: Final = 10.0
"""Time, in s, for finding the leaders of a request's share-partitions."""
PAUSE_S: Final = 0.1
BEGIN: Final = "fleet_begin"
REPLACE: Final = "fleet_replace"
OFFSETS: Final = "fleet_offsets"
PARKED: Final = "fleet_parked"
"""{"keys", "act", "key"} -> {"parked": rows of each}; as `Leaders.parked`."""
BROWSE: Final = "fleet_browse"
"""{"key", "ask": fields of share_browse} -> fields of its answer; as `Leaders.browse`."""
INTERVENE: Final = "fleet_intervene"
"""The same of share_intervene; as `Leaders.intervene`."""
GONE: Final = "fleet_gone"
"""{"group_id", "member_id", "version": the group's, "died"} -> {}: a member is gone."""
AT_ONCE: Final = 200
"""Share-partitions named in one call: finished calls count even if a later one takes too long."""

Ask = Callable[[int, list[ShareKey]], Awaitable[Any]]
"""(node, share-partitions that it leads) -> their answers; raises OSError, ClientError, NotLed, Refused."""
Here = Callable[[list[ShareKey]], "AbstractAsyncContextManager[Sequence[Write]]"]
There = Callable[[list[ShareKey]], tuple[str, dict[str, Any]]]
"""Here: returns the writes for share-partitions that are led here. There: returns the call with which another worker
does the same, and the call's fields."""


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
        self.peers.tell_leaders(GONE, group_id=group_id, member_id=member_id, version=version, died=died)

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
            lambda keys: (BEGIN, {"group_id": group_id, "items": [tell_first(by_key[key]) for key in keys]}),
        )
        yield ()

    @asynccontextmanager
    async def replacing(self, states: Mapping[ShareKey, PartitionState | None]) -> AsyncGenerator[Sequence[Write]]:
        """Write the new states before the block begins."""
        await self._write(
            list(states),
            lambda keys: self.local.replacing({key: states[key] for key in keys}),
            lambda keys: (REPLACE, {"states": [tell_state(key, states[key]) for key in keys]}),
        )
        yield ()

    async def _write(self, keys: list[ShareKey], here: Here, there: There) -> None:
        """Make the leaders of these share-partitions write their states. Raises Refused."""

        async def ask(node: int, mine: list[ShareKey]) -> list[None]:
            if self.directory.is_me(node):
                async with here(mine) as writes:
                    await self.store.write(writes)
            else:
                name, fields = there(mine)
                await self.peers.call(node, name, **fields)
            return [None] * len(mine)

        await self._everywhere(keys, ask)

    async def offsets(self, keys: Sequence[ShareKey]) -> list[SharePartitionOffsets]:
        """Return the offsets of share-partitions; each leader is asked once. Raises Refused."""

        async def ask(node: int, mine: list[ShareKey]) -> list[SharePartitionOffsets]:
            if self.directory.is_me(node):
                return await self.local.offsets(mine)
            told = [[key.group_id, key.topic_id.hex, key.partition] for key in mine]
            answer = await self.peers.call(node, OFFSETS, keys=told)
            return [offsets_of(row) for row in answer["offsets"]]

        found = await self._everywhere(list(keys), ask)
        return [found[key] for key in keys]

    async def parked(self, keys: Sequence[ShareKey], act: str, key: bytes) -> list[ParkedRows]:
        """Ask each leader about parked keys; a replay may begin twice, the last one counts. Raises Refused."""

        async def ask(node: int, mine: list[ShareKey]) -> list[ParkedRows]:
            if self.directory.is_me(node):
                return await self.local.parked(mine, act, key)
            told = [[one.group_id, one.topic_id.hex, one.partition] for one in mine]
            answer = await self.peers.call(node, PARKED, keys=told, act=act, key=key.hex())
            return [parked_of(rows) for rows in answer["parked"]]

        found = await self._everywhere(list(keys), ask)
        return [found[one] for one in keys]

    async def browse(self, key: ShareKey, request: ShareBrowseRequest) -> ShareBrowseResponse:
        """Ask the share-partition's leader. Raises Refused."""

        async def ask(node: int, _mine: list[ShareKey]) -> list[ShareBrowseResponse]:
            _, epoch = self.directory.leader_of(key.topic_id, key.partition)
            if self.directory.is_me(node):
                found = await self.local.browse(key, request)
            else:
                found = await self._asked(node, BROWSE, key, request)
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
            return [await self._asked(node, INTERVENE, key, request)]

        found: Any = (await self._everywhere([key], ask))[key]
        return cast("ShareInterveneResponse", found)

    async def _asked(self, node: int, name: str, key: ShareKey, request: Any) -> Any:
        """Ask another worker about one share-partition that it leads. Raises Refused, ServerError
        (NOT_LEADER_OR_FOLLOWER), ..."""
        call = BROWSE_CALLS[request.call]
        told = [key.group_id, key.topic_id.hex, key.partition]
        try:
            return call.read_answer(await self.peers.call(node, name, key=told, ask=call.request(request)))
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


def tell_first(item: ToInitialize) -> list[Any]:
    """Return a share-partition that is to get its first state, as JSON values."""
    return [item.topic_id.hex, item.partition, item.start_offset, item.state_epoch]


def first_of(told: Sequence[Any]) -> ToInitialize:
    """Read the result of `tell_first`. Raises: ValueError, TypeError."""
    topic_id, partition, start, epoch = told
    return ToInitialize(uuid.UUID(topic_id), int(partition), int(start), int(epoch))


def tell_state(key: ShareKey, state: PartitionState | None) -> list[Any]:
    """Return a share-partition that is to begin anew, or (None) to be forgotten, as JSON values. Only finished runs
    travel."""
    start: list[Any] | None = None
    if state is not None:
        start = [state.state_epoch, state.start_offset]
        if state.runs:
            start.append([[run.first, run.last] for run in state.runs if run.state.terminal])
    return [key.group_id, key.topic_id.hex, key.partition, start]


def state_of(told: Sequence[Any]) -> tuple[ShareKey, PartitionState | None]:
    """Read the result of `tell_state`. Raises: ValueError, TypeError."""
    group_id, topic_id, partition, start = told
    key = key_of((group_id, topic_id, partition))
    if start is None:
        return key, None
    epoch, offset, *finished = start
    runs = tuple(
        StateRun(int(first), int(last), RecordState.ACKNOWLEDGED, 1)
        for first, last in (finished[0] if finished else ())
    )
    return key, PartitionState(
        state_epoch=int(epoch),
        start_offset=int(offset),
        delivery_complete_count=sum(run.last - run.first + 1 for run in runs),
        runs=runs,
    )


def key_of(told: Sequence[Any]) -> ShareKey:
    """Return a share-partition's key. Raises ValueError, TypeError."""
    group_id, topic_id, partition = told
    return ShareKey(str(group_id), uuid.UUID(topic_id), int(partition))


def tell_parked(rows: ParkedRows) -> list[Any]:
    """Return the parked keys of a share-partition, as JSON values."""
    return [[key.hex(), *parked] for key, parked in rows]


def parked_of(told: Sequence[Any]) -> ParkedRows:
    """Read the result of `tell_parked`. Raises: ValueError, TypeError."""
    return [(bytes.fromhex(key), ParkedKey(*map(int, fields))) for key, *fields in told]


OFFSETS_TOLD: Final = ("topic", "topic_id", "partition", "start_offset", "leader_epoch", "lag", "in_flight", "delayed",
                       "redeliveries", "oldest_ms", "blocked", "stuck", "archiving", "error", "message")  # fmt: skip
"""Fields that `tell_offsets` sends of a share-partition, in this order. The number of parked keys follows, if any are
parked: an older release knows no such field."""


def tell_offsets(part: SharePartitionOffsets) -> list[Any]:
    """Return the offsets of a share-partition, as JSON values."""
    values = {name: getattr(part, name) for name in OFFSETS_TOLD}
    values["topic_id"] = None if part.topic_id is None else part.topic_id.hex
    values["stuck"] = [list(one) for one in part.stuck]
    return [*values.values(), *((part.parked,) if part.parked else ())]


def offsets_of(told: Sequence[Any]) -> SharePartitionOffsets:
    """Read the result of `tell_offsets`. Raises: ValueError, TypeError."""
    known = len(OFFSETS_TOLD)
    values = dict(zip(OFFSETS_TOLD, told[:known], strict=True))
    values["parked"] = int(told[known]) if len(told) > known else 0
    topic_id = values["topic_id"]
    values["topic_id"] = None if topic_id is None else uuid.UUID(topic_id)
    values["error"] = ErrorCode.known(int(values["error"]))
    values["stuck"] = tuple(BlockedKey(*one) for one in values["stuck"])
    return SharePartitionOffsets(**values)
