"""Options of the source, `spark.readStream.format("flowshare")`; their names, defaults and checks."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, Self

from flowshare.agents.handler.errors import OptionError
from flowshare.agents.handler.rate_limit import RateLimit
from flowshare.spark import checks, registry

ValueForm = Literal["bytes", "json", "avro", "protobuf"]
Recovery = Literal["rerun", "drop"]
OnDataLoss = Literal["fail", "continue"]

RECORDS_PER_TRIGGER: Final = 100_000
INTERNAL: Final = "__"
"""How the names of topics begin in which brokers keep their state: reading a group's would make more of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What the source was asked for. Times are seconds.

    broker: URL of the backend, see `flowshare.backend.url`.
    group: the share group. Give each query its own: several queries in one group divide the records among them.
    topics: names, separated by commas. topics_pattern: instead of them, a regular expression that a topic's whole name
        matches; topics that come later are read, too. Internal ones (`__…`) are read only when they are named.
    start: where a group begins that has no state: earliest, latest, or how many seconds back.
    records_per_trigger: about how many records a micro-batch takes at most. Batches of the log are not cut on Kafka's
        brokers, which also bound what a group may hold (4,000 records a partition, docs/spark.md).
    records_per_second: the same in time; 0: no limit.
    tasks: Spark tasks a micro-batch is read by, from however many partitions; 0: one a core of the driver's machine.
    lock_duration: how long the group locks a record; 0: as the group is set. Locks are renewed while a batch runs.
    delivery_limit: deliveries after which a record is archived; 0: none where flowshare leads the group, and as
        many as they allow (10) on Kafka's brokers.
    wait: how long a trigger waits for records before it finds that there are none.
    value: bytes, json, avro or protobuf; json and avro need value_schema, and make `value` a column of that type.
    value_schema: for json a schema in Spark's DDL (`id INT, name STRING`), for avro one in Avro's JSON; with a registry
        the newest one of the topic's values when it is empty.
    value_message: for protobuf, `module:Class` of a message that executors can import.
    registry: address of a schema registry; values begin with the id of the schema that they were written with, which is
        resolved to value_schema. registry_ca: path of the certificate of its CA.
    dead_letter: topic for records that cannot be read (a damaged batch, a value that does not fit value_schema);
        empty: `<group>.dlq`; `none`: they are rejected with an error in the log only.
    headers: whether there is a column with the headers.
    outcomes: acknowledge what the sink's `outcome` column says (docs/spark.md), not the whole batch.
    recovery: what happens to a batch that was under way when the query died: `rerun` reads it again from the log, so
        that nothing is twice in a sink that knows its batches; `drop` leaves its records to the group, which
        delivers them again, each for itself.
    on_data_loss: what happens when records of a batch are gone from the log before they were read (retention, a topic
        that was deleted or made anew): `fail` the query, or `continue` without them; both say how many. What compaction
        took is no loss.
    checkpoint: the query's checkpoint, a folder of this machine: from it the source knows at once, and at a stop, that
        a batch is committed. Empty: as the session notes it (`flowshare.spark.source.checkpoint`).
    """

    broker: str = field(repr=False)
    group: str
    topics: tuple[str, ...] = ()
    topics_pattern: str = ""
    start: str = "earliest"
    records_per_trigger: int = RECORDS_PER_TRIGGER
    records_per_second: float = 0.0
    tasks: int = 0
    lock_duration: float = 0.0
    delivery_limit: int = 0
    wait: float = 0.25
    value: ValueForm = "bytes"
    value_schema: str = field(default="", repr=False)
    value_message: str = ""
    registry: str = field(default="", repr=False)
    registry_ca: str = ""
    dead_letter: str = ""
    headers: bool = False
    outcomes: bool = False
    recovery: Recovery = "rerun"
    on_data_loss: OnDataLoss = "fail"
    checkpoint: str = ""

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """Check what a reader was given; names in any case. Raises: OptionError."""
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
        if self.value != "bytes" and self.dead_letter_topic in self.topics:
            raise OptionError(f"dead_letter={self.dead_letter_topic} is read, too: what is put there would come back")

    def with_schema(self) -> Self:
        """With the registry's newest schema, where none was given. Raises: OptionError, RegistryError."""
        if self.value != "avro" or self.value_schema:
            return self
        return replace(self, value_schema=registry.newest_schema(self, self.topics))

    @property
    def task_count(self) -> int:
        """How many tasks read a batch."""
        return self.tasks or os.cpu_count() or 1

    @property
    def rate(self) -> RateLimit | None:
        """How many records may be taken in time; what was not used for a second is lost. None: there is no limit."""
        per_s = self.records_per_second
        return RateLimit(per_s, max(1, math.ceil(per_s))) if per_s else None

    @property
    def dead_letter_topic(self) -> str | None:
        """Where records go that cannot be read; None: nowhere."""
        return None if self.dead_letter == "none" else self.dead_letter or f"{self.group}.dlq"

    def wants(self, topic: str) -> bool:
        """Whether a topic is one of those asked for."""
        if self.topics:
            return topic in self.topics
        own = topic.startswith(INTERNAL) or topic == self.dead_letter_topic
        return not own and re.fullmatch(self.topics_pattern, topic) is not None


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


CHECKS: Final[Mapping[str, checks.Check]] = {
    "broker": checks.broker,
    "topics": _names,
    "topics_pattern": _pattern,
    "start": _start,
    "records_per_trigger": checks.number(int, 1),
}
