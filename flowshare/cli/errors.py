"""Errors as the user sees them: one line, what is wrong and what to do."""

from __future__ import annotations

from flowshare.agents.texts import TEXT_MAX, said
from flowshare.printable import printable


class Failure(Exception):
    """A command cannot go on. The text is the line that the user sees."""


def explain(error: BaseException) -> str:
    """One line for an error that ended a command; errors that were not foreseen name `--debug`."""
    text = printable(" ".join(said(error, TEXT_MAX).split()))
    if isinstance(error, Failure) or _speaks_for_itself(error):
        return text
    if isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        return explain(error.exceptions[0])
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return f"{type(error).__name__}: {text or 'no message'} (--debug shows where)"


def _speaks_for_itself(error: BaseException) -> bool:
    """Whether it is one of flowshare's own errors, whose texts are written for users."""
    return any(
        base.__module__.startswith("flowshare.") and base.__module__ != "flowshare.cli.errors"
        for base in type(error).__mro__
    )
