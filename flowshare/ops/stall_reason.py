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

from dataclasses import replace
from typing import Final

from flowshare.agents.handler.texts import age, amount, clip
from flowshare.client.admin.admin import MAX_IN_FLIGHT, MAX_RATE
from flowshare.ops.figures import GroupFigures, StuckKey

QUIET_S: Final = 10.0
"""Seconds: work that began within this time is under way, not stuck."""
NEAR_S: Final = 3_600.0
ERROR_MAX: Final = 120
_FAILING: Final = 2
_MOST: Final = 2
"""Most unfinished records: at least one in this many."""


def judged(figures: GroupFigures) -> GroupFigures:
    """Return the figures with the reason why the group stands still."""
    reason = None if figures.seen_s is None else stall_reason(figures)
    return figures if reason == figures.stall else replace(figures, stall=reason)


def stall_reason(figures: GroupFigures) -> str | None:
    """Say in one sentence without a full stop why the group stands still, or soon loses records; None: all is well."""
    parked = parked_keys(figures.name, figures.total.parked or 0)
    held_back = _told(figures)
    if held_back is not None:
        return _joined(held_back, parked)
    backlog = figures.total.backlog
    if not backlog:
        return parked
    reason = _nobody(figures, backlog) or (_stuck(figures, backlog) if _quiet(figures) else _failing(figures))
    return _joined(reason, parked, _retention(figures, backlog, stalled=reason is not None))


def _joined(*reasons: str | None) -> str | None:
    return "; ".join(one for one in reasons if one) or None


def parked_keys(group: str, count: int, topic: str = "") -> str | None:
    """Say that keys of a group, or of one topic of it, are parked, the effect, and where to look; None: none is."""
    if not count:
        return None
    of = f" of {topic}" if topic else ""
    told = amount(count, f"key{of} is parked, its", f"keys{of} are parked, their")
    return f"{told} records become dead letters, unrun: `flowshare dlq parked {group}`"


def _told(figures: GroupFigures) -> str | None:
    """Tell a stall that a person (pause) or the breaker caused; None: neither did."""
    if figures.paused:
        return f"it is paused; `flowshare groups resume {figures.name}` lets it go on"
    if figures.breaker.state == "closed":
        return None
    why = f": {clip(figures.breaker.why, ERROR_MAX)}" if figures.breaker.why else ""
    if figures.breaker.state == "half-open":
        return f"its breaker lets one record through to try{why}"
    left = f"in {age(figures.breaker.left_s)}" if figures.breaker.left_s else "soon"
    return f"its breaker is open{why}; next try {left}"


def _nobody(figures: GroupFigures, backlog: int) -> str | None:
    if figures.members == 0:
        return f"no members: nobody takes the {amount(backlog, 'unfinished record')}"
    if figures.assigned == 0 and figures.members:
        return f"none of its {figures.members} members was given a partition yet"
    return None


def _quiet(figures: GroupFigures) -> bool:
    """Tell if no record has been finished for long enough to report it."""
    if figures.total.rate != 0:
        return False
    return figures.total.oldest_age_s is None or figures.total.oldest_age_s >= QUIET_S


def _stuck(figures: GroupFigures, backlog: int) -> str:
    in_flight, delayed, blocked = figures.total.in_flight, figures.total.delayed, figures.total.blocked
    if in_flight is None or delayed is None:
        return _unseen(figures, backlog)
    if delayed >= backlog:
        return _with_error(figures, f"all {backlog} unfinished records wait for the end of a delay")
    behind = _behind_a_key(figures, backlog, blocked or 0)
    if behind and _MOST * (blocked or 0) >= backlog:
        return behind  # also if members hold them all: they work on the heads that others wait for
    if in_flight and in_flight + delayed >= backlog:
        waiting = f", and {delayed} wait for the end of a delay" if delayed else ""
        return f"all that can be is in flight: {amount(in_flight, 'record')}{_held_by(figures, in_flight)}{waiting}"
    limit = _number(figures.settings.get(MAX_IN_FLIGHT))
    if 0 < limit <= in_flight:
        held = f"{in_flight} records are in flight{_held_by(figures, in_flight)}"
        return f"{held}, and {MAX_IN_FLIGHT}={limit} allows no more"
    return behind or _not_handed_out(figures, backlog, in_flight)


