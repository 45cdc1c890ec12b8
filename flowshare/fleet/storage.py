"""`Storage` of a worker: records in Kafka's topics, state in the slots that this worker leads.

A state key belongs to one slot. What is written together for one slot is written in one piece; writes that concern
several slots are not atomic together, and nobody relies on it (`fleet.groups.leaders`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from flowshare.log.base import NotLed
from flowshare.slots.placement import is_whole, slot_of_key

if TYPE_CHECKING:
    from flowshare.fleet.log.kafka_log import KafkaLog
    from flowshare.fleet.state.slot import Slot
    from flowshare.slots.records import Entry


class FleetStorage:
    """Records and state. `led`: the slots claimed here by number, as they are at the moment."""

    def __init__(self, log: KafkaLog, led: Mapping[int, Slot], slots: int) -> None:
        self._led = led
        self._slots = slots
        self.topics = log.topics
        self.create_topic = log.create_topic
        self.append = log.append
        self.read = log.read
        self.offsets = log.offsets
        self.dense = log.dense
        self.bounds = log.bounds
        self.offset_for_timestamp = log.offset_for_timestamp
        self.on_append = log.on_append

    async def write(self, writes: Sequence[Entry]) -> None:
        """Put (None: delete); returns when all is confirmed. Raises: NotLed, StorageError."""
        by_slot: dict[int, list[Entry]] = {}
        for entry in writes:
            by_slot.setdefault(slot_of_key(entry[0], self._slots), []).append(entry)
        if len(by_slot) == 1:
            ((number, entries),) = by_slot.items()
            await self._slot(number).write(entries)
            return
        found = [(self._slot(number), entries) for number, entries in by_slot.items()]
        await asyncio.gather(*(slot.write(entries) for slot, entries in found))

    async def scan(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        """All entries under a prefix in the slots that are led here, in key order."""
        if is_whole(prefix):
            slot = self._led.get(slot_of_key(prefix, self._slots))
            return [] if slot is None else slot.scan(prefix)
        found = [entry for slot in tuple(self._led.values()) for entry in slot.scan(prefix)]
        return sorted(found) if len(self._led) > 1 else found

    def _slot(self, number: int) -> Slot:
        slot = self._led.get(number)
        if slot is None:
            raise NotLed(f"slot {number} is not led here")
        return slot
