"""`flowshare top`: plain lines in a pipe; on a terminal a screen that keys move, and that outlives its broker."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import struct
import sys
import termios
from types import SimpleNamespace

import pytest

from flowshare.cli import worker_pages
from flowshare.cli.top import STYLES, Looks, _drawn, _Top
from flowshare.cli.top_view import Line, Screen
from flowshare.client.errors import NotConnected
from flowshare.clock import LoopClock
from flowshare.ops import stall_reason
from flowshare.ops.figures import Holder
from flowshare.ops.in_hand import AgentReport
from tests.cli.test_commands import Shell, member_of


@pytest.fixture
def shell(capsys, monkeypatch):
    monkeypatch.setattr("flowshare.cli.top.SAMPLE_S", 0.01)
    return Shell(capsys, monkeypatch)


def group_with_backlog(shell, name="g1"):
    shell("topics", "create", "orders")
    shell.beside(member_of(name, "orders"))
    shell("groups", "reset-offsets", name, "--to-earliest", "--execute")


def test_in_a_pipe_it_prints_the_groups_once(shell):
    group_with_backlog(shell)

    heading, line = shell("top").splitlines()
    assert heading.split()[:4] == ["GROUP", "KIND", "STATE", "MEMBERS"]
    assert line.split()[:5] == ["g1", "share", "empty", "0", "3"]
    assert line.endswith("no members: nobody takes the 3 unfinished records")
    [row] = shell.json("top")
    assert (row["group"], row["backlog"], row["members"], row["paused"]) == ("g1", 3, 0, False)


def test_without_groups_it_says_so(shell):
    assert shell.json("top") == []
    assert "there are no share or cooperative groups" in shell.both("top")


def test_workers_are_asked_what_they_hold_while_a_group_stands_still(shell, monkeypatch):
    group_with_backlog(shell)
    asked = []
    holder = Holder(member="worker 4711", records=3, oldest_s=40.0)

    class Told:
        known = True

        async def in_hand(self):
            asked.append(1)
            return worker_pages.Told({"4711": IN_HAND})

        def close(self):
            asked.append("closed")

    monkeypatch.setattr(worker_pages, "Workers", lambda *_: Told())
    facts = []
    monkeypatch.setattr(stall_reason, "stall_reason", lambda one: facts.append(one) or "it stands")
    assert shell.json("top")[0]["why"] == "it stands"
    assert asked == [1, 1, "closed"], "once a look"
    assert (facts[-1].holders, facts[-1].error) == ((holder,), "ValueError: no stock")


IN_HAND = [AgentReport("g1", held=3, oldest_s=40.0, exception="ValueError", message="no stock", raised_s=2.0)]


class FakeSession:
    """A `KeptSession` on a log in memory, whose broker goes and comes back."""

    def __init__(self, shell):
        self._shell = shell
        self._stack = contextlib.AsyncExitStack()
        self.clock = LoopClock()
        self.gone = False
        self.opened_times = 0
        self._open = None

    @contextlib.asynccontextmanager
    async def look(self):
        from flowshare.ops.session import open_session

        if self.gone:
            raise NotConnected("127.0.0.1:9092: connection refused")
        if self._open is None:
            self.opened_times += 1
            self._open = await self._stack.enter_async_context(open_session("memory://", groups=True))
        yield self._open

    async def close(self):
        self._open = None
        await self._stack.aclose()


NOBODY = SimpleNamespace(known=False)


def lives(shell, story):
    """Run `story(top, session)` beside the task that looks."""

    async def main():
        session = FakeSession(shell)
        top = _Top(Looks(session, NOBODY, 100), Screen(), 0.01)
        looking = asyncio.create_task(top.look_on())
        try:
            async with asyncio.timeout(20):
                await story(top, session)
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
            await session.close()

    asyncio.run(main())


async def shown(top, found):
    """Wait until the screen shows it."""
    while not found(top.screen):
        top.changed.clear()
        await top.changed.wait()


def test_p_pauses_the_chosen_group_after_a_question(shell):
    group_with_backlog(shell)

    async def story(top, _):
        await shown(top, lambda screen: screen.rows)
        for key in ("j", "p", "y"):
            top.press(key)
        await shown(top, lambda screen: screen.rows["g1"].paused)
        assert top.screen.note == "group g1 is paused"
        assert "it is paused" in top.screen.rows["g1"].stall
        for key in ("p", "y"):
            top.press(key)
        await shown(top, lambda screen: not screen.rows["g1"].paused)
        assert top.screen.note == "group g1 goes on"

    lives(shell, story)


def test_enter_shows_the_groups_partitions(shell):
    group_with_backlog(shell)

    async def story(top, _):
        await shown(top, lambda screen: screen.rows)
        top.press("j")
        top.press("enter")
        await shown(top, lambda screen: screen.members)
        lines = [line.text.split() for line in top.screen.lines(80, 24, 0.0)]
        assert ["orders-0", "0", "3", "0", "0", "0"] in [line[:6] for line in lines]
        top.press("q")
        assert top.ended

    lives(shell, story)


def test_a_broker_that_goes_and_comes_back_is_told_and_looked_at_again(shell):
    group_with_backlog(shell)

    async def story(top, session):
        await shown(top, lambda screen: screen.rows)
        session.gone = True
        await session.close()
        await shown(top, lambda screen: screen.trouble)
        assert "connection refused" in top.screen.trouble
        assert top.screen.rows["g1"].total.backlog == 3
        session.gone = False
        await shown(top, lambda screen: not screen.trouble)
        assert session.opened_times == 2

    lives(shell, story)


def test_lines_are_drawn_in_styles_and_never_as_markup():
    lines = [Line("[red]x[/red]", style) for style in STYLES]

    assert _drawn(lines).plain.splitlines() == ["[red]x[/red]"] * len(STYLES)


@pytest.mark.slow
def test_on_a_terminal_it_draws_follows_keys_and_leaves_the_terminal_as_it_was(tmp_path):
    args = [sys.executable, "-m", "flowshare.cli", "topics", "create", "t", "--broker", f"embedded://{tmp_path}/data"]
    assert os.spawnv(os.P_WAIT, sys.executable, args) == 0
    args = [sys.executable, "-m", "flowshare.cli", "top", "--broker", f"embedded://{tmp_path}/data", "--interval", "1"]
    pid, fd = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm-256color", NO_COLOR="1")
        os.execv(sys.executable, args)
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    seen = b""
    try:
        while b"there are no share or cooperative groups" not in seen:
            seen += os.read(fd, 65_536)
        os.write(fd, b"s")
        while b"by backlog" not in seen:
            seen += os.read(fd, 65_536)
        os.write(fd, b"q")
        with contextlib.suppress(OSError):  # the child has closed its end
            while more := os.read(fd, 65_536):
                seen += more
    finally:
        _, status = os.waitpid(pid, 0)
        os.close(fd)

    assert os.waitstatus_to_exitcode(status) == 0
    assert b"\x1b[?1049h" in seen
    assert seen.rstrip().endswith((b"\x1b[?25h", b"\x1b[?1049l"))
    assert b"\x1b[33m" not in seen, "NO_COLOR"
