"""`flowshare kmq`: trackers of KMQ queues, and the way from a queue to a share group."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

import click

from flowshare.agents.handler.texts import amount
from flowshare.cli import logs
from flowshare.cli.options import SECONDS, broker_options, execute_options, facts_options, log_options
from flowshare.cli.output import headings, say, show
from flowshare.kmq.markers import COUNT_HEADER, MAX_REDELIVERIES
from flowshare.kmq.redelivery import QueueRules
from flowshare.kmq.tracker import QUIET_MS
from flowshare.ops import Failure
from flowshare.ops.arguments import together

if TYPE_CHECKING:
    from flowshare.client.kmq.moving import QueueMove
    from flowshare.client.kmq.tracker import QueueTracker
    from flowshare.ops.session import CommandSession

TELL_S: Final = 60.0
NOTHING_DONE: Final = "nothing was changed; --execute does it"

logger = logging.getLogger("flowshare.kmq")

queue_options: Final = together(
    click.option("--queue", required=True, metavar="TOPIC", help="The queue's topic."),
    click.option("--markers", required=True, metavar="TOPIC", help="The topic of its markers."),
)


@click.group("kmq")
def kmq() -> None:
    """Run a tracker of a KMQ queue, or move a queue to a share group."""


@kmq.command("tracker")
@queue_options
@click.option("--group", metavar="NAME", help="Consumer group of the queue's trackers.  [default: kmq-tracker.QUEUE]")
@click.option(
    "--redeliveries",
    type=click.IntRange(0, 1_000_000),
    default=MAX_REDELIVERIES,
    show_default=True,
    help="How often a message is sent again before it is undelivered.",
)
@click.option("--undelivered", metavar="TOPIC", default="", help="Where it goes then.  [default: QUEUE__undelivered]")
@click.option(
    "--count-header", default=COUNT_HEADER, show_default=True, help="Says how often a message was sent again."
)
@click.option(
    "--quiet",
    type=SECONDS,
    default=f"{QUIET_MS}ms",
    show_default=True,
    help="After so long without a marker the machine's clock says what is due.",
)
@click.option("--instance-id", metavar="NAME", help="A lasting name: whoever starts under it takes over at once.")
@log_options
@broker_options
def tracker(
    queue: str,
    markers: str,
    group: str | None,
    redeliveries: int,
    undelivered: str,
    count_header: str,
    quiet: float,
    instance_id: str | None,
    log_level: str,
    log_format: str,
    url: str,
) -> int:
    """Send messages of a KMQ queue again that were begun and not ended in time.

    Several trackers of a group share the partitions. Until SIGTERM, SIGINT or SIGHUP; what is on its way is finished
    then.
    """
    logs.set_up(log_level, log_format)
    rules = QueueRules(queue, markers, redeliveries, undelivered, count_header)
    if rules.queue in (rules.markers, rules.undelivered_topic) or rules.markers == rules.undelivered_topic:
        raise Failure("the queue, its markers and its undelivered messages are three topics")
    asyncio.run(_track(url, rules, group, round(quiet * 1000), instance_id))
    return 0


async def _track(url: str, rules: QueueRules, group: str | None, quiet_ms: int, instance_id: str | None) -> None:
    from flowshare.agents.kmq.agent import tracker_group
    from flowshare.agents.worker.signals import stop_signals
    from flowshare.backend import open_backend
    from flowshare.client.admin.admin import ShareAdmin
    from flowshare.client.groups.membership import GroupSettings
    from flowshare.client.kmq.tracker import QueueTracker
    from flowshare.client.producer.producer import Producer
    from flowshare.clock import LoopClock

    stop, clock = asyncio.Event(), LoopClock()
    for number in stop_signals():
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    backend = open_backend(url, clock=clock, share_groups=False)
    await backend.start()
    name = group or tracker_group(rules.queue)

    async def connect() -> Any:
        return await backend.connect(name)

    admin, producer = ShareAdmin(connect, clock=clock), Producer(connect, clock=clock, client_id=name)
    settings = GroupSettings(instance_id=instance_id)
    at_work = QueueTracker(
        connect, rules, group_id=name, clock=clock, admin=admin, producer=producer, quiet_ms=quiet_ms, settings=settings
    )
    try:
        await at_work.start()
        logger.info("tracks queue %s by markers in %s, group %s", rules.queue, rules.markers, name)
        telling = asyncio.create_task(_tell(at_work))
        await stop.wait()
        telling.cancel()
        logger.info("closing")
    finally:
        await at_work.close()
        logger.info("%s", told(at_work))
        await producer.close()
        await admin.close()
        await backend.close()


async def _tell(at_work: QueueTracker) -> None:
    """Say now and then how it goes, if something happened."""
    before = ""
    while True:
        await asyncio.sleep(TELL_S)
        text = told(at_work)
        if text != before:
            before = text
            logger.info("%s", text)


def told(at_work: QueueTracker) -> str:
    """Return a tracker's counts as one line."""
    counts = at_work.counts
    return (
        f"started {counts.starts}, ended {counts.ends}, sent again {counts.redelivered}, undelivered "
        f"{counts.undelivered}, original lost {counts.lost}, failed tries {counts.failed}, foreign markers "
        f"{counts.foreign}, no markers {counts.odd}, open {at_work.open}"
    )


@kmq.command("move")
@queue_options
@click.option("--consumer-group", required=True, metavar="NAME", help="Group of the queue's KMQ consumers.")
@click.option("--to", "group", required=True, metavar="NAME", help="The share group that goes on; it must be empty.")
@click.option("--again", is_flag=True, help="Run begun records again that nobody has ended, instead of waiting for it.")
@execute_options("where the share group would begin")
@facts_options
def move(
    queue: str,
    markers: str,
    consumer_group: str,
    group: str,
    again: bool,
    execute: bool,
    as_json: bool,
    url: str,
) -> None:
    """Let a share group go on where a KMQ queue's consumers have stopped.

    Stop the consumers first, and let the trackers go on until no message is open: a begun message that nobody has ended
    is settled by its tracker. With --again stop the trackers, too: what is open is left to the share group.
    """

    if group == consumer_group:
        raise Failure(f"the share group needs a name of its own; {group} is the consumer group's")

    async def call(session: CommandSession) -> list[QueueMove]:
        from flowshare.client.kmq.moving import carry_queue, plan_queue

        if members := await session.admin.consumer_members(consumer_group):
            raise Failure(f"group {consumer_group} has {amount(members, 'member')}: stop the queue's consumers first")
        plan = await plan_queue(session.admin, QueueRules(queue, markers), consumer_group)
        waiting = sum(one.open for one in plan)
        if waiting and not again and execute:
            raise Failure(
                f"{waiting} messages of {queue} are begun and not ended: let the queue's trackers go on until there "
                "are none, or run them again in the share group with --again (and stop the trackers before)"
            )
        if execute:
            await carry_queue(session.admin, group, plan)
        return plan

    from flowshare.ops.session import run

    plan = run(url, call, create=execute, groups=True)
    rows: list[dict[str, Any]] = [
        {
            "topic": one.topic,
            "partition": one.partition,
            "committed": one.committed if one.committed >= 0 else None,
            "open": one.open,
            "to": one.start,
            "finished": one.finished_count,
        }
        for one in plan
    ]
    columns = headings("topic", "partition", "committed", "open", "to", "finished", finished="finished behind it")
    show(rows, columns, as_json=as_json, empty="the queue has no partitions", right=tuple(columns)[1:])
    say(f"group {group} begins there" if execute else NOTHING_DONE, err=True)
