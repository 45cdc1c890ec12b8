"""Reading and writing the small notations inside a step: ranges, acknowledgements, share-partitions, members."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from flowshare.share.types import AcknowledgeType, AcquiredRange, LogBatch, RecordState, StateRun
from tests.scenarios.language import BadStep, Step

TOPIC = "t"
GROUP = "g"
ABSENT = "-"
"""The letter of a record without key, or without header."""


class Place(NamedTuple):
    """A topic's partition, by name."""

    topic: str
    partition: int

    def __str__(self) -> str:
        """`3` for partition 3 of the usual topic, else `name.3`."""
        return str(self.partition) if self.topic == TOPIC else f"{self.topic}.{self.partition}"


class Ack(NamedTuple):
    """One acknowledgement batch as written in a step."""

    place: Place
    first: int
    last: int
    types: bytes
    delay_ms: int
    unrun: bool


class Sent(NamedTuple):
    """Outputs of a settle as written in a step. `kind`: empty, `~` made for another topic of that name, `p` of an
    idempotent producer, `t` in a transaction, `c` with wrong bytes."""

    place: Place
    records: int
    kind: str
    times: int


class Batch(NamedTuple):
    """One batch of the log. `kind`: empty, `x` aborted, `o` in an open transaction, `k` committed, `c` control.

    `keys`, `headers`: a letter for each record, its key and the value of its header `h`; `-`: it has none. Without
    `keys` every record has a key of its own, without `headers` none has the header.
    """

    first: int
    last: int
    kind: str = ""
    keys: str = ""
    headers: str = ""

    @property
    def offsets(self) -> LogBatch:
        """As the core takes it."""
        return LogBatch(self.first, self.last)


STATES = {
    "A": RecordState.AVAILABLE,
    "Q": RecordState.ACQUIRED,
    "K": RecordState.ACKNOWLEDGED,
    "G": RecordState.ARCHIVING,
    "R": RecordState.ARCHIVED,
}
LETTERS = {state: letter for letter, state in STATES.items()}


def place(text: str) -> Place:
    """`3` or `name.3`."""
    topic, _, partition = text.rpartition(".")
    return Place(topic or TOPIC, int(partition))


def member(text: str) -> tuple[str, str]:
    """`M1` or `group:M1`, as (group, member)."""
    group, _, name = text.rpartition(":")
    return group or GROUP, name


def span(text: str) -> tuple[int, int]:
    """`3-7` or `3`, inclusive."""
    match = re.fullmatch(r"(-?\d+)(?:-(-?\d+))?", text)
    if match is None:
        raise BadStep(f"not a range: {text!r}")
    return int(match[1]), int(match[2] or match[1])


def placed(text: str) -> tuple[Place, str]:
    """`1@rest` or `rest` (partition 0 of the usual topic)."""
    where, at, rest = text.rpartition("@")
    return (place(where) if at else Place(TOPIC, 0)), rest


def batches(words: Iterable[str]) -> list[tuple[Place, Batch]]:
    """`0-9`, `1@0-9`, `0-9x` …; `0-9*10` is ten batches of one record."""
    found = []
    for word in words:
        where, rest = placed(word)
        match = re.fullmatch(r"(\d+(?:-\d+)?)([xkoc]?)(\*)?", rest)
        if match is None:
            raise BadStep(f"not a log batch: {word!r}")
        first, last = span(match[1])
        if match[3]:
            found.extend((where, Batch(offset, offset, match[2])) for offset in range(first, last + 1))
        else:
            found.append((where, Batch(first, last, match[2])))
    return found


def letters(text: str) -> str:
    """`aab-`, and `a*30b` for thirty of one."""
    return re.sub(r"(.)\*(\d+)", lambda found: found[1] * int(found[2]), text)


def logged(step: Step) -> list[tuple[Place, Batch]]:
    """The batches of a `log` step; `keys=aab-` and `headers=xx-y` go over all of its records."""
    given = {name: letters(step.options[name]) for name in ("keys", "headers") if name in step.options}
    found, at = [], 0
    for where, batch in batches(step.words):
        until = at + batch.last - batch.first + 1
        found.append((where, batch._replace(**{name: text[at:until] for name, text in given.items()})))
        at = until
    if any(len(text) != at for text in given.values()):
        raise BadStep(f"not a letter for each of {at} records: {step.text!r}")
    return found


