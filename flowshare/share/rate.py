"""A limit on how many records a second a whole group is handed out (`share.max.rate`), shared out between leaders.

The group's coordinator keeps one token bucket, a token a record. A leader of its share-partitions reports its tokens,
gets more (`RateLeases.grant`) and spends them one by one (`Permits`). Redeliveries cost as much as first deliveries.

Invariant (SG-4.8): in any time of t seconds all leaders together hand out at most rate · t + burst records, where burst
is 1 + rate / 2, half a second's. For the tokens in the bucket and the tokens that leaders have, or have spent and not
reported, are together at most the burst, and grow only by the rate: the bucket takes nothing in while these tokens come
to the burst, and a spent token counts at its leader until the leader reports it. So a lost message only makes the
tokens fewer.

| event | effect on tokens |
|---|---|
| a leader wants tokens, and no other does | it gets all tokens in the bucket, and all that come |
| other leaders want tokens, too | new tokens are divided equally; where it is less than one each, they take turns |
| a leader neither spent nor lacked any since its last report, or a breaker is not closed | it gives back its tokens |
| a leader's limit in flight is used up | it wants no tokens; a part of that limit is wanted first, then tokens |
| a report or its answer is lost | its tokens are lost, too |
| a leader is not heard of | void at the leader after `LEASE_MS`, counted as spent here after `FORGET_MS` |
| a leader leads more, or less; the limit changes | nothing; a lower limit makes the bucket smaller at once |
| another coordinator takes over | its bucket is empty; leaders' tokens count as soon as the leaders report them |
| the machine's clock is set | nothing: time is that of a steady clock |

The invariant is exceeded once, by a burst at most: after another worker began to coordinate the group (leaders may
spend the tokens of its predecessor), and when a process that stood still goes on with tokens in hand.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from flowshare.share.breaker import BreakerState, GateReport

if TYPE_CHECKING:
    from flowshare.share.breaker import Gate, Told
    from flowshare.share.settings import Setting

HUNGRY_MS: Final = 500
"""Time, in ms, for which new tokens are kept for a leader that wants some and is silent."""
FORGET_MS: Final = 4_000
"""Time, in ms, for which a leader's tokens count here after it was heard of. The leader spends them for a shorter time
(`leases.LEASE_MS`)."""
BURST_S: Final = 0.5
RATE_MAX: Final = 1_000_000
"""The highest rate, in records a second: no higher limit could be kept."""
_RATE: Final = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*(?:/\s*([smh]))?", re.ASCII)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600}
_WHOLE: Final = 1e-6
"""Rounding slack: a sum of parts this near to a whole token is one."""


class Rate(NamedTuple):
    """A rate. `text`: as it was set, such as 100/s or 10/m. per_s: records a second."""

    text: str
    per_s: float

    def __str__(self) -> str:
        """Return the text as set."""
        return self.text

    @property
    def burst(self) -> float:
        """The most records handed out at once after a pause, rounded down; at least 1."""
        return 1 + self.per_s * BURST_S


def parse_rate(text: str) -> Rate | None:
    """Return the rate of `100`, `100/s`, `10/m`, `2.5/h`: 1 a day to 1,000,000 a second; None for anything else."""
    found = _RATE.fullmatch(text.strip())
    if found is None:
        return None
    count, unit = found[1], found[2] or "s"
    per_s = float(count) / _SECONDS[unit]
    return Rate(text.strip(), per_s) if 1 / 86_401 <= per_s <= RATE_MAX else None


def read_rate(setting: Setting, text: str) -> Any:
    """Read a rate setting; None for `0`. Raises InvalidConfig."""
    if text == "0":
        return None
    rate = parse_rate(text)
    if rate is None:
        raise setting.refuse(text)
    return rate


class Permits:
    """The records of a group that one leader may hand out, over all its share-partitions. Begins with none.

    free: records, by the rate; None: any number. gate: records, by the breaker (`share.breaker`); None: any number.
    """

    __slots__ = ("_lacked", "_taken", "free", "gate")

    def __init__(self) -> None:
        self.free: int | None = 0
        self.gate: int | None = None
        self._taken = 0
        self._lacked = False

    @property
    def used_up(self) -> bool:
        """True if no record may be handed out now."""
        return self.free == 0 or self.gate == 0

    @property
    def spent(self) -> bool:
        """True if permits were spent since the last report."""
        return self._taken > 0

    def grant(self, wanted: int) -> int:
        """Return how many of `wanted` records may be handed out; note a lack if fewer."""
        most = min(wanted if self.free is None else self.free, wanted if self.gate is None else self.gate)
        if most >= wanted:
            return wanted
        self._lacked = True
        return most

    def lack(self) -> None:
        """Note that a member waits for records."""
        self._lacked = True

    def take(self, count: int) -> None:
        """Spend `count` permits."""
        self._taken += count
        if self.free is not None:
            self.free = max(0, self.free - count)
        if self.gate is not None:
            self.gate = max(0, self.gate - count)

    def put_back(self, count: int) -> None:
        """Take back permits for records that were not handed out after all. Permits that were reported as spent stay
        spent."""
        back = min(count, self._taken)
        self._taken -= back
        if self.free is not None:
            self.free += back
        if self.gate is not None:
            self.gate += back

    def report(self, *, full: bool = False) -> RateReport:
        """Return the report for the coordinator. Tokens that are given back are gone from here, even if the report does
        not arrive.

        full: another limit lets nothing through here. Then no tokens are wanted, because a leader with room would lack
        them.
        """
        free, lacked = self.free or 0, self._lacked and not full
        idle = self.gate is not None or (not self._taken and not lacked)
        report = RateReport(
            held=0 if idle else free,
            back=free if idle else 0,
            wanting=lacked or (self.free is not None and free < self._taken),
        )
        self._taken, self._lacked = 0, False
        if self.free is not None:
            self.free = report.held
        return report

    def report_gate(self, told: Told) -> GateReport:
        """Return the report for the breaker; call before `report`. Unused permits of the breaker are given back each
        time and asked for anew. told: the breaker's state as known here."""
        back = self.gate or 0
        report = GateReport(wanting=self._lacked or back > 0, back=back, told=told)
        if self.gate is not None:
            self.gate = 0
        return report

    def open_gate(self, gate: Gate) -> None:
        """Follow the answer of the breaker's coordinator."""
        self.gate = None if gate.told.state is BreakerState.CLOSED else (self.gate or 0) + gate.more

    def asked(self) -> bool:
        """True if a member lacked permits since the last call."""
        lacked, self._lacked = self._lacked, False
        return lacked


