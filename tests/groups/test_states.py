"""The transition table of classic groups."""

from __future__ import annotations

import itertools

import pytest

from flowshare.groups.states import TABLE, State, Trigger, step

ALLOWED = {
    (State.EMPTY, Trigger.REBALANCE): State.PREPARING,
    (State.EMPTY, Trigger.DELETE): State.DEAD,
    (State.PREPARING, Trigger.JOINED): State.COMPLETING,
    (State.PREPARING, Trigger.GONE): State.EMPTY,
    (State.COMPLETING, Trigger.ASSIGNED): State.STABLE,
    (State.COMPLETING, Trigger.REBALANCE): State.PREPARING,
    (State.STABLE, Trigger.REBALANCE): State.PREPARING,
}


@pytest.mark.parametrize(("state", "trigger"), list(itertools.product(State, Trigger)))
def test_a_step_goes_where_the_table_says_or_nowhere(state, trigger):
    if (state, trigger) in ALLOWED:
        assert step(state, trigger) is ALLOWED[state, trigger]
    else:
        with pytest.raises(AssertionError):
            step(state, trigger)


def test_every_state_has_its_row_and_is_named_as_on_the_wire():
    assert set(TABLE) == set(State)
    assert {one.value for one in State} == {"Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead"}
