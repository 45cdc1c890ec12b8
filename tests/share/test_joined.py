"""A joined batch is decided exactly as the batches that it stands for, one an offset: errors, state, later steps."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from flowshare.core_errors import CoreError
from flowshare.share.types import AckRange
from tests.share.builders import ACCEPT, RELEASE, acquire, partition, settle

TYPES = st.integers(0, 4)
LOG = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6), st.sampled_from(["m1", "m1", "m2", None])), max_size=6)
"""Batches of the log: the hole before each, its length, who acquired it."""
EARLIER = st.lists(st.tuples(st.integers(0, 25), st.sampled_from([ACCEPT, RELEASE])), max_size=6)
ASKED = st.lists(st.tuples(st.integers(-1, 30), st.integers(1, 12), TYPES), min_size=1, max_size=4)


def world(log, earlier):
    """A share-partition with holes, several holders, finished and released offsets."""
    target = partition(window_max=1000)
    position = 0
    for hole, length, member in log:
        first = position + hole
        position = first + length
        if member is not None:
            acquire(target, (first, position - 1), member=member)
    for offset, kind in earlier:
        for member in ("m1", "m2"):
            try:
                settle(target, offset, offset, kind, member=member)
            except CoreError:
                continue
    return target


def told(target, batches, *, committed):
    """All that can be seen of the decision and of what follows from it."""
    try:
        decision = target.acknowledge("m1", batches, now_ms=5)
    except CoreError as error:
        return type(error), str(error), seen(target)
    pending = seen(target)
    if decision.update is not None and committed:
        target.commit(decision)
    elif decision.update is not None:
        target.abort(decision, now_ms=6)
    after = seen(target)
    again = acquire(target, (0, 60), member="m3", fetch=target.next_fetch_offset(), now=7)
    return decision.update, pending, after, again, target.lapse(60_000), seen(target)


def seen(target):
    return target.state(), target.in_flight(), target.next_deadline_ms(), set(target._window.cached.exploded)


@settings(max_examples=100, deadline=None)
@given(log=LOG, earlier=EARLIER, asked=ASKED, committed=st.booleans())
def test_a_joined_batch_and_its_offsets_one_by_one_come_to_the_same(log, earlier, asked, committed):
    joined = [AckRange(first, first + size - 1, bytes([kind]), joined=size > 1) for first, size, kind in asked]
    apart = [
        AckRange(offset, offset, bytes([kind])) for first, size, kind in asked for offset in range(first, first + size)
    ]

    together = told(world(log, earlier), joined, committed=committed)
    one_by_one = told(world(log, earlier), apart, committed=committed)

    assert together == one_by_one


def test_a_hole_within_a_joined_batch_is_refused_as_it_is_alone():
    answers = []
    for batches in (
        [AckRange(0, 9, b"\x01", joined=True)],
        [AckRange(offset, offset, b"\x01") for offset in range(10)],
    ):
        target = partition()
        acquire(target, (0, 4))
        acquire(target, (8, 9))
        answers.append(told(target, batches, committed=True))

    assert answers[0] == answers[1]
    assert answers[0][1] == "offsets 5-5 reach past what was acquired"
