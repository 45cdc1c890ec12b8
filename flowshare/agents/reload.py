"""`--reload`: run the worker as a child process and restart it when a .py file below the working directory changes.

The child drains before it ends, as on any SIGTERM. A child that ends by itself (a syntax error, say) is started again
at the next change. Files are found by scanning (path, mtime, size): no dependency, some milliseconds a scan.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Final

from flowshare.agents.signals import stop_signals

SCAN_INTERVAL_S: Final = 0.5
_SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages", "venv", "env", "build", "dist"})
_FILES_MAX: Final = 20_000

Stamp = dict[str, tuple[int, int]]


def scan(root: Path) -> Stamp:
    """Modification time and size of each .py file below `root`; hidden and installed folders are left out."""
    found: Stamp = {}
    for path in _files(root):
        try:
            status = os.stat(path)
        except OSError:
            continue
        found[path] = (status.st_mtime_ns, status.st_size)
        if len(found) >= _FILES_MAX:
            break
    return found


def changed(before: Stamp, after: Stamp) -> list[str]:
    """Files that are new, gone or different, sorted."""
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


def run_reloading(command: Sequence[str], *, root: Path, drain_timeout_s: float) -> int:
    """Run `command` and restart it at each change below `root`, until SIGINT or SIGTERM; returns the exit code.

    drain_timeout_s: what the child has been given to drain; it is killed some seconds after that.
    """
    return _Reloader(command, root, drain_timeout_s).run()


class _Reloader:
    def __init__(self, command: Sequence[str], root: Path, drain_timeout_s: float) -> None:
        self._command = list(command)
        self._root = root
        self._drain_s = drain_timeout_s
        self._stopping = False
        self._child: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        previous = {number: signal.signal(number, self._on_signal) for number in stop_signals()}
        reader, writer = socket.socketpair()
        writer.setblocking(False)
        descriptor = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            return self._loop(reader)
        finally:
            signal.set_wakeup_fd(descriptor)
            for number, handler in previous.items():
                signal.signal(number, handler)
            reader.close()
            writer.close()

    def _loop(self, wakeup: socket.socket) -> int:
        stamp = scan(self._root)
        self._say(f"watching {len(stamp)} .py files below {self._root}")
        self._start()
        while not self._wait(wakeup):
            self._notice_end()
            latest = scan(self._root)
            files = changed(stamp, latest)
            if files:
                self._say(f"{os.path.relpath(files[0], self._root)} changed; restarting")
                stamp = latest
                self._end()
                self._start()
        return self._end()

    def _wait(self, wakeup: socket.socket) -> bool:
        """Sleep until the next scan or a signal; whether to stop."""
        if not self._stopping:
            select.select([wakeup], [], [], SCAN_INTERVAL_S)
        return self._stopping

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._stopping = True

    def _start(self) -> None:
        self._child = subprocess.Popen(self._command)

    def _notice_end(self) -> None:
        if self._child is not None and self._child.poll() is not None:
            self._say(f"the worker ended with code {self._child.returncode}; it starts again when a file changes")
            self._child = None

    def _end(self) -> int:
        """Let the child drain; its exit code."""
        child, self._child = self._child, None
        if child is None:
            return 0
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
        try:
            code = child.wait(self._drain_s + 5)
        except subprocess.TimeoutExpired:
            self._say("the worker did not end in time; killing it")
            child.kill()
            code = child.wait()
        if code == -signal.SIGTERM:  # it had not begun yet
            return 0
        return code if code >= 0 else 128 - code

    @staticmethod
    def _say(text: str) -> None:
        sys.stderr.write(f"reload: {text}\n")
        sys.stderr.flush()


def _files(root: Path) -> Iterator[str]:
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in _SKIPPED]
        for name in files:
            if name.endswith(".py"):
                yield str(Path(folder) / name)
