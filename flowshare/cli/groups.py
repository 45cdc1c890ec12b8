"""`flowshare groups`: list, describe, configure, pause, reset, seed, move and delete share groups."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from flowshare.cli.errors import Failure
from flowshare.cli.move import move
from flowshare.cli.options import broker_options, broker_url, json_option, setting
from flowshare.cli.output import say
from flowshare.cli.seed import seed

if TYPE_CHECKING:
    from flowshare.cli.session import Session
    from flowshare.client.admin import ResetTarget


@click.group("groups")
def groups() -> None:
    """List, describe, configure, pause, reset, seed, move and delete share groups."""


groups.add_command(seed)
groups.add_command(move)


@groups.command("ls")
@json_option
@broker_options
def ls(as_json: bool, broker: str | None, app_path: str | None) -> None:
    """List the share groups."""
    from flowshare.cli.output import show
    from flowshare.cli.session import run_on_groups

    async def call(session: Session) -> list[dict[str, Any]]:
        return [{"group": one.group_id, "state": one.state} for one in await session.admin.list_groups()]

    rows = sorted(run_on_groups(broker_url(broker, app_path), call), key=lambda row: str(row["group"]))
    show(rows, {"group": "group", "state": "state"}, as_json=as_json, empty="there are no share groups")


@groups.command("describe")
@click.argument("group")
@json_option
@broker_options
def describe(group: str, as_json: bool, broker: str | None, app_path: str | None) -> None:
    """Show a group's state, members and position in each share-partition."""
    from flowshare.cli.lag_table import spoken
    from flowshare.cli.output import emit_json, show
    from flowshare.cli.session import run_on_groups

    facts = run_on_groups(broker_url(broker, app_path), lambda session: _describe(session, group))
    if as_json:
        emit_json(facts)
        return
    say(
        f"group {group}: {facts['state']}, {len(facts['members'])} members, "
        f"group epoch {facts['group_epoch']}, assignment epoch {facts['assignment_epoch']}{_controls(facts)}"
    )
    show(
        [spoken(row) for row in facts["offsets"]],
        _OFFSETS,
        as_json=False,
        empty="the group has no position yet",
        right=tuple(_OFFSETS)[1:],
        spare=("redeliveries", "delayed"),
    )


@groups.command("members")
@click.argument("group")
@json_option
@broker_options
def members(group: str, as_json: bool, broker: str | None, app_path: str | None) -> None:
    """List a group's members and what they are assigned."""
    from flowshare.cli.output import show
    from flowshare.cli.session import run_on_groups

    facts = run_on_groups(broker_url(broker, app_path), lambda session: _describe(session, group))
    columns = {
        "member": "member",
        "client": "client",
        "host": "host",
        "epoch": "epoch",
        "assignment": "assignment",
    }
    rows = facts["members"]
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


@groups.command("pause")
@click.argument("group")
@broker_options
def pause(group: str, broker: str | None, app_path: str | None) -> None:
    """Hand out no more records of a group until it is resumed, restarts included.

    What its members hold they finish as ever.
    """
    _pause(group, broker_url(broker, app_path), paused=True)
    say(f"group {group} is paused; `flowshare groups resume {group}` lets it go on")


@groups.command("resume")
@click.argument("group")
@broker_options
def resume(group: str, broker: str | None, app_path: str | None) -> None:
    """Let a paused group go on."""
    _pause(group, broker_url(broker, app_path), paused=False)
    say(f"group {group} goes on")


@groups.command("reset-offsets")
@click.argument("group")
@click.option("--topic", "topics", multiple=True, help="Only this topic; may be repeated.  [default: all it has]")
@click.option("--to-earliest", is_flag=True)
@click.option("--to-latest", is_flag=True)
@click.option("--to-datetime", metavar="ISO", help="For example 2026-11-21T09:00:00 (UTC unless it names a zone).")
@click.option("--to-offset", type=click.IntRange(0))
@click.option("--dry-run", is_flag=True, help="Only show the new positions; the default.")
@click.option("--execute", is_flag=True, help="Do it; without it the new positions are only shown.")
@json_option
@broker_options
def reset_offsets(
    group: str,
    topics: tuple[str, ...],
    to_earliest: bool,
    to_latest: bool,
    to_datetime: str | None,
    to_offset: int | None,
    dry_run: bool,
    execute: bool,
    as_json: bool,
    broker: str | None,
    app_path: str | None,
) -> None:
    """Move a group's start offsets. The group must be empty: stop its workers first."""
    from flowshare.cli.output import show
    from flowshare.cli.session import run_on_groups

    if dry_run and execute:
        raise click.UsageError("give --dry-run or --execute, not both")
    target = _target(to_earliest, to_latest, to_datetime, to_offset)

    async def call(session: Session) -> list[dict[str, Any]]:
        moved = await session.admin.reset_offsets(group, to=target, topics=topics or None, dry_run=not execute)
        return [{"topic": one.topic, "partition": one.partition, "from": one.before, "to": one.after} for one in moved]

    rows = run_on_groups(broker_url(broker, app_path), call)
    columns = {"topic": "topic", "partition": "partition", "from": "from", "to": "to"}
    show(rows, columns, as_json=as_json, empty="nothing to reset", right=("partition", "from", "to"))
    if not execute and rows:
        say("nothing was changed; add --execute to do it", err=True)


