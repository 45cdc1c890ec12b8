"""The states of a classic group, and the one table of its transitions.

    state                 meaning                                               trigger -> next state
    Empty                 no members; committed offsets may be there            REBALANCE -> PreparingRebalance
                                                                                DELETE    -> Dead
    PreparingRebalance    waiting until all members have (re)joined             JOINED    -> CompletingRebalance
                                                                                GONE      -> Empty
    CompletingRebalance   members know the generation; waiting for the leader   ASSIGNED  -> Stable
                                                                                REBALANCE -> PreparingRebalance
    Stable                every member can have its assignment                  REBALANCE -> PreparingRebalance
    Dead                  deleted; callers have to look for the group anew

Invariants, which hold between any two calls (`tests/groups/invariants.py` asserts them):

1. Empty and Dead groups have no members. CompletingRebalance and Stable groups have some. A PreparingRebalance group
   without members waits for one that was told its id and has not come back yet.
2. The generation rises by one with each JOINED or GONE and never otherwise.
3. A group with members has one of them as its leader, and a protocol type; in CompletingRebalance and Stable also a
   protocol that every member named.
4. Joins wait in PreparingRebalance only, syncs in CompletingRebalance only; one of each at most for a member.
5. No wait is without a limit: PreparingRebalance has a deadline, so has a member that has not asked for its assignment
   yet, and so has every member that waits neither with a join nor with a sync.
6. Each group.instance.id belongs to one member, each member to at most one group.instance.id.
7. A member has an assignment in Stable only; the leader's assignments are durable before any member gets one.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final


class ClassicState(enum.Enum):
    """State of a group; the value is its name on the wire."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Trigger(enum.Enum):
    """The events that move a group from one state to another."""

    REBALANCE = "a member came, went, or changed what it supports"
    JOINED = "all members that are to come have joined"
    GONE = "nobody is left to join"
    ASSIGNED = "the leader's assignments are durable"
    DELETE = "the group is deleted"


TABLE: Final[Mapping[ClassicState, Mapping[Trigger, ClassicState]]] = {
    ClassicState.EMPTY: {Trigger.REBALANCE: ClassicState.PREPARING, Trigger.DELETE: ClassicState.DEAD},
    ClassicState.PREPARING: {Trigger.JOINED: ClassicState.COMPLETING, Trigger.GONE: ClassicState.EMPTY},
    ClassicState.COMPLETING: {Trigger.ASSIGNED: ClassicState.STABLE, Trigger.REBALANCE: ClassicState.PREPARING},
    ClassicState.STABLE: {Trigger.REBALANCE: ClassicState.PREPARING},
    ClassicState.DEAD: {},
}


def step(state: ClassicState, trigger: Trigger) -> ClassicState:
    """Return the next state. A step that is not in the table is flowshare's fault: AssertionError."""
    after = TABLE[state].get(trigger)
    assert after is not None, f"{trigger.name} in {state.value}"
    return after
