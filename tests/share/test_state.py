from __future__ import annotations

import itertools

import pytest

from flowshare.share.state import EVENTS, TRANSITIONS, Event, IllegalTransition, step
from flowshare.share.types import AcknowledgeType, Limits, RecordState


def test_every_state_has_a_row():
    assert set(TRANSITIONS) == set(RecordState)


@pytest.mark.parametrize("state", [state for state in RecordState if state.terminal])
def test_nothing_leaves_a_terminal_state(state):
    assert not TRANSITIONS[state]


def test_a_move_that_the_table_does_not_have_is_refused():
    moves = {(state, event) for state, row in TRANSITIONS.items() for event in row}

    for state, event in set(itertools.product(RecordState, Event)) - moves:
        with pytest.raises(IllegalTransition):
            step(state, event, 1, Limits())


@pytest.mark.parametrize("event", [Event.RELEASE, Event.LAPSE])
def test_a_record_that_used_up_its_deliveries_is_archived_instead_of_available(event):
    limits = Limits(delivery_count_max=5)

    assert step(RecordState.ACQUIRED, event, 4, limits) is RecordState.AVAILABLE
    assert step(RecordState.ACQUIRED, event, 5, limits) is RecordState.ARCHIVED


def test_a_dead_letter_at_the_limit_is_written_before_archiving():
    limits = Limits(delivery_count_max=2, dead_letter_on_limit=True)

    assert step(RecordState.ACQUIRED, Event.RELEASE, 2, limits) is RecordState.ARCHIVING
    assert step(RecordState.ACQUIRED, Event.REJECT, 2, limits) is RecordState.ARCHIVED


def test_a_dead_letter_of_a_rejected_record_is_written_before_archiving():
    limits = Limits(delivery_count_max=2, dead_letter_on_reject=True)

    assert step(RecordState.ACQUIRED, Event.REJECT, 1, limits) is RecordState.ARCHIVING
    assert step(RecordState.ACQUIRED, Event.LAPSE, 2, limits) is RecordState.ARCHIVED


def test_a_gap_never_has_a_dead_letter():
    limits = Limits(dead_letter_on_limit=True, dead_letter_on_reject=True)

    assert step(RecordState.ACQUIRED, Event.GAP, 5, limits) is RecordState.ARCHIVED


def test_every_acknowledge_type_is_an_event():
    assert set(EVENTS) == set(AcknowledgeType)