def _unseen(figures: GroupFigures, backlog: int) -> str:
    held = sum(one.records for one in figures.holders)
    if held:
        text = f"nothing of {backlog} records is finished; workers hold {held}{_held_by(figures, held)}"
    else:
        text = f"nothing of {backlog} records is finished, and it is not told here how many are in flight"
    return _with_error(figures, text) if figures.raises else text


def _behind_a_key(figures: GroupFigures, backlog: int, blocked: int) -> str | None:
    stuck = [(key, one.topic) for one in figures.topics for key in one.stuck]
    if not blocked or not stuck:
        return None
    key, topic = max(stuck, key=lambda one: one[0].blocked)
    oldest_s = figures.total.oldest_age_s
    since = f" for {age(oldest_s)}" if oldest_s is not None and len(figures.topics) == 1 else ""
    return (
        f"{blocked} of {backlog} unfinished records wait behind a record of their key{since}, "
        f"{key.blocked} of them behind {named_key(key, topic)}"
    )


def named_key(key: StuckKey, topic: str) -> str:
    """Name a record that others of its key wait for, and what became of it."""
    state = {
        "HELD": f"which {key.member_id} holds",
        "DELAYED": "which waits for its next attempt",
        "ARCHIVING": "whose dead letter is being written",
    }.get(key.state, "which nobody has fetched yet")
    return f"{topic}-{key.partition}@{key.offset}, {state} (attempt {key.delivery_count})"


def _not_handed_out(figures: GroupFigures, backlog: int, in_flight: int) -> str:
    rate = figures.settings.get(MAX_RATE, "")
    if figures.raises:
        held = f", {in_flight} are in flight{_held_by(figures, in_flight)}" if in_flight else ""
        return _with_error(figures, f"nothing of {backlog} records is finished{held}")
    if rate not in ("", "0"):
        return f"{MAX_RATE}={rate} hands out no more at present ({amount(backlog, 'record waits', 'records wait')})"
    if in_flight:
        return (
            f"{in_flight} of {backlog} unfinished records are in flight{_held_by(figures, in_flight)}, and a "
            "partition's limit of locks or its window (share.partition.max.window) may be full"
        )
    return amount(backlog, "record is free, and nobody takes it", "records are free, and nobody takes them")


def _failing(figures: GroupFigures) -> str | None:
    """Say that most deliveries come again; None: they do not."""
    again, finished = figures.total.redelivery_rate, figures.total.rate
    if not again or finished is None or again <= _FAILING * finished:
        return None
    text = f"most of it fails: {again:.3g} deliveries a second come again, {finished:.3g} records are finished"
    return _with_error(figures, text)


def _retention(figures: GroupFigures, backlog: int, *, stalled: bool) -> str | None:
    left_s = figures.total.retention_left_s
    if left_s is None:
        return None
    rate = figures.total.rate
    text = f"retention deletes the first unfinished record in {age(left_s)}"
    if stalled:
        return text if left_s < NEAR_S else None
    if rate and backlog / rate > left_s:
        return f"{text}, and the backlog takes {age(backlog / rate)} at this rate"
    return None


def _held_by(figures: GroupFigures, in_flight: int) -> str:
    """Name the longest holder, for the middle of a sentence. in_flight: number of records held in all."""
    longest = max(figures.holders, key=lambda one: one.oldest_s, default=None)
    if longest is None:
        return ""
    if longest.records >= in_flight:
        return f", all held by {longest.member}, the oldest for {age(longest.oldest_s)}"
    return f", the oldest held by {longest.member} for {age(longest.oldest_s)}"


def _with_error(figures: GroupFigures, text: str) -> str:
    if figures.error is None:
        return text
    error = clip(" ".join(figures.error.split()), ERROR_MAX)
    return (
        f"{text}; handlers raise {error}"
        if figures.raises
        else f"{text}; handlers raised {error}, {age(figures.error_s)} ago"
    )


def _number(text: str | None) -> int:
    try:
        return int(text or 0)
    except ValueError:
        return 0
