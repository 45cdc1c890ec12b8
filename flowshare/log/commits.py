"""The loop's side of the writer: submitting, hearing of commits, and coming back after a write error."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from flowshare.clock import Clock, TimerHandle
from flowshare.log.base import StorageError
from flowshare.log.store import Step, Store
from flowshare.log.writer import Gate, Request, Writer

RESUME_FIRST_S: Final = 0.5
RESUME_MAX_S: Final = 5.0
REMIND_S: Final = 60.0
"""Between two lines in the log about a storage that cannot be written."""
logger = logging.getLogger(__name__)


class Commits:
    """Takes steps, in order of the calls; each is applied to what the loop knows when it is durable.

    `changed` is called with a partition after commits that touched it, once a commit. `roll_back` is called after a
    write error, when the store takes writes again: what was not applied by then is not in the store. A store that was
    opened for reading only, because its disk is full, is as one after a write error.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        changed: Callable[[str, int], None],
        roll_back: Callable[[], None],
    ) -> None:
        self.gate = Gate()
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._changed = changed
        self._roll_back = roll_back
        self._timer: TimerHandle | None = None
        self._delay_s = RESUME_FIRST_S
        self._closed = False
        self._writer = Writer(store, self._loop, self._committed)
        self._reminded_s = clock.monotonic()
        if store.full is not None:
            logger.error("nothing can be written, the storage is read only: %s", store.full)
            self._resume_later()

    def check(self) -> None:
        """Whether steps are taken now. Raises: StorageError."""
        self._writer.check()

    async def submit(
        self,
        step: Step,
        size: int,
        applied: Callable[[], None] | None = None,
        changed: tuple[str, int] | None = None,
    ) -> None:
        """Wait for room, queue the step, and return when it is durable and applied. Raises: StorageError."""
        await self.gate.enter(size)
        try:
            future = self.queue(step, size, applied, changed)
        except BaseException:
            self.gate.leave(1, size)
            raise
        await future

    def queue(
        self,
        step: Step,
        size: int,
        applied: Callable[[], None] | None = None,
        changed: tuple[str, int] | None = None,
    ) -> asyncio.Future[None]:
        """Queue a step that has entered the gate with `size`; the future ends when it is durable and applied.

        Raises: StorageError
        """
        future: asyncio.Future[None] = self._loop.create_future()
        self._writer.submit(Request(step, size=size, future=future, applied=applied, changed=changed))
        return future

    def stop(self) -> None:
        """Try no more to come back after an error."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def refuse(self, error: StorageError) -> None:
        """Write nothing more, what is queued included; it fails with this error."""
        self.stop()
        self._writer.refuse(error)

    def close_blocking(self) -> None:
        """Write what is queued and end the writer. Call in a worker thread, after `stop`."""
        self._writer.close()

    def _committed(self, requests: list[Request], error: StorageError | None) -> None:
        """On the loop, after each commit in turn: let everybody know."""
        self.gate.leave(len(requests), sum(request.size for request in requests))
        if error is None:
            self._apply(requests)
        for request in requests:
            if request.future.done():
                continue
            if error is None:
                request.future.set_result(None)
            else:
                request.future.set_exception(type(error)(str(error)))
        if error is not None:
            logger.error("writing failed; nothing is confirmed until the storage takes writes again: %s", error)
            self._reminded_s = self._clock.monotonic()
            self._resume_later()

    def _apply(self, requests: list[Request]) -> None:
        changed = dict[tuple[str, int], None]()
        for request in requests:
            if request.applied is not None:
                request.applied()
            if request.changed is not None:
                changed[request.changed] = None
        for topic, partition in changed:
            self._changed(topic, partition)

    def _resume_later(self) -> None:
        def resume() -> None:
            self._writer.resume(self._resumed)

        if not self._closed:
            self._timer = self._clock.call_later(self._delay_s, resume)
            self._delay_s = min(RESUME_MAX_S, self._delay_s * 2)

    def _resumed(self, survivors: list[Request], error: StorageError | None) -> None:
        """On the loop: the store takes writes again, or not yet. `survivors` failed, but are stored."""
        if error is not None:
            if self._clock.monotonic() - self._reminded_s >= REMIND_S:
                logger.warning("the storage cannot be written yet: %s", error)
                self._reminded_s = self._clock.monotonic()
            self._resume_later()
            return
        self._delay_s = RESUME_FIRST_S
        self._apply(survivors)
        self._roll_back()
        self._writer.accept()
        logger.warning("the storage takes writes again")
