"""A registry in memory: what `codecs.client.Client` asks, with outages and refusals as a test wants them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from flowshare.agents.codecs.client import RegistryUnavailable, SchemaRefused, SchemaText, UnknownSchema
from flowshare.agents.codecs.registry import Registry


class FakeClient:
    """Schemas have the same id under all subjects, as in Confluent's."""

    def __init__(self) -> None:
        self.ids: dict[SchemaText, int] = {}
        self.subjects: dict[str, list[SchemaText]] = {}
        self.asked: Counter[str] = Counter()
        self.down = 0
        """So many questions get no answer."""
        self.refuses: Callable[[str, SchemaText], bool] = lambda subject, schema: False

    def _ask(self, what: str) -> None:
        self.asked[what] += 1
        if self.down:
            self.down -= 1
            raise RegistryUnavailable("the registry does not answer")

    def by_id(self, number: int) -> SchemaText:
        self._ask(f"id {number}")
        found = next((text for text, given in self.ids.items() if given == number), None)
        if found is None:
            raise UnknownSchema(f"schema {number} is not known")
        return found

    def version(self, subject: str, version: int) -> SchemaText:
        self._ask(f"version {subject} {version}")
        return self.subjects[subject][version - 1]

    def latest(self, subject: str) -> tuple[int, SchemaText]:
        self._ask(f"latest {subject}")
        if subject not in self.subjects:
            raise UnknownSchema(f"subject {subject} is not known")
        text = self.subjects[subject][-1]
        return self.ids[text], text

    def lookup(self, subject: str, schema: SchemaText) -> tuple[int, int]:
        self._ask(f"lookup {subject}")
        versions = self.subjects.get(subject, [])
        if schema not in versions:
            raise UnknownSchema(f"subject {subject} has no such schema")
        return self.ids[schema], versions.index(schema) + 1

    def register(self, subject: str, schema: SchemaText) -> int:
        self._ask(f"register {subject}")
        if self.refuses(subject, schema):
            raise SchemaRefused("it is incompatible with version 1: READER_FIELD_MISSING_DEFAULT_VALUE")
        versions = self.subjects.setdefault(subject, [])
        if schema not in versions:
            versions.append(schema)
        return self.ids.setdefault(schema, len(self.ids) + 1)


def registry_of(client: FakeClient) -> Registry:
    """A registry whose questions this answers."""
    return Registry("http://registry.test:8081", client=client)
