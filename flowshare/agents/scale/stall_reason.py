"""The reason why a group stands still, in one sentence: for `flowshare top` and all other displays of groups. Pure.

A group that goes on has no reason, but for two that warn of the future, and parked keys. The first that applies in this
table is told:

| reason | told when |
|---|---|
| paused; breaker open, or trying | always: nothing else says why nothing comes |
| no members; none of them was given a partition | there is a backlog |
| what keeps it, as in `_stuck` | nothing was finished lately, and the oldest record is older than `QUIET_S` |
| most of it fails | more than twice as many deliveries come again as records are finished |

Behind it, or alone, stand parked keys, whose records become dead letters unrun whether the group goes on or not; and
retention: when it deletes unfinished records before they could be finished at this rate, or within `NEAR_S` in a group
that stands still.

(`agents/feed/stalls.py` speaks for one agent in its own log, of what only its process knows.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from flowshare.agents.handler.texts import age, clip
from flowshare.client.admin.admin import MAX_IN_FLIGHT, MAX_RATE, PAUSED

QUIET_S: Final = 10.0
"""Seconds: work that began within this time is under way, not stuck."""
RAISES_S: Final = 60.0
"""Age in seconds from which a handler's error explains only why its records wait for the end of a delay."""
NEAR_S: Final = 3_600.0
ERROR_MAX: Final = 120
_FAILING: Final = 2
_MOST: Final = 2
"""Most unfinished records: at least one in this many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A member's records in hand.

    member: the member, named by its worker if known. oldest_s: seconds that the member has had the oldest record.
    """

    member: str
    records: int
    oldest_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerFacts:
    """A group's circuit breaker. state: `closed`, `open`, `half-open`. why: cause of the opening. left_s: seconds until
    it tries."""

    state: str = "closed"
    why: str = ""
    left_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """Known facts on a group; None is "not known", and callers that know less leave the rest out.

    rows: of `lag.by_topic`, this group's only. settings: of the group, by name. members: their number; assigned: number
    of those with a partition. holders: members with records in hand, as far as they could be asked. error: last error
    of handlers; error_s: its age in seconds.
    """

    group: str
    rows: Sequence[Mapping[str, Any]] = ()
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    members: int | None = None
    assigned: int | None = None
    breaker: BreakerFacts = BreakerFacts()
    holders: Sequence[Holder] = ()
    error: str | None = None
    error_s: float | None = None

    def total(self, name: str) -> Any:
        """Return a column's sum over the topics; None as soon as one of them is unknown."""
        found = [row.get(name) for row in self.rows]
        return None if None in found else sum(found)

    @property
    def backlog(self) -> int | None:
        """Number of unfinished records; None unless known for all topics."""
        found = [row.get("backlog") for row in self.rows]
        return None if any(one is None or one < 0 for one in found) else sum(one for one in found if one)

    @property
    def raises(self) -> bool:
        """True if handlers raise at present."""
        return self.error is not None and (self.error_s is None or self.error_s < RAISES_S)

    @property
    def oldest_s(self) -> float | None:
        """Age of the oldest unfinished record, in seconds."""
        return max((row["oldest_age_s"] for row in self.rows if row.get("oldest_age_s") is not None), default=None)

    @property
    def retention_left_s(self) -> float | None:
        """Seconds until retention deletes the first unfinished record; None: never, or unknown."""
        known = [row["retention_left_s"] for row in self.rows if row.get("retention_left_s") is not None]
        return min(known, default=None)


def stall_reason(facts: GroupFacts) -> str | None:
    """Say in one sentence without a full stop why the group stands still, or soon loses records; None: all is well."""
    parked = parked_keys(facts.group, facts.total("parked") or 0)
    held_back = _told(facts)
    if held_back is not None:
        return _joined(held_back, parked)
    backlog = facts.backlog
    if not backlog:
        return parked
    reason = _nobody(facts, backlog) or (_stuck(facts, backlog) if _quiet(facts) else _failing(facts))
    return _joined(reason, parked, _retention(facts, backlog, stalled=reason is not None))


def _joined(*reasons: str | None) -> str | None:
    return "; ".join(one for one in reasons if one) or None


def parked_keys(group: str, count: int, topic: str = "") -> str | None:
    """Say that keys of a group, or of one topic of it, are parked, the effect, and where to look; None: none is."""
    if not count:
        return None
    of = f" of {topic}" if topic else ""
    told = f"1 key{of} is parked, its" if count == 1 else f"{count} keys{of} are parked, their"
    return f"{told} records become dead letters, unrun: `flowshare dlq parked {group}`"


def _told(facts: GroupFacts) -> str | None:
    """Tell a stall that a person (pause) or the breaker caused; None: neither did."""
    if facts.settings.get(PAUSED) == "true":
        return f"it is paused; `flowshare groups resume {facts.group}` lets it go on"
    if facts.breaker.state == "closed":
        return None
    why = f": {clip(facts.breaker.why, ERROR_MAX)}" if facts.breaker.why else ""
    if facts.breaker.state == "half-open":
        return f"its breaker lets one record through to try{why}"
    left = f"in {age(facts.breaker.left_s)}" if facts.breaker.left_s else "soon"
    return f"its breaker is open{why}; next try {left}"


def _nobody(facts: GroupFacts, backlog: int) -> str | None:
    if facts.members == 0:
        return f"no members: nobody takes the {backlog} unfinished records"
    if facts.assigned == 0 and facts.members:
        return f"none of its {facts.members} members was given a partition yet"
    return None


