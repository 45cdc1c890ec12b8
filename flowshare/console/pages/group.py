"""One group: its figures over time, its members and their records, its settings and their origins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from flowshare.agents.handler.texts import age
from flowshare.cli import cooperative
from flowshare.client.errors import ClientError, ServerError
from flowshare.console import charts
from flowshare.console.markup import number, rate
from flowshare.console.pages import held
from flowshare.console.pages.page import ROWS_MAX, Context, Page, Query, View, named
from flowshare.console.source import NotAnswering
from flowshare.console.store import GROUPS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from flowshare.console.store import Figures, Point
    from flowshare.ops.figures import GroupFigures
    from flowshare.ops.session import CommandSession

ASSIGNED_MAX: Final = 50
"""The most topics of a member, and partitions of a topic, that are named."""
SPANS: Final = {"10m": 600, "1h": 3600, "24h": 86400}


async def _load(view: View, query: Query) -> Context:
    name = named(query, "name")
    line = view.line(name)
    span = query.get("span", "10m") if query.get("span") in SPANS else "10m"
    now_s = view.clock.now_ms() // 1000
    since_s = now_s - SPANS[span]
    drawn = await _drawn(view, name, since_s, now_s, minutes=span == "24h")
    facts: dict[str, Any] = {"members": None, "settings": None, "unknown": None, "holdings": None, "left_out": 0}
    try:
        facts |= await view.source.ask(lambda session: _ask(session, name, line.kind))
        if line.kind == "share" and facts["members"]:
            facts |= await _holdings(view, line)
    except NotAnswering as error:
        facts["away"] = str(error)
    except ClientError as error:
        facts["unknown"] = str(error)
    members = facts["members"] or ()
    if facts["members"] is not None:
        facts["members"] = [{**one, "assigned": assigned(one["assignment"])} for one in members[:ROWS_MAX]]
    return {
        "more_members": max(0, len(members) - ROWS_MAX),
        "line": line,
        "span": span,
        "spans": list(SPANS),
        "charts": drawn,
        "parts": sorted(line.partitions, key=lambda part: (part.topic, part.partition))[:ROWS_MAX],
        "more_parts": max(0, len(line.partitions) - ROWS_MAX),
        **facts,
    }


async def _holdings(view: View, line: GroupFigures) -> Context:
    """Return the holdings of each member: number of records, age of the handler call that has run longest, and its
    process."""
    found = await held.find(view, ("acquired", "pending"), "in_flight", line.name)
    if found.unknown:
        return {}
    made: dict[str, dict[str, Any]] = {}
    for run in found.runs:
        row = made.setdefault(run.member, {"records": 0, "worker": None, "longest_s": None})
        row["records"] += run.count
    told: Mapping[str, Any] = (await view.workers.in_flight()).rows if view.workers.known else {}
    whose = held.Whose(found.runs, view.collector.look.groups.values())
    for worker, rows in told.items():
        for row in rows:
            group, hand = whose.run(row) if row.get("topic") else (None, None)
            if hand is not None and group == line.name:
                one = made[hand.member]
                one |= {"worker": worker, "longest_s": max(one["longest_s"] or 0.0, row["age_s"])}
    return {"holdings": made, "left_out": found.left_out}


async def _drawn(view: View, group: str, since_s: int, now_s: int, *, minutes: bool) -> list[Any]:
    points = await view.store.figures(GROUPS, group, since_s, minutes=minutes)

    def series(title: str, columns: Sequence[tuple[str, str]], show: Any) -> Any:
        made = [charts.Series(label, at, _column(points, column)) for at, (column, label) in enumerate(columns)]
        return charts.lines(made, since_s, now_s, show=show, title=title)

    return [
        series(
            "records",
            (("backlog", "backlog"), ("in_flight", "in flight"), ("delayed", "delayed"), ("blocked", "blocked")),
            number,
        ),
        series(
            "records a second",
            (("arriving", "arriving"), ("finished", "finished"), ("redelivered", "redelivered")),
            rate,
        ),
        series("age of the oldest", (("oldest_s", "age of the oldest"),), age),
    ]


def _column(points: Sequence[Point[Figures]], column: str) -> list[tuple[float, float | None]]:
    return [(point.at_s, getattr(point.figures, column)) for point in points]


async def _ask(session: CommandSession, name: str, kind: str) -> dict[str, Any]:
    admin = session.admin
    if kind == "cooperative":
        facts = await cooperative.describe(session, name)
        return {"members": facts["members"], "settings": None}
    found = await admin.describe_group(name)
    members = [
        {
            "member": one.member_id,
            "client": one.client_id,
            "host": one.client_host,
            "epoch": one.member_epoch,
            "assignment": one.assignment,
        }
        for one in found.members
    ]
    try:
        settings = await admin.group_configs(name)
    except ServerError as error:
        return {"members": members, "settings": None, "unknown": str(error)}
    return {"members": members, "settings": settings}


def assigned(assignment: Mapping[str, Iterable[int]]) -> dict[str, str]:
    """Return the partitions of a member, by topic, as text: the first ones of many."""
    found: dict[str, str] = {}
    for topic, parts in sorted(assignment.items())[:ASSIGNED_MAX]:
        numbers = sorted(parts)
        more = f" and {len(numbers) - ASSIGNED_MAX} more" if len(numbers) > ASSIGNED_MAX else ""
        found[topic] = ", ".join(str(one) for one in numbers[:ASSIGNED_MAX]) + more
    return found


PAGE: Final = Page("group", "Group", _load, listed=False)
