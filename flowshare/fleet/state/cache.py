"""`SlotCache`: the content of a process's slots on its disk, so that a restart reads only the end of their logs.

The cache lags behind (`LAG_S`), no caller waits for its writes, and the loader throws away content that does not fit
the log (`fleet.state.slot`). Each write holds the entries of a slot and the reader's summary as of the same offset, all
or none, so that a crash leaves a true state, if an old one. A damaged cache is removed, and made anew only while no
slot is attached: it would get later changes of an attached slot without the earlier ones.

    <slot, 2 bytes> s                   topic id (16 bytes), summary
    <slot, 2 bytes> e <state key>       offset of the last write (8 bytes), value

The directory belongs to one process at a time (a lock), and names it: `identity` is the worker's static member id.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import struct
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from rocksdict import Rdict, WriteBatch, WriteOptions

from flowshare.log.base import StorageError, no_room
from flowshare.log.keys import after
from flowshare.log.owner import STORE_DIRECTORY, OwnerLock
from flowshare.log.store import entries, plain_options
from flowshare.slots.errors import SlotError
from flowshare.slots.records import Entry
from flowshare.slots.summary import Summary
from flowshare.slots.table import Kept, SlotTable
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from flowshare.clock import Clock
    from flowshare.log.folder import OwnFolder
    from flowshare.slots.replay import SlotReader

T = TypeVar("T")
IDENTITY_FILE: Final = "identity"
LAG_S: Final = 1.0
WRITE_BUFFER_BYTES: Final = 16 << 20
_SLOT: Final = struct.Struct(">H")
_OFFSET: Final = struct.Struct(">Q")
SUMMARY: Final = b"s"
ENTRY: Final = b"e"

logger = logging.getLogger(__name__)


class CachedSlot(NamedTuple):
    """Cached content of a slot."""

    summary: Summary
    table: SlotTable


class _Attached:
    """A slot that is kept up to date, with its changes since the last write."""

    __slots__ = ("changed", "position", "reader")

    def __init__(self, reader: SlotReader) -> None:
        self.reader = reader
        self.changed: dict[bytes, tuple[int, bytes | None]] = {}
        self.position = -1

    def note(self, entries: Sequence[Entry], offset: int) -> None:
        changed = self.changed
        for key, value in entries:
            changed[key] = (offset, value)


class SlotCache:
    """The cache in one directory. All methods are called on one event loop; one thread does the disk's work."""

    def __init__(self, path: Path, *, clock: Clock, topic_id: uuid.UUID) -> None:
        """topic_id: the state topic's; content of another topic is not loaded. Call `open` first."""
        self._path = path
        self._clock = clock
        self._topic_id = topic_id
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="slot cache")
        self._attached: dict[int, _Attached] = {}
        self._lock: OwnerLock | None = None
        self._db: Any = None
        self._task: asyncio.Task[None] | None = None
        self.identity = ""

    async def open(self) -> None:
        """Take the directory. Raises StorageHeld, StorageError (its lock and name cannot be used)."""
        try:
            await self._run(self._open_blocking, self._clock.now_ms())
        except BaseException:
            self._thread.shutdown(wait=False)
            raise
        self._task = asyncio.create_task(self._keep(), name="slot cache")

    async def load(self, slot: int) -> CachedSlot | None:
        """Load a slot from the cache; None when the cache has no usable content. It is followed no longer: its reader
        would write behind what is loaded, of a log that is read anew because it was cut."""
        self._attached.pop(slot, None)
        return await self._run(self._load_blocking, slot)

    async def kept(self, slots: int) -> tuple[int, ...]:
        """Return the slots below `slots` that have content in the cache; called before a slot is attached."""
        return await self._run(self._kept_blocking, slots)

    def attach(self, slot: int, reader: SlotReader) -> None:
        """Keep the slot as this reader goes on; the reader stands where the cache is, or the slot was dropped."""
        attached = self._attached[slot] = _Attached(reader)
        reader.on_write = attached.note

    async def drop(self, slot: int) -> None:
        """Remove a slot from the cache."""
        self._attached.pop(slot, None)
        await self._run(self._write_blocking, slot, None, {})

    async def detach(self, slot: int) -> None:
        """Write the last changes of a slot, and follow it no longer."""
        attached = self._attached.pop(slot, None)
        if attached is not None:
            await self._flush(slot, attached)

    async def close(self) -> None:
        """Write all changes and release the directory. Safe to call twice."""
        task, self._task = self._task, None
        if task is None:
            return
        await cancelled(task)
        for slot in tuple(self._attached):
            await self.detach(slot)
        await self._run(self._close_blocking)
        self._thread.shutdown()

    # --- on the loop --------------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        while True:
            await self._clock.sleep(LAG_S)
            for slot, attached in tuple(self._attached.items()):
                if self._attached.get(slot) is attached:
                    await self._flush(slot, attached)

    async def _flush(self, slot: int, attached: _Attached) -> None:
        if attached.reader.position == attached.position:
            return
        changed, attached.changed = attached.changed, {}
        attached.position = attached.reader.position
        await self._run(self._write_blocking, slot, attached.reader.summary(), changed)

    async def _run(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    # --- in the thread ------------------------------------------------------------------------------------------

    def _open_blocking(self, now_ms: int) -> None:
        self._lock = OwnerLock(self._path, now_ms=now_ms)
        try:
            self._path, folder = self._lock.path, self._lock.folder
            folder.below(STORE_DIRECTORY).close()
            self.identity = _identity(folder)
        except (OSError, StorageError) as error:
            self._lock.release()
            raise StorageError(f"{self._path} cannot be used for a worker's state: {error}") from error
        try:
            self._db = self._open_db()
        except Exception as error:  # noqa: BLE001 rocksdict raises plain Exception
            self._anew(error)

    def _open_db(self) -> Rdict:
        options = plain_options(WRITE_BUFFER_BYTES)
        options.create_if_missing(True)
        return Rdict(str(self._path / STORE_DIRECTORY), options)

    def _anew(self, error: Exception) -> None:
        """Replace a damaged cache by an empty one, before a slot is attached; without a new one the process goes on
        without a cache."""
        logger.warning("the local state in %s is thrown away, the slots' logs have it all: %s", self._path, error)
        self._remove()
        try:
            self._db = self._open_db()
        except Exception as again:  # noqa: BLE001 as above
            logger.warning("there is no local state from now on, a restart reads everything: %s", again)

    def _give_up(self, error: Exception) -> None:
        """Remove the cache and go on without one: later changes of the attached slots would not fit its content."""
        logger.warning("there is no local state from now on, a restart reads everything: %s", error)
        self._remove()

    def _remove(self) -> None:
        self._shut()
        shutil.rmtree(self._path / STORE_DIRECTORY, ignore_errors=True)

    def _shut(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            try:
                db.close()
            except Exception as error:  # noqa: BLE001 as above
                logger.warning("the local state in %s could not be closed: %s", self._path, error)

    def _load_blocking(self, slot: int) -> CachedSlot | None:
        if self._db is None:
            return None
        try:
            kept = self._db.get(_SLOT.pack(slot) + SUMMARY)
            if kept is None or kept[:16] != self._topic_id.bytes:
                return None
            return CachedSlot(Summary.decode(kept[16:]), SlotTable(self._entries(slot)))
        except SlotError as error:
            logger.warning("what is kept locally of slot %d cannot be used: %s", slot, error)
        except Exception as error:  # noqa: BLE001 as above
            self._give_up(error)
        return None

    def _kept_blocking(self, slots: int) -> tuple[int, ...]:
        if self._db is None:
            return ()
        try:
            return tuple(slot for slot in range(slots) if self._db.get(_SLOT.pack(slot) + SUMMARY) is not None)
        except Exception as error:  # noqa: BLE001 as above
            self._anew(error)
        return ()

    def _entries(self, slot: int) -> list[Kept]:
        prefix = _SLOT.pack(slot) + ENTRY
        return [
            Kept(key[len(prefix) :], value[_OFFSET.size :], *_OFFSET.unpack_from(value))
            for key, value in entries(self._db, prefix, after(prefix))
        ]

    def _write_blocking(
        self, slot: int, summary: Summary | None, changed: dict[bytes, tuple[int, bytes | None]]
    ) -> None:
        """Write changes of a slot. summary None: remove all of the slot."""
        if self._db is None:
            return
        name = _SLOT.pack(slot)
        batch = WriteBatch(raw_mode=True)
        if summary is None:
            batch.delete_range(name, _SLOT.pack(slot + 1))
        else:
            batch.put(name + SUMMARY, self._topic_id.bytes + summary.encode())
        for key, (offset, value) in changed.items():
            if value is None:
                batch.delete(name + ENTRY + key)
            else:
                batch.put(name + ENTRY + key, _OFFSET.pack(offset) + value)
        try:
            self._db.write(batch, WriteOptions())
        except Exception as error:  # noqa: BLE001 as above
            self._give_up(error)

    def _close_blocking(self) -> None:
        self._shut()
        if self._lock is not None:
            self._lock.release()


def _identity(folder: OwnFolder) -> str:
    """Return the name in the folder, or a new one; on a full disk the new one is not kept, and the next start has
    another.

    Raises: OSError, StorageError
    """
    with contextlib.suppress(FileNotFoundError):
        known = folder.read(IDENTITY_FILE).decode().strip()
        if known:
            return known
    made = str(uuid.uuid4())
    try:
        folder.write(IDENTITY_FILE, made.encode(), lasting=True)
    except OSError as error:
        if not no_room(error):
            raise
        logger.warning("%s has no room: the next start of this worker is another worker to its fleet", folder.path)
    return made
