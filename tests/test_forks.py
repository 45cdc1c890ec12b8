"""A forked child keeps nothing that would make its dead parent look alive."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from flowshare.agents.worker.signals import Signals
from flowshare.backend.embedded import EmbeddedBackend
from flowshare.backend.path_workers import Registration, running_workers
from flowshare.clock import LoopClock
from flowshare.forks import hold_alone
from flowshare.log.base import StorageHeld
from flowshare.log.owner import OwnerLock, read_owner
from tests.waiting import until

ROOT = Path(__file__).parents[1]
LIMIT_S = 60.0
END_S = 60.0

LEADER = """
import asyncio, os, signal, sys
from flowshare.backend.embedded import EmbeddedBackend

async def main():
    backend = EmbeddedBackend(sys.argv[1])
    await backend.start()
    await backend.set_address("127.0.0.1:1")
    child = os.fork()
    if child == 0:
        signal.pause()
    print("leads" if backend.leading else "joined", child, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@contextlib.contextmanager
def forked(work):
    """A child of this process's that has done `work` and lives; its descriptors are those of a fork."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            work()
            os.write(writing, b"ready")
            signal.pause()
        except BaseException as error:  # noqa: BLE001 - it has to leave this process's copy, and say why
            os.write(writing, repr(error).encode())
        finally:
            os._exit(0)
    try:
        os.close(writing)
        assert os.read(reading, 1000) == b"ready"
        yield child
    finally:
        os.close(reading)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def nothing() -> None:
    pass


def test_a_lock_ends_with_its_holder_though_a_forked_child_lives(tmp_path: Path) -> None:
    lock = OwnerLock(tmp_path, now_ms=0)
    with forked(nothing):
        os.close(lock._file)  # as the system does for a process that was killed

        OwnerLock(tmp_path, now_ms=0).release()


def test_what_a_forked_child_lets_go_of_is_still_its_parent_s(tmp_path: Path) -> None:
    lock = OwnerLock(tmp_path, now_ms=0)
    worker = Registration(tmp_path, address="127.0.0.1:1", now_ms=0)

    def let_go() -> None:
        worker.remove()
        lock.release()

    with forked(let_go):
        assert read_owner(tmp_path) == lock.owner
        assert running_workers(tmp_path) == [worker.entry]
        with pytest.raises(StorageHeld):
            OwnerLock(tmp_path, now_ms=0)
    worker.remove()
    lock.release()


def test_another_file_that_has_the_number_by_now_stays_open_in_the_child(tmp_path: Path) -> None:
    held = os.open(tmp_path / "one", os.O_RDWR | os.O_CREAT)
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
    hold_alone(held)
    os.dup2(other, held)

    def write() -> None:
        os.write(held, b"written")

    with forked(write):
        assert (tmp_path / "other").read_bytes() == b"written"
    os.close(other)
    os.close(held)


def test_a_connection_ends_with_its_process_though_a_forked_child_lives() -> None:
    one, other = socket.socketpair()
    hold_alone(one.fileno())
    with forked(nothing):
        one.close()

        other.settimeout(END_S)
        assert other.recv(1) == b""
    other.close()


def test_a_closed_copy_in_the_child_frees_no_number_of_its_own(tmp_path: Path) -> None:
    held = os.open(tmp_path / "one", os.O_RDWR | os.O_CREAT)
    hold_alone(held)

    def look() -> None:
        fcntl.flock(os.open(tmp_path / "one", os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert os.read(held, 1) == b""  # /dev/null

    with forked(look):
        pass
    os.close(held)


def test_a_signal_to_a_forked_child_ends_the_child_and_not_its_parent() -> None:
    stopped: list[signal.Signals] = []
    shown = threading.Event()
    signals = Signals(
        on_stop=stopped.append, on_second=stopped.append, on_show=shown.set, clock=LoopClock(), on_main=stopped.append
    )
    signals.install()
    try:
        with forked(nothing) as child:
            os.kill(child, signal.SIGTERM)
            found = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        os.kill(os.getpid(), signal.SIGUSR1)  # comes behind what the child may have told

        assert shown.wait(END_S)
        assert found is not None
        assert (found.si_code, found.si_status) == (os.CLD_KILLED, signal.SIGTERM)
        assert stopped == []
    finally:
        signals.restore()


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.parametrize("joined_dies", [False, True], ids=["leader", "joined"])
async def test_another_process_takes_over_from_a_killed_one_whose_forked_child_lives(
    tmp_path: Path, joined_dies: bool
) -> None:
    shop = tmp_path / "shop"
    here = EmbeddedBackend(shop)
    if joined_dies:
        await here.start()
    running = subprocess.Popen([sys.executable, "-c", LEADER, str(shop)], cwd=ROOT, stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220
    assert running.stdout is not None
    said, child = (await asyncio.to_thread(running.stdout.readline)).split()
    try:
        assert said == ("joined" if joined_dies else "leads")
        if not joined_dies:
            await here.start()
            assert not here.leading
        address = here.bootstrap
        running.kill()
        running.wait()

        await until(lambda: here.leading and here.bootstrap is not None)
        await until(lambda: not running_workers(shop) and not _connections(here))

        os.kill(int(child), 0)
        assert here.bootstrap == address
    finally:
        running.kill()
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(child), signal.SIGKILL)
        running.stdout.close()
        await here.close()


def _connections(backend: EmbeddedBackend) -> int:
    assert backend._led is not None
    assert backend._led.listener is not None
    return backend._led.listener.connections
