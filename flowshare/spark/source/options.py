"""Options of the source, `spark.readStream.format("flowshare")`; their names, defaults and checks."""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, Self
from urllib.parse import urlsplit

from flowshare.agents.handler.errors import OptionError
from flowshare.agents.handler.rate_limit import RateLimit
from flowshare.backend.url import parse_broker
from flowshare.spark import checks, registry

ValueForm = Literal["bytes", "json", "avro", "protobuf"]
ValueMode = Literal["strict", "permissive"]
Isolation = Literal["read_committed", "read_uncommitted"]
Recovery = Literal["rerun", "drop"]
OnDataLoss = Literal["fail", "continue"]

RECORDS_PER_TRIGGER: Final = 100_000
INTERNAL: Final = "__"
"""The prefix of topics in which brokers keep their state: reading a group's state would produce more of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Options of the source. Times are in seconds.

    broker: URL of the backend, see `flowshare.backend.url`.
    group: the share group. Give each query its own: several queries in one group divide the records among themselves.
    topics: names, separated by commas. topics_pattern: instead of them, a regular expression that a topic's whole name
        matches; topics that come later are read, too. Internal topics (`__…`) are read only when they are named.
    start: where a group without state begins: earliest, latest, or a number of seconds back.
    isolation: read_committed (no record of an open or aborted transaction) or read_uncommitted. It is set on the group,
        for all of its members.
    records_per_trigger: most records of a micro-batch, approximately. Kafka's brokers do not cut batches of the log;
        they also bound how much a group may hold (4,000 records a partition, docs/spark.md).
    records_per_second: most records a second; 0: no limit.
    tasks: number of Spark tasks that read a micro-batch, for any number of partitions; 0: one per core of the driver's
        machine.
    lock_duration: how long the group locks a record; 0: the group's setting. Locks are renewed while a batch runs.
    delivery_limit: deliveries after which a record is archived; 0: no limit where flowshare leads the group, and the
        most that Kafka's brokers allow (10) on those.
    wait: how long a trigger waits for records before it ends without any.
    value: bytes, json, avro or protobuf; json and avro need value_schema, and make `value` a column of that type.
    value_schema: for json a schema in Spark's DDL (`id INT, name STRING`), for avro a schema in Avro's JSON; empty,
        with a registry: the newest schema of the topic's values.
    value_mode: treatment of JSON that does not fit value_schema: `strict` makes a dead letter of the whole record,
        `permissive` sets each field that does not fit to null, as Spark's from_json does.
    value_message: for protobuf, `module:Class` of a message that executors can import.
    registry: address of a schema registry; each value begins with the id of the schema that it was written with; this
        schema is resolved to value_schema. registry_ca: path of the certificate of its CA.
    dead_letter: topic for records that cannot be read (a damaged batch, a value that does not fit value_schema);
        empty: `<group>.dlq`; `none`: they are rejected with an error in the log only.
    headers: add a column with the headers.
    outcomes: acknowledge each record by the sink's `outcome` column (docs/spark.md), not the batch as a whole.
    recovery: treatment of a batch that was under way when the query died: `rerun` reads it again from the log, so that
        a sink that knows its batches holds no record twice; `drop` leaves its records to the group, which delivers
        each of them again.
    on_data_loss: reaction when records of a batch are gone from the log before they were read (retention, a topic that
        was deleted or made anew): `fail` the query, or `continue` without the records; both say how many. Records
        removed by compaction are no loss.
    narrowing: look for the record that kills Python workers, in ever smaller batches, and make it a dead letter
        (`flowshare.spark.source.narrowing`). false: its batch is run again as it is, for ever.
    checkpoint: the query's checkpoint: the absolute path of a folder on this machine, or a URL. It tells the source at
        once, and at a stop, that a batch is committed. Empty: the checkpoint that the session notes
        (`flowshare.spark.source.checkpoint`).
    """

    broker: str = field(repr=False)
    group: str
    topics: tuple[str, ...] = ()
    topics_pattern: str = ""
    start: str = "earliest"
    isolation: Isolation = "read_committed"
    records_per_trigger: int = RECORDS_PER_TRIGGER
    records_per_second: float = 0.0
    tasks: int = 0
    lock_duration: float = 0.0
    delivery_limit: int = 0
    wait: float = 0.25
    value: ValueForm = "bytes"
    value_schema: str = field(default="", repr=False)
    value_mode: ValueMode = "strict"
    value_message: str = ""
    registry: str = field(default="", repr=False)
    registry_ca: str = ""
    dead_letter: str = ""
    headers: bool = False
    outcomes: bool = False
    recovery: Recovery = "rerun"
    on_data_loss: OnDataLoss = "fail"
    narrowing: bool = True
    checkpoint: str = ""

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """Parse the options of a reader; names in any case. Raises: OptionError."""
        options = cls(**checks.checked(cls, given, CHECKS))
        options._check_together()
        return options

    def _check_together(self) -> None:
        if bool(self.topics) == bool(self.topics_pattern):
            raise OptionError(f'{checks.FORMAT} needs either .option("topics", …) or .option("topics_pattern", …)')
        registry.check(self)
        needed = self.value == "json" or (self.value == "avro" and not self.registry)
        if (self.value_schema and self.value not in ("json", "avro")) or (needed and not self.value_schema):
            raise OptionError("value_schema goes with value=json or value=avro, and they need it")
        if self.value_mode == "permissive" and self.value != "json":
            raise OptionError("value_mode=permissive goes with value=json")
        if self.value != "bytes" and self.dead_letter_topic in self.topics:
            raise OptionError(f"dead_letter={self.dead_letter_topic} is read, too: what is put there would come back")

    def with_schema(self) -> Self:
        """Return the options with the registry's newest schema, if none was given. Raises: OptionError,
        RegistryError."""
        if self.value != "avro" or self.value_schema:
            return self
        return replace(self, value_schema=registry.newest_schema(self, self.topics))

    @property
    def task_count(self) -> int:
        """The number of tasks that read a batch."""
        return self.tasks or os.cpu_count() or 1

    @property
    def rate(self) -> RateLimit | None:
        """The rate limit; an allowance unused for a second is lost. None: no limit."""
        per_s = self.records_per_second
        return RateLimit(per_s, max(1, math.ceil(per_s))) if per_s else None

    @property
    def dead_letter_topic(self) -> str | None:
        """The topic for unreadable records; None: no dead letters."""
        return None if self.dead_letter == "none" else self.dead_letter or f"{self.group}.dlq"

    @property
    def reads(self) -> tuple[str, ...]:
        """Topics to read, as an offset records them: their names, or `~` and the pattern."""
        return self.topics or (f"~{self.topics_pattern}",)

    @property
    def about(self) -> str:
        """Topics to read, as text for people."""
        return f"topics={','.join(self.topics)}" if self.topics else f"topics_pattern={self.topics_pattern}"

    @property
    def source(self) -> str:
        """A short text for broker and group, as stored in an offset."""
        return digest(self.broker, self.group)

    def wants(self, topic: str) -> bool:
        """True if the source is to read this topic."""
        if self.topics:
            return topic in self.topics
        own = topic.startswith(INTERNAL) or topic == self.dead_letter_topic
        return not own and re.fullmatch(self.topics_pattern, topic) is not None


