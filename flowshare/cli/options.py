"""Options that several commands share, and the broker URL that they lead to."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from flowshare.agents.app import App
    from flowshare.agents.gate import PageSettings

Fun = TypeVar("Fun", bound=Callable[..., Any])

BROKER_ENV: Final = "FLOWSHARE_BROKER"


class _Seconds(click.ParamType):
    """A time as text, `10`, `10s`, `500ms`, `2m`; the command gets seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        from flowshare.agents.scaling import read_seconds

        try:
            return read_seconds(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


SECONDS: Final = _Seconds()


def debug_option(function: Fun) -> Fun:
    """`--debug`, looked at by `flowshare.cli.main`."""
    option = click.option("--debug", is_flag=True, expose_value=False, help="A traceback instead of a one-line error.")
    return option(function)


def json_option(function: Fun) -> Fun:
    """`--json`: the same facts for programs."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")(function)


def broker_options(function: Fun) -> Fun:
    """`--broker` and `--app`; the command gets them as `broker` and `app_path`, see `broker_url`."""
    function = click.option("--app", "app_path", metavar="MODULE:APP", help="Use this app's broker.")(function)
    function = click.option(
        "--broker", metavar="URL", help=f"For example embedded:///tmp/shop. Default: ${BROKER_ENV}, or --app's."
    )(function)
    return debug_option(function)


def page_options(function: Fun) -> Fun:
    """`--web-port`, `--web-bind`, `--web-host`, `--web-token-file`, for `page_settings`."""
    for option in (
        click.option(
            "--web-token-file",
            metavar="FILE",
            help="The operator's token for health and metrics: names, stacks, orders.",
        ),
        click.option(
            "--web-host", metavar="HOST", multiple=True, help="A host by which others ask for them; may be repeated."
        ),
        click.option(
            "--web-bind", default="127.0.0.1", show_default=True, help="Address that health and metrics answer on."
        ),
        click.option(
            "--web-port", type=click.IntRange(0, 65535), help="Port of health and metrics.  [default: a free one]"
        ),
    ):
        function = option(function)
    return function


def page_settings(app: App, port: int | None, bind: str, hosts: Sequence[str], token_file: str | None) -> PageSettings:
    """Where health and metrics are served, and to whom. Raises: BadPages."""
    from flowshare.agents.gate import PageSettings, read_hosts, read_token

    return PageSettings(
        port=port or 0, bind=bind, hosts=read_hosts((*hosts, *app.web_hosts)), token=read_token(token_file)
    )


def setting(text: str) -> tuple[str, str | None]:
    """Name and value of `NAME=VALUE`; without a value None: unset it. Raises: Failure."""
    from flowshare.cli.errors import Failure

    name, separator, value = text.partition("=")
    if not separator or not name:
        raise Failure(f"{text!r} is not NAME=VALUE")
    return name, value or None


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
    from flowshare.agents.loading import load_app

    return load_app(app_path).broker_address.revealed()
