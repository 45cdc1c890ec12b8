"""Arguments of deeds, read from the texts that an operator types or a form carries; a wrong one is refused with click's
errors, whose sentence every face shows."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from flowshare.share.ranges import Range

Fun = TypeVar("Fun", bound=Callable[..., Any])

PARTITION_MAX: Final = 2**31 - 1
OFFSET_MAX: Final = 10**18
RATE_MIN: Final = 0.001
"""The lowest rate, in a second: lower ones would not end."""


def together(*options: Callable[[Fun], Fun]) -> Callable[[Fun], Fun]:
    """Several options as one decorator; `--help` has them in this order."""
    return lambda function: functools.reduce(lambda made, option: option(made), reversed(options), function)


def parameters(*options: Callable[..., Any]) -> tuple[click.Parameter, ...]:
    """Return the parameters that these decorators give to a command, in order."""
    return tuple(click.command()(together(*options)(lambda: None)).params)


def is_number(text: str, most: int = OFFSET_MAX) -> bool:
    """True if the text is a whole number from 0 to `most`."""
    return text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= most


class _Ranges(click.ParamType):
    """Offsets as text, `17` or `17-20`; the deed gets the first and the last one."""

    name = "range"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Range:
        """Read a range."""
        first, dash, last = str(value).partition("-")
        if not is_number(first) or (dash and not is_number(last)):
            self.fail(f"{value!r} is no offset or range such as 17 or 17-20", param, ctx)
        found = int(first), int(last or first)
        if found[1] < found[0]:
            self.fail(f"{value!r} ends before it begins", param, ctx)
        return found


class _Rate(click.FloatRange):
    """A number a second, from RATE_MIN on."""

    def __init__(self) -> None:
        super().__init__(RATE_MIN)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read a rate."""
        if not math.isfinite(found := super().convert(value, param, ctx)):
            self.fail(f"{value!r} is no number a second", param, ctx)
        return found


RANGES: Final = _Ranges()
RATE: Final = _Rate()
PARTITION: Final = click.IntRange(0, PARTITION_MAX)
forget_option: Final = click.option(
    "--forget-parked", is_flag=True, help="Also where keys are parked: they are not any more, nor their order."
)


def pair(text: str, option: str) -> tuple[str, str]:
    """Name and value of an option's `NAME=VALUE`. Raises: BadParameter."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint=option)
    return name, value


def changes_of(settings: Iterable[str]) -> dict[str, str | None]:
    """The settings of `NAME=VALUE` arguments; without a value None: unset it. Raises: BadParameter."""
    return {name: value or None for name, value in (pair(text, "settings") for text in settings)}


def moment(text: str, option: str) -> datetime:
    """An option's date and time, UTC unless it names a zone. Raises: UsageError."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(f"{option} {text!r} is no date and time such as 2026-11-21T09:00:00") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def words_of(
    arguments: Iterable[click.Parameter], given: Mapping[str, Iterable[str]], flags: Iterable[str] = ()
) -> list[str]:
    """Return arguments as words of a command line, from the texts of each by its name; empty texts are left out.

    Names of which one begins with a dash come behind `--`. flags: further options.
    """
    names: list[str] = []
    options: list[str] = []
    for one in arguments:
        for text in filter(None, given.get(one.name or "", ())):
            if isinstance(one, click.Argument):
                names.append(text)
            else:
                options += [one.opts[0]] if getattr(one, "is_flag", False) else [one.opts[0], text]
    options += flags
    return [*options, "--", *names] if any(name.startswith("-") for name in names) else [*names, *options]
