"""Whether this release can read what the fleet writes: asked before a worker joins.

Who leads a slot has written in its own format, its claim first of all, so the last record of each slot shows which
releases lead. A worker that could not follow them would be chosen for slots and never claim them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from flowshare.client.errors import check
from flowshare.fleet.errors import StateTopicRefused
from flowshare.protocol.decoding import PADDING, SIZE_MAX, read_batch
from flowshare.protocol.headers import frames
from flowshare.protocol.messages import FetchRequest, ListOffsetsRequest
from flowshare.protocol.messages.records import LATEST, FetchedLog, FetchPartition
from flowshare.slots.errors import NewerFormat, StateCorrupt
from flowshare.slots.records import decode

if TYPE_CHECKING:
    from collections.abc import Iterator

PART_BYTES: Final = 1
"""Asked of each slot: brokers give at least one whole batch."""


async def check_formats(kafka: Any, topic: str, slots: int) -> None:
    """Look at the last record of each slot. kafka: a connection to the cluster.

    Raises: StateTopicRefused, OSError, ClientError
    """
    asked = (ListOffsetsRequest(topic=topic, partition=slot, timestamp_ms=LATEST) for slot in range(slots))
    ends = await asyncio.gather(*(kafka.send(one) for one in asked))
    for end in ends:
        check(end.error, end.message, f"looking for the ends of {topic}")
    lasts = [FetchPartition(topic, slot, end.offset - 1, PART_BYTES) for slot, end in enumerate(ends) if end.offset > 0]
    answers = await asyncio.gather(*(kafka.send(FetchRequest(partitions=(last,))) for last in lasts))
    for last, answer in zip(lasts, answers, strict=True):
        for key, value in _records(answer.partitions[0], last.offset):
            _check(key, value, f"{topic}-{last.partition}")


def _records(log: FetchedLog, position: int) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Keys and values from `position` on; none when the slot was pruned up to its end."""
    padded = log.records + PADDING
    for header in frames(log.records, partial_tail=True):
        for raw in read_batch(padded, header, SIZE_MAX).records:
            if raw.offset >= position:
                yield raw.key, raw.value


def _check(key: bytes | None, value: bytes | None, where: str) -> None:
    try:
        decode(key, value)
    except NewerFormat as error:
        raise StateTopicRefused(f"the fleet's state in {where} was written by a newer flowshare: {error}") from None
    except StateCorrupt:
        return  # whoever follows the slot tells what is wrong with it
