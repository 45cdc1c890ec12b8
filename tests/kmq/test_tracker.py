"""The tracker's core, by examples and against a model that keeps everything."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flowshare.kmq.markers import END, encode_key, encode_start
from flowshare.kmq.tracker import AHEAD_MS_MAX, PartitionTracker, TrackerCounts

NOW = 1_000_000


class Record(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


def start(offset, message, at, after=3_000, partition=0):
    return Record(offset, at, encode_key(partition, message), encode_start(after))


def end(offset, message, at, partition=0):
    return Record(offset, at, encode_key(partition, message), END)


def tracker(end_offset=0, position=0):
    return PartitionTracker(0, position, end_offset)


def read(one, *records, now=None, whole=True):
    now = records[-1].timestamp if now is None else now
    one.read(records, now)
    if whole:
        one.looked(now)


def test_a_message_is_due_when_its_time_has_passed_since_its_marker():
    one = tracker()
    read(one, start(0, 7, NOW))

    one.looked(NOW + 2_999)
    assert one.due(10) == []
    one.looked(NOW + 3_000)
    assert one.due(10) == [7]
    assert one.due(10) == [], "it is being sent"


def test_an_ended_message_is_never_due():
    one = tracker()
    read(one, start(0, 7, NOW), end(1, 7, NOW + 1))

    one.looked(NOW + 10_000)
    assert one.due(10) == []
    assert one.open == 0


def test_of_two_messages_the_older_one_is_due_first():
    one = tracker()
    read(one, start(0, 1, NOW, 4_000), start(1, 2, NOW + 2_000, 4_000))

    one.looked(NOW + 4_500)
    assert one.due(10) == [1]
    one.looked(NOW + 6_000)
    assert one.due(10) == [2]


def test_what_is_due_comes_in_the_order_of_offsets_and_no_more_than_asked_for():
    one = tracker()
    read(one, *(start(index, 9 - index, NOW) for index in range(9)))

    one.looked(NOW + 3_000)
    first = one.due(4)
    assert first == sorted(first)
    assert sorted(first + one.due(10)) == list(range(1, 10))


def test_a_tracker_that_lags_goes_by_the_markers_it_has_read():
    """The end marker is there, and was not read yet, though hours have passed."""
    one = tracker()
    read(one, start(0, 7, NOW), start(1, 8, NOW + 100), now=NOW + 9_000_000, whole=False)

    assert one.due(10) == []
    read(one, end(2, 7, NOW + 200), now=NOW + 9_000_001, whole=False)
    assert one.due(10) == []


def test_without_markers_the_machines_clock_says_what_is_due():
    """A message begun before the tracker stood still for an hour is due soon after the tracker is back."""
    one = tracker()
    read(one, start(0, 7, NOW, 60_000), now=NOW + 3_600_000)

    assert one.due(10) == []
    one.looked(NOW + 3_600_999)
    assert one.due(10) == []
    one.looked(NOW + 3_601_000)
    assert one.due(10) == [7]


def test_time_stands_still_while_the_log_is_not_read_to_its_end():
    one = tracker()
    read(one, start(0, 7, NOW))

    assert one.clock_ms == NOW
    one.looked(NOW + 500)
    assert one.clock_ms == NOW + 500
    read(one, start(1, 8, NOW + 600), now=NOW + 700, whole=False)
    assert one.clock_ms == NOW + 600


def test_a_machine_whose_clock_is_behind_the_brokers_is_not_late():
    one = tracker()
    read(one, start(0, 7, NOW), now=NOW - 50_000)

    one.looked(NOW - 47_000)
    assert one.due(10) == [7]


def test_a_timestamp_of_the_far_future_makes_nothing_due():
    one = tracker()
    read(one, start(0, 7, NOW), Record(1, NOW + AHEAD_MS_MAX + 1, encode_key(0, 8), END), now=NOW)

    assert one.clock_ms == NOW
    assert one.due(10) == []


def test_nothing_is_due_before_all_markers_that_were_there_have_been_read():
    one = tracker(end_offset=3)
    read(one, start(0, 7, NOW), end(1, 9, NOW + 100_000), now=NOW + 100_000)

    one.looked(NOW + 200_000)
    assert (one.caught_up, one.due(10)) == (False, [])
    read(one, end(2, 7, NOW + 200_001))
    assert (one.caught_up, one.due(10)) == (True, [])


def test_holes_at_the_logs_end_do_not_keep_a_tracker_from_catching_up():
    one = tracker(end_offset=5)
    read(one, start(0, 7, NOW))

    one.passed(5)
    one.looked(NOW + 3_000)
    assert one.due(10) == [7]


def test_foreign_and_odd_markers_are_passed_over_and_counted():
    one = tracker()
    read(
        one,
        start(0, 7, NOW, partition=1),
        Record(1, NOW, encode_key(0, 1), None),
        Record(2, NOW, b"no key", END),
        start(3, 8, NOW),
    )

    assert one.counts == TrackerCounts(starts=1, foreign=1, odd=2)
    assert (one.position, one.needed, one.messages()) == (4, 3, [8])


def test_a_second_start_marker_begins_the_time_anew():
    one = tracker()
    read(one, start(0, 7, NOW), start(1, 8, NOW), start(2, 7, NOW + 2_000))

    assert one.needed == 1
    one.looked(NOW + 4_999)
    assert one.due(10) == [8]
    one.looked(NOW + 5_000)
    assert one.due(10) == [7]


def test_a_start_marker_of_a_message_that_is_being_sent_changes_nothing():
    one = tracker()
    read(one, start(0, 7, NOW))
    one.looked(NOW + 3_000)
    assert one.due(10) == [7]

    read(one, start(1, 7, NOW + 3_000))
    assert one.wanted(7)
    one.looked(NOW + 60_000)
    assert one.due(10) == []


def test_an_end_marker_that_comes_meanwhile_takes_the_message_back():
    one = tracker()
    read(one, start(0, 7, NOW))
    one.looked(NOW + 3_000)
    one.due(10)

    read(one, end(1, 7, NOW + 3_000))
    assert not one.wanted(7)
    assert one.failed(7) == 0


def test_a_message_that_cannot_be_sent_is_due_again_after_a_pause_that_grows_and_holds_up_no_other():
    one = tracker()
    read(one, start(0, 7, NOW), start(1, 8, NOW))
    now, pauses = NOW + 3_000, []
    one.looked(now)
    assert one.due(10) == [7, 8]
    one.ended(8)
    for failures in range(1, 9):
        assert one.failed(7) == failures
        pauses.append(one.next_due_ms() - now)
        now = one.next_due_ms()
        one.looked(now)
        assert one.due(10) == [7]

    assert pauses == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]
    assert one.needed == 0, "it is needed until it is done with"


def test_a_tracker_that_read_nothing_has_no_time():
    one = tracker()
    one.looked(NOW)

    assert (one.clock_ms, one.due(10), one.next_due_ms(), one.needed) == (None, [], None, 0)


def test_a_successor_that_begins_at_what_is_needed_knows_what_is_open():
    records = [start(index, index, NOW + index) for index in range(50)]
    records += [end(50 + index, message, NOW + 100 + index) for index, message in enumerate(range(0, 50, 3))]
    one = tracker()
    read(one, *records)

    successor = tracker(end_offset=len(records), position=one.needed)
    read(successor, *records)
    assert successor.messages() == one.messages()
    assert successor.position == one.position


def test_a_marker_that_was_read_is_passed_over():
    """A fetch brings whole batches."""
    one = tracker(position=1)
    read(one, start(0, 7, NOW), start(1, 8, NOW))

    assert (one.messages(), one.position) == ([8], 2)


def test_counts_of_several_partitions_are_added():
    total = TrackerCounts(starts=1, lost=2)
    total.add(TrackerCounts(starts=3, odd=1))

    assert total == TrackerCounts(starts=4, lost=2, odd=1)


def test_what_ended_takes_no_room():
    one = tracker()
    for first in range(0, 100_000, 100):
        read(
            one,
            *(start(2 * first + index, first + index, NOW + first, 10**9) for index in range(100)),
            *(end(2 * first + 100 + index, first + index, NOW + first) for index in range(100)),
        )

    assert len(one._due) < 2_000
    assert one.needed == one.position == 200_000


def test_starts_that_there_is_no_room_for_are_read_again_when_there_is():
    one = PartitionTracker(0, 0, 0, open_max=2)
    log = [*(start(number, number, NOW) for number in range(4)), end(4, 0, NOW + 1), end(5, 3, NOW + 1)]
    one.read(log, NOW + 1)
    one.passed(6)
    one.looked(NOW + 1)

    assert (one.open, one.full, one.needed, one.position) == (1, False, 1, 2), "it goes back to the third one"
    one.looked(NOW + 5_000)
    assert one.due(10) == [], "the ends of what was passed over are not read yet"
    read(one, *log)
    one.passed(6)
    assert one.messages() == [1, 2]
    assert one.needed == 1


@pytest.mark.parametrize("seed", range(20))
def test_with_little_room_each_message_that_is_not_ended_in_time_is_sent_again_once(seed):
    chance = random.Random(seed)
    ends = {message: chance.random() < 0.7 for message in range(40)}
    log: list[Record] = []
    ended, early, due = set[int](), set[int](), dict[int, int]()
    for message in range(40):
        after = chance.choice((5, 60))
        due[message] = NOW + len(log) + after
        log.append(start(len(log), message, NOW + len(log), after))
        for older in chance.sample(range(message + 1), min(3, message + 1)):
            if ends.pop(older, False):
                ended.add(older)
                if NOW + len(log) < due[older]:
                    early.add(older)
                log.append(end(len(log), older, NOW + len(log)))

    for open_max in (1_000, 3):
        sent = sent_again(list(log), open_max)
        assert sorted(sent) == sorted(set(sent))
        assert set(range(40)) - ended <= set(sent) <= set(range(40)) - early


def sent_again(log, open_max):
    """Read the log piece by piece, write an end marker of what is due; in which order that was."""
    one = PartitionTracker(0, 0, 0, open_max=open_max)
    sent: list[int] = []
    now = NOW
    for _ in range(2_000):
        piece = log[one.position : one.position + 5]
        now = max(now + 1, *(record.timestamp for record in piece)) if piece else now + 10
        one.read(piece, now)
        one.passed(piece[-1].offset + 1 if piece else one.position)
        if one.position == len(log):
            one.looked(now)
        for message in one.due(10):
            log.append(end(len(log), message, now))
            one.ended(message)
            sent.append(message)
        if not one.open and not one.full and one.position == len(log):
            return sent
    raise AssertionError("it never ends")


class TrackerModel(RuleBasedStateMachine):
    """Markers come, time passes, messages are sent on or cannot be: the tracker against sets and sorting."""

    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.offset = 0
        self.open: dict[int, tuple[int, int]] = {}
        self.sending: set[int] = set()
        self.time = None
        self.seen = self.looked = -1

    @initialize(there=st.integers(0, 4))
    def begin(self, there: int) -> None:
        self.there = there
        self.tracker = PartitionTracker(0, 0, there)

    def _read(self, message: int, after: int | None, whole: bool) -> None:
        record = end(self.offset, message, self.now) if after is None else start(self.offset, message, self.now, after)
        self.tracker.read([record], self.now)
        self.time = self.seen = self.now
        if after is None:
            self.open.pop(message, None)
            self.sending.discard(message)
        elif message not in self.sending:
            self.open.pop(message, None)
            self.open[message] = (self.offset, self.now + after)
        self.offset += 1
        if whole:
            self.look()

    @rule(message=st.integers(0, 6), after=st.integers(0, 3_000), whole=st.booleans())
    def start_marker(self, message: int, after: int, whole: bool) -> None:
        self._read(message, after, whole)

    @rule(message=st.integers(0, 6), whole=st.booleans())
    def end_marker(self, message: int, whole: bool) -> None:
        self._read(message, None, whole)

    @rule()
    def foreign(self) -> None:
        self.tracker.read([start(self.offset, 1, self.now, partition=3)], self.now)
        self.offset += 1

    @rule(ms=st.integers(1, 2_500))
    def time_passes(self, ms: int) -> None:
        self.now += ms

    @rule()
    def look(self) -> None:
        self.tracker.looked(self.now)
        self.looked = self.now

    @rule(limit=st.integers(1, 4))
    def take_due(self, limit: int) -> None:
        found = self.tracker.due(limit)
        clock = self._clock()
        due = {
            message
            for message, (_, due_ms) in self.open.items()
            if message not in self.sending and clock is not None and due_ms <= clock and self.offset >= self.there
        }
        assert set(found) <= due
        assert len(found) == min(limit, len(due))
        assert found == sorted(found)
        self.sending.update(found)

    def _clock(self) -> int | None:
        if self.time is None:
            return None
        return self.looked if self.looked > self.seen else self.time

    @precondition(lambda self: self.sending)
    @rule(data=st.data())
    def sent(self, data: st.DataObject) -> None:
        message = data.draw(st.sampled_from(sorted(self.sending)))
        self.tracker.ended(message)
        self.sending.discard(message)
        del self.open[message]

    @precondition(lambda self: self.sending)
    @rule(data=st.data())
    def not_sent(self, data: st.DataObject) -> None:
        message = data.draw(st.sampled_from(sorted(self.sending)))
        self.sending.discard(message)
        self.tracker.failed(message)
        marker, _ = self.open[message]
        self.open[message] = (marker, self.tracker._open[message].due_ms)

    @invariant()
    def the_same_is_open(self) -> None:
        assert self.tracker.messages() == sorted(self.open)
        assert all(self.tracker.wanted(message) == (message in self.sending) for message in self.open)

    @invariant()
    def the_oldest_open_marker_is_needed(self) -> None:
        markers = [marker for marker, _ in self.open.values()]
        assert self.tracker.needed == min(markers, default=self.offset)


TestTrackerModel = pytest.mark.slow(TrackerModel.TestCase)
TrackerModel.TestCase.settings = settings(
    max_examples=200, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
