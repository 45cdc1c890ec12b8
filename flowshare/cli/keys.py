"""Keys of a terminal: what it sends for them, and reading them one by one without waiting for a line."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Generator
from typing import Final

_NAMES: Final = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1b[C": "right",
    "\x1b[D": "left",
    "\x1bOA": "up",
    "\x1bOB": "down",
    "\x1bOC": "right",
    "\x1bOD": "left",
    "\x1b[5~": "pgup",
    "\x1b[6~": "pgdn",
    "\x1b[H": "home",
    "\x1b[F": "end",
    "\x1b": "esc",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x03": "ctrl-c",
    "\x04": "ctrl-d",
}
_LONGEST: Final = max(map(len, _NAMES))
READ_MAX: Final = 1_024


def keys_of(text: str) -> list[str]:
    """The keys that a terminal sent: letters, and names of others (`up`, `enter`, `esc`, …); what is unknown is left
    out."""
    found: list[str] = []
    at = 0
    while at < len(text):
        size = next((size for size in range(_LONGEST, 0, -1) if text[at : at + size] in _NAMES), 0)
        if text[at] == "\x1b" and size <= 1 and at + 1 < len(text) and text[at + 1] in "[O":
            at = _end_of_sequence(text, at)
            continue
        if size:
            found.append(_NAMES[text[at : at + size]])
        elif text[at].isprintable():
            found.append(text[at])
        at += max(1, size)
    return found


def _end_of_sequence(text: str, at: int) -> int:
    """Where an escape sequence that means nothing here ends."""
    at += 2
    while at < len(text) and not ("@" <= text[at] <= "~"):
        at += 1
    return at + 1


@contextlib.contextmanager
def each_key(pressed: Callable[[str], object]) -> Generator[None]:
    """Call `pressed` on the running loop with each key, as long as the block runs; the terminal is as before after it.

    Without a terminal to read from, or on Windows, there are no keys.
    """
    try:
        import termios
        import tty
    except ImportError:
        yield
        return
    try:
        fd = sys.stdin.fileno()
        before = termios.tcgetattr(fd)
    except (OSError, ValueError, termios.error):  # a pipe, or nothing at all
        yield
        return
    loop = asyncio.get_running_loop()

    def read() -> None:
        text = os.read(fd, READ_MAX).decode(errors="replace")
        if not text:  # the terminal is gone
            loop.remove_reader(fd)
            pressed("ctrl-d")
        for key in keys_of(text):
            pressed(key)

    tty.setcbreak(fd)
    loop.add_reader(fd, read)
    try:
        yield
    finally:
        loop.remove_reader(fd)
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
