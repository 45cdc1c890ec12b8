"""Texts of the application's exceptions and values: bounded in length, and made without raising.

`str(error)` and `repr(value)` run code of the application, which may raise, return something that is not text, or
return a megabyte. All texts about exceptions from user code (logs, dead letters, reasons) are made here.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

REASON_MAX: Final = 1_000
TRACE_MAX: Final = 8_000
SHOWN_MAX: Final = 80
GROUP_SHOWN_MAX: Final = 4
"""Most errors of a group that are named."""
LEAVES_MAX: Final = 1_000
"""Most errors of a group that are looked at."""
_MADE_OF: Final[Callable[[BaseException], tuple[BaseException, ...]]] = BaseExceptionGroup.exceptions.__get__
TEXT_MAX: Final = 20_000
"""Characters of a command's last message: flowshare's errors may list many things."""


def said(error: Any, length: int = REASON_MAX) -> str:
    """Return the text of an exception (or of a reason of any type), at most `length` characters; never raises."""
    return _made_by(str, error, length)


def shown(value: Any, length: int = SHOWN_MAX) -> str:
    """Return a value as `repr` shows it, at most `length` characters; never raises."""
    return _made_by(repr, value, length)


def named(error: BaseException, length: int = REASON_MAX) -> str:
    """Return `Kind: text` of an exception, of a group with its errors, at most `length` characters; never raises."""
    text = f"{type(error).__name__}: {said(error, length)}"
    if isinstance(error, BaseExceptionGroup):
        inner = leaves(error)
        more = "" if len(inner) <= GROUP_SHOWN_MAX else f"; and {len(inner) - GROUP_SHOWN_MAX} more"
        each = length // (GROUP_SHOWN_MAX + 1)
        text += ": " + "; ".join(named(one, each) for one in inner[:GROUP_SHOWN_MAX]) + more
    return clip(text, length)


def leaves(error: BaseException) -> list[BaseException]:
    """Return the errors in a group and its inner groups, in order, at most `LEAVES_MAX`; of any other error, itself."""
    found: list[BaseException] = []
    waiting: list[BaseException] = [error]
    while waiting and len(found) < LEAVES_MAX:
        one = waiting.pop()
        if isinstance(one, BaseExceptionGroup):
            # BaseExceptionGroup's own field: a subclass may override `exceptions`
            waiting.extend(reversed(_MADE_OF(one)))
        else:
            found.append(one)
    return found


def sole(error: BaseException) -> BaseException:
    """Return the only error in a group; of several the group, and any other error itself."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    inner = leaves(error)
    return inner[0] if len(inner) == 1 else error


def kind_of(error: BaseException) -> str:
    """Return the exception's class with its module; for a group with one error, that error's."""
    error = sole(error)
    return f"{said(type(error).__module__)}.{type(error).__qualname__}"


def trace(error: BaseException) -> str:
    """Return the traceback as text; of a long one the end, where the error was raised."""
    try:
        text = _plain("".join(traceback.format_exception(type(error), error, of_user(error))))
    except BaseException:  # noqa: BLE001 - it calls code of the application
        text = named(error) + "\n"
    if len(said(error, REASON_MAX)) < REASON_MAX:
        return text if len(text) <= TRACE_MAX else "…" + text[-TRACE_MAX:]
    places = _plain("".join(traceback.format_tb(of_user(error))))[-TRACE_MAX // 2 :]
    return f"{places}…{text[len(places) - TRACE_MAX :]}"  # else a long text would leave no room for the places


def of_user(error: BaseException) -> TracebackType | None:
    """Return the error's traceback without the frames of flowshare that called the handler."""
    found = error.__traceback__
    while found is not None and found.tb_frame.f_globals.get("__name__", "").startswith("flowshare.agents."):
        found = found.tb_next
    return found or error.__traceback__


def place_of(error: BaseException) -> str:
    """Return the line of user code nearest to the error, `file.py:12 in function`."""
    found, place = of_user(error), "in no code of the app"
    while found is not None:
        code = found.tb_frame.f_code
        place = f"{os.path.basename(code.co_filename)}:{found.tb_lineno} in {code.co_name}"
        found = found.tb_next
        if (
            "/lib/python" not in code.co_filename
            and found is not None
            and "/lib/python" in found.tb_frame.f_code.co_filename
        ):
            break
    return place


def clip(text: str, length: int) -> str:
    """Cut a text to `length` characters."""
    return text if len(text) <= length else text[: length - 1] + "…"


def amount(count: int, one: str, several: str = "") -> str:
    """Return a count with what is counted: `1 record`, `2 records`. several: the words for any other number than 1,
    where they are not `one` with an s."""
    return f"{count} {one if count == 1 else several or one + 's'}"


def age(seconds: float | None) -> str:
    """Format a duration for people: 850 ms, 12.3 s, 4 m 10 s, 3 h 5 m, 2 d 4 h; `-` for None."""
    if seconds is None or seconds < 0:
        return "-"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    if whole < 3600:
        return f"{whole // 60} m {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} m"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def _made_by(maker: Callable[[Any], str], of: Any, length: int) -> str:
    try:
        text = maker(of)
        return _plain(clip(str.__str__(text)[: length + 1], length))
    except BaseException as broken:  # noqa: BLE001 - it is code of the application, and its text is all that is lost
        return clip(f"(of a {type(of).__name__} that cannot say it: {type(broken).__name__})", length)


def _plain(text: str) -> str:
    """Replace half characters (surrogates), which have no bytes, so that a text can be written anywhere."""
    return text.encode("utf-8", "replace").decode()
