"""`flowshare inflight module:app`: what the handlers of the running workers work on."""

from __future__ import annotations

from typing import Any, Final

import click

from flowshare.cli.errors import Failure
from flowshare.cli.options import app_broker, broker_url, debug_option, json_option
from flowshare.cli.output import say

Rows = list[dict[str, Any]]

_COLUMNS: Final = {
    "worker": "worker",
    "agent": "agent",
    "topic": "topic",
    "partition": "partition",
    "offset": "offset",
    "attempt": "attempt",
    "age": "age",
    "lock_left": "lock left",
}
_RIGHT: Final = ("partition", "offset", "attempt", "age", "lock_left")


@click.command("inflight")
@click.argument("app_path", metavar="MODULE:APP", required=False)
@click.option("--broker", metavar="URL", help="Instead of an app: the broker that the workers run on.")
@click.option(
    "--web", "addresses", metavar="HOST:PORT", multiple=True, help="Ask the worker with these health pages; repeatable."
)
@click.option("--stacks", is_flag=True, help="Show where each handler is.")
@json_option
@debug_option
def inflight(app_path: str | None, broker: str | None, addresses: tuple[str, ...], stacks: bool, as_json: bool) -> None:
    """Show the records that running workers are working on, oldest first.

    The workers of an embedded path are found by it. On other brokers name them: --web with the address that a worker
    prints when it is ready.
    """
    from flowshare.cli.output import emit_json

    workers = (
        _named(addresses) if addresses else _workers(app_broker(app_path) if app_path else broker_url(broker, None))
    )
    rows, silent = _ask(workers, "/inflight?stacks=1" if stacks else "/inflight")
    if silent and len(silent) == len(workers):
        raise Failure(silent[0])
    for text in silent:
        say(f"warning: {text}", err=True)
    if as_json:
        emit_json(rows)
    elif stacks:
        _print_stacks(rows, several=len(workers) > 1)
    else:
        _print_table(rows, several=len(workers) > 1)


def _named(addresses: tuple[str, ...]) -> dict[str, str]:
    """Address of each worker by what it is called."""
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise click.BadParameter(f"{address!r} is not HOST:PORT", param_hint="--web")
    return {address: address for address in addresses}


def _workers(url: str) -> dict[str, str]:
    from flowshare.backend.url import parse_broker
    from flowshare.backend.workers import running_workers
    from flowshare.cli.session import embedded_path

    path = embedded_path(url)
    if path is None:
        raise Failure(
            f"the workers on {parse_broker(url)} are not known to it: name them by --web host:port, the address that "
            "each prints when it is ready"
        )
    found = {str(entry.pid): entry.address for entry in running_workers(path)}
    if not found:
        raise Failure(f"no worker runs on {url}")
    return found


def _ask(workers: dict[str, str], page: str) -> tuple[Rows, list[str]]:
    """What all of them work on, oldest first, and why some did not say."""
    from flowshare.cli import pages

    rows: Rows = []
    silent: list[str] = []
    hidden = False
    for name, address in workers.items():
        try:
            found = [{"worker": name, **row} for row in pages.get(address, page)]
            hidden = hidden or any("agent" not in row for row in found)
            rows += [{"agent": "-", "topic": "-", **row} for row in found]
        except Failure as failure:
            silent.append(f"worker {name}: {failure}")
    if hidden:
        say(f"warning: {pages.NUMBERS_ONLY}", err=True)
    return sorted(rows, key=lambda row: -row["age_s"]), silent


def _shown(rows: Rows) -> Rows:
    from flowshare.cli.output import age

    return [
        {**row, "age": age(row["age_s"]), "lock_left": age(row["lock_left_s"]) if row["lock_left_s"] > 0 else "lapsed"}
        for row in rows
    ]


def _print_table(rows: Rows, *, several: bool) -> None:
    from flowshare.cli.output import show

    columns = {key: heading for key, heading in _COLUMNS.items() if several or key != "worker"}
    show(_shown(rows), columns, as_json=False, empty="nothing is in flight", right=_RIGHT)


def _print_stacks(rows: Rows, *, several: bool) -> None:
    for row in _shown(rows):
        who = f"worker {row['worker']}: " if several else ""
        say(
            f"{who}{row['agent']} {row['topic']}-{row['partition']}@{row['offset']} attempt {row['attempt']}, "
            f"for {row['age']}, lock left {row['lock_left']}"
        )
        for line in row.get("stack", "").splitlines():
            say(f"  {line}")
    if not rows:
        say("nothing is in flight", err=True)
