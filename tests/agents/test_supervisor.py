"""The supervisor of `flowshare worker --procs N`, with small scripts in the place of workers."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from flowshare.agents.worker.supervisor import Supervisor, SupervisorOptions, worker_command
from flowshare.clock import LoopClock
from tests.waiting import until

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

LIMIT_S = 60.0

NOTE = """
import os, pathlib, signal, sys, time
place = pathlib.Path(sys.argv[1])
number = os.environ["FLOWSHARE_WORKER_NUMBER"]
def note(word):
    with (place / "journal").open("a") as file:
        file.write(f"{word} {number} {os.getpid()}\\n")
"""
DRAINS = (
    NOTE
    + """
def end(*_):
    note("drained")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
note("up")
while True:
    time.sleep(0.05)
"""
)
STUBBORN = (
    NOTE
    + """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
note("up")
while True:
    time.sleep(0.05)
"""
)
READY = (
    NOTE
    + """
signal.signal(signal.SIGUSR1, lambda *_: note("shown"))
note("up")
if number == "1":
    os.write(int(os.environ["FLOWSHARE_READY_FD"]), b"127.0.0.1:1\\n")
while True:
    time.sleep(0.05)
"""
)
FAILS = (
    NOTE
    + """
note("up")
os.write(int(os.environ["FLOWSHARE_READY_FD"]), b"refused: there is no module 'shop'\\n")
sys.exit(7)
"""
)
ONE_IS_BAD = (
    NOTE
    + """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
if number == "1":
    os.write(int(os.environ["FLOWSHARE_READY_FD"]), b"127.0.0.1:1\\n")
    note("up")
    while True:
        time.sleep(0.05)
os.write(int(os.environ["FLOWSHARE_READY_FD"]), b"refused: there is no module 'shop'\\n")
note("bad")
sys.exit(1)
"""
)
DIES = (
    NOTE
    + """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
first = not (place / "died").exists()
(place / "died").touch()
note("up")
if first:
    os._exit(1)
while True:
    time.sleep(0.05)
