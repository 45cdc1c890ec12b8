"""Taking a dead worker's members out of their groups, so that others have its partitions at once.

A member that died stays in its group on Kafka's brokers until its session times out, 45 s by default, and its
partitions are fetched by nobody meanwhile (reference spark-on-kafka.md §3.4). Anybody may send the heartbeat by which
it leaves: the driver does, as it is told of a worker's death by the end of its connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final

from flowshare.agents.pair import member_ids, side_id
from flowshare.client.errors import ClientError
from flowshare.client.membership import EPOCH_LEAVE
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import ShareGroupHeartbeatRequest

if TYPE_CHECKING:
    from flowshare.clock import Clock
    from flowshare.protocol.messages import Connection

logger = logging.getLogger("flowshare.spark")

LIMIT_S: Final = 2.0
"""How long a group's coordinator may take; after it the group finds out by itself."""
GONE: Final = frozenset({ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND})


class Leaving:
    """Sends the last heartbeat of members of others. On one loop."""

    def __init__(
        self, connect: Callable[[], Awaitable[Connection]], groups: Mapping[str, str], *, clock: Clock
    ) -> None:
        """groups: group of each agent, by its name."""
        self._connect = connect
        self._groups = groups
        self._clock = clock
        self._connection: Connection | None = None
        self._opening = asyncio.Lock()

    async def leave(self, prefix: str) -> None:
        """Take the members of the worker whose members' ids begin so out of their groups; never raises."""
        ids = member_ids(prefix, self._groups)
        wanted = [(self._groups[name], one) for name, found in ids.items() for one in (found, side_id(found))]
        await asyncio.gather(*(self._leave(group, member_id) for group, member_id in wanted))

    async def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _leave(self, group: str, member_id: str) -> None:
        request = ShareGroupHeartbeatRequest(group_id=group, member_id=member_id, member_epoch=EPOCH_LEAVE)
        trouble: object = None
        for _ in range(2):  # the connection may have ended since it was used last
            try:
                answer = await self._clock.wait_for(self._send(request), LIMIT_S)
            except (ClientError, OSError, TimeoutError) as error:
                trouble = repr(error)
                await self.close()
                continue
            if answer in GONE:
                return
            trouble = answer.name
        logger.warning(
            "group=%s: member %s of a dead worker stays until its session ends: %s", group, member_id, trouble
        )

    async def _send(self, request: ShareGroupHeartbeatRequest) -> ErrorCode:
        async with self._opening:
            if self._connection is None:
                self._connection = await self._connect()
            connection = self._connection
        return (await connection.send(request)).error
