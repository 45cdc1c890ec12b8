"""Options that several commands share, and the broker URL that they lead to."""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from flowshare.cli import logs
from flowshare.ops.arguments import together

if TYPE_CHECKING:
    from flowshare.agents.app.app import App
    from flowshare.agents.pages.gate import PageSettings

BROKER_ENV: Final = "FLOWSHARE_BROKER"


class _Seconds(click.ParamType):
    """A time as text, `10`, `10s`, `500ms`, `2m`; the command gets seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        from flowshare.ops.scaling import read_seconds

        try:
            return read_seconds(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


SECONDS: Final = _Seconds()


class _Directory(click.ParamType):
    """A directory. What looks like a URL is refused: a directory of such a name is hardly meant.

    memory: words for no directory at all, which the command gets as `IN_MEMORY`; empty: it always needs one.
    """

    name = "path"

    def __init__(self, *memory: str) -> None:
        self._memory = memory

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        text = str(value)
        if text in self._memory:
            return IN_MEMORY
        if (url := _URL.fullmatch(text)) is not None:
            shown = text if not (url["place"] or "").strip("/") else f"{url['scheme']}://…"  # it may hold a password
            instead = self._instead(text, url)
            self.fail(
                f"{shown!r} is no directory; write {instead}, or ./ before it if it is the name of one", param, ctx
            )
        return Path(text)

    def _instead(self, text: str, url: re.Match[str]) -> str:
        path = (url["place"] or "").partition("?")[0].partition("#")[0].strip("/")
        if self._memory and "memory" in text.lower():
            return f"{self._memory[0]} to keep nothing"
        if path and "@" not in path and (url["scheme"] or "").lower() in ("embedded", "file"):
            return f"the path alone, /{path}"
        return "the path of a directory"


_URL: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?P<place>/.*)?|:[A-Za-z]+:?")
"""Also `:memory:` and what is one letter from it."""
IN_MEMORY: Final = Path(":memory:")
"""No directory, itself and not what equals it, such as `./:memory:`. Not None: click before 8.3 takes a required option
of this value for one that is missing."""
DIRECTORY: Final = _Directory()
MEMORY_OR_DIRECTORY: Final = _Directory(":memory:", "memory://")
"""`IN_MEMORY`, or a directory."""


debug_option: Final = click.option(
    "--debug", is_flag=True, expose_value=False, help="A traceback instead of a one-line error."
)
"""Looked at by `flowshare.cli.main`."""
json_option: Final = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
"""The same facts for programs."""


def broker_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--broker` and `--app`; the command gets `url`, and `app_path` where it has a parameter of this name."""
    wants_app = "app_path" in inspect.signature(function).parameters

    @functools.wraps(function)
    def command(*, broker: str | None, app_path: str | None, **given: Any) -> Any:
        if wants_app:
            given["app_path"] = app_path
        return function(url=broker_url(broker, app_path), **given)

    text = f"For example embedded:///tmp/shop. Default: ${BROKER_ENV}, or --app's."
    return together(
        debug_option,
        click.option("--broker", metavar="URL", help=text),
        click.option("--app", "app_path", metavar="MODULE:APP", help="Use this app's broker."),
    )(command)


facts_options: Final = together(json_option, broker_options)
"""Of commands that show what is there."""
log_options: Final = together(
    click.option("--log-level", type=click.Choice(logs.LEVELS), default="info", show_default=True),
    click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True),
)
"""For `logs.set_up`."""
handler_options: Final = together(
    click.option(
        "-c", "--concurrency", type=click.IntRange(1, 10_000), help="Records at once, instead of the agents' own."
    ),
    click.option("--drain-timeout", type=click.FloatRange(0), help="Seconds handlers get to finish at the end."),
)
"""Of a worker."""


def execute_options(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`--execute`, and `--dry-run` for its absence; the command gets `execute`. what: a dry run shows only."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def command(*, dry_run: bool, execute: bool, **given: Any) -> Any:
            if dry_run and execute:
                raise click.UsageError("give --dry-run or --execute, not both")
            return function(execute=execute, **given)

        return together(
            click.option("--dry-run", is_flag=True, help=f"Only show {what}; the default."),
            click.option("--execute", is_flag=True, help="Do it; without it nothing is changed."),
        )(command)

    return decorate


@dataclass(frozen=True, slots=True)
class PageOptions:
    """Where health and metrics are served, and to whom, as the command line says."""

    port: int | None
    bind: str
    hosts: tuple[str, ...]
    token_file: str | None

    def of(self, app: App) -> PageSettings:
        """The same with what the app says. Raises: BadPages."""
        return self.settings(app.web_hosts)

    def settings(self, more_hosts: Iterable[str] = ()) -> PageSettings:
        """Return the page settings, without an app. Raises: BadPages."""
        from flowshare.agents.pages.gate import PageSettings, read_hosts, read_token

        hosts = read_hosts((*self.hosts, *more_hosts))
        return PageSettings(port=self.port or 0, bind=self.bind, hosts=hosts, token=read_token(self.token_file))


def page_options(
    function: Callable[..., Any], *, port: str = "Port of health and metrics.  [default: a free one]"
) -> Callable[..., Any]:
    """`--web-port`, `--web-bind`, `--web-host`, `--web-token-file`; the command gets them as `pages`.

    port: what is said of the first one.
    """

    @functools.wraps(function)
    def command(
        *, web_port: int | None, web_bind: str, web_host: tuple[str, ...], web_token_file: str | None, **given: Any
    ) -> Any:
        return function(pages=PageOptions(web_port, web_bind, web_host, web_token_file), **given)

    return together(
        click.option("--web-port", type=click.IntRange(0, 65535), help=port),
        click.option(
            "--web-bind", default="127.0.0.1", show_default=True, help="Address that health and metrics answer on."
        ),
        click.option(
            "--web-host", metavar="HOST", multiple=True, help="A host by which others ask for them; may be repeated."
        ),
        click.option(
            "--web-token-file",
            metavar="FILE",
            help="The operator's token for health and metrics: names, stacks, orders.",
        ),
    )(command)


def broker_url(broker: str | None, app_path: str | None) -> str:
    """The URL to use: --broker, --app's, or the environment's. Raises: click.UsageError when there is none."""
    if broker:
        return broker
    if app_path:
        return app_broker(app_path)
    if from_env := os.environ.get(BROKER_ENV):
        return from_env
    raise click.UsageError(
        f"say which log to use: --broker embedded:///path, --app module:app, or the environment variable {BROKER_ENV}"
    )


def app_broker(app_path: str) -> str:
    """The broker URL of an app, its password in it: to open, not to show. Raises: AppNotFound, UsageError."""
    from flowshare.agents.app.loading import load_app

    return load_app(app_path).broker_address.revealed()
