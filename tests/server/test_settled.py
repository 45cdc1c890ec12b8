"""Tests of the state changes that follow from settles decided apart from the state."""

from __future__ import annotations

import uuid

import pytest

from flowshare.server.runtime.settled import encode_settled, settled_writes
from flowshare.server.runtime.state import ShareKey, initial_writes, stored_in
from flowshare.share.partition import SharePartition
from flowshare.share.records import encode_update
from flowshare.share.types import (
    AcknowledgeType,
    AckRange,
    AcquireMode,
    Limits,
    LogBatch,
    PartitionState,
    PartitionUpdate,
    RecordState,
    StateRun,
)
from flowshare.slots.prepared import Prepared, Row, encode_row

KEY = ShareKey("g", uuid.UUID(int=7), 3)
ACQUIRED, ACKNOWLEDGED, AVAILABLE = RecordState.ACQUIRED, RecordState.ACKNOWLEDGED, RecordState.AVAILABLE
BESIDE = (KEY.prefix + b"\3parked", b"x")


def stored(*runs, start=0):
    state = PartitionState(start_offset=start, runs=tuple(StateRun(*run) for run in runs))
    return [(key, value) for key, value in initial_writes(KEY, state) if value is not None]


def settle(*runs):
    changes = tuple(StateRun(*run) for run in runs)
    return encode_update(PartitionUpdate(start_offset=-1, delivery_complete_count=-1, runs=changes)), [BESIDE]


def after(entries, *settles):
    """The state after what follows was written, and whether what goes with it was."""
    written = settled_writes(entries, settles)
    beside = [write for write in written if write == BESIDE]
    kept = sorted({**dict(entries), **{key: value for key, value in written if (key, value) != BESIDE}}.items())
    found = stored_in(kept, KEY)
    assert found is not None
    return [(run.first, run.last, run.state, run.delivery_count) for run in found.state.runs], len(beside)


def test_records_that_are_acquired_still_are_settled():
    entries = stored((0, 9, ACQUIRED, 2, "m"))

    runs, beside = after(entries, settle((3, 4, ACKNOWLEDGED, 2)))

    assert runs == [(0, 2, ACQUIRED, 2), (3, 4, ACKNOWLEDGED, 2), (5, 9, ACQUIRED, 2)]
    assert beside == 1


@pytest.mark.parametrize(
    "run",
    [
        (0, 9, ACQUIRED, 3, "m"),  # in another delivery
        (0, 9, AVAILABLE, 2),
        (0, 9, ACKNOWLEDGED, 2),
        (20, 29, ACQUIRED, 2, "m"),
    ],
)
def test_other_records_stay_as_they_are(run):
    assert settled_writes(stored(run), [settle((3, 4, ACKNOWLEDGED, 2))]) == []


def test_what_follows_from_a_settle_follows_once():
    entries = stored((0, 9, ACQUIRED, 1, "m"))
    one = settle((0, 9, ACKNOWLEDGED, 1))
    written = {key: value for key, value in settled_writes(entries, [one]) if (key, value) != BESIDE}

    assert settled_writes(sorted({**dict(entries), **written}.items()), [one]) == []


def test_what_goes_with_a_settle_that_has_followed_is_not_written_with_the_next_one():
    entries = stored((0, 0, ACKNOWLEDGED, 1), (1, 9, ACQUIRED, 1, "m"))

    runs, beside = after(entries, settle((0, 0, ACKNOWLEDGED, 1)), settle((3, 3, ACKNOWLEDGED, 1)))

    assert (3, 3, ACKNOWLEDGED, 1) in runs
    assert beside == 1


def test_a_settle_is_made_where_its_records_lie_in_several_runs():
    entries = stored((0, 1, ACQUIRED, 1, "a"), (2, 3, AVAILABLE, 1), (4, 5, ACQUIRED, 1, "b"), (6, 7, ACQUIRED, 2, "b"))

    runs, _ = after(entries, settle((0, 7, ACKNOWLEDGED, 1)), settle((6, 6, ACKNOWLEDGED, 2)))

    assert runs == [
        (0, 1, ACKNOWLEDGED, 1),
        (2, 3, AVAILABLE, 1),
        (4, 5, ACKNOWLEDGED, 1),
        (6, 6, ACKNOWLEDGED, 2),
        (7, 7, ACQUIRED, 2),
    ]


def test_nothing_follows_where_there_is_no_state():
    row = Row(KEY.prefix, 0, 1)

    assert settled_writes([], [settle((0, 0, ACKNOWLEDGED, 1))]) == []
    assert settled_writes([(row.key, encode_row(Prepared(b"u")))], [settle((0, 0, ACKNOWLEDGED, 1))]) == []


def test_a_decision_is_stored_with_all_its_records_even_where_the_start_offset_passes_them():
    partition = SharePartition(start_offset=0, limits=Limits())
    partition.acquire(
        "m",
        mode=AcquireMode.RECORD_LIMIT,
        records_max=10,
        batch_size=10,
        fetch_offset=0,
        batches=[LogBatch(0, 9)],
        now_ms=0,
    )
    decision = partition.acknowledge("m", [AckRange(0, 4, bytes([AcknowledgeType.ACCEPT]))], now_ms=0)
    assert decision.update is not None
    assert decision.update.runs == ()

    runs, _ = after(stored((0, 9, ACQUIRED, 1, "m")), (encode_settled(decision), []))
    partition.commit(decision)

    assert runs[0] == (0, 4, ACKNOWLEDGED, 1)
    assert partition.committed(decision) == decision.update