"""
)


class Fleet:
    """A supervisor in this process and what its workers wrote."""

    def __init__(
        self, place: Path, script: str, *, procs: int = 2, drain_timeout_s: float = 5.0, beside: Any = None
    ) -> None:
        self.place = place
        command = [sys.executable, "-c", textwrap.dedent(script), str(place)]
        options = SupervisorOptions(command=command, procs=procs, drain_timeout_s=drain_timeout_s)
        self.supervisor = Supervisor(options, LoopClock())
        self.task = asyncio.create_task(self.supervisor.run(beside))

    def journal(self, word: str) -> list[tuple[str, int]]:
        """Number and process of each entry."""
        file = self.place / "journal"
        lines = file.read_text().splitlines() if file.exists() else []
        entries = [line.split() for line in lines]
        return [(number, int(pid)) for said, number, pid in entries if said == word]

    async def until(self, word: str, count: int) -> list[tuple[str, int]]:
        """Wait for entries."""
        return await until(lambda: self.journal(word), word, good=lambda found: len(found) >= count)

    async def until_running(self, count: int) -> None:
        """Wait until so many processes are left."""
        await until(lambda: len(self.supervisor.running) == count)

    async def end(self) -> int:
        """Wait for the end; the exit code."""
        return await asyncio.wait_for(self.task, LIMIT_S)


@contextlib.asynccontextmanager
async def fleet(place: Path, script: str, **options):
    """A fleet whose processes are gone afterwards, whatever happened."""
    made = Fleet(place, script, **options)
    try:
        yield made
    finally:
        made.supervisor.stop()
        made.supervisor.stop(signal.SIGINT)
        if not made.task.cancelled():
            await made.end()


async def test_all_workers_drain_when_the_supervisor_is_told_to_stop(tmp_path: Path) -> None:
    async with fleet(tmp_path, DRAINS, procs=3) as f:
        up = await f.until("up", 3)

        f.supervisor.stop()

        assert await f.end() == 0
        assert sorted(f.journal("drained")) == sorted(up)
        assert sorted(number for number, _ in up) == ["1", "2", "3"]


async def test_a_worker_that_was_killed_is_started_again_and_the_other_goes_on(tmp_path: Path) -> None:
    async with fleet(tmp_path, DRAINS) as f:
        before = dict(await f.until("up", 2))

        os.kill(before["1"], signal.SIGKILL)
        await f.until("up", 3)

        assert f.supervisor.running[2] == before["2"]
        assert f.supervisor.running[1] != before["1"]


async def test_a_worker_that_cannot_be_started_for_a_moment_ends_no_other_one(tmp_path: Path, monkeypatch) -> None:
    start, refused = asyncio.create_subprocess_exec, list[OSError]()

    async def full_once(*command: Any, **given: Any) -> Any:
        if not refused:
            refused.append(BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"))
            raise refused[0]
        return await start(*command, **given)

    async with fleet(tmp_path, DRAINS) as f:
        before = dict(await f.until("up", 2))
        monkeypatch.setattr(asyncio, "create_subprocess_exec", full_once)

        os.kill(before["1"], signal.SIGKILL)
        await f.until("up", 3)

        assert refused
        assert f.supervisor.running[2] == before["2"]


async def test_a_worker_that_does_not_drain_is_killed(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("flowshare.agents.worker.supervisor.KILL_AFTER_S", 0.1)
    async with fleet(tmp_path, STUBBORN, drain_timeout_s=0.1) as f:
        await f.until("up", 2)

        f.supervisor.stop()

        assert await f.end() == 3


async def test_a_worker_that_had_not_begun_counts_as_drained(tmp_path: Path) -> None:
    async with fleet(tmp_path, READY) as f:
        await f.until("up", 2)

        f.supervisor.stop()

        assert await f.end() == 0


async def test_what_is_in_flight_is_shown_by_the_workers_that_are_ready(tmp_path: Path) -> None:
    async with fleet(tmp_path, READY) as f:
        up = dict(await f.until("up", 2))
        await until(lambda: f.supervisor.ready)

        os.kill(os.getpid(), signal.SIGUSR1)

        assert await f.until("shown", 1) == [("1", up["1"])]
        assert f.supervisor.ready == {1: "127.0.0.1:1"}
        f.supervisor.stop()
        assert await f.end() == 0
        assert f.supervisor.ready == {}


async def test_a_second_interrupt_ends_the_workers_at_once(tmp_path: Path) -> None:
    async with fleet(tmp_path, STUBBORN, drain_timeout_s=1000) as f:
        await f.until("up", 2)

        f.supervisor.stop(signal.SIGINT)
        f.supervisor.stop(signal.SIGINT)

        assert await f.end() == 130


async def test_a_supervisor_that_is_given_up_leaves_no_worker_behind(tmp_path: Path) -> None:
    async with fleet(tmp_path, STUBBORN) as f:
        up = await f.until("up", 2)

        f.task.cancel()
        await asyncio.gather(f.task, return_exceptions=True)

        for _, pid in up:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)


async def test_a_fleet_grows_and_shrinks_and_those_that_leave_have_drained(tmp_path: Path) -> None:
    async with fleet(tmp_path, DRAINS, procs=1) as f:
        [first] = await f.until("up", 1)

        f.supervisor.resize(3)
        up = dict(await f.until("up", 3))
        f.supervisor.resize(1)
        left = dict(await f.until("drained", 2))
        await f.until_running(1)

        assert sorted(up) == ["1", "2", "3"]
        assert left == {number: up[number] for number in ("2", "3")}
        assert f.supervisor.size == 1
        assert f.supervisor.running == {1: first[1]}


async def test_a_number_is_given_again_once_its_worker_has_left(tmp_path: Path) -> None:
    async with fleet(tmp_path, DRAINS) as f:
        before = dict(await f.until("up", 2))

        f.supervisor.resize(1)
        f.supervisor.resize(2)  # worker 2 still drains: another number
        await f.until("up", 3)
        await f.until_running(2)
        f.supervisor.resize(3)
        after = await f.until("up", 4)

        numbers = [number for number, _ in after]
        assert (sorted(numbers[:2]), numbers[2:]) == (["1", "2"], ["3", "2"])  # the first two start side by side
        assert after[3][1] != before["2"]


async def test_a_fleet_that_is_stopped_cannot_grow(tmp_path: Path) -> None:
    async with fleet(tmp_path, DRAINS) as f:
        await f.until("up", 2)

        f.supervisor.stop()
        f.supervisor.resize(5)

        assert await f.end() == 0
        assert len(f.journal("up")) == 2


async def test_what_runs_beside_a_supervisor_ends_with_it(tmp_path: Path) -> None:
    ended = asyncio.Event()

    async def beside(_: Supervisor) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with fleet(tmp_path, DRAINS, beside=beside) as f:
        await f.until("up", 2)

        f.supervisor.stop()

        assert await f.end() == 0
        assert ended.is_set()


async def test_an_app_that_cannot_start_ends_the_supervisor_with_the_workers_code(tmp_path: Path) -> None:
    async with fleet(tmp_path, FAILS) as f:
        assert await f.end() == 7


async def test_a_worker_that_cannot_start_ends_no_other_one_and_is_tried_again(tmp_path: Path, caplog) -> None:
    async with fleet(tmp_path, ONE_IS_BAD) as f:
        up = await f.until("up", 1)
        await f.until("bad", 2)

        assert f.supervisor.running[1] == up[0][1]
        assert f.supervisor.problems() == ("worker 2 cannot start: there is no module 'shop'",)
        f.supervisor.stop()
        await f.end()
    assert "worker 2 cannot start (there is no module 'shop') after" in caplog.text


async def test_a_worker_that_dies_without_a_word_is_no_reason_to_end_the_others(tmp_path: Path) -> None:
    """Its first record ended the process, before it could even say that it runs."""
    async with fleet(tmp_path, DIES) as f:
        await f.until("up", 3)

        await f.until_running(2)


async def test_a_terminal_that_is_closed_drains_all_workers(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored, and that is heeded
    try:
        async with fleet(tmp_path, DRAINS) as f:
            await f.until("up", 2)

            os.kill(os.getpid(), signal.SIGHUP)

            assert await f.end() == 0
            assert len(f.journal("drained")) == 2
    finally:
        signal.signal(signal.SIGHUP, before)


async def test_a_worker_is_given_the_supervisors_arguments_without_what_is_the_supervisors() -> None:
    arguments = ["worker", "shop:app", "--procs", "4", "-c", "8", "--procs=2", "--web-port=1", "--web-bind", "0.0.0.0"]

    assert worker_command(arguments)[3:] == ["worker", "shop:app", "-c", "8"]
