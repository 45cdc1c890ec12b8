"""A directory that is this user's alone: made so, made so again, or refused."""

from __future__ import annotations

import logging
import os
import shutil
import stat
import tempfile
from pathlib import Path

import pytest

from flowshare.backend.path_workers import Registration, running_workers
from flowshare.log.base import StorageError
from flowshare.log.folder import NotPrivate, OwnFolder, make_private, open_private, place_of
from flowshare.log.owner import LOCK_FILE, OWNER_FILE, OwnerLock, read_owner
from tests.log.places import opened

NOBODY = 65_534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make what belongs to others")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture
def open_umask():
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o277])
def test_what_is_made_is_this_user_s_alone_whatever_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        lock = OwnerLock(tmp_path / "data" / "shop", now_ms=0)
        Registration(tmp_path / "data" / "shop", address="127.0.0.1:1", now_ms=0)
        make_private(tmp_path / "state" / "app")
    finally:
        os.umask(before)

    made = [path for below in ("data", "state") for path in (tmp_path / below, *(tmp_path / below).rglob("*"))]
    assert {mode(path) for path in made if path.is_dir()} == {0o700}
    assert {mode(path) for path in made if path.is_file()} == {0o600}
    assert len(made) == 8
    lock.release()


def test_a_storage_s_own_files_and_its_store_are_closed_to_others(tmp_path, open_umask):
    async def nothing(storage) -> None:
        del storage

    opened(tmp_path / "shop", nothing)

    assert mode(tmp_path / "shop" / "store") == 0o700
    assert mode(tmp_path / "shop" / "confirmed") == 0o600


def acls(path: Path) -> bool:
    """True if the file system has ACLs."""
    probe = OwnFolder.own(path / "probe")
    try:
        return bool(os.listxattr(probe.path))
    finally:
        probe.close()


def test_what_the_store_makes_is_closed_to_others_and_what_it_made_before(tmp_path, open_umask):
    if not acls(tmp_path):
        pytest.skip("the file system has no ACLs")

    async def write(storage) -> None:
        await storage.create_topic("orders")

    async def nothing(storage) -> None:
        del storage

    opened(tmp_path / "log", write)
    left = tmp_path / "log" / "store" / "left"
    left.write_bytes(b"by a process of before")
    left.chmod(0o644)
    opened(tmp_path / "log", nothing)
    made = [path for path in (tmp_path / "log").rglob("*") if path.is_file()]
    assert {mode(path) for path in made} == {0o600}
    assert len(made) > 8


def test_a_directory_that_others_may_read_is_closed_to_them_with_one_line(tmp_path, caplog):
    shop = tmp_path / "shop"
    shop.mkdir()
    shop.chmod(0o755)
    (shop / LOCK_FILE).touch(mode=0o644)

    with caplog.at_level(logging.WARNING):
        OwnerLock(shop, now_ms=0).release()
        OwnerLock(shop, now_ms=0).release()

    assert [record.getMessage() for record in caplog.records] == [
        f"{shop} was open to other users of this machine (mode 0755); it is 0700 now"
    ]
    assert (mode(shop), mode(shop / LOCK_FILE)) == (0o700, 0o600)


def test_a_mistyped_path_is_refused_before_its_rights_are_changed(tmp_path):
    tmp_path.chmod(0o755)
    (tmp_path / "thesis.tex").touch()

    with pytest.raises(StorageError, match="holds other files"):
        OwnerLock(tmp_path, now_ms=0)

    assert mode(tmp_path) == 0o755


def test_a_link_in_the_place_of_the_directory_is_refused(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "shop").symlink_to(tmp_path / "there")

    with pytest.raises(NotPrivate, match=rf"shop is a symbolic link: name the directory itself \({tmp_path}/there\)"):
        OwnerLock(tmp_path / "shop", now_ms=0)

    assert list((tmp_path / "there").iterdir()) == []


@pytest.mark.parametrize("name", [LOCK_FILE, "confirmed", "store"])
def test_a_link_in_the_place_of_what_is_written_to_is_refused(tmp_path, name):
    shop, target = tmp_path / "shop", tmp_path / "target"
    shop.mkdir()
    target.mkdir() if name == "store" else target.write_text("precious")
    (shop / LOCK_FILE).touch()
    (shop / name).unlink(missing_ok=True)
    (shop / name).symlink_to(target)

    async def nothing(storage) -> None:
        del storage

    with pytest.raises(NotPrivate, match=f"{shop / name} is a symbolic link"):
        opened(shop, nothing)

    assert list(target.iterdir()) == [] if name == "store" else target.read_text() == "precious"


def test_a_prepared_link_does_not_have_owner_json_written_into_its_target(tmp_path):
    shop, target = tmp_path / "shop", tmp_path / "target"
    shop.mkdir()
    target.write_text("precious")
    for name in (OWNER_FILE, f"{OWNER_FILE}.new"):
        (shop / name).symlink_to(target)

    lock = OwnerLock(shop, now_ms=0)

    assert target.read_text() == "precious"
    assert read_owner(shop) == lock.owner
    lock.release()


