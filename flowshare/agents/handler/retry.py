"""Retry of failed records: the exceptions, the number of attempts, and the delays."""

from __future__ import annotations

import inspect
import math
import random as random_module
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from flowshare.agents.handler.errors import OptionError
from flowshare.backoff import Backoff
from flowshare.share.types import DELAY_MS_MAX

Seconds = float | int | timedelta

DELAY_MAX_S: Final = DELAY_MS_MAX / 1000
"""Longest delay of a release: 30 days."""


def seconds(value: Seconds, what: str) -> float:
    """Return `value` in seconds. Raises: OptionError when it is no duration or negative."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise OptionError(f"{what} takes seconds as a number or a timedelta, not {value!r}")
    if not 0 <= value < float("inf"):
        raise OptionError(f"{what} must be zero or more seconds, not {value!r}")
    return float(value)


def count(value: object, what: str, most: int | None = None) -> int:
    """Return `value`, a whole number from 1 to `most` (None: any). Raises: OptionError."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= (value if most is None else most):
        raise OptionError(f"{what} takes a number from 1{'' if most is None else f' to {most}'}, not {value!r}")
    return value


def exponential(first: Seconds, *, cap: Seconds = 60, factor: float = 2.0, jitter: bool = True) -> Backoff:
    """Wait `first` seconds, then `factor` times as long each time, `cap` seconds at most.

    jitter: take a random part of up to one half off each delay, so that records that failed together do not come back
    together.
    """
    if factor < 1:
        raise OptionError(f"exponential(factor=…) must be 1 or more, not {factor!r}")
    return Backoff(
        seconds(first, "exponential(first)"), seconds(cap, "exponential(cap=…)"), float(factor), 0.5 if jitter else 0.0
    )


@dataclass(frozen=True, slots=True)
class Retry:
    """Rules of retry: the exceptions, the number of attempts, and the delays.

    max_attempts: deliveries in all, the first included; after the last one the record goes to the dead letter.
    delay: seconds before the next attempt, or `exponential(…)`, or a function of the attempt that failed.
    on: exceptions that are tried again; any other one goes to the dead letter at once. The `TimeoutError` of the
    agent's `timeout` counts as an exception of the handler.
    """

    max_attempts: int = 5
    delay: Seconds | Backoff | Callable[[int], float] = field(default_factory=lambda: exponential(1))
    on: tuple[type[BaseException], ...] | type[BaseException] = (Exception,)

    def __post_init__(self) -> None:
        """Raises: OptionError when a value is refused."""
        count(self.max_attempts, "Retry(max_attempts=…)")
        object.__setattr__(self, "on", exception_types(self.on, "Retry(on=…)"))
        if isinstance(self.delay, (int, float, timedelta)):
            delay_s = seconds(self.delay, "Retry(delay=…)")
            object.__setattr__(self, "delay", Backoff(delay_s, delay_s, factor=1.0))
        elif not isinstance(self.delay, Backoff) and (
            not callable(self.delay) or inspect.iscoroutinefunction(self.delay)
        ):
            raise OptionError(f"Retry(delay=…) takes seconds, exponential(…) or a plain function, not {self.delay!r}")

    def retries(self, error: BaseException) -> bool:
        """Tell if this exception is tried again."""
        return isinstance(error, self.on)

    def delay_s(self, attempt: int, random: random_module.Random) -> float:
        """Return seconds until the attempt after `attempt`, between 0 and 30 days."""
        policy = self.delay
        if isinstance(policy, Backoff):
            delay_s = policy.after(max(attempt, 1), random.random() if policy.jitter else 0.0)
        else:
            assert callable(policy)
            delay_s = float(policy(attempt))
            if math.isnan(delay_s):
                raise ValueError("a retry's delay is a number of seconds, not nan")
        return min(max(delay_s, 0.0), DELAY_MAX_S)


def exception_types(value: object, what: str) -> tuple[type[BaseException], ...]:
    """Return one exception class or several as a tuple. Raises: OptionError."""
    types = value if isinstance(value, (tuple, list, set, frozenset)) else (value,)
    for one in types:
        if not (isinstance(one, type) and issubclass(one, BaseException)):
            raise OptionError(f"{what} takes exception classes, not {one!r}")
    return tuple(types)
