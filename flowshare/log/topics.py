"""Topics: allowed names and settings, and the registry of the present topics.

Settings have Kafka's names and meanings. Other than in Kafka, nothing is deleted unless a topic asks for it
(`retention.ms` and `retention.bytes` default to −1): a queue must not lose records that nobody has handled yet.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Final

import orjson

from flowshare.core_errors import InvalidConfig
from flowshare.log.base import InvalidTopic, InvalidTopicConfig, StorageDamaged, Topic, TopicExists, UnknownTopic
from flowshare.share.settings import Setting, nearest, read_fields, read_number, read_word

NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")
NAME_LENGTH_MAX: Final = 249
PARTITIONS_MAX: Final = 10_000
RESERVED_PREFIX: Final = "__"
_LONG_MAX: Final = 2**63 - 1


def _number(name: str, field: str, default: int, doc: str, low: int, high: int = _LONG_MAX) -> Setting:
    return Setting(name=name, field=field, doc=doc, default=str(default), read=read_number, low=low, high=high)


def _word(name: str, field: str, doc: str, *words: str) -> Setting:
    """Return a setting with a choice of words, by default the first."""
    known = dict(zip(words, words, strict=True))
    return Setting(name=name, field=field, doc=doc, default=words[0], read=read_word, words=known)


def _read_ratio(setting: Setting, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise setting.refuse(text)
    return value


_TABLE: Final = (
    _word(
        "cleanup.policy",
        "policy",
        "What happens to old records: they are deleted by the retention settings, or (compact) once a newer record "
        "of the same key is there, or both.",
        *("delete", "compact", "compact,delete", "delete,compact"),
    ),
    _word("compression.type", "compression", "Batches are kept as produced.", "producer"),
    _number(
        "delete.retention.ms",
        "delete_retention_ms",
        86_400_000,
        "Milliseconds that a compacted topic keeps records without value, and the marks that end transactions, "
        "from their first compaction on.",
        0,
    ),
    # Programs that make dead-letter topics for Kafka 4.4 give their consent so; the consent cannot be taken back here.
    _word(
        "errors.deadletterqueue.group.enable",
        "dead_letters",
        "A topic's consent to dead letters in Kafka; here a group that names the topic is enough.",
        "true",
    ),
    _number(
        "max.compaction.lag.ms",
        "lag_ms_max",
        _LONG_MAX,
        "A compacted topic's records are compacted when one is older than that.",
        1,
    ),
    _number("max.message.bytes", "max_message_bytes", 1_048_588, "Largest batch taken, in bytes.", 0, 2**31 - 1),
    _number(
        "message.timestamp.after.max.ms",
        "timestamp_after_max_ms",
        3_600_000,
        "How far a record's timestamp may lie ahead of the log's clock, in milliseconds (CreateTime only).",
        0,
    ),
    _number(
        "message.timestamp.before.max.ms",
        "timestamp_before_max_ms",
        _LONG_MAX,
        "How far a record's timestamp may lie behind the log's clock, in milliseconds (CreateTime only).",
        0,
    ),
    _word(
        "message.timestamp.type",
        "timestamp_type",
        "Whose clock stamps records: the producer's or the log's.",
        *("CreateTime", "LogAppendTime"),
    ),
    Setting(
        name="min.cleanable.dirty.ratio",
        field="dirty_ratio_min",
        doc="Part of a compacted partition's bytes that is not compacted yet from which on it is.",
        default="0.5",
        read=_read_ratio,
        low=0,
        high=1,
    ),
    _number("min.compaction.lag.ms", "lag_ms_min", 0, "Milliseconds that a compacted topic keeps every record.", 0),
    _number("retention.bytes", "retention_bytes", -1, "Bytes kept per partition; -1: all.", -1),
    _number("retention.ms", "retention_ms", -1, "Milliseconds that records are kept; -1: for ever.", -1),
)
TOPIC_CONFIGS: Final[Mapping[str, Setting]] = MappingProxyType({setting.name: setting for setting in _TABLE})
"""Every topic setting, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionSettings:
    """Conditions of a topic's compaction, and how long it keeps tombstones and markers from their first compaction on,
    in ms."""

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
        """Return the values of checked settings, defaults filled in."""
        values = read_fields(configs, TOPIC_CONFIGS)
        policies = values["policy"].split(",")
        if "delete" not in policies:
            values |= {"retention_ms": -1, "retention_bytes": -1}
        own = {one.name: values[one.name] for one in fields(cls) if one.name in values}
        compaction = {one.name: values[one.name] for one in fields(CompactionSettings)}
        return cls(
            append_time=values["timestamp_type"] == "LogAppendTime",
            compaction=CompactionSettings(**compaction) if "compact" in policies else None,
            **own,
        )

    @property
    def expires(self) -> bool:
        """True if records of the topic are ever deleted by age or size."""
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


