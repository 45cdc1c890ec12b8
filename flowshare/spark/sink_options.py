"""Options of the sink, `df.write` and `df.writeStream` with `format("flowshare")`; their names, defaults and checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, Self

from flowshare.agents.errors import OptionError, refuse_unknown
from flowshare.backend.url import BadBrokerUrl, parse_broker
from flowshare.client.settings import Compression
from flowshare.protocol.headers import CODECS

Guarantee = Literal["at_least_once", "exactly_once"]

FORMAT: Final = 'format("flowshare")'
SPARKS_OWN: Final = frozenset({"path", "checkpointlocation", "queryname"})
"""Keys that Spark puts among a sink's options by itself."""
TRUE, FALSE = frozenset({"true", "yes", "1"}), frozenset({"false", "no", "0"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """What the sink was asked for. Times are seconds, sizes are bytes.

    broker: URL of the backend, see `flowshare.backend.url`.
    topic: where all rows go; without it the column `topic` says it for each row.
    delivery: `at_least_once`, or `exactly_once` for each batch of a streaming query (docs/spark.md).
    compression: codec of the batches (compression.type).
    create_topics: make a topic that is missing, with as many partitions as the broker gives new topics.
    batch_bytes: size at which a batch of records is closed (batch.size).
    batch_header: put the header `flowshare.batch` on each record: query id, batch id, task and the row's number in it.
    delivery_timeout: how long nothing may be confirmed before the task fails, and any other wait for the broker.
    transaction_timeout: how long a batch may take with exactly_once (transaction.timeout.ms); brokers allow 900 unless
        their transaction.max.timeout.ms says more.
    batches_topic: with exactly_once and a column `topic`: an existing topic under whose name it is kept which batches
        are finished. Nothing is written to it.
    """

    broker: str = field(repr=False)
    topic: str = ""
    delivery: Guarantee = "at_least_once"
    compression: Compression = "none"
    create_topics: bool = True
    batch_bytes: int = 64 * 1024
    batch_header: bool = False
    delivery_timeout: float = 120.0
    transaction_timeout: float = 900.0
    batches_topic: str = ""

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """Check what a writer was given; names in any case. Raises: OptionError."""
        named = {key.lower(): text for key, text in given.items() if key.lower() not in SPARKS_OWN}
        refuse_unknown(FORMAT, named, [one.name for one in fields(cls)])
        if not named.get("broker"):
            raise OptionError(f'{FORMAT} needs .option("broker", …)')
        checked = {name: CHECKS.get(name, _text)(name, text) for name, text in named.items()}
        return cls(**checked)

    @property
    def exactly_once(self) -> bool:
        """Whether batches are written in transactions."""
        return self.delivery == "exactly_once"

    @property
    def ledger_topic(self) -> str:
        """The topic under whose name finished batches are noted; empty when none was named."""
        return self.topic or self.batches_topic


# --- checks -------------------------------------------------------------------------------------------------------


def _text(_: str, text: str) -> str:
    return text


def _broker(_: str, text: str) -> str:
    try:
        kind = parse_broker(text).kind
    except BadBrokerUrl as error:
        raise OptionError(str(error)) from error
    if kind == "memory":
        raise OptionError("memory:// is one process's own, and Spark is several: give embedded:///path or kafka://")
    return text


def _number(kind: type[Any], least: float) -> Callable[[str, str], Any]:
    def check(name: str, text: str) -> Any:
        try:
            number = kind(text)
        except ValueError:
            number = None
        if number is None or not least <= number < float("inf"):
            raise OptionError(f"{name} takes a number from {least:g} on, not {text!r}")
        return number

    return check


def _flag(name: str, text: str) -> bool:
    if text.lower() not in TRUE | FALSE:
        raise OptionError(f"{name} takes true or false, not {text!r}")
    return text.lower() in TRUE


def _one_of(*known: str) -> Callable[[str, str], str]:
    def check(name: str, text: str) -> str:
        if text.lower() not in known:
            raise OptionError(f"{name} takes {', '.join(known[:-1])} or {known[-1]}, not {text!r}")
        return text.lower()

    return check


CHECKS: Final[Mapping[str, Callable[[str, str], Any]]] = {
    "broker": _broker,
    "delivery": _one_of("at_least_once", "exactly_once"),
    "compression": _one_of(*CODECS),
    "create_topics": _flag,
    "batch_bytes": _number(int, 1024),
    "batch_header": _flag,
    "delivery_timeout": _number(float, 1),
    "transaction_timeout": _number(float, 1),
}
