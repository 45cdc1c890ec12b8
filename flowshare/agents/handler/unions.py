"""Unions: the first of several types that a value fits.

A type that may hold itself can be tried at each level of a value, and again at each level by its holder: without a
memory of tried types, a few hundred bytes take minutes. So for each object and array, the result or the error of each
alternative is kept while the outermost union is at work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from flowshare.agents.handler.texts import REASON_MAX, clip

Convert = Callable[[Any], Any]
DOES_NOT_FIT: Final = (ValueError, TypeError, ArithmeticError)
"""Exceptions that a converter raises for a value that does not fit its type."""


class _Tried(threading.local):
    """The conversions that the unions of this thread have tried so far.

    By union and value: the value (kept, so that no other object gets its id), the converted value, and why the
    conversion failed. None: no union is at work.
    """

    found: dict[tuple[int, int], tuple[Any, Any, str | None]] | None = None


_tried: Final = _Tried()


def union(converts: Sequence[Convert], *, nested: bool) -> Convert:
    """Return a function that converts a value by the first converter that takes it.

    nested: more than one of them looks into objects and arrays. The returned function raises: ValueError.
    """

    def first(value: Any) -> Any:
        errors = []
        for convert in converts:
            try:
                return convert(value)
            except DOES_NOT_FIT as error:
                errors.append(str(error))
        raise ValueError(clip("; ".join(errors), REASON_MAX))  # each level repeats the errors below it

    return _once(first) if nested else first


def _once(first: Convert) -> Convert:
    """Return the same conversion, which runs once on each object and array."""

    def convert(value: Any) -> Any:
        if type(value) not in (dict, list):
            return first(value)
        outermost = _tried.found is None
        found = _tried.found = {} if _tried.found is None else _tried.found
        try:
            key = id(first), id(value)
            if key not in found:
                try:
                    found[key] = value, first(value), None
                except DOES_NOT_FIT as error:
                    found[key] = value, None, str(error)
            _, made, why = found[key]
        finally:
            if outermost:
                _tried.found = None
        if why is not None:
            raise ValueError(why)
        return made

    return convert