def check_output(topic: str) -> None:
    """Check that outputs of records may go to a topic: names that start with `__` are Kafka's own and flowshare's, for
    state that others rely on. Raises: InvalidTopic."""
    if topic.startswith(RESERVED_PREFIX):
        raise InvalidTopic(
            f"topic {topic!r} takes no outputs: names that start with {RESERVED_PREFIX!r} are Kafka's own and "
            "flowshare's; send to another topic"
        )


def check_configs(configs: Mapping[str, str]) -> None:
    """Check names and values of topic settings. Raises: InvalidTopicConfig."""
    for name, text in configs.items():
        definition = TOPIC_CONFIGS.get(name)
        if definition is None:
            hint = nearest(name, TOPIC_CONFIGS) or f"; there are {', '.join(TOPIC_CONFIGS)}"
            raise InvalidTopicConfig(f"topic setting {name!r} is unknown{hint}")
        try:
            definition.parse(text)
        except InvalidConfig as error:
            raise InvalidTopicConfig(f"topic setting {error}") from None
    names = ("min.compaction.lag.ms", "max.compaction.lag.ms")
    low, high = (int(configs.get(name, default_of(name))) for name in names)
    if low > high:
        raise InvalidTopicConfig(f"min.compaction.lag.ms={low} is more than max.compaction.lag.ms={high}")


def check_new(name: str, configs: Mapping[str, str], existing: Collection[str], *, internal: bool = False) -> None:
    """Check that a topic with this name and these settings can be made. Raises: TopicExists, InvalidTopic."""
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
        """Return the topic. Raises: UnknownTopic."""
        try:
            return self._topics[name]
        except KeyError:
            raise UnknownTopic(f"there is no topic {name!r}") from None

    def settings(self, name: str) -> TopicSettings:
        """Return the topic's settings. Raises: UnknownTopic."""
        self.get(name)
        return self._settings[name]

    def put(self, topic: Topic) -> None:
        """Add or replace a topic."""
        self._topics[topic.name] = topic
        self._settings[topic.name] = TopicSettings.of(topic.configs)

    def remove(self, name: str) -> None:
        """Remove a topic."""
        del self._topics[name]
        del self._settings[name]

    def plan_create(self, name: str, partitions: int, configs: Mapping[str, str], *, internal: bool = False) -> Topic:
        """Plan a new topic. Raises: TopicExists, InvalidTopic."""
        check_new(name, configs, self._topics, internal=internal)
        _check_partitions(partitions)
        return Topic(name=name, topic_id=uuid.uuid4(), partitions=partitions, configs=dict(configs))

    def plan_partitions(self, name: str, total: int) -> Topic:
        """Plan more partitions. Raises: UnknownTopic, InvalidTopic."""
        topic = self.get(name)
        _check_partitions(total)
        if total <= topic.partitions:
            raise InvalidTopic(f"topic {name!r} has {topic.partitions} partitions; their number can only grow")
        return replace(topic, partitions=total)

    def plan_alter(self, name: str, changes: Mapping[str, str | None]) -> Topic:
        """Plan other settings. Raises: UnknownTopic, InvalidTopic."""
        topic = self.get(name)
        check_configs({key: value if value is not None else default_of(key) for key, value in changes.items()})
        merged = {key: value for key, value in {**topic.configs, **changes}.items() if value is not None}
        check_configs(merged)
        return replace(topic, configs=merged)


def encode_topic(topic: Topic) -> bytes:
    """Return the topic's stored form."""
    return orjson.dumps(
        {"name": topic.name, "id": str(topic.topic_id), "partitions": topic.partitions, "configs": dict(topic.configs)}
    )


def decode_topic(stored: bytes) -> Topic:
    """Decode a topic. Raises: StorageDamaged."""
    try:
        told = orjson.loads(stored)
        return Topic(
            name=told["name"],
            topic_id=uuid.UUID(told["id"]),
            partitions=told["partitions"],
            configs=told["configs"],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise StorageDamaged(f"a stored topic cannot be read: {error}") from error


def default_of(name: str) -> str:
    """Return the default of a topic setting as text, empty for an unknown one."""
    return TOPIC_CONFIGS[name].default if name in TOPIC_CONFIGS else ""


def _metric_name(name: str) -> str:
    return name.replace(".", "_")


def _check_partitions(partitions: int) -> None:
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise InvalidTopic(f"{partitions} partitions: 1 to {PARTITIONS_MAX} are possible")
