"""What a fetch wants of one share-partition, and what it gets."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from flowshare.server.runtime.waiting import Waiter
    from flowshare.share.types import AcquiredRange, AcquireMode

READ_TRIES: Final = 8
"""How often a fetch reads again because another fetch moved on the cursor while it read."""


class Want(NamedTuple):
    """What a fetch wants of one share-partition. `waiter.ended` stops it from acquiring any more."""

    member_id: str
    mode: AcquireMode
    records_max: int
    batch_size: int
    bytes_max: int
    with_records: bool
    waiter: Waiter
    heads: int = 0
    """Where there is an order: so many keys may be begun (0: as many as records), and so long is a chain."""
    chain: int = 1


class Taken(NamedTuple):
    """What a fetch got. `durable`: to be awaited before the records leave; raises StorageError.

    fence: where there is an order: the load's generation, and the serial number of the first record; one that is n
    offsets behind it has one that is n higher. following: of parked keys, which are to become dead letters unrun:
    offset -> the record that the key was parked for.
    """

    ranges: tuple[AcquiredRange, ...] = ()
    records: bytes = b""
    durable: asyncio.Future[None] | None = None
    fence: tuple[int, int] | None = None
    following: Mapping[int, int] = MappingProxyType({})
    locked_ms: int = 0
    """When the locks began, on the steady clock."""


NOTHING: Final = Taken()
