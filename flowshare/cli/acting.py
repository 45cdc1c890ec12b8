"""Commands made from deeds (`ops.deed`): the arguments, the act on an open log, the print."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from flowshare.cli.options import broker_options, execute_options, facts_options
from flowshare.cli.output import TERMINAL, say
from flowshare.ops.session import CommandSession, run

if TYPE_CHECKING:
    from flowshare.ops.deed import Deed


def command(
    deed: Deed,
    show: Callable[..., None] | None = None,
    *,
    facts: bool = True,
    groups: bool = True,
    makes: Callable[[dict[str, Any]], bool] = lambda _: False,
) -> click.Command:
    """Return the command of a deed.

    show: prints the result; called with it, `dry_run`, `as_json`, and the act's arguments. None: the deed's words are
    printed. facts: the command has `--json`. groups: the deed is about groups, which this process leads meanwhile where
    no worker does. makes: True for arguments that make the log if there is none.
    """

    def call(
        url: str,
        app_path: str | None,
        *,
        as_json: bool = False,
        dry_run: bool = False,
        execute: bool = True,
        **texts: Any,
    ) -> None:
        given = deed.check(texts)
        dry_run = dry_run or not execute

        async def act(session: CommandSession) -> Any:
            if deed.produces:
                session.send_as(app_path)
            return await deed.act(session, dry_run=dry_run, **given)

        result = run(url, act, create=makes(given), groups=groups, reporter=TERMINAL)
        if show is None:
            say(deed.said(result, **given))
        else:
            show(result, dry_run=dry_run, as_json=as_json, **given)

    made = (facts_options if facts else broker_options)(call)
    if deed.trial == "--execute":
        made = execute_options(deed.trial_of)(made)
    elif deed.trial:
        made = click.option(deed.trial, is_flag=True, help=f"Only say {deed.trial_of}.")(made)
    return of_deed(deed, made)


def of_deed(deed: Deed, call: Callable[..., None]) -> click.Command:
    """Return a command with the deed's name, help and arguments, before the options that `call` has."""
    made = click.command(deed.name, help=deed.help)(call)
    made.params[:0] = deed.arguments
    return made
