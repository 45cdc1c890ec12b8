"""Packs the outputs of one settle into record batches, by partition, for records of many owners. No I/O.

Each output names the owners of its records, so that the cause can be found when it is refused. `packed` does it for
consumers, whose outputs have one owner: the settle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from flowshare.client.arguments import check_argument
from flowshare.client.errors import RecordTooLarge, ServerError
from flowshare.client.producer.message import BATCH_OVERHEAD, Message, items_of, partition_for, size_of
from flowshare.client.settings import ProducerSettings
from flowshare.protocol.batches import BatchBuilder
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import SettleOutput

if TYPE_CHECKING:
    from flowshare.client.producer.channel import TopicPlace

T = TypeVar("T")
Outputs = Mapping[str, Iterable[Message | bytes | None]]
"""Records that a consumer writes with what it settles, by topic: values, or `Message`s as of `Producer.send_many`."""
BATCH_BYTES: Final = 1_000_000
"""The largest batch, in bytes before compression, where topics take that much."""


class OutputFor(NamedTuple, Generic[T]):
    """One output, and the owners of its records."""

    output: SettleOutput
    owners: Sequence[T]
    records: int


class _Open(Generic[T]):
    """A batch that is being filled."""

    __slots__ = ("builder", "owners")

    def __init__(self, builder: BatchBuilder) -> None:
        self.builder = builder
        self.owners: dict[T, None] = {}


class OutputBatches(Generic[T]):
    """Packs records into outputs. Owners are distinguished by their hashes.

    topics: places of all topics that will be named. batch_bytes: the largest batch of a topic, where that was found to
    be less than BATCH_BYTES. spread: selects the partition of records without a key or a partition, another one with
    each settle.
    """

    def __init__(
        self,
        topics: Mapping[str, TopicPlace],
        *,
        settings: ProducerSettings,
        batch_bytes: Mapping[str, int],
        now_ms: int,
        spread: int,
    ) -> None:
        self._topics = topics
        self._settings = settings
        self._batch_bytes = batch_bytes
        self._now_ms = now_ms
        self._spread = spread
        self._open: dict[tuple[str, int], _Open[T]] = {}
        self._built: list[OutputFor[T]] = []
        self.bytes = 0
        """An upper estimate of the bytes of all records so far."""

    @property
    def count(self) -> int:
        """The number of outputs."""
        return len(self._open) + len(self._built)

    def check(self, topic: str, message: Message) -> int:
        """Return the bytes that a record takes. Raises: RecordTooLarge, TypeError; ServerError: no such partition."""
        size = size_of(message, topic, self._settings.max_request_size)
        place = self._topics[topic]
        if message.partition is not None and not 0 <= message.partition < place.partitions:
            text = f"there is no partition {message.partition}, the topic has {place.partitions}"
            raise ServerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text, about=f"topic {topic}")
        return size

    def add(self, owner: T, topic: str, message: Message, size: int) -> None:
        """Add a record; size: the result of `check`. Raises: RecordTooLarge."""
        value, key, headers, timestamp, partition = message
        place = self._topics[topic]
        if partition is None:
            partition = self._spread % place.partitions if key is None else partition_for(key, place.partitions)
        moment_ms = self._now_ms if timestamp is None else round(timestamp * 1000)
        at = topic, partition
        one = self._open.get(at) or self._begin(at)
        if not one.builder.add(key, value, headers, timestamp_ms=moment_ms):
            self._finish(at)
            one = self._begin(at)
            if not one.builder.add(key, value, headers, timestamp_ms=moment_ms):
                raise RecordTooLarge(f"a record of {size} bytes for {topic} fits into no batch")
        one.owners[owner] = None
        self.bytes += size

    def build(self) -> list[OutputFor[T]]:
        """Finish and return all outputs, each partition's in order; nothing can be added any more."""
        for at in list(self._open):
            self._finish(at)
        return self._built

    def _begin(self, at: tuple[str, int]) -> _Open[T]:
        size = self._batch_bytes.get(at[0], BATCH_BYTES)
        builder = BatchBuilder(size_max=max(BATCH_OVERHEAD + 1, size), compression=self._settings.compression)
        one = self._open[at] = _Open[T](builder)
        return one

    def _finish(self, at: tuple[str, int]) -> None:
        one = self._open.pop(at)
        topic_id = self._topics[at[0]].topic_id
        if topic_id is None:
            raise ServerError(ErrorCode.UNSUPPORTED_VERSION, "the broker tells no topic ids", about=f"topic {at[0]}")
        output = SettleOutput(*at[:1], topic_id, at[1], one.builder.build())
        self._built.append(OutputFor(output, tuple(one.owners), one.builder.count))


def messages_of(outputs: Outputs) -> dict[str, list[Message]]:
    """Return a consumer's outputs as messages, topic by topic. Raises: TypeError."""
    check_argument("the outputs", outputs, Mapping)
    return {
        topic: [one if isinstance(one, Message) else Message(one) for one in items_of(items, topic)]
        for topic, items in outputs.items()
    }


def packed(
    messages: Mapping[str, Sequence[Message]], topics: Mapping[str, TopicPlace], *, now_ms: int, spread: int
) -> list[SettleOutput]:
    """Return a consumer's outputs as record batches. topics, now_ms, spread: as of `OutputBatches`.

    Raises: RecordTooLarge, ServerError, TypeError.
    """
    batches = OutputBatches[str](topics, settings=ProducerSettings(), batch_bytes={}, now_ms=now_ms, spread=spread)
    for topic, some in messages.items():
        for message in some:
            batches.add(topic, topic, message, batches.check(topic, message))
    return [one.output for one in batches.build()]
