"""Patterns of topics that members subscribe to, matched by RE2: in time linear in a name's length, for any pattern.
Python's own engine takes as long as a stranger's pattern likes. The time for one letter grows with the pattern's
program, so that is bounded, nothing is captured, and the names are gone through in turns."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

from flowshare.core_errors import InvalidRegularExpression
from flowshare.protocol.errors import ErrorCode
from flowshare.server.runtime.failures import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from flowshare.server.runtime.turns import Turns

PATTERN_BYTES_MAX: Final = 4_096
PATTERN_MEMORY_MAX: Final = 64 * 1024
"""Most bytes of a compiled pattern; a larger one is refused. Matching a name then takes milliseconds."""
KEPT_MAX: Final = 256
"""Patterns kept with their matches; the least recently used goes."""
KNOWN_MAX: Final = 500_000
"""Names with a known match, of all patterns; the least recently used patterns forget theirs."""


class Patterns:
    """Matches of patterns with topics."""

    def __init__(self, names: Callable[[], Iterable[str]]) -> None:
        """names: returns all topics' names."""
        self._names = names
        self._kept: OrderedDict[str, tuple[Any, dict[str, bool]]] = OrderedDict()

    def check(self, pattern: str) -> None:
        """Check that a pattern can be read. Raises: InvalidRegularExpression, Refused (no engine is installed)."""
        self._known(pattern)

    async def matching(
        self, pattern: str, turns: Turns, may_know: Callable[[str], bool] | None = None
    ) -> frozenset[str]:
        """Return the topics whose whole names match, of those that may be known. An unreadable pattern matches
        nothing."""
        try:
            read, known = self._known(pattern)
        except (InvalidRegularExpression, Refused):
            return frozenset()
        names = tuple(self._names())
        if len(known) > 2 * len(names):
            known.clear()
        found: list[str] = []
        async for some in turns.few(names):
            for name in some:
                if name not in known:
                    await turns.take()
                    known[name] = read.fullmatch(name.encode()) is not None
                if known[name] and (may_know is None or may_know(name)):
                    found.append(name)
        self._forget(pattern)
        return frozenset(found)

    def _known(self, pattern: str) -> tuple[Any, dict[str, bool]]:
        if pattern in self._kept:
            self._kept.move_to_end(pattern)
            return self._kept[pattern]
        made = self._kept[pattern] = (_read(pattern), {})
        if len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)
        return made

    def _forget(self, pattern: str) -> None:
        """Make room for this pattern's known matches; other patterns forget first."""
        room = KNOWN_MAX - sum(len(known) for _, known in self._kept.values())
        for other, (_, known) in self._kept.items():
            if room >= 0:
                return
            if other != pattern:
                room += len(known)
                known.clear()


def _read(pattern: str) -> Any:
    """Compile a pattern with RE2. Raises: InvalidRegularExpression, Refused."""
    if len(pattern.encode()) > PATTERN_BYTES_MAX:
        raise InvalidRegularExpression(f"a pattern of topics has at most {PATTERN_BYTES_MAX} bytes")
    try:
        import re2
    except ImportError:
        text = "this server cannot match patterns of topics: install google-re2 beside flowshare, or name the topics"
        raise Refused(ErrorCode.UNSUPPORTED_VERSION, text) from None
    engine: Any = re2
    options = engine.Options()
    options.max_mem = PATTERN_MEMORY_MAX
    options.never_capture = True
    options.log_errors = False
    try:
        return engine.compile(pattern, options)
    except engine.error as error:
        reason = error.args[0] if error.args else b""
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise InvalidRegularExpression(f"the pattern of topics {pattern!r} cannot be read by RE2: {text}") from None
