"""Values whose schema stands in a registry, for people: Avro and JSON Schema in Confluent's wire format.

Schemas are asked for in threads of their own, so that a registry that does not answer holds no page up for longer than
`WAIT_S`: values with schemas unknown by then are shown as bytes, and the page that is fetched a second later may know
them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from flowshare.agents.codecs import wire
from flowshare.agents.codecs.avro import Avro
from flowshare.agents.codecs.client import RegistryError, RegistryUnavailable

if TYPE_CHECKING:
    from flowshare.agents.codecs.registry import Registry

WAIT_S: Final = 1.0
ASKED_MAX: Final = 20
"""The most questions that wait for the registry: ids come out of records, which any producer may have written."""
_THREADS: Final = 2
_AVRO, _JSON = "AVRO", "JSON"


class Schemas:
    """The schemas of one registry."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self._avro: Avro[Any] = Avro(registry=registry)
        self._asking: dict[int, Future[None]] = {}
        self._threads = ThreadPoolExecutor(_THREADS, "schemas")

    async def learn(self, values: Iterable[bytes | None]) -> str | None:
        """Ask for these values' unknown schemas. Returns a sentence why some stay unknown, or None."""
        self._asking = {number: future for number, future in self._asking.items() if not future.done()}
        unknown = {number: raw for raw in values if raw is not None and (number := self._unknown(raw)) is not None}
        for number, raw in unknown.items():
            if number not in self._asking and len(self._asking) < ASKED_MAX:
                self._asking[number] = self._threads.submit(self._ask, number, raw)
        asked = [asyncio.wrap_future(self._asking[number]) for number in unknown if number in self._asking]
        if not asked:
            return None
        done, waiting = await asyncio.wait(asked, timeout=WAIT_S)
        for one in waiting:
            one.add_done_callback(lambda future: future.cancelled() or future.exception())
        errors = [str(error) for one in done if not one.cancelled() and (error := one.exception()) is not None]
        if errors:
            return errors[0]
        return f"{self.registry.shown} has not answered within {WAIT_S:g} s" if waiting else None

    def read(self, raw: bytes) -> Any:
        """Decode a value, as JSON could express it. Does not block.

        Raises: wire.NotFramed: the value has no schema id; ValueError: the value cannot be decoded, with the reason.
        """
        number = wire.schema_id(raw)
        if self._unknown(raw) is not None:
            raise ValueError(f"schema {number} is not known yet")
        try:
            kind = self.registry.schema(number).text.kind
            if kind == _AVRO:
                return self._avro.decode(raw)
            if kind == _JSON:
                return json.loads(raw[wire.HEADER :])
        except (RegistryError, ValueError, RecursionError) as error:
            raise ValueError(str(error)) from error
        raise ValueError(f"schema {number} is of the kind {kind}, of which values are not shown")

    def _unknown(self, raw: bytes) -> int | None:
        """Return the id of a value's schema, if the registry has to be asked for it."""
        try:
            number = wire.schema_id(raw)
        except wire.NotFramed:
            return None
        return None if self.registry.knows(number) else number

    def _ask(self, number: int, raw: bytes) -> None:
        try:
            if self.registry.schema(number).text.kind == _AVRO and (missing := self._avro.missing(raw, ())):
                missing.fetch()  # compiles the schema here, as a large one takes a while
        except RegistryUnavailable:
            raise
        except RegistryError:
            return  # the error is known now, and `read` raises it

    def close(self) -> None:
        """Ask nothing more."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.registry.close()