def types(text: str) -> bytes:
    """`accept`, `renew,accept`, `release*5,gap`, `raw5` (a wire number), `empty`."""
    if text == "empty":
        return b""
    numbers = bytearray()
    for part in text.split(","):
        name, _, times = part.partition("*")
        number = int(name[3:]) if name.startswith("raw") else AcknowledgeType[name.upper()].value
        numbers.extend([number % 256] * int(times or 1))
    return bytes(numbers)


def acks(words: Iterable[str]) -> list[Ack]:
    """`0-9:accept`, `1@0-9:release`, with `~500` a delay in ms and `!` for records never run."""
    found = []
    for word in words:
        where, rest = placed(word)
        offsets, _, kinds = rest.partition(":")
        unrun = kinds.endswith("!")
        kinds, _, delay = kinds.rstrip("!").partition("~")
        found.append(Ack(where, *span(offsets), types(kinds), int(delay or 0), unrun))
    return found


def settled(step: Step) -> tuple[Place, list[Ack], list[Sent]]:
    """`M1 0:accept 1-2:reject +out.0:3`: where, what of which records, and outputs."""
    acked = acks(word for word in step.words[1:] if not word.startswith("+"))
    places = {ack.place for ack in acked}
    if len(places) != 1:
        raise BadStep(f"a settle is of one share-partition: {step.text!r}")
    return places.pop(), acked, [sent(word) for word in step.words[1:] if word.startswith("+")]


def sent(word: str) -> Sent:
    """`+out.0:3` is an output of three records for a partition, `+out.0:3*5` five of them; kinds as in `Sent`."""
    match = re.fullmatch(r"\+([\w.]+):(\d+)([~ptc]?)(?:\*(\d+))?", word)
    if match is None:
        raise BadStep(f"not an output: {word!r}")
    return Sent(place(match[1]), int(match[2]), match[3], int(match[4] or 1))


def by_place(found: Sequence[Ack]) -> dict[Place, list[Ack]]:
    """Acknowledgements of each share-partition, in order."""
    grouped: dict[Place, list[Ack]] = {}
    for ack in found:
        grouped.setdefault(ack.place, []).append(ack)
    return grouped


def runs(words: Iterable[str]) -> list[StateRun]:
    """`15-18A2`: offsets, state letter, delivery count; `15-18Q1:M1` of records that a member holds."""
    found = []
    for word in words:
        match = re.fullmatch(r"(\d+(?:-\d+)?)([AQKGR])(\d+)(?::(\w+))?", word)
        if match is None:
            raise BadStep(f"not a run of states: {word!r}")
        found.append(StateRun(*span(match[1]), STATES[match[2]], int(match[3]), match[4]))
    return found


def show_runs(found: Iterable[StateRun]) -> str:
    """Runs as `runs` reads them."""
    return " ".join(f"{run.first}-{run.last}{LETTERS[run.state]}{run.delivery_count}" for run in found) or "nothing"


def show_ranges(found: Iterable[AcquiredRange]) -> str:
    """Acquired ranges in the catalogue's notation."""
    return " ".join(f"[{first}-{last}]c{count}" for first, last, count in found) or "nothing"


def show_offsets(offsets: Iterable[int]) -> str:
    """Offsets as inclusive ranges joined by commas."""
    shown: list[list[int]] = []
    for offset in sorted(offsets):
        if shown and shown[-1][1] == offset - 1:
            shown[-1][1] = offset
        else:
            shown.append([offset, offset])
    return ",".join(f"{first}-{last}" for first, last in shown) or "none"


def show_spans(found: Iterable[tuple[int, int]]) -> str:
    """Ranges of offsets joined by commas."""
    return ",".join(f"{first}-{last}" for first, last in found) or "none"


def show_places(found: Iterable[Place]) -> str:
    """Share-partitions joined by commas."""
    return ",".join(map(str, found)) or "none"


def show_by_place(found: Mapping[Place, str], *, alone: bool, empty: str) -> str:
    """Texts of share-partitions: bare when there is only one share-partition in the scenario, else prefixed."""
    if alone:
        return " ".join(found.values()) or empty
    return " ".join(f"{where}:{text}" for where, text in found.items()) or empty
