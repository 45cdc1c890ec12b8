"""Durable state: bytes, replay, and Kafka's combination of batches (scenarios P11 to P20)."""

from __future__ import annotations

import zlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowshare.core_errors import StateCorrupt
from flowshare.share.records import (
    HEADER,
    STATE,
    UPDATE,
    VERSION,
    combine,
    decode_state,
    decode_update,
    encode_state,
    encode_update,
    replay,
)
from flowshare.share.types import PartitionState, PartitionUpdate, RecordState, StateRun


def run(first, last, state, count, member=None, not_before_ms=0):
    return StateRun(first, last, RecordState(state), count, member, not_before_ms)


def runs(*items):
    return tuple(run(*item) for item in items)


STATES = st.sampled_from(RecordState)
RUNS = st.builds(
    lambda first, length, state, count, member, due: StateRun(first, first + length, state, count, member, due),
    st.integers(0, 30),
    st.integers(0, 12),
    STATES,
    st.integers(0, 3),
    st.sampled_from([None, "m1", "m2"]),
    st.sampled_from([0, 0, 1_790_000_000_000, 1_790_000_000_500]),
)
UPDATES = st.builds(
    lambda start, complete, changed, epoch: PartitionUpdate(
        start_offset=start, delivery_complete_count=complete, runs=tuple(changed), log_epoch=epoch
    ),
    st.integers(-1, 25),
    st.integers(0, 9),
    st.lists(RUNS, max_size=4),
    st.integers(-1, 2**31 - 1),
)


def by_offset(content):
    return {offset: tuple(item[2:]) for item in content for offset in range(item.first, item.last + 1)}


def assert_merged(content):
    for before, after in pairwise(content):
        assert before.last < after.first
        assert not (before.last + 1 == after.first and before[2:] == after[2:])


# --- bytes ------------------------------------------------------------------------------------------------------


@given(
    st.builds(
        lambda s, leader, epoch, start, complete, content: PartitionState(
            state_epoch=s,
            leader_epoch=leader,
            log_epoch=epoch,
            start_offset=start,
            delivery_complete_count=complete,
            runs=tuple(content),
        ),
        st.integers(0, 2**31),
        st.integers(0, 2**31),
        st.integers(-1, 2**31 - 1),
        st.integers(-1, 2**62),
        st.integers(-1, 10),
        st.lists(RUNS, max_size=8),
    )
)
def test_a_snapshot_is_read_as_it_was_written(state):
    decoded = decode_state(encode_state(state))

    assert decoded == state
    assert all(isinstance(item.state, RecordState) for item in decoded.runs)


@given(UPDATES)
def test_an_update_is_read_as_it_was_written(update):
    assert decode_update(encode_update(update)) == update


def test_large_offsets_and_odd_member_ids_survive():
    update = PartitionUpdate(
        start_offset=2**62,
        delivery_complete_count=0,
        runs=runs((2**62, 2**63 - 1, 1, 1_000_000, "é" * 36), (5, 5, 0, 1, "", 1)),
    )

    assert decode_update(encode_update(update)) == update


def test_a_small_update_is_small():
    update = PartitionUpdate(start_offset=1_000_000, delivery_complete_count=3, runs=runs((1_000_010, 1_000_509, 2, 1)))

    assert len(encode_update(update)) < 24


def test_a_snapshot_of_the_worst_window_stays_below_half_a_mebibyte():
    content = tuple(run(offset, offset, 2 if offset % 2 else 0, 1 + offset % 5) for offset in range(7, 20_007))

    data = encode_state(PartitionState(start_offset=7, runs=content))

    assert len(data) * 10 < 512 * 1024
    assert decode_state(data).runs == content


