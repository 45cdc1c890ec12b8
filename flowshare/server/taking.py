"""What a fetch wants of one share-partition, and what it got."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import asyncio

    from flowshare.server.parking import Waiter
    from flowshare.share.types import AcquiredRange, AcquireMode


class Want(NamedTuple):
    """What a fetch wants of one share-partition. `waiter.ended` stops it from acquiring any more."""

    member_id: str
    mode: AcquireMode
    records_max: int
    batch_size: int
    bytes_max: int
    with_records: bool
    waiter: Waiter


class Taken(NamedTuple):
    """What a fetch got. `durable`: to be awaited before the records leave; raises StorageError."""

    ranges: tuple[AcquiredRange, ...] = ()
    records: bytes = b""
    durable: asyncio.Future[None] | None = None


NOTHING: Final = Taken()
