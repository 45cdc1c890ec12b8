"""`flowshare fleet`: what is one for all workers that lead share groups on a Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from flowshare.backend import parse_broker
from flowshare.cli.options import facts_options
from flowshare.cli.output import show_settings
from flowshare.ops import Failure
from flowshare.ops.arguments import changes_of
from flowshare.ops.session import CommandSession, run

if TYPE_CHECKING:
    from flowshare.protocol.messages import ConfigEntry


@click.group("fleet")
def fleet() -> None:
    """Show and change the settings of a fleet of workers."""


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
