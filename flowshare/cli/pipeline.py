"""`flowshare pipeline module:app`: run an app's pipelines on Spark until a signal."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flowshare.cli import logs
from flowshare.cli.options import debug_option, page_options, page_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowshare.agents.app import App
    from flowshare.agents.gate import PageSettings
    from flowshare.agents.pipeline import SharePipeline

logger = logging.getLogger("flowshare.pipeline")


@click.command("pipeline")
@click.argument("app_path", metavar="MODULE:APP")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--master", help="Where Spark runs: local[N], spark://host:port, yarn, k8s://…  [default: local[*,4]]")
@click.option("--conf", multiple=True, metavar="KEY=VALUE", help="A setting of the Spark session; may be repeated.")
@click.option("--once", is_flag=True, help="Read what is there now, and end.")
@page_options
@click.option("--log-level", type=click.Choice(logs.LEVELS), default="info", show_default=True)
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
@debug_option
def pipeline(
    app_path: str,
    names: tuple[str, ...],
    master: str | None,
    conf: tuple[str, ...],
    once: bool,
    web_port: int | None,
    web_bind: str,
    web_host: tuple[str, ...],
    web_token_file: str | None,
    log_level: str,
    log_format: str,
) -> int:
    """Run an app's pipelines (or those named) on Spark.

    A query that fails is started again from its checkpoint, with growing pauses. Ctrl-C, SIGTERM or SIGHUP: batches
    under way are finished, and what was acquired beyond them is given back. Exit code 0: ended in order; 1: a failure.

    On an embedded path, or with share="workers", this process leads share-partitions while it runs.
    """
    from flowshare.agents.loading import load_app

    logs.set_up(log_level, log_format)
    logging.getLogger("py4j").setLevel(logging.WARNING)  # it tells of each call back from the JVM
    app = load_app(app_path)
    chosen = choose(app, names)
    settings: dict[str, str | None] = {}
    for one in chosen:
        settings.update(one.options.conf)
    for text in conf:
        key, equals, value = text.partition("=")
        if not equals:
            raise click.UsageError(f"--conf takes KEY=VALUE, not {text!r}")
        settings[key] = value
    where = page_settings(app, web_port, web_bind, web_host, web_token_file)
    good = asyncio.run(_run(app, app_path, chosen, settings, master=master, once=once, where=where))
    return 0 if good else 1


def choose(app: App, names: Sequence[str]) -> list[SharePipeline]:
    """The pipelines of these names, all without one. Raises: Failure."""
    from flowshare.agents.errors import nearest
    from flowshare.cli.errors import Failure

    if not app.pipelines:
        raise Failure("the app has no pipeline; decorate a function with @app.share_pipeline('topic', sink=…)")
    for name in names:
        if name not in app.pipelines:
            raise Failure(f"the app has no pipeline {name!r}. {nearest(name, app.pipelines)}")
    return [app.pipelines[name] for name in dict.fromkeys(names or app.pipelines)]


def _shipped(app_path: str, master: str, folder: Path) -> Path | None:
    """The app as a zip, where executors do not have this machine's files. Raises: NotShipped."""
    from flowshare.agents.loading import split_path
    from flowshare.spark.shipping import ship

    return None if master.startswith("local[") or master == "local" else ship(split_path(app_path)[0], folder)


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
    from flowshare.agents.signals import stop_signals
    from flowshare.backend import open_backend
    from flowshare.backend.base import Asked
    from flowshare.clock import LoopClock
    from flowshare.spark.pages import PipelinePages
    from flowshare.spark.session import closing, session
    from flowshare.spark.supervisor import PipelineSupervisor

    clock = LoopClock()
    broker = app.broker_address
    async with AsyncExitStack() as stack:
        asked = Asked({pipeline.group: () for pipeline in chosen})
        backend = open_backend(broker, clock=clock, lead=True, asked=asked)
        stack.push_async_callback(backend.close)
        await backend.start()
        spark = await asyncio.to_thread(session, f"{app.app_id} pipelines", master=master, conf=settings)
        stack.enter_context(closing(spark))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="flowshare-app-")))
        if (archive := _shipped(app_path, str(spark.sparkContext.master), folder)) is not None:
            spark.sparkContext.addPyFile(str(archive))
            logger.info("the app goes to the executors as %s, %d kB", archive.name, archive.stat().st_size >> 10)
        supervisor = PipelineSupervisor(
            chosen, spark=spark, backend=backend, broker=broker.revealed(), clock=clock, once=once
        )
        loop = asyncio.get_running_loop()
        for number in stop_signals():
            loop.add_signal_handler(number, supervisor.stop)
        pages = PipelinePages(supervisor, where)
        stack.push_async_callback(pages.close)
        logger.info("health and metrics at http://%s", await pages.start())
        return await supervisor.run()