@groups.command("delete-offsets")
@click.argument("group")
@click.option("--topic", "topics", multiple=True, required=True, help="A topic to forget; may be repeated.")
@broker_options
def delete_offsets(group: str, topics: tuple[str, ...], broker: str | None, app_path: str | None) -> None:
    """Forget an empty group's positions in topics."""
    from flowshare.cli.session import run_on_groups

    async def call(session: Session) -> None:
        await session.admin.delete_offsets(group, topics)

    run_on_groups(broker_url(broker, app_path), call)
    say(f"group {group} has no position any more in {', '.join(topics)}")


@groups.command("delete")
@click.argument("group")
@click.option("--yes", is_flag=True, help="Do not ask.")
@broker_options
def delete(group: str, yes: bool, broker: str | None, app_path: str | None) -> None:
    """Delete an empty group with its positions; its settings stay.

    A mark that it was moved here goes, too: it may begin anew, here and elsewhere.
    """
    from flowshare.cli.move import forget_move
    from flowshare.cli.session import run_on_groups
    from flowshare.client.errors import ServerError
    from flowshare.protocol.errors import ErrorCode

    if not yes:
        click.confirm(f"delete group {group} and its positions?", abort=True)

    async def call(session: Session) -> str:
        try:
            await session.admin.delete_group(group)
        except ServerError as error:
            if error.code is not ErrorCode.GROUP_ID_NOT_FOUND or not await forget_move(session, group):
                raise
            return f"there is no group {group} any more; the mark that it was moved here is deleted"
        await forget_move(session, group)
        return f"deleted group {group}"

    say(run_on_groups(broker_url(broker, app_path), call))


@groups.command("config")
@click.argument("group")
@click.argument("settings", nargs=-1, metavar="[NAME=VALUE | NAME=]...")
@json_option
@broker_options
def config(group: str, settings: tuple[str, ...], as_json: bool, broker: str | None, app_path: str | None) -> None:
    """Show a group's settings, or set NAME=VALUE; `NAME=` goes back to the default."""
    from flowshare.cli.output import show
    from flowshare.cli.session import run_on_groups

    changes = dict(setting(text) for text in settings)

    async def call(session: Session) -> list[dict[str, Any]]:
        if changes:
            await session.admin.alter_group_configs(group, changes)
        return [
            {"name": one.name, "value": one.value, "default": one.is_default, "doc": one.documentation}
            for one in await session.admin.group_configs(group)
        ]

    rows = run_on_groups(broker_url(broker, app_path), call, create=bool(changes))
    show(rows, {"name": "name", "value": "value", "default": "default"}, as_json=as_json, empty="no settings")


_OFFSETS = {
    "topic": "topic",
    "partition": "partition",
    "start_offset": "start offset",
    "backlog": "backlog",
    "in_flight": "in flight",
    "delayed": "delayed",
    "redeliveries": "redeliveries",
}


def _pause(group: str, url: str, *, paused: bool) -> None:
    from flowshare.cli.session import run_on_groups

    async def call(session: Session) -> None:
        if not session.backend.capabilities.pausing:
            raise Failure(
                f"Kafka's brokers cannot pause group {group}: stop its workers, or call `agent.pause()` in each of them"
            )
        await session.admin.describe_group(group)  # a mistyped name would be taken, as groups can be set up beforehand
        await (session.admin.pause_group(group) if paused else session.admin.resume_group(group))

    run_on_groups(url, call)


def _controls(facts: dict[str, Any]) -> str:
    """What keeps the group from taking all it could, for the line that describes it."""
    texts = [", paused"] if facts["paused"] else []
    if facts["max_in_flight"]:
        texts.append(f", at most {facts['max_in_flight']} in flight")
    if facts["priority"] not in (None, "redeliveries"):
        texts.append(f", priority {facts['priority']}")
    return "".join(texts)


async def _describe(session: Session, group: str) -> dict[str, Any]:
    from flowshare.agents import lag
    from flowshare.cli.lag_table import known
    from flowshare.client.admin import MAX_IN_FLIGHT, PAUSED

    # Kafka's brokers have none of the settings that are shown here, and may ask for a right of its own to tell.
    entries = await session.admin.group_configs(group) if session.backend.capabilities.pausing else []
    configs = {one.name: one.value for one in entries}
    found = await session.admin.describe_group(group)
    offsets = await session.admin.group_offsets(group)
    now_ms = session.clock.now_ms()
    return {
        "group": group,
        "state": found.state,
        "group_epoch": found.group_epoch,
        "assignment_epoch": found.assignment_epoch,
        "assignor": found.assignor,
        "paused": configs.get(PAUSED) == "true",
        "max_in_flight": int(configs.get(MAX_IN_FLIGHT, "0")) or None,
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
        "offsets": [known(lag.row(group, part, now_ms)) for part in offsets],
    }


def _assignment(assigned: dict[str, list[int]]) -> str:
    return " ".join(f"{topic}:{','.join(map(str, parts))}" for topic, parts in sorted(assigned.items()))


def _target(earliest: bool, latest: bool, at: str | None, offset: int | None) -> ResetTarget:
    given = [earliest, latest, at is not None, offset is not None]
    if sum(given) != 1:
        raise click.UsageError("say where to: one of --to-earliest, --to-latest, --to-datetime, --to-offset")
    if earliest:
        return "earliest"
    if latest:
        return "latest"
    if offset is not None:
        return offset
    try:
        moment = datetime.fromisoformat(at or "")
    except ValueError:
        raise click.UsageError(f"--to-datetime {at!r} is no date and time such as 2026-11-21T09:00:00") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
