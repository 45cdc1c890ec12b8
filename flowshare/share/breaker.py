"""A circuit breaker of a group: when most outcomes fail, nothing is handed out for a while, then one record to try.

A broken downstream would use up the attempts of all records handed out meanwhile. The group's coordinator decides, by
the members' reports on their handlers' outcomes (`Breaker.report`), and tells the leaders of the group's
share-partitions in the round in which it leases limits (`Breaker.lease`).

Invariant (SG-4.9): while the breaker is not closed, leaders that hold a lease hand out at most one record each
`probe_ms` in the whole group, and none before `open_ms` are over. So at most (time open) / open_ms + (time half-open) /
probe_ms + 1 records are begun until it closes.

| state | what happens | then |
|---|---|---|
| closed | of the last `of` outcomes, or more, at least `percent` in a hundred failed | open, for `open_ms` |
| open | an outcome of a record that was begun before | nothing |
| open | its time is over, and a leader could hand out a record | half-open: that leader may hand out one record |
| half-open | the record that was let through succeeded | closed; nothing is remembered |
| half-open | the record failed | open, for twice as long as the last time, `open_max_ms` at most |
| half-open | its leader gives the record back, as no member wants it | the waiting leader served longest ago |
| half-open | no word of the record for `probe_ms`: its member, or leader, is gone | one more may be let through |
| any | closed by hand | closed |
| any | no member has reported for `SILENT_MS` | closed: none of them knows of the breaker |
| any | another coordinator | as the first leader or member tells that knows it, in its first `ADOPT_MS`; else closed |
| any | the same, until a member has told, in its first `ADOPT_MS` | closed, and nothing is handed out |
| any | the same, and a record is being tried | half-open: one more may be let through after `probe_ms` |

Members decide which outcomes failed: a handler that raised or took too long. They count from their beginning, so that
the next report makes up for a lost one. Outcomes of records that they got while they knew that the breaker was not
closed are counted apart (`tried`), and only those decide a half-open breaker.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import Final, NamedTuple

SILENT_MS: Final = 10_000
ADOPT_MS: Final = 3_000
HUNGRY_MS: Final = 500
"""Time, in ms, for which a silent leader that could hand out a record keeps others waiting."""
MEMBERS_MAX: Final = 1_000
"""Members whose counts are remembered: as many as a group may have."""
COUNT_MAX: Final = 2**53


class BreakerState(enum.StrEnum):
    """The states of a group's breaker, which decide if its records are handed out."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class BreakerRule(NamedTuple):
    """The rule by which a breaker opens, and for how long. percent: failed outcomes in a hundred, 1 to 100. of: the
    least outcomes that are judged. probe_ms: the wait for the outcome of a record that tries."""

    percent: int
    of: int
    open_ms: int
    open_max_ms: int
    probe_ms: int


class Outcomes(NamedTuple):
    """A member's counters since it began. tried: outcomes of records that it got while it knew that the breaker was not
    closed."""

    succeeded: int = 0
    failed: int = 0
    tried_succeeded: int = 0
    tried_failed: int = 0

    def since(self, before: Outcomes) -> Outcomes:
        """Return the outcomes that are new since `before`; none for a counter that began anew."""
        return Outcomes(*(max(0, now - then) for now, then in zip(self, before, strict=True)))


class Told(NamedTuple):
    """The breaker's state, as leaders and members are told it. left_ms: time until a record is tried. open_ms: how long
    the breaker is open this time."""

    state: BreakerState = BreakerState.CLOSED
    why: str = ""
    left_ms: int = 0
    open_ms: int = 0


class Gate(NamedTuple):
    """A leader's permission to hand out records: any number while the breaker is closed, else `more` than before. told:
    the state that the leader passes on."""

    told: Told
    more: int = 0


class GateReport(NamedTuple):
    """A leader's report. wanting: it could hand out a record. back: records let through and given back. told: the
    breaker's state as the leader knows it, with the time that is left."""

    wanting: bool = False
    back: int = 0
    told: Told = Told()


class _Trying(NamedTuple):
    node: int
    since_ms: int


class _Wanting(NamedTuple):
    """A leader that could hand out a record. served: the serial number of its last record let through, 0: none yet."""

    since_ms: int
    served: int


