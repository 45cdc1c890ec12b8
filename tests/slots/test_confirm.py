"""Owners confirm only what counts: by cases, and by many drawn histories of owners that come back late."""

from __future__ import annotations

from collections import Counter

import pytest

from flowshare.slots import replay
from flowshare.slots.confirm import Confirming
from flowshare.slots.records import Claim, Part, Tick, checksum_of, encode
from flowshare.slots.replay import SlotReader
from flowshare.slots.summary import Summary
from flowshare.slots.table import SlotTable
from tests.sim.seeds import play, seeds
from tests.slots.world import World, body, everything

SEEDS = seeds(600)


def claim(epoch, owner="us"):
    return Claim(epoch=epoch, node_id=7, owner=owner, host="h", port=1, time_ms=0)


def part(epoch, serial, *entries, last=True):
    return Part(epoch=epoch, serial=serial, body=body(*entries), last=last)


def owner_at(offset=0):
    """An owner whose claim lies at `offset`."""
    confirming = Confirming(SlotReader())
    confirming.reader.skip(offset)
    confirming.answered(confirming.sent(claim(1)), offset)
    assert confirming.mine is not None
    return confirming


def read(confirming, offset, record):
    return confirming.read(offset, record, checksum_of(encode(record)[1]))


# --- cases --------------------------------------------------------------------------------------------------------


def test_records_at_the_next_offsets_are_confirmed_in_their_order():
    confirming = owner_at()
    first = confirming.sent(part(1, 1, (b"g/a", b"1")))
    second = confirming.sent(part(1, 2, (b"g/a", b"2")))

    assert confirming.answered(second, 2) == []
    assert confirming.answered(first, 1) == [first, second]
    assert confirming.reader.table.scan(b"g/a") == [(b"g/a", b"2")]


def test_a_record_behind_a_gap_is_confirmed_when_the_gap_holds_no_newer_claim():
    confirming = owner_at()
    ticket = confirming.sent(part(1, 1, (b"g/a", b"1")))

    assert confirming.answered(ticket, 3) == []
    assert confirming.wanted
    assert read(confirming, 1, part(0, 9, (b"g/a", b"late"))) is None
    assert read(confirming, 2, claim(1, "late")) is None
    assert confirming.settle() == [ticket]
    assert confirming.reader.table.scan(b"g/a") == [(b"g/a", b"1")]


def test_a_newer_claim_in_the_gap_ends_the_ownership():
    confirming = owner_at()
    ticket = confirming.sent(part(1, 1, (b"g/a", b"1")))
    confirming.answered(ticket, 2)

    assert read(confirming, 1, claim(2, "other")) is None

    assert confirming.lost == "other (node 7) claimed the slot in epoch 2"
    assert confirming.settle() == []
    assert confirming.reader.table.scan(b"g/a") == []


def test_an_idle_owner_sees_a_newer_claim_when_it_reads():
    confirming = owner_at()

    read(confirming, 1, claim(5, "other"))

    assert confirming.lost is not None


def test_a_claim_that_comes_second_is_void():
    confirming = Confirming(SlotReader())
    ticket = confirming.sent(claim(1))
    confirming.answered(ticket, 1)

    read(confirming, 0, claim(1, "other"))

    assert confirming.lost == "other (node 7) claimed the slot in epoch 1"
    assert confirming.mine is None


def test_a_record_that_lies_there_twice_is_confirmed_once():
    confirming = owner_at()
    record = part(1, 1, (b"g/a", b"1"))
    ticket = confirming.sent(record)
    confirming.answered(ticket, 2)  # the broker had forgotten the producer and took it again

    assert read(confirming, 1, record) is ticket
    assert read(confirming, 2, record) is None
    assert confirming.lost is None


def test_a_record_without_a_place_is_looked_for():
    confirming = owner_at()
    record = part(1, 1, (b"g/a", b"1"))
    ticket = confirming.sent(record)

    assert confirming.answered(ticket, None) == []
    assert confirming.wanted
    assert read(confirming, 1, record) is ticket
    assert not confirming.wanted


def test_an_answer_that_comes_after_the_record_was_read_changes_nothing():
    confirming = owner_at()
    record = part(1, 1, (b"g/a", b"1"))
    ticket = confirming.sent(record)
    assert read(confirming, 1, record) is ticket

    assert confirming.answered(ticket, 1) == []
    assert confirming.lost is None


def test_an_offset_that_was_read_already_ends_the_ownership():
    confirming = owner_at(5)
    ticket = confirming.sent(part(1, 1))

    assert confirming.answered(ticket, 3) == []
    assert "cut at its end" in confirming.lost


def test_a_record_after_a_missing_one_does_not_count():
    confirming = owner_at()
    confirming.sent(part(1, 1, (b"g/a", b"1")))
    second = confirming.sent(part(1, 2, (b"g/a", b"2")))
    read(confirming, 1, second.record)

    assert confirming.reader.table.scan(b"g/a") == []
    assert confirming.answered(second, 1) == []


def test_somebody_who_writes_under_our_claim_is_noticed():
    confirming = owner_at()

    read(confirming, 1, Tick(epoch=1, serial=1))

    assert "was not written by this owner" in confirming.lost


def test_giving_up_keeps_the_first_reason():
    confirming = owner_at()
    confirming.give_up("one")
    confirming.give_up("two")

    assert confirming.lost == "one"


# --- drawn histories ----------------------------------------------------------------------------------------------


def drive(seed, steps=400):
    world = World(seed)
    for _ in range(steps):
        world.step()
    world.heal()
    check_readers(world)
    return world


def check_readers(world):
    """Everybody who reads the log has the state that counts."""
    log, state = world.broker.log, world.broker.oracle.state
    for split in (0, world.source.randrange(len(log) + 1)):
        reader = SlotReader()
        for offset, (_, value, record) in enumerate(log[:split]):
            reader.feed(offset, record, checksum_of(value))
        summary = Summary.decode(reader.summary().encode())
        reader = SlotReader.resume(summary, SlotTable(everything(reader.table)))
        for offset in range(summary.position, len(log)):
            reader.feed(offset, log[offset][2], checksum_of(log[offset][1]))
        assert dict(reader.table.scan(b"")) == state
        assert reader.claim == world.broker.oracle.claim


@pytest.fixture
def plain_entries(monkeypatch):
    """Entries of the world are text, so that its oracle needs none of the code under test."""

    def entries(data):
        return [tuple(one.split(b"=")) for one in data.split(b";")[:-1]]

    monkeypatch.setattr(replay, "decode_entries", entries)


@pytest.mark.slow
def test_no_owner_confirms_what_does_not_count(plain_entries):
    met = sum(play(SEEDS, lambda seed: drive(seed).seen), Counter())
    print(dict(met))
    for event in ("gap", "confirmed by reading", "refused as fenced", "refused as out of order"):
        assert met[event] > len(SEEDS) / 10, event
    assert met["taken from an old owner after a newer claim"] > len(SEEDS)
    assert met["confirmed"] > 10 * len(SEEDS)


def test_a_few_histories_hold_in_every_run(plain_entries):
    for seed in range(3):
        drive(seed, steps=150)


def test_an_answer_behind_what_was_read_ends_the_ownership():
    confirming = owner_at()
    ticket = confirming.sent(part(1, 1, (b"g/a", b"1")))
    confirming.read_up_to(5)

    assert confirming.answered(ticket, 1) == []
    assert confirming.lost is not None
    assert "the log was cut at its end" in confirming.lost
    confirming.read_up_to(9)
    assert confirming.reader.position == 5, "who lost it reads no further"
    assert confirming.settle() == []
