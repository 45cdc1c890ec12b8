"""The invariants of classic groups; `flowshare/groups/states.py` lists them by these numbers."""

from __future__ import annotations

from flowshare.groups.states import ClassicState


def check(group) -> None:
    """Assert what holds between any two calls."""
    phases = group._phases
    members = tuple(phases.members)
    if phases.state in (ClassicState.EMPTY, ClassicState.DEAD):
        assert not members, "invariant 1"
    elif phases.state is not ClassicState.PREPARING:
        assert members, "invariant 1"
        assert phases.protocol_name in phases.members.candidates(), "invariant 3"
    else:
        assert members or phases.pending, "invariant 1"
    assert (phases.members.leader is None) == (not members), "invariant 3"
    assert phases.members.leader is None or phases.members.leader in phases.members, "invariant 3"
    assert not members or phases.protocol_type, "invariant 3"
    assert phases.state is ClassicState.PREPARING or not any(one.joining is not None for one in members), "invariant 4"
    assert phases.state is ClassicState.COMPLETING or not any(one.syncing is not None for one in members), "invariant 4"
    assert (phases.join_due_ms is not None) == (phases.state is ClassicState.PREPARING), "invariant 5"
    assert phases.sync_due_ms is not None or not any(one.sync_missing for one in members), "invariant 5"
    for one in members:
        waits = one.syncing is not None or (one.joining is not None and not one.new)
        assert waits or one.deadline_ms is not None, "invariant 5"
        assert one.instance_id is None or phases.members.of_instance(one.instance_id) is one, "invariant 6"
        assert phases.state is ClassicState.STABLE or not one.assignment, "invariant 7"
