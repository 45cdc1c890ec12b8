"""Holders of a group's records and the last error of handlers, as its workers report (`/agents`). Pure.

Workers know both without a question to the group's leaders, so asking workers costs the leaders nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from flowshare.ops.figures import Holder
from flowshare.printable import printable


class AgentReport(NamedTuple):
    """A worker's report on one of its agents.

    worker: number below a supervisor. held: records in hand; oldest_s: seconds that it has had the oldest. exception,
    message: type and text of its handlers' last exception; raised_s: its age in seconds.
    """

    group: str
    worker: float | None = None
    held: float = 0
    oldest_s: float = 0.0
    exception: str | None = None
    message: str | None = None
    raised_s: float = 0.0


class InHand(NamedTuple):
    """Report on one group. error: last error of handlers, `Kind: text`; error_s: its age in seconds. None: no error."""

    holders: tuple[Holder, ...] = ()
    error: str | None = None
    error_s: float | None = None


def of_groups(told: Mapping[str, Sequence[AgentReport]], *, messages: bool = True) -> dict[str, InHand]:
    """Return the reports by group, from those of each worker by its name. messages: with an exception's text, not only
    its type."""
    rows: dict[str, list[tuple[str, AgentReport]]] = defaultdict(list)
    for name, of_worker in told.items():
        for row in of_worker:
            rows[row.group].append((name, row))
    return {group: _of_group(found, messages=messages) for group, found in rows.items()}


def _of_group(rows: Sequence[tuple[str, AgentReport]], *, messages: bool) -> InHand:
    holders = tuple(
        Holder(member=_who(name, row), records=int(row.held), oldest_s=row.oldest_s)
        for name, row in rows
        if row.held > 0
    )
    last = min((row for _, row in rows if row.exception), key=lambda row: row.raised_s, default=None)
    if last is None:
        return InHand(holders)
    text = f"{last.exception}: {last.message}" if messages and last.message else str(last.exception)
    return InHand(holders, printable(" ".join(text.split())), last.raised_s)


def _who(name: str, row: AgentReport) -> str:
    """Name a worker by its process or its address; below a supervisor by its number, too."""
    return f"worker {name}" if row.worker is None else f"worker {row.worker:g} of {name}"
