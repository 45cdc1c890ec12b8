"""`flowshare groups`: list, describe, configure, pause, reset, seed, move and delete share groups; and cooperative ones
(`cli.cooperative`), as far as that makes sense there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from flowshare.agents.handler.texts import age, amount
from flowshare.cli import browse, cooperative
from flowshare.cli.acting import command
from flowshare.cli.lag import spoken, stuck_lines
from flowshare.cli.move import forget_move, move
from flowshare.cli.options import broker_options, execute_options, facts_options
from flowshare.cli.output import NOTHING_DONE, TERMINAL, emit_json, headings, say, show, show_settings
from flowshare.client.errors import ServerError
from flowshare.ops import Failure
from flowshare.ops.arguments import forget_option
from flowshare.ops.deeds import DEEDS
from flowshare.ops.groups import is_cooperative, keep_parked, parked_count, parked_text, patiently
from flowshare.ops.session import CommandSession, run
from flowshare.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowshare.client.admin.admin import OffsetReset
    from flowshare.client.admin.seeding import SeedPlan
    from flowshare.protocol.messages import ConfigEntry


@click.group("groups")
def groups() -> None:
    """List, describe, browse, configure, pause, reset, seed, move and delete share groups.

    ls, browse, describe, members, reset-offsets, delete-offsets and delete know cooperative groups, too.
    """


@groups.command("ls")
@facts_options
def ls(as_json: bool, url: str) -> None:
    """List share groups and cooperative groups."""

    async def call(session: CommandSession) -> list[dict[str, Any]]:
        share = await session.admin.list_groups()
        rows = [{"group": one.group_id, "kind": "share", "state": one.state} for one in share]
        return rows + await cooperative.groups(session)

    rows = sorted(run(url, call, groups=True), key=lambda row: str(row["group"]))
    show(rows, headings("group", "kind", "state"), as_json=as_json, empty="there are no share or cooperative groups")


@groups.command("describe")
@click.argument("group")
@facts_options
def describe(group: str, as_json: bool, url: str) -> None:
    """Show a group's state, members and position in each share-partition."""

    facts = run(url, lambda session: _facts(session, group), groups=True)
    if facts["kind"] == "cooperative":
        cooperative.show_group(facts, as_json=as_json)
        return
    if as_json:
        emit_json(facts)
        return
    say(
        f"group {group}: {facts['state']}, {amount(len(facts['members']), 'member')}, "
        f"group epoch {facts['group_epoch']}, assignment epoch {facts['assignment_epoch']}{_controls(facts)}"
    )
    columns = headings(
        "topic", "partition", "start_offset", "backlog", "in_flight", "delayed", "blocked", "redeliveries"
    )
    show(
        [spoken(row) for row in facts["offsets"]],
        columns,
        as_json=False,
        empty="the group has no position yet",
        right=tuple(columns)[1:],
        spare=("redeliveries", "blocked", "delayed"),
    )
    for line in stuck_lines(facts["offsets"], least=1):
        say(line)


@groups.command("members")
@click.argument("group")
@facts_options
def members(group: str, as_json: bool, url: str) -> None:
    """List a group's members and what they are assigned."""

    facts = run(url, lambda session: _facts(session, group), groups=True)
    rows = facts["members"]
    columns = headings("member", "client", "host", "epoch", "assignment")
    if facts["kind"] == "cooperative":
        del columns["epoch"]
    if not as_json:
        rows = [{**row, "assignment": _assignment(row["assignment"])} for row in rows]
    show(
        rows,
        columns,
        as_json=as_json,
        empty=f"group {group} has no members",
        right=("epoch",),
        spare=("host", "client"),
    )


def _show_paused(_: None, *, group: str, **__: Any) -> None:
    say(f"group {group} is paused; `flowshare groups resume {group}` lets it go on")


def _show_moves(moves: Sequence[OffsetReset], *, dry_run: bool, as_json: bool, **_: Any) -> None:
    rows = [{"topic": one.topic, "partition": one.partition, "from": one.before, "to": one.after} for one in moves]
    columns = headings("topic", "partition", "from", "to")
    show(rows, columns, as_json=as_json, empty="nothing to reset", right=("partition", "from", "to"))
    if dry_run and rows:
        say(NOTHING_DONE, err=True)


