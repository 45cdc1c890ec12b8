"""The accepts of committed batches: owed, on their way, or refused.

Nobody needs to wait for an accept: what is committed stays in `done` until it is accepted, and `done` is in the
checkpoint's next offset, so that it gets into no second batch whatever happens to the accept (invariant 3 of
`flowshare.spark.driver`).

| a committed range is | then | and becomes |
|---|---|---|
| owed, in `done` | `begin` | on its way |
| on its way, in `done` | `settle`, accepted | forgotten |
| on its way, in `done` | `settle`, refused: its lock was lost | refused |
| on its way, in `done` | `settle`, the group is not reached | owed |
| refused, in `done` | it is delivered again: `swallow` | owed |
| any of these | the start offset passes it | forgotten |
"""

from __future__ import annotations

import concurrent.futures
import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from flowshare.spark.ranges import Done, Place, Range, records_in

if TYPE_CHECKING:
    from flowshare.spark.member import GroupMember

logger = logging.getLogger("flowshare.spark")


class Accepts:
    """done: of earlier batches, as the checkpoint has it. One accept at a time is on its way."""

    def __init__(self, member: GroupMember, done: Iterable[Range], *, group: str) -> None:
        self._member = member
        self._group = group
        self._done = Done(done)
        self._owed: list[Range] = []
        self._sent: tuple[list[Range], concurrent.futures.Future[list[Range]]] | None = None

    def __len__(self) -> int:
        return len(self._done)

    @property
    def pending(self) -> bool:
        """Whether something is owed or on its way."""
        return bool(self._owed or self._sent)

    def ranges(self) -> tuple[Range, ...]:
        """`done`: committed, and not known as accepted."""
        return tuple(self._done.ranges())

    def owe(self, ranges: Iterable[Range]) -> None:
        """A batch with these ranges is committed."""
        for one in ranges:
            self._owed.append(one)
            self._done.add(one)

    def begin(self) -> None:
        """Send what is owed, once what is on its way has come back. Raises: ClientError, OSError, Fenced."""
        self._collect()
        # Some of it may have been finished meanwhile, and some be owed twice, because it came again.
        owed = list(Done(piece for one in self._owed for piece in self._done.split(one)[0]).ranges())
        self._owed = []
        if owed:
            self._sent = owed, self._member.begin_accept(owed)

    def settle(self) -> None:
        """Send what is owed and wait until nothing is on its way. Raises: ClientError, OSError, Fenced."""
        self.begin()
        self._collect()

    def swallow(self, got: Iterable[Range]) -> list[Range]:
        """Of what was delivered: owe what comes again of committed batches, and return the rest."""
        fresh: list[Range] = []
        for one in got:
            again, outside = self._done.split(one)
            self._owed += again
            fresh += outside
        return fresh

    def prune(self, starts: Mapping[Place, int]) -> None:
        """Forget what lies before these start offsets: it is finished."""
        self._done.prune(starts)

    def _collect(self) -> None:
        """Wait for what is on its way."""
        if self._sent is None:
            return
        (sent, answer), self._sent = self._sent, None
        try:
            refused = answer.result()
        except BaseException:
            self._owed = sent + self._owed
            raise
        lost = Done(refused)
        for one in sent:
            for accepted in lost.split(one)[1]:
                self._done.remove(accepted)
        if refused:
            logger.warning(
                "group %s: %d records of a committed batch are not accepted, their locks were lost; they are left out "
                "when they come again",
                self._group,
                records_in(refused),
            )
