"""Topics: which names and settings are taken, and the registry of what exists.

Settings have Kafka's names and meanings. Other than Kafka, nothing is deleted unless a topic asks for it
(`retention.ms` and `retention.bytes` default to −1): a queue must not lose records that nobody has handled yet.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, NamedTuple

import orjson

from flowshare.log.base import InvalidTopic, InvalidTopicConfig, StorageDamaged, Topic, TopicExists, UnknownTopic
from flowshare.share.settings import nearest

NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")
NAME_LENGTH_MAX: Final = 249
PARTITIONS_MAX: Final = 10_000
RESERVED_PREFIX: Final = "__"
_LONG_MAX: Final = 2**63 - 1


class TopicConfigDef(NamedTuple):
    """One setting of a topic: its default as text, what it means, and the check that raises ValueError."""

    default: str
    doc: str
    check: Callable[[str], object]


def _integer(low: int, high: int = _LONG_MAX) -> Callable[[str], int]:
    def check(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError("a whole number is wanted") from None
        if not low <= value <= high:
            raise ValueError(f"must be between {low} and {high}")
        return value

    return check


def _ratio(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError("a number is wanted") from None
    if not 0 <= value <= 1:
        raise ValueError("must be between 0 and 1")
    return value


def _one_of(*values: str) -> Callable[[str], str]:
    def check(text: str) -> str:
        if text not in values:
            raise ValueError(f"only {' or '.join(values)} is supported")
        return text

    return check


TOPIC_CONFIGS: Final[Mapping[str, TopicConfigDef]] = MappingProxyType(
    {
        "cleanup.policy": TopicConfigDef(
            "delete",
            "What happens to old records: they are deleted by the retention settings, or (compact) once a newer record "
            "of the same key is there, or both.",
            _one_of("delete", "compact", "compact,delete", "delete,compact"),
        ),
        "compression.type": TopicConfigDef("producer", "Batches are kept as produced.", _one_of("producer")),
        "delete.retention.ms": TopicConfigDef(
            "86400000",
            "Milliseconds that a compacted topic keeps records without value, and the marks that end transactions, "
            "from their first compaction on.",
            _integer(0),
        ),
        "errors.deadletterqueue.group.enable": TopicConfigDef(
            "false",
            "A topic's consent to dead letters in Kafka; not asked for here, a group that names the topic is enough.",
            _one_of("true", "false"),
        ),
        "max.compaction.lag.ms": TopicConfigDef(
            str(_LONG_MAX), "A compacted topic's records are compacted when one is older than that.", _integer(1)
        ),
        "max.message.bytes": TopicConfigDef("1048588", "Largest batch taken, in bytes.", _integer(0, 2**31 - 1)),
        "message.timestamp.after.max.ms": TopicConfigDef(
            "3600000",
            "How far a record's timestamp may lie ahead of the log's clock, in milliseconds (CreateTime only).",
            _integer(0),
        ),
        "message.timestamp.before.max.ms": TopicConfigDef(
            str(_LONG_MAX),
            "How far a record's timestamp may lie behind the log's clock, in milliseconds (CreateTime only).",
            _integer(0),
        ),
        "message.timestamp.type": TopicConfigDef(
            "CreateTime",
            "Whose clock stamps records: the producer's or the log's.",
            _one_of("CreateTime", "LogAppendTime"),
        ),
        "min.cleanable.dirty.ratio": TopicConfigDef(
            "0.5",
            "Part of a compacted partition's bytes that is not compacted yet from which on it is.",
            _ratio,
        ),
        "min.compaction.lag.ms": TopicConfigDef(
            "0", "Milliseconds that a compacted topic keeps every record.", _integer(0)
        ),
        "retention.bytes": TopicConfigDef("-1", "Bytes kept per partition; -1: all.", _integer(-1)),
        "retention.ms": TopicConfigDef("-1", "Milliseconds that records are kept; -1: for ever.", _integer(-1)),
    }
)
"""Every topic setting, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionSettings:
    """When a topic is compacted, and how long it keeps tombstones and markers from their first compaction on."""

    dirty_ratio_min: float
    lag_ms_min: int
    lag_ms_max: int
    delete_retention_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """A topic's settings as values; retention −1 means without limit, `compaction` None: the topic is not compacted."""

    max_message_bytes: int
    append_time: bool
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    retention_ms: int
    retention_bytes: int
    compaction: CompactionSettings | None = None

    @classmethod
    def of(cls, configs: Mapping[str, str]) -> TopicSettings:
        """Values of checked settings, defaults filled in."""

        def value(name: str) -> str:
            return configs.get(name, TOPIC_CONFIGS[name].default)

        policies = value("cleanup.policy").split(",")
        deletes, compaction = "delete" in policies, None
        if "compact" in policies:
            compaction = CompactionSettings(
                dirty_ratio_min=float(value("min.cleanable.dirty.ratio")),
                lag_ms_min=int(value("min.compaction.lag.ms")),
                lag_ms_max=int(value("max.compaction.lag.ms")),
                delete_retention_ms=int(value("delete.retention.ms")),
            )
        return cls(
            max_message_bytes=int(value("max.message.bytes")),
            append_time=value("message.timestamp.type") == "LogAppendTime",
            timestamp_before_max_ms=int(value("message.timestamp.before.max.ms")),
            timestamp_after_max_ms=int(value("message.timestamp.after.max.ms")),
            retention_ms=int(value("retention.ms")) if deletes else -1,
            retention_bytes=int(value("retention.bytes")) if deletes else -1,
            compaction=compaction,
        )

    @property
    def expires(self) -> bool:
        """Whether records of the topic are ever deleted by age or size."""
        return self.retention_ms >= 0 or self.retention_bytes >= 0


