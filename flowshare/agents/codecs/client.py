"""Questions to a schema registry by Confluent's REST API.

The client is `confluent_kafka.schema_registry`, which Confluent keeps, with its logins, TLS, several addresses and
OAuth; it blocks, so threads ask it (`agents.run.lookups`). Its caches and tries are not used: they have no bound, and a
record that waits is tried again by its holder. Its serializers are not used either: they follow any nesting of the
bytes (a few kilobytes by a recursive Avro schema end the process), know neither dataclasses nor models, and ask on the
loop that they are called on. Other clients that were looked at: python-schema-registry-client, which has had no release
since April 2025; aiohttp by hand, which has no OAuth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from flowshare.agents.handler.codec import CodecUnavailable
from flowshare.agents.handler.errors import AgentError, OptionError
from flowshare.agents.handler.texts import clip, said

UNKNOWN: Final = frozenset({40401, 40402, 40403})
"""Error codes of a missing subject, version or schema. Another 404 is not the registry's."""
REFUSED: Final = frozenset({409, 422})
TEXT_MAX: Final = 1024 * 1024
"""Most bytes of a schema."""
_SAID_MAX: Final = 500


class RegistryError(AgentError):
    """Base of the errors of schema registries."""


class RegistryUnavailable(RegistryError, CodecUnavailable):
    """The registry does not answer, or not as a registry does: its waiters wait on."""


class UnknownSchema(RegistryError, ValueError):
    """The registry has no such schema."""


class SchemaRefused(RegistryError, ValueError):
    """The registry, or flowshare, refuses a schema: it is incompatible with earlier ones, or not valid."""


class Reference(NamedTuple):
    """Another schema that one uses: its name there, and the version of its subject."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class SchemaText:
    """A schema in the registry's form. kind: AVRO, JSON or PROTOBUF."""

    kind: str
    text: str
    references: tuple[Reference, ...] = ()


class Client(Protocol):
    """The calls to a registry. Each call blocks for a limited time.

    Raises: RegistryUnavailable, UnknownSchema, SchemaRefused.
    """

    def by_id(self, number: int) -> SchemaText:
        """Return the schema of an id."""
        ...

    def version(self, subject: str, version: int) -> SchemaText:
        """Return a subject's schema of this version."""
        ...

    def latest(self, subject: str) -> tuple[int, SchemaText]:
        """Return the id of a subject's newest schema, and the schema."""
        ...

    def lookup(self, subject: str, schema: SchemaText) -> tuple[int, int]:
        """Return the id and version of a schema under a subject."""
        ...

    def register(self, subject: str, schema: SchemaText) -> int:
        """Register a schema under a subject, if it is missing; return its id."""
        ...


class ConfluentClient:
    """Asks a registry over HTTP."""

    def __init__(self, settings: Mapping[str, Any], shown: str) -> None:
        """settings: of Confluent's client. shown: the registry's name in errors, without secrets. Raises:
        OptionError."""
        try:
            from confluent_kafka.schema_registry import SchemaRegistryClient
        except ImportError as error:
            raise OptionError(
                f"a schema registry needs more packages ({error}): pip install 'flowshare[registry]'"
            ) from None
        try:
            self._client = SchemaRegistryClient({**settings, "max.retries": 0})
        except (OSError, ValueError, TypeError) as error:
            raise OptionError(f"the schema registry {shown}: {said(error)}") from error
        self._rest = self._client._rest_client  # noqa: SLF001 - its public methods keep all they ever saw
        self._shown = shown

    def close(self) -> None:
        """Close its connections."""
        self._client.close()

    def __del__(self) -> None:
        if hasattr(self, "_client"):  # else construction failed
            self._client.close()

    def by_id(self, number: int) -> SchemaText:
        return _schema(self._ask("GET", f"schemas/ids/{number}", f"schema {number}"))

    def version(self, subject: str, version: int) -> SchemaText:
        return _schema(self._ask("GET", f"subjects/{_quoted(subject)}/versions/{version}", f"{subject} {version}"))

    def latest(self, subject: str) -> tuple[int, SchemaText]:
        found = self._ask("GET", f"subjects/{_quoted(subject)}/versions/latest", f"subject {subject}")
        return _number(found, "id"), _schema(found)

    def lookup(self, subject: str, schema: SchemaText) -> tuple[int, int]:
        found = self._ask("POST", f"subjects/{_quoted(subject)}", f"the schema in subject {subject}", schema)
        return _number(found, "id"), _number(found, "version")

    def register(self, subject: str, schema: SchemaText) -> int:
        path = f"subjects/{_quoted(subject)}/versions"
        return _number(self._ask("POST", path, f"subject {subject}", schema), "id")

    def _ask(self, method: str, path: str, what: str, schema: SchemaText | None = None) -> Any:
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        body = None if schema is None else _body(schema)
        try:
            return self._rest.send_request(path, method=method, body=body)
        except SchemaRegistryError as error:
            raise self._of_answer(error, what) from None  # the client's error may contain the whole answer
        except Exception as error:
            raise RegistryUnavailable(
                f"the schema registry {self._shown} does not answer: {type(error).__name__}: {clip(said(error), 200)}"
            ) from error

    def _of_answer(self, error: Any, what: str) -> RegistryError:
        text = clip(said(error.error_message), _SAID_MAX)
        if error.error_code in UNKNOWN:
            return UnknownSchema(f"the schema registry {self._shown} does not know {what}: {text}")
        if error.http_status_code in REFUSED:
            return SchemaRefused(f"the schema registry {self._shown} refuses the schema for {what}: {text}")
        if error.http_status_code in (401, 403):
            return RegistryUnavailable(
                f"the schema registry {self._shown} does not let this process in ({error.http_status_code}) for "
                f"{what}: check auth= and its rights"
            )
        return RegistryUnavailable(
            f"the schema registry {self._shown} answers {error.http_status_code} for {what}: {text}"
        )


def _quoted(subject: str) -> str:
    from urllib.parse import quote

    return quote(subject, safe="")


def _body(schema: SchemaText) -> dict[str, Any]:
    body: dict[str, Any] = {"schema": schema.text, "schemaType": schema.kind}
    if schema.references:
        body["references"] = [one._asdict() for one in schema.references]
    return body


def _number(found: Any, name: str) -> int:
    number = found.get(name) if isinstance(found, dict) else None
    if not isinstance(number, int) or not 0 <= number < 2**31:
        raise RegistryUnavailable(f"the schema registry's answer has no {name}: {clip(said(found), 200)}")
    return number


def _schema(found: Any) -> SchemaText:
    """Read a schema. Raises: RegistryUnavailable: not a registry's answer; SchemaRefused: it is too large."""
    text = found.get("schema") if isinstance(found, dict) else None
    if not isinstance(text, str):
        raise RegistryUnavailable(f"the schema registry's answer has no schema: {clip(said(found), 200)}")
    if len(text) > TEXT_MAX:
        raise SchemaRefused(f"the schema has {len(text)} characters, and {TEXT_MAX} are taken")
    try:
        references = tuple(
            Reference(str(one["name"]), str(one["subject"]), int(one["version"]))
            for one in found.get("references") or ()
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RegistryUnavailable(f"the schema registry's answer has odd references: {said(error)}") from error
    return SchemaText(found.get("schemaType") or "AVRO", text, references)
