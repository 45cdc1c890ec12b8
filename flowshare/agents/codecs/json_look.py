"""Checks of a value against a JSON Schema in a bounded number of steps: keywords that replace jsonschema's own.

A schema of a few hundred bytes can keep a reader busy for hours: `(a+)+$` in Python's regex engine, `uniqueItems` that
compares each item with each other, `anyOf` in `anyOf`, a text of the whole value in each of a thousand errors. So
patterns are matched by RE2, values are compared by their canonical form, and every step is counted; a value that needs
more steps than the bound does not fit. Each thread checks one value at a time.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final

STEPS_AT_ONCE: Final = 20_000
"""Steps for a value that is checked while others wait; a step is some microseconds' work."""
STEPS_BESIDE: Final = 1_000_000
"""Steps for a value that is checked in a thread of its own."""
DEPTH_MAX: Final = 180
"""Most keywords within keywords: more would reach the end of the stack, in code that cannot bear that."""
PATTERN_BYTES_MAX: Final = 256 * 1024
"""Memory limit in bytes for one compiled pattern; a pattern that needs more is refused."""
INSTRUCTIONS_PER_STEP: Final = 400
"""Letters times instructions of a pattern's program that RE2 does in about the time of a step."""
STEPS_PER_ERROR: Final = 8
PARTS_PER_STEP: Final = 16
LETTERS_PER_STEP: Final = 64
_ALTERNATIVES: Final = frozenset({"anyOf", "oneOf", "allOf"})
_UNICODE: Final = re.compile(r"\\u([0-9a-fA-F]{4})")
_BOOLEANS: Final = {True: object(), False: object()}
_DYNAMIC: Final = frozenset({"$dynamicRef", "$recursiveRef"})
_Keyword = Callable[[Any, Any, Any, Any], Iterable[Any] | None]


class TooLong(Exception):
    """The value took more steps than allowed."""


