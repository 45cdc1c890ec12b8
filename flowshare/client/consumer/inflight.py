"""The records that a consumer holds of each partition: handed out, acknowledged, or being renewed.

A record is in one place at a time: `held` (handed out, not acknowledged or acknowledged but not sent), `renewing` (its
renewal is on the way), `renewed` (to be handed out again by the next poll), `settling` (its settle is on the way), or
gone. Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from flowshare.client.arguments import check_argument
from flowshare.client.errors import IllegalState, RecordError
from flowshare.share.ranges import merged
from flowshare.share.types import AcknowledgeType, AckRange

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from flowshare.client.session.ranges import TopicIdPartition

K = TypeVar("K")
V = TypeVar("V")
Headers = tuple[tuple[str, bytes | None], ...]
Named = tuple[str, int, int]
"""Topic, partition and offset of a record."""


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


class Said(NamedTuple):
    """Acknowledgements to send: types by offset. delays: of released records, in milliseconds, where there is one."""

    types: dict[int, AcknowledgeType]
    delays: dict[int, int]


class Held(Generic[K, V]):
    """One partition's records on one connection."""

    def __init__(self, source: TopicIdPartition, generation: int) -> None:
        self.source = source
        self.generation = generation
        self.held: dict[int, ShareRecord[K, V] | None] = {}
        """Records by offset; None: a record that could not be decoded."""
        self.types: dict[int, AcknowledgeType] = {}
        self.delays: dict[int, int] = {}
        """Delays of released records, in milliseconds."""
        self.settling: dict[int, ShareRecord[K, V] | None] = {}
        self.renewing: dict[int, ShareRecord[K, V] | None] = {}
        self.renewed: dict[int, ShareRecord[K, V] | None] = {}

    def unacknowledged(self) -> int:
        """Return the number of records in hand that are not acknowledged."""
        return len(self.held) - len(self.types)

    def acknowledge(self, offset: int, type_: AcknowledgeType, *, delay_ms: int = 0) -> None:
        """Set the acknowledge type of a record in hand, for the next commit. A later call replaces the type, except
        after a renewal. Raises: IllegalState."""
        self._check(offset, "acknowledged")
        self.types[offset] = type_
        self.delays.pop(offset, None)
        if delay_ms:
            self.delays[offset] = delay_ms

    def _check(self, offset: int, what: str) -> None:
        if offset not in self.held or self.types.get(offset) is AcknowledgeType.RENEW:
            where = f"{self.source.topic}-{self.source.partition}@{offset}"
            raise IllegalState(
                f"{where} cannot be {what}: it was not handed out by the last poll, was acknowledged already, or is "
                "being renewed (the next poll hands renewed records out again)"
            )

    def acknowledge_rest(self, type_: AcknowledgeType) -> None:
        """Set the acknowledge type of all records that have none."""
        self.types = {**dict.fromkeys(self.held, type_), **self.types}

    def take(self) -> Said:
        """Take the acknowledgements made since the last call. Their records are no longer held; renewed ones come back
        later."""
        taken, self.types, self.delays = Said(self.types, self.delays), {}, {}
        if len(taken.types) == len(self.held) and AcknowledgeType.RENEW not in taken.types.values():
            self.held.clear()
            return taken
        for offset, type_ in taken.types.items():
            record = self.held.pop(offset)
            if type_ is AcknowledgeType.RENEW:
                self.renewing[offset] = record
        return taken

    def take_before(self, end: int) -> Said:
        """Take the acknowledgements made for offsets before this one, but for renewals: they finish nothing."""
        earlier = [at for at, type_ in self.types.items() if at < end and type_ is not AcknowledgeType.RENEW]
        types = {offset: self.types[offset] for offset in earlier}
        taken = Said(types, {at: self.delays.pop(at) for at in types if at in self.delays})
        for offset in types:
            del self.types[offset], self.held[offset]
        return taken

    def begin_settle(self, offsets: Sequence[int]) -> list[int]:
        """Begin to settle records in hand; return their attempts (0: not known). Raises: IllegalState."""
        for offset in offsets:
            self._check(offset, "settled")
        for offset in offsets:
            self.settling[offset] = self.held.pop(offset)
            self.types.pop(offset, None)
            self.delays.pop(offset, None)
        records = [self.settling[offset] for offset in offsets]
        return [0 if record is None else record.attempt for record in records]

    def end_settle(self, offsets: Iterable[int], gone: Collection[int]) -> None:
        """Take in the end of a settle: records that are not `gone` are in hand again; one that cannot be decoded is
        released."""
        for offset in offsets:
            record = self.settling.pop(offset)
            if offset in gone:
                continue
            self.held.setdefault(offset, record)
            if record is None:
                self.types[offset] = AcknowledgeType.RELEASE

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

    def has(self, offset: int) -> bool:
        """True if this record is held, being renewed, renewed or being settled."""
        return any(offset in records for records in (self.held, self.renewing, self.renewed, self.settling))

    @property
    def idle(self) -> bool:
        """True if no record is held, being renewed, renewed or being settled."""
        return not (self.held or self.renewing or self.renewed or self.settling)


def named_of(what: str, record: Any) -> Named:
    """Return the place of a record that was handed out, readable or not. Raises: TypeError."""
    if not isinstance(record, ShareRecord | RecordError):
        check_argument(f"{what}: the record", record, ShareRecord | RecordError)
    return record.topic, record.partition, record.offset


def neighbours(records: Sequence[ShareRecord[Any, Any] | RecordError], *, ordered: bool) -> list[Named]:
    """Return the places of records that are settled together, ascending. Raises: ValueError, TypeError."""
    check_argument("settle: records", records, Sequence)
    named = sorted({named_of("settle", one) for one in records})
    if not named or len({one[:2] for one in named}) > 1:
        raise ValueError("settle takes records of one partition, at least one: settle each partition's by themselves")
    if ordered and named[-1][2] - named[0][2] != len(named) - 1:
        raise ValueError("ordered=True settles records that follow each other in the log: settle these one by one")
    return named


def ack_batches(types: Mapping[int, AcknowledgeType], delays: Mapping[int, int] | None = None) -> tuple[AckRange, ...]:
    """Join contiguous offsets into batches: one type for a whole batch if all agree, else one an offset.

    delays: of released records, in milliseconds; a batch has one.
    """
    if delays:
        at_once = {offset: type_ for offset, type_ in types.items() if offset not in delays}
        by_delay: dict[int, list[tuple[int, int]]] = {}
        for offset, delay_ms in delays.items():
            by_delay.setdefault(delay_ms, []).append((offset, offset))
        later = [
            AckRange(first, last, bytes((AcknowledgeType.RELEASE,)), delay_ms)
            for delay_ms, offsets in by_delay.items()
            for first, last in merged(offsets)
        ]
        return tuple(sorted([*ack_batches(at_once), *later]))
    if types:  # the usual case: everything there was, all of it accepted
        low, high, kinds = min(types), max(types), set(types.values())
        if high - low + 1 == len(types) and len(kinds) == 1:
            return (AckRange(low, high, bytes(kinds)),)
    batches: list[AckRange] = []
    for first, last in merged((offset, offset) for offset in types):
        said = bytes(map(types.__getitem__, range(first, last + 1)))
        batches.append(AckRange(first, last, said[:1] if len(set(said)) == 1 else said))
    return tuple(batches)
