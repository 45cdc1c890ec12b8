"""`flowshare fleet`: what is one for all workers that lead share groups on a Kafka."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from flowshare.backend import parse_broker
from flowshare.cli.options import facts_options
from flowshare.cli.output import headings, say, show, show_settings
from flowshare.ops import Failure
from flowshare.ops.arguments import changes_of
from flowshare.ops.session import CommandSession, brokers_of, run
from flowshare.share.ranges import merged

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from flowshare.protocol.messages import ConfigEntry
    from flowshare.slots.membership import SlotMap


@click.group("fleet")
def fleet() -> None:
    """Show who leads a fleet of workers; show and change its settings."""


@fleet.command("leaders")
@facts_options
def leaders(*, as_json: bool, url: str) -> None:
    """Show which worker of a fleet leads which slots; each has the state of some groups and share-partitions.

    The brokers are asked, no worker has to answer: DESCRIBE on the group __flowshare_state.FLEET is needed.
    """
    from flowshare.backend.fleet_options import fleet_of
    from flowshare.fleet.inspection import describe_fleet

    broker = parse_broker(url)
    if broker.kind != "kafka":
        raise Failure("a fleet is workers that lead share groups on a Kafka (kafka://host:port?share=workers)")
    name = fleet_of(broker)

    async def call() -> SlotMap | None:
        async with brokers_of(broker) as kafka:
            return await describe_fleet(kafka, name)

    found = asyncio.run(call())
    if found is None:
        raise Failure(
            f"nobody leads the fleet {name}: none of its workers runs, or they are just sharing the slots out (ask "
            "again). A fleet of another name is named by `fleet=` in the URL or by --app"
        )
    rows = leaders_of(found.owners, found.nodes)
    if not as_json:
        rows = [{**row, "slots": runs_of(row["slots"])} for row in rows]
    show(rows, headings("node", "address", "slots"), as_json=as_json, empty="no workers", right=("node",))
    if free := [slot for slot in range(found.slots) if slot not in found.owners]:
        say(f"without a leader: {runs_of(free)}", err=True)


def leaders_of(owners: Mapping[int, int], nodes: Mapping[int, tuple[str, int]]) -> list[dict[str, Any]]:
    """Rows of a fleet's workers, each with its address and the slots that it leads. As `SlotMap` has them."""
    return [
        {
            "node": node,
            "address": f"{host}:{port}",
            "slots": [slot for slot, owner in sorted(owners.items()) if owner == node],
        }
        for node, (host, port) in sorted(nodes.items())
    ]


def runs_of(numbers: Iterable[int]) -> str:
    """Numbers as `0-3, 7`."""
    runs = merged((number, number) for number in numbers)
    return ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs)


@fleet.command("config")
@click.argument("settings", nargs=-1, metavar="[NAME=VALUE | NAME=]...")
@facts_options
def config(settings: tuple[str, ...], as_json: bool, url: str) -> None:
    """Show a fleet's settings, or set NAME=VALUE; `NAME=` goes back to the default.

    They are the defaults and bounds of its share groups (group.share.…) and what each worker's listener allows
    (max.connections, …); they act at all workers within a second, and are kept with the fleet's state. Kafka's own
    tool does the same at any worker: kafka-configs.sh --entity-type brokers --entity-default.
    """
    changes = changes_of(settings)
    if parse_broker(url).kind != "kafka":
        raise Failure(
            "a fleet is workers that lead share groups on a Kafka (kafka://host:port?share=workers); the settings of "
            "an embedded path are options of its URL: embedded:///path?NAME=VALUE"
        )

    async def call(session: CommandSession) -> list[ConfigEntry]:
        if session.backend.kind != "workers":
            raise Failure(
                "Kafka's brokers lead the share groups here, so the settings are theirs: kafka-configs.sh --alter "
                "--entity-type brokers --entity-default --add-config NAME=VALUE; or name the fleet with share=workers"
            )
        if changes:
            await session.admin.alter_broker_configs(changes)
        return await session.admin.broker_configs()

    show_settings(run(url, call, create=bool(changes), groups=True), as_json=as_json)
