"""Parked keys: the table of `parking`, step by step, and seeded replays that fail, come late or come twice."""

from __future__ import annotations

import random
from uuid import UUID

import pytest

from flowshare.share.parking import KEYS_MAX, OVER, Mark, ParkedKey, Parking, Place, TooManyParked

A, B = b"a", b"b"


def parking(*keys: bytes, last: int = 5) -> Parking:
    """These keys are parked: record 3 became a letter, and so did all of the key up to `last`."""
    return Parking(hash, {key: ParkedKey(first=3, done=2, last=last) for key in keys})


def replayed(parked: Parking) -> int:
    """Begin a replay of key A; its version."""
    parked.apply([parked.replay(A)])
    return parked.get(A).version


def test_a_key_is_parked_by_the_record_that_became_a_dead_letter():
    parked = Parking(hash)
    parked.apply(parked.rejected(A, 7, None))

    assert parked.get(A) == ParkedKey(first=7, done=6, last=7)
    assert parked.hashes == {hash(A)}


def test_parking_many_keys_looks_at_each_of_them_once():
    looked = []

    def hash_of(key: bytes) -> int:
        looked.append(key)
        return hash(key)

    parked = Parking(hash_of)
    for number in range(500):
        parked.apply(parked.rejected(b"%d" % number, number, None))

    assert len(looked) == 500
    assert len(parked.hashes) == 500


def test_a_key_that_is_let_go_on_leaves_another_one_with_its_hash_parked():
    parked = Parking(lambda _: 7, {A: ParkedKey(3, 2, 5), B: ParkedKey(4, 3, 4)})
    parked.apply([(A, None)])
    assert parked.hashes == {7}
    parked.apply([(B, None)])
    assert not parked.hashes


def test_what_comes_after_it_follows_and_other_keys_go_on():
    parked = parking(A)

    assert parked.judge(A, None) is Place.FOLLOWS
    assert parked.judge(B, None) is Place.FREE


def test_each_letter_that_follows_is_the_last_one_then():
    parked = parking(A)
    parked.apply(parked.rejected(A, 9, None))

    assert parked.get(A).last == 9


def test_a_record_of_the_last_replay_is_run_and_settles_its_original():
    parked = parking(A)
    mark = Mark(replayed(parked), 3, 3, 2)
    place = parked.judge(A, mark)
    parked.apply([parked.taken(A, 20, mark)])
    parked.apply(parked.settled(18, 22))

    assert place is Place.REPLAYED
    assert (parked.get(A).done, parked.get(A).flying) == (3, -1)


def test_the_last_record_of_a_replay_lets_the_key_go_on():
    parked = parking(A)
    mark = Mark(replayed(parked), 4, 5, 2)
    parked.apply([parked.taken(A, 20, mark)])
    parked.apply(parked.settled(20, 20))

    assert (len(parked), parked.hashes, parked.settled(20, 20)) == (0, set(), [])


def test_what_followed_meanwhile_keeps_the_key_parked():
    parked = parking(A)
    mark = Mark(replayed(parked), 4, 5, 2)
    parked.apply(parked.rejected(A, 9, None))
    parked.apply([parked.taken(A, 20, mark)])
    parked.apply(parked.settled(20, 20))

    assert (parked.get(A).done, parked.get(A).last) == (5, 9)


def test_a_replayed_record_that_fails_ends_the_replay_and_those_behind_it_follow():
    parked = parking(A)
    version = replayed(parked)
    parked.apply([parked.taken(A, 20, Mark(version, 3, 3, 2))])
    parked.apply(parked.rejected(A, 20, Mark(version, 3, 3, 2)))
    behind = parked.judge(A, Mark(version, 4, 5, 3))
    parked.apply(parked.rejected(A, 21, Mark(version, 4, 5, 3)))

    assert behind is Place.FOLLOWS
    assert parked.get(A) == ParkedKey(first=3, done=2, last=5, version=OVER)


def test_a_replayed_record_whose_predecessor_never_came_is_not_run_and_the_key_stays_parked():
    parked = parking(A)
    version = replayed(parked)

    assert parked.judge(A, Mark(version, 4, 5, 3)) is Place.SETTLED
    assert parked.judge(A, Mark(version, 3, 3, 2)) is Place.REPLAYED
    assert parked.get(A).last == 5


def test_a_record_of_a_replay_that_another_one_overtook_is_passed_over():
    parked = parking(A)
    first = replayed(parked)
    parked.apply([parked.taken(A, 20, Mark(first, 3, 3, 2))])
    parked.apply(parked.settled(20, 20))
    second = replayed(parked)

    assert second > first
    assert parked.judge(A, Mark(first, 4, 5, 3)) is Place.SETTLED
    assert parked.judge(A, Mark(second, 4, 5, 3)) is Place.REPLAYED
    assert parked.judge(A, Mark(second, 3, 3, 2)) is Place.SETTLED
    assert parked.judge(B, Mark(first, 3, 3, 2)) is Place.SETTLED


def test_versions_rise_over_keys_and_loads():
    parked = parking(A, B)
    first = replayed(parked)
    parked.apply([parked.replay(B)])
    second = replayed(parked)
    parked = Parking(hash, dict(parked.items()), generation=1)

    assert first < second < replayed(parked)


def test_no_more_keys_are_parked_than_may_be_and_those_that_are_go_on_to_follow():
    parked = Parking(hash, {b"%d" % number: ParkedKey(0, -1, 0) for number in range(KEYS_MAX)})

    with pytest.raises(TooManyParked):
        parked.rejected(A, 5, None)
    assert parked.rejected(b"7", 5, None) == [(b"7", ParkedKey(0, -1, 5))]


