"""`Registry`: the schemas of a registry by their ids, and ids by schemas, each asked for once."""

from __future__ import annotations

import importlib.util
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit

from flowshare.agents.codecs.client import (
    TEXT_MAX,
    Client,
    ConfluentClient,
    RegistryError,
    RegistryUnavailable,
    SchemaRefused,
    SchemaText,
    UnknownSchema,
)
from flowshare.agents.handler.errors import OptionError
from flowshare.agents.handler.retry import Seconds, seconds

T = TypeVar("T")
AUTH_ENV: Final = "FLOWSHARE_REGISTRY_AUTH"
_NEEDED: Final = ("confluent_kafka", "authlib", "cachetools", "certifi")
"""What its client imports; told where a registry is declared, as what waits for it would wait for ever."""
KEPT: Final = 1_000
"""Schemas, and ids, that a process remembers."""
REFERENCES_MAX: Final = 100
UNKNOWN_S: Final = 30.0
"""So long the registry is not asked again for what it did not know."""
FAILED_S: Final = 0.4
"""So long after a question without answer others that wait for it are told the same."""


@dataclass(frozen=True, slots=True)
class RegistryTls:
    """How a registry is spoken to over HTTPS; each is a path to a PEM file.

    ca: who is trusted; None: the system's. certificate, key: who this process is, where the registry asks.
    """

    ca: str | os.PathLike[str] | None = None
    certificate: str | os.PathLike[str] | None = None
    key: str | os.PathLike[str] | None = None
    key_password: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema with those that it refers to, by the names that it uses for them; the innermost come first."""

    text: SchemaText
    others: tuple[tuple[str, SchemaText], ...] = ()


class _Known(Generic[T]):
    """What is known by a key, asked for once at a time; the oldest is forgotten. Any thread."""

    def __init__(self) -> None:
        self._found: OrderedDict[Hashable, T] = OrderedDict()
        self._without: OrderedDict[Hashable, tuple[float, RegistryError]] = OrderedDict()
        """What there is not, apart, as names and ids out of records must not displace what is used."""
        self._failed: OrderedDict[Hashable, tuple[float, RegistryError]] = OrderedDict()
        self._asking: dict[Hashable, threading.Lock] = {}
        self._lock = threading.Lock()

    def has(self, key: Hashable) -> bool:
        """Whether it is known."""
        return key in self._found

    def lacks(self, key: Hashable) -> bool:
        """Whether it is known not to be there."""
        return key not in self._found and self._recent(self._without, key, UNKNOWN_S) is not None

    def get(self, key: Hashable, ask: Callable[[], T]) -> T:
        """Blocks where it has to be asked for. Raises: RegistryError."""
        try:
            return self._found[key]
        except KeyError:
            pass
        if (error := self._recent(self._without, key, UNKNOWN_S)) is not None:
            raise error
        with self._lock:
            asking = self._asking.setdefault(key, threading.Lock())
        try:
            with asking:
                return self._ask(key, ask)
        finally:
            with self._lock:
                self._asking.pop(key, None)

    def _ask(self, key: Hashable, ask: Callable[[], T]) -> T:
        if key in self._found:
            return self._found[key]
        error = self._recent(self._without, key, UNKNOWN_S) or self._recent(self._failed, key, FAILED_S)
        if error is not None:
            raise error
        try:
            found = ask()
        except RegistryError as raised:
            kept = self._failed if isinstance(raised, RegistryUnavailable) else self._without
            self._keep(kept, key, (time.monotonic(), raised))
            raise
        self._keep(self._found, key, found)
        return found

    def _keep(self, kept: OrderedDict[Hashable, Any], key: Hashable, found: Any) -> None:
        with self._lock:
            kept[key] = found
            if len(kept) > KEPT:
                kept.popitem(last=False)

    @staticmethod
    def _recent(
        kept: Mapping[Hashable, tuple[float, RegistryError]], key: Hashable, limit_s: float
    ) -> RegistryError | None:
        """The same error once more, without what called for it before."""
        at_s, error = kept.get(key, (0.0, None))
        if error is None or time.monotonic() - at_s >= limit_s:
            return None
        return type(error)(*error.args)


class Registry:
    """A schema registry with Confluent's API: Confluent's own, Karapace, Apicurio (`…/apis/ccompat/v7`), Redpanda.

    url: its address; several with commas between. auth: `(user, password)`, or a token for `Authorization: Bearer`;
    None: what the environment variable FLOWSHARE_REGISTRY_AUTH says, as `user:password` or a token.
    tls: `RegistryTls(…)`, or the path of a CA's certificate. timeout: seconds for one question. settings: more of those
    that `confluent_kafka`'s SchemaRegistryClient takes, such as OAuth's.

    One serves all topics of an app, from any thread. Each schema is asked for once, and the last 1,000 are kept.
    Nothing is asked before it is needed, so that an app starts while its registry is away.
    """

    def __init__(
        self,
        url: str,
        *,
        auth: tuple[str, str] | str | None = None,
        tls: RegistryTls | str | os.PathLike[str] | None = None,
        timeout: Seconds = 5,
        settings: dict[str, Any] | None = None,
        client: Client | None = None,
    ) -> None:
        """client: asks in place of Confluent's, for tests. Raises: OptionError."""
        if client is None and (missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]):
            raise OptionError(f"fs.Registry needs {', '.join(missing)}: pip install 'flowshare[registry]'")
        self.shown = ", ".join(_without_login(one) for one in _addresses(url))
        """The address, without a login."""
        login = _of_address(url)
        if login is not None and auth is not None:
            raise OptionError(f"the login of {self.shown} stands in its address and in auth=: leave one of them out")
        self._settings = {
            **_login(login or auth or _of_environment()),
            **_tls(tls),
            **(settings or {}),
            "url": ",".join(_without_login(one) for one in _addresses(url)),  # its client logs what it asks
        }
        self._settings["timeout"] = seconds(timeout, "Registry(timeout=…)") or 5.0
        self._client = client
        self.url = url
        """As it was given, with a login if it has one."""
        self.has_secrets = (
            login is not None or auth is not None or bool(settings) or bool(set(_tls(tls)) - {"ssl.ca.location"})
        )
        """Whether more than an address and a CA was given."""
        self._begin()

    @property
    def ca(self) -> str:
        """The path of its CA's certificate; empty: the system's."""
        return str(self._settings.get("ssl.ca.location", ""))

    def __repr__(self) -> str:
        return f"Registry({self.shown!r})"

    def __getstate__(self) -> dict[str, Any]:
        """For other processes (Spark's): what is known stays here."""
        return {**{name: self.__dict__[name] for name in ("shown", "url", "has_secrets", "_settings")}, "_client": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._schemas: _Known[Schema] = _Known()
        self._ids: _Known[tuple[int, int]] = _Known()
        self._latest: _Known[tuple[int, Schema]] = _Known()

    @property
    def client(self) -> Client:
        """What asks; made at the first question."""
        with self._lock:
            if self._client is None:
                self._client = ConfluentClient(self._settings, self.shown)
            return self._client

    def close(self) -> None:
        """Close its connections. It may be asked again, and opens others."""
        with self._lock:
            if isinstance(self._client, ConfluentClient):
                self._client.close()
                self._client = None

    # --- by id ------------------------------------------------------------------------------------------------------

    def has_not(self, number: int) -> bool:
        """Whether it is known that there is no schema of this id, or none that can be used."""
        return self._schemas.lacks(number)

    def knows(self, number: int) -> bool:
        """Whether `schema` answers without asking: with the schema, or that there is none."""
        return self._schemas.has(number) or self._schemas.lacks(number)

    def schema(self, number: int) -> Schema:
        """The schema of this id. Blocks where it is not known yet.

        Raises: UnknownSchema, SchemaRefused (it is not usable), RegistryUnavailable.
        """
        return self._schemas.get(number, lambda: self._whole(self.client.by_id(number)))

    # --- ids --------------------------------------------------------------------------------------------------------

    def id_of(self, subject: str, schema: SchemaText, *, register: bool) -> int:
        """The id of a schema under a subject. register: it is registered where it is not there yet.

        Raises: UnknownSchema, SchemaRefused (it is incompatible with those before it), RegistryUnavailable.
        """
        return self._ids.get((subject, schema, register), lambda: self._ask_id(subject, schema, register))[0]

    def version_of(self, subject: str, schema: SchemaText, *, register: bool) -> int:
        """The same, its version in the subject, for others to refer to."""
        self.id_of(subject, schema, register=register)
        return self.client.lookup(subject, schema)[1]

    def _ask_id(self, subject: str, schema: SchemaText, register: bool) -> tuple[int, int]:
        if register:
            return self.client.register(subject, schema), 0
        try:
            return self.client.lookup(subject, schema)
        except UnknownSchema as error:
            raise UnknownSchema(
                f"{error}. It is not registered by this process (register=False): register it, or let it be registered"
            ) from error

    def latest(self, subject: str) -> tuple[int, Schema]:
        """The newest schema of a subject and its id, as this process first saw it. Raises: as `id_of`."""

        def ask() -> tuple[int, Schema]:
            number, text = self.client.latest(subject)
            return number, self._whole(text)

        return self._latest.get(subject, ask)

    # --- references -------------------------------------------------------------------------------------------------

    def _whole(self, text: SchemaText) -> Schema:
        """With what it refers to. Raises: SchemaRefused: too much; and what the client raises."""
        others: dict[str, SchemaText] = {}
        self._collect(text, others, ())
        return Schema(text, tuple(others.items()))

    def whole(self, text: SchemaText) -> Schema:
        """A schema of the application's own, with what it refers to. Blocks."""
        return self._whole(text) if text.references else Schema(text)

    def _collect(self, text: SchemaText, others: dict[str, SchemaText], above: tuple[str, ...]) -> None:
        for one in text.references:
            if one.name in above:
                raise SchemaRefused(f"the schemas {', '.join(above)} refer to each other in a circle")
            if one.name in others:
                continue
            if len(others) + len(above) >= REFERENCES_MAX:
                raise SchemaRefused(f"the schema refers to more than {REFERENCES_MAX} others")
            found = self.client.version(one.subject, one.version)
            self._collect(found, others, (*above, one.name))
            others[one.name] = found
            if sum(len(each.text) for each in others.values()) > TEXT_MAX:
                raise SchemaRefused(f"the schema and what it refers to have more than {TEXT_MAX} characters")


def _addresses(url: Any) -> list[str]:
    found = [one.strip() for one in url.split(",")] if isinstance(url, str) else []
    for one in found or [url]:
        parts = urlsplit(one) if isinstance(one, str) else None
        if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
            raise OptionError(
                f"Registry takes an address such as 'https://registry.example.com:8081', not {_shown(one)}"
            )
    return found


def _shown(url: Any) -> str:
    return repr(url) if not isinstance(url, str) else repr(_without_login(url))


def _without_login(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _login(auth: Any) -> dict[str, Any]:
    if auth is None:
        return {}
    if isinstance(auth, str):
        # Confluent's client wants a cluster's name beside a token, which registries without clusters pass over.
        return {
            "bearer.auth.credentials.source": "STATIC_TOKEN",
            "bearer.auth.token": auth,
            "bearer.auth.logical.cluster": "none",
        }
    if isinstance(auth, tuple) and len(auth) == 2 and all(isinstance(one, str) for one in auth) and ":" not in auth[0]:
        return {"basic.auth.user.info": f"{auth[0]}:{auth[1]}"}
    raise OptionError("Registry(auth=…) takes (user, password), or a token as text")


def _of_address(url: str) -> tuple[str, str] | None:
    """The login that stands in the first address that has one; all are asked with it."""
    for one in map(urlsplit, _addresses(url)):
        if one.username:
            return unquote(one.username), unquote(one.password or "")
    return None


def _of_environment() -> tuple[str, str] | str | None:
    """A login that is in no code and on no command line; an address with one of its own has that."""
    found = os.environ.get(AUTH_ENV, "")
    user, colon, password = found.partition(":")
    return (user, password) if colon else found or None


def _tls(given: Any) -> dict[str, Any]:
    if given is None:
        return {}
    tls = given if isinstance(given, RegistryTls) else RegistryTls(ca=given)
    found = {
        "ssl.ca.location": tls.ca,
        "ssl.certificate.location": tls.certificate,
        "ssl.key.location": tls.key,
    }
    paths = {name: os.fspath(path) for name, path in found.items() if path is not None}
    return paths if tls.key_password is None else {**paths, "ssl.key.password": tls.key_password}
