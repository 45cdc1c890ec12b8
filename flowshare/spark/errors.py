"""Errors of Spark: the end of Spark itself, and short forms of its long messages."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from flowshare.core_errors import FlowshareError

if TYPE_CHECKING:
    from pyspark import SparkContext

WHY_MAX: Final = 700
"""The most characters of a reason."""
PYTHON_ERROR: Final = re.compile(
    r"PythonException: .*?Traceback \(most recent call last\):\n(.*?)\n\s*(?:\n|at )", re.DOTALL
)
_CAUSE: Final = re.compile(r"^(?:Caused by)?: (\S.*)", re.MULTILINE)
_TRACEBACK: Final = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*(\S.*)")


class SparkGone(FlowshareError, RuntimeError):
    """Spark's driver or cluster does not exist any more; the text gives the known facts."""


def gone(context: SparkContext, why: str) -> str | None:
    """Return the message to show when the context has ended; None: it has not. Blocks.

    why: the reason for the end, as the caller knows it.
    """
    try:
        stopped = bool(context._jsc.sc().isStopped())  # noqa: SLF001 - Python has no name for it
    except Exception:  # noqa: BLE001 - py4j's errors when the JVM is gone, of several kinds
        return "Spark has ended: its JVM is gone"
    return f"Spark has ended: {why}" if stopped else None


def brief(text: str) -> str:
    """Return the line with the reason from an error of Spark with its stacks and plans.

    That is Python's last line if the error was raised in Python, the JVM's last cause if Python only passed it on, else
    the first line.
    """
    raised: list[str] = _TRACEBACK.findall(text)
    if raised and "Py4JJavaError" not in raised[-1]:
        return _short(raised[-1])
    causes: list[str] = _CAUSE.findall(text)
    if raised and causes:
        return _short(causes[-1])
    return _short(next((line for line in text.splitlines() if line.strip()), "no message"))


def _short(line: str) -> str:
    return line.strip()[:WHY_MAX]