def _show_config(entries: Sequence[ConfigEntry], *, as_json: bool, **_: Any) -> None:
    show_settings(entries, as_json=as_json)


groups.add_command(command(DEEDS["groups pause"], _show_paused, facts=False))
groups.add_command(command(DEEDS["groups resume"], facts=False))
groups.add_command(command(DEEDS["groups config"], _show_config, makes=lambda given: bool(given["changes"])))
groups.add_command(command(DEEDS["groups reset-offsets"], _show_moves))


@groups.command("delete-offsets")
@click.argument("group")
@click.option("--topic", "topics", multiple=True, required=True, help="A topic to forget; may be repeated.")
@forget_option
@broker_options
def delete_offsets(group: str, topics: tuple[str, ...], forget_parked: bool, url: str) -> None:
    """Forget an empty group's positions in topics, and its parked keys there if that is said."""

    async def call(session: CommandSession) -> None:
        if await is_cooperative(session, group):
            admin = session.admin.cooperative
            await patiently(session, lambda: admin.delete_offsets(group, topics))
            return
        if not forget_parked:
            await keep_parked(session, group, topics)
        await session.admin.delete_offsets(group, topics)

    run(url, call, groups=True, reporter=TERMINAL)
    say(f"group {group} has no position any more in {', '.join(topics)}")


@groups.command("delete")
@click.argument("group")
@click.option("--yes", is_flag=True, help="Do not ask.")
@broker_options
def delete(group: str, yes: bool, url: str) -> None:
    """Delete an empty group with its positions; its settings stay.

    A mark that it was moved here goes, too: it may begin anew, here and elsewhere.
    """
    if not yes:
        parked = run(url, lambda session: _parked(session, group), groups=True)
        told = f"{parked_text(group, parked)}, which it forgets. " if parked else ""
        click.confirm(f"{told}delete group {group} and its positions?", abort=True)

    async def call(session: CommandSession) -> str:
        if await is_cooperative(session, group):
            await patiently(session, lambda: session.admin.cooperative.delete(group))
            return f"deleted cooperative group {group}"
        try:
            await session.admin.delete_group(group)
        except ServerError as error:
            if error.code is not ErrorCode.GROUP_ID_NOT_FOUND or not await forget_move(session, group):
                raise
            return f"there is no group {group} any more; the mark that it was moved here is deleted"
        await forget_move(session, group)
        return f"deleted group {group}"

    say(run(url, call, groups=True, reporter=TERMINAL))


async def _parked(session: CommandSession, group: str) -> int:
    """Keys of it that are parked."""
    if await is_cooperative(session, group):
        return 0
    return await parked_count(session.admin, group, ())


def _controls(facts: dict[str, Any]) -> str:
    """Return the limits that slow the group down, as text for its description line."""
    texts = [", paused"] if facts["paused"] else []
    breaker = facts["breaker"]
    if breaker is not None and breaker["state"] != "closed":
        tries = f"tries one record in {age(breaker['left_s'])}" if breaker["left_s"] else "tries one record"
        texts.append(f", breaker {breaker['state']} as {breaker['why']}, {tries}")
    if facts["max_in_flight"]:
        texts.append(f", at most {facts['max_in_flight']} in flight")
    if facts["max_rate"]:
        texts.append(
            f", at most {facts['max_rate']}" if "/" in facts["max_rate"] else f", at most {facts['max_rate']}/s"
        )
    if facts["priority"] not in (None, "redeliveries"):
        texts.append(f", priority {facts['priority']}")
    return "".join(texts)


async def _facts(session: CommandSession, group: str) -> dict[str, Any]:
    if await is_cooperative(session, group):
        return await cooperative.describe(session, group)
    return await _describe(session, group)