_CLOSED: Final = Told()
_BEFORE: Final = "most outcomes failed"
_NOBODYS_MS: Final = 0
"""`open_ms` of a state that no coordinator opened: told to leaders by a coordinator that does not know the state
yet."""
_UNKNOWN: Final = -1
"""The node of a leader that only the former coordinator knew."""


class Breaker:
    """The breaker of one group at its coordinator. begun_ms: the time at which this coordinator began."""

    def __init__(self, begun_ms: int) -> None:
        self._begun_ms = begun_ms
        self._state = BreakerState.CLOSED
        self._why = ""
        self._until_ms = 0
        self._open_ms = 0
        self._heard_ms = begun_ms
        self._new = True
        """True while the breaker has decided nothing itself, and follows the state that others know."""
        self._heard_of_members = False
        self._trying: _Trying | None = None
        self._wanting: dict[int, _Wanting] = {}
        self._let_through = 0
        self._window: deque[tuple[int, int]] = deque()
        """(failed, all) of each report since the breaker closed: the last `of` outcomes, and those that came with
        them."""
        self._members: dict[str, Outcomes] = {}

    # --- members ----------------------------------------------------------------------------------------------------

    def report(self, member_id: str, counted: Outcomes, rule: BreakerRule, now_ms: int, known: Told = _CLOSED) -> Told:
        """Count a member's outcomes; return the state for the member. known: the state that the member knows."""
        self._adopt(known._replace(why=_BEFORE), rule, now_ms)
        before = self._members.pop(member_id, None)
        self._members[member_id] = counted
        if len(self._members) > MEMBERS_MAX:
            del self._members[next(iter(self._members))]
        self._heard_ms, self._heard_of_members = now_ms, True
        if before is not None:  # else this coordinator does not know which outcomes were counted already
            self._take(counted.since(before), rule, now_ms)
        return self.told(now_ms)

    def forget(self, member_id: str) -> None:
        """Forget a member that is gone."""
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
        """Tell a leader how many records it may hand out until it asks again."""
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
        """Return the state for leaders while the breaker is closed. At first they are told "open", because members may
        know that the breaker is not closed."""
        left_ms = self._begun_ms + ADOPT_MS - now_ms
        if not self._new or self._heard_of_members or left_ms <= 0:
            return Told()
        return Told(BreakerState.OPEN, "members are asked what they know", left_ms, _NOBODYS_MS)

    def _has_its_turn(self, node: int, now_ms: int) -> bool:
        """True if this leader comes before all others that could hand out a record."""
        served = self._wanting[node].served if node in self._wanting else 0
        self._wanting = {one: known for one, known in self._wanting.items() if now_ms - known.since_ms <= HUNGRY_MS}
        self._wanting[node] = _Wanting(now_ms, served)
        return all(served <= known.served for known in self._wanting.values())

    def _waiting(self, rule: BreakerRule, now_ms: int) -> bool:
        """True if the outcome of the record that was let through may still come."""
        return self._trying is not None and now_ms - self._trying.since_ms < rule.probe_ms

    def _adopt(self, told: Told, rule: BreakerRule, now_ms: int) -> None:
        """Adopt the state that a leader or member knows, where this coordinator has just begun and knows none."""
        knows = told.state is not BreakerState.CLOSED and told.open_ms != _NOBODYS_MS
        if not self._new or now_ms - self._begun_ms > ADOPT_MS or not knows:
            return
        self._open(min(max(told.open_ms, rule.open_ms), rule.open_max_ms), told.why, now_ms)
        self._until_ms = min(self._until_ms, now_ms + max(0, told.left_ms))
        if told.state is BreakerState.HALF_OPEN:
            self._state, self._trying = BreakerState.HALF_OPEN, _Trying(_UNKNOWN, now_ms)

    # --- state ------------------------------------------------------------------------------------------------------

    def told(self, now_ms: int) -> Told:
        """Return the breaker's state for leaders and members."""
        if self._state is BreakerState.CLOSED:
            return Told()
        return Told(self._state, self._why, max(0, self._until_ms - now_ms), self._open_ms)

    def close(self) -> None:
        """Close the breaker and begin to count anew; also called for an operator."""
        self._state, self._why, self._trying, self._new = BreakerState.CLOSED, "", None, False
        self._window.clear()

    def _open(self, open_ms: int, why: str, now_ms: int) -> None:
        self._state, self._why, self._trying, self._new = BreakerState.OPEN, why, None, False
        self._open_ms, self._until_ms = open_ms, now_ms + open_ms
        self._window.clear()
