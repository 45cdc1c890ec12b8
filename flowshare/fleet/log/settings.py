"""Settings of a worker's reading ahead and looking up; durations are seconds, sizes are bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

KIB: Final = 1 << 10
MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """Settings of a `KafkaLog`.

    ahead_bytes: most bytes of records of all partitions in memory; one fetch's records may come on top.
    ahead_partition_bytes: the same of one partition and isolation level; less when there are so many partitions that
        `ahead_bytes` would not do for all, but at least `ahead_least_bytes`.
    stretch_bytes: size of one read of older records (max.partition.fetch.bytes).
    watch_bytes: largest answer about the log's ends (fetch.max.bytes).
    wait_s: how long a broker may wait before it answers about the log's ends (fetch.max.wait.ms).
    look_s: how often the bounds are looked up of a partition that is not read now, because members lag.
    idle_s: time without reads after which an isolation level of a partition is not read ahead any more.
    refresh_s: how often topics are looked up (metadata.max.age.ms).
    gone_s: a topic counts as deleted when two looks this far apart do not find it: a broker that has just started may
        not know of it yet.
    topics_max: topics that are looked up at a time; the ones asked for longest ago are forgotten.
    """

    ahead_bytes: int = 128 * MIB
    ahead_partition_bytes: int = 8 * MIB
    ahead_least_bytes: int = 256 * KIB
    stretch_bytes: int = MIB
    watch_bytes: int = 8 * MIB
    wait_s: float = 0.5
    look_s: float = 1.0
    idle_s: float = 30.0
    refresh_s: float = 5.0
    gone_s: float = 1.0
    topics_max: int = 10_000
