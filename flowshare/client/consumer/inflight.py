"""The records that a consumer holds of each partition: handed out, acknowledged, or being renewed.

A record is in one place at a time: `held` (handed out, not acknowledged or acknowledged but not sent), `renewing` (its
renewal is on the way), `renewed` (to be handed out again by the next poll), or gone. Pure: no I/O, no clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from flowshare.client.errors import IllegalState
from flowshare.share.ranges import merged
from flowshare.share.types import AcknowledgeType, AckRange

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from flowshare.client.session.ranges import TopicIdPartition

K = TypeVar("K")
V = TypeVar("V")
Headers = tuple[tuple[str, bytes | None], ...]


class ShareRecord(Generic[K, V]):
    """One record as a consumer hands it out.

    timestamp: seconds since 1970. attempt: the number of deliveries, 1 the first time (KIP-932: delivery count).
    """

    __slots__ = (
        "attempt",
        "headers",
        "key",
        "offset",
        "partition",
        "timestamp",
        "topic",
        "topic_id_partition",
        "value",
    )

    def __init__(
        self,
        source: TopicIdPartition,
        offset: int,
        timestamp_ms: int,
        key: K,
        value: V,
        headers: Headers,
        attempt: int,
    ) -> None:
        self.topic_id_partition = source
        self.topic = source.topic
        self.partition = source.partition
        self.offset = offset
        self.timestamp = timestamp_ms / 1000
        self.key = key
        self.value = value
        self.headers = headers
        self.attempt = attempt

    def __repr__(self) -> str:
        return f"<{self.topic}-{self.partition}@{self.offset} attempt {self.attempt}>"


class Held(Generic[K, V]):
    """One partition's records on one connection."""

    def __init__(self, source: TopicIdPartition, generation: int) -> None:
        self.source = source
        self.generation = generation
        self.held: dict[int, ShareRecord[K, V] | None] = {}
        """Records by offset; None: a record that could not be decoded."""
        self.types: dict[int, AcknowledgeType] = {}
        self.renewing: dict[int, ShareRecord[K, V] | None] = {}
        self.renewed: dict[int, ShareRecord[K, V] | None] = {}

    def unacknowledged(self) -> int:
        """Return the number of records in hand that are not acknowledged."""
        return len(self.held) - len(self.types)

    def acknowledge(self, offset: int, type_: AcknowledgeType) -> None:
        """Set the acknowledge type of a record in hand, for the next commit. A later call replaces the type, except
        after a renewal. Raises: IllegalState."""
        if offset not in self.held or self.types.get(offset) is AcknowledgeType.RENEW:
            where = f"{self.source.topic}-{self.source.partition}@{offset}"
            raise IllegalState(
                f"{where} cannot be acknowledged: it was not handed out by the last poll, was acknowledged already, "
                "or is being renewed (the next poll hands renewed records out again)"
            )
        self.types[offset] = type_

    def acknowledge_rest(self, type_: AcknowledgeType) -> None:
        """Set the acknowledge type of all records that have none."""
        self.types = {**dict.fromkeys(self.held, type_), **self.types}

    def take(self) -> dict[int, AcknowledgeType]:
        """Take the acknowledgements made since the last call. Their records are no longer held; renewed ones come back
        later."""
        taken, self.types = self.types, {}
        if len(taken) == len(self.held) and AcknowledgeType.RENEW not in taken.values():
            self.held.clear()
            return taken
        for offset, type_ in taken.items():
            record = self.held.pop(offset)
            if type_ is AcknowledgeType.RENEW:
                self.renewing[offset] = record
        return taken

    def settle_renewals(self, offsets: Iterable[int], *, renewed: bool) -> None:
        """Take in the answer to renewals: the records come back, or are lost."""
        for offset in offsets:
            record = self.renewing.pop(offset)
            if renewed:
                self.renewed[offset] = record

    def hand_out_renewed(self, count_max: int) -> list[ShareRecord[K, V]]:
        """Hand out renewed records again in offset order, at most `count_max`; a record that cannot be decoded is
        released."""
        records: list[ShareRecord[K, V]] = []
        for offset in sorted(self.renewed):
            if len(records) == count_max:
                break
            record = self.held[offset] = self.renewed.pop(offset)
            if record is None:
                self.types[offset] = AcknowledgeType.RELEASE
            else:
                records.append(record)
        return records

    @property
    def idle(self) -> bool:
        """True if no record is held, being renewed or renewed."""
        return not (self.held or self.renewing or self.renewed)


def ack_batches(types: Mapping[int, AcknowledgeType]) -> tuple[AckRange, ...]:
    """Join contiguous offsets into batches: one type for a whole batch if all agree, else one an offset."""
    if types:  # the usual case: everything there was, all of it accepted
        low, high, kinds = min(types), max(types), set(types.values())
        if high - low + 1 == len(types) and len(kinds) == 1:
            return (AckRange(low, high, bytes(kinds)),)
    batches: list[AckRange] = []
    for first, last in merged((offset, offset) for offset in types):
        said = bytes(map(types.__getitem__, range(first, last + 1)))
        batches.append(AckRange(first, last, said[:1] if len(set(said)) == 1 else said))
    return tuple(batches)
