"""The judgement of outputs: from what lies in the output topics and in the dead letters, and the plan, alone.

An output says of which attempt at which record it is. The rules:

lost         an accepted record without an output in one of the topics; a rejected one without a dead letter
twice        an output of an accepted record beyond the first one in its topic
letters      a dead letter of a rejected record beyond the first (`letters_twice`)
of no accept an output of a record that was not accepted, or of an attempt that was planned to fail; a record's outputs
             that are in no two topics of one and the same attempt: whatever was accepted, one of them was not of it; a
             dead letter of a record that was not rejected
inversions   with an order: in one partition of a topic, an output of a key before that of a record that came before it
             in the log. Outputs of one key in different partitions have no order among each other

Whether a record is accepted or rejected is what the plan says, so a run is judged when its group has finished all.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.chaos.journal import NO_KEY, NUMBER_SIZE

AT_LEAST_ONCE, EXACTLY_ONCE = "at_least_once", "exactly_once"


def output_topics(topic: str) -> tuple[str, str]:
    """Where the outputs of a run's topic go: what handlers return, and what they send by their deliveries."""
    return f"{topic}.returned", f"{topic}.sent"


class Output(NamedTuple):
    """Of which attempt at which record an output is. key: of the record, NO_KEY without one."""

    number: int
    attempt: int
    partition: int
    offset: int
    key: int

    def encode(self) -> bytes:
        """As the value of an output; it begins with the record's id, as the values of records do."""
        return b"%0*d %d %d %d %d" % (NUMBER_SIZE, *self)

    @classmethod
    def decode(cls, value: bytes) -> Output:
        """Decode the bytes of `encode`. Raises: ValueError."""
        number, attempt, partition, offset, key = map(int, value.split())
        return cls(number, attempt, partition, offset, key)

    def __str__(self) -> str:
        key = "–" if self.key == NO_KEY else self.key
        return f"id {self.number} (key {key}, {self.partition}-{self.offset}) attempt {self.attempt}"


class Placed(NamedTuple):
    """An output where it lies."""

    partition: int
    offset: int
    output: Output


@dataclass
class OnceVerdict:
    """Violations as texts."""

    lost: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    letters_twice: list[str] = field(default_factory=list)
    of_no_accept: list[str] = field(default_factory=list)
    inversions: list[str] = field(default_factory=list)

    NAMES = ("lost", "twice", "letters_twice", "of_no_accept", "inversions")

    @property
    def violations(self) -> int:
        """How many."""
        return sum(len(getattr(self, name)) for name in self.NAMES)

    def __str__(self) -> str:
        return "  ".join(f"{name.replace('_', ' ')} {len(getattr(self, name))}" for name in self.NAMES)


class Planned(NamedTuple):
    """Plan for the records with the ids 0 to `records` - 1."""

    records: int
    rejected: Callable[[int], bool]
    fails: Callable[[int, int], bool]
    """True if this attempt (of a record) raises an error that is tried again."""


def judge_outputs(
    topics: Mapping[str, Sequence[Placed]], letters: Iterable[int], planned: Planned, *, ordered: bool
) -> OnceVerdict:
    """Judge a run that has come to rest. topics: all that lies in each output topic. letters: ids in the dead letters.

    ordered: whether outputs of one key have to be in their inputs' order.
    """
    verdict = OnceVerdict()
    attempts: dict[int, list[set[int]]] = defaultdict(list)
    for topic, placed in topics.items():
        good = _good(topic, placed, planned, verdict)
        for number in range(planned.records):
            found = good.get(number, [])
            if not found and not planned.rejected(number):
                verdict.lost.append(f"id {number} in {topic}")
            verdict.twice += [f"{one.output} in {topic}" for one in found[1:]]
            attempts[number].append({one.output.attempt for one in found})
        if ordered:
            _judge_order(topic, placed, verdict)
    for number, found in attempts.items():
        if all(found) and not set.intersection(*found):
            verdict.of_no_accept.append(f"id {number}: attempts {' and '.join(map(str, found))}")
    _judge_letters(letters, planned, verdict)
    return verdict


def _good(
    topic: str, placed: Sequence[Placed], planned: Planned, verdict: OnceVerdict
) -> Mapping[int, Sequence[Placed]]:
    """By record, the outputs that may be of its accept; the others are violations."""
    good: dict[int, list[Placed]] = defaultdict(list)
    for one in placed:
        number, attempt = one.output.number, one.output.attempt
        known = 0 <= number < planned.records
        if not known or planned.rejected(number) or planned.fails(number, attempt):
            verdict.of_no_accept.append(f"{one.output} in {topic}")
        else:
            good[number].append(one)
    return good


def _judge_letters(letters: Iterable[int], planned: Planned, verdict: OnceVerdict) -> None:
    counted = Counter(letters)
    for number, count in sorted(counted.items()):
        if not 0 <= number < planned.records or not planned.rejected(number):
            verdict.of_no_accept.append(f"a dead letter of id {number}")
        else:
            verdict.letters_twice += [f"id {number}"] * (count - 1)
    verdict.lost += [
        f"the dead letter of id {number}"
        for number in range(planned.records)
        if planned.rejected(number) and number not in counted
    ]


def _judge_order(topic: str, placed: Iterable[Placed], verdict: OnceVerdict) -> None:
    """Record inversions within keys. Repeated outputs are skipped: a duplicate is another violation."""
    last: dict[tuple[int, int, int], Output] = {}
    seen: set[int] = set()
    for partition, _, output in sorted(placed):
        if output.key == NO_KEY or output.number in seen:
            continue
        seen.add(output.number)
        key = partition, output.partition, output.key
        before = last.get(key)
        if before is not None and before.offset > output.offset:
            verdict.inversions.append(f"{output} behind {before} in {topic}-{partition}")
        else:
            last[key] = output
