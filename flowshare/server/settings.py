"""All settings of a server in one place: groups' of both kinds and the listener's, from a server.properties or words.

A name that no part knows is refused with the nearest one that some part does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from flowshare.core_errors import InvalidConfig
from flowshare.groups.types import ClassicConfig
from flowshare.server.net.limits import LISTENER_CONFIGS, ListenerLimits
from flowshare.share.config import EMBEDDED_CONFIGS, ServerConfig
from flowshare.share.settings import Setting, by_name, number, read_fields, unknown
from flowshare.transactions.coordinator import TransactionConfig

_group = partial(number, ClassicConfig())
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
"""Of consumer groups and committed offsets, under the names of Kafka's brokers."""

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
"""Of producers and transactions, under the names of Kafka's brokers."""

PROPERTIES_BYTES_MAX: Final = 1024 * 1024
_KEY: Final = re.compile(r"(?P<name>[^\s=:]+)\s*[=:\s]?\s*(?P<value>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a server is told at its start."""

    server: ServerConfig
    classic: ClassicConfig
    transactions: TransactionConfig
    limits: ListenerLimits

    @classmethod
    def parse(cls, values: Mapping[str, str]) -> Settings:
        """Read settings by their names. Raises: InvalidConfig (unknown name, value out of bounds, contradiction)."""
        tables = (EMBEDDED_CONFIGS, CLASSIC_CONFIGS, TRANSACTION_CONFIGS, LISTENER_CONFIGS)
        known = {name for table in tables for name in table}
        for name in values:
            if name not in known:
                raise unknown(name, known)
        server, classic, transactions, limits = (
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
            transactions=TransactionConfig(**read_fields(transactions, TRANSACTION_CONFIGS)),
            limits=ListenerLimits.parse(limits),
        )


def read_properties(path: Path) -> dict[str, str]:
    """The settings of a server.properties file. Raises: InvalidConfig."""
    try:
        if path.stat().st_size > PROPERTIES_BYTES_MAX:
            raise InvalidConfig(f"{path} has more than {PROPERTIES_BYTES_MAX} bytes; name a server.properties file")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        raise InvalidConfig(f"the file of settings {path} cannot be read: {reason}") from None
    return parse_properties(text)


def parse_properties(text: str) -> dict[str, str]:
    """`name=value` lines as in Java's properties: comments with # or !, a backslash at the end goes on below.

    Of a name that stands twice the last value counts.
    """
    found: dict[str, str] = {}
    for line in _logical_lines(text):
        match = _KEY.match(line)
        if match is not None:
            found[match["name"]] = match["value"].strip()
    return found


def parse_words(words: Iterable[str]) -> dict[str, str]:
    """`name=value` words of a command line. Raises: InvalidConfig."""
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
