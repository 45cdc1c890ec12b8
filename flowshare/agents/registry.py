"""Types of keys and values: what Faust's agents, streams and tables decode as share agents do."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import faust
from faust.serializers.registry import Registry as FaustRegistry

from flowshare.agents.coding import encode
from flowshare.agents.values import converter

_FAUSTS = (int, float, str, bytes)


class Registry(FaustRegistry):
    """Faust's registry, with all types that a share agent's annotation can have (dataclass, TypedDict, dict, …).

    str and bytes are the bytes themselves unless the topic names a serializer: what a share agent sends is read by a
    Faust agent and the other way round.
    """

    def _serializer(self, typ: Any, *alternatives: Any) -> Any:
        if typ in (str, bytes) and not alternatives[0]:
            return "raw"
        return super()._serializer(typ, *alternatives)

    def dumps_key(self, typ: Any, key: Any, *, serializer: Any = None, skip: Any = (bytes,)) -> bytes | None:
        """Encode a key; what is neither bytes nor text (the number of a `group_by`) becomes JSON, as elsewhere."""
        return encode(super().dumps_key(typ, key, serializer=serializer, skip=skip))

    def loads_value(self, typ: Any, value: bytes | None, *, serializer: Any = None) -> Any:
        """Decode a value; a null value is None, except for a record."""
        if value is None and not _is_record(typ):
            return None
        return super().loads_value(typ, value, serializer=serializer)

    def _prepare_payload(self, typ: Any, value: Any) -> Any:
        if typ is None or typ in _FAUSTS or _is_record(typ):
            return super()._prepare_payload(typ, value)
        return _converter(typ)(value)


def _is_record(typ: Any) -> bool:
    return isinstance(typ, type) and issubclass(typ, faust.Record)


@cache
def _converter(typ: Any) -> Callable[[Any], Any]:
    return converter(typ)
