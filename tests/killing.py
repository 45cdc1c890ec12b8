"""Processes that go on until they are killed, and what they said before.

Each is a fork of one process that has imported what they run, so that many of them are soon started.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from collections.abc import Callable, Coroutine
from multiprocessing.connection import Connection
from typing import Any

_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(
    [
        "tests.log.crasher",
        "tests.log.producer_crasher",
        "tests.log.compaction_crasher",
        "tests.log.settle_crasher",
        "tests.server.crasher",
    ]
)


def say(line: str) -> None:
    """Each line is one write to the pipe, so that none is lost with the process."""
    os.write(1, line.encode() + b"\n")


def said_until_killed(main: Callable[..., Coroutine[Any, Any, None]], *arguments: Any, lines: int) -> list[str]:
    """Run it until it has said `ready` and so many lines more, then kill it; every whole line that it said."""
    reading, writing = _forks.Pipe(duplex=False)
    child = _forks.Process(target=_run, args=(main, arguments, writing))
    child.start()
    writing.close()
    with reading, os.fdopen(reading.fileno(), "rb", closefd=False) as pipe:
        assert pipe.readline() == b"ready\n"
        said = [pipe.readline() for _ in range(lines)]
        child.kill()
        said += pipe.readlines()
    child.join()
    child.close()
    return [line.decode() for line in said if line.endswith(b"\n")]


def _run(main: Callable[..., Coroutine[Any, Any, None]], arguments: tuple[Any, ...], writing: Connection) -> None:
    os.dup2(writing.fileno(), 1)
    asyncio.run(main(*arguments))
