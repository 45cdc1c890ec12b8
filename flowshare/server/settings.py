"""All settings of a server in one place: groups' of all kinds and the listener's, from a server.properties or words.

An unknown name is refused with the nearest known one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from flowshare.core_errors import InvalidConfig
from flowshare.groups.assignors import ASSIGNORS
from flowshare.groups.consumer_types import ConsumerConfig
from flowshare.groups.types import ClassicConfig
from flowshare.server.net.limits import LISTENER_CONFIGS, ListenerLimits
from flowshare.share.config import EMBEDDED_CONFIGS, ServerConfig
from flowshare.share.settings import Setting, by_name, number, read_fields, unknown
from flowshare.transactions.coordinator import TransactionConfig

_group = partial(number, ClassicConfig())
_consumer = partial(number, ConsumerConfig())
_transaction = partial(number, TransactionConfig())

CLASSIC_CONFIGS: Final[Mapping[str, Setting]] = by_name(
    _group("group.min.session.timeout.ms", "session_timeout_min_ms", 1, "Shortest session timeout of a member."),
    _group("group.max.session.timeout.ms", "session_timeout_max_ms", 1, "Longest session timeout of a member."),
    _group(
        "group.initial.rebalance.delay.ms",
        "initial_rebalance_delay_ms",
        0,
        "How long the first rebalance of an empty consumer group waits for more members.",
    ),
    _group("group.max.size", "size_max", 1, "Members a consumer group may have."),
    _group(
        "group.max.groups",
        "groups_max",
        1,
        "Consumer groups that may exist; one principal (without logins: address) makes no more than are left.",
    ),
    _group("offset.metadata.max.bytes", "offset_metadata_max", 0, "Longest metadata with a committed offset."),
    _group(
        "offsets.retention.minutes",
        "offsets_retention_minutes",
        1,
        "How long committed offsets are kept when the group has no members any more.",
    ),
    _group(
        "offsets.retention.check.interval.ms",
        "retention_check_interval_ms",
        1,
        "How often it is looked for offsets that are to go.",
    ),
)
"""Settings of classic consumer groups and committed offsets, under the names of Kafka's brokers."""


def _read_assignors(setting: Setting, text: str) -> tuple[str, ...]:
    """Read names with commas between, each once."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if not set(names) <= set(ASSIGNORS):
        raise setting.refuse(text)
    return names


def _bounded(name: str, field: str, low: int, doc: str) -> list[Setting]:
    """Return `group.consumer.<name>` and the lowest and highest value that a group may set."""
    stem = field.removesuffix("_ms")
    return [
        _consumer(f"group.consumer.{name}", field, low, doc),
        _consumer(f"group.consumer.min.{name}", f"{stem}_min_ms", low, f"Lowest value a group may set: {doc}"),
        _consumer(f"group.consumer.max.{name}", f"{stem}_max_ms", low, f"Highest value a group may set: {doc}"),
    ]


CONSUMER_CONFIGS: Final[Mapping[str, Setting]] = by_name(
    *_bounded(
        "session.timeout.ms",
        "session_timeout_ms",
        1,
        "How long a member with group.protocol=consumer may be silent before it is removed.",
    ),
    *_bounded(
        "heartbeat.interval.ms",
        "heartbeat_interval_ms",
        1,
        "How often a member with group.protocol=consumer sends a heartbeat.",
    ),
    *_bounded(
        "assignment.interval.ms",
        "assignment_interval_ms",
        0,
        "Least time between two computations of the assignment of such a group.",
    ),
    _consumer("group.consumer.max.size", "size_max", 1, "Members with group.protocol=consumer a group may have."),
    Setting(
        name="group.consumer.assignors",
        field="assignors",
        default=",".join(ConsumerConfig().assignors),
        doc="Assignors that members may ask for; the first is used where nobody does.",
        words={name: name for name in ASSIGNORS},
        read=_read_assignors,
    ),
)
"""Settings of consumer groups of the consumer protocol (KIP-848)."""

TRANSACTION_CONFIGS: Final[Mapping[str, Setting]] = by_name(
    _transaction(
        "transactional.id.max",
        "ids_max",
        1,
        "Transactional ids that may exist; one principal (without logins: address) makes no more than are left.",
    ),
    _transaction("transaction.max.timeout.ms", "timeout_max_ms", 1, "Longest timeout of a producer's transactions."),
    _transaction(
        "transactional.id.expiration.ms", "id_expiration_ms", 1, "How long a transactional id is kept without use."
    ),
    _transaction(
        "producer.id.expiration.ms",
        "producer_expiration_ms",
        1,
        "How long a partition remembers an idempotent producer that writes nothing.",
    ),
)
"""Settings of producers and transactions, under the names of Kafka's brokers."""

