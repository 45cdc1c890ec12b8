"""`--reload`: run the worker as a child process and restart it when a .py file below the working directory changes.

The child drains before it ends, as on any SIGTERM. A child that ends by itself (a syntax error, say) is started again
at the next change. Files are found by scanning (path, mtime, size): no dependency, some milliseconds a scan.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from flowshare.agents.worker.keeper import KILL_AFTER_S, pause
from flowshare.agents.worker.signals import stop_signals
from flowshare.printable import printable

SCAN_INTERVAL_S: Final = 0.5
_SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages", "venv", "env", "build", "dist"})
_FILES_MAX: Final = 20_000

Stamp = dict[str, tuple[int, int]]


def scan(root: Path) -> Stamp:
    """Return modification time and size of each .py file below `root`, without hidden and installed folders."""
    found: Stamp = {}
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in _SKIPPED]
        for path in (str(Path(folder) / name) for name in files if name.endswith(".py")):
            with contextlib.suppress(OSError):
                status = os.stat(path)
                found[path] = (status.st_mtime_ns, status.st_size)
            if len(found) >= _FILES_MAX:
                return found
    return found


def changed(before: Stamp, after: Stamp) -> list[str]:
    """Return files that are new, gone or different, sorted."""
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


def run_reloading(command: Sequence[str], *, root: Path, drain_timeout_s: float) -> int:
    """Run `command` and restart it at each change below `root`, until it is told to stop; return the exit code.

    drain_timeout_s: seconds that the child has to drain; it is killed some seconds after that.
    """
    return asyncio.run(_run(command, root, drain_timeout_s + KILL_AFTER_S))


async def _run(command: Sequence[str], root: Path, limit_s: float) -> int:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in stop_signals():
        loop.add_signal_handler(number, stop.set)
    stamp = scan(root)
    _say(f"watching {len(stamp)} .py files below {root}")
    child = await _start(command)
    while True:
        await pause(stop, SCAN_INTERVAL_S)
        if stop.is_set():
            return await _end(child, limit_s)
        if child is not None and child.returncode is not None:
            _say(f"the worker ended with code {child.returncode}; it starts again when a file changes")
            child = None
        latest = scan(root)
        files = changed(stamp, latest)
        if files:
            _say(f"{Path(files[0]).relative_to(root)} changed; restarting")
            stamp = latest
            await _end(child, limit_s)
            child = await _start(command)


async def _start(command: Sequence[str]) -> asyncio.subprocess.Process | None:
    """Start the child; None: the system has no process or memory for it now."""
    try:
        return await asyncio.create_subprocess_exec(*command)
    except OSError as error:
        _say(f"the worker cannot be started: {error}; it starts again when a file changes")
        return None


async def _end(child: asyncio.subprocess.Process | None, limit_s: float) -> int:
    """Let the child drain; return its exit code."""
    if child is None:
        return 0
    with contextlib.suppress(ProcessLookupError):  # the child has ended
        child.terminate()
    ended = asyncio.ensure_future(child.wait())
    await asyncio.wait({ended}, timeout=limit_s)
    if not ended.done():
        _say("the worker did not end in time; killing it")
        child.kill()
    code = await ended
    if code == -signal.SIGTERM:  # the child had not begun yet
        return 0
    return code if code >= 0 else 128 - code


def _say(text: str) -> None:
    sys.stderr.write(f"reload: {printable(text, lines=True)}\n")
    sys.stderr.flush()
