"""Broker URLs name a backend and its place.

    embedded:///absolute/path       log and state in a directory of this machine
    memory://                       nothing is kept
    kafka://host:port[,host:port]   a Kafka cluster

Options follow as a query: `embedded:///data/shop?fsync=true`, or `?open=true`, which lets every user of the machine in
at the path's port (docs/security.md). Faust, which garbles such URLs, never sees them. An option with a dot in its name
is a setting of an embedded broker, named as in a server.properties:
`embedded:///data/shop?offsets.retention.minutes=1440`. Settings of a fleet apply at its first start:
`kafka://host:port?share=workers&group.share.max.size=500`; `flowshare fleet config` changes them later.

The security of a Kafka cluster stands in its URL, too (docs/security.md). In user name, password and files, characters
other than letters and digits are percent-encoded:

    kafka://user:password@host:port?security=SASL_SSL&sasl_mechanism=SCRAM-SHA-512&ca_file=/etc/ca.pem

The URL says who leads the share groups of a Kafka cluster (docs/backends.md), and for workers, which fleet of them:

    kafka://host:port?share=workers&fleet=shop&listen=0.0.0.0:9095&advertise=worker-1:9095&state_dir=/var/lib/shop

No text made in this module shows a password, but that of `BrokerUrl.revealed`.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import parse_qsl, quote, unquote

from flowshare.core_errors import FlowshareError

if TYPE_CHECKING:
    from flowshare.client.net.security import Security

Scheme = Literal["embedded", "memory", "kafka"]

SCHEMES: Final[tuple[Scheme, ...]] = ("embedded", "memory", "kafka")
FLEET_SECURITY: Final = (
    {"listen_tls_cert", "listen_tls_key", "listen_tls_ca", "listen_tls_client_auth", "listen_insecure"}
    | {"listen_sasl_users", "listen_sasl_mechanisms", "listen_acls", "listen_super_users"}
    | {"fleet_security", "fleet_user", "fleet_password_file", "fleet_sasl_mechanism"}
    | {"fleet_ca_file", "fleet_certificate_file", "fleet_key_file", "fleet_check_hostname"}
)
"""Options that secure a fleet's listeners (`fleet_options`)."""
OPTIONS: Final[Mapping[str, frozenset[str]]] = {
    "embedded": frozenset({"fsync", "open"}),
    "memory": frozenset(),
    "kafka": frozenset(
        {"security", "sasl_mechanism", "ca_file", "certificate_file", "key_file", "password_file", "check_hostname"}
        | {"share", "fleet", "lead", "listen", "advertise", "slots", "state_dir"}
        | FLEET_SECURITY
    ),
}
SHARES: Final = ("auto", "native", "workers")
"""Leaders of a Kafka cluster's share groups: `auto` chooses, `native` are its brokers, `workers` a fleet."""
FORMS: Final = "embedded:///absolute/path, memory:// or kafka://host:port"


class BadBrokerUrl(FlowshareError, ValueError):
    """A broker URL that cannot be used; the text says what to write instead."""