def test_a_prepared_link_has_no_worker_s_file_written_through_or_removed_behind_it(tmp_path):
    shop, target = tmp_path / "shop", tmp_path / "target"
    (shop / "workers").mkdir(parents=True)
    target.mkdir()
    (target / "settings.json").write_text("{}")
    (shop / "workers" / f"{os.getpid()}.new").symlink_to(target / "settings.json")

    with pytest.raises(NotPrivate, match="is a symbolic link"):
        Registration(shop, address="127.0.0.1:1", now_ms=0)
    shutil.rmtree(shop / "workers")
    (shop / "workers").symlink_to(target)

    assert running_workers(shop) == []
    assert (target / "settings.json").read_text() == "{}"


def test_a_file_with_a_second_name_is_not_closed_to_others_under_that_name(tmp_path):
    (tmp_path / "passwd").touch(mode=0o644)
    (tmp_path / "passwd").chmod(0o644)
    os.link(tmp_path / "passwd", tmp_path / "lock")

    with pytest.raises(NotPrivate, match="has a second name"):
        open_private(tmp_path / "lock", os.O_RDWR)

    assert mode(tmp_path / "passwd") == 0o644


def test_a_pipe_in_the_place_of_a_file_holds_nobody(tmp_path):
    os.mkfifo(tmp_path / "lock")

    with pytest.raises(NotPrivate, match="is no file: remove it"):
        open_private(tmp_path / "lock", os.O_RDWR | os.O_CREAT)


def test_a_directory_that_others_are_meant_to_use_gets_a_folder_of_our_own(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "letter").touch()

    lock = OwnerLock(shared, now_ms=0)

    assert lock.path == shared / f"flowshare-{os.geteuid()}" == place_of(shared)
    assert (mode(shared), mode(lock.path)) == (0o1777, 0o700)
    assert read_owner(shared) == lock.owner
    lock.release()


def test_a_storage_in_a_directory_of_all_is_not_begun_anew_beside_it(tmp_path):
    tmp_path.chmod(0o1777)
    (tmp_path / "store").mkdir()
    (tmp_path / "lock").touch()

    with pytest.raises(NotPrivate, match=rf"move what is in it into {place_of(tmp_path)}"):
        OwnerLock(tmp_path, now_ms=0)


def test_a_parent_in_which_all_may_rename_is_warned_of(tmp_path, caplog):
    tmp_path.chmod(0o777)

    with caplog.at_level(logging.WARNING):
        OwnFolder.own(tmp_path / "shop").close()

    assert f"may put another directory in the place of {tmp_path}/shop: take the right away" in caplog.text


@as_root
def test_a_directory_of_another_user_is_refused(tmp_path):
    (tmp_path / "shop").mkdir()
    os.chown(tmp_path / "shop", NOBODY, NOBODY)

    with pytest.raises(NotPrivate, match=rf"belongs to another user \(uid {NOBODY}, this process is uid 0\): run as"):
        OwnerLock(tmp_path / "shop", now_ms=0)

    assert list((tmp_path / "shop").iterdir()) == []


@as_root
def test_a_link_of_another_user_on_the_way_is_refused(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "way").symlink_to(tmp_path / "there")
    OwnFolder.own(tmp_path / "way" / "one").close()
    os.chown(tmp_path / "way", NOBODY, NOBODY, follow_symlinks=False)

    with pytest.raises(NotPrivate, match=rf"{tmp_path}/way, on the way to .*two, is a symbolic link of another user"):
        OwnFolder.own(tmp_path / "way" / "two")


@as_root
def test_in_a_mount_that_root_owns_another_user_has_a_folder_of_its_own():
    mount = Path(tempfile.mkdtemp())
    reading, writing = os.pipe()
    try:
        mount.chmod(0o777)
        child = os.fork()
        if child == 0:
            try:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
                os.write(writing, str(OwnerLock(mount, now_ms=0).path).encode())
            except BaseException as error:  # noqa: BLE001 - it has to leave this process's copy, and say why
                os.write(writing, repr(error).encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)

        assert os.read(reading, 4096).decode() == str(mount / f"flowshare-{NOBODY}")
        found = (mount / f"flowshare-{NOBODY}").stat()
        assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (NOBODY, 0o700)
    finally:
        os.close(reading)
        os.close(writing)
        shutil.rmtree(mount)


@as_root
def test_a_path_below_a_closed_directory_of_another_user_names_the_path_and_what_to_do(tmp_path):
    place = tmp_path / "closed" / "shop" / "data"
    tmp_path.joinpath("closed").mkdir(mode=0o700)
    reading, writing = os.pipe()
    try:
        child = os.fork()
        if child == 0:
            try:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
                OwnerLock(place, now_ms=0)
            except BaseException as error:  # noqa: BLE001 - it has to leave this process's copy, and say why
                os.write(writing, repr(error).encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)

        assert os.read(reading, 4096).decode() == (
            f"StorageError('{place} cannot be used as a storage: Permission denied; give this user the right to write "
            "there, or name another directory in the broker URL')"
        )
    finally:
        os.close(reading)
        os.close(writing)
