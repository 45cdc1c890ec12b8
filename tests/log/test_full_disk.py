"""A storage whose disk is full when it is opened is read, says so, refuses writes, and goes on when there is room."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from pathlib import Path

import orjson
import pytest

from flowshare.backoff import Backoff
from flowshare.clock import LoopClock
from flowshare.log import commits, folder
from flowshare.log.base import StorageFull, no_room
from flowshare.log.owner import OWNER_FILE, OwnerLock, read_owner
from flowshare.log.store import RocksStore
from flowshare.server.runtime.coordinator import Damage
from flowshare.server.security.users import Users
from flowshare.server.server import Server, cluster_id
from flowshare.server.share.group_configs import GroupConfigs
from flowshare.share.config import ServerConfig
from tests.disks import fill, resize, small_disk
from tests.log.contract import batch
from tests.log.places import content, files, killed, opened, until_writable
from tests.waiting import until

FULL = "IO error: No space left on device: While appending to file: 000010.blob: No space left on device"


class Disk:
    """Fails as a disk without room does, while `full`."""

    def __init__(self, monkeypatch) -> None:
        self.full = True
        open_db, write_bytes, write_all = RocksStore._open_db, Path.write_bytes, folder._write_all

        def opening(store, options, *, read_only=False):
            if self.full and not read_only:
                raise Exception(FULL)
            return open_db(store, options, read_only=read_only)

        def writing(write):
            def refused(where, data):
                if not self.full:
                    return write(where, data)
                if isinstance(where, Path):
                    where.touch()
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            return refused

        monkeypatch.setattr(RocksStore, "_open_db", opening)
        monkeypatch.setattr(Path, "write_bytes", writing(write_bytes))
        monkeypatch.setattr(folder, "_write_all", writing(write_all))
        monkeypatch.setattr(commits, "USUAL", Backoff(0.005, 5.0))


@pytest.fixture
def path(tmp_path):
    """A storage as after kill -9, with records and state, partly in the write-ahead log."""
    return killed(tmp_path / "shop", sorted_part=2, logged_part=3)


@pytest.fixture
def disk(path, monkeypatch):
    """It is full."""
    return Disk(monkeypatch)


def test_a_storage_on_a_full_disk_is_read_and_refuses_writes_until_there_is_room(path, disk, caplog):
    async def body(storage) -> None:
        assert await content(storage) == (5, 5)
        for write in (storage.append("t", 0, batch(1)), storage.create_topic("u"), storage.write([(b"s", b"x")])):
            with pytest.raises(StorageFull, match="make room on that disk, and writing goes on by itself"):
                await write
        said = [record for record in caplog.records if record.levelname == "ERROR"]
        assert len(said) == 1
        assert "nothing can be written, the storage is read only" in said[0].getMessage()
        assert "make room on that disk" in said[0].getMessage()
        disk.full = False
        await until_writable(storage)
        assert (await storage.append("t", 0, batch(1))).base_offset == 5
        await until(lambda: read_owner(path) == storage._lock.owner)  # a thread writes it

    opened(path, body)
    assert opened(path, content) == (6, 5)


def test_opening_and_closing_on_a_full_disk_changes_nothing_that_is_stored(path, disk):
    before = files(path)
    for _ in range(3):
        assert opened(path, content) == (5, 5)

    assert {name: data for name, data in files(path).items() if name in before} == before
    disk.full = False
    assert opened(path, content) == (5, 5)


def test_without_room_for_the_write_ahead_log_nothing_is_tried(path, monkeypatch):
    """An opening for writing would begin writes that take the last of the room."""
    tried = []
    open_db = RocksStore._open_db

    def opening(store, options, *, read_only=False):
        tried.append(read_only)
        return open_db(store, options, read_only=read_only)

    room = os.statvfs(path)
    monkeypatch.setattr(RocksStore, "_open_db", opening)
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result((*room[:4], 0, *room[5:])))

    assert opened(path, content) == (5, 5)
    assert tried == [True, True]


def test_a_new_storage_on_a_full_disk_is_refused_with_what_to_do(tmp_path, path, disk):
    with pytest.raises(StorageFull, match="make room on that disk, and writing goes on by itself when 64 MiB are free"):
        opened(tmp_path / "new", content)


def test_a_server_starts_on_a_full_disk(path, disk):
    async def body(storage) -> None:
        server = Server(storage=storage, config=ServerConfig.embedded({}), clock=LoopClock())
        await server.start()
        assert await cluster_id(storage)
        users = Users(storage)
        await users.start(os.urandom)
        assert set(server.topics) == {"t"}
        await server.close()

    opened(path, body)


def test_settings_that_a_group_has_already_are_no_write(path, disk):
    """A worker that starts says its agents' settings each time; on a full disk it waits for room instead of ending."""

    async def body(storage) -> None:
        configs = GroupConfigs(storage, ServerConfig.embedded({}), Damage())
        configs.take_up([(b"c/g", orjson.dumps({"share.auto.offset.reset": "earliest"}))])

        await configs.alter("g", {"share.auto.offset.reset": "earliest"}, validate_only=False)
        await configs.alter("h", {"share.auto.offset.reset": None}, validate_only=False)
        with pytest.raises(StorageFull):
            await configs.alter("g", {"share.auto.offset.reset": "latest"}, validate_only=False)

    opened(path, body)


