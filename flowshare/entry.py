"""The beginning of the `flowshare` command: Ctrl-C is one word and code 130 before anything else is imported.

Until the command line itself handles it, an interrupt ends the process at once: nothing has been begun.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import FrameType

INTERRUPTED: Final = 130
WORD: Final = b"interrupted\n"


def main() -> None:
    """Run the command line and exit with its code."""
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


def _end(_number: int, _frame: FrameType | None) -> None:
    os.write(2, WORD)
    os._exit(INTERRUPTED)