async def _describe(session: CommandSession, group: str) -> dict[str, Any]:
    from flowshare.client.admin.admin import BREAKER, MAX_IN_FLIGHT, MAX_RATE, PAUSED
    from flowshare.ops.reading import of_share

    # Kafka's brokers have none of the settings that are shown here, and may ask for a right of its own to tell.
    entries = await session.admin.group_configs(group) if session.backend.capabilities.pausing else []
    configs = {one.name: one.value for one in entries}
    found = await session.admin.describe_group(group)
    offsets = await session.admin.group_offsets(group)
    now_ms = session.clock.now_ms()
    breaker = None if configs.get(BREAKER, "0") == "0" else await session.admin.breaker(group)
    return {
        "group": group,
        "kind": "share",
        "state": found.state,
        "group_epoch": found.group_epoch,
        "assignment_epoch": found.assignment_epoch,
        "assignor": found.assignor,
        "paused": configs.get(PAUSED) == "true",
        "max_in_flight": int(configs.get(MAX_IN_FLIGHT, "0")) or None,
        "breaker": breaker and {"state": breaker.state, "why": breaker.why, "left_s": breaker.left_ms / 1000},
        "max_rate": None if configs.get(MAX_RATE, "0") == "0" else configs[MAX_RATE],
        "priority": configs.get("share.delivery.priority"),
        "members": [
            {
                "member": one.member_id,
                "client": one.client_id,
                "host": one.client_host,
                "epoch": one.member_epoch,
                "topics": list(one.subscribed_topics),
                "assignment": {topic: list(parts) for topic, parts in one.assignment.items()},
            }
            for one in found.members
        ],
        "offsets": [of_share(group, part, now_ms).row() for part in offsets],
    }


def _assignment(assigned: dict[str, list[int]]) -> str:
    return " ".join(f"{topic}:{','.join(map(str, parts))}" for topic, parts in sorted(assigned.items()))


@groups.command("seed")
@click.argument("group")
@click.option("--from-consumer-group", "consumer_group", required=True, metavar="NAME", help="Whose offsets to take.")
@click.option(
    "--topic", "topics", multiple=True, help="Only this topic; may be repeated.  [default: all it committed in]"
)
@forget_option
@execute_options("where the group would begin")
@facts_options
def seed(
    group: str,
    consumer_group: str,
    topics: tuple[str, ...],
    forget_parked: bool,
    execute: bool,
    as_json: bool,
    url: str,
) -> None:
    """Let a share group begin at a consumer group's committed offsets.

    The share group must be empty; it is made if there is none. Stop the consumers first: what they commit afterwards
    the share group runs again.
    """

    if group == consumer_group:
        raise Failure(f"the share group needs a name of its own; {group} is the consumer group's")

    async def call(session: CommandSession) -> SeedPlan:
        from flowshare.client.admin.seeding import plan_seeds

        plan = await plan_seeds(session.admin, consumer_group, topics)
        if plan.seeds and not forget_parked:
            await keep_parked(session, group, sorted({one.topic for one in plan.seeds}))
        if members := await session.admin.consumer_members(consumer_group):
            text = f"consumer group {consumer_group} has {amount(members, 'member')}: what is committed now runs again"
            say(text, err=True)
        if execute and plan.seeds:
            await session.admin.place_group(group, {(one.topic, one.partition): one.start for one in plan.seeds})
        return plan

    plan = run(url, call, create=execute, groups=True)
    for topic in plan.gone:
        say(f"{topic}: there is no such topic any more; it is left out", err=True)
    for one in plan.seeds:
        if one.note:
            say(f"{one.topic}-{one.partition}: {one.note}", err=True)
    rows: list[dict[str, Any]] = [
        {
            "topic": one.topic,
            "partition": one.partition,
            "committed": one.committed if one.committed >= 0 else None,
            "to": one.start,
            "note": one.note,
        }
        for one in plan.seeds
    ]
    columns = headings("topic", "partition", "committed", "to")
    show(rows, columns, as_json=as_json, empty="nothing to begin at", right=tuple(columns)[1:])
    if rows:
        say(f"group {group} begins there" if execute else NOTHING_DONE, err=True)


for one in (move, *browse.COMMANDS):
    groups.add_command(one)
