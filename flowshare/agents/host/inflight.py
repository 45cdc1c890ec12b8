"""Records that handlers work on right now, shown to people: `/inflight`, `flowshare inflight` and SIGUSR1."""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from flowshare.agents.handler.texts import amount
from flowshare.printable import printable

_FRAMES_MAX: Final = 12
_CALLERS: Final = tuple(
    f"/flowshare/agents/{name}.py"
    for name in ("run/async_pool", "run/thread_pool", "run/batch_pool", "handler/middleware")
)
"""Modules that call handlers."""


class RunningHandler(NamedTuple):
    """A handler at work: its record, its age, and its task or thread.

    task: the pool's task that awaits the handler; None for a `def` handler, which runs in thread `thread_id`.
    """

    agent: str
    topic: str
    partition: int
    offset: int
    attempt: int
    age_s: float
    lock_left_s: float
    task: asyncio.Task[None] | None
    thread_id: int | None


def rows(found: Iterable[RunningHandler], *, handler_thread: int, stacks: bool) -> list[dict[str, Any]]:
    """Return one JSON-ready row per record, oldest first; with `stacks` also the stack of its handler.

    handler_thread: id of the thread that runs the handler loop.
    """
    made = []
    for one in sorted(found, key=lambda one: -one.age_s):
        row = one._replace(age_s=round(one.age_s, 3), lock_left_s=round(one.lock_left_s, 3))._asdict()
        del row["task"], row["thread_id"]
        made.append(row | {"stack": stack(one, handler_thread)} if stacks else row)
    return made


def text(found: Sequence[dict[str, Any]], *, worker: int | None = None) -> str:
    """Format the rows as lines, each with its stack below it. worker: its number among several."""
    who = "" if worker is None else f"[{worker}] "
    if not found:
        return f"{who}in flight: nothing\n"
    lines = [f"{who}in flight: {amount(len(found), 'record')}\n"]
    for row in found:
        where = f"{row['topic']}-{row['partition']}@{row['offset']}"
        lines.append(
            f"  {row['agent']} {where} attempt {row['attempt']}, for {row['age_s']:.1f} s, "
            f"lock left {row['lock_left_s']:.1f} s"
            + (f", {row['blocked']} of its key wait for it\n" if row.get("blocked") else "\n")
        )
        lines.extend(f"    {line}\n" for line in row.get("stack", "").splitlines())
    return printable("".join(lines), lines=True)


def stack(one: RunningHandler, handler_thread: int) -> str:
    """Return a handler's stack: its thread's, or the coroutines it awaits, outermost first."""
    entries: Sequence[traceback.FrameSummary] = ()
    if one.thread_id is not None:
        entries = _thread(one.thread_id)
    elif one.task is not None:
        coroutine = one.task.get_coro()
        running = getattr(coroutine, "cr_running", False)
        entries = _thread(handler_thread) if running else _awaited(coroutine)
    return "".join(traceback.format_list(_of_the_application(entries)[-_FRAMES_MAX:]))


def _thread(thread_id: int) -> Sequence[traceback.FrameSummary]:
    frame = sys._current_frames().get(thread_id)  # noqa: SLF001 - the documented way to another thread's stack
    return traceback.extract_stack(frame) if frame is not None else ()


def _awaited(coroutine: Any) -> list[traceback.FrameSummary]:
    """Return frames of a suspended coroutine and of those it awaits (`Task.get_stack` shows the outermost one only)."""
    entries: list[traceback.FrameSummary] = []
    while coroutine is not None and len(entries) < 64:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is None:
            break
        entries.extend(traceback.extract_stack(frame, limit=1))
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
    return entries


def _of_the_application(entries: Sequence[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """Return the part from the handler on, without frames of flowshare and the loop below it."""
    callers = [index for index, entry in enumerate(entries) if entry.filename.endswith(_CALLERS)]
    return list(entries[callers[-1] + 1 :] if callers else entries)
