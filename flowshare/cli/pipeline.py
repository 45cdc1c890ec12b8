"""`flowshare pipeline module:app`: run an app's pipelines on Spark until a signal."""

from __future__ import annotations

import asyncio
import logging
import tempfile
import threading
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from flowshare.backend import open_backend
from flowshare.cli import logs
from flowshare.cli.options import PageOptions, debug_option, log_options, page_options
from flowshare.clock import LoopClock
from flowshare.ops import Failure
from flowshare.ops.arguments import pair

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowshare.agents.app.app import App
    from flowshare.agents.app.pipeline import SharePipeline
    from flowshare.agents.pages.gate import PageSettings

END_S: Final = 120.0
"""How long the end may take: 30 s for batches under way, 60 s for queries that do not stop, 12 s for their sources."""

logger = logging.getLogger("flowshare.pipeline")


@click.command("pipeline")
@click.argument("app_path", metavar="MODULE:APP")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--master", help="Where Spark runs: local[N], spark://host:port, yarn, k8s://…  [default: local[*,4]]")
@click.option("--conf", multiple=True, metavar="NAME=VALUE", help="A setting of the Spark session; may be repeated.")
@click.option("--once", is_flag=True, help="Read what is there now, and end.")
@page_options
@log_options
@debug_option
def pipeline(
    app_path: str,
    names: tuple[str, ...],
    master: str | None,
    conf: tuple[str, ...],
    once: bool,
    pages: PageOptions,
    log_level: str,
    log_format: str,
) -> int:
    """Run an app's pipelines (or those named) on Spark.

    A query that fails is started again from its checkpoint, with growing pauses. Ctrl-C, SIGTERM or SIGHUP: batches
    under way are finished, and what was acquired beyond them is given back; Spark is killed when that takes more than
    two minutes. Exit code 0: ended in order; 1: a failure.

    On an embedded path, or with share="workers", this process leads share-partitions while it runs.
    """
    from flowshare.agents.app.loading import load_app

    logs.set_up(log_level, log_format, for_app=True)
    logging.getLogger("py4j").setLevel(logging.WARNING)  # it tells of each call back from the JVM
    app = load_app(app_path)
    logs.settle()
    chosen = choose(app, names)
    settings: dict[str, str | None] = {}
    for one in chosen:
        settings.update(one.options.conf)
    settings.update(pair(text, "--conf") for text in conf)
    good = asyncio.run(_run(app, app_path, chosen, settings, master=master, once=once, where=pages.of(app)))
    return 0 if good else 1


def choose(app: App, names: Sequence[str]) -> list[SharePipeline]:
    """The pipelines of these names, all without one. Raises: Failure."""
    from flowshare.agents.handler.errors import nearest

    if not app.pipelines:
        raise Failure("the app has no pipeline; decorate a function with @app.share_pipeline('topic', sink=…)")
    for name in names:
        if name not in app.pipelines:
            raise Failure(f"the app has no pipeline {name!r}. {nearest(name, app.pipelines)}")
    return [app.pipelines[name] for name in dict.fromkeys(names or app.pipelines)]


async def _run(
    app: App,
    app_path: str,
    chosen: Sequence[SharePipeline],
    settings: dict[str, str | None],
    *,
    master: str | None,
    once: bool,
    where: PageSettings,
) -> bool:
    """The broker first, as it may be out of reach and Spark takes seconds; then Spark, the pages, the pipelines."""
    from flowshare.agents.worker.signals import stop_signals
    from flowshare.spark.pipeline.pages import PipelinePages
    from flowshare.spark.pipeline.supervisor import PipelineSupervisor
    from flowshare.spark.sessions import closing, kill_after, session
    from flowshare.spark.workers.jobs import give_app

    clock = LoopClock()
    broker = app.broker_address
    good, ending = False, list[threading.Timer]()
    async with AsyncExitStack() as stack:
        asked = {pipeline.group: () for pipeline in chosen}
        backend = open_backend(broker, clock=clock, lead=True, asked=asked)
        stack.push_async_callback(backend.close)
        await backend.start()
        spark = await asyncio.to_thread(session, f"{app.app_id} pipelines", master=master, conf=settings)
        stack.enter_context(closing(spark))
        if not str(spark.sparkContext.master).startswith("local[") and spark.sparkContext.master != "local":
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="flowshare-app-")))
            give_app(spark.sparkContext, app_path, folder)
        supervisor = PipelineSupervisor(
            chosen, spark=spark, backend=backend, broker=broker.revealed(), clock=clock, once=once
        )

        def stop() -> None:
            supervisor.stop()
            if not ending:
                ending.append(kill_after(spark, END_S))

        loop = asyncio.get_running_loop()
        for number in stop_signals():
            loop.add_signal_handler(number, stop)
        pages = PipelinePages(supervisor, where)
        stack.push_async_callback(pages.close)
        logger.info("health and metrics at http://%s", await pages.start())
        good = await supervisor.run()
    return good and not any(timer.finished.is_set() for timer in ending)
