"""`flowshare groups move`: a share group of a Kafka cluster goes from the brokers to the workers, or back."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import click

from flowshare.cli.errors import Failure
from flowshare.cli.leading import is_led, lead_here, slots_of
from flowshare.cli.options import broker_options, broker_url, json_option
from flowshare.cli.output import say

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from flowshare.backend.base import Backend
    from flowshare.backend.moves import Mark
    from flowshare.backend.places import Where
    from flowshare.backend.url import BrokerUrl
    from flowshare.cli.session import Session
    from flowshare.client.admin import ShareAdmin
    from flowshare.client.moving import MovePlan

COLUMNS = {
    "topic": "topic",
    "partition": "partition",
    "start": "start",
    "finished": "taken along",
    "again": "run again",
}
OTHER: Final = {"workers": "native", "native": "workers"}


@click.command("move")
@click.argument("group")
@click.option("--to", "target", type=click.Choice(["workers", "native"]), required=True, help="Who is to lead it.")
@click.option("--fleet", help="Of which fleet the workers are.  [default: the URL's, or the app's id]")
@click.option("--keep", is_flag=True, help="Leave the group where it was, too.")
@click.option("--yes", is_flag=True, help="Although finished records will run again.")
@click.option("--dry-run", is_flag=True, help="Only show what would be carried; the default.")
@click.option("--execute", is_flag=True, help="Do it.")
@json_option
@broker_options
def move(
    group: str,
    target: Where,
    fleet: str | None,
    keep: bool,
    yes: bool,
    dry_run: bool,
    execute: bool,
    as_json: bool,
    broker: str | None,
    app_path: str | None,
) -> None:
    """Carry an empty share group between Kafka's brokers and a fleet of workers.

    Start offsets and settings go along, and to workers what is finished behind the start. Stop the group's workers
    first. When no worker of the fleet runs, this command leads the fleet for a moment. Afterwards the group is deleted
    where it was, and a mark (in the topic __flowshare_moves) keeps workers from beginning it anew there.
    """
    from flowshare.backend.url import parse_broker

    if dry_run and execute:
        raise click.UsageError("give --dry-run or --execute, not both")
    url = parse_broker(broker_url(broker, app_path))
    if url.kind != "kafka":
        raise Failure(f"groups move between the brokers of a Kafka cluster and workers; {url.kind} has one place only")
    plan = asyncio.run(_move(url, group, target, fleet, execute=execute, keep=keep, yes=yes))
    _show(plan, as_json=as_json)
    if execute:
        say(_done(plan, target, keep=keep), err=True)
    else:
        say("nothing was changed; add --execute to do it", err=True)


async def _move(
    url: BrokerUrl, group: str, target: Where, fleet: str | None, *, execute: bool, keep: bool, yes: bool
) -> MovePlan:
    from flowshare.backend.fleet_options import fleet_of
    from flowshare.backend.moves import Mark
    from flowshare.client.moving import carry, plan_move
    from flowshare.clock import LoopClock

    options = {**url.options, **({"fleet": fleet} if fleet else {})}
    places = {share: replace(url, options={**options, "share": share}) for share in OTHER}
    slots = await slots_of(places["workers"])
    if target == "native" and not slots:
        raise Failure(f"the fleet {fleet_of(places['workers'])} has no state here: name the fleet with --fleet")
    async with AsyncExitStack() as stack:
        source, _ = await stack.enter_async_context(_opened(places[OTHER[target]], slots))
        await source.describe_group(group)  # a mistyped name makes no fleet
        goal = None
        if target == "native" or slots or execute:
            goal, backend = await stack.enter_async_context(_opened(places[target], slots))
        plan = await plan_move(source, goal, group, ranges=target == "workers")
        plan = await _without_retries(source, plan)
        if execute:
            assert goal is not None
            if plan.again and not yes:
                raise Failure(
                    f"{plan.again} finished records of group {group} would run again ({plan.reason}): wait until "
                    "`flowshare lag` shows a backlog of 0, or add --yes"
                )
            where = Mark(target, fleet_of(places["workers"]), LoopClock().now_ms())
            await carry(source, goal, plan, keep=keep, mark=lambda: _mark(backend, group, where))
        return plan


async def _mark(backend: Backend, group: str, mark: Mark | None) -> None:
    """Say where the group is from now on: a start in the place that it left is refused. None: it is nowhere."""
    from flowshare.backend import make_producer
    from flowshare.backend.moves import mark_move
    from flowshare.client.admin import ShareAdmin
    from flowshare.clock import LoopClock

    clock = LoopClock()
    admin = ShareAdmin(lambda: backend.connect("flowshare-cli"), clock=clock)
    producer = make_producer(backend, lambda: backend.connect("flowshare-cli"), clock=clock, client_id="flowshare-cli")
    try:
        await mark_move(admin, producer, group, mark)
    finally:
        await producer.close()
        await admin.close()


async def _without_retries(source: ShareAdmin, plan: MovePlan) -> MovePlan:
    """Records that wait in a native group's retry topic would be left there: nobody reads it on workers."""
    from flowshare.agents.retry_topic import retry_topic

    waiting = retry_topic(plan.group_id)
    for part in await source.group_offsets(plan.group_id):
        if part.topic == waiting and part.lag > 0:
            raise Failure(
                f"{part.lag} records wait in {waiting} for their retry, and workers do not read it: let the group's "
                "workers go on until `flowshare lag` shows none there, then move it"
            )
    return replace(plan, moves=[one for one in plan.moves if one.topic != waiting])


async def forget_move(session: Session, group: str) -> bool:
    """Take away the mark of a group that is gone from where it was moved to; whether there was one.

    Raises: ClientError, OSError.
    """
    from flowshare.backend.moves import read_marks

    backend: Any = getattr(session.backend, "chosen", session.backend)
    if backend.kind not in OTHER:
        return False
    mark = (await read_marks(session.admin)).get(group)
    if mark is None or mark.place != backend.kind or (mark.place == "workers" and mark.fleet != backend.fleet):
        return False
    await _mark(backend, group, None)
    return True


@asynccontextmanager
async def _opened(url: BrokerUrl, slots: int) -> AsyncIterator[tuple[ShareAdmin, Backend]]:
    """An admin client and its backend at one place; a fleet that has no workers is led from here.

    Raises: BackendError, …
    """
    from flowshare.backend import open_backend
    from flowshare.client.admin import ShareAdmin
    from flowshare.clock import LoopClock

    if url.share == "workers" and not await is_led(url):
        backend: Backend = await lead_here(url, slots)
    else:
        backend = open_backend(url)
        await backend.start()
    admin = ShareAdmin(lambda: backend.connect("flowshare-cli"), clock=LoopClock())
    try:
        yield admin, backend
    finally:
        await admin.close()
        await backend.close()


def _show(plan: MovePlan, *, as_json: bool) -> None:
    from flowshare.cli.output import show

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
    show(rows, COLUMNS, as_json=as_json, empty="the group has no positions yet", right=tuple(COLUMNS)[1:])
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
        say(f"{plan.again} finished records will run again: {plan.reason}", err=True)


def _done(plan: MovePlan, target: str, *, keep: bool) -> str:
    rest = "it is kept where it was, too" if keep else "it is deleted where it was"
    if target == "workers":
        return (
            f"group {plan.group_id} is on the workers now, {rest}; move the app's other groups, too, then start its "
            'workers with share="workers" or "auto"'
        )
    return (
        f"group {plan.group_id} is on the brokers now, {rest}; move the app's other groups, too, then start its "
        'workers with share="native" or "auto"'
    )
