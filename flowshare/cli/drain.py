"""`flowshare drain`: have a worker on this machine finish what it is running, before it is told to stop."""

from __future__ import annotations

import click

from flowshare.cli.errors import Failure
from flowshare.cli.options import debug_option
from flowshare.cli.output import say


@click.command("drain")
@click.option("--web", "address", metavar="HOST:PORT", required=True, help="The worker's health pages.")
@click.option("--timeout", type=click.FloatRange(0, min_open=True), default=300.0, show_default=True, help="Seconds.")
@debug_option
def drain(address: str, timeout: float) -> None:
    """Have a worker on this machine finish what it is running; it fetches nothing more, and ends by SIGTERM later.

    For hooks that run before a stop, as Kubernetes' preStop. Handlers get the worker's --drain-timeout, and what is
    left then is given back; --timeout is how long this command waits for the answer.
    """
    from flowshare.cli import pages

    answer = pages.post(address, "/drain", timeout_s=timeout)
    if not answer.get("drained"):
        raise Failure("handlers were cut off at the drain deadline; their records run again")
    say("drained: everything that was begun is finished")
