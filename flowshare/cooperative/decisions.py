"""Decisions of one partition: made one after another, written together, told in their order.

    decision = partition.commit(…)                        raises before anything is changed
    await store(decision.mutations)                       in the order of the decisions, several at once at will
    partition.confirm(decision)                           the answer may leave: `decision.answer`
    or partition.roll_back(decision)                      nothing of it is stored; where that is in doubt, `load` again

A decision counts for the next ones at once, so that many can be written together, and nobody outside knows of it before
it is durable: what is not is neither granted (no answer has left) nor free (the next call sees it). Therefore answers
leave in the order of the decisions, those that write nothing too: an answer may tell of what an earlier one wrote.

    UNDER_WAY --confirm--> CONFIRMED       in the order of the decisions; at once where nothing is to be written and
                                           nothing is under way
    UNDER_WAY --roll_back--> ROLLED_BACK   together with all that were decided after it, which may rest on it
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from flowshare.cooperative.offsets import Change
    from flowshare.cooperative.types import Mutation

Answer = TypeVar("Answer")


class DecisionState(enum.Enum):
    """The outcome of a decision."""

    UNDER_WAY = "under way"
    CONFIRMED = "confirmed"
    ROLLED_BACK = "rolled back"


class Decision(Generic[Answer]):
    """A decision: its `mutations` must be written, in this order; then its answer may leave."""

    __slots__ = ("answer", "before", "change", "mutations", "state")

    def __init__(self, answer: Answer, mutations: tuple[Mutation, ...], before: Any, change: Change | None) -> None:
        """before, change: what takes it back."""
        self.answer, self.mutations, self.before, self.change = answer, mutations, before, change
        self.state = DecisionState.UNDER_WAY


class Decisions:
    """Those of one partition that are under way, in their order."""

    __slots__ = ("_under_way",)

    def __init__(self) -> None:
        self._under_way: deque[Decision[Any]] = deque()

    @property
    def under_way(self) -> bool:
        """True if decisions are under way."""
        return bool(self._under_way)

    def begin(self, decision: Decision[Any]) -> None:
        """It counts from now on."""
        if decision.mutations or self._under_way:
            self._under_way.append(decision)
        else:
            decision.state = DecisionState.CONFIRMED

    def confirm(self, decision: Decision[Any]) -> None:
        """Its mutations are durable; decisions are confirmed in their order."""
        if decision.state is DecisionState.CONFIRMED:
            return
        assert self._under_way, "a decision is confirmed once, and not when it was rolled back"
        assert self._under_way[0] is decision, "decisions are confirmed in their order"
        self._under_way.popleft()
        decision.state = DecisionState.CONFIRMED

    def roll_back(self, decision: Decision[Any], undo: Callable[[Decision[Any]], None]) -> tuple[Decision[Any], ...]:
        """Its mutations were not written: take it back, and all that were decided after it; these all, in their
        order. None of their answers may leave: whoever asked asks again. undo: takes back the newest one."""
        undone: list[Decision[Any]] = []
        while decision.state is DecisionState.UNDER_WAY:
            last = self._under_way.pop()
            undo(last)
            last.state = DecisionState.ROLLED_BACK
            undone.append(last)
        return tuple(reversed(undone))
