"""Cooperative groups in `flowshare groups`: how they are shown and changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from flowshare.agents.handler.texts import amount
from flowshare.cli.lag import spoken
from flowshare.cli.output import emit_json, headings, say, show

if TYPE_CHECKING:
    from flowshare.ops.session import CommandSession
    from flowshare.protocol.messages.cooperative import PartitionOffsets

WAITS_TOLD: Final = 5
_COLUMNS: Final = headings(
    "topic",
    "partition",
    "start_offset",
    "backlog",
    "committed_ranges",
    "furthest",
    "holders",
    "held",
    "blocked_handovers",
    "overlaps",
    start_offset="stable offset",
    committed_ranges="ranges behind",
    furthest="furthest",
    held="keys held",
    blocked_handovers="waits",
)


async def groups(session: CommandSession) -> list[dict[str, Any]]:
    """A row for each group."""
    if not session.backend.capabilities.key_order:
        return []
    admin = session.admin.cooperative
    return [
        {"group": name, "kind": "cooperative", "state": (await admin.describe(name)).state}
        for name in await admin.names()
    ]


async def groups_of(session: CommandSession, topic: str) -> list[str]:
    """The groups that have begun with a topic: they read it in the order of keys."""
    if not session.backend.capabilities.key_order or not session.led:
        return []
    admin = session.admin.cooperative
    return [name for name in await admin.names() if any(one.topic == topic for one in await admin.offsets(name))]


async def describe(session: CommandSession, group: str) -> dict[str, Any]:
    """State, members, partitions, who holds and who waits."""
    from flowshare.ops.reading import of_cooperative

    admin, now_ms = session.admin.cooperative, session.clock.now_ms()
    found, parts = await admin.describe(group), await admin.offsets(group)
    rows: list[dict[str, Any]] = []
    for part in parts:
        figures = of_cooperative(group, part, now_ms, log_end=part.log_end)
        rows.append({**figures.row(), "reset_epoch": part.reset_epoch, "unstable": part.unstable})
    return {
        "group": group,
        "kind": "cooperative",
        "state": found.state,
        "members": [
            {
                "member": one.member_id,
                "client": one.client_id,
                "host": one.client_host,
                "assignment": {topic: list(numbers) for topic, numbers in one.assignment.items()},
            }
            for one in found.members
        ],
        "offsets": rows,
        "claims": [{**_place(part), **claim._asdict()} for part in parts for claim in part.claims],
        "waits": [{**_place(part), **wait._asdict()} for part in parts for wait in part.waits],
    }


def show_group(facts: dict[str, Any], *, as_json: bool) -> None:
    """Print what `describe` found."""
    if as_json:
        emit_json(facts)
        return
    say(f"cooperative group {facts['group']}: {facts['state']}, {amount(len(facts['members']), 'member')}")
    rows = [{**spoken(row), "held": f"{row['held_keys']:.0%}"} for row in facts["offsets"]]
    show(
        rows,
        _COLUMNS,
        as_json=False,
        empty="the group has no position yet",
        right=tuple(_COLUMNS)[1:],
        spare=("overlaps", "blocked_handovers", "furthest", "committed_ranges"),
    )
    longest = sorted(facts["waits"], key=lambda wait: -wait["waited_ms"])
    for wait in longest[:WAITS_TOLD]:
        say(
            f"{wait['topic']}-{wait['partition']}: {wait['member_id']} waits for keys that {wait['holder']} has not "
            f"given back, for {wait['waited_ms'] / 1000:.0f} s"
        )


def _place(part: PartitionOffsets) -> dict[str, Any]:
    return {"topic": part.topic, "partition": part.partition}
