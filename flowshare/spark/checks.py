"""Checks of options that Spark hands over as texts; each takes an option's name and text, and raises OptionError."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from flowshare.agents.handler.errors import OptionError, refuse_unknown
from flowshare.backend.url import BadBrokerUrl, parse_broker

Check = Callable[[str, str], Any]

FORMAT: Final = 'format("flowshare")'
SPARKS_OWN: Final = frozenset({"path", "checkpointlocation", "queryname"})
"""Keys that Spark puts among the options by itself."""
TRUE, FALSE = frozenset({"true", "yes", "1"}), frozenset({"false", "no", "0"})


def checked(options: type[Any], given: Mapping[str, str], by: Mapping[str, Check]) -> dict[str, Any]:
    """What was given, in any case, as values for a dataclass of options; those without a default are needed.

    by: checks of options that take less than their type says. Raises: OptionError.
    """
    named = {key.lower(): text for key, text in given.items() if key.lower() not in SPARKS_OWN}
    refuse_unknown(FORMAT, named, [one.name for one in fields(options)])
    for one in fields(options):
        if one.default is MISSING and not named.get(one.name):
            raise OptionError(f'{FORMAT} needs .option("{one.name}", …)')
    types = get_type_hints(options)
    return {name: (by.get(name) or _check_of(types[name]))(name, text) for name, text in named.items()}


def _check_of(kind: Any) -> Check:
    if get_origin(kind) is Literal:
        return one_of(*get_args(kind))
    if kind is bool:
        return flag
    return number(kind, 0) if kind in (int, float) else lambda _, text: text


def broker(_: str, text: str) -> str:
    """A broker's URL that several processes can open."""
    try:
        kind = parse_broker(text).kind
    except BadBrokerUrl as error:
        raise OptionError(str(error)) from error
    if kind == "memory":
        raise OptionError("memory:// is one process's own, and Spark is several: give embedded:///path or kafka://")
    return text


def number(kind: type[Any], least: float) -> Check:
    """A number of a kind, from `least` on."""

    def check(name: str, text: str) -> Any:
        try:
            found = kind(text)
        except ValueError:
            found = None
        if found is None or not least <= found < float("inf"):
            what = "whole number" if kind is int else "number"
            raise OptionError(f"{name} takes a {what} from {least:g} on, not {text!r}")
        return found

    return check


def flag(name: str, text: str) -> bool:
    """True or false."""
    if text.lower() not in TRUE | FALSE:
        raise OptionError(f"{name} takes true or false, not {text!r}")
    return text.lower() in TRUE


def one_of(*known: str) -> Check:
    """One of these words."""

    def check(name: str, text: str) -> str:
        if text.lower() not in known:
            raise OptionError(f"{name} takes {', '.join(known[:-1])} or {known[-1]}, not {text!r}")
        return text.lower()

    return check
