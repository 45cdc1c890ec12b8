"""A circuit breaker of a group: when most outcomes fail, nothing is handed out for a while, then one record to try.

A broken downstream would use up the attempts of everything that is handed out while it is broken. The group's
coordinator decides, by what the members say of their handlers' outcomes (`Breaker.report`), and tells the leaders of
the group's share-partitions in the round in which it leases limits (`Breaker.lease`).

Invariant (SG-4.9): while the breaker is not closed, leaders that hold a lease hand out at most one record each
`probe_ms` in the whole group, and none before `open_ms` are over. So at most (time open) / open_ms + (time half-open) /
probe_ms + 1 records are begun until it closes.

| state | what happens | then |
|---|---|---|
| closed | of the last `of` outcomes, or more, at least `percent` in a hundred failed | open, for `open_ms` |
| open | an outcome of something that was begun before | nothing |
| open | its time is over, and a leader could hand something out | half-open: that leader may hand out one record |
| half-open | the record that was let through succeeded | closed; nothing is remembered |
| half-open | it failed | open, for twice as long as the last time, `open_max_ms` at most |
| half-open | its leader gives it back, as nobody wants it | who could hand something out, and had it longest ago |
| half-open | nothing is heard of it for `probe_ms`: its member, or leader, is gone | one more may be let through |
| any | closed by hand | closed |
| any | no member has reported for `SILENT_MS` | closed: none of them knows of the breaker |
| any | another coordinator | as the first leader or member tells that knows it, in its first `ADOPT_MS`; else closed |
| any | the same, until a member has told, in its first `ADOPT_MS` | closed, and nothing is handed out |
| any | the same, and something is being tried | half-open: one more may be let through after `probe_ms` |

What counts as failed is for members to say: a handler that raised or took too long. They count from when they began, so
that a report that was lost is made up by the next one; outcomes of records that they were given while they knew that it
is not closed are counted apart (`tried`), and only those decide a half-open one.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import Final, NamedTuple

SILENT_MS: Final = 10_000
ADOPT_MS: Final = 3_000
HUNGRY_MS: Final = 500
"""A leader that could hand something out, and is not heard of any more, keeps others waiting for so long."""
MEMBERS_MAX: Final = 1_000
"""Members whose counts are remembered: as many as a group may have."""
COUNT_MAX: Final = 2**53


class BreakerState(enum.StrEnum):
    """Whether a group's records are handed out."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class BreakerRule(NamedTuple):
    """When it opens, and for how long. percent: of outcomes that fail, 1 to 100. of: outcomes that are looked at, at
    least. probe_ms: how long the outcome of a record that tries is waited for."""

    percent: int
    of: int
    open_ms: int
    open_max_ms: int
    probe_ms: int


class Outcomes(NamedTuple):
    """What a member counted since it began. tried: of records that it was given while it knew it was not closed."""

    succeeded: int = 0
    failed: int = 0
    tried_succeeded: int = 0
    tried_failed: int = 0

    def since(self, before: Outcomes) -> Outcomes:
        """What is new; nothing where it counts anew."""
        return Outcomes(*(max(0, now - then) for now, then in zip(self, before, strict=True)))


class Told(NamedTuple):
    """What leaders and members are told. left_ms: until something is tried. open_ms: how long it is open this time."""

    state: BreakerState = BreakerState.CLOSED
    why: str = ""
    left_ms: int = 0
    open_ms: int = 0


class Gate(NamedTuple):
    """What a leader may hand out: any number while it is closed, else `more` than it had. told: to be told again."""

    told: Told
    more: int = 0


class GateReport(NamedTuple):
    """What a leader says. wanting: it could hand something out. back: that it gives back what it was let through. told:
    what it knows of it, until when it counts."""

    wanting: bool = False
    back: int = 0
    told: Told = Told()


class _Trying(NamedTuple):
    node: int
    since_ms: int


class _Wanting(NamedTuple):
    """A leader that could hand something out. served: the how-manieth that was let through there, 0: none yet."""

    since_ms: int
    served: int


_CLOSED: Final = Told()
_BEFORE: Final = "most outcomes failed"
_NOBODYS_MS: Final = 0
"""For so long it is open as nobody opened it: what leaders are told by a coordinator that does not know yet."""
_UNKNOWN: Final = -1
"""The node of a leader that another coordinator knew."""


