"""Entities of answers in kio's form: one call with all known fields makes the entity of any version.

A version of a message lacks the fields that later ones added (and has those they dropped); fields that it lacks are
left out.
"""

from __future__ import annotations

import functools
from dataclasses import fields
from types import ModuleType
from typing import Any, Final

from flowshare.protocol.kafka import module
from flowshare.protocol.translation import NO_TIME, kafka_error
from flowshare.server.runtime import answers

ENTITY_BYTES: Final = 256
"""Bytes of memory that a part of an answer takes beside its texts, about."""


class Form:
    """The parts of one version's response."""

    __slots__ = ("_module", "_parts", "whole")

    def __init__(self, name: str, version: int) -> None:
        self._module: ModuleType = module(name, version, "response")
        self._parts: dict[str, tuple[Any, frozenset[str]]] = {}
        self.whole = "".join(word.capitalize() for word in name.split("_")) + "Response"
        """Name of the whole response, with which a part's name may begin."""

    def __call__(self, part: str, **values: Any) -> Any:
        """Return the entity `part` with those of `values` that this version has; `error_code` may be ours. Nobody is
        throttled unless `values` say so.

        Raises: AnswerTooLarge.
        """
        entity, known = self._parts.get(part) or self._learn(part)
        if "throttle_time" in known:
            values.setdefault("throttle_time", NO_TIME)
        error = values.get("error_code")
        if error is not None:
            values["error_code"] = kafka_error(error)
        return counted(entity, {name: value for name, value in values.items() if name in known})

    def has(self, part: str) -> bool:
        """Return True if this version of the response has the entity."""
        return hasattr(self._module, part)

    def _learn(self, part: str) -> tuple[Any, frozenset[str]]:
        entity = getattr(self._module, part)
        self._parts[part] = found = (entity, frozenset(one.name for one in fields(entity)))
        return found


def counted(schema: Any, values: dict[str, Any]) -> Any:
    """Return an entity, counted in its answer's space. Raises: AnswerTooLarge."""
    if schema.__type__.name != "response":  # that is the whole, whose parts were counted
        answers.space().add(_size(values))
    return schema(**values)


def _size(values: dict[str, Any]) -> int:
    """Return the bytes of an entity in memory and on the wire, about; records count where they are read."""
    size = ENTITY_BYTES
    for name, value in values.items():
        kind = value.__class__
        if kind is str or (kind is bytes and name != "records"):
            size += len(value)
        elif kind is tuple and value:
            size += answers.text_bytes(value) if value[0].__class__ is str else 16 * len(value)
    return size


@functools.cache
def form(name: str, version: int) -> Form:
    """Return the form of kio's response `name` in a version."""
    return Form(name, version)
