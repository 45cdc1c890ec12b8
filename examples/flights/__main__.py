"""The commands of `make demo` and `make console-demo`: python -m examples.flights."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from examples.flights import console_demo, demo
from examples.flights.data import ROWS, DataMissing


@click.command("python -m examples.flights")
@click.option("--rows", type=click.IntRange(1000, ROWS), default=ROWS, show_default=True, help="How many flights.")
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where to keep the broker's data.  [default: removed at the end]",
)
@click.option("--no-spark", is_flag=True, help="Leave the pipeline out, which needs Spark and Java.")
@click.option("--console", is_flag=True, help="Instead: three workers and a console to look at, until Ctrl-C.")
@click.option("--port", type=click.IntRange(0, 65535), default=8090, show_default=True, help="Of the console.")
def main(rows: int, data: Path | None, no_spark: bool, console: bool, port: int) -> None:
    """Run 336,776 real flights through share agents, kill -9 included.

    A worker is killed half-way and started again; the results are compared with the raw table. Then a pipeline on Spark
    sums them up.

    With --console flights keep coming, with a stuck key, retries and dead letters, and a console shows it.
    """
    if data is not None and (data / "broker").exists():
        raise click.UsageError(f"{data} holds an earlier demo; remove it or name another directory")
    try:
        code = console_demo.show(data, port) if console else demo.demo(rows, data, spark=not no_spark)
    except (demo.DemoFailed, DataMissing) as error:
        raise click.ClickException(str(error)) from error
    sys.exit(code)


if __name__ == "__main__":
    main()