def test_offsets_of_topics_that_are_gone_do_not_keep_a_server_on_a_full_disk_from_starting(path, disk, caplog):
    from flowshare.core_errors import CoordinatorNotAvailable

    async def body(storage) -> None:
        server = Server(storage=storage, config=ServerConfig.embedded({}), clock=LoopClock())

        async def refused(_):
            raise CoordinatorNotAvailable("offsets of group g could not be written")

        server.classic._forget_topics = refused
        await server.start()
        await server.close()

    opened(path, body)
    assert "offsets of deleted topics are left for the next start" in caplog.text


# --- the path's own files -------------------------------------------------------------------------------------------


def test_the_lock_is_held_without_room_for_the_owners_name_which_follows(tmp_path, monkeypatch, caplog):
    disk = Disk(monkeypatch)
    lock = OwnerLock(tmp_path, now_ms=0)
    lock.set_listener("here:9")

    assert lock.untold
    assert sorted(one.name for one in tmp_path.iterdir()) == ["lock"]
    assert caplog.text.count("other processes cannot join") == 1
    disk.full = False
    lock.tell()
    assert not lock.untold
    assert read_owner(tmp_path) == lock.owner
    lock.release()


def test_the_room_of_a_dead_owners_name_is_enough_for_the_next_one(tmp_path, monkeypatch):
    write_all, stale = folder._write_all, tmp_path / OWNER_FILE
    stale.write_bytes(b"{}")

    def writing(descriptor, data):
        if stale.exists():
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        return write_all(descriptor, data)

    monkeypatch.setattr(folder, "_write_all", writing)
    lock = OwnerLock(tmp_path, now_ms=0)

    assert read_owner(tmp_path) == lock.owner
    assert not lock.untold
    lock.release()


def test_a_right_that_is_missing_is_no_missing_room():
    assert no_room(OSError(errno.ENOSPC, "x"))
    assert no_room(Exception(FULL))
    assert not no_room(OSError(errno.EACCES, "No space left on device"))
    assert not no_room(Exception("IO error: Permission denied"))


# --- a disk that is really full -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_file_system_without_a_free_byte_is_read_and_written_again_when_it_grows(path, tmp_path, monkeypatch):
    monkeypatch.setattr(commits, "USUAL", Backoff(0.01, 5.0))

    async def body(storage) -> None:
        assert await content(storage) == (5, 5)
        with pytest.raises(StorageFull):
            await storage.append("t", 0, batch(1))
        await asyncio.to_thread(resize, small, "200m")
        await until_writable(storage)
        assert (await storage.append("t", 0, batch(1))).base_offset == 5

    with small_disk(tmp_path / "disk", "4m") as small:
        shutil.copytree(path, small / "shop")
        fill(small)
        opened(small / "shop", body)
        assert opened(small / "shop", content) == (6, 5)
