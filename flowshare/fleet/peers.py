"""Calls between the workers of a fleet: flowshare's private API, over one connection to each worker.

Both ends of a line prove their identity (`fleet.peer_login`). A message to all others is repeated until it was
answered, for a bounded time: the receivers take it twice without harm.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar

from flowshare.backoff import QUICK
from flowshare.client.errors import ClientError, NotConnected, ServerError
from flowshare.fleet.directory import NOBODY
from flowshare.fleet.peer_login import STRANGER, PeerLine, ProvenLine, greet
from flowshare.protocol.errors import ErrorCode
from flowshare.server.runtime.failures import Refused
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from flowshare.clock import Clock
    from flowshare.fleet.directory import Directory, WorkerAddress
    from flowshare.fleet.peer_login import KeyPair, KnownKeys
    from flowshare.protocol.messages import Request, Response

R = TypeVar("R")
T = TypeVar("T")

CALL_S: Final = 5.0
"""Time, in s, to wait for an answer."""
FIND_S: Final = 10.0
FIND_PAUSE_S: Final = 0.1
"""Pause, in s, between looks for a group's coordinator; `FIND_S` is the whole time."""
MOVED: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS})
"""Errors of a worker that does not coordinate a group, or not yet."""
TELL_S: Final = 30.0
"""Time, in s, for which a message is repeated; its subject has lapsed by itself by then."""
TELLINGS_MAX: Final = 10_000
"""The most messages under way; further ones are not sent, their news wait for the next occasion."""

logger = logging.getLogger(__name__)


Dial = Callable[["WorkerAddress"], Awaitable[PeerLine]]
"""Opens a connection to a worker. Raises: OSError, ClientError."""


class Peers:
    """Client of the other workers. pair: this worker's keys. known: the others' marks."""

    def __init__(self, directory: Directory, dial: Dial, clock: Clock, *, pair: KeyPair, known: KnownKeys) -> None:
        self._directory = directory
        self._dial = dial
        self._pair = pair
        self._known = known
        self._clock = clock
        self._lines: dict[int, ProvenLine] = {}
        self._dialling: dict[int, asyncio.Lock] = {}
        self._heard: Counter[int] = Counter()
        self._tellings: set[asyncio.Task[None]] = set()
        self._closed = False

    async def call(self, node_id: int, request: Request[R], *, limit_s: float = CALL_S) -> R:
        """Ask one worker. Raises OSError (not reached, no answer), ClientError (refused: ServerError)."""
        heard = self._heard[node_id]
        try:
            return await self._clock.wait_for(self._call(node_id, request), limit_s)
        except TimeoutError:
            if self._heard[node_id] == heard:
                await self._drop(node_id)  # else it is alive and busy, and others wait for their answers
            raise NotConnected(f"worker {node_id} did not answer {_name(request)} within {limit_s:g} s") from None

    async def ask_coordinator(self, group_id: str, request: Request[R], here: Callable[[], Awaitable[T]]) -> T | R:
        """Ask a group's coordinator, by `here` if this worker is it; a missing or moved one is looked for.

        Raises: Refused (not reached in time, or `here` refuses), ServerError (the coordinator refuses), ClientError.
        """
        end_s = self._clock.monotonic() + FIND_S
        while True:
            node = self._directory.group_leader(group_id)
            try:
                if self._directory.is_me(node):
                    return await here()
                if node != NOBODY:
                    return await self.call(node, request)
                problem: object = "nobody does at the moment"
            except (OSError, ServerError, Refused) as error:
                if not isinstance(error, OSError) and error.code not in MOVED:
                    raise
                problem = error
            if self._clock.monotonic() + FIND_PAUSE_S >= end_s:
                kept = f"group {group_id}" if group_id else "the fleet's settings"
                text = f"who keeps {kept} is not reached: {problem}"
                raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, text)
            await self._clock.sleep(FIND_PAUSE_S)

    def tell_all(self, request: Request[Response]) -> None:
        """Tell all other workers known now."""
        for node_id in self._directory.other_nodes:
            self.tell(node_id, request)

    def tell_leaders(self, request: Request[Response]) -> list[asyncio.Task[None]]:
        """Tell all other workers that lead, or are about to; a fleet may have many more workers that do not."""
        tellings = [self.tell(node_id, request) for node_id in self._directory.leading]
        return [telling for telling in tellings if telling is not None]

    def tell(self, node_id: int, request: Request[Response]) -> asyncio.Task[None] | None:
        """Tell one worker, again and again until it answers, has left, or TELL_S are over.

        Returns the task; None when too many messages are under way.
        """
        if self._closed or len(self._tellings) >= TELLINGS_MAX:
            return None
        task = asyncio.create_task(self._tell(node_id, request), name=f"tell worker {node_id} {_name(request)}")
        self._tellings.add(task)
        task.add_done_callback(self._tellings.discard)
        return task

    async def close(self) -> None:
        """Close all connections; messages not delivered yet stay undelivered."""
        self._closed = True
        await cancelled(*self._tellings)
        lines, self._lines = self._lines, {}
        for line in lines.values():
            await line.close()

    async def _tell(self, node_id: int, request: Request[Response]) -> None:
        end_s, tries = self._clock.monotonic() + TELL_S, 0
        while self._clock.monotonic() < end_s and node_id in self._directory.nodes:
            try:
                await self.call(node_id, request)
            except OSError:
                pass
            except ClientError as error:
                if not isinstance(error, ServerError) or not error.retriable:
                    logger.warning("worker %d refuses to be told: %s", node_id, error)
                    return
            else:
                return
            tries += 1
            await self._clock.sleep(QUICK.after(tries))

    async def _call(self, node_id: int, request: Request[R]) -> R:
        line: ProvenLine | None = None
        try:
            line = await self._line(node_id)
            answer = await line.call(request)
        except OSError:
            if line is not None:
                await self._drop(node_id, line)
            raise
        except ServerError as error:
            if error.message != STRANGER:
                raise
            raise NotConnected(f"worker {node_id} knows that this one was given up; it joins its fleet again") from None
        self._heard[node_id] += 1
        return answer

    async def _line(self, node_id: int) -> ProvenLine:
        async with self._dialling.setdefault(node_id, asyncio.Lock()):
            line = self._lines.get(node_id)
            if line is None:
                place, key = self._directory.address(node_id), self._known.of(node_id)
                if place is None or key is None:
                    raise NotConnected(f"worker {node_id} is not known here")
                if self._closed:
                    raise NotConnected("this worker is closing")
                line = self._lines[node_id] = await self._greet(place, key)
            return line

    async def _greet(self, place: WorkerAddress, key: str) -> ProvenLine:
        """Open a proven line to the worker at this place. Raises OSError, ClientError."""
        known = self._directory.map
        generation = -1 if known is None else known.generation
        line = await self._dial(place)
        try:
            return await greet(line, self._pair, key, generation=generation, about=f"worker {place.node_id}")
        except BaseException:
            await line.close()
            raise

    async def _drop(self, node_id: int, line: ProvenLine | None = None) -> None:
        known = self._lines.get(node_id)
        if known is not None and line in (None, known):
            del self._lines[node_id]
            await known.close()


def _name(request: Request[R]) -> str:
    return "" if request.own is None else request.own.name
