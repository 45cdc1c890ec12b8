"""Errors that users of agents can make or meet; each message says what to do (`flowshare.errors`)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from flowshare.core_errors import FlowshareError


class AgentError(FlowshareError):
    """Base of the errors of agents."""


class UsageError(AgentError):
    """The application is written or set up wrongly; the message says what to change."""


class OptionError(UsageError, TypeError):
    """An option's name or value is refused."""


class AnnotationError(UsageError, TypeError):
    """A handler's signature is refused."""


class UndecodableValue(AgentError, ValueError):
    """A record's value does not fit the handler's annotation."""


class UnreadableBytes(UndecodableValue):
    """The bytes stored at the record's place are not a record."""


class Unencodable(AgentError, TypeError):
    """A value cannot be turned into bytes for a topic."""


class Overtaken(AgentError):
    """A later delivery of the record's key has written already, so this delivery must not write (`fs.Once`)."""


class AppFailed(AgentError):
    """A part of the application that runs beside its agents ended with an error; the message names the part."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a sentence with the nearest known name, or with all known names when none is near."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"Did you mean {close[0]!r}?"
    if len(names) > 30:
        return ""
    return f"Known are: {', '.join(names)}."


def refuse_unknown(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse the first name in `given` that is not in `known`. Raises: OptionError."""
    names = frozenset(known)
    for name in given:
        if name not in names:
            raise OptionError(f"{what} has no option {name!r}. {nearest(name, names)}".rstrip())
