"""A slot's log is cut at claims, below which nothing is needed."""

from __future__ import annotations

import random

from flowshare.slots.pruning import ClaimAgain, Delete, PruneLimits, WriteAgain, next_step
from flowshare.slots.records import Claim, Part, checksum_of, encode, encode_entries
from flowshare.slots.replay import SlotReader
from tests.slots.world import everything

LIMITS = PruneLimits(log_bytes=5_000, growth=4, step_bytes=300)


class Log:
    """One owner and its log."""

    def __init__(self):
        self.records = {}
        self.start = 0
        self.reader = SlotReader()
        self.epoch = self.serial = 0
        self.claim()

    def append(self, record):
        offset = self.reader.position
        self.records[offset] = record
        self.reader.feed(offset, record, checksum_of(encode(record)[1]))

    def claim(self):
        self.epoch, self.serial = self.epoch + 1, 1
        self.append(Claim(epoch=self.epoch, node_id=1, owner="us", host="h", port=1, time_ms=0))

    def write(self, *entries):
        self.append(Part(epoch=self.epoch, serial=self.serial, body=encode_entries(entries)))
        self.serial += 1

    def do(self, step):
        match step:
            case ClaimAgain():
                self.claim()
            case WriteAgain():
                assert len(step.entries) == 1 or sum(len(k) + len(v) for k, v in step.entries) <= LIMITS.step_bytes
                self.write(*step.entries)
            case Delete():
                self.start = step.before
                self.records = {offset: record for offset, record in self.records.items() if offset >= self.start}
                self.reader.cut(self.start)

    def read_again(self):
        reader = SlotReader(start=self.start)
        for offset, record in self.records.items():
            reader.feed(offset, record, 0)
        return reader


def test_a_short_log_is_left_alone():
    log = Log()
    log.write((b"g/a", b"1"))

    assert next_step(log.reader, LIMITS) is None


def test_a_log_without_claims_is_left_alone():
    assert next_step(SlotReader(), PruneLimits(log_bytes=-1)) is None


def test_a_log_stays_below_its_bound_and_says_the_same_after_every_cut():
    source = random.Random(3)
    log, cuts = Log(), 0
    for n in range(60):
        log.write((b"g/cold%d" % n, bytes(20)))
    for n in range(3_000):
        log.write((b"g/%d" % source.randrange(5), b"%d" % n))
        step = next_step(log.reader, LIMITS)
        if step is not None:
            log.do(step)
        if isinstance(step, Delete):
            cuts += 1
            assert everything(log.read_again().table) == everything(log.reader.table)
        assert log.reader.kept_bytes < 4 * LIMITS.log_bytes
    assert cuts > 10


def test_a_table_that_is_larger_than_the_bound_moves_the_bound():
    log = Log()
    for n in range(400):
        log.write((b"g/%d" % n, bytes(100)))

    assert next_step(log.reader, LIMITS) is None  # the log is less than four times the table
