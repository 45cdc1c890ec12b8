"""Damaged stores are refused with a clear text and left alone; what a crash leaves behind opens."""

from __future__ import annotations

import shutil

import pytest

from flowshare.log import damage, keys
from flowshare.log.base import CorruptBatches, StorageDamaged
from flowshare.log.embedded import EmbeddedStorage
from flowshare.log.recent import Tail
from flowshare.log.store import MARKER_FILE
from tests.log.contract import batch
from tests.log.places import content, files, fill, flip, killed, only, opened, wal_records

TOTAL = 500


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    return killed(tmp_path_factory.mktemp("pristine") / "storage")


@pytest.fixture
def place(pristine, tmp_path):
    return shutil.copytree(pristine, tmp_path / "storage")


def assert_refused(path, match: str = ".") -> None:
    before = files(path)
    with pytest.raises(StorageDamaged, match=match) as caught:
        opened(path, content)
    assert len(str(caught.value)) > 20
    assert files(path) == before


def test_what_a_killed_process_left_opens_with_all_of_it(place):
    assert opened(place, content) == (TOTAL, TOTAL)
    assert opened(place, content) == (TOTAL, TOTAL)


def test_a_flipped_bit_anywhere_in_the_write_ahead_log_is_refused(place):
    log = only(place, "*.log")
    original, size = log.read_bytes(), log.stat().st_size
    positions = {0, 3, 6, 7, size - 1, size // 2, *range(0, size, size // 23)}
    for position in sorted(positions):
        flip(log, position)
        assert_refused(place)
        log.write_bytes(original)


@pytest.mark.parametrize("field", [0, 4, 5, 6])
@pytest.mark.parametrize("mask", [0x01, 0x04, 0x40, 0x80])
def test_a_flip_in_the_header_of_a_late_record_is_refused(place, field, mask):
    """The length decides where the log ends, and RocksDB hangs on some types."""
    log = only(place, "*.log")
    position, _ = wal_records(log)[-8]
    flip(log, position + field, mask)
    assert_refused(place)


@pytest.mark.parametrize("cut", [1, 5, 200, 5_000, 40_000])
def test_a_write_ahead_log_shorter_than_what_was_confirmed_is_refused(place, cut):
    log = only(place, "*.log")
    log.write_bytes(log.read_bytes()[:-cut])
    assert_refused(place, "were confirmed")


def test_a_missing_write_ahead_log_is_refused(place):
    only(place, "*.log").unlink()
    assert_refused(place, "were confirmed")


def test_a_hole_between_two_write_ahead_logs_is_refused(place):
    log = only(place, "*.log")
    records, whole = wal_records(log), log.read_bytes()
    first_block_end = next(position for position, _ in records if position > 20_000)
    younger = log.with_name(f"{int(log.stem) + 100:06d}.log")
    later = [(p, n) for p, n in records if p > first_block_end + 300 and p // 32768 == (p + n + 7) // 32768]
    younger.write_bytes(whole[later[0][0] : later[0][0] + 7 + later[0][1]])
    log.write_bytes(whole[:first_block_end])
    assert_refused(place, "lacks writes")


def test_a_flipped_bit_anywhere_in_a_sorted_file_is_refused(place):
    file = only(place, "*.sst")
    original, size = file.read_bytes(), file.stat().st_size
    for position in sorted({0, size - 1, size - 30, *range(5, size, size // 23)}):
        flip(file, position)
        assert_refused(place)
        file.write_bytes(original)


@pytest.mark.parametrize("pattern", ["*.sst", "MANIFEST-*", "CURRENT"])
def test_a_missing_file_is_refused_by_name(place, pattern):
    file = only(place, pattern)
    file.unlink()
    assert_refused(place, "CURRENT" if pattern == "CURRENT" else file.name)


def test_a_store_directory_that_is_gone_is_refused(place):
    shutil.rmtree(place / "store")
    assert_refused(place, "CURRENT")
    assert not (place / "store").exists()


def test_a_flipped_bit_in_the_manifest_is_refused(place):
    file = only(place, "MANIFEST-*")
    original = file.read_bytes()
    for position in range(0, len(original), max(1, len(original) // 20)):
        flip(file, position)
        assert_refused(place)
        file.write_bytes(original)


def test_a_missing_or_unreadable_marker_is_refused(place):
    original = (place / MARKER_FILE).read_bytes()
    (place / MARKER_FILE).write_bytes(bytes(len(original)))
    assert_refused(place, "marker of confirmed writes cannot be read. Nothing was changed; restore a backup")
    (place / MARKER_FILE).unlink()
    assert_refused(place, "missing")


def test_one_torn_slot_of_the_marker_leaves_the_other(place):
    slots = damage.Marker.load(place / MARKER_FILE)
    newest = slots._turn % damage.SLOTS
    slots.close()
    flip(place / MARKER_FILE, newest * damage.SLOT_BYTES + 20)
    assert opened(place, content) == (TOTAL, TOTAL)


@pytest.mark.parametrize("part", [0.02, 0.5, 0.98])
def test_a_torn_last_record_opens_without_it(tmp_path, part):
    path, live = tmp_path / "storage", tmp_path / "live"

    async def body(storage) -> None:
        await storage.create_topic("t")
        await fill(storage, 1, 50)
        shutil.copytree(live, path)
        await storage.write([(b"s-late", b"x" * 3000)])
        whole = only(live, "*.log").read_bytes()
        log = only(path, "*.log")
        kept = log.stat().st_size
        log.write_bytes(whole[: kept + max(1, int((len(whole) - kept) * part))])

    opened(live, body)
    assert opened(path, content) == (50, 50)


def test_after_a_restart_of_the_machine_only_what_was_synced_must_be_there(place, monkeypatch):
    log = only(place, "*.log")
    log.write_bytes(log.read_bytes()[:-5000])
    monkeypatch.setattr(damage, "boot_id", lambda: b"another")

    records, entries = opened(place, content)

    assert TOTAL - 60 < records < TOTAL
    assert TOTAL - 60 < entries < TOTAL


def test_with_fsync_a_cut_log_is_noticed_after_a_restart_of_the_machine_too(tmp_path, monkeypatch):
    path = killed(tmp_path / "storage", sorted_part=20, logged_part=20, fsync=True)
    log = only(path, "*.log")
    log.write_bytes(log.read_bytes()[:-5])
    monkeypatch.setattr(damage, "boot_id", lambda: b"another")
    assert_refused(path, "were confirmed")


def test_damage_in_a_large_batch_is_noticed_when_it_is_read_at_the_latest(tmp_path):
    path = killed(tmp_path / "storage", sorted_part=20, logged_part=20, large=True)
    blob = only(path, "*.blob")
    flip(blob, blob.stat().st_size // 2)
    assert_refused(path)


def test_a_missing_blob_file_is_refused(tmp_path):
    path = killed(tmp_path / "storage", sorted_part=20, logged_part=20, large=True)
    only(path, "*.blob").unlink()
    assert_refused(path)


def test_what_lies_before_and_behind_a_damaged_batch_can_be_read(tmp_path):
    async def body(storage: EmbeddedStorage) -> None:
        topic = await storage.create_topic("t")
        for _ in range(4):
            await storage.append("t", 0, batch(1))
        log = storage._partition("t", 0)
        log.tail = Tail()  # as after a while: older batches are read from the store
        storage._store._db.put(keys.at(keys.batches(topic.topic_id, 0), 2), b"no batch")

        async def read(offset: int) -> list[int]:
            found = await storage.read("t", 0, offset, max_bytes=1 << 20)
            return [one.first for one in found.batches]

        assert await read(0) == [0, 1]
        with pytest.raises(CorruptBatches, match="stored at offset 2 is damaged"):
            await read(2)
        assert await read(3) == [3]

    opened(tmp_path / "storage", body)
