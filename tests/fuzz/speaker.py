"""Memory of a fuzzed session's client: values from answers, and how one step chooses among them."""

from __future__ import annotations

import dataclasses
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode as KafkaError

from flowshare.client.net.login import PlainClient, ScramClient
from flowshare.protocol.kafka import ApiKey
from tests.fuzz.samples import TOPIC

OTHER_TOPIC, OTHER_PARTITION, OTHER_GROUP = 128, 64, 32
"""Bits of a word's argument."""
MADE_TOPIC: Final = "made"
GROUPS: Final = {"share": ("g", "c"), "classic": ("c", "g"), "stream": ("s", "c")}
"""A kind of groups -> the group of it, and one that is of another kind."""
KEPT: Final = frozenset(
    {
        "base_offset",
        "committed_offset",
        "first_offset",
        "generation_id",
        "high_watermark",
        "leader",
        "member_epoch",
        "member_id",
        "producer_epoch",
        "producer_id",
        "protocol_name",
        "session_id",
    }
)
"""Fields of answers that are remembered."""
SAME: Final[Mapping[str, str]] = {
    "generation_id_or_member_epoch": "generation_id",
    "v3_and_below_producer_id": "producer_id",
    "v3_and_below_producer_epoch": "producer_epoch",
    "v3_and_below_transactional_id": "transactional_id",
    "offset": "base_offset",
    "fetch_offset": "base_offset",
    "start_offset": "base_offset",
    "last_offset": "first_offset",
}
"""Field of a request -> field of answers that it is about."""
REMEMBERED_MAX: Final = 16
"""Values of one name."""


class Request(NamedTuple):
    """Request of a word: fields by name, of all versions there are."""

    key: ApiKey
    fields: dict[str, Any]
    then: Callable[[Any], None] | None = None
    """Takes the answer."""
    answered: bool = True
    """True if there is to be an answer."""


class Client:
    """Knowledge of all connections of a sequence, and each connection's unfinished exchanges."""

    def __init__(self, topic_id: uuid.UUID) -> None:
        self.topics = {TOPIC: topic_id, MADE_TOPIC: uuid.UUID(int=1)}
        self.values: dict[str, list[tuple[int, Any]]] = defaultdict(list)
        """Name -> (connection, value), oldest first."""
        self.logins: dict[int, tuple[PlainClient | ScramClient, bytes | None]] = {}
        """Connection -> its login, and the next message of it."""
        self.epochs: dict[str, int] = defaultdict(int)
        """Of share sessions, by member."""
        self.sequences: dict[Any, int] = defaultdict(int)
        """Of producers, by id, epoch, topic and partition."""
        self.held: dict[Any, list[tuple[int, int]]] = defaultdict(list)
        """Acquired ranges by topic id and partition."""

    def note(self, line: int, name: str, value: Any) -> None:
        """An answer told a value."""
        kept = self.values[name]
        if (line, value) in kept:
            kept.remove((line, value))
        kept.append((line, value))
        del kept[:-REMEMBERED_MAX]

    def learn(self, line: int, answer: Any) -> None:
        """Remember what an answer tells; what it says of the one who asked is the newest."""
        for part_ in _parts(answer):
            self.learn(line, part_)
        for field in dataclasses.fields(answer):
            value = getattr(answer, field.name)
            if field.name in KEPT and value is not None and value not in ("", -1):
                self.note(line, field.name, value)


def _parts(answer: Any) -> list[Any]:
    """The entities directly within one."""
    values = [getattr(answer, field.name) for field in dataclasses.fields(answer)]
    flat = [one for value in values for one in (value if isinstance(value, tuple) else (value,))]
    return [one for one in flat if dataclasses.is_dataclass(one)]


class Speaker:
    """One step's view of a client: which connection speaks, how, and which remembered values are taken.

    pick 0: the newest of this connection, else of any. Otherwise the low four bits count back over all connections, two
    bits change a number by 0, 1, -1 or make it 0, and two say which of the request's values that is done to, 0: all.
    """

    def __init__(self, client: Client, line: int, *, arg: int, pick: int) -> None:
        self.client = client
        self.line = line
        self.arg = arg
        self.how = arg & 31
        self._pick = pick
        self._asked = 0

    def known(self, name: str, default: Any) -> Any:
        """A value that an answer told."""
        self._asked += 1
        which = self._pick >> 6
        return self.picked(name, default, self._pick if which in (0, self._asked) else 0)

    def picked(self, name: str, default: Any, pick: int) -> Any:
        """The remembered value that `pick` means."""
        kept = self.client.values.get(name, [])
        value = default
        if pick:
            if kept:
                value = kept[-1 - (pick & 15) % len(kept)][1]
        else:
            value = next((one for line, one in reversed(kept) if line == self.line), kept[-1][1] if kept else default)
        return _changed(value, pick >> 4 & 3)

    def field(self, name: str, kind: str) -> Any:
        """A value for a field of a sample; None: nothing is known of it."""
        name = SAME.get(name, name)
        if name in ("group_id", "transactional_id"):
            return {"group_id": self.group("share"), "transactional_id": "tx"}[name]
        if name == "share_session_epoch":
            return self.client.epochs[self.known("member_id", "m")]
        if name == "topic_id":
            return self.topic_id
        if kind not in ("string", "int16", "int32", "int64"):
            return None
        return self.known(name, None)

    def group(self, kind: str) -> str:
        """The group of a kind, or another one."""
        return GROUPS[kind][bool(self.arg & OTHER_GROUP)]

    @property
    def topic(self) -> str:
        """Name of the topic that is meant."""
        return MADE_TOPIC if self.arg & OTHER_TOPIC else TOPIC

    @property
    def topic_id(self) -> uuid.UUID:
        """Its id."""
        return self.client.topics[self.topic]

    @property
    def partition(self) -> int:
        """The partition that is meant."""
        return int(bool(self.arg & OTHER_PARTITION))


def _changed(value: Any, how: int) -> Any:
    if type(value) is bool or not isinstance(value, int) or not how:
        return value
    return (0, value + 1, value - 1, 0)[how] if abs(value) < 30_000 else value


def codes(answer: Any) -> set[KafkaError]:
    """All error codes in an answer, those of its parts, too."""
    found = {code for one in _parts(answer) for code in codes(one)}
    for field in dataclasses.fields(answer):
        value = getattr(answer, field.name)
        if isinstance(value, KafkaError):
            found.add(value)
        elif field.name == "acknowledge_error_code":
            found.add(KafkaError(value))
    return found
