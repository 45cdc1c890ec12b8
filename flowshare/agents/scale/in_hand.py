"""Holders of a group's records and the last error of handlers, as its workers report (`/agents`). Pure.

Workers know both without a question to the group's leaders, so asking workers costs the leaders nothing. A worker's
report is not trusted: a row of the wrong form is refused.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from flowshare.agents.scale.stall_reason import Holder
from flowshare.printable import printable

Row = dict[str, Any]


class InHand(NamedTuple):
    """Report on one group. error: last error of handlers, `Kind: text`; error_s: its age in seconds. None: no error."""

    holders: tuple[Holder, ...] = ()
    error: str | None = None
    error_s: float | None = None


def read_rows(found: object) -> list[Row]:
    """Return the rows of a worker's page. Raises: ValueError (not a worker's page)."""
    if not isinstance(found, list):
        raise ValueError("a list is missing")  # noqa: TRY004 - it is no worker's page, as JSON that cannot be read
    rows = [_read(row) for row in cast("list[object]", found)]
    return [row for row in rows if row["group"] is not None]  # None: the worker hid its names


def of_groups(told: Mapping[str, Sequence[Row]], *, messages: bool = True) -> dict[str, InHand]:
    """Return the reports by group, from the rows of each worker by its name. messages: with an exception's text, not
    only its type."""
    rows: dict[str, list[tuple[str, Row]]] = defaultdict(list)
    for name, of_worker in told.items():
        for row in of_worker:
            rows[row["group"]].append((name, row))
    return {group: _of_group(found, messages=messages) for group, found in rows.items()}


def _of_group(rows: Sequence[tuple[str, Row]], *, messages: bool) -> InHand:
    holders = tuple(
        Holder(member=_who(name, row), records=row["held"], oldest_s=row["oldest_s"])
        for name, row in rows
        if row["held"] > 0
    )
    last = min((row for _, row in rows if row["exception"]), key=lambda row: row["raised_s"], default=None)
    if last is None:
        return InHand(holders)
    text = f"{last['exception']}: {last['message']}" if messages and last["message"] else last["exception"]
    return InHand(holders, printable(" ".join(text.split())), last["raised_s"])


def _who(name: str, row: Row) -> str:
    """Name a worker by its process or its address; below a supervisor by its number, too."""
    return f"worker {name}" if row["worker"] is None else f"worker {row['worker']:g} of {name}"


def _read(found: object) -> Row:
    if not isinstance(found, dict):
        raise ValueError("a row is none")  # noqa: TRY004 - as above
    row = cast("Row", found)
    texts = all(isinstance(row.get(name), str | None) for name in ("group", "exception", "message"))
    if not texts or not all(_is_number(row.get(name)) for name in ("held", "oldest_s", "raised_s", "worker")):
        raise ValueError("a row has something else in it")
    return {
        **{name: row.get(name) for name in ("group", "worker", "exception", "message")},
        **{name: row.get(name) or 0 for name in ("held", "oldest_s", "raised_s")},
    }


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, (int, float)) and math.isfinite(value))
