"""Which records of a chunk may be begun when there is an order, and what becomes of those behind them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from flowshare.agents.feed.acknowledgements import RELEASE
from flowshare.agents.feed.reader import Reader
from flowshare.agents.handler.chunk import Chunk
from flowshare.agents.run.stats import AgentStats
from flowshare.client.session.ranges import Fetched
from flowshare.protocol.batches import BatchBuilder
from flowshare.protocol.decoding import decode_raw
from flowshare.protocol.key_hash import KeyOrder
from flowshare.share.types import AckRange, AcquiredRange
from tests.agents.test_feeder_parts import TP, Ledger
from tests.batches import place


def batch(keys: str, first: int = 0) -> bytes:
    """A record for each letter, which is its key; a dash has none."""
    builder = BatchBuilder()
    for letter in keys:
        builder.add(None if letter == "-" else letter.encode(), b"%s" % letter.encode(), (), timestamp_ms=1)
    return place(builder.build(), first)


def chunk_of(keys: str) -> Chunk:
    decoded = decode_raw(batch(keys), [AcquiredRange(0, len(keys) - 1, 1)])
    chunk = Chunk("agent", "in", TP, decoded.runs, decode=None, deadline=30.0, generation=0, arrived=0.0)
    chunk.keep_order(KeyOrder())
    return chunk


def startable(chunk: Chunk) -> list[int]:
    return [record.offset for record in reversed(chunk.records)]


def held(keys: str, begun: int = 0) -> tuple[Ledger, Chunk]:
    """A chunk that is held; so many of its records are begun."""
    ledger, chunk = Ledger(), chunk_of(keys)
    ledger.held.add(chunk)
    for _ in range(begun):
        chunk.records.pop()
    return ledger, chunk


def accept(chunk: Chunk, offset: int) -> None:
    """A handler ends well."""
    chunk.chains.go_on(offset, chunk.records)


def test_of_each_key_the_first_record_may_be_begun_and_of_no_key_all():
    chunk = chunk_of("ab-aa-b")

    assert startable(chunk) == [0, 1, 2, 5]
    assert (chunk.waiting, chunk.remaining, chunk.unfinished()) == (7, 7, [0, 1, 2, 3, 4, 5, 6])
    assert chunk.chains.waiting == 3


def test_a_chunk_in_which_each_key_comes_once_has_nothing_to_order():
    chunk = chunk_of("abc-")

    assert chunk.chains is None
    assert startable(chunk) == [0, 1, 2, 3]


def test_the_next_record_of_a_key_is_begun_first_when_the_one_before_is_accepted():
    _, chunk = held("abaa", begun=1)

    accept(chunk, 0)
    assert startable(chunk) == [2, 1]
    chunk.records.pop()
    accept(chunk, 2)

    assert startable(chunk) == [3, 1]
    assert chunk.chains.waiting == 0


def test_what_waits_behind_a_record_goes_back_when_it_is_decided_in_another_way():
    ledger, chunk = held("abaab", begun=1)

    ledger.held.decided(chunk, [0])

    assert ledger.releases() == [(2, 3)]
    assert startable(chunk) == [1]
    assert (ledger.held.outstanding, ledger.held.followers, ledger.held.buffered) == (2, 1, 2)


def test_what_waits_is_not_begun_before_the_record_before_it_is_decided():
    ledger, chunk = held("aab", begun=1)

    assert startable(chunk) == [2]
    assert ledger.releases() == []


def test_heads_that_nobody_began_go_back_with_all_behind_them_and_what_runs_stays_alone():
    ledger, chunk = held("abab-a", begun=1)

    ledger.held.give_back()

    assert ledger.releases() == [(1, 5)]
    assert (chunk.unfinished(), chunk.waiting, ledger.held.followers) == ([0], 0, 0)
    accept(chunk, 0)
    ledger.held.decided(chunk, [0])
    assert (startable(chunk), ledger.held.outstanding, ledger.held.live) == ([], 0, {})


def test_a_record_that_follows_a_running_one_goes_back_alone_when_it_was_just_about_to_begin():
    ledger, chunk = held("aaa", begun=1)
    accept(chunk, 0)

    ledger.held.give_back()

    assert ledger.releases() == [(1, 2)]


def test_the_session_that_closes_gives_back_what_nobody_began_in_order():
    ledger, chunk = held("abab", begun=1)
    accept(chunk, 0)

    assert ledger.held.take_unrun() == {TP: [(1, 3)]}


def test_a_lost_record_that_runs_takes_those_behind_it_out():
    ledger, chunk = held("abaab", begun=1)

    ledger.held.lose(chunk, [0])

    assert ledger.releases() == [(2, 3)]
    assert startable(chunk) == [1]
    accept(chunk, 0)
    assert startable(chunk) == [1]
    assert (ledger.held.outstanding, ledger.stats.lock_lost) == (3, 0)


def test_a_lost_record_that_waits_is_dropped_and_what_is_behind_it_goes_back():
    ledger, chunk = held("aaabab", begun=1)

    ledger.held.lose(chunk, [2, 3])

    assert ledger.releases() == [(4, 5)]
    assert ledger.stats.lock_lost == 2
    accept(chunk, 0)
    assert startable(chunk) == [1]
    chunk.records.pop()
    accept(chunk, 1)
    assert startable(chunk) == []


def test_a_lost_head_that_nobody_began_takes_those_behind_it_out():
    ledger, chunk = held("aba")

    ledger.held.lose(chunk, [0])

    assert ledger.releases() == [(2, 2)]
    assert (startable(chunk), ledger.fed) == ([1], [chunk])


def test_the_next_of_a_key_that_is_about_to_begin_goes_back_when_the_one_before_is_lost_after_all():
    ledger, chunk = held("ab-aa", begun=1)
    accept(chunk, 0)

    ledger.held.lose(chunk, [0])

    assert ledger.releases() == [(3, 4)]
    assert startable(chunk) == [1, 2]


def test_after_another_connection_nothing_of_a_chain_is_held_or_given_back():
    ledger, chunk = held("aaab", begun=1)

    ledger.held.look(SimpleNamespace(generation=1, holds=lambda tp, generation: generation == 1))

    assert (startable(chunk), ledger.releases(), ledger.held.followers) == ([], [], 0)
    assert ledger.held.outstanding == 1


def test_the_release_of_what_waits_is_in_one_request_with_the_record_before_it():
    ledger, chunk = held("aa", begun=1)

    ledger.held.decided(chunk, [0])
    ledger.acks.acknowledge((TP, 0), AckRange(0, 0, RELEASE, counter="retried"))

    [pending] = ledger.acks._pending.values()
    assert sorted((ack.first, ack.unrun) for ack in pending.others) == [(0, False), (1, True)]


# --- reading ----------------------------------------------------------------------------------------------------


class Reading:
    """A reader of an agent with an order; `max_attempts` is 2."""

    def __init__(self) -> None:
        self.ledger, self.stats = Ledger(), AgentStats()
        self.later: list[tuple] = []
        self.fence: tuple[int, int] | None = (1, 0)
        agent = SimpleNamespace(
            name="agent",
            group="g",
            options=SimpleNamespace(
                key_order="key", exactly_once=False, at_most_once=False, retry=SimpleNamespace(max_attempts=2)
            ),
            decoder=lambda topic: None,
            key_decoder=lambda topic: None,
        )
        self.reader = Reader(
            agent,
            acks=self.ledger.acks,
            completion=SimpleNamespace(complete=None),
            waiting=None,
            stats=self.stats,
            service_loop=SimpleNamespace(call_soon=lambda *call: self.later.append(call)),
            observed=False,
            unreadable=lambda *_: None,
        )

    def read(self, records: bytes, *acquired: AcquiredRange, bytes_max: int = 1 << 20) -> list[Chunk]:
        part = Fetched("in", *TP, records, acquired, 30.0, 0, self.fence)
        return self.reader.chunks(part, 0.0, bytes_max)


def test_records_are_read_before_anybody_may_begin_one():
    [chunk] = Reading().read(batch("aab"), AcquiredRange(0, 2, 1))

    assert startable(chunk) == [0, 2]
    assert chunk.chains.waiting == 1


@pytest.mark.asyncio
async def test_what_would_be_too_much_at_once_goes_back_instead_of_coming_in_another_chunk():
    reading = Reading()

    [chunk] = reading.read(batch("aab") + batch("a", 3), AcquiredRange(0, 3, 1), bytes_max=-5)

    assert startable(chunk) == [0, 2]
    assert reading.ledger.releases() == [(3, 3)]


@pytest.mark.asyncio
async def test_what_a_group_without_an_order_hands_out_goes_back_unrun_and_is_told_once(caplog):
    reading = Reading()
    reading.fence = None

    chunks = [*reading.read(batch("aab"), AcquiredRange(0, 2, 1)), *reading.read(batch("aab"), AcquiredRange(0, 2, 1))]

    assert chunks == []
    assert reading.ledger.releases() == [(0, 2), (0, 2)]
    assert [record.message.count("keeps no order") for record in caplog.records] == [1]


def test_nothing_follows_a_record_whose_attempts_are_used_up_and_it_becomes_a_dead_letter():
    reading = Reading()

    [chunk] = reading.read(batch("aba"), AcquiredRange(0, 0, 3), AcquiredRange(1, 2, 1))

    assert startable(chunk) == [1]
    [(_, _, dead, _)] = reading.later
    assert (dead.offset, reading.stats.redelivered) == (0, 1)
    assert [record.offset for record in chunk.chains.behind([0])] == [2]


def test_a_record_whose_attempts_are_used_up_waits_until_it_is_the_first_of_its_key():
    reading = Reading()
    [chunk] = reading.read(batch("aaa"), AcquiredRange(0, 0, 1), AcquiredRange(1, 1, 3), AcquiredRange(2, 2, 1))
    chunk.records.pop()

    accept(chunk, 0)

    assert (startable(chunk), reading.later, reading.stats.redelivered) == ([], [], 1)
    assert sorted(record.offset for record in chunk.chains.behind([0])) == [1, 2]


def test_in_an_order_acknowledgements_say_the_attempt_that_they_are_of() -> None:
    ranges = [AcquiredRange(0, 1, 1), AcquiredRange(2, 2, 4), AcquiredRange(3, 3, 1)]
    decoded = decode_raw(batch("abcd"), ranges)

    def of(fence: tuple[int, int] | None) -> list[tuple[int, int, int]]:
        return Chunk(
            "agent", "in", TP, decoded.runs, decode=None, deadline=30.0, generation=0, arrived=0.0, fence=fence
        ).counted_runs([0, 1, 2, 3])

    assert of((7, 0)) == [(0, 1, 1), (2, 2, 4), (3, 3, 1)]
    assert of(None) == [(0, 3, 0)]


def again(keys: str, first: int, last: int, attempt: int) -> Chunk:
    """Return a chunk that delivers offsets `first` to `last` of a batch once more."""
    decoded = decode_raw(batch(keys), [AcquiredRange(first, last, attempt)])
    return Chunk(
        "agent", "in", TP, decoded.runs, decode=None, deadline=30.0, generation=0, arrived=0.0, fence=(7, attempt)
    )


def test_what_is_given_again_is_not_begun_as_it_was_given_before_nor_what_stands_behind_it() -> None:
    ledger, earlier = held("abaac", begun=1)

    ledger.held.add(again("abaac", 0, 1, attempt=2))

    assert (sorted(earlier.lost), startable(earlier)) == ([0, 1], [4])
    assert ledger.releases() == [(2, 3)]


def test_a_first_delivery_takes_nothing_away_from_what_is_held() -> None:
    ledger, earlier = held("abaac", begun=1)

    ledger.held.add(again("abaac", 0, 1, attempt=1))

    assert not earlier.lost
