"""Settles that are written apart: rows in a slot's log, and what they say together with the ledgers."""

from __future__ import annotations

from collections import Counter

import pytest

from flowshare.slots.errors import NewerFormat, SlotCorrupt
from flowshare.slots.placement import SHARE_SETTLES
from flowshare.slots.prepared import (
    LEDGER,
    Fate,
    Kept,
    LaneBook,
    LaneNote,
    Prepared,
    Row,
    decide,
    decode_note,
    decode_row,
    encode_row,
    fate,
    lane_entry,
    lane_of,
    last_number,
    row_of,
    rows_in,
)
from tests.slots.prepared_world import RECORDS, SHARE, Leader, World

SEEDS = 250


def row(number, lane=0, settle=0):
    return Row(SHARE, lane, number, settle)


def kept(number, *, decided=False, lane=0):
    return Kept(row(number, lane), Prepared(b"update"), decided)


# --- bytes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decided", [False, True])
@pytest.mark.parametrize("beside", [(), ((b"s/a", b"1"), (b"s/b", None))])
def test_a_row_is_read_as_it_was_written(decided, beside):
    prepared = Prepared(b"what becomes of it", beside)

    assert decode_row(row(7, 3, 2).key, encode_row(prepared, decided=decided)) == Kept(row(7, 3, 2), prepared, decided)


def test_rows_are_found_among_all_that_a_slot_holds():
    entries = [(SHARE + b"\0", b"snapshot"), (SHARE + b"\1" + bytes(8), b"update"), (b"g/\4", b"group")]
    entries.append((row(1).key, encode_row(Prepared(b"u"))))

    assert [one.row for one in rows_in(entries)] == [row(1)]
    assert row_of(SHARE + b"\0") is None
    assert row_of(b"g/orders") is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (row(1).key[:-1], encode_row(Prepared(b"u"))),
        (SHARE + SHARE_SETTLES, encode_row(Prepared(b"u"))),
        (row(1).key, b""),
        (row(1).key, b"\1\0\0\0"),
        (row(1).key, encode_row(Prepared(b"update"))[:-1]),
        (row(1).key, b"\1\2" + encode_row(Prepared(b"u"))[2:]),
        (row(1).key, b"\0" + encode_row(Prepared(b"u"))[1:]),
        (row(1).key, encode_row(Prepared(b"u")) + b"\0"),
        (SHARE + b"\0", encode_row(Prepared(b"u"))),
    ],
)
def test_a_damaged_row_is_refused(key, value):
    with pytest.raises(SlotCorrupt):
        decode_row(key, value)


def test_a_row_of_a_newer_release_is_not_guessed_at():
    with pytest.raises(NewerFormat, match="format 2"):
        decode_row(row(1).key, b"\2" + bytes(20))


NOTE = LaneNote((("paid", 0), LEDGER), (("gebühren", 7), ("paid", 1), LEDGER), committed=False)


@pytest.mark.parametrize("note", [LaneNote(), NOTE, NOTE._replace(committed=True), NOTE._replace(committed=None)])
def test_the_note_of_a_lane_is_read_as_it_was_written(note):
    key, value = lane_entry(3, 5, note)

    assert lane_of(key) == 5
    assert decode_note(value) == note
    assert lane_of(b"g/a") is None


@pytest.mark.parametrize("head", [b"", b"\1", b"\2\0\0\0", b"\1\3\0\0", b"\1\0\0\7"])
def test_a_note_that_cannot_be_read_is_told(head):
    with pytest.raises(SlotCorrupt):
        decode_note(head + lane_entry(3, 5, NOTE)[1][4:])


@pytest.mark.parametrize("size", [1, 2, 4, 5, 6])
def test_a_note_that_is_cut_short_is_told(size):
    key, value = lane_entry(3, 5, LaneNote(last=(("p", 0),)))

    with pytest.raises(SlotCorrupt):
        decode_note(value[:-size])
    with pytest.raises(SlotCorrupt):
        lane_of(key[:-1])


A, B, C = ("a", 0), ("b", 0), ("c", 0)


@pytest.mark.parametrize(
    ("note", "ends"),
    [
        (LaneNote(committed=True), []),
        (LaneNote((A, LEDGER), (B, LEDGER), committed=True), [((A, B, LEDGER), True)]),
        (LaneNote((A, LEDGER), (B, LEDGER), committed=False), [((A,), True), ((B, LEDGER), False)]),
        (LaneNote((A, LEDGER), (A, LEDGER), committed=False), [((A, LEDGER), False)]),
        (LaneNote((A, LEDGER), (), committed=False), [((A, LEDGER), True)]),
    ],
)
def test_the_last_transaction_is_told_its_own_end_and_the_one_before_that_it_is_committed(note, ends):
    assert note.ends() == ends


def test_a_transaction_that_is_found_open_has_what_its_coordinator_names_and_all_else_is_of_the_one_before():
    noted = LaneNote().begun([A]).begun([C, B])
    assert noted == LaneNote((A, LEDGER), (B, C, LEDGER))

    assert noted.left_open([C, LEDGER]) == LaneNote((A, B), (C, LEDGER), committed=False)
    assert noted.left_open([B]) == LaneNote((A, C), (B, LEDGER), committed=False)
    assert noted.places == (A, B, C)