def as_flag(name: str, text: str) -> bool:
    """Read a yes-or-no option. Raises: BadBrokerUrl."""
    if text.lower() not in ("true", "false"):
        raise BadBrokerUrl(f"{name}={text!r}: write true or false")
    return text.lower() == "true"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerUrl:
    """A parsed broker URL. `path` is set for embedded, `hosts` for kafka, `username` for kafka with a login."""

    kind: Scheme
    path: str = ""
    hosts: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    username: str = ""
    password: str = field(default="", repr=False)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Return a yes-or-no option. Raises: BadBrokerUrl."""
        text = self.options.get(name)
        return default if text is None else as_flag(f"broker option {name}", text)

    @property
    def share(self) -> str:
        """Leader of a Kafka cluster's share groups: `auto` (the default), `native` or `workers`."""
        return self.options.get("share", "auto")

    def with_defaults(self, options: Mapping[str, str]) -> BrokerUrl:
        """Return this URL with these options added; options of the URL stay as they are."""
        return replace(self, options={**options, **self.options})

    @property
    def settings(self) -> dict[str, str]:
        """Broker settings among the options, see `server.settings`."""
        return {name: text for name, text in self.options.items() if "." in name}

    def security(self, environment: Mapping[str, str] = os.environ) -> Security:
        """Return the security of a Kafka cluster; the default is SASL_SSL with SCRAM-SHA-512 when a user is named.

        The password is the URL's, else that of `password_file`, else of the variable FLOWSHARE_SASL_PASSWORD.
        Raises: BadBrokerUrl
        """
        from flowshare.client.net.security import BadSecurity, Security, find_password

        options: dict[str, Any] = {
            name: Path(self.options[name])
            for name in ("ca_file", "certificate_file", "key_file")
            if name in self.options
        }
        protocol = self.options.get("security", "SASL_SSL" if self.username else "PLAINTEXT").upper()
        try:
            if protocol.startswith("SASL_"):
                file = self.options.get("password_file")
                options["password"] = find_password(self.password, Path(file) if file else None, environment)
                if "sasl_mechanism" in self.options:
                    options["mechanism"] = self.options["sasl_mechanism"].upper()
            return Security(
                protocol=protocol,  # type: ignore[arg-type]  # it checks
                username=self.username,
                check_hostname=self.flag("check_hostname", default=True),
                **options,
            )
        except BadSecurity as error:
            raise BadBrokerUrl(f"broker {self}: {error}") from None

    def revealed(self) -> str:
        """Return the URL with its password: to hand on, never to show."""
        return self._text(f":{quote(self.password, safe='')}")

    def __str__(self) -> str:
        return self._text(":***")

    def _text(self, password: str) -> str:
        query = "&".join(f"{name}={quote(text, safe='/:,')}" for name, text in sorted(self.options.items()))
        login = f"{quote(self.username, safe='')}{password if self.password else ''}@" if self.username else ""
        return f"{self.kind}://{login}{self.path or ','.join(self.hosts)}{'?' + query if query else ''}"


_LOGIN: Final = re.compile(r"^((?:[^:/?]*://)?[^:@]*):.*@", re.DOTALL)
_HOST: Final = r"(?:\[[^]/?@]*\]|[^][:/?@]*)"
_LOGIN_ALONE: Final = re.compile(
    rf"((?:[^:/?]*://)?(?:{_HOST}:\d+\s*,)*{_HOST}):(?!\d+\s*(?:[,/?]|$)|/)[^@]*",
    re.DOTALL,
)
"""Pattern of a user and a password without a host: the password follows the first colon without a port."""


def masked(url: str) -> str:
    """Return a broker URL, however wrong, without anything that could be a password."""
    shown = _LOGIN_ALONE.sub(r"\1:***", url) if _LOGIN_ALONE.fullmatch(url) else _LOGIN.sub(r"\1:***@", url)
    return re.sub(r"([?&]\w*passw\w*)=[^&]*", r"\1=***", shown, flags=re.IGNORECASE)


def parse_broker(url: str) -> BrokerUrl:
    """Read a broker URL. Raises: BadBrokerUrl."""
    shown = masked(url)
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise BadBrokerUrl(f"broker {shown!r} is no URL; write {FORMS}")
    kind = next((known for known in SCHEMES if known == scheme.lower()), None)
    if kind is None:
        close = difflib.get_close_matches(scheme.lower(), SCHEMES, n=1)
        hint = f"did you mean {close[0]}://?" if close else f"write {FORMS}"
        raise BadBrokerUrl(f"broker {shown!r} has the unknown scheme {masked(scheme)!r}; {hint}")
    if kind == "kafka" and _LOGIN_ALONE.fullmatch(url):
        raise BadBrokerUrl(
            f"broker {shown!r} has something else than a port behind a colon; write kafka://host:port, "
            "with a login kafka://user:password@host:9092"
        )
    place, _, query = rest.partition("?")
    options = _options(kind, shown, query)
    if kind == "embedded":
        broker = BrokerUrl(kind=kind, path=_path(shown, place), options=options)
        _check_settings(shown, broker)
        return broker
    if kind == "kafka":
        _check_share(shown, options)
        broker = _kafka(shown, place, options)
        _check_settings(shown, broker)
        return broker
    if place not in ("", "/"):
        raise BadBrokerUrl(f"broker {shown!r} names a place, but memory:// keeps nothing; write memory://")
    return BrokerUrl(kind=kind, options=options)


def _kafka(url: str, place: str, options: dict[str, str]) -> BrokerUrl:
    login, _, hosts = place.rpartition("@")
    username, _, password = login.partition(":")
    if "@" in login or "/" in login:
        raise BadBrokerUrl(f"broker {url!r} has a login with a bare '@' or '/'; write %40 for @ and %2F for /")
    if password and not username:
        raise BadBrokerUrl(f"broker {url!r} has a password without a user name; write kafka://user:password@host:9092")
    return BrokerUrl(
        kind="kafka", hosts=_hosts(url, hosts), options=options, username=unquote(username), password=unquote(password)
    )


