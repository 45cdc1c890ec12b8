"""`flowshare topics`: list, create, describe and delete topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from flowshare.cli.options import broker_options, broker_url, json_option
from flowshare.cli.output import say

if TYPE_CHECKING:
    from flowshare.cli.session import Session


@click.group("topics")
def topics() -> None:
    """List, create, describe and delete topics."""


@topics.command("ls")
@json_option
@broker_options
def ls(as_json: bool, broker: str | None, app_path: str | None) -> None:
    """List the topics with their partitions and records."""
    from flowshare.cli.output import show
    from flowshare.cli.session import run

    rows = run(broker_url(broker, app_path), _list)
    columns = {"topic": "topic", "partitions": "partitions", "records": "records"}
    show(rows, columns, as_json=as_json, empty="there are no topics", right=("partitions", "records"))


@topics.command("create")
@click.argument("name")
@click.option("-p", "--partitions", type=click.IntRange(1, 10_000), default=1, show_default=True)
@click.option("--config", "configs", multiple=True, metavar="NAME=VALUE", help="A topic setting, Kafka's name.")
@broker_options
def create(name: str, partitions: int, configs: tuple[str, ...], broker: str | None, app_path: str | None) -> None:
    """Create a topic."""
    from flowshare.cli.session import run

    settings = dict(_setting(text) for text in configs)

    async def call(session: Session) -> None:
        await session.admin.create_topic(name, partitions=partitions, configs=settings)

    run(broker_url(broker, app_path), call, create=True)
    say(f"created topic {name} with {partitions} partition{'s' if partitions > 1 else ''}")


@topics.command("describe")
@click.argument("name")
@json_option
@broker_options
def describe(name: str, as_json: bool, broker: str | None, app_path: str | None) -> None:
    """Show a topic's partitions, offsets and settings."""
    from flowshare.cli.output import emit_json, show
    from flowshare.cli.session import run

    facts = run(broker_url(broker, app_path), lambda session: _describe(session, name))
    if as_json:
        emit_json(facts)
        return
    say(f"topic {facts['topic']} (id {facts['topic_id']})")
    for key, value in facts["configs"].items():
        say(f"  {key} = {value}")
    columns = {"partition": "partition", "log_start": "log start", "log_end": "log end", "records": "records"}
    show(facts["partitions"], columns, as_json=False, empty="no partitions", right=columns)


@topics.command("delete")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@broker_options
def delete(name: str, yes: bool, broker: str | None, app_path: str | None) -> None:
    """Delete a topic and its records."""
    from flowshare.cli.session import run

    if not yes:
        click.confirm(f"delete topic {name} and all its records?", abort=True)

    async def call(session: Session) -> None:
        await session.admin.delete_topic(name)

    run(broker_url(broker, app_path), call)
    say(f"deleted topic {name}")


async def _list(session: Session) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for topic in await session.admin.list_topics():
        parts = [await session.admin.offsets(topic.name, number) for number in range(topic.partitions)]
        records = sum(part.high_watermark - part.log_start for part in parts)
        rows.append(
            {"topic": topic.name, "partitions": topic.partitions, "records": records, "topic_id": str(topic.topic_id)}
        )
    return sorted(rows, key=lambda row: str(row["topic"]))


async def _describe(session: Session, name: str) -> dict[str, Any]:
    topic = await session.admin.describe_topic(name)
    parts = []
    for number in range(topic.partitions):
        at = await session.admin.offsets(name, number)
        parts.append(
            {
                "partition": number,
                "log_start": at.log_start,
                "log_end": at.high_watermark,
                "records": at.high_watermark - at.log_start,
            }
        )
    configs = {entry.name: entry.value for entry in await session.admin.topic_configs(name)}
    return {"topic": name, "topic_id": str(topic.topic_id), "partitions": parts, "configs": configs}


def _setting(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--config")
    return name, value