def _quiet(facts: GroupFacts) -> bool:
    """Tell if no record has been finished for long enough to report it."""
    if facts.total("rate") != 0:
        return False
    return facts.oldest_s is None or facts.oldest_s >= QUIET_S


def _stuck(facts: GroupFacts, backlog: int) -> str:
    in_flight, delayed, blocked = (facts.total(name) for name in ("in_flight", "delayed", "blocked"))
    if in_flight is None or delayed is None:
        return _unseen(facts, backlog)
    if delayed >= backlog:
        return _with_error(facts, f"all {backlog} unfinished records wait for the end of a delay")
    behind = _behind_a_key(facts, backlog, blocked or 0)
    if behind and _MOST * (blocked or 0) >= backlog:
        return behind  # also if members hold them all: they work on the heads that others wait for
    if in_flight and in_flight + delayed >= backlog:
        waiting = f", and {delayed} wait for the end of a delay" if delayed else ""
        return f"all that can be is in flight: {in_flight} records{_held_by(facts, in_flight)}{waiting}"
    limit = _number(facts.settings.get(MAX_IN_FLIGHT))
    if 0 < limit <= in_flight:
        return (
            f"{in_flight} records are in flight{_held_by(facts, in_flight)}, and {MAX_IN_FLIGHT}={limit} allows no more"
        )
    return behind or _not_handed_out(facts, backlog, in_flight)


def _unseen(facts: GroupFacts, backlog: int) -> str:
    held = sum(one.records for one in facts.holders)
    if held:
        text = f"nothing of {backlog} records is finished; workers hold {held}{_held_by(facts, held)}"
    else:
        text = f"nothing of {backlog} records is finished, and it is not told here how many are in flight"
    return _with_error(facts, text) if facts.raises else text


def _behind_a_key(facts: GroupFacts, backlog: int, blocked: int) -> str | None:
    stuck = [(key, row["topic"]) for row in facts.rows for key in row.get("stuck") or ()]
    if not blocked or not stuck:
        return None
    key, topic = max(stuck, key=lambda one: one[0]["blocked"])
    state = {
        "HELD": f"which {key['member_id']} holds",
        "DELAYED": "which waits for its next attempt",
        "ARCHIVING": "whose dead letter is being written",
    }.get(key["state"], "which nobody has fetched yet")
    since = f" for {age(facts.oldest_s)}" if facts.oldest_s is not None and len(facts.rows) == 1 else ""
    return (
        f"{blocked} of {backlog} unfinished records wait behind a record of their key{since}, "
        f"{key['blocked']} of them behind {topic}-{key['partition']}@{key['offset']}, {state} "
        f"(attempt {key['delivery_count']})"
    )


def _not_handed_out(facts: GroupFacts, backlog: int, in_flight: int) -> str:
    rate = facts.settings.get(MAX_RATE, "")
    if facts.raises:
        held = f", {in_flight} are in flight{_held_by(facts, in_flight)}" if in_flight else ""
        return _with_error(facts, f"nothing of {backlog} records is finished{held}")
    if rate not in ("", "0"):
        return f"{MAX_RATE}={rate} hands out no more at present ({backlog} records wait)"
    if in_flight:
        return (
            f"{in_flight} of {backlog} unfinished records are in flight{_held_by(facts, in_flight)}, and a partition's "
            "limit of locks or its window (share.partition.max.window) may be full"
        )
    return f"{backlog} records are free, and nobody takes them"


def _failing(facts: GroupFacts) -> str | None:
    """Say that most deliveries come again; None: they do not."""
    again, finished = facts.total("redelivery_rate"), facts.total("rate")
    if not again or finished is None or again <= _FAILING * finished:
        return None
    text = f"most of it fails: {again:.3g} deliveries a second come again, {finished:.3g} records are finished"
    return _with_error(facts, text)


def _retention(facts: GroupFacts, backlog: int, *, stalled: bool) -> str | None:
    left_s = facts.retention_left_s
    if left_s is None:
        return None
    rate = facts.total("rate")
    text = f"retention deletes the first unfinished record in {age(left_s)}"
    if stalled:
        return text if left_s < NEAR_S else None
    if rate and backlog / rate > left_s:
        return f"{text}, and the backlog takes {age(backlog / rate)} at this rate"
    return None


def _held_by(facts: GroupFacts, in_flight: int) -> str:
    """Name the longest holder, for the middle of a sentence. in_flight: number of records held in all."""
    longest = max(facts.holders, key=lambda one: one.oldest_s, default=None)
    if longest is None:
        return ""
    if longest.records >= in_flight:
        return f", all held by {longest.member}, the oldest for {age(longest.oldest_s)}"
    return f", the oldest held by {longest.member} for {age(longest.oldest_s)}"


def _with_error(facts: GroupFacts, text: str) -> str:
    if facts.error is None:
        return text
    error = clip(" ".join(facts.error.split()), ERROR_MAX)
    return (
        f"{text}; handlers raise {error}"
        if facts.raises
        else f"{text}; handlers raised {error}, {age(facts.error_s)} ago"
    )


def _number(text: str | None) -> int:
    try:
        return int(text or 0)
    except ValueError:
        return 0


def of_group(rows: Iterable[Mapping[str, Any]], group: str) -> list[Mapping[str, Any]]:
    """Return a group's rows among those of `lag.by_topic`."""
    return [row for row in rows if row["group"] == group]
