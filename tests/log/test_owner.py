"""One holder for a path, named to everybody else."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path

import orjson
import pytest

from flowshare.clock import LoopClock
from flowshare.log import embedded
from flowshare.log.base import StorageDamaged, StorageError, StorageHeld
from flowshare.log.embedded import EmbeddedStorage
from flowshare.log.owner import BEAT_S, DOUBT_S, OWNER_FILE, WORKERS_DIRECTORY, OwnerLock, PathOwner, read_owner
from flowshare.testing.clock import ManualClock, settle
from tests.log.places import content, opened
from tests.waiting import LIMIT_S, until

ROOT = Path(__file__).parents[2]


def test_a_second_opening_in_the_same_process_names_the_holder(tmp_path):
    lock = OwnerLock(tmp_path, now_ms=1_700_000_000_000)
    lock.set_listener("here:9")

    with pytest.raises(StorageHeld, match=r"process \d+ on .* since 2023-11-14T22:13:20\+00:00, listening on here:9"):
        OwnerLock(tmp_path, now_ms=0)

    assert read_owner(tmp_path) == lock.owner
    lock.release()
    OwnerLock(tmp_path, now_ms=0).release()
    assert not (tmp_path / OWNER_FILE).exists()


def test_a_stale_owner_file_is_no_obstacle_and_garbage_in_it_neither(tmp_path):
    tmp_path.joinpath(OWNER_FILE).write_bytes(orjson.dumps({"pid": 1, "since_ms": 5, "host": "gone"}))
    assert read_owner(tmp_path) == PathOwner(pid=1, since_ms=5, host="gone")
    lock = OwnerLock(tmp_path, now_ms=0)
    assert lock.before == PathOwner(pid=1, since_ms=5, host="gone")
    lock.release()
    tmp_path.joinpath(OWNER_FILE).write_bytes(b"{")
    assert read_owner(tmp_path) is None
    OwnerLock(tmp_path, now_ms=0).release()


def test_another_process_is_kept_out_and_told_who_holds_the_path(tmp_path):
    program = """
