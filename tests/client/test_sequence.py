"""The idempotent producer's core against logs that do as Kafka's: tables, then a simulation with every kind of loss.

`Log` is the rule book of brokers (the last five batches of an epoch are known again); network and clients are drawn
from a seed. Checked at the end: no record is in the log twice, none that was confirmed is missing, and order holds.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from flowshare.client.producer.sequence import EPOCH_MAX, IN_FLIGHT_MAX, SEQUENCES, PartitionSequence
from flowshare.core_errors import InvalidProducerEpoch, OutOfOrderSequence
from flowshare.transactions import producers
from tests.sim.faults import Faults
from tests.sim.seeds import play, seeds
from tests.sim.timeline import until_quiet

KINDS = ("cut", "late", "refuse", "large", "give")
SEEDS = seeds(300)


def begun(identity=(7, 0), **kwargs):
    sequence = PartitionSequence(**kwargs)
    sequence.begin(identity)
    return sequence


def running(count=2):
    """A partition with so many batches under way, of one record each, the first of which is number 1."""
    sequence = begun()
    sequence.confirmed(sequence.take_new("first", 1))
    return sequence, [sequence.take_new(str(number), 1) for number in range(1, count + 1)]


def numbers(sequence):
    return [(entry.batch, *entry.identity, entry.sequence) for entry in sequence.entries]


def test_the_first_batch_of_an_epoch_is_alone_and_then_five_are_under_way():
    sequence = begun()
    first = sequence.take_new("a", 3)
    assert not sequence.has_room

    sequence.confirmed(first)
    taken = []
    while sequence.has_room:
        taken.append(sequence.take_new("b", 2).sequence)

    assert taken == [3, 5, 7, 9, 11]
    assert len(taken) == IN_FLIGHT_MAX


def test_nothing_new_is_sent_five_batches_behind_one_without_an_answer_whatever_was_answered_since():
    sequence, (first, *others) = running(5)
    for entry in others:
        sequence.confirmed(entry)

    assert not sequence.has_room, "brokers would have forgotten the first one when it is sent again"
    sequence.confirmed(first)
    assert sequence.has_room


def test_nothing_is_sent_without_a_producer_id():
    assert not PartitionSequence().has_room


def test_what_is_lost_is_sent_again_as_it_was_one_at_a_time_and_nothing_new_before_it():
    sequence, (one, two) = running()
    sequence.lost(one)
    assert sequence.again is None
    assert not sequence.has_room
    sequence.out_of_step(two)

    assert sequence.take_again() is one
    assert sequence.again is None
    sequence.confirmed(one)
    assert sequence.take_again() is two
    assert numbers(sequence) == [("2", 7, 0, 2)]
    sequence.confirmed(two)
    assert sequence.has_room


def test_what_is_behind_a_refused_batch_gets_a_new_epoch():
    sequence, (one, two, three) = running(3)
    sequence.refused(one)
    sequence.out_of_step(two)
    sequence.out_of_step(three)

    assert numbers(sequence) == [("2", 7, 1, 0), ("3", 7, 1, 1)]
    assert sequence.take_again() is two


def test_what_is_in_doubt_behind_a_hole_keeps_its_numbers_until_an_answer_says_that_it_is_not_written():
    sequence, (one, two, three) = running(3)
    sequence.lost(two)
    sequence.refused(one)
    sequence.out_of_step(three)

    assert sequence.take_again() is two
    assert (two.identity, two.sequence) == ((7, 0), 2)
    sequence.out_of_step(two)

    assert numbers(sequence) == [("2", 7, 1, 0), ("3", 7, 1, 1)]


def test_a_log_that_lost_what_was_before_makes_a_new_epoch():
    sequence, (one, two) = running()
    sequence.out_of_step(one)
    assert sequence.identity == (7, 0), "the second one has no answer yet"
    sequence.out_of_step(two)

    assert numbers(sequence) == [("1", 7, 1, 0), ("2", 7, 1, 1)]


def test_a_batch_that_is_given_up_makes_a_new_epoch_for_the_next():
    sequence, (one,) = running(1)
    sequence.lost(one)
    sequence.give_up(one)

    assert sequence.has_room
    assert sequence.take_new("next", 4).identity == (7, 1)


def test_the_parts_of_a_batch_have_its_numbers_and_come_before_what_was_behind_it():
    sequence = begun()
    sequence.confirmed(sequence.take_new("first", 1))
    one, two = sequence.take_new("ab", 5), sequence.take_new("c", 1)
    sequence.split(one, (("a", 2), ("b", 3)))
    sequence.out_of_step(two)

    assert numbers(sequence) == [("a", 7, 0, 1), ("b", 7, 0, 3), ("c", 7, 0, 6)]


def test_who_is_fenced_or_has_no_epoch_left_asks_for_a_new_producer_id():
    fenced, (one,) = running(1)
    fenced.fenced(one)
    last = begun((7, EPOCH_MAX))
    last.refused(last.take_new("a", 1))

    for sequence in (fenced, last):
        assert sequence.identity is None
        assert sequence.again is None
        assert not sequence.has_room
        sequence.begin((8, 0))
    assert numbers(fenced) == [("1", 8, 0, 0)]


def test_sequences_go_round():
    sequence = begun()
    sequence._next = SEQUENCES - 2
    sequence.confirmed(sequence.take_new("a", 3))

    assert sequence.take_new("b", 1).sequence == 1


def test_a_transaction_with_a_hole_has_failed():
    sequence = begun(transactional=True)
    sequence.refused(sequence.take_new("a", 1))

    assert sequence.failed
    assert not sequence.has_room
    assert sequence.again is None


@pytest.mark.parametrize("end", ["refused", "out_of_step", "fenced"])
def test_what_never_left_is_sent_again_in_a_new_epoch_when_the_batch_before_it_made_a_hole(end):
    sequence, (one, two) = running()
    getattr(sequence, end)(one)
    sequence.lost(two, sent=False)

    if end == "fenced":
        assert sequence.identity is None
        sequence.begin((8, 0))
    first = sequence.take_again()
    assert first is (two if end == "refused" else one)
    assert first.sequence == 0


# --- simulation -----------------------------------------------------------------------------------------------------


class Log:
    """A partition's log: what is written, and what it knows of producers. Rules: `flowshare.transactions.producers`."""

    def __init__(self):
        self.values = []
        self.known = {}

    def append(self, sent):
        """Raises: InvalidProducerEpoch, OutOfOrderSequence."""
        batch = producers.ProducerBatch(*sent.identity, sent.sequence, len(sent.values), False)
        known = self.known.get(batch.producer_id)
        if producers.duplicate(known, batch) is None:
            producers.check(known, batch)
            self.known[batch.producer_id] = producers.follow(known, batch, len(self.values), 0)
            self.values += sent.values


