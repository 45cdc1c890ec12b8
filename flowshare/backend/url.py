"""Broker URLs: which backend, and where.

    embedded:///absolute/path       log and state in a directory of this machine
    memory://                       nothing is kept
    kafka://host:port[,host:port]   a Kafka cluster

Options follow as a query: `embedded:///data/shop?fsync=true`. Pure text handling; Faust, which garbles such URLs,
never sees them.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal
from urllib.parse import parse_qsl, unquote

Kind = Literal["embedded", "memory", "kafka"]

KINDS: Final[tuple[Kind, ...]] = ("embedded", "memory", "kafka")
OPTIONS: Final[Mapping[str, frozenset[str]]] = {
    "embedded": frozenset({"fsync"}),
    "memory": frozenset(),
    "kafka": frozenset(),
}
FORMS: Final = "embedded:///absolute/path, memory:// or kafka://host:port"


class BadBrokerUrl(ValueError):
    """A broker URL that cannot be used; the text says what to write instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerUrl:
    """A parsed broker URL. `path` is set for embedded, `hosts` for kafka."""

    kind: Kind
    path: str = ""
    hosts: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict[str, str])

    def flag(self, name: str, *, default: bool = False) -> bool:
        """A yes-or-no option. Raises: BadBrokerUrl."""
        text = self.options.get(name)
        if text is None:
            return default
        if text.lower() not in ("true", "false"):
            raise BadBrokerUrl(f"broker option {name}={text!r}: write true or false")
        return text.lower() == "true"

    def __str__(self) -> str:
        query = "&".join(f"{name}={text}" for name, text in sorted(self.options.items()))
        return f"{self.kind}://{self.path or ','.join(self.hosts)}{'?' + query if query else ''}"


def parse_broker(url: str) -> BrokerUrl:
    """Read a broker URL. Raises: BadBrokerUrl."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise BadBrokerUrl(f"broker {url!r} is no URL; write {FORMS}")
    kind = next((known for known in KINDS if known == scheme.lower()), None)
    if kind is None:
        close = difflib.get_close_matches(scheme.lower(), KINDS, n=1)
        hint = f"did you mean {close[0]}://?" if close else f"write {FORMS}"
        raise BadBrokerUrl(f"broker {url!r} has the unknown scheme {scheme!r}; {hint}")
    place, _, query = rest.partition("?")
    options = _options(kind, url, query)
    if kind == "embedded":
        return BrokerUrl(kind=kind, path=_path(url, place), options=options)
    if kind == "kafka":
        return BrokerUrl(kind=kind, hosts=_hosts(url, place), options=options)
    if place not in ("", "/"):
        raise BadBrokerUrl(f"broker {url!r} names a place, but memory:// keeps nothing; write memory://")
    return BrokerUrl(kind=kind, options=options)


def _options(kind: Kind, url: str, query: str) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name in options:
        if name not in OPTIONS[kind]:
            known = sorted(OPTIONS[kind])
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(known) or 'none'}"
            raise BadBrokerUrl(f"broker {url!r} has the unknown option {name!r}; {hint}")
    return options


def _path(url: str, place: str) -> str:
    path = unquote(place)
    if not path.startswith("/"):
        shown = path or "path"
        raise BadBrokerUrl(
            f"broker {url!r} has no absolute path; write embedded:///{shown} with three slashes, "
            f"for a directory below the working directory embedded://$PWD/{shown}"
        )
    if not path.strip("/"):
        raise BadBrokerUrl(f"broker {url!r} names the root directory; name a directory below it")
    return path


def _hosts(url: str, place: str) -> tuple[str, ...]:
    hosts = tuple(host.strip() for host in place.rstrip("/").split(","))
    for host in hosts:
        name, _, port = host.rpartition(":")
        if not name:
            name, port = host, "9092"
        if not name or not port.isdigit():
            raise BadBrokerUrl(f"broker {url!r}: {host!r} is no host:port; write kafka://host:9092")
    return hosts