PROPERTIES_BYTES_MAX: Final = 1024 * 1024
_KEY: Final = re.compile(r"(?P<name>[^\s=:]+)\s*[=:\s]?\s*(?P<value>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings that a server is given at its start."""

    server: ServerConfig
    classic: ClassicConfig
    consumer: ConsumerConfig
    transactions: TransactionConfig
    limits: ListenerLimits

    @classmethod
    def parse(cls, values: Mapping[str, str]) -> Settings:
        """Read settings by their names. Raises: InvalidConfig (unknown name, value out of bounds, contradiction)."""
        tables = (EMBEDDED_CONFIGS, CLASSIC_CONFIGS, CONSUMER_CONFIGS, TRANSACTION_CONFIGS, LISTENER_CONFIGS)
        known = {name for table in tables for name in table}
        for name in values:
            if name not in known:
                raise unknown(name, known)
        server, classic, consumer, transactions, limits = (
            {name: text for name, text in values.items() if name in table} for table in tables
        )
        groups = ClassicConfig(**read_fields(classic, CLASSIC_CONFIGS))
        if groups.session_timeout_min_ms > groups.session_timeout_max_ms:
            raise InvalidConfig(
                f"group.min.session.timeout.ms is {groups.session_timeout_min_ms}; it must not exceed "
                f"group.max.session.timeout.ms, {groups.session_timeout_max_ms}"
            )
        return cls(
            server=ServerConfig.embedded(server),
            classic=groups,
            consumer=_consumer_config(consumer),
            transactions=TransactionConfig(**read_fields(transactions, TRANSACTION_CONFIGS)),
            limits=ListenerLimits.parse(limits),
        )


def _consumer_config(values: Mapping[str, str]) -> ConsumerConfig:
    """Read values. Raises: InvalidConfig."""
    config = ConsumerConfig(**read_fields(values, CONSUMER_CONFIGS))
    for name, setting in CONSUMER_CONFIGS.items():
        if not name.startswith("group.consumer.min."):
            continue
        base = CONSUMER_CONFIGS[name.replace(".min.", ".", 1)]
        highest = CONSUMER_CONFIGS[name.replace(".min.", ".max.", 1)]
        low, value, high = (getattr(config, one.field) for one in (setting, base, highest))
        if not low <= value <= high:
            raise InvalidConfig(
                f"{base.name} is {value}; it must lie between its min and max settings, {low} to {high}"
            )
    if config.heartbeat_interval_ms >= config.session_timeout_ms:
        raise InvalidConfig(
            f"group.consumer.heartbeat.interval.ms is {config.heartbeat_interval_ms}; it must be below "
            f"group.consumer.session.timeout.ms, {config.session_timeout_ms}"
        )
    return config


def read_properties(path: Path) -> dict[str, str]:
    """Read a server.properties file. Raises: InvalidConfig."""
    try:
        if path.stat().st_size > PROPERTIES_BYTES_MAX:
            raise InvalidConfig(f"{path} has more than {PROPERTIES_BYTES_MAX} bytes; name a server.properties file")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        raise InvalidConfig(f"the file of settings {path} cannot be read: {reason}") from None
    return parse_properties(text)


def parse_properties(text: str) -> dict[str, str]:
    """Parse `name=value` lines as in Java's properties: comments with # or !, a backslash at the end goes on below.

    A name that stands twice has its last value.
    """
    found: dict[str, str] = {}
    for line in _logical_lines(text):
        match = _KEY.match(line)
        if match is not None:
            found[match["name"]] = match["value"].strip()
    return found


def parse_words(words: Iterable[str]) -> dict[str, str]:
    """Parse `name=value` words of a command line. Raises: InvalidConfig."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise InvalidConfig(f"{word!r} is no setting; write name=value")
        found[name.strip()] = value.strip()
    return found


def _logical_lines(text: str) -> Iterable[str]:
    begun = ""
    for line in text.splitlines():
        line = begun + line.strip()
        if not begun and (not line or line[0] in "#!"):
            continue
        if line.endswith("\\"):
            begun = line[:-1]
            continue
        begun = ""
        yield line
    if begun:
        yield begun