def _options(kind: Scheme, url: str, query: str) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name in options:
        settings = kind == "embedded" or (kind == "kafka" and "@" not in query)
        if name not in OPTIONS[kind] and not (settings and "." in name):
            if "@" in query:  # a part of a password may look like an option
                raise BadBrokerUrl(f"broker {url!r} has a login with a bare '?'; write %3F for it")
            known = sorted(OPTIONS[kind])
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(known) or 'none'}"
            raise BadBrokerUrl(f"broker {url!r} has the unknown option {name!r}; {hint}")
    return options


def _check_share(url: str, options: Mapping[str, str]) -> None:
    """Check `share`. Raises: BadBrokerUrl."""
    share = options.get("share", "auto")
    if share not in SHARES:
        raise BadBrokerUrl(f"broker {url!r} has share={share!r}; write {', '.join(SHARES[:-1])} or {SHARES[-1]}")


def _check_settings(url: str, broker: BrokerUrl) -> None:
    """Check the settings of an embedded broker or a fleet. Raises: BadBrokerUrl."""
    if not broker.settings:
        return
    from flowshare.core_errors import InvalidConfig

    if broker.share == "native":
        raise BadBrokerUrl(
            f"broker {url!r} has settings of a fleet ({', '.join(sorted(broker.settings))}), but Kafka's brokers lead "
            "(share=native): set them there, kafka-configs.sh --alter --entity-type brokers --entity-default, or as a "
            "group's with flowshare groups config"
        )
    try:
        if broker.kind == "embedded":
            from flowshare.server.settings import Settings

            Settings.parse(broker.settings)
        else:
            from flowshare.fleet.groups.settings import check_settings

            check_settings(broker.settings)
    except InvalidConfig as error:
        raise BadBrokerUrl(f"broker {url!r}: {error}") from None


def _path(url: str, place: str) -> str:
    path = unquote(place)
    login = "@" in place or ":***" in url
    if login and not path.startswith("/"):  # not repeated in a hint, as it may contain a password
        raise BadBrokerUrl(
            f"broker {url!r} has a login or a host, and an embedded path has none: write embedded:///absolute/path, "
            "or kafka://user:password@host:9092 for a broker"
        )
    if path.lstrip("/").startswith(("~", "$")):
        raise BadBrokerUrl(
            f"broker {url!r} begins its path with a name for the shell, but neither ~ nor $HOME is replaced here; "
            "write the path in full, such as embedded:///home/me/data"
        )
    if not path.startswith("/"):
        shown = path.removeprefix("./") or "path"
        rooted = "" if path.startswith(".") else f"embedded:///{shown} with three slashes, or "
        raise BadBrokerUrl(
            f"broker {url!r} has no absolute path; write {rooted}"
            f"embedded://$PWD/{shown} for a directory below the working directory"
        )
    if "\0" in path:
        raise BadBrokerUrl(f"broker {url!r} has %00 in its path, and no name of a file can have that; leave it out")
    if not path.strip("/"):
        raise BadBrokerUrl(f"broker {url!r} names the root directory; name a directory below it")
    return path


_BRACKETS: Final = re.compile(r"\[[^][]*\]|[^][]*")
"""Pattern of a host whose brackets, if any, are closed and around the whole host."""


def _hosts(url: str, place: str) -> tuple[str, ...]:
    hosts = tuple(host.strip() for host in place.rstrip("/").split(","))
    for host in hosts:
        name, colon, port = host.rpartition(":")
        if not colon:
            name, port = host, "9092"
        if not _BRACKETS.fullmatch(name):
            raise BadBrokerUrl(
                f"broker {url!r}: {host!r} is no host:port; an IPv6 address stands in brackets, with a port "
                "behind them: write kafka://[::1]:9092"
            )
        if not host or not (port.isascii() and port.isdigit()):
            raise BadBrokerUrl(f"broker {url!r}: {host!r} is no host:port; write kafka://host:9092")
        if len(port) > 5 or not 1 <= int(port) <= 65_535:
            raise BadBrokerUrl(f"broker {url!r}: port {port} is no port of a host; write one from 1 to 65535")
        if not name.strip("[]"):
            raise BadBrokerUrl(f"broker {url!r}: {host!r} has no host before the port; write kafka://host:{port}")
    return hosts
