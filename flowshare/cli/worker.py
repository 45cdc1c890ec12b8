"""`flowshare worker module:app`: run an app's share agents until a signal."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flowshare.cli import logs
from flowshare.cli.options import debug_option, page_options, page_settings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from flowshare.agents.app import App
    from flowshare.agents.gate import PageSettings
    from flowshare.agents.host import Host
    from flowshare.agents.supervisor import Supervisor

logger = logging.getLogger("flowshare.worker")


@click.command("worker")
@click.argument("app_path", metavar="MODULE:APP")
@click.option(
    "-c", "--concurrency", type=click.IntRange(1, 10_000), help="Records at once, instead of the agents' own."
)
@page_options
@click.option(
    "--drain-timeout", type=click.FloatRange(0, min_open=False), help="Seconds handlers get to finish at the end."
)
@click.option("--log-level", type=click.Choice(logs.LEVELS), default="info", show_default=True)
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option(
    "--procs", type=click.IntRange(1, 256), help="Worker processes, under a supervisor that starts them again."
)
@click.option("--reload", is_flag=True, help="Restart, draining first, when a .py file below this folder changes.")
@click.option("--on", "master", metavar="MASTER", help="Run the workers on Spark: local[2], spark://host:7077, yarn, …")
@click.option("--workers", metavar="N|MIN:MAX", help="With --on: workers, or from how many to how many as needed.")
@debug_option
def worker(
    app_path: str,
    concurrency: int | None,
    web_port: int | None,
    web_bind: str,
    web_host: tuple[str, ...],
    web_token_file: str | None,
    drain_timeout: float | None,
    log_level: str,
    log_format: str,
    procs: int | None,
    reload: bool,
    master: str | None,
    workers: str | None,
) -> int:
    """Run an app's share agents.

    Ctrl-C, SIGTERM or SIGHUP: handlers finish for --drain-timeout seconds, what is left is given back. A second Ctrl-C
    ends at once. SIGUSR1 prints what is in flight. Exit code 0: drained; 3: handlers were cut off; 1: a failure.

    One process uses one core; with --procs N the supervisor runs no handler, leads share-partitions (of an embedded
    path, or as one of a fleet), starts a worker again that ended, kills one that does not drain, and serves health and
    metrics of all of them at --web-port (their own are on free ports of this machine). With --on MASTER
    the workers run on Spark, each as one long task, and this process looks after them in the same way.
    """
    check_together(procs=procs, reload=reload, master=master, workers=workers)
    if reload:
        return _reloading(drain_timeout)
    from flowshare.agents.supervised import worker_command, worker_number

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
    settings = page_settings(app, web_port, web_bind, web_host, web_token_file)
    introduce(app, concurrency)
    if master is not None:
        from flowshare.cli.on_spark import on_spark

        return on_spark(
            app,
            app_path,
            master=master,
            workers=workers,
            concurrency=concurrency,
            drain_timeout=drain_timeout,
            pages=settings,
            log_level=log_level,
            log_format=log_format,
        )
    if procs is not None:
        return supervise(app, procs, drain_timeout, worker_command(sys.argv[1:]), settings=settings)

    from flowshare.log.descriptors import raise_limit
    from flowshare.server.limits import ListenerLimits

    raise_limit(ListenerLimits().connections_max)

    def pages(host: Host) -> WebServer:
        return WebServer(host, settings, drain_timeout_s=drain_timeout)

    return run_worker(app, WorkerOptions(drain_timeout_s=drain_timeout, parts=(pages,)))


def check_together(*, procs: int | None, reload: bool, master: str | None, workers: str | None) -> None:
    """Refuse options that do not go together. Raises: click.UsageError."""
    if reload and procs is not None:
        raise click.UsageError("--reload is for one process while you write it; leave --procs out")
    if master is not None and (reload or procs is not None):
        raise click.UsageError("--on runs the workers on Spark; leave --procs and --reload out")
    if workers is not None and master is None:
        raise click.UsageError("--workers says how many run on Spark (--on MASTER); on this machine write --procs N")


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


def supervise(
    app: App,
    procs: int,
    drain_timeout: float | None,
    command: Sequence[str],
    beside: Callable[[Supervisor], Awaitable[None]] | None = None,
    *,
    settings: PageSettings,
) -> int:
    """Run workers under a supervisor, and `beside` next to it; the exit code. command: that of a worker.

    settings: where health and metrics of all of them are served, and to whom.
    """
    from flowshare.agents.capabilities import asked_of
    from flowshare.agents.supervisor import SupervisorOptions, run_supervisor
    from flowshare.backend import open_backend
    from flowshare.web.supervisor import SupervisorPages

    longest = app.drain_timeout_s
    options = SupervisorOptions(
        command=command,
        procs=procs,
        drain_timeout_s=longest if drain_timeout is None else drain_timeout,
    )
    broker = app.broker_address
    if broker.kind == "memory":
        raise click.UsageError("memory:// is one process's own; several need embedded:///path or kafka://")
    backend = None
    if broker.kind != "kafka" or broker.share != "native":
        backend = open_backend(broker, lead=True, asked=asked_of(app.share_agents.values()))

    def pages(supervisor: Supervisor) -> SupervisorPages:
        return SupervisorPages(supervisor, backend, settings, drain_timeout_s=options.drain_timeout_s)

    return run_supervisor(backend, options, beside, pages)


def _reloading(drain_timeout: float | None) -> int:
    from flowshare.agents.reload import run_reloading

    arguments = [argument for argument in sys.argv[1:] if argument != "--reload"]
    command = [sys.executable, "-m", "flowshare.cli", *arguments]
    return run_reloading(command, root=Path.cwd(), drain_timeout_s=25.0 if drain_timeout is None else drain_timeout)
