"""The member's half of a share session: the epoch and the partitions that the server knows of (KIP-932).

ShareFetch and ShareAcknowledge share one counter. It is advanced when a request is made, not when it is answered,
so that an acknowledgement need not wait for a parked fetch; requests reach the server in the order they are made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from flowshare.protocol.messages import TopicPartition

EPOCH_OPEN: Final = 0
EPOCH_CLOSE: Final = -1
EPOCH_MAX: Final = 0x7FFFFFFF


class FetchSession:
    """Epoch and partitions of the session; `number` tells one session from the next."""

    def __init__(self) -> None:
        self.epoch = EPOCH_OPEN
        self.number = 0
        self.partitions: frozenset[TopicPartition] = frozenset()

    @property
    def open(self) -> bool:
        """Whether a session was opened and nothing was heard of its end."""
        return self.epoch != EPOCH_OPEN

    def next_epoch(self) -> int:
        """The epoch for a request that is sent now."""
        epoch = self.epoch
        self.epoch = 1 if epoch == EPOCH_MAX else epoch + 1
        return epoch

    def change_to(
        self, wanted: AbstractSet[TopicPartition]
    ) -> tuple[tuple[TopicPartition, ...], tuple[TopicPartition, ...]]:
        """Partitions to add and to forget with the next fetch, so that the server knows exactly `wanted`."""
        added = tuple(sorted(wanted - self.partitions))
        forgotten = tuple(sorted(self.partitions - wanted))
        self.partitions = frozenset(wanted)
        return added, forgotten

    def reset(self, number: int | None = None) -> bool:
        """Start over with epoch 0. With `number`, only if that session is still the current one."""
        if number is not None and number != self.number:
            return False
        self.epoch = EPOCH_OPEN
        self.number += 1
        self.partitions = frozenset()
        return True