import asyncio, sys
from flowshare.clock import LoopClock
from flowshare.log.embedded import EmbeddedStorage
asyncio.run(EmbeddedStorage.open(sys.argv[1], clock=LoopClock()))
"""

    async def body() -> str:
        storage = await EmbeddedStorage.open(tmp_path, clock=LoopClock())
        await storage.set_listener("127.0.0.1:9")
        command = [sys.executable, "-c", program, str(tmp_path)]
        run = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, capture_output=True, text=True, check=False)
        owner = storage._lock.owner
        await storage.close()
        return f"StorageHeld: {tmp_path} is held by {owner}" if run.returncode and str(owner) in run.stderr else ""

    assert "listening on 127.0.0.1:9" in asyncio.run(body())


def test_a_path_that_is_a_file_is_refused_with_its_name(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(StorageError, match="file cannot be used"):
        opened(file, content)


def test_a_closed_storage_can_be_opened_again_in_the_same_process(tmp_path):
    async def make(storage) -> None:
        await storage.create_topic("t")

    opened(tmp_path, make)
    assert opened(tmp_path, content) == (0, 0)


def test_an_opening_that_fails_after_it_was_given_up_lets_go_of_the_path(tmp_path, monkeypatch):
    begun, fail = threading.Event(), threading.Event()

    def damaged(path: Path, *, fsync: bool) -> None:
        begun.set()
        assert fail.wait(LIMIT_S)
        raise StorageDamaged("found out late")

    async def body() -> None:
        opening = asyncio.create_task(EmbeddedStorage.open(tmp_path, clock=LoopClock()))
        await asyncio.to_thread(begun.wait, LIMIT_S)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        fail.set()

        def free() -> bool:
            try:
                OwnerLock(tmp_path, now_ms=0).release()
            except StorageHeld:
                return False
            return True

        await until(free, limit_s=5)

    monkeypatch.setattr(embedded, "RocksStore", damaged)
    asyncio.run(body())


@pytest.mark.parametrize("below", ["", "below"])
def test_a_file_as_path_says_to_name_a_directory(tmp_path, below):
    file = tmp_path / "file"
    file.write_text("x")

    with pytest.raises(StorageError, match=rf"{file} is a file; name a directory in the broker URL"):
        OwnerLock(file / below, now_ms=0)


@pytest.mark.parametrize("below", ["", "below"])
def test_a_name_that_is_too_long_says_to_name_a_shorter_path(tmp_path, below):
    place = tmp_path / ("x" * 300) / below

    with pytest.raises(StorageError, match=rf"{place} cannot be used .*: File name too long; name a shorter path"):
        OwnerLock(place, now_ms=0)


def test_a_directory_of_others_is_not_written_into(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")

    with pytest.raises(StorageError, match=r"holds other files \(thesis.tex\) and no storage: name a new or empty"):
        OwnerLock(tmp_path, now_ms=0)

    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


def test_what_workers_left_of_themselves_is_no_foreign_directory(tmp_path):
    (tmp_path / WORKERS_DIRECTORY).mkdir()

    OwnerLock(tmp_path, now_ms=0).release()


def test_the_root_of_a_disk_of_its_own_is_empty_enough(tmp_path):
    (tmp_path / "lost+found").mkdir()
    (tmp_path / ".keep").touch()

    OwnerLock(tmp_path, now_ms=0).release()


OTHER = PathOwner(pid=7, since_ms=5, host="another-machine", listener="127.0.0.1:9", token="t")


def name(path: Path, owner: PathOwner) -> None:
    path.joinpath(OWNER_FILE).write_bytes(orjson.dumps(asdict(owner)))


def test_a_file_system_on_which_everybody_gets_the_lock_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)

    with pytest.raises(StorageError, match="keeps no locks, so that two processes would ruin it; keep it on a local"):
        OwnerLock(tmp_path, now_ms=0)

    assert read_owner(tmp_path) is None


def test_a_file_system_without_locks_is_refused_with_its_reason(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)

    with pytest.raises(StorageError, match=r"has no locks \(No locks available\); keep it on a local disk, or mount"):
        OwnerLock(tmp_path, now_ms=0)


@pytest.mark.parametrize("lives", [True, False])
def test_a_holder_on_another_machine_that_lives_is_not_led_beside(tmp_path, lives):
    name(tmp_path, OTHER)
    tmp_path.joinpath("lock").touch()

    async def body() -> PathOwner | None:
        clock = ManualClock()
        opening = asyncio.create_task(EmbeddedStorage.open(tmp_path, clock=clock))
        while clock.next_due_s() is None:  # noqa: ASYNC110 - threads of the opening
            await asyncio.sleep(0)
        if lives:
            os.utime(tmp_path / OWNER_FILE)
        await clock.advance(DOUBT_S)
        storage = await opening
        named = read_owner(tmp_path)
        assert named == storage._lock.owner
        await storage.close()
        return named

    if lives:
        with pytest.raises(StorageError, match=r"is led by process 7 on another-machine .*, which lives: its locks do"):
            asyncio.run(body())
        assert read_owner(tmp_path) == OTHER
    else:
        assert asyncio.run(body()) is not None


def test_a_holder_says_that_it_lives(tmp_path):
    lock = OwnerLock(tmp_path, now_ms=0)
    os.utime(tmp_path / OWNER_FILE, (0, 0))

    assert lock.beat() is None

    assert tmp_path.joinpath(OWNER_FILE).stat().st_mtime > 0
    lock.release()


def test_a_name_that_somebody_removed_is_written_again(tmp_path):
    lock = OwnerLock(tmp_path, now_ms=0)
    tmp_path.joinpath(OWNER_FILE).unlink()

    assert lock.beat() is None
    assert read_owner(tmp_path) == lock.owner
    lock.release()


async def lost(storage, clock):
    """The holder finds out at its next beat; the one before may be on its way to a slow disk still."""
    while not storage.lost.is_set():
        await clock.advance(BEAT_S)
    await settle()


def test_a_holder_that_finds_another_s_name_writes_nothing_more_and_leaves_it_there(tmp_path):
    async def body() -> None:
        clock = ManualClock()
        storage = await EmbeddedStorage.open(tmp_path, clock=clock)
        await storage.write([(b"before", b"1")])
        name(tmp_path, OTHER)
        await lost(storage, clock)

        with pytest.raises(StorageError, match="was taken by process 7 on another-machine"):
            await storage.write([(b"after", b"1")])
        assert await storage.scan(b"before")
        await storage.close()

    asyncio.run(body())
    assert read_owner(tmp_path) == OTHER


@pytest.mark.parametrize("gone", ["removed", "replaced", "emptied"])
def test_a_holder_whose_path_is_gone_writes_nothing_more(tmp_path, gone):
    path = tmp_path / "path"

    async def body() -> None:
        clock = ManualClock()
        storage = await EmbeddedStorage.open(path, clock=clock)
        await storage.write([(b"before", b"1")])
        await clock.advance(BEAT_S)
        assert not storage.lost.is_set()

        if gone == "emptied":
            (path / "store").rename(tmp_path / "elsewhere")
        else:
            path.rename(tmp_path / "elsewhere")
        if gone == "replaced":
            path.mkdir(mode=0o700)
        await lost(storage, clock)

        with pytest.raises(StorageError, match="was removed or replaced while this process worked on it"):
            await storage.write([(b"after", b"1")])
        await storage.close()

    asyncio.run(body())


@pytest.mark.parametrize("number", [errno.EROFS, errno.EIO])
def test_a_name_that_cannot_be_taken_away_keeps_nobody_from_letting_go(tmp_path, monkeypatch, number):
    lock = OwnerLock(tmp_path, now_ms=0)

    def refuse(name: str) -> None:
        raise OSError(number, os.strerror(number), name)

    monkeypatch.setattr(lock.folder, "remove", refuse)
    lock.release()

    assert read_owner(tmp_path) == lock.owner
    OwnerLock(tmp_path, now_ms=0).release()


def test_a_disk_that_is_read_only_says_so(tmp_path, monkeypatch):
    def refuse(*_args: object, **_more: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StorageError, match="Read-only file system; mount it for writing, or name another directory"):
        OwnerLock(tmp_path, now_ms=0)
