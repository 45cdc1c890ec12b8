"""`SlotReplay`: brings a slot's reader to the end of the log, from what is kept locally or from the log's start."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from flowshare.log.base import OffsetOutOfRange, StorageDamaged
from flowshare.slots.errors import SlotError
from flowshare.slots.replay import SlotReader

if TYPE_CHECKING:
    from flowshare.clock import Clock
    from flowshare.fleet.slot_cache import SlotCache
    from flowshare.fleet.slot_reading import Found, SlotReading

LOADS_MAX: Final = 5
SLICE: Final = 500
"""Records that are fed before others run."""

logger = logging.getLogger(__name__)


class SlotReplay:
    """`reader`: the slot's reader, which `load` makes anew."""

    def __init__(self, reading: SlotReading, *, clock: Clock, cache: SlotCache | None) -> None:
        self._reading = reading
        self._clock = clock
        self._cache = cache
        self.reader = SlotReader()

    async def load(self) -> None:
        """Go on from what the cache has, if the log still holds the last record of that; else read everything.

        Raises: StorageError, StorageDamaged, OffsetOutOfRange (the log is cut faster than it is read).
        """
        for _ in range(LOADS_MAX - 1):
            try:
                await self._load()
            except OffsetOutOfRange as error:
                logger.info("slot %d was cut while it was read, which begins again: %s", self._reading.slot, error)
            else:
                return
        await self._load()

    async def _load(self) -> None:
        cache = self._cache
        reader = None if cache is None else await self._resumed(cache)
        if reader is None:
            if cache is not None:
                await cache.drop(self._reading.slot)
            reader = SlotReader(start=await self._reading.log_start())
        self.reader = reader
        if cache is not None:
            cache.attach(self._reading.slot, reader)
        await self._read_on()

    async def _resumed(self, cache: SlotCache) -> SlotReader | None:
        kept = await cache.load(self._reading.slot)
        if kept is None or kept.summary.last is None:
            return None
        last = kept.summary.last
        try:
            found = await self._reading.read(last.offset)
        except (OffsetOutOfRange, StorageDamaged):
            found = None
        if found is None or not found.records or (found.records[0].offset, found.records[0].checksum) != last:
            logger.info(
                "what is kept locally of slot %d is not what %s holds: all is read",
                self._reading.slot,
                self._reading.topic,
            )
            return None
        return SlotReader.resume(kept.summary, kept.table)

    async def catch_up(self) -> None:
        """Read to where the log ends now, all of it again if it was cut. Raises: as `load`."""
        try:
            await self._read_on()
        except OffsetOutOfRange as error:
            logger.warning("slot %d is read from its start again: %s", self._reading.slot, error)
            await self.load()

    async def _read_on(self) -> None:
        end = None
        while end is None or self.reader.position < end:
            found = await self._reading.read(self.reader.position)
            end = found.end if end is None else end
            for at in range(SLICE, len(found.records), SLICE):
                some = found.records[at - SLICE : at]
                self.feed(found._replace(records=some, position=some[-1].offset + 1))
                await self._clock.sleep(0)
            self.feed(found)

    def feed(self, found: Found) -> None:
        """Take in what was read; what is known already, or does not follow what is known, changes nothing.

        Raises: StorageDamaged.
        """
        reader = self.reader
        if found.start > reader.position:
            return
        try:
            for offset, record, checksum in found.records:
                if offset >= reader.position:
                    reader.feed(offset, record, checksum)
        except SlotError as error:
            raise StorageDamaged(f"slot {self._reading.slot} of {self._reading.topic}: {error}") from error
        reader.skip(found.position)
