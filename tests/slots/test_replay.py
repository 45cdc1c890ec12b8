"""Tests of the rows that count in a slot's log, by cases."""

from __future__ import annotations

import json

import pytest

from flowshare.slots.errors import SlotCorrupt
from flowshare.slots.records import CHUNK_BYTES, Claim, HandOver, Part, Tick, checksum_of, encode, encode_entries, parts
from flowshare.slots.replay import CLAIMS_KEPT, SlotReader, Validity
from flowshare.slots.summary import Summary
from flowshare.slots.table import SlotTable
from tests.slots.world import everything

CLAIMED, ACCEPTED, VOID = Validity.CLAIMED, Validity.ACCEPTED, Validity.VOID


def claim(epoch, owner="us"):
    return Claim(epoch=epoch, node_id=7, owner=owner, host="h", port=1, time_ms=0)


def part(epoch, serial, *entries, last=True):
    return Part(epoch=epoch, serial=serial, body=encode_entries(entries), last=last)


def feed(reader, *records):
    return [reader.feed(reader.position, record, checksum_of(encode(record)[1])) for record in records]


def content(reader):
    return dict(reader.table.scan(b""))


def test_the_last_writer_wins_in_log_order():
    reader = SlotReader()

    found = feed(
        reader, claim(1), part(1, 1, (b"g/a", b"1"), (b"g/b", b"1")), part(1, 2, (b"g/a", b"2"), (b"g/b", None))
    )

    assert found == [CLAIMED, ACCEPTED, ACCEPTED]
    assert content(reader) == {b"g/a": b"2"}


def test_records_of_an_older_claim_are_void_after_a_newer_one():
    reader = SlotReader()
    feed(reader, claim(1), part(1, 1, (b"g/a", b"1")), claim(2, "other"))

    assert feed(reader, part(1, 2, (b"g/a", b"late")), Tick(epoch=1, serial=3)) == [VOID, VOID]
    assert content(reader) == {b"g/a": b"1"}


def test_a_claim_at_or_below_the_present_one_is_void():
    reader = SlotReader()

    assert feed(reader, claim(2), claim(2, "other"), claim(1)) == [CLAIMED, VOID, VOID]
    assert reader.claim == claim(2)


def test_what_comes_twice_counts_once_and_what_follows_a_hole_does_not():
    reader = SlotReader()
    one, two, three = (part(1, n, (b"g/a", b"%d" % n)) for n in (1, 2, 3))

    assert feed(reader, claim(1), one, one, three, two, one) == [CLAIMED, ACCEPTED, VOID, VOID, ACCEPTED, VOID]
    assert content(reader) == {b"g/a": b"2"}


def test_records_before_any_claim_are_void():
    reader = SlotReader()

    assert feed(reader, part(1, 1, (b"g/a", b"1")), claim(1)) == [VOID, CLAIMED]


def test_nothing_counts_after_a_hand_over_until_the_next_claim():
    reader = SlotReader()

    found = feed(reader, claim(1), HandOver(epoch=1, serial=1, to="other"), Tick(epoch=1, serial=2))

    assert found == [CLAIMED, ACCEPTED, VOID]
    assert reader.handed_over_to == "other"
    feed(reader, claim(2, "other"))
    assert reader.handed_over_to is None


def test_a_write_in_parts_is_applied_with_its_last_part_as_of_its_first():
    seen = []
    reader = SlotReader()
    reader.on_write = lambda entries, offset: seen.append((len(entries), offset))
    entries = [(b"g/%d" % n, bytes(CHUNK_BYTES // 2)) for n in range(4)]
    cut = parts(1, 1, encode_entries(entries))
    feed(reader, claim(1), *cut[:-1])
    assert content(reader) == {}

    feed(reader, cut[-1])

    assert content(reader) == dict(entries)
    assert reader.table.oldest() == 1
    assert seen == [(4, 1)]


def test_parts_whose_last_one_never_came_are_dropped_by_the_next_claim():
    reader = SlotReader()

    feed(reader, claim(1), part(1, 1, (b"g/a", b"1"), last=False), claim(2), part(2, 1, (b"g/b", b"2")))

    assert content(reader) == {b"g/b": b"2"}
    assert reader.table.oldest() == 3


def test_a_write_without_end_is_refused(monkeypatch):
    monkeypatch.setattr("flowshare.slots.replay.WRITE_BYTES_MAX", 20)
    reader = SlotReader()
    feed(reader, claim(1), part(1, 1, (b"g/a", b"1"), last=False))

    with pytest.raises(SlotCorrupt, match="longer than the 20 bytes"):
        feed(reader, part(1, 2, (b"g/a", b"1" * 20), last=False))


def test_a_log_whose_start_was_deleted_by_somebody_else_is_refused():
    with pytest.raises(SlotCorrupt, match=r"docs/operations\.md"):
        feed(SlotReader(start=5), Tick(epoch=1, serial=1))

    assert feed(SlotReader(start=5), claim(3)) == [CLAIMED]


def test_a_summary_in_the_middle_of_a_write_goes_back_to_its_begin():
    reader = SlotReader()
    log = [claim(1), part(1, 1), part(1, 2, (b"g/a", b"1"), last=False), part(1, 3, (b"g/b", b"2"))]
    feed(reader, *log[:3])

    summary = Summary.decode(reader.summary().encode())
    again = SlotReader.resume(summary, SlotTable(everything(reader.table)))

    assert (summary.position, summary.last.offset) == (2, 1)
    assert feed(again, *log[2:]) == [ACCEPTED, ACCEPTED]
    assert content(again) == {b"g/a": b"1", b"g/b": b"2"}


@pytest.mark.parametrize("damage", [b"", b"{}", b"[1]", b'{"format": 9}', b'{"format": 1, "claim": 3}'])
def test_a_damaged_summary_is_refused(damage):
    with pytest.raises(SlotCorrupt):
        Summary.decode(damage)


def test_a_summary_with_more_fields_is_refused():
    fields = json.loads(SlotReader().summary().encode())

    with pytest.raises(SlotCorrupt):
        Summary.decode(json.dumps({**fields, "more": 1}).encode())


def test_of_very_many_claims_some_places_are_forgotten_but_neither_the_first_nor_the_last():
    reader = SlotReader()
    feed(reader, *(claim(n) for n in range(1, 10 * CLAIMS_KEPT)))

    assert len(reader.claims) <= CLAIMS_KEPT
    assert reader.claims[0].offset == 0
    assert reader.claims[-1].offset == reader.position - 1
