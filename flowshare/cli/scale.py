"""`flowshare scale module:app`: as many workers on this machine as the share groups need."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from flowshare.cli import logs
from flowshare.cli.options import SECONDS, debug_option, page_options, page_settings

if TYPE_CHECKING:
    from flowshare.agents.scaling import ScalePolicy


@click.command("scale")
@click.argument("app_path", metavar="MODULE:APP")
@click.option("--min", "fewest", type=click.IntRange(1, 256), default=1, show_default=True, help="Workers at least.")
@click.option("--max", "most", type=click.IntRange(1, 256), required=True, help="Workers at most.")
@click.option("--target-age", type=SECONDS, default="10s", show_default=True, help="What waits is to be gone by then.")
@click.option(
    "--down-after", type=SECONDS, default="60s", show_default=True, help="How long fewer must have been enough."
)
@click.option(
    "-c", "--concurrency", type=click.IntRange(1, 10_000), help="Records at once, instead of the agents' own."
)
@click.option(
    "--drain-timeout", type=click.FloatRange(0, min_open=False), help="Seconds handlers get to finish at the end."
)
@page_options
@click.option("--log-level", type=click.Choice(logs.LEVELS), default="info", show_default=True)
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
@debug_option
def scale(
    app_path: str,
    fewest: int,
    most: int,
    target_age: float,
    down_after: float,
    concurrency: int | None,
    drain_timeout: float | None,
    web_port: int | None,
    web_bind: str,
    web_host: tuple[str, ...],
    web_token_file: str | None,
    log_level: str,
    log_format: str,
) -> int:
    """Run as many workers as an app's share groups need, between --min and --max.

    Needed are those that the records that arrive keep busy, by the time that handlers take, and those that work off
    what waits within --target-age. More workers start at once; fewer are kept only after fewer have been enough for
    --down-after, and those that go drain first. Signals and exit codes are those of flowshare worker --procs.
    """
    logs.set_up(log_level, log_format)
    from flowshare.agents.loading import load_app
    from flowshare.agents.scaling import ScalePolicy
    from flowshare.agents.supervised import worker_command
    from flowshare.cli.worker import introduce, supervise

    if fewest > most:
        raise click.UsageError(f"--min {fewest} is more than --max {most}")
    app = load_app(app_path)
    introduce(app, concurrency)
    arguments = ["worker", app_path, "--log-level", log_level, "--log-format", log_format]
    if concurrency is not None:
        arguments += ["--concurrency", str(concurrency)]
    if drain_timeout is not None:
        arguments += ["--drain-timeout", str(drain_timeout)]
    if web_token_file is not None:
        arguments += ["--web-token-file", web_token_file]
    policy = ScalePolicy(min=fewest, max=most, down_after_s=down_after)
    return supervise(
        app,
        fewest,
        drain_timeout,
        worker_command(arguments),
        beside=_scaling(policy, target_age),
        settings=page_settings(app, web_port, web_bind, web_host, web_token_file),
    )


def _scaling(policy: ScalePolicy, target_age_s: float) -> Any:
    """What runs beside the supervisor."""
    from flowshare.agents.autoscale import Autoscaler
    from flowshare.clock import LoopClock

    def beside(supervisor: Any) -> Any:
        return Autoscaler(policy, target_age_s=target_age_s, ask=_ask, clock=LoopClock()).run(supervisor)

    return beside


async def _ask(address: str, page: str) -> Any:
    from flowshare.cli import pages
    from flowshare.cli.errors import Failure

    try:
        return await asyncio.to_thread(pages.get, address, page)
    except Failure:
        return None  # it starts, or ends