class Look(threading.local):
    """The state of the check of one value: steps left, depth, and results already known."""

    def __init__(self, *, trusted: bool) -> None:
        """trusted: patterns that RE2 does not know are matched by Python. (Called again in each thread.)"""
        self.trusted = trusted
        self._left = self._depth = 0
        self._sizes: dict[int, int] = {}
        self._enums: dict[int, frozenset[Any]] = {}
        self._refs: dict[tuple[int, int], tuple[str, Any] | None] = {}

    @contextmanager
    def of_one_value(self, steps: int) -> Iterator[None]:
        """Reset for the check of one value; its parts, and so their ids, live as long as the block."""
        self._left, self._depth = steps, 0
        self._forget()
        try:
            yield
        finally:
            self._forget()

    def _forget(self) -> None:
        self._sizes.clear()
        self._refs.clear()
        self._enums.clear()

    def keywords(self, known: Mapping[str, _Keyword], *, refs: bool) -> dict[str, _Keyword]:
        """Return keywords that count steps. refs: a referenced schema is checked once for each part of a value."""
        own: dict[str, _Keyword] = {
            "pattern": self._pattern,
            "patternProperties": self._pattern_properties,
            "additionalProperties": self._additional_properties,
            "uniqueItems": self._unique_items,
            "enum": self._enum,
            "const": self._const,
        }
        made = {name: self._counted(name, own.get(name, keyword)) for name, keyword in known.items()}
        if refs and "$ref" in known:
            made["$ref"] = self._once(made["$ref"])
        return made

    def take(self, steps: int) -> None:
        """Count steps. Raises: TooLong."""
        self._left -= steps
        if self._left < 0:
            raise TooLong

    def size(self, instance: Any) -> int:
        """Return the approximate steps for a text of it."""
        if isinstance(instance, str):
            return 1 + len(instance) // LETTERS_PER_STEP
        if not isinstance(instance, (dict, list)):
            return 1
        return 1 + self._parts(instance) // PARTS_PER_STEP

    def _parts(self, instance: Any) -> int:
        if isinstance(instance, str):
            return 1 + len(instance) // LETTERS_PER_STEP
        if not isinstance(instance, (dict, list)):
            return 1
        known = self._sizes.get(id(instance))
        if known is None:
            self.take(1 + len(instance) // PARTS_PER_STEP)
            inner = instance.values() if isinstance(instance, dict) else instance
            known = self._sizes[id(instance)] = 1 + sum(map(self._parts, inner))
        return known

    def _counted(self, name: str, keyword: _Keyword) -> _Keyword:
        def counted(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
            steps = 1
            if isinstance(value, (dict, list)) and name != "enum":
                steps += len(value)
            if isinstance(instance, (dict, list)):
                steps += len(instance)
            self.take(steps)
            if name in _ALTERNATIVES and any(one is False for one in value):
                self.take(len(value) * self.size(instance))
            if self._depth >= DEPTH_MAX:
                raise RecursionError
            self._depth += 1
            try:
                for error in keyword(validator, value, instance, schema) or ():
                    self.take(STEPS_PER_ERROR + self.size(instance))
                    yield error
            finally:
                self._depth -= 1

        return counted

    def _once(self, look: _Keyword) -> _Keyword:
        """Wrap jsonschema's `$ref`; for a repeated check return only the first error.

        Where a schema holds itself in `anyOf` or `oneOf`, it would otherwise be checked again at each level for each
        alternative of the level above: with 330 bytes that took half a second, and twice as long with each further
        level.
        """

        def errors(validator: Any, ref: Any, instance: Any, schema: Any) -> Iterator[Any]:
            key = id(schema), id(instance)
            if key not in self._refs:
                found = list(look(validator, ref, instance, schema) or ())
                self._refs[key] = (found[0].validator, found[0].validator_value) if found else None
                yield from found
            elif (first := self._refs[key]) is not None:
                yield _error("as before", validator=first[0], validator_value=first[1])

        return errors

    # --- keywords ---------------------------------------------------------------------------------------------------

    def _matches(self, pattern: Any, text: str) -> bool:
        """Tell if the pattern is found in the text. Raises: TooLong; ValueError: RE2 cannot match the pattern."""
        read, size = _read(str(pattern), self.trusted)
        self.take(1 + len(text) * size // INSTRUCTIONS_PER_STEP)
        return read(text)

    def _pattern(self, validator: Any, pattern: Any, instance: Any, _schema: Any) -> Iterator[Any]:
        if validator.is_type(instance, "string") and not self._matches(pattern, instance):
            yield _error("it does not match")

    def _pattern_properties(self, validator: Any, patterns: Any, instance: Any, _schema: Any) -> Iterator[Any]:
        if validator.is_type(instance, "object"):
            for pattern, inner in patterns.items():
                for name, value in instance.items():
                    if self._matches(pattern, name):
                        yield from validator.descend(value, inner, path=name, schema_path=pattern)

    def _additional_properties(self, validator: Any, allowed: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if not validator.is_type(instance, "object"):
            return
        known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        extras = [
            name for name in instance if name not in known and not any(self._matches(one, name) for one in patterns)
        ]
        if validator.is_type(allowed, "object"):
            for name in extras:
                yield from validator.descend(instance[name], allowed, path=name)
        elif not allowed and extras:
            yield _error("it has other fields")

    def _unique_items(self, validator: Any, unique: Any, instance: Any, _schema: Any) -> Iterator[Any]:
        if unique and validator.is_type(instance, "array"):
            self.take(self._parts(instance))
            if len({_canonical(one) for one in instance}) < len(instance):
                yield _error("it has the same item twice")

    def _enum(self, _validator: Any, values: Any, instance: Any, _schema: Any) -> Iterator[Any]:
        if id(values) not in self._enums:
            self.take(self._parts(values))
            self._enums[id(values)] = frozenset(map(_canonical, values))
        self.take(self._parts(instance))
        if _canonical(instance) not in self._enums[id(values)]:
            yield _error("it is another one")

    def _const(self, _validator: Any, const: Any, instance: Any, _schema: Any) -> Iterator[Any]:
        self.take(self._parts(const) + self._parts(instance))
        if _canonical(const) != _canonical(instance):
            yield _error("it is another one")


def dynamic(schema: Any) -> bool:
    """Tell if a schema has dynamic references, whose target can depend on the path to them; texts do not count."""
    waiting = [schema]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            if not _DYNAMIC.isdisjoint(one):
                return True
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
    return False


def unbounded(schema: Any) -> bool:
    """Tell if a schema has keywords that jsonschema would match with Python's own regex engine."""
    found: set[str] = set()
    waiting = [schema]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            found |= {"unevaluatedProperties", "patternProperties"} & one.keys()
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
    return len(found) > 1


def _error(text: str, **words: Any) -> Any:
    from jsonschema.exceptions import ValidationError

    return ValidationError(text, **words)


def _canonical(value: Any) -> Any:
    """Return a form that is the same for values that JSON Schema calls equal: 1 equals 1.0, 1 does not equal true."""
    if isinstance(value, dict):
        return frozenset((name, _canonical(one)) for name, one in value.items())
    if isinstance(value, list):
        return tuple(map(_canonical, value))
    return _BOOLEANS[value] if isinstance(value, bool) else value


@lru_cache(maxsize=1_000)
def _read(pattern: str, trusted: bool) -> tuple[Callable[[str], bool], int]:
    """Return a function that searches a text for the pattern, and the pattern's number of instructions.

    Raises: ValueError: RE2 cannot match the pattern, and the schema is not trusted.
    """
    import re2

    engine: Any = re2
    options = engine.Options()
    options.max_mem, options.never_capture, options.log_errors = PATTERN_BYTES_MAX, True, False
    try:
        made = engine.compile(_UNICODE.sub(r"\\x{\1}", pattern), options)
    except engine.error as error:
        if trusted:
            own = re.compile(pattern)
            return lambda text: own.search(text) is not None, 1
        reason = error.args[0] if error.args else b""
        why = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise ValueError(
            f"the schema's pattern {pattern[:100]!r} is none that RE2 can match ({why}), and by others a value may "
            "take hours: give the codec a model, or a schema of your own"
        ) from None
    return lambda text: made.search(text.encode(errors="surrogatepass")) is not None, made.programsize
