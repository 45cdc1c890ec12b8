"""The `flowshare` command: a module for each command or two, imported when it is asked for.

What several need is in `options` (the broker's URL), `acting` (commands made from deeds), `output` (tables, JSON,
errors), `pages` and `worker_pages` (running workers) and `logs`. What a command does is done below, on an open log
(`ops.session`).

`flowshare --help` imports click and the small command modules only; faust, aiokafka, aiohttp, RocksDB and rich are
imported inside the commands that need them. Errors are one line on stderr that says what to do; exit code 2 is a
wrong call, 1 a failure, 130 an interrupt.
"""

from __future__ import annotations

import importlib
import sys
from typing import Final

import click

from flowshare.optimized import refusal
from flowshare.printable import printable
from flowshare.version import __version__

COMMANDS: Final = {
    "check": ("flowshare.cli.check", "check", "Say what would go wrong if the app was started."),
    "console": ("flowshare.console.command", "console", "Show groups in a browser, and act on them."),
    "console-login": ("flowshare.console.command", "console_login", "Add somebody to the console's file of logins."),
    "dev": ("flowshare.cli.dev", "dev", "Start and end a throw-away real Kafka on this machine."),
    "dlq": ("flowshare.cli.dlq", "dlq", "List, show and replay dead letters."),
    "drain": ("flowshare.cli.pages", "drain", "Have a worker finish what it is running, before it is stopped."),
    "fleet": ("flowshare.cli.fleet", "fleet", "Show who leads a fleet of workers; show and change its settings."),
    "groups": ("flowshare.cli.groups", "groups", "List, describe, browse, configure and reset share groups."),
    "inflight": ("flowshare.cli.pages", "inflight", "Show the records that a running worker is working on."),
    "kmq": ("flowshare.cli.kmq", "kmq", "Run a tracker of a KMQ queue, or move a queue to a share group."),
    "lag": ("flowshare.cli.lag", "lag", "Show backlog, oldest age, rates, needed workers and retention a group."),
    "pipeline": ("flowshare.cli.pipeline", "pipeline", "Run an app's pipelines on Spark."),
    "resize": ("flowshare.cli.pages", "resize", "Have a supervisor keep more or fewer workers."),
    "scale": ("flowshare.cli.worker", "scale", "Run as many workers as an app needs at the moment."),
    "send": ("flowshare.cli.send", "send", "Send records to a topic."),
    "serve": ("flowshare.cli.serve", "serve", "Serve a log to Kafka clients: a broker for development."),
    "top": ("flowshare.cli.top", "top", "Show all groups live, and why one stands still."),
    "topics": ("flowshare.cli.topics", "topics", "List, create, describe and delete topics."),
    "worker": ("flowshare.cli.worker", "worker", "Run an app's share agents."),
}
"""Name of each command, where it is, and its line in `--help` (so that help imports no command)."""


class _Lazy(click.Group):
    """A group whose commands are imported when they are run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][2]) for name in sorted(COMMANDS)])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            ctx.fail(f"there is no command {args[0]!r}" + (f"; did you mean {near[0]}?" if near else ""))
        return super().resolve_command(ctx, args)


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="flowshare")
def cli() -> None:
    """Share groups for Python: one decorated function, every record at least once, an outcome per record.

    The log to use comes from --broker, else from --app, else from the environment variable FLOWSHARE_BROKER.
    Every command takes --debug: a traceback instead of one line.
    """


def _tell_supervisor(why: str) -> None:
    """A worker of a supervisor's that cannot start says why there, too."""
    from flowshare.agents.worker.supervisor import report_refused

    report_refused(why)


def main(argv: list[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    problem = refusal()
    if problem is not None:
        click.echo(f"flowshare: {problem}", err=True)
        sys.exit(2)
    args = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in args
    from flowshare.cli.output import explain

    try:
        code = cli.main(args=args, prog_name="flowshare", standalone_mode=False)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.Abort:
        click.echo("interrupted", err=True)
        sys.exit(130)
    except click.ClickException as error:
        error.message = printable(error.message, lines=True)
        error.show()
        _tell_supervisor(error.format_message())
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except Exception as error:
        if debug:
            raise
        click.echo(f"flowshare: {explain(error)}", err=True)
        _tell_supervisor(explain(error))
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)
