"""The transition table of classic groups."""

from __future__ import annotations

import itertools

import pytest

from flowshare.groups.states import TABLE, ClassicState, Trigger, step

ALLOWED = {
    (ClassicState.EMPTY, Trigger.REBALANCE): ClassicState.PREPARING,
    (ClassicState.EMPTY, Trigger.DELETE): ClassicState.DEAD,
    (ClassicState.PREPARING, Trigger.JOINED): ClassicState.COMPLETING,
    (ClassicState.PREPARING, Trigger.GONE): ClassicState.EMPTY,
    (ClassicState.COMPLETING, Trigger.ASSIGNED): ClassicState.STABLE,
    (ClassicState.COMPLETING, Trigger.REBALANCE): ClassicState.PREPARING,
    (ClassicState.STABLE, Trigger.REBALANCE): ClassicState.PREPARING,
}


@pytest.mark.parametrize(("state", "trigger"), list(itertools.product(ClassicState, Trigger)))
def test_a_step_goes_where_the_table_says_or_nowhere(state, trigger):
    if (state, trigger) in ALLOWED:
        assert step(state, trigger) is ALLOWED[state, trigger]
    else:
        with pytest.raises(AssertionError):
            step(state, trigger)


def test_every_state_has_its_row_and_is_named_as_on_the_wire():
    assert set(TABLE) == set(ClassicState)
    assert {one.value for one in ClassicState} == {
        "Empty",
        "PreparingRebalance",
        "CompletingRebalance",
        "Stable",
        "Dead",
    }