@dataclass(frozen=True)
class Sent:
    """A request on its way, as bytes are: it says what its entry said when it left."""

    entry: object
    try_: int
    values: tuple
    identity: tuple
    sequence: int


@dataclass
class World:
    """One producer and one partition over a network that loses, delays and repeats in whatever way the seed says."""

    seed: int
    log: Log = field(default_factory=Log)

    def __post_init__(self):
        self.random = random.Random(self.seed)
        self.sequence = PartitionSequence()
        self.faults = Faults(self.random, **dict.fromkeys((*KINDS, "unsent"), (0.0, 0.05, 0.3)))
        self.ids = 0
        self.waiting = []
        self.requests = []
        self.answers = []
        self.zombies = []
        self.tries = {}
        self.confirmed, self.failed, self.in_time = [], [], True
        self.next_value = 0

    def hand_in(self):
        count = self.random.randint(1, 4)
        self.waiting.append(tuple(range(self.next_value, self.next_value + count)))
        self.next_value += count

    def send(self):
        sequence = self.sequence
        if sequence.identity is None:
            self.ids += 1
            sequence.begin((self.ids, self.random.choice((0, 0, EPOCH_MAX - 1))))
        entry = sequence.again
        if entry is not None and self.faults("give"):
            sequence.give_up(entry)
            self.failed += entry.batch
            return
        entry = sequence.take_again()
        if entry is None and self.waiting and sequence.has_room:
            batch = self.waiting.pop(0)
            entry = sequence.take_new(batch, len(batch))
        if entry is not None:
            number = self.tries[id(entry)] = self.tries.get(id(entry), 0) + 1
            self.requests.append(Sent(entry, number, entry.batch, entry.identity, entry.sequence))
        assert sequence.under_way <= IN_FLIGHT_MAX

    def reach(self):
        """The oldest request comes to the broker."""
        if self.requests:
            sent = self.requests.pop(0)
            self.answers.append((sent, self.broker(sent)))

    def broker(self, sent):
        if len(sent.values) > 1 and self.faults["large"] and sum(sent.values) % 3 == 0:
            return "large"
        if self.faults["refuse"] and sent.values[0] % 7 == 0:
            return "refused"
        try:
            self.log.append(sent)
        except OutOfOrderSequence:
            return "out_of_step"
        except InvalidProducerEpoch:
            return "fenced"
        return "confirmed"

    def answer(self):
        """A server of flowshare's own answers as soon as it can, in any order."""
        if self.answers:
            self.settle(*self.answers.pop(self.random.randrange(len(self.answers)) if self.seed % 3 else 0))

    def cut(self):
        """The connection ends: what was under way is lost to the client; the broker may still read some of it."""
        lost = [sent for sent, _ in self.answers] + self.requests
        unsent = list[object]()
        if self.faults("late"):
            self.zombies += self.requests
        elif self.faults("unsent"):  # the client knows that these did not leave
            unsent = self.requests
        self.answers, self.requests = [], []
        for sent in lost:
            self.sequence.lost(sent.entry, sent=not any(sent is one for one in unsent))

    def late(self):
        """A broker comes to what it had read from a connection that has ended."""
        if self.zombies:
            self.broker(self.zombies.pop(self.random.randrange(len(self.zombies)) if self.seed % 2 else 0))

    def settle(self, sent, answer):
        entry, sequence = sent.entry, self.sequence
        if self.faults("cut"):
            answer = "lost"
        if answer == "large" and not entry.in_doubt:
            middle = entry.count // 2
            sequence.split(entry, tuple((part, len(part)) for part in (entry.batch[:middle], entry.batch[middle:])))
        elif answer in ("large", "refused") or (answer == "fenced" and entry.in_doubt):
            sequence.refused(entry)
            self.failed += entry.batch
        else:
            getattr(sequence, answer)(entry)
            if answer == "confirmed":
                self.confirmed += entry.batch

    def run(self, steps=400):
        step = (self.hand_in, self.send, self.send, self.reach, self.reach, self.answer, self.answer, self.late)
        for _ in range(steps):
            if self.faults["cut"] and self.random.random() < 0.03:
                self.cut()
            self.random.choice(step)()
        self.faults.end("cut", "give")
        until_quiet(
            lambda: not self.waiting and not self.sequence.entries,
            lambda: (self.send(), self.reach(), self.answer(), self.late()),
            steps_max=20 * steps,
            stuck=lambda: f"{len(self.waiting)} wait, {self.sequence.under_way} under way",
        )