@pytest.mark.slow
def test_a_window_of_200_000_with_every_second_offset_held_by_many_members_stays_below_half_a_mebibyte():
    content = tuple(
        run(offset, offset, 2, 1) if offset % 2 else run(offset, offset, 1, 1 + offset % 5, f"member-{offset % 64}")
        for offset in range(200_000)
    )

    data = encode_state(PartitionState(start_offset=0, runs=content))

    assert len(data) < 512 * 1024
    assert decode_state(data).runs == content


@given(st.binary(max_size=80))
def test_any_bytes_are_refused(data):
    with pytest.raises(StateCorrupt):
        decode_state(data)
    with pytest.raises(StateCorrupt):
        decode_update(data)


@given(st.binary(max_size=80))
def test_any_bytes_with_a_right_checksum_are_read_or_refused(body):
    for kind, decode in ((STATE, decode_state), (UPDATE, decode_update)):
        try:
            content = decode(HEADER.pack(VERSION, kind, zlib.crc32(body)) + body).runs
        except StateCorrupt:
            continue
        assert all(0 <= item.first <= item.last for item in content)


@given(UPDATES, st.data())
def test_a_flipped_bit_or_a_missing_end_is_refused(update, data):
    encoded = bytearray(encode_update(update))
    bit = data.draw(st.integers(0, len(encoded) * 8 - 1))
    cut = bytes(encoded[: data.draw(st.integers(0, len(encoded) - 1))])
    encoded[bit // 8] ^= 1 << bit % 8

    for damaged in (bytes(encoded), cut):
        with pytest.raises(StateCorrupt):
            decode_update(damaged)


def test_an_update_that_knows_no_leader_epoch_leaves_it_as_it_was():
    known = PartitionUpdate(start_offset=0, delivery_complete_count=0, log_epoch=4)
    unknown = PartitionUpdate(start_offset=0, delivery_complete_count=0)

    assert replay(PartitionState(start_offset=0, log_epoch=3), [unknown]).log_epoch == 3
    assert replay(PartitionState(start_offset=0, log_epoch=3), [known, unknown]).log_epoch == 4


def test_a_snapshot_is_no_update():
    with pytest.raises(StateCorrupt, match="kind"):
        decode_update(encode_state(PartitionState()))


@pytest.mark.parametrize(
    "body",
    [
        b"\x80" * 30,
        bytes([0, 0, 1, 2, 0xFF, 0xFF, 0, 0]),
        bytes([0, 0, 0, 3, 7, 1, 0, 0]),
        bytes([0, 0, 0, 3, 1, 1, 4, 0]),
        bytes([0, 0, 0, 3, 1, 1, 0, 1, 0x7F]),
        bytes([0, 0, 0, 3, 1, 1, 0, 1, 1, 1]),
        bytes([0, 0, 0, 0, 5]),
        bytes([0, 0, 0, 0, 0, 7]),
    ],
)
def test_content_that_contradicts_itself_is_refused(body):
    body = bytes([3]) + body  # the log's leader epoch
    with pytest.raises(StateCorrupt):
        decode_update(HEADER.pack(VERSION, UPDATE, zlib.crc32(body)) + body)


OLD_STATE = "0101fa21d81a0402060201026d3109010201020100080100030202070a0180b083c59868"
OLD_UPDATE = "01024dd9af2e060201026d3109010201020100080100030202070a0180b083c59868"


def test_what_releases_without_leader_epochs_wrote_is_read():
    content = runs((5, 8, 1, 2, "m1"), (9, 9, 2, 1), (10, 12, 0, 1, None, 1_790_000_000_000))

    assert decode_state(bytes.fromhex(OLD_STATE)) == PartitionState(
        state_epoch=4, leader_epoch=2, start_offset=5, delivery_complete_count=1, runs=content
    )
    assert decode_update(bytes.fromhex(OLD_UPDATE)) == PartitionUpdate(
        start_offset=5, delivery_complete_count=1, runs=content
    )


def test_what_a_later_release_wrote_is_refused_with_what_to_do():
    later = HEADER.pack(VERSION + 1, STATE, 0)

    with pytest.raises(StateCorrupt, match=r"a later release of flowshare wrote.*install that release"):
        decode_state(later)


# --- replay -----------------------------------------------------------------------------------------------------


def test_the_last_writer_wins_whatever_the_counts():
    state = PartitionState(start_offset=0, runs=runs((0, 9, 0, 3)))
    updates = [
        PartitionUpdate(start_offset=0, delivery_complete_count=1, runs=runs((2, 5, 1, 4, "m1"))),
        PartitionUpdate(start_offset=0, delivery_complete_count=0, runs=runs((4, 5, 0, 1))),
    ]

    after = replay(state, updates)

    assert after.runs == runs((0, 1, 0, 3), (2, 3, 1, 4, "m1"), (4, 5, 0, 1), (6, 9, 0, 3))
    assert after.delivery_complete_count == 0


def test_within_an_update_the_later_run_wins():
    update = PartitionUpdate(start_offset=0, delivery_complete_count=0, runs=runs((0, 9, 0, 1), (3, 3, 2, 1)))

    assert replay(PartitionState(start_offset=0), [update]).runs == runs((0, 2, 0, 1), (3, 3, 2, 1), (4, 9, 0, 1))


def test_runs_below_the_start_offset_are_dropped_and_it_never_goes_back():
    state = PartitionState(state_epoch=4, leader_epoch=2, start_offset=5, runs=runs((5, 20, 0, 1)))
    updates = [
        PartitionUpdate(start_offset=12, delivery_complete_count=2, runs=runs((14, 15, 2, 1))),
        PartitionUpdate(start_offset=-1, delivery_complete_count=2, runs=()),
        PartitionUpdate(start_offset=3, delivery_complete_count=2, runs=()),
    ]

    after = replay(state, updates)

    assert after == PartitionState(
        state_epoch=4,
        leader_epoch=2,
        start_offset=12,
        delivery_complete_count=2,
        runs=runs((12, 13, 0, 1), (14, 15, 2, 1), (16, 20, 0, 1)),
    )


def test_adjacent_equal_runs_are_joined_and_a_hole_stays_a_hole():
    updates = [
        PartitionUpdate(start_offset=0, delivery_complete_count=0, runs=runs((0, 4, 2, 1), (7, 9, 2, 1))),
        PartitionUpdate(start_offset=0, delivery_complete_count=0, runs=runs((5, 5, 2, 1))),
    ]

    assert replay(PartitionState(start_offset=0), updates).runs == runs((0, 5, 2, 1), (7, 9, 2, 1))


def test_without_updates_the_state_is_as_it_was():
    state = PartitionState(start_offset=3, runs=runs((3, 4, 0, 1)))

    assert replay(state, []) is state


@pytest.mark.parametrize("bad", [(5, 4, 0, 1), (-1, 4, 0, 1)])
def test_a_run_that_is_no_range_is_refused(bad):
    update = PartitionUpdate(start_offset=0, delivery_complete_count=0, runs=runs(bad))

    with pytest.raises(StateCorrupt):
        replay(PartitionState(), [update])
    with pytest.raises(StateCorrupt):
        combine((), runs(bad), 0)


@given(st.lists(RUNS, max_size=4), st.lists(UPDATES, min_size=1, max_size=6))
def test_replay_agrees_with_writing_offset_by_offset(content, updates):
    state = PartitionState(start_offset=0, runs=tuple(content))
    expected = by_offset(content)
    start = 0
    for update in updates:
        expected.update(by_offset(update.runs))
        start = max(start, update.start_offset)

    after = replay(state, updates)

    assert by_offset(after.runs) == {offset: value for offset, value in expected.items() if offset >= start}
    assert after.start_offset == start
    assert after.delivery_complete_count == updates[-1].delivery_complete_count
    assert_merged(after.runs)


@given(st.lists(RUNS, max_size=4), st.lists(UPDATES, min_size=2, max_size=6))
def test_replay_in_two_steps_is_replay_in_one(content, updates):
    state = PartitionState(start_offset=0, runs=tuple(content))

    assert replay(replay(state, updates[:1]), updates[1:]) == replay(state, updates)


# --- Kafka's combination ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("current", "new", "start", "combined"),
    [
        ([(100, 110, 0, 1)], [(105, 108, 0, 1)], 100, [(100, 110, 0, 1)]),
        ([(100, 110, 0, 1)], [(111, 115, 0, 1)], 100, [(100, 115, 0, 1)]),
        ([(100, 110, 0, 3)], [(100, 115, 0, 1)], 100, [(100, 110, 0, 3), (111, 115, 0, 1)]),
        ([(100, 115, 0, 1)], [(105, 110, 1, 1)], 100, [(100, 104, 0, 1), (105, 110, 1, 1), (111, 115, 0, 1)]),
        (
            [(111, 120, 0, 1)],
            [(111, 113, 0, 2), (114, 114, 2, 1), (115, 119, 0, 2)],
            111,
            [(111, 113, 0, 2), (114, 114, 2, 1), (115, 119, 0, 2), (120, 120, 0, 1)],
        ),
        (
            [(100, 110, 0, 1), (121, 130, 0, 1)],
            [(111, 119, 2, 2), (116, 123, 2, 2)],
            120,
            [(120, 123, 2, 2), (124, 130, 0, 1)],
        ),
        ([(100, 110, 0, 1)], [], 105, [(105, 110, 0, 1)]),
        ([(100, 110, 0, 1)], [], 111, []),
        ([], [(100, 110, 0, 1)], -1, [(100, 110, 0, 1)]),
        ([], [(100, 102, 0, 1), (105, 106, 0, 1)], 0, [(100, 102, 0, 1), (105, 106, 0, 1)]),
        ([(100, 110, 2, 2)], [(100, 110, 0, 2)], 0, [(100, 110, 2, 2)]),
        ([(100, 110, 2, 1)], [(100, 110, 0, 2)], 0, [(100, 110, 0, 2)]),
        ([(100, 110, 0, 1)], [(100, 110, 4, 1)], 0, [(100, 110, 4, 1)]),
    ],
)
def test_p11_to_p20_batches_are_combined_as_kafka_does(current, new, start, combined):
    assert combine(runs(*current), runs(*new), start) == runs(*combined)


