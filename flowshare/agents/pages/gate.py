"""The gate decides from a request's headers who may ask an HTTP page of flowshare: no I/O.

A page in a browser can make its user's machine ask anything that the user can reach. Two headers tell of it, and a page
cannot change them: `Origin`, the page's own server, and `Host`, the name by which this server was found. The owner of a
name can make it lead to this machine (DNS rebinding), so only names that are known to be ours get answers. An address
cannot be rebound, but says nothing of the sender, and addresses that everybody reaches are the reason why pages are
asked from elsewhere at all: addresses must be listed like names, except for this machine's own to itself.

Neither header proves anything but for a browser: a program writes what it likes. Pages and orders for the operator only
need the token, or the process's own user on the process's own machine (`own_user`).
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final

from flowshare.core_errors import FlowshareError
from flowshare.server.security.guesses import is_loopback

logger = logging.getLogger("flowshare.pages")

HOSTS_ENV: Final = "FLOWSHARE_WEB_HOSTS"
TOKEN_ENV: Final = "FLOWSHARE_WEB_TOKEN"  # noqa: S105 - a name
TOKEN_FILE_ENV: Final = "FLOWSHARE_WEB_TOKEN_FILE"  # noqa: S105
SECRETS: Final = frozenset({TOKEN_ENV, TOKEN_FILE_ENV})
"""Variables that are handed to no other machine."""
TOKEN_MIN: Final = 16
TOKEN_MAX: Final = 4096
"""Most characters of a token."""
SHOWN_MAX: Final = 80
"""Most characters of a foreign host that an answer repeats."""
_NAME: Final = re.compile(r"[a-z0-9_]([a-z0-9._-]{0,251}[a-z0-9_-])?")
_PORTS: Final[Mapping[str, int]] = {"http": 80, "https": 443}


class BadPages(FlowshareError, ValueError):
    """Options of pages that cannot be used; the text says what to write instead."""


@dataclass(frozen=True, slots=True)
class Named:
    """A host as a request or an option names it: lower case, an address in its shortest form; port None: not given."""

    name: str
    port: int | None = None
    scheme: str = ""


def read_host(text: str) -> Named | None:
    """Read a `Host` header; None: no server can have this name."""
    text = text.strip()
    if text.startswith("["):
        literal, bracket, rest = text[1:].partition("]")
        if not bracket or "%" in literal or ":" not in literal or (rest and not rest.startswith(":")):
            return None
        name, port_text = _address(literal), rest[1:]
    else:
        name, _, port_text = text.partition(":")
        name = name.lower().removesuffix(".")
        name = _address(name) or (name if _NAME.fullmatch(name) else "")
    if not name or (port_text and not (port_text.isascii() and port_text.isdigit() and int(port_text[:6]) <= 65535)):
        return None
    return Named(name, int(port_text) if port_text else None)


def read_listed(text: str) -> Named:
    """Read an entry of `web_hosts`: a host, `host:port`, or with `https://` before it. Raises: BadPages."""
    scheme, separator, rest = text.strip().rpartition("://")
    literal = _address(rest)
    found = Named(literal) if literal else read_host(rest.removesuffix("/"))
    if found is None or (separator and scheme not in _PORTS):
        raise BadPages(
            f"{text!r} is no host for pages: write a name or an address as they stand in a browser's address line, "
            "pages.example.com or 10.0.0.7:8081; behind a proxy with TLS https://pages.example.com"
        )
    return Named(found.name, found.port, scheme)


def _address(text: str) -> str:
    """Return an IP address in its shortest form; empty when it is none."""
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return ""
    return str(getattr(found, "ipv4_mapped", None) or found)


def read_hosts(listed: Iterable[str] | str, environment: Mapping[str, str] = os.environ) -> tuple[Named, ...]:
    """Read the listed hosts and those of FLOWSHARE_WEB_HOSTS, separated by commas or spaces. Raises: BadPages."""
    if isinstance(listed, str):
        listed = (listed,)
    more = environment.get(HOSTS_ENV, "").replace(",", " ").split()
    return tuple(dict.fromkeys(read_listed(one) for one in (*listed, *more)))


def read_token(file: str | Path | None = None, environment: Mapping[str, str] = os.environ) -> bytes | None:
    """Read the operator's token: the first line of the file, else of FLOWSHARE_WEB_TOKEN_FILE, else
    FLOWSHARE_WEB_TOKEN.

    None: no token. Warns when others on the machine can read the file. Blocks. Raises: BadPages.
    """
    file = file or environment.get(TOKEN_FILE_ENV) or None
    if file is None:
        token, where = environment.get(TOKEN_ENV, ""), f"the token in {TOKEN_ENV}"
        if not token:
            return None
    else:
        where = f"the token in {file}"
        try:
            with Path(file).open(encoding="utf-8") as opened:
                mode = os.fstat(opened.fileno()).st_mode
                token = opened.readline(TOKEN_MAX + 2).strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise BadPages(f"{where} cannot be read: {reason}") from None
        if stat.S_IMODE(mode) & 0o007:
            logger.warning("file of the pages' token can be read by others on this machine: path=%s; chmod 600", file)
    if not TOKEN_MIN <= len(token) <= TOKEN_MAX or not (token.isascii() and token.isprintable()) or " " in token:
        raise BadPages(
            f"{where} has to have {TOKEN_MIN} to {TOKEN_MAX} letters, digits and signs without spaces; this makes one: "
            "head -c 24 /dev/urandom | base64"
        )
    return token.encode()


class Need(Enum):
    """The right that a page demands of a request's sender."""

    NOTHING = "nothing"
    """A probe's page, asked by a pod's address: it tells no names to a sender that used a foreign host."""
    HOST = "host"
    """A host of ours, or the operator."""
    OPERATOR = "operator"
    """The token, or the process's own user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHead:
    """The parts of a request that the gate needs: each header as often as it came."""

    method: str
    hosts: tuple[str, ...]
    origins: tuple[str, ...] = ()
    credentials: tuple[str, ...] = ()
    fetch_site: str = ""
    fetch_mode: str = ""
    peer: str = ""
    """Address of the sender."""
    own_user: bool = False


@dataclass(frozen=True, slots=True)
class PageAdmission:
    """The gate's decision. status 200: answer. operator: may see names and stacks, and give orders. known: came by a
    host of ours."""

    status: int
    why: str = ""
    operator: bool = False
    known: bool = False

    @property
    def trusted(self) -> bool:
        """True if reasons, which can contain names, may be told."""
        return self.operator or self.known


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSettings:
    """Address of flowshare's pages, and their hosts.

    port: 0: a free one. bind: the address to listen on. hosts: further hosts that are ours. token: the operator's;
    None: no token, and only the process's own user is the operator.
    """

    port: int = 0
    bind: str = "127.0.0.1"
    hosts: tuple[Named, ...] = ()
    token: bytes | None = field(default=None, repr=False)


class Gate:
    """Judges requests for pages at one address.

    listed: hosts that are ours. bind: the address to listen on. machine: this machine's name. token: the operator's;
    None: no token. scheme: `http` or `https`. origins: other origins that may ask, `*`: all of them. strict: the pages
    are flowshare's own, which other sites have no reason to embed.
    """

    def __init__(
        self,
        listed: Iterable[Named] = (),
        *,
        bind: str,
        machine: str,
        token: bytes | None = None,
        scheme: str = "http",
        origins: Iterable[str] = (),
        strict: bool = True,
    ) -> None:
        ours = {Named(one.name, one.port) for one in listed}
        for text in (bind, f"[{bind}]", machine, machine.partition(".")[0]):
            found = read_host(text)
            if found is not None and not is_loopback(found.name) and not _is_any(found.name):
                ours.add(Named(found.name))
        self._ours = frozenset(ours)
        self._origins = frozenset((one.scheme, one.name, _port(one)) for one in listed if one.scheme)
        self._others = frozenset(origins)
        self._token = token
        self._scheme = scheme
        self._strict = strict

    def judge(self, asked: RequestHead, need: Need) -> PageAdmission:
        """Decide if a request is answered, and with which rights."""
        if len(asked.hosts) > 1 or len(asked.origins) > 1:
            return PageAdmission(400, "the request has several Host or Origin headers; send one")
        host = read_host(asked.hosts[0]) if asked.hosts else None
        known = host is not None and self._is_ours(host, asked.peer)
        if (why := self._why_browser(asked, host if known else None)) is not None:
            return PageAdmission(403, why)
        operator = asked.own_user
        if not operator and (shown := _bearer(asked.credentials)) is not None:
            operator = self._token is not None and hmac.compare_digest(shown, self._token)
            if not operator and self._strict:
                return PageAdmission(401, _NO_TOKEN if self._token is None else _ANOTHER)
        if need is Need.OPERATOR and not operator:
            return PageAdmission(403, _FOR_OPERATORS)
        if need is not Need.NOTHING and not (known or operator):
            shown_host = repr((asked.hosts or ("",))[0][:SHOWN_MAX])
            return PageAdmission(
                421,
                f"this server does not go by the host {shown_host}: list it with --web-host (web_hosts of the App, "
                f"{HOSTS_ENV}), or show the operator's token",
            )
        return PageAdmission(200, operator=operator, known=known)

    def _is_ours(self, host: Named, peer: str) -> bool:
        if host in self._ours or Named(host.name) in self._ours:
            return True
        # From elsewhere these names would be a lie.
        return (is_loopback(host.name) or _is_any(host.name)) and is_loopback(peer)

    def _why_browser(self, asked: RequestHead, host: Named | None) -> str | None:
        """Say why a browser gets no answer for the page that it shows; None: it gets one, or this is no browser."""
        for origin in asked.origins:
            if not self._is_own_origin(origin, host):
                return "a page of another origin may not ask this server (the Origin header is not its own)"
        if asked.fetch_site in ("", "same-origin", "none"):
            return None
        changes = asked.method not in ("GET", "HEAD", "OPTIONS")
        if self._others and asked.origins:
            return None  # a listed origin
        if changes or (self._strict and asked.fetch_mode != "navigate"):
            return "a page of another site may not ask this server (Sec-Fetch-Site)"
        return None

    def _is_own_origin(self, origin: str, host: Named | None) -> bool:
        if origin in self._others or "*" in self._others:
            return True
        scheme, _, rest = origin.partition("://")
        found = read_host(rest)
        if found is None or host is None or found.name != host.name:
            return False
        wanted = (scheme, found.name, _port(Named(found.name, found.port, scheme)))
        return wanted in self._origins or wanted == (self._scheme, host.name, _port(Named("", host.port, self._scheme)))


_FOR_OPERATORS: Final = (
    "this is for the operator: ask as the process's own user on its own machine (flowshare drain, flowshare inflight), "
    f"or with its token (Authorization: Bearer …; --web-token-file, {TOKEN_FILE_ENV} or {TOKEN_ENV})"
)
_NO_TOKEN: Final = (
    f"these pages have no token; give the process one by --web-token-file, {TOKEN_FILE_ENV} or {TOKEN_ENV}"
)
_ANOTHER: Final = "this is not the token of these pages"


def _port(named: Named) -> int | None:
    return named.port if named.port is not None else _PORTS.get(named.scheme)


def _is_any(name: str) -> bool:
    address = _address(name)
    return bool(address) and ipaddress.ip_address(address).is_unspecified


def _bearer(credentials: tuple[str, ...]) -> bytes | None:
    """Return the token in the request; None: none. Several are as wrong as a wrong one."""
    shown = [text[7:].strip() for text in credentials if text[:7].lower() == "bearer "]
    if not shown:
        return None
    return shown[0].encode(errors="surrogateescape") if len(credentials) == 1 else b""


def numbers(value: Any, keep: frozenset[str] = frozenset()) -> Any:
    """Return a page's content without names: only numbers, booleans, and the texts under these keys.

    Names are never keys in an answer, so only texts can be names.
    """
    if isinstance(value, Mapping):
        items = value.items()
        return {
            key: numbers(one, keep)
            for key, one in items
            if key in keep or one is None or isinstance(one, (bool, int, float, list, Mapping))
        }
    if isinstance(value, (list, tuple)):
        return [numbers(one, keep) for one in value if not isinstance(one, str)]
    return value
