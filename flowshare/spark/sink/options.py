"""Options of the sink, `df.write` and `df.writeStream` with `format("flowshare")`; their names, defaults and checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, Self

from flowshare.agents.handler.errors import OptionError
from flowshare.client.settings import Compression
from flowshare.spark import checks, registry

Guarantee = Literal["at_least_once", "exactly_once"]
ValueForm = Literal["bytes", "json", "avro", "protobuf"]
Subject = Literal["topic", "record", "topic_record"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Options of the sink. Times are in seconds, sizes in bytes.

    broker: URL of the backend, see `flowshare.backend.url`.
    topic: where all rows go; without it the column `topic` names the topic of each row.
    delivery: `at_least_once`, or `exactly_once` for each batch of a streaming query (docs/spark.md).
    compression: codec of the batches (compression.type).
    create_topics: make a missing topic, with the broker's default number of partitions.
    batch_size: size at which a batch of records is closed (batch.size).
    batch_header: put the header `flowshare.batch` on each record: query id, batch id, task and the row's number in it.
    delivery_timeout: the task fails when nothing was confirmed for this time; also the limit of any other wait for the
        broker.
    transaction_timeout: how long a batch may take with exactly_once (transaction.timeout.ms); brokers allow 900 unless
        their transaction.max.timeout.ms allows more.
    batches_topic: with exactly_once and a column `topic`: an existing topic, under whose name the finished batches are
        noted. Nothing is written to it.
    value: bytes; or, with a registry, the format in which the column `value`, of any type, is written: avro, json
        (with a JSON Schema) or protobuf.
    value_schema: Avro's or a JSON Schema; empty: the newest one of the subject. value_message: for protobuf,
        `module:Class` of a message that executors can import.
    registry: address of a schema registry. registry_ca: path of the certificate of its CA. subject: naming rule
        of the schema's subject in the registry: `topic` (`<topic>-value`), `record` or `topic_record`.
    """

    broker: str = field(repr=False)
    topic: str = ""
    delivery: Guarantee = "at_least_once"
    compression: Compression = "none"
    create_topics: bool = True
    batch_size: int = 64 * 1024
    batch_header: bool = False
    delivery_timeout: float = 120.0
    transaction_timeout: float = 900.0
    batches_topic: str = ""
    value: ValueForm = "bytes"
    value_schema: str = field(default="", repr=False)
    value_message: str = ""
    registry: str = field(default="", repr=False)
    registry_ca: str = ""
    subject: Subject = "topic"

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """Parse the options of a writer; names in any case. Raises: OptionError."""
        options = cls(**checks.checked(cls, given, CHECKS))
        registry.check(options)
        if (options.value == "bytes") == bool(options.registry) or (options.value_schema and not options.registry):
            raise OptionError(
                "value=avro, json or protobuf is written with a registry=…, and value_schema goes with it"
            )
        return options

    @property
    def exactly_once(self) -> bool:
        """True if batches are written in transactions."""
        return self.delivery == "exactly_once"

    @property
    def ledger_topic(self) -> str:
        """The topic under whose name finished batches are noted; empty: none was named."""
        return self.topic or self.batches_topic


CHECKS: Final[Mapping[str, checks.Check]] = {
    "broker": checks.broker,
    "batch_size": checks.number(int, 1024),
    "delivery_timeout": checks.number(float, 1),
    "transaction_timeout": checks.number(float, 1),
}
