"""The common work of all coordinators (Kafka's CoordinatorRuntime).

Share groups, consumer groups and transactional ids have their own rules, in the cores, and a coordinator each, which
writes the core's decisions before anybody is told. The common work is here: all coordinated things in memory, by id;
stored entries that cannot be read; limits on the number of things by maker, and on their bytes; one task that does the
work that is due; and work that goes on to its end when its caller is gone.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from flowshare.core_errors import StateCorrupt
from flowshare.server.runtime.budget import Makers
from flowshare.server.runtime.waiting import Alarm

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable

    from flowshare.clock import Clock
    from flowshare.server.runtime.budget import StateBudget

logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

RETRY_MS: Final = 1_000
"""Ms before failed work is tried again."""
LATE_MS: Final = 500
"""Lateness of due work, in ms, after which the process is taken to have stood still and not read requests."""
PUT_OFF_MS: Final = 3_000
"""Extra time then, in ms, for those whose requests may wait to be read."""


class CoordinatorRuntime(Generic[T]):
    """All things of one kind that a server coordinates. A coordinator has one; `start` and `close` it with its own.

    Invariant: at most one `expire` runs at a time; work of `run` and `spawn` is over when `close` returns.
    """

    def __init__(
        self, things: str, *, limit: str, clock: Clock, budget: StateBudget, size_of: Callable[[T], int]
    ) -> None:
        """things: their name; limit: name of the setting that limits their number.

        budget: bytes of all state; size_of: returns a thing's bytes of it.
        """
        self.things = things
        self.entries: dict[str, T] = {}
        self._clock = clock
        self._budget = budget
        self.loaded = budget.came
        """Called when entries were read from the store."""
        self._size_of = size_of
        self._makers = Makers(things, limit)
        self._alarm = Alarm(clock)
        self._jobs: set[asyncio.Task[Any]] = set()
        self._tasks: list[asyncio.Task[None]] = []
        budget.counts(self._held)

    def start(
        self,
        expire: Callable[[int], Awaitable[object]],
        next_ms: Callable[[], int | None],
        *beside: Coroutine[Any, Any, None],
    ) -> None:
        """Start the task of due work.

        expire: does the work; its argument is the lateness in ms, for which this process stood still. next_ms: returns
        when work is due next. beside: run until `close`, too.
        """
        watch = self._watch(expire, next_ms)
        self._tasks = [asyncio.create_task(work, name=self.things) for work in (watch, *beside)]

    async def close(self, give_up: Callable[[], object] = lambda: None) -> None:
        """Stop watching, and wait for work under way. give_up: ends work that would not end by itself."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        while self._jobs:  # a job may begin another
            give_up()
            await asyncio.wait(list(self._jobs))

    # --- things ---------------------------------------------------------------------------------------------------

    def make(self, name: str, make: Callable[[], T], party: str | None, count_max: int) -> T:
        """Add a new thing. party: its maker; None: the server's own process.

        Raises: Refused (too many).
        """
        self._makers.check(party, self.entries, len(self.entries), count_max)
        made = self.entries[name] = make()
        self._makers.add(party, name, self.entries, count_max)
        return made

    def take(self, party: str | None, size: int) -> None:
        """Account for `size` more bytes of the things, for a request of the party. Raises: Refused."""
        self._budget.take(party, size, self._clock.monotonic())

    def _held(self) -> Iterable[tuple[str | None, int]]:
        """Yield the maker and the bytes of each thing."""
        for name, entry in self.entries.items():
            yield self._makers.maker_of(name), self._size_of(entry)

    # --- work -----------------------------------------------------------------------------------------------------

    def run(self, work: Coroutine[Any, Any, R]) -> asyncio.Future[R]:
        """Run `work` to its end even if the caller goes away meanwhile: memory must follow the store."""
        return asyncio.shield(self.spawn(work))

    def spawn(self, work: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
        """Run `work`; `close` waits for it."""
        task = asyncio.create_task(work)
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)
        return task

    # --- time -----------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Do due work at once."""
        self._alarm.ring()

    def expect(self, due_ms: int | None) -> None:
        """Expect work due at `due_ms`; None: none."""
        if due_ms is not None and (self._alarm.due_ms is None or due_ms < self._alarm.due_ms):
            self._alarm.ring()

    async def _watch(self, expire: Callable[[int], Awaitable[object]], next_ms: Callable[[], int | None]) -> None:
        late_ms = 0
        while True:
            try:
                await expire(late_ms)
            except Exception:
                logger.exception("what is due of the %s failed, going on", self.things)
                await self._clock.sleep(RETRY_MS / 1000)
            due_ms, slept_from_ms = next_ms(), self._clock.steady_ms()
            await self._alarm.sleep_until(due_ms)
            # What was due before the sleep began waited for the work before it, not for this process.
            late_ms = 0 if due_ms is None else self._clock.steady_ms() - max(due_ms, slept_from_ms)


class Damage:
    """The stored entries that cannot be read, by group: such a group is refused and left as it is.

    If such a group were left out instead, the next member that joins would create it anew, over bytes that a backup or
    a later version could still read. Only deleting the group on purpose removes the bytes.
    """

    def __init__(self) -> None:
        self._found: dict[str, dict[bytes, str]] = {}

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._found

    def add(self, group_id: str, key: bytes, reason: str) -> None:
        """Note that the entry under `key` cannot be read."""
        self._found.setdefault(group_id, {})[key] = reason
        logger.error("group is refused, what is stored of it cannot be read: %s group=%s", reason, group_id)

    def check(self, group_id: str) -> None:
        """Check that a group can be worked with. Raises: StateCorrupt."""
        found = self._found.get(group_id)
        if found:
            raise StateCorrupt(
                f"group {group_id!r} is refused, what is stored of it cannot be read ({'; '.join(found.values())}); "
                "nothing of it was changed. Restore a backup, use another group id, or give the group up with its "
                f"offsets and settings: flowshare groups delete {group_id}"
            )

    def keys(self, group_id: str) -> tuple[bytes, ...]:
        """Return the store keys of a group's unreadable entries; deleted when the group is given up."""
        return tuple(self._found.get(group_id, ()))

    def forget(self, group_id: str) -> None:
        """Forget a group whose entries are deleted."""
        self._found.pop(group_id, None)


def group_id_of(key: bytes, prefix: bytes) -> str | None:
    """Return the group id behind `prefix` in a store key; None, with a log line, when it is no text."""
    try:
        return key[len(prefix) :].decode()
    except UnicodeDecodeError:
        logger.error("an entry of the store is left out, its group id is no text: %r", key)  # noqa: TRY400
        return None
