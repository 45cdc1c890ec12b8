"""The beginning of the `flowshare` command: Ctrl-C is one word and code 130 before anything else is imported.

Until the command line itself handles it, an interrupt ends the process at once: nothing has been begun.

A standard stream that was closed by who started the command (`flowshare lag >&-`) leads to nowhere: without a stream
commands fail where they write, and a file of the store that gets the free descriptor would be written into.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import FrameType

INTERRUPTED: Final = 130
WORD: Final = b"interrupted\n"


def main() -> None:
    """Run the command line and exit with its code."""
    _open_closed_streams()
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else the parent process wants it ignored
    if ours:
        signal.signal(signal.SIGINT, _end)
    from flowshare.cli import main as run

    if ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run()
    except KeyboardInterrupt:  # before or after the command, which answers its own
        os.write(2, WORD)
        raise SystemExit(INTERRUPTED) from None


def _open_closed_streams() -> None:
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115 - stays open as long as the process
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def _end(_number: int, _frame: FrameType | None) -> None:
    os.write(2, WORD)
    os._exit(INTERRUPTED)
