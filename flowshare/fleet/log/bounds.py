"""Where many logs begin and end: asked of each broker for all of its logs at once.

A thousand partitions that fifty groups begin to read would be 150,000 questions otherwise. Who asks while a question is
under way waits for the next one, with all others who do; a log whose broker does not say is asked about by itself,
by whoever leads it then.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import TYPE_CHECKING, Final

from flowshare.client.errors import ClientError
from flowshare.client.topology import NOBODY
from flowshare.fleet.log.watch import Line
from flowshare.log.base import LogOffsets
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import ManyOffsetsRequest
from flowshare.protocol.messages.records import EARLIEST, LATEST

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from flowshare.client.cluster import Cluster

AT_ONCE: Final = 1_000
"""Logs in one question."""
ALONE_AT_ONCE: Final = 64
"""Logs that are asked about by themselves at a time."""

Where = tuple[str, int]
Answers = dict[Where, "asyncio.Future[LogOffsets | None]"]

logger = logging.getLogger(__name__)


class Bounds:
    """alone: asks about one log, whoever leads it; raises LogError."""

    def __init__(self, cluster: Cluster, client_id: str, alone: Callable[[str, int], Awaitable[LogOffsets]]) -> None:
        self._cluster = cluster
        self._client_id = client_id
        self._alone = alone
        self._turns = asyncio.Semaphore(ALONE_AT_ONCE)
        self._coming: dict[int, Answers] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._lines: dict[int, Line] = {}

    async def close(self) -> None:
        """Ask nothing any more."""
        tasks = tuple(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for line in self._lines.values():
            await line.close()

    async def of(self, topic: str, partition: int) -> LogOffsets:
        """As they are after the call. Raises: LogError."""
        node = self._cluster.topology.leader(topic, partition)
        found = None if node == NOBODY else await asyncio.shield(self._answer(node, (topic, partition)))
        if found is not None:
            return found
        async with self._turns:
            return await self._alone(topic, partition)

    def _answer(self, node: int, where: Where) -> asyncio.Future[LogOffsets | None]:
        """What the next question to a broker will give; None: nothing."""
        coming = self._coming.setdefault(node, {})
        answer = coming.get(where)
        if answer is None:
            answer = coming[where] = asyncio.get_running_loop().create_future()
        if node not in self._tasks:
            self._tasks[node] = asyncio.create_task(self._run(node), name=f"bounds of logs at {node}")
        return answer

    async def _run(self, node: int) -> None:
        """Ask until nobody waits."""
        asked: Answers = {}
        try:
            while coming := self._coming.pop(node, None):
                asked = dict(itertools.islice(coming.items(), AT_ONCE))
                rest = dict(itertools.islice(coming.items(), AT_ONCE, None))
                if rest:
                    self._coming[node] = rest
                found = await self._ask(node, tuple(asked)) if len(asked) > 1 else (None,)
                for answer, bounds in zip(asked.values(), found, strict=True):
                    answer.set_result(bounds)
        finally:
            del self._tasks[node]
            for answer in (*asked.values(), *self._coming.pop(node, {}).values()):
                if not answer.done():
                    answer.set_result(None)

    async def _ask(self, node: int, wheres: Sequence[Where]) -> Sequence[LogOffsets | None]:
        """One after the other, so that a log may only have grown in between."""
        line = self._lines.get(node)
        if line is None:
            line = self._lines[node] = Line(self._cluster, node, self._client_id)
        told: list[list[int | None]] = []
        try:
            for which, committed in ((EARLIEST, False), (LATEST, True), (LATEST, False)):
                request = ManyOffsetsRequest(partitions=tuple(wheres), timestamp_ms=which, committed=committed)
                answer = await line.send(request)
                told.append([one.offset if one.error is ErrorCode.NONE else None for one in answer.offsets])
        except (OSError, ClientError) as error:
            logger.info("the bounds of %d logs are asked for one by one: %s", len(wheres), error)
            return [None] * len(wheres)
        return [_bounds(*three) for three in zip(*told, strict=True)]


def _bounds(start: int | None, stable: int | None, high: int | None) -> LogOffsets | None:
    if start is None or stable is None or high is None:
        return None
    return LogOffsets(log_start=min(start, stable), high_watermark=max(high, stable), last_stable=stable)
