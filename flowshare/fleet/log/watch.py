"""Watching the ends of partitions' logs: one parked fetch a broker asks for all the partitions that it leads.

Each (broker, isolation level) has a `Watch` with connections of its own, so that a broker that is slow or gone holds up
no other. Its *main* track keeps a fetch session with the broker: a request names only the changes since the last one,
so that of a thousand partitions only those with news cost anything. Because a parked fetch cannot be added to, the
*guest* track asks about new partitions meanwhile, until the main one is back:

    touched ──main asks──→ in its session ──tail moved, paused, removed──→ touched
       │ main is parked
       └──guest asks, until the main track's answer is due──→ touched
    any ──error of the partition, lost connection──→ given back (`Ends.lost`)

Paused buffers are asked about without waiting, once in `look_s`, to learn their bounds.

`FetchSession` is the fetch session with one broker (KIP-227): the partitions that it was told, so that only changes are
told again.

    NEW ──answer with an id──→ KEPT: the next request has the epoch that follows
     │                           └──`lost`: connection or session ended──→ NEW
     └──answer without: the broker keeps no session──→ NEW; everything is told again with each request

`told` is the whole meaning of the next request, in either state; a partition that leaves it is remembered until that
request is sent, though many changes may be told until then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from flowshare.client.errors import ClientError, check
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import FetchPartition, FetchRequest
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from flowshare.client.net.cluster import Cluster
    from flowshare.client.net.connections import NodeConnection
    from flowshare.fleet.log.ends import Ends
    from flowshare.fleet.log.read_ahead import ReadBuffer
    from flowshare.fleet.log.settings import LogSettings
    from flowshare.protocol.messages import FetchedLog, Request

R = TypeVar("R")
Where = tuple[str, int]
"""Topic and partition."""

LOOK_BYTES: Final = 1
"""Bytes asked of a partition for its bounds only: a broker gives at most one batch for all of them."""
GUEST_S: Final = 0.01
"""Time, in s, by which the guest's answer is due before the main track's: its partitions are free then."""
TICK_S: Final = 0.001
"""Time, in s, by which timers may come too early."""
SESSION_GONE: Final = frozenset({ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH})

logger = logging.getLogger(__name__)


class Watch:
    """The watched buffers of one isolation level that one broker leads."""

    def __init__(
        self, node: int, *, committed: bool, cluster: Cluster, client_id: str, settings: LogSettings, owner: Ends
    ) -> None:
        self._node = node
        self._committed = committed
        self._cluster = cluster
        self._clock = cluster.clock
        self._client_id = client_id
        self._settings = settings
        self._owner = owner
        self._buffers: dict[Where, ReadBuffer] = {}
        self._touched: dict[Where, None] = {}
        self._guests: set[Where] = set()
        self._session = FetchSession()
        self._parked_to_s = 0.0
        self._looked_s = self._clock.monotonic()
        self._news = (asyncio.Event(), asyncio.Event())
        self._tasks: list[asyncio.Task[None]] = []

    def add(self, buffer: ReadBuffer) -> None:
        """Watch this buffer, too."""
        self._buffers[buffer.topic, buffer.partition] = buffer
        if not self._tasks:
            loop = asyncio.get_running_loop()
            self._tasks = [
                loop.create_task(self._main(self._news[0]), name=f"ends of the logs of broker {self._node}"),
                loop.create_task(self._guest(self._news[1]), name=f"new ends of the logs of broker {self._node}"),
            ]
        self.wake(buffer)

    def remove(self, buffer: ReadBuffer) -> None:
        """Watch this buffer no more; answers under way are not told."""
        where = buffer.topic, buffer.partition
        if self._buffers.get(where) is buffer:
            del self._buffers[where]
            self._touched[where] = None

    def wake(self, buffer: ReadBuffer) -> None:
        """Note that the buffer has moved, is paused no more, or has rested."""
        self._touched[buffer.topic, buffer.partition] = None
        for news in self._news:
            news.set()

    async def close(self) -> None:
        """Cancel the requests."""
        await cancelled(*self._tasks)
        self._tasks = []

    # --- tracks ---------------------------------------------------------------------------------------------------

    async def _main(self, news: asyncio.Event) -> None:
        line = BrokerConnection(self._cluster, self._node, self._client_id)
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

    async def _park(self, line: BrokerConnection, request: FetchRequest) -> None:
        try:
            answer = await line.send(request)
        finally:
            self._parked_to_s = 0.0
        if answer.error in SESSION_GONE:
            self._touch(self._session.lost())
            return
        check(answer.error, answer.message, "the fetch")
        told = dict(self._session.told)
        self._touch(self._session.answered(answer.session_id))
        for part in answer.partitions:
            where = part.topic, part.partition
            # A broker repeats an answer about a log at once unless the next request asks for another offset.
            self._touched[where] = None
            if where in told:
                self._watched(where, told[where], part)

    async def _guest(self, news: asyncio.Event) -> None:
        line = BrokerConnection(self._cluster, self._node, self._client_id)
        try:
            while True:
                news.clear()
                positions = self._joining()
                left_s = self._parked_to_s - self._clock.monotonic() - GUEST_S
                if not positions or left_s < GUEST_S:
                    await news.wait()
                    continue
                self._guests = set(positions)
                try:
                    await self._guarded(tuple(positions), self._visit(line, positions, left_s))
                finally:
                    self._guests = set()
                    self._touch(positions)
        finally:
            await line.close()

    async def _visit(self, line: BrokerConnection, positions: Mapping[Where, FetchPosition], wait_s: float) -> None:
        answer = await line.send(self._request(positions, wait_s))
        check(answer.error, answer.message, "the fetch")
        for (where, place), part in zip(positions.items(), answer.partitions, strict=True):
            self._watched(where, place, part)

    async def _look(self, line: BrokerConnection, wheres: Sequence[Where]) -> None:
        """Ask for the bounds of partitions whose records are not wanted now."""
        parts = tuple(FetchPartition(*where, self._owner.end(self._buffers[where]), LOOK_BYTES) for where in wheres)
        answer = await line.send(FetchRequest(partitions=parts, max_bytes=LOOK_BYTES, committed=self._committed))
        check(answer.error, answer.message, "the fetch")
        for where, part in zip(wheres, answer.partitions, strict=True):
            buffer = self._buffers.get(where)
            if buffer is not None:
                self._owner.looked(buffer, part)

    def _watched(self, where: Where, place: FetchPosition, answer: FetchedLog) -> None:
        buffer = self._buffers.get(where)
        if buffer is not None:
            self._owner.watched(buffer, place.offset, answer)

    async def _guarded(self, wheres: Sequence[Where], asking: Awaitable[None]) -> None:
        """Ask about these partitions; give them back when the broker does not answer."""
        try:
            await asking
        except Exception as error:
            if not isinstance(error, OSError | ClientError):
                logger.exception("the ends of logs are not understood, asked again broker=%d", self._node)
            if not self._guests.issuperset(wheres):
                self._touch(self._session.lost())
            self._owner.lost([buffer for where in wheres if (buffer := self._buffers.get(where)) is not None], error)

    # --- what is asked about --------------------------------------------------------------------------------------

    def _touch(self, wheres: Iterable[Where]) -> None:
        self._touched.update(dict.fromkeys(wheres))

    def _place(self, where: Where) -> FetchPosition | None:
        """Return the position of a log's next fetch; None: not to be asked about now."""
        buffer = self._buffers.get(where)
        if buffer is None or buffer.tail is None or buffer.paused or self._rests(where):
            return None
        return FetchPosition(buffer.tail.end, buffer.tail.epoch)

    def _rests(self, where: Where) -> bool:
        buffer = self._buffers.get(where)
        return buffer is not None and buffer.rests_until_s > self._clock.monotonic() + TICK_S

    def _changes(self) -> dict[Where, FetchPosition | None]:
        """Return the changes that the main track has to tell the broker. A starved buffer comes first: a broker gives a
        batch larger than asked for only if that batch is the first."""
        news = [where for where in self._touched if where not in self._guests]
        news.sort(key=self._starved, reverse=True)
        self._touched = {where: None for where in self._touched if where in self._guests or self._rests(where)}
        return {where: self._place(where) for where in news}

    def _starved(self, where: Where) -> bool:
        buffer = self._buffers.get(where)
        return buffer is not None and buffer.starved

    def _joining(self) -> dict[Where, FetchPosition]:
        """Return the positions that the guest track can ask about while the main track is parked."""
        positions = {where: self._place(where) for where in self._touched if where not in self._session.told}
        return {where: place for where, place in positions.items() if place is not None}

    def _due(self) -> list[Where]:
        """Return the paused buffers when their look is due, else none."""
        now_s = self._clock.monotonic()
        if now_s - self._looked_s < self._settings.look_s:
            return []
        self._looked_s = now_s
        return [where for where, buffer in self._buffers.items() if buffer.paused and where not in self._guests]

    async def _sleep(self, news: asyncio.Event) -> None:
        """Wait until a buffer is touched, or a look is due."""
        if not self._buffers:
            await news.wait()
            return
        timer = self._clock.call_later(self._settings.look_s, news.set)
        try:
            await news.wait()
        finally:
            timer.cancel()

    def _request(self, positions: Mapping[Where, FetchPosition], wait_s: float) -> FetchRequest:
        size = self._settings.stretch_bytes
        return FetchRequest(
            partitions=tuple(
                FetchPartition(*where, place.offset, size, last_epoch=place.epoch) for where, place in positions.items()
            ),
            max_wait_ms=int(wait_s * 1000),
            max_bytes=self._settings.watch_bytes,
            committed=self._committed,
        )


