"""`flowshare topics`: list, create, describe, grow and delete topics."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import click

from flowshare.agents.handler.texts import amount
from flowshare.cli.cooperative import groups_of
from flowshare.cli.options import broker_options, facts_options
from flowshare.cli.output import emit_json, headings, say, show
from flowshare.ops import Failure
from flowshare.ops.arguments import pair
from flowshare.ops.session import CommandSession, run

if TYPE_CHECKING:
    from flowshare.protocol.messages import TopicMetadata

AT_ONCE: Final = 32
"""Topics that are asked about at the same time."""


@click.group("topics")
def topics() -> None:
    """List, create, describe, grow and delete topics."""


@topics.command("ls")
@facts_options
def ls(as_json: bool, url: str) -> None:
    """List the topics with their partitions and the offsets that their logs hold.

    An offset each has a record, a transaction's marker, and what compaction took out of the middle.
    """

    rows = run(url, _list)
    columns = headings("topic", "partitions", "offsets")
    show(rows, columns, as_json=as_json, empty="there are no topics", right=("partitions", "offsets"))


@topics.command("create")
@click.argument("name")
@click.option("-p", "--partitions", type=click.IntRange(1, 10_000), default=1, show_default=True)
@click.option("--config", "configs", multiple=True, metavar="NAME=VALUE", help="A topic setting, Kafka's name.")
@broker_options
def create(name: str, partitions: int, configs: tuple[str, ...], url: str) -> None:
    """Create a topic."""

    settings = dict(pair(text, "--config") for text in configs)
    run(url, lambda session: session.admin.create_topic(name, partitions=partitions, configs=settings), create=True)
    say(f"created topic {name} with {amount(partitions, 'partition')}")


@topics.command("describe")
@click.argument("name")
@facts_options
def describe(name: str, as_json: bool, url: str) -> None:
    """Show a topic's partitions, offsets and settings."""

    facts = run(url, lambda session: _describe(session, name))
    if as_json:
        emit_json(facts)
        return
    say(f"topic {facts['topic']} (id {facts['topic_id']})")
    for key, value in facts["configs"].items():
        say(f"  {key} = {value}")
    columns = headings("partition", "log_start", "log_end", "offsets")
    show(facts["partitions"], columns, as_json=False, empty="no partitions", right=columns)


@topics.command("grow")
@click.argument("name")
@click.option("-p", "--partitions", type=click.IntRange(2, 10_000), required=True, help="So many it is to have.")
@click.option("--breaks-order", is_flag=True, help="Also where a group reads the topic in the order of keys.")
@broker_options
def grow(name: str, partitions: int, breaks_order: bool, url: str) -> None:
    """Add partitions to a topic; a key's next records may then go to another one."""

    async def call(session: CommandSession) -> None:
        grows = not breaks_order and partitions > (await session.admin.describe_topic(name)).partitions
        if grows and (found := [*await session.admin.ordered_groups(name), *await groups_of(session, name)]):
            from flowshare.server.records.topics import breaks_order as why

            raise Failure(why(name, partitions, found))
        await session.admin.create_partitions(name, partitions, breaks_order=breaks_order)

    run(url, call, groups=True)
    say(f"topic {name} has {amount(partitions, 'partition')}")


@topics.command("delete")
@click.argument("name")
@click.option("--internal", is_flag=True, help="Also a topic in which Kafka or flowshare keep what they know.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@broker_options
def delete(name: str, internal: bool, yes: bool, url: str) -> None:
    """Delete a topic and its records."""
    from flowshare.client.admin.internal_topics import deletes_internal, what_is_lost

    if not internal and (lost := what_is_lost(name)) is not None:
        raise Failure(deletes_internal(name, lost))
    if not yes:
        click.confirm(f"delete topic {name} and all its records?", abort=True)

    run(url, lambda session: session.admin.delete_topic(name, internal=internal))
    say(f"deleted topic {name}")


async def _list(session: CommandSession) -> list[dict[str, Any]]:
    topics = await session.admin.list_topics()
    turns = asyncio.Semaphore(AT_ONCE)

    async def offsets(topic: TopicMetadata) -> int:
        async with turns:
            parts = [await session.admin.offsets(topic.name, number) for number in range(topic.partitions)]
        return sum(part.high_watermark - part.log_start for part in parts)

    counts = await asyncio.gather(*map(offsets, topics))
    rows = [
        {"topic": one.name, "partitions": one.partitions, "offsets": count, "topic_id": str(one.topic_id)}
        for one, count in zip(topics, counts, strict=True)
    ]
    return sorted(rows, key=lambda row: str(row["topic"]))


async def _describe(session: CommandSession, name: str) -> dict[str, Any]:
    topic = await session.admin.describe_topic(name)
    parts = []
    for number in range(topic.partitions):
        at = await session.admin.offsets(name, number)
        parts.append(
            {
                "partition": number,
                "log_start": at.log_start,
                "log_end": at.high_watermark,
                "offsets": at.high_watermark - at.log_start,
            }
        )
    configs = {entry.name: entry.value for entry in await session.admin.topic_configs(name)}
    return {"topic": name, "topic_id": str(topic.topic_id), "partitions": parts, "configs": configs}