def test_what_was_in_flight_is_known_after_a_reload():
    parked = parking(A)
    parked.apply([parked.taken(A, 20, Mark(replayed(parked), 3, 3, 2))])

    again = Parking(hash, dict(parked.items()))

    assert [(key, one.done) for key, one in again.settled(20, 20)] == [(A, 3)]


TOPIC = UUID(int=7)
HERE = b"%s-1" % TOPIC.hex.encode()


@pytest.mark.parametrize(
    "value",
    [
        b"%d 2 3 %s g" % (2**63, HERE),
        b"1 2 %d %s g" % (2**63, HERE),
        b"1 2 %s %s g" % (b"9" * 5_000, HERE),
        None,
        b"",
        b"1",
        b"1 2 3",
        b"1 2 3 g",
        b"1 2 3 %s" % HERE,
        b"x 2 3 %s g" % HERE,
        b"1 2 3 %s h" % HERE,
        b"0 2 3 %s g" % HERE,
        b"1 3 2 %s g" % HERE,
        b"1 -2 3 %s g" % HERE,
        b"\xff 2 3 %s g" % HERE,
    ],
)
def test_a_header_that_is_no_mark_of_the_group_is_none(value):
    assert Mark.of(value, "g", TOPIC, 1) is None


def test_a_mark_comes_back():
    value = Mark(7, 2, 3, 1).encode("g with spaces", TOPIC, 1)

    assert Mark.of(value, "g with spaces", TOPIC, 1) == Mark(7, 2, 3, 1)


def test_a_mark_that_was_copied_to_another_topic_or_partition_is_none():
    value = Mark(7, 2, 3, 1).encode("g", TOPIC, 1)

    assert Mark.of(value, "g", UUID(int=8), 1) is None
    assert Mark.of(value, "g", TOPIC, 2) is None


class World:
    """One key's records in a log, its letters, and a consumer that takes them one at a time as the core does."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.parked = Parking(hash)
        self.log: list[tuple[int, Mark | None]] = []
        """Original and mark of each record."""
        self.at = 0
        self.letters: dict[int, int] = {}
        """Original -> how often its letter was written."""
        self.ran: list[int] = []
        self.accepted: list[int] = []
        self.generation = 1

    def produce(self) -> None:
        self.log.append((len(self.log), None))

    def take(self, *, fails: float) -> None:
        if self.at == len(self.log):
            return
        original, mark = self.log[self.at]
        offset, self.at = self.at, self.at + 1
        place = self.parked.judge(A, mark)
        if place is Place.SETTLED:
            return
        if place is Place.FOLLOWS:
            assert mark is None or self.parked.get(A).version == OVER, "a letter of what a newer replay sends"
            self.letters[original] = self.letters.get(original, 0) + 1
            self.parked.apply(self.parked.rejected(A, offset, mark))
            return
        if place is Place.REPLAYED:
            assert mark is not None
            self.parked.apply([self.parked.taken(A, offset, mark)])
        self.ran.append(original)
        if self.dice.random() < fails:
            self.letters[original] = self.letters.get(original, 0) + 1
            self.parked.apply(self.parked.rejected(A, offset, mark))
        else:
            self.accepted.append(original)
            self.parked.apply(self.parked.settled(offset, offset))
        self.generation += 1
        self.parked = Parking(hash, dict(self.parked.items()), generation=self.generation)  # a reload changes nothing

    def replay(self) -> None:
        """As the command: begin, read the letters, send them; it may die in between, fail to send some, or send them
        twice."""
        if self.parked.get(A) is None:
            return
        self.parked.apply([self.parked.replay(A)])
        begun = self.parked.get(A)
        wanted = sorted(one for one in self.letters if begun.done < one <= begun.last)
        lost = self.dice.choice([0.0, 0.0, 0.2])
        for _ in range(self.dice.choice([1, 1, 1, 2])):
            after = begun.done
            for original in wanted[: self.dice.choice([len(wanted), len(wanted), 1])]:
                up_to = begun.last if original == wanted[-1] else original
                if self.dice.random() >= lost:
                    self.log.append((original, Mark(begun.version, original, up_to, after)))
                after = original


@pytest.mark.parametrize("seed", range(60))
def test_each_record_is_accepted_once_and_in_order_whatever_fails_and_however_often_it_is_replayed(seed):
    world = World(seed)
    for _ in range(120):
        world.dice.choice([world.produce, lambda: world.take(fails=0.2), lambda: world.take(fails=0.2), world.replay])()
    for _ in range(100):
        while world.at < len(world.log):
            world.take(fails=0.0)
        world.replay()
    while world.at < len(world.log):
        world.take(fails=0.0)

    produced = [original for original, mark in world.log if mark is None]
    assert world.accepted == produced
    assert world.parked.get(A) is None


def test_a_cut_log_ends_the_replay_whose_record_was_lost_with_it() -> None:
    parking = Parking(hash_of=hash)
    parking.apply([(b"a", ParkedKey(0, -1, 1)), (b"b", ParkedKey(3, 2, 3))])
    parking.apply([parking.replay(b"a"), parking.replay(b"b")])
    for key, offset in ((b"a", 8), (b"b", 5)):
        version = parking.get(key).version
        parking.apply([parking.taken(key, offset, Mark(version, 0, 1, -1))])

    changes = parking.cut(6)
    parking.apply(changes)

    assert [key for key, _ in changes] == [b"a"]
    assert parking.settled(8, 8) == []
    assert parking.judge(b"a", Mark(version, 1, 1, 0)) is not Place.REPLAYED
    assert [key for key, _ in parking.settled(5, 5)] == [b"b"]
