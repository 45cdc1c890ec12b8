"""Tests of the memory of records lately read from the store, within bounds."""

from __future__ import annotations

import uuid

from flowshare.log.recent import STRETCHES_MAX, ReadAhead, TailBatch

KEY = (uuid.UUID(int=1), 0)


def stretch(first: int, batches: int = 3, size: int = 1000) -> list[TailBatch]:
    return [TailBatch(at, at + 9, b"x" * size) for at in range(first, first + 10 * batches, 10)]


def test_a_read_inside_a_stretch_begins_with_the_batch_that_holds_the_offset() -> None:
    ahead = ReadAhead(1 << 20)
    ahead.add(KEY, stretch(100))

    assert [batch.first for batch in ahead.read(KEY, 115, 1 << 20)] == [110, 120]
    assert [batch.first for batch in ahead.read(KEY, 100, 1500)] == [100]
    assert [batch.first for batch in ahead.read(KEY, 129, 1)] == [120]


def test_what_is_not_here_is_not_answered() -> None:
    ahead = ReadAhead(1 << 20)
    ahead.add(KEY, stretch(100))

    assert ahead.read(KEY, 99, 1000) == []
    assert ahead.read(KEY, 130, 1000) == []
    assert ahead.read((uuid.UUID(int=2), 0), 100, 1000) == []


def test_the_least_used_stretch_of_a_partition_goes_first() -> None:
    ahead = ReadAhead(1 << 20)
    for number in range(STRETCHES_MAX):
        ahead.add(KEY, stretch(number * 100))
    assert ahead.read(KEY, 0, 1)

    ahead.add(KEY, stretch(900))

    assert ahead.read(KEY, 0, 1)
    assert ahead.read(KEY, 100, 1) == []


def test_all_partitions_together_stay_within_the_bound() -> None:
    ahead = ReadAhead(10_000)
    for number in range(20):
        ahead.add((KEY[0], number), stretch(0))

    kept = [number for number in range(20) if ahead.read((KEY[0], number), 0, 1)]

    assert kept == [18, 19]


def test_a_stretch_larger_than_the_bound_is_not_kept() -> None:
    ahead = ReadAhead(2000)
    ahead.add(KEY, stretch(0))

    assert ahead.read(KEY, 0, 1) == []


def test_offsets_that_are_missing_in_a_stretch_are_read_from_the_next_batch() -> None:
    ahead = ReadAhead(1 << 20)
    ahead.add(KEY, [TailBatch(0, 4, b"x"), TailBatch(10, 14, b"y"), TailBatch(30, 34, b"z")])

    assert [batch.first for batch in ahead.read(KEY, 7, 1)] == [10]
    assert [batch.first for batch in ahead.read(KEY, 14, 1)] == [10]
    assert [batch.first for batch in ahead.read(KEY, 15, 1)] == [30]


def test_what_compaction_changes_is_forgotten() -> None:
    ahead = ReadAhead(1 << 20)
    other = (uuid.UUID(int=2), 0)
    for first in (0, 100):
        ahead.add(KEY, stretch(first))
    ahead.add(other, stretch(0))

    ahead.forget(KEY)
    ahead.forget(KEY)

    assert ahead.read(KEY, 0, 1) == ahead.read(KEY, 100, 1) == []
    assert ahead.read(other, 0, 1)
