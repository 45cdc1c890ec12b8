"""The tables of settings: Kafka's names, defaults and bounds (KIP-932, KIP-1191, KIP-1240), and flowshare's own few.

`config.py` reads values through them. Flowshare's own: `share.partition.max.window`, `share.dead.letter.on`,
`share.retention.ms`, `share.paused`, `share.max.in.flight`, `share.max.rate`, `share.delivery.priority`,
`share.breaker.…`, `share.key.order`, `share.acquire.durable`, `group.share.return.grace.ms`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from flowshare.share.rate import read_rate
from flowshare.share.settings import (
    Setting,
    by_name,
    read_flag,
    read_key_order,
    read_number,
    read_offset_reset,
    read_text,
    read_word,
)
from flowshare.share.types import Priority

FLAG: Final[Mapping[str, bool]] = {"true": True, "false": False}


def _number(
    name: str,
    field: str,
    default: int | str,
    low: int,
    high: int | None,
    doc: str,
    words: Mapping[str, int | None] | None = None,
) -> Setting:
    return Setting(
        name=name, field=field, default=str(default), low=low, high=high, doc=doc, words=words, read=read_number
    )


def _flag(name: str, field: str, default: str, doc: str) -> Setting:
    return Setting(name=name, field=field, default=default, doc=doc, words=FLAG, read=read_flag)


def _word(name: str, field: str, default: str, words: tuple[str, ...], doc: str) -> Setting:
    return Setting(name=name, field=field, default=default, doc=doc, words={w: w for w in words}, read=read_word)


def _text(name: str, field: str, doc: str) -> Setting:
    return Setting(name=name, field=field, default="", doc=doc, read=read_text)


def _triple(
    name: str,
    field: str,
    default: tuple[int, int, int | None],
    low: tuple[int, int, int | None],
    high: tuple[int, int, int | None],
    doc: str,
) -> list[Setting]:
    """Return `group.share.<name>` and its `min` and `max`; each is given as (default, lowest allowed, highest
    allowed)."""
    stem = field.removesuffix("_ms")
    unit = "_ms" if field.endswith("_ms") else ""
    return [
        _number(f"group.share.{name}", field, *default, doc),
        _number(f"group.share.min.{name}", f"{stem}_min{unit}", *low, f"Lowest value a group may set: {doc}"),
        _number(f"group.share.max.{name}", f"{stem}_max{unit}", *high, f"Highest value a group may set: {doc}"),
    ]


SERVER_CONFIGS: Final[Mapping[str, Setting]] = by_name(
    *_triple(
        "session.timeout.ms",
        "session_timeout_ms",
        (45_000, 1, None),
        (45_000, 1, None),
        (60_000, 1, None),
        "How long a member may be silent before it is removed from its group.",
    ),
    *_triple(
        "heartbeat.interval.ms",
        "heartbeat_interval_ms",
        (5_000, 1, None),
        (5_000, 1, None),
        (15_000, 1, None),
        "How often a member sends a heartbeat.",
    ),
    *_triple(
        "assignment.interval.ms",
        "assignment_interval_ms",
        (1_000, 0, None),
        (0, 0, None),
        (15_000, 0, None),
        "Least time between two computations of a group's assignment.",
    ),
    *_triple(
        "delivery.count.limit",
        "delivery_count_limit",
        (5, 2, 10),
        (2, 2, 5),
        (10, 5, 25),
        "How often a record is delivered before it is archived.",
    ),
    *_triple(
        "record.lock.duration.ms",
        "record_lock_duration_ms",
        (30_000, 1_000, 3_600_000),
        (15_000, 1_000, 30_000),
        (60_000, 30_000, 3_600_000),
        "How long a member holds the records it acquired.",
    ),
    *_triple(
        "partition.max.record.locks",
        "partition_max_record_locks",
        (2_000, 100, 10_000),
        (100, 100, 2_000),
        (4_000, 2_000, 10_000),
        "How many records of a share-partition may be acquired at once.",
    ),
    _number("group.share.max.size", "group_max_size", 200, 1, 1_000, "Members a group may have."),
    _number(
        "group.share.max.share.sessions",
        "share_sessions_max",
        2_000,
        1,
        None,
        "Share sessions open at once; one principal (without logins: address) has at most nine of ten that others do "
        "not have.",
    ),
    _number(
        "connection.max.share.sessions",
        "connection_share_sessions_max",
        100,
        1,
        None,
        "Share sessions that one connection may open; clients open one.",
    ),
    _number(
        "group.share.max.groups",
        "share_groups_max",
        10_000,
        1,
        None,
        "Share groups that may exist; one principal (without logins: address) makes at most as many as are left.",
    ),
    _word("group.share.assignors", "assignor", "simple", ("simple",), "The assignor of share groups."),
    _number(
        "group.share.partition.max.window",
        "partition_max_window",
        200_000,
        100,
        1_000_000,
        "Default of share.partition.max.window.",
        {"locks": None},
    ),
    _number(
        "group.share.retention.ms",
        "retention_ms",
        -1,
        0,
        None,
        "Default of share.retention.ms.",
        {"-1": None},
    ),
    _number(
        "share.coordinator.snapshot.update.records.per.snapshot",
        "snapshot_updates_max",
        500,
        0,
        500,
        "Updates of a share-partition's state after which a snapshot is written; 0: a snapshot each time.",
    ),
    replace(
        _text(
            "errors.deadletterqueue.topic.name.prefix",
            "dead_letter_prefix",
            "How dead-letter topics' names must start.",
        ),
        default="dlq.",
    ),
    _flag(
        "errors.deadletterqueue.auto.create.topics.enable",
        "dead_letter_auto_create",
        "false",
        "Whether a missing dead-letter topic is created.",
    ),
    _flag(
        "auto.create.topics.enable",
        "auto_create_topics",
        "true",
        "Whether a topic that a client asks for by name, and may create, is made when it does not exist.",
    ),
    _number(
        "num.partitions", "partitions_default", 1, 1, 10_000, "Partitions of a new topic when nobody says how many."
    ),
    _number(
        "coordinator.state.max.bytes",
        "coordinator_state_bytes",
        134_217_728,
        1,
        None,
        "Bytes that members, committed offsets and open transactions of all groups may take in memory, about; one "
        "principal (without logins: address) holds no more than is left.",
    ),
    _number(
        "max.partitions", "partitions_max", 50_000, 1, None, "Partitions that all topics may have before more are made."
    ),
    _number(
        "max.request.new.partitions",
        "request_partitions_max",
        10_000,
        1,
        None,
        "Partitions that one CreateTopics or CreatePartitions request may make.",
    ),
    _number(
        "controller_mutation_rate",
        "mutation_rate",
        200,
        1,
        None,
        "Partitions that one principal (without logins: one address) may create, add and delete a second, once it has "
        "used up the quota's window; unlimited: as many as it likes (KIP-599).",
        {"unlimited": None},
    ),
    _number(
        "controller.quota.window.num",
        "mutation_windows",
        100,
        1,
        3_600,
        "Windows' worth of controller_mutation_rate that may be used at once.",
    ),
    _number(
        "controller.quota.window.size.seconds",
        "mutation_window_s",
        1,
        1,
        3_600,
        "Length of each of these windows.",
    ),
    _flag(
        "share.acquire.durable",
        "acquire_durable",
        "true",
        "Whether an acquire is written before its records leave, so that a crash never loses a delivery count.",
    ),
    _number(
        "group.share.return.grace.ms",
        "return_grace_ms",
        0,
        0,
        60_000,
        "How long members may take to come back to a server that was started anew; until then they keep their records. "
        "As long members of flowshare's own whose connection broke stay in their group. 0: as Kafka's brokers.",
    ),
)
"""Name -> setting of Kafka's brokers, with Kafka's own defaults and bounds."""


def _wide(name: str, default: int, low: int, high: int) -> Setting:
    return replace(SERVER_CONFIGS[name], default=str(default), low=low, high=high)


EMBEDDED_CONFIGS: Final[Mapping[str, Setting]] = {
    **SERVER_CONFIGS,
    **by_name(
        _wide("group.share.min.session.timeout.ms", 100, 1, 3_600_000),
        _wide("group.share.max.session.timeout.ms", 3_600_000, 1, 3_600_000),
        _wide("group.share.min.heartbeat.interval.ms", 10, 1, 3_600_000),
        _wide("group.share.max.heartbeat.interval.ms", 3_600_000, 1, 3_600_000),
        _wide("group.share.max.size", 200, 1, 10_000),
        _wide("group.share.delivery.count.limit", 5, 2, 1_000_000),
        _wide("group.share.min.delivery.count.limit", 2, 2, 1_000_000),
        _wide("group.share.max.delivery.count.limit", 1_000_000, 2, 1_000_000),
        _wide("group.share.min.record.lock.duration.ms", 1_000, 1_000, 3_600_000),
        _wide("group.share.max.record.lock.duration.ms", 3_600_000, 1_000, 3_600_000),
        _wide("group.share.partition.max.record.locks", 2_000, 1, 1_000_000),
        _wide("group.share.min.partition.max.record.locks", 1, 1, 1_000_000),
        _wide("group.share.max.partition.max.record.locks", 1_000_000, 1, 1_000_000),
        replace(SERVER_CONFIGS["group.share.return.grace.ms"], default="3000"),
        replace(SERVER_CONFIGS["errors.deadletterqueue.topic.name.prefix"], default=""),
        replace(SERVER_CONFIGS["errors.deadletterqueue.auto.create.topics.enable"], default="true"),
    ),
}
"""The same names with the wide bounds of flowshare's own server."""


