"""Watching the ends of partitions' logs: one parked fetch a broker asks for all the partitions that it leads.

Each (broker, isolation level) has a `Watch` with connections of its own, so that a broker that is slow or gone holds
up nobody else. Its *main* track keeps a fetch session with the broker: a request names only what has changed since the
last one, so that a thousand partitions cost nothing but for those that have news. Because a parked fetch cannot be
added to, what comes to be watched meanwhile is asked about by the *guest* track, until the main one is back:

    touched ──main asks──→ in its session ──tail moved, paused, removed──→ touched
       │ main is parked
       └──guest asks, until the main track's answer is due──→ touched
    any ──error of the partition, lost connection──→ given back (`Watching.lost`)

About paused lanes it is asked without waiting, once in `look_s`, for the bounds' sake.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from flowshare.client.errors import ClientError
from flowshare.fleet.log.session import FetchSession, Place
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import FetchPartition, FetchRequest

if TYPE_CHECKING:
    from flowshare.client.cluster import Cluster
    from flowshare.client.connections import NodeConnection
    from flowshare.fleet.log.lane import Lane
    from flowshare.fleet.log.settings import LogSettings
    from flowshare.protocol.messages import FetchedLog, FetchResponse, Request

R = TypeVar("R")
Where = tuple[str, int]
"""Topic and partition."""

LOOK_BYTES: Final = 1
"""Asked of a partition of which only the bounds are wanted: a broker gives at most one batch for all of them."""
GUEST_S: Final = 0.01
"""So long before the main track's answer is due the guest's is: what it asked about is free then."""
TICK_S: Final = 0.001
"""Timers may come so much too early."""
SESSION_GONE: Final = frozenset({ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH})

logger = logging.getLogger(__name__)


class Watching(Protocol):
    """Who takes the answers."""

    def end(self, lane: Lane) -> int:
        """Where the log ends, as far as is known: nothing has to be sent from there."""
        ...

    def watched(self, lane: Lane, offset: int, answer: FetchedLog) -> None:
        """What follows `offset`, or why there is none."""

    def looked(self, lane: Lane, answer: FetchedLog) -> None:
        """The bounds, or why there are none."""

    def lost(self, lanes: Sequence[Lane], error: Exception) -> None:
        """The broker does not answer; somebody else may lead these by now."""


class Watch:
    """The watched lanes of one isolation level that one broker leads."""

    def __init__(
        self, node: int, *, committed: bool, cluster: Cluster, client_id: str, settings: LogSettings, owner: Watching
    ) -> None:
        self._node = node
        self._committed = committed
        self._cluster = cluster
        self._clock = cluster.clock
        self._client_id = client_id
        self._settings = settings
        self._owner = owner
        self._lanes: dict[Where, Lane] = {}
        self._touched: dict[Where, None] = {}
        self._guests: set[Where] = set()
        self._session: FetchSession[Where] = FetchSession()
        self._parked_to_s = 0.0
        self._looked_s = self._clock.monotonic()
        self._news = (asyncio.Event(), asyncio.Event())
        self._tasks: list[asyncio.Task[None]] = []

    def add(self, lane: Lane) -> None:
        """Ask about this one too."""
        self._lanes[lane.topic, lane.partition] = lane
        if not self._tasks:
            loop = asyncio.get_running_loop()
            self._tasks = [
                loop.create_task(self._main(self._news[0]), name=f"ends of the logs of broker {self._node}"),
                loop.create_task(self._guest(self._news[1]), name=f"new ends of the logs of broker {self._node}"),
            ]
        self.wake(lane)

    def remove(self, lane: Lane) -> None:
        """Ask about it no more; what is under way is not told."""
        where = lane.topic, lane.partition
        if self._lanes.get(where) is lane:
            del self._lanes[where]
            self._touched[where] = None

    def wake(self, lane: Lane) -> None:
        """The lane has moved, is not paused any more, or has rested."""
        self._touched[lane.topic, lane.partition] = None
        for news in self._news:
            news.set()

    async def close(self) -> None:
        """End what is under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    # --- tracks ---------------------------------------------------------------------------------------------------

    async def _main(self, news: asyncio.Event) -> None:
        line = Line(self._cluster, self._node, self._client_id)
        try:
            while True:
                news.clear()
                if paused := self._due():
                    await self._guarded(paused, self._look(line, paused))
                    continue
                self._session.tell(self._changes())
                if not self._session.told:
                    await self._sleep(news)
                    continue
                asked = self._session.ask()
                request = self._request(asked.changed, self._settings.wait_s)
                request = replace(request, session=asked.session, forgotten=asked.forgotten)
                self._parked_to_s = self._clock.monotonic() + self._settings.wait_s
                self._news[1].set()
                await self._guarded(tuple(self._session.told), self._park(line, request))
        finally:
            await line.close()

    async def _park(self, line: Line, request: FetchRequest) -> None:
        try:
            answer = await line.send(request)
        finally:
            self._parked_to_s = 0.0
        if answer.error in SESSION_GONE:
            self._touch(self._session.lost())
            return
        check(answer)
        told = dict(self._session.told)
        self._touch(self._session.answered(answer.session_id))
        for part in answer.partitions:
            where = part.topic, part.partition
            # Whatever the broker tells of a log, it tells again at once unless it is asked for something else.
            self._touched[where] = None
            if where in told:
                self._watched(where, told[where], part)

    async def _guest(self, news: asyncio.Event) -> None:
        line = Line(self._cluster, self._node, self._client_id)
        try:
            while True:
                news.clear()
                places = self._joining()
                left_s = self._parked_to_s - self._clock.monotonic() - GUEST_S
                if not places or left_s < GUEST_S:
                    await news.wait()
                    continue
                self._guests = set(places)
                try:
                    await self._guarded(tuple(places), self._visit(line, places, left_s))
                finally:
                    self._guests = set()
                    self._touch(places)
        finally:
            await line.close()

    async def _visit(self, line: Line, places: Mapping[Where, Place], wait_s: float) -> None:
        answer = await line.send(self._request(places, wait_s))
        check(answer)
        for (where, place), part in zip(places.items(), answer.partitions, strict=True):
            self._watched(where, place, part)

    async def _look(self, line: Line, wheres: Sequence[Where]) -> None:
        """The bounds of partitions whose records are not wanted now."""
        parts = tuple(FetchPartition(*where, self._owner.end(self._lanes[where]), LOOK_BYTES) for where in wheres)
        answer = await line.send(FetchRequest(partitions=parts, max_bytes=LOOK_BYTES, committed=self._committed))
        check(answer)
        for where, part in zip(wheres, answer.partitions, strict=True):
            lane = self._lanes.get(where)
            if lane is not None:
                self._owner.looked(lane, part)

    def _watched(self, where: Where, place: Place, answer: FetchedLog) -> None:
        lane = self._lanes.get(where)
        if lane is not None:
            self._owner.watched(lane, place.offset, answer)

    async def _guarded(self, wheres: Sequence[Where], asking: Awaitable[None]) -> None:
        """Ask about these; give them back when the broker does not answer."""
        try:
            await asking
        except Exception as error:
            if not isinstance(error, OSError | ClientError):
                logger.exception("the ends of logs are not understood, asked again broker=%d", self._node)
            if not self._guests.issuperset(wheres):
                self._touch(self._session.lost())
            self._owner.lost([lane for where in wheres if (lane := self._lanes.get(where)) is not None], error)

    # --- what is asked about --------------------------------------------------------------------------------------

    def _touch(self, wheres: Iterable[Where]) -> None:
        self._touched.update(dict.fromkeys(wheres))

    def _place(self, where: Where) -> Place | None:
        """Where the next fetch of a log begins; None when it is not to be asked about now."""
        lane = self._lanes.get(where)
        if lane is None or lane.tail is None or lane.paused or self._rests(where):
            return None
        return Place(lane.tail.end, lane.tail.epoch)

    def _rests(self, where: Where) -> bool:
        lane = self._lanes.get(where)
        return lane is not None and lane.rests_until_s > self._clock.monotonic() + TICK_S

    def _changes(self) -> dict[Where, Place | None]:
        """What the main track has to tell the broker. A lane that got nothing although there is something comes first:
        a broker gives one batch that is larger than what was asked for, and only if it is the first."""
        news = [where for where in self._touched if where not in self._guests]
        news.sort(key=self._starved, reverse=True)
        self._touched = {where: None for where in self._touched if where in self._guests or self._rests(where)}
        return {where: self._place(where) for where in news}

    def _starved(self, where: Where) -> bool:
        lane = self._lanes.get(where)
        return lane is not None and lane.starved

    def _joining(self) -> dict[Where, Place]:
        """What the guest track can ask about while the main one is parked."""
        places = {where: self._place(where) for where in self._touched if where not in self._session.told}
        return {where: place for where, place in places.items() if place is not None}

    def _due(self) -> list[Where]:
        """Paused lanes, when it is time to look after them."""
        now_s = self._clock.monotonic()
        if now_s - self._looked_s < self._settings.look_s:
            return []
        self._looked_s = now_s
        return [where for where, lane in self._lanes.items() if lane.paused and where not in self._guests]

    async def _sleep(self, news: asyncio.Event) -> None:
        """Until something is touched, or it is time to look."""
        if not self._lanes:
            await news.wait()
            return
        timer = self._clock.call_later(self._settings.look_s, news.set)
        try:
            await news.wait()
        finally:
            timer.cancel()

    def _request(self, places: Mapping[Where, Place], wait_s: float) -> FetchRequest:
        size = self._settings.stretch_bytes
        return FetchRequest(
            partitions=tuple(
                FetchPartition(*where, place.offset, size, last_epoch=place.epoch) for where, place in places.items()
            ),
            max_wait_ms=int(wait_s * 1000),
            max_bytes=self._settings.watch_bytes,
            committed=self._committed,
        )


class Line:
    """A connection to one broker that is opened when it is needed, and closed when it broke."""

    def __init__(self, cluster: Cluster, node: int, client_id: str) -> None:
        self._cluster = cluster
        self._node = node
        self._client_id = client_id
        self._connection: NodeConnection | None = None

    async def send(self, request: Request[R]) -> R:
        """The answer. Raises: OSError, ClientError."""
        if self._connection is None:
            self._connection = await self._cluster.open_node(self._node, self._client_id)
        try:
            answer: R = await self._connection.send(request)
        except (OSError, ClientError):
            await self.close()
            raise
        return answer

    async def close(self) -> None:
        """Close it."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


def check(answer: FetchResponse) -> None:
    """Raises: ClientError when the broker refused the request as a whole."""
    if answer.error is not ErrorCode.NONE:
        raise ClientError(f"the broker refused the fetch: {answer.error.name}")
