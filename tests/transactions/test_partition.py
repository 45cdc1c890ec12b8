"""The producers of a partition against the obvious model, through placing, confirming, failing and reading again."""

from __future__ import annotations

import random
from collections import deque

import pytest

from flowshare.core_errors import CoreError, TransactionLimit
from flowshare.transactions.partition import PartitionProducers, ProducerChange
from flowshare.transactions.producers import SEQUENCES, ProducerBatch
from flowshare.transactions.stored import decode_aborted, decode_producer, encode_aborted, encode_producer
from tests.transactions.model import Entry, Model

PRODUCERS = (1, 2, 3)


class Run:
    """One random history, told by its seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.model = Model()
        self.real = PartitionProducers()
        self.stored: dict[int, bytes] = {}
        self.stored_aborted: dict[int, bytes] = {}
        self.under_way: deque[tuple[ProducerChange, int]] = deque()

    def batch(self) -> ProducerBatch:
        number = self.chance.choice(PRODUCERS)
        epoch = self.model.epoch(number) or 0
        recent = self.model.recent(number)
        kind = self.chance.random()
        if kind < 0.2 and recent:
            # Also older ones than are recognised.
            mine = self.model.of(number)
            again = self.chance.choice([entry for entry in mine if entry.epoch == epoch and entry.committed is None])
            count = (again.sequences[1] - again.sequences[0]) % SEQUENCES + 1
            return ProducerBatch(number, epoch, again.sequences[0], count, again.transactional)
        following = (recent[-1].sequences[1] + 1) % SEQUENCES if recent else 0
        if self.model.epoch(number) is None and self.chance.random() < 0.5:
            following = SEQUENCES - 2  # near the turn; who is not known may start anywhere
        if kind < 0.3:
            following = (following + self.chance.choice((-1, 1, 7))) % SEQUENCES
        if kind > 0.9:
            epoch, following = epoch + self.chance.choice((-1, 1)), self.chance.choice((0, following))
        opened = number in self.model.open_since(self.model.log)
        transactional = opened if self.chance.random() < 0.8 else self.chance.random() < 0.5
        return ProducerBatch(number, max(epoch, 0), following, self.chance.randint(1, 3), transactional)

    def place(self) -> None:
        batch = self.batch()
        again = self.model.duplicate(batch)
        found = self.real.duplicate(batch)
        assert (found and (found.base_offset, found.last_offset)) == (again and (again.base, again.last))
        if again is not None:
            return
        refused = self.model.refusal(batch)
        base = self.model.end
        if refused is not None:
            with pytest.raises(CoreError) as caught:
                self.real.place(batch, base, 0)
            assert caught.type.__name__ == refused
            return
        change = self.real.place(batch, base, 0)
        sequences = (batch.sequence, batch.last_sequence)
        last = base + batch.record_count - 1
        self.model.log.append(Entry(batch.producer_id, batch.epoch, base, last, sequences, batch.transactional))
        self.under_way.append((change, 1))

    def mark(self) -> None:
        number, committed = self.chance.choice(PRODUCERS), self.chance.random() < 0.5
        known = self.model.epoch(number)
        epoch = (known or 0) + self.chance.choice((0, 0, 0, 1, -1))
        base = self.model.end
        try:
            change = self.real.mark(number, epoch, base, 0, committed=committed)
        except CoreError:
            assert known is not None
            assert epoch < known
            return
        assert known is None or epoch >= known
        self.model.log.append(Entry(number, epoch, base, base, committed=committed))
        self.under_way.append((change, 1))

    def confirm(self) -> None:
        if self.under_way:
            change, count = self.under_way.popleft()
            self.real.confirm(change)
            self.model.confirmed += count
            for number, _, after in change.steps:
                assert after is not None
                self.stored[number] = encode_producer(after)
            if change.aborted is not None:
                self.stored_aborted[change.aborted.last] = encode_aborted(change.aborted)

    def fail(self) -> None:
        self.real.roll_back()
        del self.model.log[self.model.confirmed :]
        self.under_way.clear()

    def reopen(self) -> None:
        self.fail()
        self.real = PartitionProducers(
            ((number, decode_producer(value)) for number, value in self.stored.items()),
            (decode_aborted(last, value) for last, value in sorted(self.stored_aborted.items())),
        )

    def look(self) -> None:
        high_watermark = self.model.log[self.model.confirmed - 1].last + 1 if self.model.confirmed else 0
        assert self.real.last_stable(0, high_watermark) == self.model.last_stable(high_watermark)
        first, end = sorted(self.chance.sample(range(max(self.model.end, 1) + 1), 2))
        spans = self.real.aborted.between(first, end)
        assert all(span.first < end and span.last >= first for span in spans)
        told = {
            (entry.base, entry.last)
            for entry in self.model.log[: self.model.confirmed]
            for span in spans
            if entry.committed is None
            and entry.transactional
            and entry.producer_id == span.producer_id
            and span.first <= entry.base <= span.last
        }
        inside = {(low, high) for low, high in self.model.aborted() if low < end and high >= first}
        assert {batch for batch in told if batch[0] < end and batch[1] >= first} == inside


@pytest.mark.parametrize("seed", range(60))
def test_producers_agree_with_a_log_that_is_read_from_its_start(seed):
    run = Run(seed)

    for _ in range(120):
        step = run.chance.choices((run.place, run.mark, run.confirm, run.fail, run.reopen), (60, 15, 60, 6, 2))[0]
        step()
        run.look()


def test_a_producer_that_was_idle_too_long_is_forgotten_and_may_start_anywhere():
    producers = PartitionProducers()
    for number in (1, 2):
        producers.confirm(producers.place(ProducerBatch(number, 0, 0, 1, False), number, 1000))

    change = producers.place(ProducerBatch(2, 0, 77, 1, False), 3, 1500, expiry_ms=500)

    assert {number: after is None for number, _, after in change.steps} == {1: True, 2: False}
    assert set(producers.view) == {2}
    producers.roll_back()
    assert set(producers.view) == {1, 2}


def test_a_producer_with_an_open_transaction_is_never_forgotten():
    producers = PartitionProducers()
    producers.confirm(producers.place(ProducerBatch(1, 0, 0, 1, True), 0, 0))

    producers.confirm(producers.place(ProducerBatch(2, 0, 0, 1, False), 1, 10**9, expiry_ms=1))

    assert set(producers.view) == {1, 2}
    assert producers.last_stable(0, 2) == 0


def test_the_longest_idle_producer_makes_room_for_a_new_one():
    producers = PartitionProducers(producers_max=2)
    for number in (1, 2):
        producers.confirm(producers.place(ProducerBatch(number, 0, 0, 1, False), number, number))
    producers.confirm(producers.place(ProducerBatch(1, 0, 1, 1, False), 3, 3))

    producers.confirm(producers.place(ProducerBatch(9, 0, 0, 1, True), 4, 4))

    assert set(producers.view) == {1, 9}


def test_with_nothing_but_open_transactions_no_producer_more_is_taken():
    producers = PartitionProducers(producers_max=1)
    producers.confirm(producers.place(ProducerBatch(1, 0, 0, 1, True), 0, 0))

    with pytest.raises(TransactionLimit, match="end some"):
        producers.place(ProducerBatch(2, 0, 0, 1, True), 1, 0)

    assert set(producers.view) == {1}


def test_the_last_stable_offset_follows_the_log_start():
    producers = PartitionProducers()
    producers.confirm(producers.place(ProducerBatch(1, 0, 0, 5, True), 0, 0))

    assert producers.last_stable(3, 5) == 3


def test_aborted_transactions_before_the_log_start_are_forgotten():
    producers = PartitionProducers()
    for offset in (0, 10, 20):
        producers.confirm(producers.place(ProducerBatch(1, 0, offset // 10 * 9, 9, True), offset, 0))
        producers.confirm(producers.mark(1, 0, offset + 9, 0, committed=False))

    producers.aborted.cut(19)

    assert [entry.first for entry in producers.aborted.between(0, 100)] == [10, 20]


def test_a_marker_that_failed_leaves_its_transaction_open_for_those_that_end_before_it():
    producers = PartitionProducers()
    for number in (1, 2):
        producers.confirm(producers.place(ProducerBatch(number, 0, 0, 1, True), number - 1, 0))
    producers.mark(1, 0, 2, 0, committed=False)
    producers.roll_back()

    for number in (2, 1):
        producers.confirm(producers.mark(number, 0, 4 - number, 0, committed=False))

    assert {entry.producer_id for entry in producers.aborted.between(0, 3)} == {1, 2}