BOUNDED: Final = (
    ("share.session.timeout.ms", "How long a member may be silent before it is removed; above the heartbeat interval."),
    ("share.heartbeat.interval.ms", "How often members send a heartbeat."),
    ("share.assignment.interval.ms", "Least time between two computations of the assignment."),
    ("share.delivery.count.limit", "How often a record is delivered before it is archived."),
    ("share.record.lock.duration.ms", "How long a member holds the records it acquired."),
    ("share.partition.max.record.locks", "How many records of a share-partition may be acquired at once."),
)


def _group_number(name: str, doc: str) -> Setting:
    server = SERVER_CONFIGS[f"group.{name}"]
    return replace(server, name=name, doc=doc, low=0, high=None)


GROUP_CONFIGS: Final[Mapping[str, Setting]] = by_name(
    *(_group_number(name, doc) for name, doc in BOUNDED),
    Setting(
        name="share.auto.offset.reset",
        field="auto_offset_reset",
        default="latest",
        doc="Where a share-partition starts that has no start offset yet.",
        words={"latest": "latest", "earliest": "earliest", "by_duration:<ISO-8601 duration>": None},
        read=read_offset_reset,
    ),
    _word(
        "share.isolation.level",
        "isolation_level",
        "read_uncommitted",
        ("read_uncommitted", "read_committed"),
        "Whether records of open and aborted transactions are delivered.",
    ),
    _flag(
        "share.renew.acknowledge.enable",
        "renew_acknowledge_enable",
        "true",
        "Whether members may renew the lock of a record they hold.",
    ),
    replace(
        SERVER_CONFIGS["group.share.partition.max.window"],
        name="share.partition.max.window",
        doc="Span of offsets from a share-partition's start offset to its end offset; `locks`: as the limit of record "
        "locks, finished records included, exactly as Kafka's brokers count.",
    ),
    replace(
        SERVER_CONFIGS["group.share.retention.ms"],
        name="share.retention.ms",
        doc="How long the state of a group without members is kept; -1: for ever.",
    ),
    _text(
        "errors.deadletterqueue.topic.name", "dead_letter_topic", "Topic that gets the records given up; empty: none."
    ),
    _flag(
        "errors.deadletterqueue.copy.record.enable",
        "dead_letter_copy_record",
        "false",
        "Whether dead letters carry key, value and headers of the record.",
    ),
    _word(
        "share.dead.letter.on",
        "dead_letter_on",
        "all",
        ("all", "limit"),
        "Which records become dead letters: all given up, or only those that reached the delivery limit.",
    ),
    _flag(
        "share.paused",
        "paused",
        "false",
        "Whether nothing more is acquired; what members hold they can acknowledge and renew.",
    ),
    _number(
        "share.max.in.flight",
        "max_in_flight",
        0,
        1,
        None,
        "How many records all members together may hold at once, over all topics and partitions; 0: no limit.",
        {"0": None},
    ),
    Setting(
        name="share.max.rate",
        field="max_rate",
        default="0",
        doc="How many records are handed out to all members together, redeliveries included, in a second (100/s), a "
        "minute (10/m) or an hour; half a second's worth at once after a pause; 0: no limit.",
        words={"a rate such as 100/s or 10/m": "", "0": None},
        read=read_rate,
    ),
    _number(
        "share.breaker.failure.percent",
        "breaker_percent",
        0,
        0,
        100,
        "How many in a hundred of the last outcomes must have failed for the group's breaker to open: then nothing is "
        "handed out for a while, and one record to try; 0: no breaker. Members of flowshare's own tell their outcomes.",
    ),
    _number(
        "share.breaker.window.size", "breaker_window", 20, 1, 1_000_000, "How many of the last outcomes that looks at."
    ),
    _number(
        "share.breaker.open.ms", "breaker_open_ms", 30_000, 1_000, 86_400_000, "How long a breaker stays open at first."
    ),
    _number(
        "share.breaker.open.max.ms",
        "breaker_open_max_ms",
        300_000,
        1_000,
        86_400_000,
        "How long it stays open at most: each record that was tried and failed doubles the time.",
    ),
    _word(
        "share.delivery.priority",
        "delivery_priority",
        "redeliveries",
        tuple(str(priority) for priority in Priority),
        "What is delivered first: redeliveries, new records (redeliveries when there are none, or the window is full), "
        "or mixed: both by turns.",
    ),
    Setting(
        name="share.key.order",
        field="key_order",
        default="",
        doc="What orders records: those of one key, or of one value of a header, are delivered one after the other; "
        "empty: nothing does. It changes while the group has no members and nothing of it is in flight.",
        words={"key": "key", "header:<name>": None, "nothing": ""},
        read=read_key_order,
    ),
    _word(
        "share.key.after.dead.letter",
        "after_dead_letter",
        "continue",
        ("continue", "park"),
        "In a group with an order, what becomes of a key of which a record became a dead letter: continue: it goes on; "
        "park: its later records become dead letters, too, in order, until they are replayed.",
    ),
)
"""Name -> setting of a share group. A server's own defaults and bounds take precedence."""