class BrokerConnection:
    """A connection to one broker that is opened on need, and closed when it breaks."""

    def __init__(self, cluster: Cluster, node: int, client_id: str) -> None:
        self._cluster = cluster
        self._node = node
        self._client_id = client_id
        self._connection: NodeConnection | None = None

    async def send(self, request: Request[R]) -> R:
        """Return the answer. Raises OSError, ClientError."""
        if self._connection is None:
            self._connection = await self._cluster.open_node(self._node, self._client_id)
        try:
            answer: R = await self._connection.send(request)
        except (OSError, ClientError):
            await self.close()
            raise
        return answer

    async def close(self) -> None:
        """Close."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


EPOCH_MAX: Final = 2**31 - 1
NEW: Final = (0, 0)


class FetchPosition(NamedTuple):
    """The offset of a log's next fetch, and the leader epoch of the record before, −1: not known."""

    offset: int
    epoch: int


class SessionRequest(NamedTuple):
    """One request: id and epoch of the session, its changes, and the partitions that leave it."""

    session: tuple[int, int]
    changed: Mapping[Where, FetchPosition]
    forgotten: tuple[Where, ...]


class FetchSession:
    """The fetch session of one connection."""

    def __init__(self) -> None:
        self.told: dict[Where, FetchPosition] = {}
        self._session = NEW
        self._unsent: dict[Where, None] = {}

    def tell(self, news: Mapping[Where, FetchPosition | None]) -> None:
        """Take in the changes for the next request (None: not wanted any more)."""
        for key, place in news.items():
            if place == self.told.get(key):
                continue
            self._unsent[key] = None
            if place is None:
                del self.told[key]
            else:
                self.told[key] = place

    def ask(self) -> SessionRequest:
        """Return the next request, to be sent now."""
        unsent, self._unsent = self._unsent, {}
        if self._session == NEW:
            return SessionRequest(NEW, dict(self.told), ())
        changed = {key: self.told[key] for key in unsent if key in self.told}
        return SessionRequest(self._session, changed, tuple(key for key in unsent if key not in self.told))

    def answered(self, session_id: int) -> list[Where]:
        """Note that the broker has answered; return the partitions that it does not remember and has to be told
        again."""
        if not session_id:
            return self.lost()
        epoch = self._session[1] + 1
        self._session = session_id, epoch if epoch <= EPOCH_MAX else 1
        return []

    def lost(self) -> list[Where]:
        """Note that the broker remembers nothing; return the partitions that it has to be told again."""
        forgotten = list(self.told)
        self.told.clear()
        self._unsent.clear()
        self._session = NEW
        return forgotten
