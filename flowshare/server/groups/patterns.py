"""Patterns of topics that members subscribe to, matched by RE2: in time that is linear in a name's length, whatever the
pattern. Python's own engine takes as long as a stranger's pattern likes."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

from flowshare.core_errors import InvalidRegularExpression
from flowshare.protocol.errors import ErrorCode
from flowshare.server.runtime.failures import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PATTERN_BYTES_MAX: Final = 4_096
PATTERN_MEMORY_MAX: Final = 1024 * 1024
"""Bytes that a pattern may take once it is read; one that takes more is refused."""
KEPT_MAX: Final = 256
"""Patterns that are kept with what they match; the one that was not asked for longest goes."""


class Patterns:
    """Which topics match which pattern."""

    def __init__(self, names: Callable[[], Iterable[str]]) -> None:
        """names: of all topics that there are."""
        self._names = names
        self._kept: OrderedDict[str, tuple[Any, dict[str, bool]]] = OrderedDict()

    def check(self, pattern: str) -> None:
        """Whether a pattern can be read. Raises: InvalidRegularExpression, Refused (there is no engine for it)."""
        self._known(pattern)

    def matching(self, pattern: str, may_know: Callable[[str], bool] | None = None) -> frozenset[str]:
        """The topics whose whole names match, of those that may be known. Of what cannot be read nothing matches."""
        try:
            read, known = self._known(pattern)
        except (InvalidRegularExpression, Refused):
            return frozenset()
        names = tuple(self._names())
        if len(known) > 2 * len(names):
            known.clear()
        for name in names:
            if name not in known:
                known[name] = read.fullmatch(name) is not None
        return frozenset(name for name in names if known[name] and (may_know is None or may_know(name)))

    def _known(self, pattern: str) -> tuple[Any, dict[str, bool]]:
        if pattern in self._kept:
            self._kept.move_to_end(pattern)
            return self._kept[pattern]
        made = self._kept[pattern] = (_read(pattern), {})
        if len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)
        return made


def _read(pattern: str) -> Any:
    """RE2's reading of a pattern. Raises: InvalidRegularExpression, Refused."""
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
    options.log_errors = False
    try:
        return engine.compile(pattern, options)
    except engine.error as error:
        reason = error.args[0] if error.args else b""
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise InvalidRegularExpression(f"the pattern of topics {pattern!r} cannot be read by RE2: {text}") from None
