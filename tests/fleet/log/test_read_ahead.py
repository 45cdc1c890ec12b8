"""Tests of the part of a partition that lies in memory: which part, for how long, and within which bounds."""

from __future__ import annotations

import random

from flowshare.fleet.log.chunk import parse
from flowshare.fleet.log.read_ahead import COLD_MAX, BufferedRun, Memory, ReadBuffer
from flowshare.fleet.log.settings import LogSettings
from flowshare.protocol.batches import batch_headers, rebase
from tests.fleet.log.worlds import batch, numbers
from tests.sim.seeds import drawn

SMALL = LogSettings(ahead_bytes=40_000, ahead_partition_bytes=16_000, ahead_least_bytes=4_000, stretch_bytes=4_000)


def piece_of_log(first, batches=2, count=10, size=100):
    """A chunk of some batches."""
    records = b""
    for offset in range(first, first + batches * count, count):
        made = batch(*numbers(offset, count), size=size)
        records += rebase(made, batch_headers(made), offset)
    return parse(records, first).chunk


def new_buffer(memory, partition=0):
    memory.buffers += 1
    return ReadBuffer("orders", partition, committed=False, memory=memory, stretch_bytes=SMALL.stretch_bytes, now_s=0.0)


def watched(memory, end=0):
    buffer = new_buffer(memory)
    buffer.watch_from(BufferedRun(end))
    return buffer


def test_a_read_goes_over_several_answers():
    run = BufferedRun(0)
    for first in (0, 20, 40):
        run.add(piece_of_log(first))

    whole = run.read(5, 1 << 20)
    assert [batch.first for batch in whole.batches] == [0, 10, 20, 30, 40, 50]
    assert len(whole.records) == sum(len(piece_of_log(first).records) for first in (0, 20, 40))
    some = run.read(15, len(piece_of_log(0).records))
    assert [batch.first for batch in some.batches] == [10, 20]


def test_what_was_read_by_nobody_is_counted():
    run = BufferedRun(0)
    run.add(piece_of_log(0))
    run.add(piece_of_log(20))
    size = piece_of_log(0).size

    assert run.ahead == 2 * size
    run.read(0, 1)
    assert run.ahead == 2 * size, "half of the first answer is still to be read"
    run.read(10, 1)
    assert run.ahead == size
    run.read(0, 1)
    assert run.ahead == size, "the furthest reader counts"


def test_a_tail_pauses_when_half_its_share_is_unread_and_goes_on_when_it_was_read():
    memory = Memory(SMALL)
    buffer = watched(memory)
    first = 0
    while not buffer.paused:
        buffer.add(buffer.tail, piece_of_log(first))
        first += 20

    assert memory.allowance // 2 <= buffer.tail.ahead < memory.allowance
    offset = 0
    while buffer.paused:
        offset = buffer.read(offset, 2000).batches[-1].last + 1
    assert 0 < buffer.tail.ahead < memory.allowance // 4


def test_what_was_read_stays_for_other_groups_as_long_as_there_is_room():
    memory = Memory(SMALL)
    buffer = watched(memory)
    for first in range(0, 1000, 20):
        buffer.add(buffer.tail, piece_of_log(first))
        buffer.read(first, 1 << 20)

    assert memory.allowance - 2 * piece_of_log(0).size < buffer.tail.size <= memory.allowance
    assert buffer.read(buffer.tail.start, 1) is not None
    assert buffer.read(0, 1) is None


def test_all_partitions_together_keep_to_the_bound_and_the_longest_unread_goes_first():
    memory = Memory(SMALL)
    buffers = [watched(memory) for _ in range(20)]
    draw = random.Random(drawn())
    for _ in range(500):
        buffer = draw.choice(buffers)
        buffer.add(buffer.tail, piece_of_log(buffer.tail.end))
        if draw.random() < 0.5:
            buffer.read(buffer.tail.start, 1)
        assert memory.size <= SMALL.ahead_bytes
        assert memory.size == sum(buffer.tail.size for buffer in buffers)

    busy = watched(memory)
    busy.add(busy.tail, piece_of_log(0))
    for buffer in buffers:
        busy.read(busy.tail.start, 1)
        buffer.add(buffer.tail, piece_of_log(buffer.tail.end))
    assert busy.read(busy.tail.end - 1, 1) is not None


def test_a_place_where_nobody_reads_gives_way_to_others():
    buffer = new_buffer(Memory(SMALL))
    for place in range(COLD_MAX + 1):
        run = buffer.run_for(place * 1000)
        buffer.add(run, piece_of_log(place * 1000))

    assert buffer.read(0, 1) is None
    assert [run.start for run in buffer.cold] == [4000, 3000, 2000, 1000]
    buffer.read(1000, 1)
    buffer.run_for(9000)
    assert [run.start for run in buffer.cold] == [9000, 1000, 4000, 3000]


def test_an_older_place_is_filled_ahead_of_its_reader_up_to_what_is_known():
    buffer = watched(Memory(SMALL), end=40)
    run = buffer.run_for(0)
    buffer.add(run, piece_of_log(0))

    assert buffer.wants_more(60) is run
    buffer.add(run, piece_of_log(20))
    buffer.add(buffer.tail, piece_of_log(40))
    assert buffer.wants_more(60) is None, "the tail goes on from here"
    assert buffer.read(20, 1 << 20).batches[-1].last == 39
    assert buffer.read(40, 1 << 20).batches[0].first == 40


def test_who_comes_to_the_end_of_the_log_makes_its_place_the_tail():
    buffer = new_buffer(Memory(SMALL))
    run = buffer.run_for(100)
    buffer.add(run, piece_of_log(100))

    assert buffer.reached_end(run)
    assert buffer.tail is run
    assert buffer.cold == []


def test_who_is_ahead_of_a_paused_tail_takes_its_place():
    buffer = watched(Memory(SMALL))
    behind = buffer.tail
    while not buffer.paused:
        buffer.add(behind, piece_of_log(behind.end))
    run = buffer.run_for(5000)
    buffer.add(run, piece_of_log(5000))

    assert buffer.reached_end(run)
    assert buffer.tail is run
    assert not buffer.paused
    assert buffer.read(0, 1) is not None, "who lags reads on where it was"


def test_a_tail_that_goes_on_from_a_place_stays_the_tail():
    buffer = watched(Memory(SMALL), end=20)
    run = buffer.run_for(0)
    buffer.add(run, piece_of_log(0))

    assert not buffer.reached_end(run)
    assert buffer.tail is not run


def test_a_log_that_was_cut_is_forgotten_from_there_on():
    memory = Memory(SMALL)
    buffer = watched(memory)
    for first in (0, 20, 40):
        buffer.add(buffer.tail, piece_of_log(first))
    old = buffer.run_for(900)
    buffer.add(old, piece_of_log(900))

    buffer.cut(0, 45)

    assert buffer.tail.end == 40, "what lies in one answer with it is read again"
    assert buffer.cold == []
    assert memory.size == buffer.tail.size
    assert buffer.read(39, 1) is not None


def test_a_log_start_behind_the_tail_moves_it_to_the_end():
    memory = Memory(SMALL)
    buffer = watched(memory)
    buffer.add(buffer.tail, piece_of_log(0))

    buffer.cut(500, 800)

    assert (buffer.tail.start, buffer.tail.end) == (800, 800)
    assert memory.size == 0
