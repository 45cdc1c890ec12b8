"""`flowshare worker module:app`: run an app's share agents until a signal, here or as tasks on Spark (`--on`);
`flowshare scale module:app`: as many workers on this machine as the share groups need."""

from __future__ import annotations

import asyncio
import logging
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flowshare.backend import open_backend
from flowshare.cli import logs
from flowshare.cli.options import SECONDS, PageOptions, debug_option, handler_options, log_options, page_options
from flowshare.clock import LoopClock
from flowshare.ops import Failure

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from flowshare.agents.app.app import App
    from flowshare.agents.host.host import Host
    from flowshare.agents.pages.gate import PageSettings
    from flowshare.agents.worker.supervisor import Supervisor

logger = logging.getLogger("flowshare.worker")


@click.command("worker")
@click.argument("app_path", metavar="MODULE:APP")
@handler_options
@page_options
@log_options
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
    pages: PageOptions,
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
    from flowshare.agents.worker.supervisor import worker_command, worker_number

    logs.set_up(log_level, log_format, worker=worker_number(), for_app=True)
    from flowshare.agents.app.loading import load_app
    from flowshare.garbage import collector_paused, keep_loaded

    with collector_paused():  # modules are no garbage: looking at them again and again is 7 % of the time to start
        app = load_app(app_path)
        logs.settle(for_start=procs is None and master is None)  # others start it, in processes of theirs
        from flowshare.agents.telemetry.active import exporting
        from flowshare.agents.worker.worker import run_worker
        from flowshare.protocol.decoding import load_reader
        from flowshare.web.server import WebServer

        load_reader()
        keep_loaded()
    settings = pages.of(app)
    introduce(app, concurrency)
    if master is not None:
        from flowshare.spark.workers.jobs import BadMaster, Master, Size
        from flowshare.spark.workers.run import SparkWorkerSettings, run_workers

        try:
            where = Master.read(master)
            on_spark = SparkWorkerSettings(
                app_path=app_path,
                master=where,
                size=Size.read(workers, where),
                concurrency=concurrency,
                drain_timeout_s=drain_timeout,
                pages=settings,
                prepare=partial(logs.set_up, log_level, log_format, for_app=True),  # these three travel with the tasks
                loaded=partial(logs.settle, for_start=True),
                started=logs.settle,
            )
            return run_workers(app, on_spark)
        except BadMaster as error:
            raise click.UsageError(str(error)) from None
    if procs is not None:
        return supervise(app, procs, drain_timeout, worker_command(sys.argv[1:]), settings=settings)

    from flowshare.log.descriptors import raise_limit
    from flowshare.server.net.limits import ListenerLimits

    raise_limit(ListenerLimits().connections_max)

    def served(host: Host) -> WebServer:
        return WebServer(host, settings, drain_timeout_s=drain_timeout)

    with exporting(app.app_id) as export:

        def prepare() -> None:
            logs.settle()  # an `on_start` function may have set logging up
            if export is not None:
                export()

        return run_worker(app, drain_timeout_s=drain_timeout, parts=(served,), prepare=prepare)


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
    from flowshare.agents.app import summary

    agents, queues = list(app.share_agents.values()), list(app.kmq_agents.values())
    sharing = list(app.cooperative_agents.values())
    if not agents and not queues and not sharing and not app.streams.declared:
        raise Failure("the app has no share agent; decorate a function with @app.share_agent('topic')")
    for agent in (*agents, *queues, *sharing):
        if concurrency is not None:
            agent.options = replace(agent.options, concurrency=concurrency)
    lines = (*map(summary.line, agents), *map(summary.kmq_line, queues), *map(summary.cooperative_line, sharing))
    for text in lines:
        logger.info("%s", text)
    if app.streams.declared:
        logger.info("Faust's own, in consumer group %s: %s", app.conf.id, ", ".join(app.streams.declared))
    for text in (*summary.surprises(agents), *summary.kmq_surprises(queues), *summary.uncommitted(app)):
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
    from flowshare.agents.feed.backend_limits import asked_of
    from flowshare.agents.worker.supervisor import SupervisorOptions, run_supervisor
    from flowshare.web.supervisor import SupervisorPages

    options = SupervisorOptions(
        command=command,
        procs=procs,
        drain_timeout_s=app.drain_timeout_s if drain_timeout is None else drain_timeout,
    )
    broker = app.broker_address
    if broker.kind == "memory":
        raise click.UsageError("memory:// is one process's own; several need embedded:///path or kafka://")
    backend = None
    if broker.kind != "kafka" or broker.share != "native":
        backend = open_backend(
            broker,
            lead=True,
            asked=asked_of(app.share_agents.values()),
            cooperative=[agent.group for agent in app.cooperative_agents.values()],
            share_groups=bool(app.share_agents or app.cooperative_agents) or not app.kmq_agents,
        )

    def pages(supervisor: Supervisor) -> SupervisorPages:
        return SupervisorPages(
            supervisor, backend, settings, drain_timeout_s=options.drain_timeout_s, fixed=beside is None
        )

    return run_supervisor(backend, options, beside, pages)


