"""`flowshare dev`: a throw-away real Kafka on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from flowshare.cli.options import DIRECTORY, debug_option, json_option
from flowshare.cli.output import say

if TYPE_CHECKING:
    from flowshare.dev.broker import DevBroker

NOT_RUNNING: Final = 3
"""Exit code of `status` when no broker runs, as of `systemctl status`."""
NO_ANSWER: Final = 1
"""Exit code of `status` when the broker's process is there and does not answer."""


@click.group("dev")
def dev() -> None:
    """Start and end throw-away real Kafkas, one a port.

    Each has one node with the settings that share groups need there. It is started by a Docker engine if one runs, else
    from Kafka's jars (fetched once by Maven) with Java 17 or newer.
    """


_named = click.option("--port", type=click.IntRange(1, 65535), help="Of which broker.  [default: the only one]")


@dev.command("up")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Where to listen; 0: another one at a free port.  [default: 9092, or the only one's that runs]",
)
@click.option("--data", type=DIRECTORY, help="Keep the data here.  [default: gone with the broker]")
@click.option("--version", metavar="X.Y.Z", help="The Kafka to start; before 4.2 there are no share groups.")
@click.option("--by", type=click.Choice(["docker", "jars"]), help="Do not choose by what is there.")
@debug_option
def up(port: int | None, data: Path | None, version: str | None, by: Literal["docker", "jars"] | None) -> None:
    """Start the broker, and print its URL when it is ready. When it runs already, only its URL is printed."""
    from flowshare.dev import DevFailure
    from flowshare.dev.broker import Several
    from flowshare.dev.broker import up as start

    def starting() -> None:
        say("starting Kafka (the first time its jars, or its image, are fetched) …", err=True)

    try:
        broker, started = start(version=version, port=port, data=data, how=by, starting=starting)
    except Several as error:
        raise click.UsageError(str(error)) from None
    except DevFailure as error:
        raise click.ClickException(str(error)) from error  # keeps the lines of the log apart
    done = "started" if started else "it runs already"
    say(f"{done}: {_where(broker)}; end it with: flowshare dev down --port {broker.port}", err=True)
    say(broker.url)


@dev.command("down")
@_named
@debug_option
def down(port: int | None) -> None:
    """End the broker. Its data goes with it, unless `up` was given --data."""
    from flowshare.dev.broker import Several
    from flowshare.dev.broker import down as end

    try:
        ended = end(port)
    except Several as error:
        raise click.UsageError(str(error)) from None
    if ended is None:
        say(f"no broker runs{_at(port)} that `flowshare dev up` started", err=True)
    else:
        kept = f"; its data is in {ended.data}" if ended.keep else ""
        say(f"ended Kafka {ended.version} at {ended.url}{kept}", err=True)


@dev.command("status")
@_named
@json_option
@debug_option
def status(as_json: bool, port: int | None) -> int:
    """Say whether the broker runs. Exit code 0: it runs and answers, 3: it does not run, 1: it does not answer."""
    from flowshare.cli.output import emit_json
    from flowshare.dev.broker import Several, current

    try:
        broker = current(port)
    except Several as error:
        raise click.UsageError(str(error)) from None
    code = NOT_RUNNING if broker is None or not broker.runs else 0 if broker.answers else NO_ANSWER
    state = {0: "running", NOT_RUNNING: "stopped", NO_ANSWER: "silent"}[code]
    facts: dict[str, Any] = {"state": state, "url": None, "version": None, "data": None, "pids": [], "container": None}
    if broker is not None and code != NOT_RUNNING:
        facts |= {"url": broker.url, "version": broker.version, "data": broker.data, "container": broker.container}
        facts["pids"] = [one.pid for one in broker.processes]
    if as_json:
        emit_json(facts)
    elif broker is None or code == NOT_RUNNING:
        died = " (the last one died)" if broker is not None else ""
        wanted = "" if port is None else f" --port {port}"
        say(f"no broker runs{_at(port)}{died}; start one with: flowshare dev up{wanted}")
    elif code == NO_ANSWER:
        say(f"Kafka {broker.version} at {broker.url} does not answer; {_where(broker)}")
    else:
        say(f"Kafka {broker.version} runs at {broker.url}; {_where(broker)}")
    return code


def _at(port: int | None) -> str:
    return "" if port is None else f" at port {port}"


def _where(broker: DevBroker) -> str:
    if broker.container is not None:
        return f"container {broker.container[:12]}"
    pids = ", ".join(str(one.pid) for one in broker.processes)
    return f"process {pids}, logs in {broker.data}"
