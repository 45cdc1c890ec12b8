"""Steps on their way into the store: `CommitQueue` as the loop sees it, and the thread that commits queued steps.

The thread commits all queued steps at once, up to a limit (group commit); the loop is told about each commit by one
call. After a write error everything queued fails too, since later steps were made in the belief that earlier ones would
hold; nothing is taken until the loop has undone its assumptions and `resume` succeeded.

The steps of the failed commit are in doubt: the store may have them all the same, which shows when it was opened again.
The queuer of a step hears that the step failed, and must look at the stored data to know more. The queuer of a certain
step (`StoreStep.certain`) waits for the true outcome:

    QUEUED ──committed──→ stored
      │ └──the commit before failed──→ failed: it was never written
      └──its commit failed──→ IN DOUBT ──opened again──→ stored, or failed
                                 └──stopped, or the path is lost──→ InDoubt: known when the storage is opened again
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection
from typing import Final, NamedTuple, TypeVarTuple

from flowshare.backoff import USUAL
from flowshare.clock import Clock, TimerHandle
from flowshare.log.base import InDoubt, StorageError
from flowshare.log.store import RocksStore, StoreStep

REMIND_S: Final = 60.0
"""Seconds between two log lines about a storage that cannot be written."""
GROUP_REQUESTS_MAX: Final = 4096
GROUP_BYTES_MAX: Final = 8 * 1024 * 1024
QUEUE_REQUESTS_MAX: Final = 16_384
QUEUE_BYTES_MAX: Final = 64 * 1024 * 1024
REQUEST_BYTES: Final = 200
"""Bytes that a queued step takes besides its own."""
Told = TypeVarTuple("Told")
logger = logging.getLogger(__name__)


class WriteRequest(NamedTuple):
    """A queued step; `future` ends when it is durable and applied, or failed."""

    step: StoreStep
    future: asyncio.Future[None]


class CommitQueue(ABC):
    """Takes steps, in order of the calls; each step is applied to the loop's state when the step is durable.

    `changed` is called with a partition after commits that touched it, once a commit. `roll_back` is called after a
    write error, when the store takes writes again: steps not applied by then are not in the store.
    """

    changed: Callable[[str, int], None]
    roll_back: Callable[[], None]

    @abstractmethod
    async def enter(self, size: int) -> None:
        """Wait until a step of `size` bytes may be queued. A caller that then queues no step must `leave`."""

    @abstractmethod
    def leave(self, size: int) -> None:
        """Give back the room of `enter`."""

    @abstractmethod
    def check(self) -> None:
        """Check that steps are accepted now. Raises: StorageError."""

    @abstractmethod
    def queue(self, step: StoreStep) -> asyncio.Future[None]:
        """Queue a step that has entered; the future ends when the step is durable and applied. Raises: StorageError.

        For a `certain` step the future's StorageError means that the step is not in the store; InDoubt, that the
        outcome is not known. Any other failed step may be in the store all the same.
        """

    async def submit(self, step: StoreStep) -> None:
        """Wait for room, queue the step, and return when it is durable and applied. Raises: StorageError."""
        await self.enter(step.size)
        try:
            future = self.queue(step)
        except BaseException:
            self.leave(step.size)
            raise
        await future


class WriteGate:
    """Bounds the queued steps, by number and bytes; first come, first let in."""

    def __init__(self, requests_max: int = QUEUE_REQUESTS_MAX, bytes_max: int = QUEUE_BYTES_MAX) -> None:
        self._requests_max = requests_max
        self._bytes_max = bytes_max
        self._requests = 0
        self._bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def enter(self, size: int) -> None:
        """Wait until there is room for `size` bytes, and reserve it. A single request of any size fits."""
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
        """Give room back and let waiting requests in."""
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


Done = Callable[[list[WriteRequest]], None]
Failed = Callable[[list[WriteRequest], list[WriteRequest], StorageError], None]
Resumed = Callable[[list[WriteRequest], StorageError | None], None]


class StoreWriter:
    """The writing thread. It calls on the loop, in order of the commits: `done(requests)`, and after a write error
    `failed(doubtful, unwritten, error)` with the requests of the failed commit and those behind it."""

    def __init__(self, store: RocksStore, loop: asyncio.AbstractEventLoop, done: Done, failed: Failed) -> None:
        self._store = store
        self._loop = loop
        self._done = done
        self._failed = failed
        self._turn = threading.Condition()
        self._queue: deque[WriteRequest] = deque()
        self._refusal: StorageError | None = store.full
        self._doubtful: tuple[int, list[WriteRequest]] | None = None
        self._survivors: list[WriteRequest] = []
        self._resume: Resumed | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="flowshare-writer", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Check that requests are accepted. Raises: StorageError until `accept`, after a write error or an opening
        without room for writing; also after `close`."""
        if self._refusal is not None:
            raise type(self._refusal)(str(self._refusal))

    def submit(self, request: WriteRequest) -> None:
        """Queue a request. Raises: StorageError, see `check`."""
        with self._turn:
            self.check()
            self._queue.append(request)
            # The thread waits for nothing but an empty queue.
            if len(self._queue) == 1:
                self._turn.notify()

    def resume(self, done: Resumed) -> None:
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
        """Fail the queued requests and accept no more; the write under way is finished."""
        with self._turn:
            self._closing = True
            self._refusal = error
            left = list(self._queue)
            self._queue.clear()
            self._turn.notify()
        if left:
            self._tell(self._failed, list[WriteRequest](), left, error)

    def close(self) -> None:
        """Write the queued requests and end the thread; blocks until then."""
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

    def _group(self) -> list[WriteRequest]:
        group, size = list[WriteRequest](), 0
        while self._queue and len(group) < GROUP_REQUESTS_MAX and size < GROUP_BYTES_MAX:
            group.append(self._queue.popleft())
            size += group[-1].step.size
        return group

    def _commit(self, group: list[WriteRequest]) -> None:
        try:
            self._store.commit(request.step for request in group)
        except StorageError as error:
            with self._turn:
                self._refusal = error
                self._doubtful = self._store.commits, group
                unwritten = list(self._queue)
                self._queue.clear()
            self._tell(self._failed, group, unwritten, error)
        else:
            self._tell(self._done, group)

    def _reopen(self, done: Resumed) -> None:
        try:
            self._store.reopen()
            if self._doubtful is not None:
                confirmed, group = self._doubtful
                self._survivors, self._doubtful = group if self._store.commits > confirmed else [], None
            self._store.commit(())
        except StorageError as error:
            self._tell(done, list[WriteRequest](), error)
            return
        survivors, self._survivors = self._survivors, []
        self._tell(done, survivors, None)

    def _tell(self, callback: Callable[[*Told], None], *told: *Told) -> None:
        # A loop that was closed without closing the storage has no listener left.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *told)


