"""`flowshare groups seed`: a share group goes on where a consumer group is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from flowshare.cli.errors import Failure
from flowshare.cli.options import broker_options, broker_url, json_option
from flowshare.cli.output import say

if TYPE_CHECKING:
    from flowshare.cli.session import Session
    from flowshare.client.seeding import SeedPlan

COLUMNS = {"topic": "topic", "partition": "partition", "committed": "committed", "to": "to"}


@click.command("seed")
@click.argument("group")
@click.option("--from-consumer-group", "consumer_group", required=True, metavar="NAME", help="Whose offsets to take.")
@click.option(
    "--topic", "topics", multiple=True, help="Only this topic; may be repeated.  [default: all it committed in]"
)
@click.option("--dry-run", is_flag=True, help="Only show where the group would begin; the default.")
@click.option("--execute", is_flag=True, help="Do it.")
@json_option
@broker_options
def seed(
    group: str,
    consumer_group: str,
    topics: tuple[str, ...],
    dry_run: bool,
    execute: bool,
    as_json: bool,
    broker: str | None,
    app_path: str | None,
) -> None:
    """Let a share group begin at a consumer group's committed offsets.

    The share group must be empty; it is made if there is none. Stop the consumers first: what they commit afterwards
    the share group runs again.
    """
    from flowshare.cli.output import show
    from flowshare.cli.session import run_on_groups

    if dry_run and execute:
        raise click.UsageError("give --dry-run or --execute, not both")
    if group == consumer_group:
        raise Failure(f"the share group needs a name of its own; {group} is the consumer group's")

    async def call(session: Session) -> SeedPlan:
        from flowshare.client.seeding import plan_seeds

        plan = await plan_seeds(session.admin, consumer_group, topics)
        await _warn_of_members(session, consumer_group)
        if execute and plan.seeds:
            await session.admin.place_group(group, {(one.topic, one.partition): one.start for one in plan.seeds})
        return plan

    plan = run_on_groups(broker_url(broker, app_path), call, create=execute)
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
    show(rows, COLUMNS, as_json=as_json, empty="nothing to begin at", right=tuple(COLUMNS)[1:])
    if rows:
        say(f"group {group} begins there" if execute else "nothing was changed; add --execute to do it", err=True)


async def _warn_of_members(session: Session, consumer_group: str) -> None:
    members = await session.admin.consumer_members(consumer_group)
    if members:
        say(
            f"consumer group {consumer_group} has {members} members: what they commit from now on is run again",
            err=True,
        )
