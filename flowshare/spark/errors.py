"""Errors of Spark: its own end, and what matters of the pages that it says when something fails."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from flowshare.errors import FlowshareError

if TYPE_CHECKING:
    from pyspark import SparkContext

WHY_MAX: Final = 700
"""Characters of a reason."""
PYTHON_ERROR: Final = re.compile(
    r"PythonException: .*?Traceback \(most recent call last\):\n(.*?)\n\s*(?:\n|at )", re.DOTALL
)
_CAUSE: Final = re.compile(r"^(?:Caused by)?: (\S.*)", re.MULTILINE)
_TRACEBACK: Final = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*(\S.*)")


class SparkGone(FlowshareError, RuntimeError):
    """Spark's driver or cluster is no longer there; the text says what is known."""


def gone(context: SparkContext, why: str) -> str | None:
    """What is to be said when a context has ended, for which `why` is known; None: it has not. Blocks."""
    try:
        stopped = bool(context._jsc.sc().isStopped())  # noqa: SLF001 - Python has no name for it
    except Exception:  # noqa: BLE001 - py4j's errors when the JVM is gone, of several kinds
        return "Spark has ended: its JVM is gone"
    return f"Spark has ended: {why}" if stopped else None


def brief(text: str) -> str:
    """The line that says why, of an error of Spark's with its stacks and plans: Python's own last line when it was
    raised in Python, the JVM's last cause when Python only passed it on, else the first line."""
    raised: list[str] = _TRACEBACK.findall(text)
    if raised and "Py4JJavaError" not in raised[-1]:
        return _short(raised[-1])
    causes: list[str] = _CAUSE.findall(text)
    if raised and causes:
        return _short(causes[-1])
    return _short(next((line for line in text.splitlines() if line.strip()), "no message"))


def _short(line: str) -> str:
    return line.strip()[:WHY_MAX]