def digest(broker: str, group: str) -> str:
    """Return a short text that stands for a broker and a group."""
    url = parse_broker(broker)
    named = f"{url.kind} {url.path} {','.join(sorted(url.hosts))} {group}"
    return hashlib.sha256(named.encode()).hexdigest()[:16]


def overlap(one: Sequence[str], other: Sequence[str]) -> bool:
    """True if two sources' `reads` may have a topic in common. Two patterns are assumed to."""
    if one and other and one[0].startswith("~") and other[0].startswith("~"):
        return True
    return any(
        name == asked or (asked.startswith("~") and re.fullmatch(asked[1:], name) is not None)
        for names, known in ((one, other), (other, one))
        for name in names
        for asked in known
    )


# --- checks -------------------------------------------------------------------------------------------------------


def _names(name: str, text: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    if not found:
        raise OptionError(f"{name} takes names of topics, separated by commas, not {text!r}")
    return found


def _pattern(name: str, text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise OptionError(f"{name} takes a regular expression, and {text!r} is none: {error}") from error
    return text


def _start(name: str, text: str) -> str:
    if text.lower() in ("earliest", "latest"):
        return text.lower()
    back_s = checks.number(float, 0)(f"{name} takes earliest, latest or seconds back; as a number it", text)
    return f"by_duration:PT{back_s:.3f}".rstrip("0").rstrip(".") + "S"


def _checkpoint(name: str, text: str) -> str:
    parts = urlsplit(text)
    if text and parts.scheme in ("", "file") and not parts.path.startswith("/"):
        raise OptionError(f"{name} takes an absolute path or a URL, not {text!r}: the source runs in another folder")
    return text


CHECKS: Final[Mapping[str, checks.Check]] = {
    "broker": checks.broker,
    "topics": _names,
    "topics_pattern": _pattern,
    "start": _start,
    "records_per_trigger": checks.number(int, 1),
    "checkpoint": _checkpoint,
}
