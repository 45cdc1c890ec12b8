"""Checks of options, which Spark hands over as texts; each takes an option's name and text, and raises OptionError."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from flowshare.agents.handler.errors import OptionError, refuse_unknown
from flowshare.backend.url import BadBrokerUrl, parse_broker

Check = Callable[[str, str], Any]

FORMAT: Final = 'format("flowshare")'
SPARKS_OWN: Final = frozenset({"path", "checkpointlocation", "queryname"})
"""Keys that Spark itself adds to the options."""
OF_KAFKAS: Final[Mapping[str, str]] = {
    "kafka.bootstrap.servers": '.option("broker", "kafka://host:port") names the brokers',
    "kafka.group.id": '.option("group", …) names the share group',
    "groupidprefix": '.option("group", …) names the share group',
    "subscribe": '.option("topics", "a,b") names the topics',
    "subscribepattern": '.option("topics_pattern", …) takes a regular expression of topics',
    "assign": '.option("topics", "a,b") names the topics, and the group assigns the partitions',
    "startingoffsets": '.option("start", "earliest"), "latest" or seconds back says where a new group begins',
    "startingtimestamp": '.option("start", …) takes seconds back, for a new group',
    "startingoffsetsbytimestamp": '.option("start", …) takes seconds back, for a new group',
    "endingoffsets": "trigger(availableNow=True) reads what is there and ends",
    "endingtimestamp": "trigger(availableNow=True) reads what is there and ends",
    "endingoffsetsbytimestamp": "trigger(availableNow=True) reads what is there and ends",
    "maxoffsetspertrigger": '.option("records_per_trigger", …) bounds a batch',
    "minoffsetspertrigger": '.option("records_per_trigger", …) bounds a batch, trigger(processingTime=…) spaces them',
    "maxtriggerdelay": "trigger(processingTime=…) says how often a batch begins",
    "maxrecordsperpartition": '.option("tasks", …) says how many tasks read a batch',
    "minpartitions": '.option("tasks", …) says how many tasks read a batch',
    "failondataloss": '.option("on_data_loss", "fail") or "continue" says it',
    "includeheaders": '.option("headers", "true") makes the column',
}
"""Options of Spark's Kafka connector, in lower case, and flowshare's way to the same effect."""
TRUE, FALSE = frozenset({"true", "yes", "1"}), frozenset({"false", "no", "0"})


def checked(options: type[Any], given: Mapping[str, str], by: Mapping[str, Check]) -> dict[str, Any]:
    """Return the given options, with names in any case, as values for a dataclass of options. Options without a default
    are required.

    by: checks of options that accept less than their type allows. Raises: OptionError.
    """
    named = {key.lower(): text for key, text in given.items() if key.lower() not in SPARKS_OWN}
    _refuse_of_kafkas(named)
    refuse_unknown(FORMAT, named, [one.name for one in fields(options)])
    for one in fields(options):
        if one.default is MISSING and not named.get(one.name):
            raise OptionError(f'{FORMAT} needs .option("{one.name}", …)')
    types = get_type_hints(options)
    return {name: (by.get(name) or _check_of(types[name]))(name, text) for name, text in named.items()}


def _refuse_of_kafkas(named: Mapping[str, str]) -> None:
    """Refuse options of Spark's Kafka connector, and name flowshare's. Raises: OptionError."""
    for name in named:
        ours = OF_KAFKAS.get(name)
        if ours is None and name.startswith("kafka."):
            ours = "the login, TLS and timeouts stand in the broker's URL (docs/backends.md)"
        if ours is not None:
            raise OptionError(f"{name!r} is an option of Spark's own Kafka connector; here {ours}")


def _check_of(kind: Any) -> Check:
    if get_origin(kind) is Literal:
        return one_of(*get_args(kind))
    if kind is bool:
        return flag
    return number(kind, 0) if kind in (int, float) else lambda _, text: text


def broker(_: str, text: str) -> str:
    """Check a broker's URL that several processes can open."""
    try:
        kind = parse_broker(text).kind
    except BadBrokerUrl as error:
        raise OptionError(str(error)) from error
    if kind == "memory":
        raise OptionError("memory:// is one process's own, and Spark is several: give embedded:///path or kafka://")
    return text


def number(kind: type[Any], least: float) -> Check:
    """Return a check for a number of a kind, from `least` on."""

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
    """Parse true or false."""
    if text.lower() not in TRUE | FALSE:
        raise OptionError(f"{name} takes true or false, not {text!r}")
    return text.lower() in TRUE


def one_of(*known: str) -> Check:
    """Return a check for one of these words."""

    def check(name: str, text: str) -> str:
        if text.lower() not in known:
            raise OptionError(f"{name} takes {', '.join(known[:-1])} or {known[-1]}, not {text!r}")
        return text.lower()

    return check
