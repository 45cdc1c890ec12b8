"""Errors that a user of agents can make or meet, each with one message that says what to do (`flowshare.errors`)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from flowshare.errors import FlowshareError


class AgentError(FlowshareError):
    """Base of the errors of agents."""


class UsageError(AgentError):
    """The application is written or set up wrongly; the text says what to change."""


class OptionError(UsageError, TypeError):
    """An option's name or value is refused."""


class AnnotationError(UsageError, TypeError):
    """A handler's signature is refused."""


class UndecodableValue(AgentError, ValueError):
    """A record's value does not fit the handler's annotation."""


class Unencodable(AgentError, TypeError):
    """A value cannot be turned into bytes for a topic."""


class Overtaken(AgentError):
    """A later delivery of a record's key has written already, so nothing of this one may be written (`fs.Once`)."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence with the nearest known name, or with all of them when none is near."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"Did you mean {close[0]!r}?"
    if len(names) > 30:
        return ""
    return f"Known are: {', '.join(names)}."


def refuse_unknown(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise OptionError for the first name in `given` that is not in `known`."""
    names = frozenset(known)
    for name in given:
        if name not in names:
            raise OptionError(f"{what} has no option {name!r}. {nearest(name, names)}".rstrip())
