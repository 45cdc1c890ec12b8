"""`flowshare worker --on MASTER`: the app's workers as tasks on Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from flowshare.cli import logs

if TYPE_CHECKING:
    from flowshare.agents.app import App
    from flowshare.agents.gate import PageSettings


@dataclass(frozen=True, slots=True)
class Prepare:
    """Sets logging up in a worker; travels with its task."""

    level: str
    form: str

    def __call__(self, slot: int) -> None:
        logs.set_up(self.level, self.form, worker=slot)


def on_spark(
    app: App,
    app_path: str,
    *,
    master: str,
    workers: str | None,
    concurrency: int | None,
    drain_timeout: float | None,
    pages: PageSettings,
    log_level: str,
    log_format: str,
) -> int:
    """Run a fleet; the exit code. Raises: click.UsageError."""
    from flowshare.spark.masters import BadMaster, Master, Size
    from flowshare.spark.run_fleet import FleetSettings, run_fleet

    try:
        where = Master.read(master)
        settings = FleetSettings(
            app_path=app_path,
            master=where,
            size=Size.read(workers, where),
            concurrency=concurrency,
            drain_timeout_s=drain_timeout,
            pages=pages,
            prepare=Prepare(log_level, log_format),
        )
        return run_fleet(app, settings)
    except BadMaster as error:
        raise click.UsageError(str(error)) from None
