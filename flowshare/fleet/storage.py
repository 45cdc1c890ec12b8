"""`Storage` of a worker: records in Kafka's topics, state in the slots that this worker leads.

A state key belongs to one slot. Entries written together for one slot are written in one piece; writes that concern
several slots are not atomic together, and no caller relies on it (`fleet.groups.leaders`). Outputs are Kafka's, and no
write has both: settles are decided apart from the state that follows from them (`fleet.state.outputs`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

from flowshare.fleet.state.lane import OutputSettings
from flowshare.fleet.state.outputs import TOO_OLD, OutputCounts, OutputWays, SlotOutputs
from flowshare.log.base import (
    CheckedOutput,
    CorruptBatches,
    InvalidTopic,
    LogError,
    NotLed,
    Output,
    OutputRefused,
    SettlesApart,
    StorageError,
    UnknownTopic,
)
from flowshare.log.topics import check_output
from flowshare.protocol.batches import DecodeError
from flowshare.protocol.batches import check as check_batches
from flowshare.server.cooperative.apart import following_writes
from flowshare.server.runtime.settled import settled_writes
from flowshare.slots.placement import COOPERATIVE_PREFIX, is_whole, slot_of_key
from flowshare.slots.prepared import Prepared

if TYPE_CHECKING:
    from flowshare.client.net.cluster import Cluster
    from flowshare.fleet.log.kafka_log import KafkaLog
    from flowshare.fleet.state.slot import Slot
    from flowshare.slots.records import Entry


class FleetStorage(SettlesApart):
    """Records and state. `led`: the slots claimed here by number, always up to date."""

    def __init__(self, log: KafkaLog, led: Mapping[int, Slot], slots: int) -> None:
        self._log = log
        self._led = led
        self._slots = slots
        self._ways: OutputWays | None = None
        self._outputs: dict[int, SlotOutputs] = {}
        self.topics = log.topics
        self.create_topic = log.create_topic
        self.append = log.append
        self.read = log.read
        self.offsets = log.offsets
        self.dense = log.dense
        self.bounds = log.bounds
        self.offset_for_timestamp = log.offset_for_timestamp
        self.on_append = log.on_append

    def write_outputs(self, cluster: Cluster, topic: str, settings: OutputSettings | None = None) -> None:
        """Settle with outputs in slots that are taken over from now on. topic: the fleet's state topic."""
        self._ways = OutputWays(
            topic=topic,
            connect=cluster.connect,
            exists=self._exists,
            clock=cluster.clock,
            settings=settings or OutputSettings(),
        )

    # --- state --------------------------------------------------------------------------------------------------

    async def write(self, writes: Sequence[Entry]) -> None:
        """Put (None: delete) entries; returns when all are confirmed. Raises NotLed, StorageError."""
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
        """Return all entries under a prefix in the slots that are led here, in key order."""
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

    # --- settles ------------------------------------------------------------------------------------------------

    async def checked(
        self, outputs: Sequence[Output | CheckedOutput], *, source: Hashable | None = None
    ) -> list[CheckedOutput]:
        """Check outputs as `Storage.checked`, as far as possible here: the brokers decide which records a topic takes,
        when they are written. Raises OutputRefused, StorageError."""
        del source  # the brokers look into all records
        found, refused = list[CheckedOutput](), dict[int, LogError]()
        for index, output in enumerate(outputs):
            try:
                check_output(output.topic)  # before the brokers are asked: they would let the fleet write anywhere
                problem = await self._exists(Output(*output[:4]), False)
                if problem is not None:
                    raise problem
                found.append(output if isinstance(output, CheckedOutput) else _looked_into(output))
            except (InvalidTopic, UnknownTopic, CorruptBatches) as error:
                refused[index] = error
        if refused:
            raise OutputRefused(refused)
        return found

    async def settle(self, outputs: Sequence[Output | CheckedOutput], writes: Sequence[Entry]) -> None:
        """Write as `Storage.settle`, without outputs: those are settled apart. Raises NotLed, StorageError."""
        if outputs:
            raise StorageError("outputs of a fleet are settled apart from its state")
        await self.write(writes)

    def take_over(self, number: int) -> None:
        """End the last leader's open settles in a slot that was claimed here."""
        if self._ways is not None:
            self._outputs[number] = outputs = SlotOutputs(self._slot(number), self._ways)
            outputs.take_over()

    async def lay_down(self, number: int) -> None:
        """Settle nothing more in a slot; open settles have a moment to end. Call before its state is laid down."""
        outputs = self._outputs.pop(number, None)
        if outputs is not None:
            await outputs.close()

    async def settle_apart(
        self, share: bytes, update: bytes, beside: Sequence[Entry], outputs: Sequence[CheckedOutput]
    ) -> Sequence[Entry]:
        """Settle as `SettlesApart.settle_apart`."""
        if self._ways is None:
            raise StorageError(TOO_OLD)
        number = slot_of_key(share, self._slots)
        found = self._outputs.get(number)
        if found is None:
            raise NotLed(f"slot {number} is not led here")
        return await found.settle(share, Prepared(update, tuple(beside)), [Output(*one[:4]) for one in outputs])

    async def decided(self, share: bytes) -> None:
        """Decide as `SettlesApart.decided`."""
        found = self._outputs.get(slot_of_key(share, self._slots))
        if found is not None:
            await found.decided(share, _following)

    def counts(self) -> Mapping[str, int]:
        """Return counters of transactions with outputs, and gauges."""
        ways = self._ways
        counts = OutputCounts() if ways is None else ways.counts
        return {
            "output_transactions": counts.committed,
            "output_transactions_aborted": counts.aborted,
            "output_transactions_undecided": counts.undecided,
            "output_partitions_resting": 0 if ways is None else ways.resting.count,
        }

    async def _exists(self, output: Output, anew: bool) -> LogError | None:
        """Return None if an output's topic and partition exist, else the error; a StorageError: not known."""
        topic = self._log.topics().get(output.topic)
        if anew or topic is None or topic.topic_id != output.topic_id or output.partition >= topic.partitions:
            try:
                await self._log.refresh((output.topic,))
            except LogError as error:
                return StorageError(str(error))
            topic = self._log.topics().get(output.topic)
        if topic is None:
            return UnknownTopic(f"there is no topic {output.topic!r}")
        if topic.topic_id != output.topic_id:
            return UnknownTopic(f"topic {output.topic!r} was made anew: the outputs are for another one")
        if not 0 <= output.partition < topic.partitions:
            return UnknownTopic(f"topic {output.topic!r} has no partition {output.partition}")
        return None


def _looked_into(output: Output) -> CheckedOutput:
    """Check an output. Raises CorruptBatches."""
    try:
        headers = check_batches(output.records)
    except DecodeError as error:
        raise CorruptBatches(str(error)) from error
    if any(header.producer_id >= 0 or header.is_transactional for header in headers):
        raise CorruptBatches("an output of a settle has no producer id and is in no transaction")
    return CheckedOutput(*output, headers)


def _following(entries: Sequence[tuple[bytes, bytes]], committed: Sequence[Prepared]) -> Sequence[Entry]:
    if entries and entries[0][0].startswith(COOPERATIVE_PREFIX):
        return following_writes(entries, [one.update for one in committed])
    return settled_writes(entries, [(one.update, one.beside) for one in committed])
