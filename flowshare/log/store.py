"""The RocksDB under the embedded storage: opening, checking for damage, reading, writing, opening again after errors.

Traps of rocksdict that this module keeps from the others (all measured):
- `items()` ends silently at a damaged block: every scan here asks the iterator for its status at the end.
- `set_iterate_lower_bound` sets the upper bound.
- Opening for writing changes files, so everything is checked through a read-only opening first.
- Without CURRENT it makes a new, empty store over the old files.
- After "no space left" a store refuses writes until it is opened again; there is no call to resume.
- Opening for writing copies the write-ahead log into sorted files; without room for that it fails. Opening for reading
  needs no room.

Methods block and are called from worker threads only.
"""

from __future__ import annotations

import contextlib
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from flowshare.log import keys
from flowshare.log.base import StorageDamaged, StorageError, StorageFull, no_room
from flowshare.log.damage import Marker, check_reached, check_wal
from flowshare.log.descriptors import limit_now, store_files
from flowshare.log.owner import STORE_DIRECTORY

MARKER_FILE: Final = "confirmed"
WRITE_BUFFER_BYTES: Final = 32 * 1024 * 1024
CACHE_BYTES: Final = 32 * 1024 * 1024
BLOB_BYTES_MIN: Final = 4096
"""Batches from this size on are kept out of the sorted files, so that compaction does not copy them."""
CHECK_BYTES: Final = 64 * 1024 * 1024
"""Bytes of the newest records that are read when a store is opened, all partitions together."""
CHECK_BYTES_MIN: Final = 64 * 1024
"""Least bytes of them per partition."""
MARKER_SYNC_COMMITS: Final = 256
MAKE_ROOM: Final = "make room on that disk, and writing goes on by itself"

Write = tuple[bytes, bytes | None]
"""A put, or with None a delete."""
Range = tuple[bytes, bytes]
"""Keys to delete, half-open."""


class StoreStep(NamedTuple):
    """Ranges to delete, then writes. size: bytes in a queue (`log.commits`).

    When the step is durable, `applied` runs on the loop and listeners hear of the partitions `changed`. certain: the
    step's waiter hears of a failure only when the step is known not to be in the store.
    """

    writes: Sequence[Write]
    ranges: Sequence[Range] = ()
    size: int = 0
    applied: Callable[[], None] | None = None
    changed: Sequence[tuple[str, int]] = ()
    certain: bool = False


