"""The way of one group's decisions into the store: queued, written together, then answered.

There is one write at a time, with everything that is queued: several partitions and many requests in one write. The
askers are answered when the write is durable. A failed write takes back its decisions, and the decisions made on top of
them meanwhile, in all its partitions; the askers are told to try again, and nothing is owed to anybody. A failed write
may be stored all the same (`log.commits`). So the next write puts the same entries again, with the values from before
the failed write (`Doubt`): otherwise later writes would rest on something else than the stored state.

    queued ──taken into a write──→ written ──→ confirmed, answered
      │                              └──the write fails──→ rolled back, refused
      ├──an earlier one of its partition is rolled back──→ rolled back, refused
      ├──an output of it is refused──→ rolled back, refused, with what was decided on top of it; the rest is written
      └──its partition is closed (the group is deleted, or served elsewhere)──→ rolled back, refused
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from flowshare.cooperative import stored
from flowshare.cooperative.decisions import Decision, DecisionState
from flowshare.cooperative.types import PutStable
from flowshare.core_errors import CoordinatorNotAvailable, CoreError
from flowshare.log.base import NotLed, OutputRefused, StorageError
from flowshare.protocol.errors import ErrorCode
from flowshare.server.cooperative.beside import WRITE_ERRORS, StableOffset
from flowshare.server.cooperative.owner import mirror
from flowshare.server.cooperative.store import SEEN_KEY
from flowshare.server.runtime.failures import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from flowshare.clock import Clock
    from flowshare.log.base import CheckedOutput
    from flowshare.server.cooperative.beside import Beside
    from flowshare.server.cooperative.owner import PartitionOwner
    from flowshare.server.cooperative.stats import Stats
    from flowshare.server.runtime.state import Write

logger = logging.getLogger(__name__)

QUEUE_MAX: Final = 10_000
"""Decisions that wait to be written."""
MUTATIONS_MAX: Final = 20_000
"""Of one write; a decision that has more is written alone."""
BEFORE_REFUSED: Final = "an output of what was settled before it was refused; try again"


class Doubt(NamedTuple):
    """The entries of a partition that a failed write was to put, with their values from before that write: entries by
    name (None: there was no entry), and the stable offset, if it is among them."""

    entries: Mapping[bytes, bytes | None]
    stable: PutStable | None


class Step(NamedTuple):
    """A decision that waits to be written, or to be told behind one that does."""

    owner: PartitionOwner
    decision: Decision[Any]
    told: asyncio.Future[None]
    outputs: Sequence[CheckedOutput] = ()
    beside: Sequence[Write] = ()

    def fail(self, error: Exception) -> None:
        """It is not durable."""
        if not self.told.done():
            self.told.set_exception(error)
            self.told.exception()  # seen: whoever asked may be gone, and asyncio would report it


class GroupWriter:
    """The queue of one group. run: runs a task to its end, whoever goes away."""

    def __init__(
        self,
        group_id: str,
        beside: Beside,
        *,
        run: Callable[[Coroutine[Any, Any, None]], object],
        stats: Stats,
        clock: Clock,
    ) -> None:
        self._group_id = group_id
        self._beside = beside
        self._run = run
        self._stats = stats
        self._clock = clock
        self._queue: list[Step] = []
        self._writing = False

    @property
    def busy(self) -> bool:
        """True if something is queued or being written."""
        return self._writing or bool(self._queue)

    def check_room(self) -> None:
        """Raises: StorageError when too much waits to be written."""
        if len(self._queue) >= QUEUE_MAX:
            raise StorageError(f"{QUEUE_MAX} steps of group {self._group_id} wait to be written; try again later")

    def add(
        self,
        owner: PartitionOwner,
        decision: Decision[Any],
        *,
        outputs: Sequence[CheckedOutput] = (),
        beside: Sequence[Write] = (),
    ) -> asyncio.Future[None] | None:
        """Have a decision written; None: it is durable already. What is returned raises LogError, CoreError.

        outputs, beside: written in one piece with it, or not at all; the decision has something to write then.
        """
        if decision.state is DecisionState.CONFIRMED:
            return None
        step = Step(owner, decision, asyncio.get_running_loop().create_future(), outputs, beside)
        self._queue.append(step)
        if not self._writing:
            self._writing = True
            self._run(self._write_all())
        return step.told

    def drop(self, owner: PartitionOwner) -> None:
        """The partition is closed: nothing of it is written any more that is not being written."""
        gone = [step for step in self._queue if step.owner is owner]
        if gone:
            self._queue = [step for step in self._queue if step.owner is not owner]
            self._give_up(
                gone, CoordinatorNotAvailable(f"the state of {owner.key} is served no more, or anew; try again")
            )

    async def _write_all(self) -> None:
        try:
            while self._queue:
                await self._write()
        except BaseException as error:
            self._give_up_all(StorageError(f"{type(error).__name__}: {error}"))
            raise
        finally:
            self._writing = False

    async def _write(self) -> None:
        try:
            async with self._beside.locked(self._group_id, None):
                await self._write_locked()
        except (CoreError, Refused) as error:  # there is no such group any more, and cannot be one
            self._give_up_all(error)

    async def _write_locked(self) -> None:
        """Write what is queued; from taking it to the write nothing is awaited."""
        steps = self._take()
        if not steps:
            return
        moved = await self._written(steps)
        if moved is None:
            return
        for step in steps:
            step.owner.partition.confirm(step.decision)
            if not step.told.done():
                step.told.set_result(None)
        for owner, told in moved.items():
            owner.written(told.value)

    async def _written(self, steps: list[Step]) -> dict[PartitionOwner, StableOffset] | None:
        """Write these; stable offsets that moved with it. Of `steps` those are left that were written. None: none."""
        while True:
            writes, moved = self._writes(steps)
            if not writes:
                return moved
            outputs = [output for step in steps for output in step.outputs]
            self._stats.writes += 1
            began_s = self._clock.monotonic()
            try:
                await self._beside.write(self._group_id, list(writes.items()), list(moved.values()), outputs)
            except OutputRefused as error:
                if not self._take_out(steps, error):
                    self._give_up(steps, StorageError(f"outputs that nobody sent are refused: {error}"))
                    return None
            except WRITE_ERRORS as error:
                self._stats.failed_writes += 1
                self._give_up(steps, self._told_of(error))
                _doubt(steps, writes)
                return None
            except BaseException as error:
                self._give_up(steps, StorageError(f"{type(error).__name__}: {error}"))
                _doubt(steps, writes)
                raise
            else:
                for step in steps:
                    if step.decision.mutations:
                        step.owner.doubt = None
                return moved
            finally:
                self._stats.write_s.add(self._clock.monotonic() - began_s)

    def _take_out(self, steps: list[Step], error: OutputRefused) -> bool:
        """Take back those of which outputs are refused, and what was decided on top of them; whether there were any."""
        blamed: list[tuple[Step, OutputRefused]] = []
        begin = 0
        for step in steps:
            end = begin + len(step.outputs)
            places = {index - begin: why for index, why in error.places.items() if begin <= index < end}
            begin = end
            if places:
                blamed.append((step, OutputRefused(places)))
        undone: set[Decision[Any]] = set()
        for step, why in blamed:
            undone.update(step.owner.partition.roll_back(step.decision))
            step.fail(why)
        for step in steps:
            step.owner.seen_stored = step.owner.seen_stored and step.decision not in undone
        self._fail_undone(steps, undone, CoordinatorNotAvailable(BEFORE_REFUSED))
        return bool(blamed)

    def _fail_undone(self, steps: list[Step], undone: set[Decision[Any]], error: Exception) -> None:
        """Whoever waits for one of these is told; neither is in `steps`, or queued, any more."""
        for row in (steps, self._queue):
            for step in row:
                if step.decision in undone:
                    step.fail(error)
            row[:] = [step for step in row if step.decision not in undone]

    def _told_of(self, error: Exception) -> Exception:
        """Return the error for those who wait for a failed write: they can try again."""
        if isinstance(error, NotLed):
            return Refused(
                ErrorCode.NOT_COORDINATOR, f"group {self._group_id} is coordinated by another worker: {error}"
            )
        logger.error("cooperative state could not be written: %s group=%s", error, self._group_id)
        if isinstance(error, CoreError):
            return error
        return CoordinatorNotAvailable(f"state of group {self._group_id} could not be written: {error}")

    def _take(self) -> list[Step]:
        """The next ones to be written together, in their order."""
        count = mutations = 0
        for step in self._queue:
            mutations += len(step.decision.mutations)
            if count and mutations > MUTATIONS_MAX:
                break
            count += 1
        steps, self._queue = self._queue[:count], self._queue[count:]
        return steps

    def _writes(self, steps: list[Step]) -> tuple[dict[bytes, bytes | None], dict[PartitionOwner, StableOffset]]:
        """Return the entries to put, the last one of each key, and the stable offsets that moved."""
        writes: dict[bytes, bytes | None] = {}
        stable: dict[PartitionOwner, PutStable] = {}
        written = {step.owner for step in steps if step.decision.mutations}
        for owner in written:
            if owner.doubt is not None:
                writes.update({owner.prefix + name: value for name, value in owner.doubt.entries.items()})
                if owner.doubt.stable is not None:
                    stable[owner] = owner.doubt.stable
        for owner, decision, _, _, beside in steps:
            for mutation in decision.mutations:
                name, value = stored.encode(mutation)
                writes[owner.prefix + name] = value
                if isinstance(mutation, PutStable):
                    stable[owner] = mutation
            writes.update(beside)
        for owner in written:
            if owner.seen and not owner.seen_stored:
                owner.seen_stored = True
                writes[owner.prefix + SEEN_KEY] = b"\x01"
        decisions = {step.decision for step in steps}
        moved = {
            owner: StableOffset(owner.topic, owner.key.partition, mirror(owner.topic, *put))
            for owner, put in stable.items()
            if owner.may_mirror(decisions)
        }
        return writes, moved

    def _give_up(self, steps: list[Step], error: Exception) -> None:
        """Take these back, and what was decided on top of them."""
        undone: set[Decision[Any]] = set()
        for step in steps:
            undone.update(step.owner.partition.roll_back(step.decision))
            step.owner.seen_stored = False
            step.fail(error)
        self._fail_undone([], undone, error)

    def _give_up_all(self, error: Exception) -> None:
        steps, self._queue = self._queue, []
        self._give_up(steps, error)


def _doubt(steps: Sequence[Step], writes: Mapping[bytes, bytes | None]) -> None:
    """These writes failed, and are stored or not; nothing of their partitions is under way any more."""
    for owner in {step.owner for step in steps if step.decision.mutations and not step.owner.closed}:
        snapshot = owner.partition.snapshot()
        there = dict(map(stored.encode, snapshot))
        names = [name[len(owner.prefix) :] for name in writes if name.startswith(owner.prefix)]
        entries = {name: there.get(name) for name in names if stored.is_entry(name)}
        moved = [one for one in snapshot if isinstance(one, PutStable) and stored.STABLE_KEY in entries]
        owner.doubt = Doubt(entries, moved[0] if moved else None)
