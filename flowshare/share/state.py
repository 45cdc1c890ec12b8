"""The state machine of one offset: one table of moves and one function that applies it.

`TRANSITIONS` gives a record's next state for each event; `step` looks a move up and then applies the two rules that
depend on the group's limits: a record that would be AVAILABLE again but has used up its deliveries is ARCHIVED, and a
record with a dead letter to be written is ARCHIVING first (SG-1.4). Nothing else in the core decides a state.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from flowshare.share.types import AcknowledgeType, Limits, RecordState


class Event(enum.Enum):
    """The events that can happen to a record."""

    ACQUIRE = "acquire"
    ACCEPT = "accept"
    RELEASE = "release"
    REJECT = "reject"
    RENEW = "renew"
    GAP = "gap"
    LAPSE = "lapse"  # the acquisition lock ran out, or its member is gone
    VANISH = "vanish"  # the log no longer holds it, or its transaction was aborted
    BURY = "bury"  # its dead letter is written
    DISCARD = "discard"  # an operator drops the record, without a dead letter
    GIVE_UP = "give up"  # an operator turns the record into a dead letter


class IllegalTransition(AssertionError):
    """Error: the core asked for a move that the table does not have; flowshare's fault, never a peer's."""


TRANSITIONS: Final[Mapping[RecordState, Mapping[Event, RecordState]]] = MappingProxyType(
    {
        RecordState.AVAILABLE: MappingProxyType(
            {
                Event.ACQUIRE: RecordState.ACQUIRED,
                Event.VANISH: RecordState.ARCHIVED,
                Event.DISCARD: RecordState.ARCHIVED,
                Event.GIVE_UP: RecordState.ARCHIVING,
            }
        ),
        RecordState.ACQUIRED: MappingProxyType(
            {
                Event.ACCEPT: RecordState.ACKNOWLEDGED,
                Event.RELEASE: RecordState.AVAILABLE,
                Event.REJECT: RecordState.ARCHIVED,
                Event.RENEW: RecordState.ACQUIRED,
                Event.GAP: RecordState.ARCHIVED,
                Event.LAPSE: RecordState.AVAILABLE,
                Event.VANISH: RecordState.ARCHIVED,
                Event.DISCARD: RecordState.ARCHIVED,
                Event.GIVE_UP: RecordState.ARCHIVING,
            }
        ),
        RecordState.ARCHIVING: MappingProxyType({Event.BURY: RecordState.ARCHIVED}),
        RecordState.ACKNOWLEDGED: MappingProxyType({}),
        RecordState.ARCHIVED: MappingProxyType({}),
    }
)

EVENTS: Final[Mapping[AcknowledgeType, Event]] = MappingProxyType(
    {
        AcknowledgeType.GAP: Event.GAP,
        AcknowledgeType.ACCEPT: Event.ACCEPT,
        AcknowledgeType.RELEASE: Event.RELEASE,
        AcknowledgeType.REJECT: Event.REJECT,
        AcknowledgeType.RENEW: Event.RENEW,
    }
)


def step(state: RecordState, event: Event, delivery_count: int, limits: Limits) -> RecordState:
    """Return the state after `event`. Raises IllegalTransition if the table has no such move."""
    target = TRANSITIONS[state].get(event)
    if target is None:
        raise IllegalTransition(f"{state.name} does not allow {event.value}")
    if target is RecordState.AVAILABLE and delivery_count >= limits.delivery_count_max:
        return RecordState.ARCHIVING if limits.dead_letter_on_limit else RecordState.ARCHIVED
    if event is Event.REJECT and limits.dead_letter_on_reject:
        return RecordState.ARCHIVING
    return target
