"""A rate limit per agent and process: a token bucket that the feeder asks before it fetches.

The rate of a whole group (`max_rate`) is kept by the leader that hands out its records (`share.rate`); only its text is
checked here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from flowshare.agents.handler.errors import OptionError
from flowshare.share import rate as rates

_PER_S: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class RateLimit:
    """`per_s` records a second, `burst` at once after a pause."""

    per_s: float
    burst: int


def parse_rate(value: Any) -> RateLimit | None:
    """Read `100`, `"100/s"`, `"10/m"`, `"5/h"` or None. Raises: OptionError."""
    if value is None or isinstance(value, RateLimit):
        return value
    if isinstance(value, str):
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*/\s*([smh])", value.strip())
        per_s = float(match[1]) / _PER_S[match[2]] if match else 0.0
    else:
        per_s = float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 0.0
    if not 0 < per_s < float("inf"):
        raise OptionError(f"rate_limit takes records a second, or text such as '100/s' or '10/m', not {value!r}")
    return RateLimit(per_s, max(1, round(per_s / 10)))


def group_rate(value: Any) -> str | None:
    """Return the text of a group's rate: `100`, `"100/s"`, `"10/m"`, `"5/h"` or None. Raises: OptionError."""
    if value is None:
        return None
    rate = rates.parse_rate(_text(value))
    if rate is None:
        raise OptionError(
            "max_rate takes records a second for the whole group, or text such as '100/s' or '10/m', from one a day to "
            f"{rates.RATE_MAX:,} a second, not {value!r}; leave it out to set none"
        )
    return str(rate)


def _text(value: Any) -> str:
    """Write a number with at most six decimals, as a group's setting has it."""
    if isinstance(value, float):
        return f"{value:.6f}".rstrip("0").rstrip(".")
    return value if isinstance(value, str) else "" if isinstance(value, bool) else str(value)


class TokenBucket:
    """A bucket of tokens that come back with time; time comes in as seconds of a monotonic clock."""

    __slots__ = ("_at", "_limit", "_tokens")

    def __init__(self, limit: RateLimit, now: float) -> None:
        self._limit = limit
        self._tokens = float(limit.burst)
        self._at = now

    def available(self, now: float) -> int:
        """Return the number of whole tokens now."""
        self._tokens = min(float(self._limit.burst), self._tokens + (now - self._at) * self._limit.per_s)
        self._at = now
        return int(self._tokens + 1e-9)

    def take(self, count: int) -> None:
        """Use tokens; the number may go below zero when more records came than were asked for."""
        self._tokens -= count

    def wait_s(self) -> float:
        """Return seconds until the bucket has one token."""
        return max(0.0, (1.0 - self._tokens) / self._limit.per_s)