class Breaker:
    """The breaker of one group at its coordinator. begun_ms: when this coordinator began."""

    def __init__(self, begun_ms: int) -> None:
        self._begun_ms = begun_ms
        self._state = BreakerState.CLOSED
        self._why = ""
        self._until_ms = 0
        self._open_ms = 0
        self._heard_ms = begun_ms
        self._new = True
        """Whether it knows nothing of its own yet, and follows what others know."""
        self._heard_of_members = False
        self._trying: _Trying | None = None
        self._wanting: dict[int, _Wanting] = {}
        self._let_through = 0
        self._window: deque[tuple[int, int]] = deque()
        """(failed, all) of each report since it closed, the last `of` outcomes and those that came with them."""
        self._members: dict[str, Outcomes] = {}

    # --- members ----------------------------------------------------------------------------------------------------

    def report(self, member_id: str, counted: Outcomes, rule: BreakerRule, now_ms: int, known: Told = _CLOSED) -> Told:
        """A member says what it counted, and what it knows; what it is to know."""
        self._adopt(known._replace(why=_BEFORE), rule, now_ms)
        before = self._members.pop(member_id, None)
        self._members[member_id] = counted
        if len(self._members) > MEMBERS_MAX:
            del self._members[next(iter(self._members))]
        self._heard_ms, self._heard_of_members = now_ms, True
        if before is not None:  # else this coordinator does not know what it has counted already
            self._take(counted.since(before), rule, now_ms)
        return self.told(now_ms)

    def forget(self, member_id: str) -> None:
        """A member is gone."""
        self._members.pop(member_id, None)

    def _take(self, new: Outcomes, rule: BreakerRule, now_ms: int) -> None:
        if self._state is BreakerState.CLOSED:
            failed = new.failed + new.tried_failed
            self._count(failed, failed + new.succeeded + new.tried_succeeded, rule, now_ms)
        elif self._state is BreakerState.HALF_OPEN and (new.tried_succeeded or new.tried_failed):
            if new.tried_succeeded:
                self.close()
            else:
                self._open(min(2 * self._open_ms, rule.open_max_ms), self._why, now_ms)

    def _count(self, failed: int, of: int, rule: BreakerRule, now_ms: int) -> None:
        if of:
            self._window.append((failed, of))
        total = sum(all_of for _, all_of in self._window)
        while self._window and total - self._window[0][1] >= rule.of:
            total -= self._window.popleft()[1]
        failures = sum(failed for failed, _ in self._window)
        if total >= rule.of and failures * 100 >= rule.percent * total:
            self._open(rule.open_ms, f"{failures} of the last {total} outcomes failed", now_ms)

    # --- leaders ----------------------------------------------------------------------------------------------------

    def lease(self, node: int, report: GateReport, rule: BreakerRule, now_ms: int) -> Gate:
        """What a leader may hand out until it asks again."""
        self._adopt(report.told, rule, now_ms)
        if now_ms - self._heard_ms > SILENT_MS and self._state is not BreakerState.CLOSED:
            self.close()
        if self._state is BreakerState.CLOSED:
            return Gate(self._hushed(now_ms))
        if report.back and self._trying is not None and self._trying.node == node:
            self._trying = None
        may = self._has_its_turn(node, now_ms) if report.wanting else False
        if not may or now_ms < self._until_ms or self._waiting(rule, now_ms):
            return Gate(self.told(now_ms))
        self._let_through += 1
        self._wanting[node] = _Wanting(now_ms, self._let_through)
        self._state, self._trying = BreakerState.HALF_OPEN, _Trying(node, now_ms)
        return Gate(self.told(now_ms), 1)

    def _hushed(self, now_ms: int) -> Told:
        """What leaders are told while it is closed, as far as is known: members may know that it is not."""
        left_ms = self._begun_ms + ADOPT_MS - now_ms
        if not self._new or self._heard_of_members or left_ms <= 0:
            return Told()
        return Told(BreakerState.OPEN, "members are asked what they know", left_ms, _NOBODYS_MS)

    def _has_its_turn(self, node: int, now_ms: int) -> bool:
        """Whether a leader that could hand something out comes before all others that could."""
        served = self._wanting[node].served if node in self._wanting else 0
        self._wanting = {one: known for one, known in self._wanting.items() if now_ms - known.since_ms <= HUNGRY_MS}
        self._wanting[node] = _Wanting(now_ms, served)
        return all(served <= known.served for known in self._wanting.values())

    def _waiting(self, rule: BreakerRule, now_ms: int) -> bool:
        """Whether something that was let through may still be heard of."""
        return self._trying is not None and now_ms - self._trying.since_ms < rule.probe_ms

    def _adopt(self, told: Told, rule: BreakerRule, now_ms: int) -> None:
        """As a leader knows it, where this coordinator has just begun and knows nothing."""
        knows = told.state is not BreakerState.CLOSED and told.open_ms != _NOBODYS_MS
        if not self._new or now_ms - self._begun_ms > ADOPT_MS or not knows:
            return
        self._open(min(max(told.open_ms, rule.open_ms), rule.open_max_ms), told.why, now_ms)
        self._until_ms = min(self._until_ms, now_ms + max(0, told.left_ms))
        if told.state is BreakerState.HALF_OPEN:
            self._state, self._trying = BreakerState.HALF_OPEN, _Trying(_UNKNOWN, now_ms)

    # --- state ------------------------------------------------------------------------------------------------------

    def told(self, now_ms: int) -> Told:
        """What is to be known of it."""
        if self._state is BreakerState.CLOSED:
            return Told()
        return Told(self._state, self._why, max(0, self._until_ms - now_ms), self._open_ms)

    def close(self) -> None:
        """Hand out again, and begin to count anew; by hand, too."""
        self._state, self._why, self._trying, self._new = BreakerState.CLOSED, "", None, False
        self._window.clear()

    def _open(self, open_ms: int, why: str, now_ms: int) -> None:
        self._state, self._why, self._trying, self._new = BreakerState.OPEN, why, None, False
        self._open_ms, self._until_ms = open_ms, now_ms + open_ms
        self._window.clear()
