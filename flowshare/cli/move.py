"""`flowshare groups move`: carries an empty share group from Kafka's brokers to a fleet of workers, or back."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from flowshare.agents.handler.texts import amount
from flowshare.backend import parse_broker
from flowshare.cli.options import execute_options, facts_options
from flowshare.cli.output import NOTHING_DONE, headings, say, show
from flowshare.clock import LoopClock
from flowshare.ops import Failure
from flowshare.ops.session import CommandSession, open_session, serving, slots_of

if TYPE_CHECKING:
    from flowshare.backend.group_location import Where
    from flowshare.backend.url import BrokerUrl
    from flowshare.client.admin.admin import ShareAdmin
    from flowshare.client.admin.moving import MovePlan

OTHER: Final = {"workers": "native", "native": "workers"}


@click.command("move")
@click.argument("group")
@click.option("--to", "target", type=click.Choice(["workers", "native"]), required=True, help="Who is to lead it.")
@click.option("--fleet", help="Of which fleet the workers are.  [default: the URL's, or the app's id]")
@click.option("--keep", is_flag=True, help="Leave the group where it was, too.")
@click.option("--yes", is_flag=True, help="Although finished records will run again.")
@execute_options("what would be carried")
@facts_options
def move(
    group: str,
    target: Where,
    fleet: str | None,
    keep: bool,
    yes: bool,
    execute: bool,
    as_json: bool,
    url: str,
) -> None:
    """Carry an empty share group between Kafka's brokers and a fleet of workers.

    Start offsets and settings go along, and to workers what is finished behind the start. Stop the group's workers
    first. When no worker of the fleet runs, this command leads the fleet for a moment. Afterwards the group is deleted
    where it was, and a mark (in the topic __flowshare_moves) keeps workers from beginning it anew there.
    """
    place = parse_broker(url)
    if place.kind != "kafka":
        raise Failure(
            f"groups move between the brokers of a Kafka cluster and workers; {place.kind} has one place only"
        )
    plan = asyncio.run(move_group(place, group, target, fleet, execute=execute, keep=keep, yes=yes))
    _show_plan(plan, as_json=as_json)
    say(_done(plan, target, keep=keep) if execute else NOTHING_DONE, err=True)


async def move_group(
    url: BrokerUrl, group: str, target: Where, fleet: str | None, *, execute: bool, keep: bool, yes: bool
) -> MovePlan:
    """Move a group and return the plan; without `execute`, only plan. Raises: Failure, ClientError, OSError."""
    from flowshare.backend.fleet_options import fleet_of
    from flowshare.backend.group_location import MoveMark, mark_move
    from flowshare.client.admin.moving import carry, plan_move

    options = {**url.options, **({"fleet": fleet} if fleet else {})}
    places = {share: replace(url, options={**options, "share": share}) for share in OTHER}
    slots = await slots_of(places["workers"])
    if target == "native" and not slots:
        raise Failure(f"the fleet {fleet_of(places['workers'])} has no state here: name the fleet with --fleet")
    async with AsyncExitStack() as stack:
        there = open_session(places[OTHER[target]], create=True, groups=True)
        source = (await stack.enter_async_context(there)).admin
        await source.describe_group(group)  # a mistyped name makes no fleet
        goal: CommandSession | None = None
        if target == "native" or slots or execute:
            goal = await stack.enter_async_context(open_session(places[target], create=True, groups=True))
        plan = await plan_move(source, goal.admin if goal else None, group, ranges=target == "workers")
        plan = await _without_retries(source, plan)
        if execute:
            assert goal is not None
            if plan.again and not yes:
                raise Failure(
                    f"{amount(plan.again, 'finished record')} of group {group} would run again ({plan.reason}): wait "
                    "until `flowshare lag` shows a backlog of 0, or add --yes"
                )
            where = MoveMark(target, fleet_of(places["workers"]), LoopClock().now_ms())
            mark = partial(mark_move, goal.admin, goal.producer, group, where)
            await carry(source, goal.admin, plan, keep=keep, mark=mark)
        return plan


async def _without_retries(source: ShareAdmin, plan: MovePlan) -> MovePlan:
    """Records that wait in a native group's retry topic would be left there: nobody reads it on workers."""
    from flowshare.agents.handler.retry_headers import retry_topic

    waiting = retry_topic(plan.group_id)
    for part in await source.group_offsets(plan.group_id):
        if part.topic == waiting and part.lag > 0:
            raise Failure(
                f"{amount(part.lag, 'record waits', 'records wait')} in {waiting} for a retry, and workers do not read "
                "it: let the group's workers go on until `flowshare lag` shows none there, then move it"
            )
    return replace(plan, moves=[one for one in plan.moves if one.topic != waiting])


async def forget_move(session: CommandSession, group: str) -> bool:
    """Take away the mark of a group that is gone from where it was moved to; whether there was one.

    Raises: ClientError, OSError.
    """
    from flowshare.backend.group_location import mark_move, read_marks

    backend = serving(session.backend)
    if backend.kind not in OTHER:
        return False
    mark = (await read_marks(session.admin)).get(group)
    if mark is None or mark.place != backend.kind or (mark.place == "workers" and mark.fleet != backend.fleet):
        return False
    await mark_move(session.admin, session.producer, group, None)
    return True


def _show_plan(plan: MovePlan, *, as_json: bool) -> None:
    rows: list[dict[str, Any]] = [
        {
            "topic": one.topic,
            "partition": one.partition,
            "start": one.start,
            "finished": sum(last - first + 1 for first, last in one.finished),
            "again": one.again,
        }
        for one in plan.moves
    ]
    columns = headings("topic", "partition", "start", "finished", "again", finished="taken along", again="run again")
    show(rows, columns, as_json=as_json, empty="the group has no positions yet", right=tuple(columns)[1:])
    for topic, partition in plan.unresolved:
        say(f"{topic}-{partition}: nothing was read yet; it begins where the group's setting says", err=True)
    for text in plan.left:
        say(f"the setting {text} is not known there and is left", err=True)
    if plan.settings:
        pairs = ", ".join(f"{name}={text}" for name, text in sorted(plan.settings.items()))
        say(f"settings: {pairs}", err=True)
    if plan.delayed:
        say(f"{plan.delayed} released records wait for their delay; it ends with the move", err=True)
    if plan.again:
        say(f"{amount(plan.again, 'finished record')} will run again: {plan.reason}", err=True)


def _done(plan: MovePlan, target: Where, *, keep: bool) -> str:
    rest = "it is kept where it was, too" if keep else "it is deleted where it was"
    who = "workers" if target == "workers" else "brokers"
    return (
        f"group {plan.group_id} is on the {who} now, {rest}; move the app's other groups, too, then start its workers "
        f'with share="{target}" or "auto"'
    )
