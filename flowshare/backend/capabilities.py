"""One table of what backends can do. An app is checked against it when it starts; docs/backends.md shows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from flowshare.backend.base import Capabilities

EMBEDDED: Final = Capabilities(durable=True)
MEMORY: Final = Capabilities(durable=False, durable_acquires=False)
WORKERS: Final = Capabilities(durable=True, cheap_acknowledge=False)
NATIVE: Final = Capabilities(
    durable=True,
    durable_acquires=False,
    delayed_release=False,
    unrun_release=False,
    server_dead_letters=False,
    ranges_only=False,
    fast_acknowledge=False,
    cheap_acknowledge=False,
    own_limits=False,
    window_by_count=False,
    private_stats=False,
    pausing=False,
    group_limit=False,
    fair_locks=False,
    priority=False,
)
BY_NAME: Final[Mapping[str, Capabilities]] = {
    "embedded": EMBEDDED,
    "memory": MEMORY,
    "workers": WORKERS,
    "native": NATIVE,
}


class Row(NamedTuple):
    """One capability: its field, what it means to users, and what is done on native, which lacks most of them."""

    field: str
    what: str
    native: str


TABLE: Final = (
    Row("durable", "what was confirmed is there after a restart", "as the topic is replicated"),
    Row(
        "durable_acquires",
        "a delivery counts though the server that made it is killed",
        "no: after a broker's death its records come again with the count that they had before",
    ),
    Row(
        "delayed_release",
        "a release carries its delay to the server",
        "no: short delays hold and renew the lock, longer ones go through the topic `<group>.retry`",
    ),
    Row(
        "unrun_release",
        "a record that was given back before its handler began has not cost an attempt",
        "no: it costs one, as a worker's death costs all that it had fetched one; so little is fetched ahead",
    ),
    Row(
        "server_dead_letters",
        "what the delivery limit archives is dead-lettered by the server",
        "no: the limit is set above `max_attempts`, and a record that comes with more attempts is dead-lettered unrun",
    ),
    Row("ranges_only", "acquiring without record bytes", "no"),
    Row("group_configs", "groups have settings of their own", "yes, within the brokers' limits"),
    Row(
        "fast_acknowledge",
        "an acknowledgement does not wait for a parked fetch",
        "no: it rides on the next fetch, which is parked 10 to 80 ms at most while records are in hand",
    ),
    Row(
        "cheap_acknowledge",
        "acknowledgements are sent at once; where each request is a write of a broker's, they are gathered for 5 ms",
        "no",
    ),
    Row(
        "own_limits",
        "any `max_attempts` and `lock_duration` can be had",
        "no: the brokers' `group.share.max.delivery.count.limit` (10) and "
        "`group.share.max.record.lock.duration.ms` (60 s) bound them",
    ),
    Row(
        "window_by_count",
        "finished records behind a slow one do not count against the record locks",
        "no: a stuck record stops its partition after 2,000 to 4,000 further offsets",
    ),
    Row(
        "private_stats",
        "`flowshare lag` shows in flight, delayed, oldest age and redeliveries",
        "no: backlog, and the oldest age a little late",
    ),
    Row(
        "pausing",
        "`flowshare groups pause` and `resume`",
        "no: stop its workers, or pause the agents in each of them (`agent.pause()`)",
    ),
    Row(
        "group_limit",
        "`max_in_flight`: how many records a whole group works on at once",
        "no: `concurrency` times the workers; `max_in_flight` is refused",
    ),
    Row(
        "fair_locks",
        "where a limit of records in flight is reached, members share it in equal parts",
        "no: who asks first gets all that is free",
    ),
    Row(
        "priority",
        "`priority`: new records before redeliveries, or both by turns",
        "no: redeliveries come first; `priority` is refused",
    ),
)


def render() -> str:
    """The table as Markdown, as docs/backends.md has it."""
    lines = ["| what | embedded | memory | workers (any Kafka) | native (Kafka ≥ 4.2) |", "|---|---|---|---|---|"]
    for row in TABLE:
        local = " | ".join("yes" if getattr(one, row.field) else "no" for one in (EMBEDDED, MEMORY, WORKERS))
        lines.append(f"| {row.what} | {local} | {row.native} |")
    return "\n".join(lines)
