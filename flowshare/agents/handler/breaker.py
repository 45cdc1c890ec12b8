"""`Breaker`: an agent's group hands out nothing while most of its records fail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from flowshare.agents.handler.errors import OptionError
from flowshare.agents.handler.retry import Seconds, count, seconds

PAUSE_S_MIN: Final = 1.0
PAUSE_S_MAX: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Breaker:
    """A circuit breaker of the whole group: while most outcomes fail, nothing is handed out.

    The breaker opens when `failures` or more of the last outcomes of all workers together are failures. After `pause`
    seconds one record of the whole group is let through as a probe. If the probe succeeds, all go on; if it fails, the
    breaker is open for twice as long as before. A record that fails while the breaker is not closed costs no attempt
    and comes again. Exceptions and time-outs are failures. A handler's decision (a returned value, `fs.Reject`, the
    agent's `reject`) is a success; `fs.Release`, and values that cannot be decoded, are neither.

    failures: part of the outcomes that must have failed, from 0.01 to 1. of: number of last outcomes that count; fewer
    do not open the breaker. pause, pause_max: seconds that the breaker is open at first and at most, 1 s to a day.

    Raises: OptionError for anything else.
    """

    failures: float = 0.5
    of: int = field(default=20, kw_only=True)
    pause: Seconds = field(default=30, kw_only=True)
    pause_max: Seconds = field(default=300, kw_only=True)

    def __post_init__(self) -> None:
        """Raises: OptionError."""
        part = self.failures
        if isinstance(part, bool) or not isinstance(part, (int, float)) or not 0.01 <= part <= 1:
            raise OptionError(f"fs.Breaker(failures) takes a part of all outcomes, from 0.01 to 1, not {part!r}")
        count(self.of, "fs.Breaker(of=…)", 1_000_000)
        for name in ("pause", "pause_max"):
            value = seconds(getattr(self, name), f"fs.Breaker({name}=…)")
            if not PAUSE_S_MIN <= value <= PAUSE_S_MAX:
                raise OptionError(
                    f"fs.Breaker({name}=…) takes {PAUSE_S_MIN:g} to {PAUSE_S_MAX:g} seconds, not {value:g}"
                )
            object.__setattr__(self, name, value)
        if self.seconds[0] > self.seconds[1]:
            first_s, most_s = self.seconds
            raise OptionError(
                f"fs.Breaker(pause={first_s:g}) must not be more than pause_max={most_s:g}: give pause_max, too"
            )

    @property
    def seconds(self) -> tuple[float, float]:
        """Seconds that the breaker is open at first, and at most."""
        assert isinstance(self.pause, float)
        assert isinstance(self.pause_max, float)
        return self.pause, self.pause_max

    def settings(self) -> Mapping[str, str]:
        """Return the settings of the group."""
        first_s, most_s = self.seconds
        return {
            "share.breaker.failure.percent": str(max(1, round(self.failures * 100))),
            "share.breaker.window.size": str(self.of),
            "share.breaker.open.ms": str(round(first_s * 1000)),
            "share.breaker.open.max.ms": str(round(most_s * 1000)),
        }
