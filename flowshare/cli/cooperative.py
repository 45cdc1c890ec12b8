"""Cooperative groups in `flowshare groups`: how they are shown and changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from flowshare.cli.lag import known, spoken
from flowshare.cli.output import Failure, emit_json, headings, say, show
from flowshare.client.errors import ServerError
from flowshare.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from flowshare.cli.session import CommandSession
    from flowshare.client.admin.admin import OffsetReset, ResetTarget
    from flowshare.protocol.messages.cooperative import PartitionOffsets

T = TypeVar("T")

PATIENCE_S: Final = 120.0
"""How long a command that leads waits for the leases of dead workers; an agent's lease is 30 s unless it says more."""
AGAIN_S: Final = 0.5
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


async def is_cooperative(session: CommandSession, group: str) -> bool:
    """Tell if this is a cooperative group that has begun with a partition."""
    if not session.backend.capabilities.key_order:
        return False
    try:
        return bool(await session.admin.cooperative.offsets(group))
    except ServerError as error:
        if error.retriable:
            raise
        return False  # it is another kind of group, or may not be seen


async def refuse(session: CommandSession, group: str, instead: str) -> None:
    """Raises: Failure where the group is a cooperative one, with what to do instead."""
    if await is_cooperative(session, group):
        raise Failure(f"{group} is a cooperative group: {instead}")


async def describe(session: CommandSession, group: str) -> dict[str, Any]:
    """State, members, partitions, who holds and who waits."""
    from flowshare.agents.scale import lag

    admin, now_ms = session.admin.cooperative, session.clock.now_ms()
    found, parts = await admin.describe(group), await admin.offsets(group)
    rows: list[dict[str, Any]] = []
    for part in parts:
        shared, more = lag.as_shared(part)
        row = lag.row(group, shared, now_ms, log_end=part.log_end if part.log_end >= 0 else None, more=more)
        rows.append({**known(row), "reset_epoch": part.reset_epoch, "unstable": part.unstable})
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
        "claims": [{**_place(part), **claim._asdict()} for part in parts for claim in (*part.claims, *part.spans)],
        "waits": [{**_place(part), **wait._asdict()} for part in parts for wait in part.waits],
    }


def show_group(facts: dict[str, Any], *, as_json: bool) -> None:
    """Print what `describe` found."""
    if as_json:
        emit_json(facts)
        return
    say(f"cooperative group {facts['group']}: {facts['state']}, {len(facts['members'])} members")
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


async def reset(
    session: CommandSession, group: str, to: ResetTarget, topics: Sequence[str], *, execute: bool
) -> list[OffsetReset]:
    """Move its stable offsets."""
    admin = session.admin.cooperative
    return await patiently(session, lambda: admin.reset(group, to=to, topics=topics or None, dry_run=not execute))


async def patiently(session: CommandSession, call: Callable[[], Awaitable[T]]) -> T:
    """Make a call that is refused while members hold keys, and wait for their leases if this process leads.

    Where this process leads, no worker runs: held keys are a dead worker's, and free when its lease ends. Elsewhere the
    refusal is raised at once.
    """
    until_s, told = session.clock.monotonic() + PATIENCE_S, False
    while True:
        try:
            return await call()
        except ServerError as error:
            held = error.code is ErrorCode.NON_EMPTY_GROUP
            if not held or not session.leads or session.clock.monotonic() > until_s:
                raise
        if not told:
            told = True
            say("keys are held by workers that do not run any more: waiting until their leases end", err=True)
        await session.clock.sleep(AGAIN_S)


def _place(part: PartitionOffsets) -> dict[str, Any]:
    return {"topic": part.topic, "partition": part.partition}