class WriterQueue(CommitQueue):
    """The queue of steps that the writer's thread commits. A store opened for reading only, because its disk is full,
    is treated as after a write error."""

    def __init__(self, store: RocksStore, clock: Clock) -> None:
        self.gate = WriteGate()
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._timer: TimerHandle | None = None
        self._failures = 0
        self._closed = False
        self._doubts: dict[asyncio.Future[None], StorageError] = {}
        """Futures of failed `certain` steps of one commit that may be in the store, with their errors."""
        self._writer = StoreWriter(store, self._loop, self._committed, self._failed)
        self._reminded_s = clock.monotonic()
        if store.full is not None:
            logger.error("nothing can be written, the storage is read only: %s", store.full)
            self._resume_later()

    async def enter(self, size: int) -> None:
        """Wait for room: `size` bytes."""
        await self.gate.enter(size)

    def leave(self, size: int) -> None:
        """Give the room back."""
        self.gate.leave(1, size)

    def check(self) -> None:
        """Check that steps are accepted now. Raises: StorageError."""
        self._writer.check()

    def queue(self, step: StoreStep) -> asyncio.Future[None]:
        """Give the step to the thread. Raises: StorageError."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._writer.submit(WriteRequest(step, future))
        return future

    def stop(self) -> None:
        """Stop trying to come back after an error; steps in doubt stay in doubt."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._leave_in_doubt()

    def refuse(self, error: StorageError) -> None:
        """Write nothing more; queued steps fail with this error."""
        self.stop()
        self._writer.refuse(error)

    def close_blocking(self) -> None:
        """Write the queued steps and end the writer. Call in a worker thread, after `stop`."""
        self._writer.close()

    def _committed(self, requests: list[WriteRequest]) -> None:
        """End the steps of a commit, on the loop, after each commit in turn."""
        self.gate.leave(len(requests), sum(request.step.size for request in requests))
        self._apply(requests)
        for request in requests:
            if not request.future.done():
                request.future.set_result(None)

    def _failed(self, doubtful: list[WriteRequest], unwritten: list[WriteRequest], error: StorageError) -> None:
        """Fail steps after a write error, on the loop; `certain` steps in doubt wait for more."""
        requests = doubtful + unwritten
        self.gate.leave(len(requests), sum(request.step.size for request in requests))
        self._doubts.update((future, error) for step, future in doubtful if step.certain)
        for request in requests:
            if request.future not in self._doubts:
                _fail(request.future, error)
        logger.error("writing failed; nothing is confirmed until the storage takes writes again: %s", error)
        self._reminded_s = self._clock.monotonic()
        self._resume_later()
        if self._closed:
            self._leave_in_doubt()

    def _apply(self, requests: list[WriteRequest]) -> None:
        changed = dict[tuple[str, int], None]()
        for step, _ in requests:
            if step.applied is not None:
                step.applied()
            for place in step.changed:
                changed[place] = None
        for topic, partition in changed:
            self.changed(topic, partition)

    def _resume_later(self) -> None:
        def resume() -> None:
            self._writer.resume(self._resumed)

        if not self._closed:
            self._failures += 1
            self._timer = self._clock.call_later(USUAL.after(self._failures), resume)

    def _resumed(self, survivors: list[WriteRequest], error: StorageError | None) -> None:
        """Go on, on the loop: the store takes writes again, or not yet. `survivors` failed, but are stored.

        No step's outcome is told before the loop's state is the same as the store's.
        """
        if error is not None:
            if self._clock.monotonic() - self._reminded_s >= REMIND_S:
                logger.warning("the storage cannot be written yet: %s", error)
                self._reminded_s = self._clock.monotonic()
            self._resume_later()
            return
        self._failures = 0
        self._apply(survivors)
        self.roll_back()
        self._writer.accept()
        self._end_doubts({request.future for request in survivors})
        logger.warning("the storage takes writes again")

    def _end_doubts(self, stored: Collection[asyncio.Future[None]]) -> None:
        """End the steps in doubt: `stored` names those that are in the store."""
        doubts, self._doubts = self._doubts, {}
        for future, error in doubts.items():
            if future not in stored:
                _fail(future, error)
            elif not future.done():
                future.set_result(None)

    def _leave_in_doubt(self) -> None:
        """End the steps in doubt by InDoubt: the store is not asked again."""
        doubts, self._doubts = self._doubts, {}
        for future, error in doubts.items():
            _fail(future, InDoubt(f"{error}; whether it was stored is known when the storage is opened again"))


def _fail(future: asyncio.Future[None], error: StorageError) -> None:
    """Fail a future that is still waited for, with an error object of its own."""
    if not future.done():
        future.set_exception(type(error)(str(error)))
