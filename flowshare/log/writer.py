"""The writer: one thread that commits what is queued, as much as there is at once (group commit).

The loop submits requests and is told about each commit by one call. After a write error everything queued fails
too, since later requests were made in the belief that earlier ones would hold; nothing is taken until the loop has
undone what it assumed and `resume` succeeded.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from flowshare.log.base import StorageError
from flowshare.log.store import Step, Store

GROUP_REQUESTS_MAX: Final = 4096
GROUP_BYTES_MAX: Final = 8 * 1024 * 1024
QUEUE_REQUESTS_MAX: Final = 16_384
QUEUE_BYTES_MAX: Final = 64 * 1024 * 1024
REQUEST_BYTES: Final = 200
"""What a request takes besides its own bytes."""


class Request:
    """Writes that belong together.

    When they are durable, `applied` runs on the loop, listeners hear of the partition `changed`, and `future` ends.
    """

    __slots__ = ("applied", "changed", "future", "size", "step")

    def __init__(
        self,
        step: Step,
        *,
        size: int,
        future: asyncio.Future[None],
        applied: Callable[[], None] | None = None,
        changed: tuple[str, int] | None = None,
    ) -> None:
        self.step = step
        self.size = size
        self.future = future
        self.applied = applied
        self.changed = changed


class Gate:
    """Bounds what is queued, by number and bytes; who comes first is let in first."""

    def __init__(self, requests_max: int = QUEUE_REQUESTS_MAX, bytes_max: int = QUEUE_BYTES_MAX) -> None:
        self._requests_max = requests_max
        self._bytes_max = bytes_max
        self._requests = 0
        self._bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def enter(self, size: int) -> None:
        """Wait until there is room for `size` bytes, and take it. A single request of any size fits."""
        if not self._waiting and self._fits(size):
            self._take(size)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave(1, size)
            raise

    def leave(self, requests: int, size: int) -> None:
        """Give room back and let waiting ones in."""
        self._requests -= requests
        self._bytes -= size
        while self._waiting:
            size, turn = self._waiting[0]
            if turn.done():
                self._waiting.popleft()
                continue
            if not self._fits(size):
                return
            self._waiting.popleft()
            self._take(size)
            turn.set_result(None)

    def _fits(self, size: int) -> bool:
        return not self._requests or (self._requests < self._requests_max and self._bytes + size <= self._bytes_max)

    def _take(self, size: int) -> None:
        self._requests += 1
        self._bytes += size


Done = Callable[[list[Request], StorageError | None], None]


class Writer:
    """The thread. `done(requests, error)` is called on the loop, in order of the commits."""

    def __init__(self, store: Store, loop: asyncio.AbstractEventLoop, done: Done) -> None:
        self._store = store
        self._loop = loop
        self._done = done
        self._turn = threading.Condition()
        self._queue: deque[Request] = deque()
        self._refusal: StorageError | None = store.full
        self._doubtful: tuple[int, list[Request]] | None = None
        self._survivors: list[Request] = []
        self._resume: Done | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="flowshare-writer", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Whether requests are taken. Raises: StorageError after a write error, or an opening without room for
        writing, until `accept`, and after `close`."""
        if self._refusal is not None:
            raise type(self._refusal)(str(self._refusal))

    def submit(self, request: Request) -> None:
        """Queue. Raises: StorageError, see `check`."""
        with self._turn:
            self.check()
            self._queue.append(request)
            # The thread waits for nothing but an empty queue.
            if len(self._queue) == 1:
                self._turn.notify()

    def resume(self, done: Done) -> None:
        """Open the store again, after a write error or without room; `done(survived, error)` is called on the loop.

        `survived` are the requests of the failed commit if it is in the store all the same.
        """
        with self._turn:
            self._resume = done
            self._turn.notify()

    def accept(self) -> None:
        """Take requests again, after a resume."""
        with self._turn:
            self._refusal = StorageError("the storage is closed") if self._closing else None

    def refuse(self, error: StorageError) -> None:
        """Fail what is queued and take nothing more; what is being written is written to its end."""
        with self._turn:
            self._closing = True
            self._refusal = error
            left = list(self._queue)
            self._queue.clear()
            self._turn.notify()
        if left:
            self._tell(self._done, left, error)

    def close(self) -> None:
        """Write what is queued and end the thread; blocks until then."""
        with self._turn:
            self._closing = True
            self._refusal = self._refusal or StorageError("the storage is closed")
            self._turn.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._turn:
                self._turn.wait_for(lambda: self._queue or self._resume or self._closing)
                resume, self._resume = self._resume, None
                group = self._group()
            if resume is not None:
                self._reopen(resume)
            elif group:
                self._commit(group)
            else:
                return

    def _group(self) -> list[Request]:
        group, size = list[Request](), 0
        while self._queue and len(group) < GROUP_REQUESTS_MAX and size < GROUP_BYTES_MAX:
            group.append(self._queue.popleft())
            size += group[-1].size
        return group

    def _commit(self, group: list[Request]) -> None:
        try:
            self._store.commit(request.step for request in group)
        except StorageError as error:
            with self._turn:
                self._refusal = error
                self._doubtful = self._store.commits, list(group)
                group.extend(self._queue)
                self._queue.clear()
            self._tell(self._done, group, error)
        else:
            self._tell(self._done, group, None)

    def _reopen(self, done: Done) -> None:
        try:
            self._store.reopen()
            if self._doubtful is not None:
                confirmed, group = self._doubtful
                self._survivors, self._doubtful = group if self._store.commits > confirmed else [], None
            self._store.commit(())
        except StorageError as error:
            self._tell(done, [], error)
            return
        survivors, self._survivors = self._survivors, []
        self._tell(done, survivors, None)

    def _tell(self, callback: Done, requests: list[Request], error: StorageError | None) -> None:
        # A loop that was closed without closing the storage has nobody left to tell.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, requests, error)