def test_what_a_predecessor_was_telling_is_ended_as_he_meant_to():
    note = LaneNote((A, LEDGER), (B, LEDGER), committed=False)

    assert note.being_ended([A])
    assert not note.being_ended([B, LEDGER])
    assert not note.being_ended([LEDGER])
    assert note._replace(committed=True).being_ended([])


# --- what became of a settle --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "ledgers", "found"),
    [
        (kept(3), {0: 3}, Fate.COMMITTED),
        (kept(3), {0: 9}, Fate.COMMITTED),
        (kept(3), {0: 2}, Fate.UNDONE),
        (kept(3), {0: -1}, Fate.UNDONE),
        (kept(3), {}, Fate.UNDECIDED),
        (kept(3, lane=1), {0: 9}, Fate.UNDECIDED),
        (kept(3, decided=True), {}, Fate.COMMITTED),
        (kept(3, decided=True), {0: 1}, Fate.COMMITTED),
    ],
)
def test_row_and_ledger_say_together_what_became_of_a_settle(one, ledgers, found):
    assert decide([one], ledgers) == {one.row: found}


def test_an_own_transaction_is_committed_by_its_own_number_alone():
    assert [fate(5, ledger) for ledger in (-1, 4, 5, 6)] == [Fate.UNDONE, Fate.UNDONE, Fate.COMMITTED, Fate.TAKEN]


def test_numbers_go_on_above_all_that_were_used():
    assert last_number(0, [], -1) == 0
    assert last_number(0, [row(4), row(9, lane=1)], -1) == 4
    assert last_number(0, [row(4)], 7) == 7


def test_numbers_of_two_leaders_are_never_the_same_though_no_row_is_left():
    numbers = []
    for epoch in (1, 2, 3):
        book = LaneBook(0, epoch)
        book.taken_over([], -1)
        numbers.append(book.begin([(SHARE, Prepared(b"a"))]).number)

    assert numbers == sorted(set(numbers))


def test_rows_of_what_was_not_done_go_with_the_next_ones_of_their_lane():
    book = LaneBook(0, 0)
    book.taken_over([row(4), row(2), row(5, lane=1)], 3)

    first = book.begin([(SHARE, Prepared(b"a"))])
    assert (first.number, dict(first.entries)[row(4).key]) == (5, None)
    book.undone()  # whether its rows were written is not known
    second = book.begin([(SHARE, Prepared(b"b")), (SHARE, Prepared(b"c"))])

    gone = {key for key, value in second.entries if value is None}
    assert gone == {row(4).key, row(5).key}
    assert second.rows == (row(6, settle=0), row(6, settle=1))
    book.prepared()
    book.committed()
    assert book.ledger == 6
    assert all(value is not None for _, value in book.begin([(SHARE, Prepared(b"d"))]).entries)


def test_what_is_under_way_is_not_decided():
    book = LaneBook(0, 1)
    book.taken_over([], -1)
    begun = book.begin([(SHARE, Prepared(b"a"))])
    one = Kept(begun.rows[0], Prepared(b"a"), False)

    assert book.fate_of(one) is Fate.UNDECIDED
    book.undone()
    assert book.fate_of(one) is Fate.UNDONE


# --- leaders that die ---------------------------------------------------------------------------------------------


def live_through(seed):
    """Leaders come and go; the last one lives. The world then."""
    world = World(seed)
    world.start(Leader(world))
    for _ in range(world.source.randrange(1, 6)):
        for _ in range(world.source.randrange(200)):
            if world.runs or world.network:
                world.step()
        if world.source.random() < 0.5:
            world.kill()
        elif world.source.random() < 0.7:
            world.freeze()
        world.start(Leader(world))
    last = Leader(world, rounds=100)
    world.start(last)
    while world.runs or world.network:
        world.step()
    return world


def check(world):
    visible = [output for lane in world.lanes for output in lane.visible]
    times = Counter(record for _, record in visible)
    for record in range(RECORDS):
        kind, settle = world.state(record)
        assert times[record] == (kind == "D"), f"record {record}: {kind}, outputs {times[record]} times"
        if kind == "D":
            assert (settle, record) in visible, f"record {record} is settled by one whose outputs are not there"
    by_settle = {settle for settle, _ in visible}
    for settle, committed in world.told.items():
        assert (settle in by_settle) == committed, f"settle {settle} was told as {committed}"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_outputs_are_committed_if_and_only_if_their_records_are_settled(seed):
    check(live_through(seed))


def test_the_simulation_meets_all_that_it_is_about():
    seen = sum((live_through(seed).seen for seed in range(SEEDS)), Counter())

    for event in (
        "deaths",
        "fenced",
        "zombies stopped",
        "aborted by a take-over",
        "answer lost",
        "made by a successor",
        "dropped by a successor",
        "resolved as committed",
        "resolved as undone",
        "resolved as taken",
    ):
        assert seen[event] > 2, (event, seen)
