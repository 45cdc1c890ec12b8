"""`Registry`: a registry's schemas by their ids, and ids by schemas, each asked for once."""

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
"""Packages that the registry's client imports.

Checked when a registry is declared: a later failure would leave records waiting for schemas for ever.
"""
KEPT: Final = 1_000
"""Most schemas, and ids, that a process remembers."""
REFERENCES_MAX: Final = 100
UNKNOWN_S: Final = 30.0
"""Seconds that the registry is not asked again for a schema that it did not know."""
FAILED_S: Final = 0.4
"""Seconds after an unanswered question in which its other waiters get the same error."""


@dataclass(frozen=True, slots=True)
class RegistryTls:
    """TLS of a registry over HTTPS; each is a path to a PEM file.

    ca: the trusted CA; None: the system's. certificate, key: this process's identity, where the registry asks.
    """

    ca: str | os.PathLike[str] | None = None
    certificate: str | os.PathLike[str] | None = None
    key: str | os.PathLike[str] | None = None
    key_password: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema with the schemas that it refers to, by its names for them; the innermost come first."""

    text: SchemaText
    others: tuple[tuple[str, SchemaText], ...] = ()


class _Known(Generic[T]):
    """A cache that asks for each key once at a time, and forgets the oldest entry when full. For any thread."""

    def __init__(self) -> None:
        self._found: OrderedDict[Hashable, T] = OrderedDict()
        self._without: OrderedDict[Hashable, tuple[float, RegistryError]] = OrderedDict()
        """Keys that the registry does not have.

        Kept apart, so that names and ids taken from records do not displace used entries.
        """
        self._failed: OrderedDict[Hashable, tuple[float, RegistryError]] = OrderedDict()
        self._asking: dict[Hashable, threading.Lock] = {}
        self._lock = threading.Lock()

    def has(self, key: Hashable) -> bool:
        """Tell if the key's value is known."""
        return key in self._found

    def lacks(self, key: Hashable) -> bool:
        """Tell if the registry is known not to have the key."""
        return key not in self._found and self._recent(self._without, key, UNKNOWN_S) is not None

    def get(self, key: Hashable, ask: Callable[[], T]) -> T:
        """Return the key's value; blocks to ask. Raises: RegistryError."""
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
        """Return the same error again, without its earlier traceback."""
        at_s, error = kept.get(key, (0.0, None))
        if error is None or time.monotonic() - at_s >= limit_s:
            return None
        return type(error)(*error.args)


class Registry:
    """A schema registry with Confluent's API: Confluent's own, Karapace, Apicurio (`…/apis/ccompat/v7`), Redpanda.

    url: its address; several with commas between. auth: `(user, password)`, or a token for `Authorization: Bearer`;
    None: the environment variable FLOWSHARE_REGISTRY_AUTH, as `user:password` or a token.
    tls: `RegistryTls(…)`, or the path of a CA's certificate. timeout: seconds for one question. settings: further
    settings of `confluent_kafka`'s SchemaRegistryClient, such as OAuth's.

    One registry serves all topics of an app, from any thread. Each schema is asked for once, and the last 1,000 are
    kept. Nothing is asked before it is needed, so that an app starts while its registry is away.
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
        """client: used in place of Confluent's, for tests. Raises: OptionError."""
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
            "url": ",".join(_without_login(one) for one in _addresses(url)),  # the client logs its requests
        }
        self._settings["timeout"] = seconds(timeout, "Registry(timeout=…)") or 5.0
        self._client = client
        self.url = url
        """The address as given, with its login."""
        self.has_secrets = (
            login is not None or auth is not None or bool(settings) or bool(set(_tls(tls)) - {"ssl.ca.location"})
        )
        """True if the registry was given more than an address and a CA."""
        self._begin()

    @property
    def ca(self) -> str:
        """Path of its CA's certificate; empty: the system's."""
        return str(self._settings.get("ssl.ca.location", ""))

    def __repr__(self) -> str:
        return f"Registry({self.shown!r})"

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for other processes (Spark's), without known schemas."""
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
        """Return the client that asks the registry; made at the first call."""
        with self._lock:
            if self._client is None:
                self._client = ConfluentClient(self._settings, self.shown)
            return self._client

    def close(self) -> None:
        """Close its connections. The registry may be asked again, and opens new ones."""
        with self._lock:
            if isinstance(self._client, ConfluentClient):
                self._client.close()
                self._client = None

    # --- by id ------------------------------------------------------------------------------------------------------

    def has_not(self, number: int) -> bool:
        """Tell if the registry is known to have no usable schema with this id."""
        return self._schemas.lacks(number)

    def knows(self, number: int) -> bool:
        """Tell if `schema` answers without asking the registry: with the schema, or with the error that it has none."""
        return self._schemas.has(number) or self._schemas.lacks(number)

    def schema(self, number: int) -> Schema:
        """Return the schema of this id. Blocks if it is not known yet.

        Raises: UnknownSchema, SchemaRefused (it is not usable), RegistryUnavailable.
        """
        return self._schemas.get(number, lambda: self._whole(self.client.by_id(number)))

    # --- ids --------------------------------------------------------------------------------------------------------

    def id_of(self, subject: str, schema: SchemaText, *, register: bool) -> int:
        """Return the id of a schema under a subject. register: register it if it is missing.

        Raises: UnknownSchema, SchemaRefused (it is incompatible with those before it), RegistryUnavailable.
        """
        return self._ids.get((subject, schema, register), lambda: self._ask_id(subject, schema, register))[0]

    def version_of(self, subject: str, schema: SchemaText, *, register: bool) -> int:
        """Return its version in the subject, for others to refer to."""
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
        """Return the newest schema of a subject and its id, as this process first saw it. Raises: as `id_of`."""

        def ask() -> tuple[int, Schema]:
            number, text = self.client.latest(subject)
            return number, self._whole(text)

        return self._latest.get(subject, ask)

    # --- references -------------------------------------------------------------------------------------------------

    def _whole(self, text: SchemaText) -> Schema:
        """Return a schema with its references. Raises: SchemaRefused: too many; and the client's errors."""
        others: dict[str, SchemaText] = {}
        self._collect(text, others, ())
        return Schema(text, tuple(others.items()))

    def whole(self, text: SchemaText) -> Schema:
        """Return a schema of the application's own, with its references. Blocks."""
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
    if not isinstance(url, str):
        return repr(url)
    scheme, separator, rest = url.rpartition("://")  # not an address: any text before an @ counts as a login
    return repr(scheme + separator + rest.rpartition("@")[2])


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
    """Return the login in the first address that has one; all addresses get that login."""
    for one in map(urlsplit, _addresses(url)):
        if one.username:
            return unquote(one.username), unquote(one.password or "")
    return None


def _of_environment() -> tuple[str, str] | str | None:
    """Return the login of the environment, in no code and on no command line; an address's own login comes first."""
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
