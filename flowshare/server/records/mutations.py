"""Limits on the partitions that a party makes and removes: Kafka's quota `controller_mutation_rate` (KIP-599).

Each party has a bucket of tokens that fills at the quota's rate. Partitions that are created, added or deleted take a
token each, whether that succeeds or not. A topic may take more than there are; from then on the party is refused until
the bucket is out of debt, as in Kafka. So a party makes at most the burst and one more topic at once.

Pure: times are arguments, in seconds of a clock that is never set.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from flowshare.protocol.errors import ErrorCode
from flowshare.server.runtime.failures import Refused

BUCKETS_MAX: Final = 10_000
"""Most parties remembered; a party with a full bucket need not be."""


class Throttled(Refused):
    """A party has made too many partitions lately. `throttle_ms`: time until it may make some again."""

    def __init__(self, message: str, throttle_ms: int) -> None:
        super().__init__(ErrorCode.THROTTLING_QUOTA_EXCEEDED, message)
        self.throttle_ms = throttle_ms


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at_s: float


class MutationQuota:
    """The buckets of all parties."""

    def __init__(self, rate: float | None, window_s: float) -> None:
        """rate: partitions a second, None: no limit. window_s: seconds of that rate allowed at once.

        Kafka's window is controller.quota.window.num times controller.quota.window.size.seconds.
        """
        self._rate = rate
        self._burst = 0 if rate is None else rate * window_s
        self._buckets: dict[str, _Bucket] = {}

    def take(self, party: str | None, partitions: int, now_s: float) -> None:
        """Count partitions that a party makes or removes now. party: None: the server's own process, without limit.

        Raises: Throttled.
        """
        if party is None or self._rate is None:
            return
        bucket = self._buckets.get(party)
        if bucket is None:
            if len(self._buckets) >= BUCKETS_MAX:
                self._forget(now_s)
            bucket = self._buckets[party] = _Bucket(self._burst, now_s)
        self._fill(bucket, now_s)
        if bucket.tokens < 0:
            throttle_ms = math.ceil(-bucket.tokens / self._rate * 1000)
            raise Throttled(
                f"{party} made or removed too many partitions: {self._burst:g} at once and {self._rate:g} a second are "
                f"allowed (controller_mutation_rate); try again in {math.ceil(throttle_ms / 1000)} s",
                throttle_ms,
            )
        bucket.tokens -= partitions

    def _fill(self, bucket: _Bucket, now_s: float) -> None:
        if self._rate is not None:
            bucket.tokens = min(self._burst, bucket.tokens + (now_s - bucket.at_s) * self._rate)
            bucket.at_s = now_s

    def _forget(self, now_s: float) -> None:
        """Forget full buckets, and of the others the tenth that lacks least, so that this is rare."""
        for bucket in self._buckets.values():
            self._fill(bucket, now_s)
        left = sorted(
            (one for one in self._buckets.items() if one[1].tokens < self._burst), key=lambda at: at[1].tokens
        )
        self._buckets = dict(left[: BUCKETS_MAX - BUCKETS_MAX // 10])