def _reloading(drain_timeout: float | None) -> int:
    from flowshare.agents.worker.reload import run_reloading

    arguments = [argument for argument in sys.argv[1:] if argument != "--reload"]
    command = [sys.executable, "-m", "flowshare.cli", *arguments]
    return run_reloading(command, root=Path.cwd(), drain_timeout_s=25.0 if drain_timeout is None else drain_timeout)


@click.command("scale")
@click.argument("app_path", metavar="MODULE:APP")
@click.option("--min", "fewest", type=click.IntRange(1, 256), default=1, show_default=True, help="Workers at least.")
@click.option("--max", "most", type=click.IntRange(1, 256), required=True, help="Workers at most.")
@click.option("--target-age", type=SECONDS, default="10s", show_default=True, help="What waits is to be gone by then.")
@click.option(
    "--down-after", type=SECONDS, default="60s", show_default=True, help="How long fewer must have been enough."
)
@handler_options
@page_options
@log_options
@debug_option
def scale(
    app_path: str,
    fewest: int,
    most: int,
    target_age: float,
    down_after: float,
    concurrency: int | None,
    drain_timeout: float | None,
    pages: PageOptions,
    log_level: str,
    log_format: str,
) -> int:
    """Run as many workers as an app's share groups need, between --min and --max.

    Needed are those that the records that arrive keep busy, by the time that handlers take, and those that work off
    what waits within --target-age. More workers start at once; fewer are kept only after fewer have been enough for
    --down-after, and those that go drain first. Signals and exit codes are those of flowshare worker --procs.
    """
    logs.set_up(log_level, log_format, for_app=True)
    from flowshare.agents.app.loading import load_app
    from flowshare.agents.worker.supervisor import worker_command
    from flowshare.ops.scaling import Autoscaler, ScalePolicy

    if fewest > most:
        raise click.UsageError(f"--min {fewest} is more than --max {most}")
    app = load_app(app_path)
    logs.settle()
    introduce(app, concurrency)
    arguments = ["worker", app_path, "--log-level", log_level, "--log-format", log_format]
    if concurrency is not None:
        arguments += ["--concurrency", str(concurrency)]
    if drain_timeout is not None:
        arguments += ["--drain-timeout", str(drain_timeout)]
    if pages.token_file is not None:
        arguments += ["--web-token-file", pages.token_file]
    policy = ScalePolicy(min=fewest, max=most, down_after_s=down_after)
    scaler = Autoscaler(policy, target_age_s=target_age, ask=_ask, clock=LoopClock())
    return supervise(app, fewest, drain_timeout, worker_command(arguments), beside=scaler.run, settings=pages.of(app))


async def _ask(address: str, page: str) -> Any:
    from flowshare.cli.pages import ask

    try:
        return await asyncio.to_thread(ask, address, page)
    except Failure:
        return None  # it starts, or ends
