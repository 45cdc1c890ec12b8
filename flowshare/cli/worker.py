"""`flowshare worker module:app`: run an app's share agents until a signal."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flowshare.cli import logs
from flowshare.cli.options import debug_option

if TYPE_CHECKING:
    from flowshare.agents.app import App

logger = logging.getLogger("flowshare.worker")


@click.command("worker")
@click.argument("app_path", metavar="MODULE:APP")
@click.option(
    "-c", "--concurrency", type=click.IntRange(1, 10_000), help="Records at once, instead of the agents' own."
)
@click.option("--web-port", type=click.IntRange(0, 65535), help="Port of health and metrics.  [default: a free one]")
@click.option("--web-bind", default="127.0.0.1", show_default=True, help="Address that health and metrics answer on.")
@click.option(
    "--drain-timeout", type=click.FloatRange(0, min_open=False), help="Seconds handlers get to finish at the end."
)
@click.option("--log-level", type=click.Choice(logs.LEVELS), default="info", show_default=True)
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option(
    "--procs", type=click.IntRange(1, 256), help="Worker processes, under a supervisor that starts them again."
)
@click.option("--reload", is_flag=True, help="Restart, draining first, when a .py file below this folder changes.")
@debug_option
def worker(
    app_path: str,
    concurrency: int | None,
    web_port: int | None,
    web_bind: str,
    drain_timeout: float | None,
    log_level: str,
    log_format: str,
    procs: int | None,
    reload: bool,
) -> int:
    """Run an app's share agents.

    Ctrl-C or SIGTERM: handlers finish for --drain-timeout seconds, what is left is given back. A second Ctrl-C ends
    at once. SIGUSR1 prints what is in flight. Exit code 0: drained; 3: handlers were cut off; 1: a failure.

    One process uses one core; with --procs N the supervisor runs no handler, leads the share-partitions of an
    embedded path, starts a worker again that ended, and kills one that does not drain.
    """
    if reload and procs is not None:
        raise click.UsageError("--reload is for one process while you write it; leave --procs out")
    if reload:
        return _reloading(drain_timeout)
    from flowshare.agents.supervised import worker_number

    logs.set_up(log_level, log_format, worker=worker_number())
    from flowshare.agents.garbage import collector_paused
    from flowshare.agents.loading import keep_loaded, load_app

    with collector_paused():  # modules are no garbage: looking at them again and again is 7 % of the time to start
        app = load_app(app_path)
        from flowshare.agents.worker import WorkerOptions, run_worker
        from flowshare.protocol.decoding import load_reader
        from flowshare.web.server import WebServer

        load_reader()
        keep_loaded()
    introduce(app, concurrency)
    if procs is not None:
        if web_port:
            raise click.UsageError("--procs goes with free ports for the health pages only; leave --web-port out")
        return _supervising(app, procs, drain_timeout)
    options = WorkerOptions(
        drain_timeout_s=drain_timeout, parts=(lambda host: WebServer(host, port=web_port or 0, bind=web_bind),)
    )
    return run_worker(app, options)


def introduce(app: App, concurrency: int | None) -> None:
    """Apply `--concurrency`, say what will run and what may surprise."""
    from flowshare.agents import summary
    from flowshare.cli.errors import Failure

    agents = list(app.share_agents.values())
    if not agents and not app.streams.declared:
        raise Failure("the app has no share agent; decorate a function with @app.share_agent('topic')")
    for agent in agents:
        if concurrency is not None:
            agent.options = replace(agent.options, concurrency=concurrency)
        logger.info("%s", summary.line(agent))
    if app.streams.declared:
        logger.info("Faust's own, in consumer group %s: %s", app.conf.id, ", ".join(app.streams.declared))
    for text in summary.surprises(agents):
        logger.warning("%s", text)


def _supervising(app: App, procs: int, drain_timeout: float | None) -> int:
    from flowshare.agents.supervised import worker_command
    from flowshare.agents.supervisor import SupervisorOptions, run_supervisor
    from flowshare.backend import open_backend

    longest = app.drain_timeout_s
    options = SupervisorOptions(
        command=worker_command(sys.argv[1:]),
        procs=procs,
        drain_timeout_s=longest if drain_timeout is None else drain_timeout,
    )
    match app.broker_address.kind:
        case "memory":
            raise click.UsageError("memory:// is one process's own; use embedded:///path with --procs")
        case "embedded":
            return run_supervisor(open_backend(app.broker_address), options)
        case _:
            return run_supervisor(None, options)


def _reloading(drain_timeout: float | None) -> int:
    from flowshare.agents.reload import run_reloading

    arguments = [argument for argument in sys.argv[1:] if argument != "--reload"]
    command = [sys.executable, "-m", "flowshare.cli", *arguments]
    return run_reloading(command, root=Path.cwd(), drain_timeout_s=25.0 if drain_timeout is None else drain_timeout)