class RateReport(NamedTuple):
    """A leader's report. held: tokens that it keeps. back: tokens that it gives back. wanting: it could use more."""

    held: int
    back: int
    wanting: bool


@dataclass(slots=True)
class _Leader:
    """One leader's account. held: tokens granted. credit: tokens earned while waiting, not granted yet."""

    held: int = 0
    credit: float = 0.0
    wanting: bool = False
    since_ms: int = 0


class RateLeases:
    """The token bucket of one group at its coordinator. begun_ms: the time at which this coordinator began, with no
    tokens."""

    def __init__(self, begun_ms: int) -> None:
        self._level = 0.0
        self._at_ms = begun_ms
        self._leaders: dict[int, _Leader] = {}

    def grant(self, node: int, report: RateReport, rate: Rate, now_ms: int) -> int:
        """Return how many more records a leader may hand out from now on."""
        self._fill(rate, now_ms)
        leader = self._leaders.setdefault(node, _Leader())
        back = min(report.back, leader.held)
        leader.held, leader.since_ms, leader.wanting = report.held, now_ms, report.wanting
        self._level = min(self._level + back, max(0.0, rate.burst - self._held()))
        if not report.wanting:
            leader.credit = 0.0
            return 0
        granted = self._part(node, leader, now_ms)
        self._level -= granted
        leader.credit = max(-1.0, leader.credit - granted)
        leader.held += granted
        return granted

    def next_s(self, rate: Rate) -> float:
        """Return the seconds until the bucket has one token more, without takes and reports; infinite: the bucket is
        full."""
        missing = 1 - self._level % 1
        full = self._level + missing > rate.burst - self._held() + _WHOLE
        return math.inf if full else missing / rate.per_s

    @property
    def outstanding(self) -> float:
        """The number of tokens in the bucket and at leaders."""
        return self._level + self._held()

    def _fill(self, rate: Rate, now_ms: int) -> None:
        """Add the tokens that came since the last call; leaders that want tokens earn equal parts."""
        hungry = self._hungry(now_ms)
        room = max(0.0, rate.burst - self._held())
        before = self._level
        self._level = min(room, before + max(0, now_ms - self._at_ms) * rate.per_s / 1000)
        self._at_ms = max(self._at_ms, now_ms)
        for leader in hungry.values():
            leader.credit = min(rate.burst, leader.credit + max(0.0, self._level - before) / len(hungry))
        for old in [one for one, leader in self._leaders.items() if leader.since_ms + FORGET_MS <= now_ms]:
            del self._leaders[old]

    def _part(self, node: int, leader: _Leader, now_ms: int) -> int:
        """Return the tokens for a leader that wants some, beside the other leaders that do."""
        free = int(self._level + _WHOLE)
        rivals = [one.credit for other, one in self._hungry(now_ms).items() if other != node]
        if free <= 0 or not rivals:
            return max(0, free)
        theirs = sum(max(0.0, credit) for credit in rivals)
        part = int(max(leader.credit, self._level - theirs) + _WHOLE)
        if part <= 0 and leader.credit >= max(rivals):
            part = 1  # less than one each: they take turns
        return max(0, min(free, part))

    def _hungry(self, now_ms: int) -> dict[int, _Leader]:
        return {node: one for node, one in self._leaders.items() if one.wanting and now_ms - one.since_ms <= HUNGRY_MS}

    def _held(self) -> int:
        return sum(leader.held for leader in self._leaders.values())