class Store(ABC):
    """Entries in the order of their keys: the form of a storage's records and state."""

    @abstractmethod
    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key. Raises: StorageDamaged, StorageError."""

    @abstractmethod
    def scan(self, first: bytes, end: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Yield entries from `first` up to, not including, `end`; in reverse from the last one down.

        Raises: StorageDamaged, StorageError, while iterating.
        """

    @abstractmethod
    def commit(self, steps: Iterable[StoreStep]) -> None:
        """Write all steps or none, in order. Raises: StorageError."""

    def last_before(self, first: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        """Return the entry with the greatest key in `first` ≤ key < `end`. Raises: StorageDamaged, StorageError."""
        return next(self.scan(first, end, reverse=True), None)


class RocksStore(Store):
    """A store on a disk, open until `close`. Reads may come from any thread, `commit` and `reopen` from one.

    full: the reason why the store is open for reading only, until `reopen`: the disk has no room for more.
    """

    def __init__(self, path: Path, *, fsync: bool = False) -> None:
        """Open the store, or make a new one. Raises: StorageDamaged, StorageError (StorageFull: no room for a new
        one)."""
        self._directory = path / STORE_DIRECTORY
        self._fsync = fsync
        self._turn = threading.Condition()
        self._readers = 0
        self._options = _options()
        self._write_options = WriteOptions()
        self._write_options.sync = fsync
        self._db: Rdict | None = None
        self.full: StorageFull | None = None
        self.commits = 0
        with _disk_errors(path):
            self._marker = self._open(path / MARKER_FILE)

    def _open(self, marker_path: Path) -> Marker:
        if not marker_path.exists():
            if self._directory.exists() and any(self._directory.iterdir()):
                raise StorageDamaged(f"{marker_path} is missing beside a store. Nothing was changed; restore a backup")
            marker = Marker.create(marker_path)
        else:
            marker = Marker.load(marker_path)
        try:
            if marker.mark.confirmed or (self._directory / "CURRENT").exists():
                self.commits = self._check(marker)
                self.full = self._open_checked()
            else:
                self._options.create_if_missing(True)
                self._db = self._open_db(self._options)
                self._options.create_if_missing(False)
                self._put_version()
            if self.full is None:
                marker.write(self.commits, synced=self.commits)
        except BaseException:
            marker.close()
            raise
        return marker

    def _open_checked(self) -> StorageFull | None:
        """Open for writing, or, without room for that, for reading, and return the reason. Raises: StorageError."""
        try:
            probe_space(self._directory, 0)
            with _disk_errors(self._directory):
                self._db = self._open_db(self._options)
        except StorageFull as error:
            self._db = self._open_db(_options(), read_only=True)
            try:
                probe_space(self._directory)
            except StorageFull as wanted:
                return wanted
            return error
        return None

    def _put_version(self) -> None:
        assert self._db is not None
        options = WriteOptions()
        options.sync = True
        self._db.put(keys.VERSION, keys.LAYOUT, options)

    def _open_db(self, options: Options, *, read_only: bool = False) -> Rdict:
        access = AccessType.read_only(False) if read_only else AccessType.read_write()
        return Rdict(str(self._directory), options, access_type=access)

    def _check(self, marker: Marker) -> int:
        """Look for damage without changing anything; return the number of the last commit."""
        if not (self._directory / "CURRENT").exists():
            raise StorageDamaged(
                f"{self._directory}: the file CURRENT is missing. Nothing was changed; restore a backup"
            )
        check_wal(self._directory)
        try:
            self._db = self._open_db(_options(), read_only=True)
        except Exception as error:
            if "IO error" in str(error) and "No such file" not in str(error):
                raise StorageError(f"{self._directory} cannot be opened: {error}") from error
            raise StorageDamaged(
                f"{self._directory}: {error}. Nothing was changed; restore the file or a backup"
            ) from error
        try:
            self._check_blobs()
            self._read_through()
            version, commit = self.get(keys.VERSION), self.get(keys.COMMIT)
        finally:
            self._db.close()
            self._db = None
        if version not in (None, keys.LAYOUT):
            raise StorageError(
                f"{self._directory} has layout {version!r}; this version of flowshare knows {keys.LAYOUT!r}"
            )
        number = keys.unpack(commit) if commit is not None else 0
        check_reached(marker.mark, number)
        return number

    def _check_blobs(self) -> None:
        """Check that no blob file known to the store is missing. RocksDB looks for blob files only when it reads them.
        Raises: StorageDamaged."""
        assert self._db is not None
        known = self._db.property_int_value("rocksdb.num-blob-files") or 0
        found = len(list(self._directory.glob("*.blob")))
        if found < known:
            raise StorageDamaged(
                f"{self._directory}: {known - found} of {known} files *.blob are missing. "
                "Nothing was changed; restore them or a backup"
            )

    def _read_through(self) -> None:
        """Read everything but old records, which are checked when they are read. Raises: StorageDamaged."""
        for first, end in ((b"", keys.BATCHES), (keys.after(keys.BATCHES), keys.END)):
            for _ in self.scan(first, end):
                pass
        prefixes = list[bytes]()
        position = keys.BATCHES
        while (entry := next(self.scan(position, keys.after(keys.BATCHES)), None)) is not None:
            prefixes.append(keys.prefix_of(entry[0]))
            position = keys.after(prefixes[-1])
        for prefix in prefixes:
            left = max(CHECK_BYTES_MIN, CHECK_BYTES // len(prefixes))
            for _, value in self.scan(prefix, keys.after(prefix), reverse=True):
                left -= len(value)
                if left < 0:
                    break

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Rdict]:
        """Yield the store, kept open meanwhile. Raises: StorageError when it is closed."""
        with self._turn:
            if self._db is None:
                raise StorageError("the store is closed")
            self._readers += 1
            db = self._db
        try:
            yield db
        finally:
            with self._turn:
                self._readers -= 1
                self._turn.notify_all()

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key. Raises: StorageDamaged, StorageError."""
        with self._reading() as db, _damage():
            value: bytes | None = db.get(key)
            return value

    def scan(self, first: bytes, end: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Yield entries from `first` up to, not including, `end`; in reverse from the last one down.

        Raises: StorageDamaged, StorageError, while iterating.
        """
        with self._reading() as db, _damage():
            yield from entries(db, first, end, reverse=reverse)

    def commit(self, steps: Iterable[StoreStep]) -> None:
        """Write all steps or none, in order, as durable as the store's `fsync` says.

        Raises: StorageError; the outcome is then unknown until `reopen`.
        """
        number = self.commits + 1
        batch = WriteBatch(raw_mode=True)
        for step in steps:
            for first, end in step.ranges:
                batch.delete_range(first, end)
            for key, value in step.writes:
                if value is None:
                    batch.delete(key)
                else:
                    batch.put(key, value)
        batch.put(keys.COMMIT, keys.pack(number))
        if self.full is not None:
            raise self.full
        with _disk_errors(self._directory):
            if self._db is None:
                raise StorageError("the store is closed")
            self._db.write(batch, self._write_options)
        self.commits = number
        self._mark()

    def _mark(self) -> None:
        """Note the last commit in the marker. A failure here is harmless: a marker left behind only notices less
        damage."""
        synced = self.commits if self._fsync else self._marker.mark.synced
        with contextlib.suppress(OSError):
            self._marker.write(self.commits, synced=synced)
            if self._fsync and self.commits % MARKER_SYNC_COMMITS == 0:
                self._marker.sync()

    def reopen(self) -> None:
        """Close and open again after an error. If that fails, confirmed data can at least be read.

        Raises: StorageError
        """
        probe_space(self._directory)
        with self._turn:
            self._turn.wait_for(lambda: self._readers == 0)
            self._close_db()
            try:
                with _disk_errors(self._directory):
                    self._db = self._open_db(self._options)
                    commit = self._db.get(keys.COMMIT)
                    # A failed write may be in the store all the same.
                    number = keys.unpack(commit) if commit is not None else 0
                    if number < self.commits:
                        raise StorageError(f"commit {self.commits} was confirmed, the store ends with {number}")
                    self.commits, self.full = number, None
            except StorageError:
                self._close_db()
                with contextlib.suppress(Exception):
                    self._db = self._open_db(_options(), read_only=True)
                raise

    def _close_db(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            # With a full disk, closing raises and closes nevertheless.
            with contextlib.suppress(Exception):
                db.close()

    def close(self) -> None:
        """Write everything to sorted files and close. Safe to call twice."""
        with self._turn:
            self._turn.wait_for(lambda: self._readers == 0)
            db, self._db = self._db, None
            if db is None:
                return
            # Confirmed writes are in the write-ahead log in any case, and the marker notes them.
            with contextlib.suppress(Exception):
                db.flush(True)
                self._marker.write(self.commits, synced=self.commits)
                self._marker.sync()
            with contextlib.suppress(Exception):
                db.close()
            self._marker.close()


def bytes_to_open(directory: Path, size: int = 2 * WRITE_BUFFER_BYTES) -> int:
    """Return the room, in bytes, that opening a store takes: it copies the write-ahead log into sorted files. size: for
    what is written next. Raises: OSError."""
    return size + sum(file.stat().st_size for file in directory.glob("*.log"))


def probe_space(directory: Path, size: int = 2 * WRITE_BUFFER_BYTES) -> None:
    """Check that there is room to open a store again, and `size` bytes more. Raises: StorageFull, StorageError."""
    try:
        wanted = bytes_to_open(directory, size)
        state = os.statvfs(directory)
    except OSError as error:
        raise StorageError(f"{directory}: {error.strerror}") from error
    free = state.f_bavail * state.f_frsize
    if free < wanted:
        raise StorageFull(f"{directory}: {free} bytes are free, {wanted} are needed to go on: {MAKE_ROOM}")


def entries(db: Rdict, first: bytes, end: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
    """Yield entries from `first` up to, not including, `end`; raises rocksdict's errors, also at damaged entries."""
    options = ReadOptions()
    options.set_iterate_upper_bound(end)
    cursor: RdictIter = db.iter(options)
    if reverse:
        cursor.seek_to_last()
    else:
        cursor.seek(first)
    step = cursor.prev if reverse else cursor.next
    while cursor.valid() and (key := cursor.key()) >= first:
        yield key, cursor.value()
        step()
    cursor.status()


def plain_options(write_buffer_bytes: int) -> Options:
    """Return the options with which all of flowshare's stores are opened."""
    options = Options(raw_mode=True)
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_write_buffer_size(write_buffer_bytes)
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(3)
    options.set_compression_type(DBCompressionType.none())
    return options


def _options() -> Options:
    options = plain_options(WRITE_BUFFER_BYTES)
    options.create_if_missing(False)
    options.set_paranoid_checks(True)
    options.set_max_write_buffer_number(4)
    options.set_max_total_wal_size(4 * WRITE_BUFFER_BYTES)
    options.set_max_open_files(store_files(limit_now()))
    options.set_enable_blob_files(True)
    options.set_min_blob_size(BLOB_BYTES_MIN)
    options.set_enable_blob_gc(True)
    table = BlockBasedOptions()
    table.set_block_cache(Cache(CACHE_BYTES))
    options.set_block_based_table_factory(table)
    return options


@contextlib.contextmanager
def _damage() -> Iterator[None]:
    """Turn rocksdict's plain Exception into StorageDamaged: an error of reading is damage."""
    try:
        yield
    except (StorageDamaged, StorageError, GeneratorExit):
        raise
    except Exception as error:
        raise StorageDamaged(f"stored data cannot be read: {error}") from error


@contextlib.contextmanager
def _disk_errors(place: Path) -> Iterator[None]:
    """Turn rocksdict's plain Exception into StorageError or StorageFull: an error of writing is the disk's."""
    try:
        yield
    except (StorageDamaged, StorageError):
        raise
    except Exception as error:
        if no_room(error):
            wanted = 2 * WRITE_BUFFER_BYTES
            with contextlib.suppress(OSError):
                wanted = bytes_to_open(place)
            raise StorageFull(
                f"the disk refused: {error}; {MAKE_ROOM} when {-(-wanted >> 20)} MiB are free ({place})"
            ) from error
        raise StorageError(f"the disk refused: {error}") from error