@given(st.lists(RUNS, max_size=5), st.lists(RUNS, max_size=5), st.integers(-1, 30))
def test_the_higher_count_then_state_wins_at_every_offset(current, new, start):
    best = {}
    for item in (*current, *new):
        for offset in range(max(item.first, start), item.last + 1):
            best[offset] = max(best.get(offset, (-1, -1)), (item.delivery_count, int(item.state)))

    combined = combine(current, new, start)

    assert {offset: (count, state) for offset, (state, count, *_) in by_offset(combined).items()} == best
    assert_merged(combined)


def test_a_format_that_no_release_wrote_is_refused():
    with pytest.raises(StateCorrupt, match="no release"):
        decode_state(HEADER.pack(0, STATE, 0))


def test_what_cannot_be_stored_is_refused_before_it_is_written():
    with pytest.raises(ValueError, match="must not be negative"):
        encode_update(PartitionUpdate(start_offset=0, delivery_complete_count=-2, runs=()))
    with pytest.raises(ValueError, match="before it begins: 5-4"):
        encode_update(PartitionUpdate(start_offset=0, delivery_complete_count=0, runs=(run(5, 4, 1, 1),)))


def test_more_kinds_of_runs_than_a_byte_can_name_come_back():
    many = tuple(run(10 * number, 10 * number + 5, 1, 1, f"m{number}") for number in range(100))
    update = PartitionUpdate(start_offset=0, delivery_complete_count=0, runs=many)

    assert decode_update(encode_update(update)).runs == many
