"""`flowshare inflight module:app`: what the handlers of a running worker work on."""

from __future__ import annotations

from typing import Any

import click

from flowshare.cli.errors import Failure
from flowshare.cli.options import app_broker, broker_url, debug_option, json_option


@click.command("inflight")
@click.argument("app_path", metavar="MODULE:APP", required=False)
@click.option("--broker", metavar="URL", help="Instead of an app: the broker that the worker runs on.")
@click.option("--stacks", is_flag=True, help="Show where each handler is.")
@json_option
@debug_option
def inflight(app_path: str | None, broker: str | None, stacks: bool, as_json: bool) -> None:
    """Show the records that a running worker is working on, oldest first."""
    from flowshare.cli.output import age, emit_json, show
    from flowshare.cli.session import holder_of

    url = app_broker(app_path) if app_path else broker_url(broker, None)
    holder = holder_of(url)
    if holder is None:
        raise Failure(f"no worker runs on {url}")
    if not holder.address:
        raise Failure(f"process {holder.pid} holds {url} but has no health pages to ask; send it SIGUSR1 instead")
    found: list[dict[str, Any]] = holder.get("/inflight?stacks=1" if stacks else "/inflight")
    if as_json:
        emit_json(found)
        return
    rows = [
        {**row, "age": age(row["age_s"]), "lock_left": age(row["lock_left_s"]) if row["lock_left_s"] > 0 else "lapsed"}
        for row in found
    ]
    columns = {
        "agent": "agent",
        "topic": "topic",
        "partition": "partition",
        "offset": "offset",
        "attempt": "attempt",
        "age": "age",
        "lock_left": "lock left",
    }
    if not stacks:
        right = ("partition", "offset", "attempt", "age", "lock_left")
        show(rows, columns, as_json=False, empty="nothing is in flight", right=right)
        return
    for row in rows:
        click.echo(
            f"{row['agent']} {row['topic']}-{row['partition']}@{row['offset']} attempt {row['attempt']}, "
            f"for {row['age']}, lock left {row['lock_left']}"
        )
        for line in row.get("stack", "").splitlines():
            click.echo(f"  {line}")
    if not rows:
        click.echo("nothing is in flight", err=True)
