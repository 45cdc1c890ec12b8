"""`flowshare demo`: real data through share agents, with a table that proves that nothing was lost."""

from __future__ import annotations

import click

from flowshare.cli.options import debug_option


@click.command(
    "demo", context_settings={"ignore_unknown_options": True, "allow_extra_args": True}, add_help_option=False
)
@debug_option
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def demo(args: tuple[str, ...]) -> int:
    """Run 336,776 real flights through share agents, kill -9 included."""
    from flowshare.dev.flights import main

    return main(list(args))
