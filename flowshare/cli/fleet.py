"""`flowshare fleet`: what is one for all workers that lead share groups on a Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from flowshare.cli.errors import Failure
from flowshare.cli.options import broker_options, broker_url, json_option, setting

if TYPE_CHECKING:
    from flowshare.cli.session import Session


@click.group("fleet")
def fleet() -> None:
    """Show and change the settings of a fleet of workers."""


@fleet.command("config")
@click.argument("settings", nargs=-1, metavar="[NAME=VALUE | NAME=]...")
@json_option
@broker_options
def config(settings: tuple[str, ...], as_json: bool, broker: str | None, app_path: str | None) -> None:
    """Show a fleet's settings, or set NAME=VALUE; `NAME=` goes back to the default.

    They are the defaults and bounds of its share groups (group.share.…) and what each worker's listener allows
    (max.connections, …); they act at all workers within a second, and are kept with the fleet's state. Kafka's own
    tool does the same at any worker: kafka-configs.sh --entity-type brokers --entity-default.
    """
    from flowshare.cli.output import show
    from flowshare.cli.session import run_on_groups

    changes = dict(setting(text) for text in settings)
    url = broker_url(broker, app_path)
    _check_url(url)

    async def call(session: Session) -> list[dict[str, Any]]:
        if session.backend.kind != "workers":
            raise Failure(
                "Kafka's brokers lead the share groups here, so the settings are theirs: kafka-configs.sh --alter "
                "--entity-type brokers --entity-default --add-config NAME=VALUE; or name the fleet with share=workers"
            )
        if changes:
            await session.admin.alter_broker_configs(changes)
        return [
            {"name": one.name, "value": one.value, "default": one.is_default, "doc": one.documentation}
            for one in await session.admin.broker_configs()
        ]

    rows = run_on_groups(url, call, create=bool(changes))
    show(rows, {"name": "name", "value": "value", "default": "default"}, as_json=as_json, empty="no settings")


def _check_url(url: str) -> None:
    """Raises: Failure, BadBrokerUrl."""
    from flowshare.backend.url import parse_broker

    if parse_broker(url).kind != "kafka":
        raise Failure(
            "a fleet is workers that lead share groups on a Kafka (kafka://host:port?share=workers); the settings of "
            "an embedded path are options of its URL: embedded:///path?NAME=VALUE"
        )