def judge(world):
    written = world.log.values
    assert len(set(written)) == len(written), "a record is in the log twice"
    assert set(world.confirmed) <= set(written), "a record was confirmed and is not in the log"
    assert sorted(world.confirmed + world.failed) == list(range(world.next_value)), "each is told of exactly once"
    kept = [value for value in written if value in set(world.confirmed)]
    assert kept == sorted(kept), "the log has another order than the sender"


def live(seed):
    world = World(seed)
    world.run()
    judge(world)


@pytest.mark.parametrize("some", [SEEDS[first : first + 30] for first in range(0, len(SEEDS), 30)], ids=str)
@pytest.mark.slow
def test_whatever_is_lost_no_record_is_twice_in_the_log_or_confirmed_without_being_there(some):
    play(some, live)


CORE = PartitionSequence


def _hasty(sequence):
    for entry in sequence.entries:
        entry.in_doubt = False
    CORE._go_on(sequence)


def _forgetful(sequence, entry, *, sent=True):
    CORE.lost(sequence, entry, sent=sent)
    sequence._careful = False


MUTANTS = {
    "what is lost counts as not written": (
        "lost",
        lambda sequence, entry, *, sent=True: CORE.out_of_step(sequence, entry),
    ),
    "a hole is passed over": ("_drop", lambda sequence, entry: sequence.entries.remove(entry)),
    "what is out of step counts as written": ("out_of_step", CORE.confirmed),
    "a new epoch does not wait for what is in doubt": ("_go_on", _hasty),
    "what is new overtakes what was lost": ("lost", _forgetful),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_the_simulation_finds(name, monkeypatch):
    method, wrong = MUTANTS[name]
    mutant = type("Mutant", (PartitionSequence,), {method: wrong})
    monkeypatch.setattr("tests.client.test_sequence.PartitionSequence", mutant)

    for seed in range(300):
        try:
            live(seed)
        except (AssertionError, StopIteration, ValueError):
            return
    raise AssertionError(f"no seed finds that {name}")
