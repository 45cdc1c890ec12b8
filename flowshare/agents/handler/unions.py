"""Unions: the first of several types that a value fits.

A type that may hold itself can be tried at each level of a value, and at each level again by what holds it: without a
memory of what was tried, a few hundred bytes take minutes. So what an alternative was made of, or why it was none, is
kept while the outermost union is at work, for each object and array in it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from flowshare.agents.handler.texts import REASON_MAX, clip

Convert = Callable[[Any], Any]
DOES_NOT_FIT: Final = (ValueError, TypeError, ArithmeticError)
"""What a converter raises for a value that is none of its type."""


class _Tried(threading.local):
    """What the unions of this thread have tried: by union and value, the value (so that its id stays its own), what was
    made of it, and why nothing was. None: no union is at work."""

    found: dict[tuple[int, int], tuple[Any, Any, str | None]] | None = None


_tried: Final = _Tried()


def union(converts: Sequence[Convert], *, nested: bool) -> Convert:
    """Makes of a value what the first of the converters that takes it makes of it.

    nested: whether more than one of them looks into objects and arrays. Raises, when it is called: ValueError.
    """

    def first(value: Any) -> Any:
        errors = []
        for convert in converts:
            try:
                return convert(value)
            except DOES_NOT_FIT as error:
                errors.append(str(error))
        raise ValueError(clip("; ".join(errors), REASON_MAX))  # each level says what those below it do

    return _once(first) if nested else first


def _once(first: Convert) -> Convert:
    """The same, at work once on each object and array."""

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
