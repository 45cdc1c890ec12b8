"""Which records compaction keeps, and what becomes of the batches they are in."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowshare.log.compaction import NewestOffsets, Pass, due, young
from flowshare.log.topics import CompactionSettings
from flowshare.protocol.batches import CODECS, BatchBuilder, DecodeError, batch_headers, decode_all
from flowshare.protocol.headers import check_crc
from tests.log.compaction_world import DAY_MS, NOW_MS, World, built

LONG = b"a key of more than thirty-two bytes, which the map holds by its hash"
pairs = st.lists(
    st.tuples(
        st.sampled_from([b"a", b"b", b"c", b"", LONG, LONG + b"2", None]), st.sampled_from([None, b"", b"1", b"22"])
    ),
    min_size=1,
    max_size=6,
)
plain = st.tuples(st.just("plain"), pairs, st.sampled_from(CODECS))
written = st.tuples(st.just("txn"), pairs, st.sampled_from([1, 2]))
ended = st.tuples(st.just("end"), st.booleans(), st.sampled_from([1, 2]))


def world_of(steps) -> World:
    world, sequence = World(), 0
    for kind, content, choice in steps:
        if kind == "plain":
            world.add(built(content, codec=choice))
        elif kind == "txn":
            world.add(built(content, producer=choice, sequence=sequence, transactional=True))
            sequence += len(content)
        else:
            world.end(choice, committed=content)
    world.settle()
    return world


@pytest.mark.slow
@settings(max_examples=300, deadline=None, print_blob=True)
@given(st.lists(st.one_of(plain, plain, written, ended), max_size=12))
def test_what_is_left_is_the_newest_record_of_each_key_as_it_was(steps):
    world = world_of(steps)
    left, without_tombstones = world.naive(tombstones=True), world.naive(tombstones=False)
    before = {made.header.base_offset: made.header for made in world.batches}

    world.compact()

    assert world.records() == left
    for made in world.batches:
        check_crc(made.records, made.header)
        was = before[made.header.base_offset]
        assert made.header.last_offset == was.last_offset
        assert made.header[8:11] == was[8:11]
        assert made.header.codec == was.codec
        decoded = decode_all(made.records)
        assert not decoded or made.header.max_timestamp == max(record.timestamp_ms for record in decoded)
    world.compact(now_ms=NOW_MS + DAY_MS - 1)
    assert world.records() == left
    world.compact(now_ms=NOW_MS + DAY_MS)
    assert world.records() == without_tombstones


@pytest.mark.slow
@settings(max_examples=200, deadline=None, print_blob=True)
@given(st.lists(st.one_of(plain, written, ended), max_size=12), st.integers(1, 4))
def test_several_passes_with_a_small_map_leave_what_one_with_a_large_one_does(steps, keys_max):
    world = world_of(steps)
    left = world.naive(tombstones=True)

    until = 0
    for _ in range(len(world.batches) + 1):
        until = world.compact(until, keys_max=keys_max)

    assert until == world.end_offset
    assert world.records() == left


def test_a_batch_without_anything_to_remove_keeps_its_bytes():
    world = World()
    world.add(built([(b"a", b"1"), (b"b", b"2")], codec="zstd"))
    before = world.batches[0].records

    world.compact()

    assert world.batches[0].records is before


def test_holes_inside_a_batch_keep_offsets_and_timestamps():
    world = World()
    world.add(built([(b"a", b"1"), (b"b", b"2"), (b"c", b"3")], producer=7, sequence=4))
    world.add(built([(b"a", b"4"), (b"c", b"5")]))

    world.compact()

    assert [(r.offset, r.timestamp_ms, r.value) for r in decode_all(world.batches[0].records)] == [
        (1, NOW_MS + 1, b"2")
    ]
    (header,) = batch_headers(world.batches[0].records)
    assert (header.base_offset, header.last_offset, header.record_count) == (0, 2, 1)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 0, 4)
    assert header.max_timestamp == NOW_MS + 1


def test_the_horizon_of_a_tombstone_is_set_once():
    world = World()
    world.add(built([(b"a", None)]))
    world.compact(now_ms=NOW_MS)
    assert world.batches[0].header.delete_horizon_ms == NOW_MS + DAY_MS
    assert decode_all(world.batches[0].records)[0].timestamp_ms == NOW_MS

    world.compact(1, now_ms=NOW_MS + DAY_MS - 1)
    assert world.batches[0].header.delete_horizon_ms == NOW_MS + DAY_MS
    world.compact(1, now_ms=NOW_MS + DAY_MS)
    assert not world.batches


@pytest.mark.parametrize("timestamp_ms", [-(2**62), -5, -1, NOW_MS])
def test_a_tombstone_that_stays_for_ever_keeps_its_time(timestamp_ms):
    builder = BatchBuilder()
    builder.add(b"a", None, timestamp_ms=timestamp_ms)
    world = World()
    world.add(builder.build())
    world.end(1, committed=True)

    world.compact(retention_ms=2**63 - 1)
    world.compact(now_ms=NOW_MS + 1_000_000 * DAY_MS)

    assert decode_all(world.batches[0].records)[0].timestamp_ms == timestamp_ms
    assert len(world.batches) == 2


@pytest.mark.parametrize("committed", [True, False])
def test_a_marker_goes_when_its_records_are_gone_and_its_horizon_is_past(committed):
    world = World()
    world.add(built([(b"a", b"1")], producer=1, sequence=0, transactional=True))
    world.end(1, committed=committed)
    world.add(built([(b"a", b"2")]))
    kinds = lambda: [made.header.is_control for made in world.batches]  # noqa: E731

    world.compact()
    assert kinds() == [True, False]
    assert world.batches[0].header.delete_horizon_ms is None
    world.compact(now_ms=NOW_MS + 5)
    assert world.batches[0].header.delete_horizon_ms == NOW_MS + 5 + DAY_MS
    assert world.batches[0].header.is_control
    world.compact(now_ms=NOW_MS + 4 + DAY_MS)
    assert kinds() == [True, False]
    world.compact(now_ms=NOW_MS + 5 + DAY_MS)
    assert kinds() == [False]


def test_markers_without_records_are_told_so_that_nobody_looks_for_their_transactions_again():
    world = World()
    world.add(built([(b"a", b"1")], producer=1, sequence=0, transactional=True))
    world.end(1, committed=False)
    world.end(2, committed=False)
    work = Pass(NewestOffsets(), world.aborted, now_ms=NOW_MS, delete_retention_ms=1)

    for made in world.batches:
        work.thin(made.header, made.records)

    assert work.markers_alone == [2]


def test_a_damaged_batch_is_an_error_and_not_an_empty_one():
    world = World()
    world.add(built([(b"a", b"1"), (b"a", b"2")]))
    header, records, _ = world.batches[0]
    broken = records[:-1] + bytes([records[-1] ^ 1])

    with pytest.raises(DecodeError):
        Pass(NewestOffsets(), (), now_ms=NOW_MS, delete_retention_ms=1).thin(header, broken)


def compaction(**changes) -> CompactionSettings:
    base = {"dirty_ratio_min": 0.5, "lag_ms_min": 0, "lag_ms_max": 2**63 - 1, "delete_retention_ms": DAY_MS}
    return CompactionSettings(**{**base, **changes})


def test_the_turn_comes_by_the_part_that_is_dirty_or_by_the_age_of_the_oldest_record():
    def turn(dirty: int, settings: CompactionSettings, first_ms: int = NOW_MS - 1000) -> bool:
        return due(settings, dirty_bytes=dirty, total_bytes=100, first_dirty_ms=first_ms, now_ms=NOW_MS)

    assert turn(51, compaction())
    assert not turn(50, compaction())
    assert turn(1, compaction(dirty_ratio_min=0.0))
    assert not turn(100, compaction(dirty_ratio_min=1.0))
    assert turn(1, compaction(lag_ms_max=999))
    assert not turn(1, compaction(lag_ms_max=1000))
    assert not turn(0, compaction(lag_ms_max=1, dirty_ratio_min=0.0))
    assert not turn(1, compaction(lag_ms_max=1), first_ms=-1)


def test_a_batch_is_left_alone_until_it_is_old_enough():
    assert young(compaction(lag_ms_min=10), NOW_MS - 9, NOW_MS)
    assert not young(compaction(lag_ms_min=10), NOW_MS - 10, NOW_MS)
    assert not young(compaction(), NOW_MS + 5, NOW_MS)