def check_name(name: str, *, internal: bool = False) -> None:
    """Check a topic name by Kafka's rules; names that start with `__` are flowshare's own.

    Raises: InvalidTopic
    """
    if name in ("", ".", "..") or not NAME.fullmatch(name):
        raise InvalidTopic(f"topic name {name!r}: letters, digits, '.', '_' and '-' are taken, at least one of them")
    if len(name) > NAME_LENGTH_MAX:
        raise InvalidTopic(f"topic name of {len(name)} characters: at most {NAME_LENGTH_MAX} are taken")
    if name.startswith(RESERVED_PREFIX) and not internal:
        raise InvalidTopic(f"topic name {name!r}: names that start with {RESERVED_PREFIX!r} are reserved")


def check_configs(configs: Mapping[str, str]) -> None:
    """Check names and values of topic settings. Raises: InvalidTopicConfig."""
    for name, text in configs.items():
        definition = TOPIC_CONFIGS.get(name)
        if definition is None:
            hint = nearest(name, TOPIC_CONFIGS) or f"; there are {', '.join(TOPIC_CONFIGS)}"
            raise InvalidTopicConfig(f"topic setting {name!r} is unknown{hint}")
        try:
            definition.check(text)
        except ValueError as error:
            raise InvalidTopicConfig(f"topic setting {name}={text!r}: {error}") from None
    names = ("min.compaction.lag.ms", "max.compaction.lag.ms")
    low, high = (int(configs.get(name, default_of(name))) for name in names)
    if low > high:
        raise InvalidTopicConfig(f"min.compaction.lag.ms={low} is more than max.compaction.lag.ms={high}")


def check_new(name: str, configs: Mapping[str, str], existing: Collection[str], *, internal: bool = False) -> None:
    """Whether a topic of this name and with these settings can be made. Raises: TopicExists, InvalidTopic."""
    check_name(name, internal=internal)
    if name in existing:
        raise TopicExists(f"there is a topic {name!r} already")
    twin = next((other for other in existing if _metric_name(other) == _metric_name(name)), None)
    if twin is not None:
        raise InvalidTopic(f"topic name {name!r} collides with {twin!r}: '.' and '_' are the same in metric names")
    check_configs(configs)


class TopicRegistry:
    """All topics of one storage. `plan_…` checks a change and returns the topic as it would be; `put` applies it."""

    def __init__(self) -> None:
        self._topics: dict[str, Topic] = {}
        self._settings: dict[str, TopicSettings] = {}
        self.view: Final[Mapping[str, Topic]] = MappingProxyType(self._topics)

    def __iter__(self) -> Iterator[Topic]:
        return iter(tuple(self._topics.values()))

    def get(self, name: str) -> Topic:
        """The topic. Raises: UnknownTopic."""
        try:
            return self._topics[name]
        except KeyError:
            raise UnknownTopic(f"there is no topic {name!r}") from None

    def settings(self, name: str) -> TopicSettings:
        """The topic's settings. Raises: UnknownTopic."""
        self.get(name)
        return self._settings[name]

    def put(self, topic: Topic) -> None:
        """Take over a new or changed topic."""
        self._topics[topic.name] = topic
        self._settings[topic.name] = TopicSettings.of(topic.configs)

    def remove(self, name: str) -> None:
        """Forget a topic."""
        del self._topics[name]
        del self._settings[name]

    def plan_create(self, name: str, partitions: int, configs: Mapping[str, str], *, internal: bool = False) -> Topic:
        """Raises: TopicExists, InvalidTopic."""
        check_new(name, configs, self._topics, internal=internal)
        _check_partitions(partitions)
        return Topic(name=name, topic_id=uuid.uuid4(), partitions=partitions, configs=dict(configs))

    def plan_partitions(self, name: str, total: int) -> Topic:
        """Raises: UnknownTopic, InvalidTopic."""
        topic = self.get(name)
        _check_partitions(total)
        if total <= topic.partitions:
            raise InvalidTopic(f"topic {name!r} has {topic.partitions} partitions; their number can only grow")
        return replace(topic, partitions=total)

    def plan_alter(self, name: str, changes: Mapping[str, str | None]) -> Topic:
        """Raises: UnknownTopic, InvalidTopic."""
        topic = self.get(name)
        check_configs({key: value if value is not None else default_of(key) for key, value in changes.items()})
        merged = {key: value for key, value in {**topic.configs, **changes}.items() if value is not None}
        check_configs(merged)
        return replace(topic, configs=merged)


def encode_topic(topic: Topic) -> bytes:
    """The topic as it is stored."""
    return orjson.dumps(
        {"name": topic.name, "id": str(topic.topic_id), "partitions": topic.partitions, "configs": dict(topic.configs)}
    )


def decode_topic(stored: bytes) -> Topic:
    """Raises: StorageDamaged."""
    try:
        fields = orjson.loads(stored)
        return Topic(
            name=fields["name"],
            topic_id=uuid.UUID(fields["id"]),
            partitions=fields["partitions"],
            configs=fields["configs"],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise StorageDamaged(f"a stored topic cannot be read: {error}") from error


def default_of(name: str) -> str:
    """Default of a topic setting as text, empty for one that is unknown."""
    return TOPIC_CONFIGS[name].default if name in TOPIC_CONFIGS else ""


def _metric_name(name: str) -> str:
    return name.replace(".", "_")


def _check_partitions(partitions: int) -> None:
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise InvalidTopic(f"{partitions} partitions: 1 to {PARTITIONS_MAX} are possible")
