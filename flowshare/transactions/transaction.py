"""One transactional id: its producer, its state, the partitions and groups of its open transaction.

Invariant: only Ongoing takes in partitions and groups and only PrepareCommit and PrepareAbort have decided an end that
is not carried out everywhere yet; Empty, CompleteCommit and CompleteAbort have no partitions and groups.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from sys import getsizeof
from typing import Final

NO_EPOCH: Final = -1
NO_PRODUCER_ID: Final = -1
NOT_STARTED: Final = -1
EPOCH_MAX: Final = 2**15 - 1
PLACE_BYTES: Final = 150
"""The memory of a partition or a group of a transaction, beside the group's id, in bytes, about."""
EPOCH_EXHAUSTED: Final = EPOCH_MAX - 1
"""The epoch from which on a producer gets a new id; the epoch above is left for fencing it."""


class TransactionState(enum.Enum):
    """State of a transactional id; the value is Kafka's word, on the wire too."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"

    @property
    def prepared(self) -> bool:
        """True if an end is decided and not carried out everywhere yet."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def idle(self) -> bool:
        """True if no transaction is open or being ended."""
        return self in (TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """A transactional id as it is stored.

    last_epoch, last_producer_id: the producer's before its last bump, if it asked for that bump itself: then a repeated
    request is recognised (KIP-360). started_ms: first partition or group of the open transaction.
    """

    transactional_id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    last_epoch: int = NO_EPOCH
    last_producer_id: int = NO_PRODUCER_ID
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[tuple[str, int]] = frozenset()
    groups: frozenset[str] = frozenset()
    started_ms: int = NOT_STARTED
    updated_ms: int = 0

    def shifted(self, by_ms: int, *, until_ms: int | None = None) -> Transaction:
        """Return the transaction with all times `by_ms` later, none of them after `until_ms`."""

        def moved(time_ms: int) -> int:
            return time_ms + by_ms if until_ms is None else min(time_ms + by_ms, until_ms)

        started_ms = NOT_STARTED if self.started_ms == NOT_STARTED else moved(self.started_ms)
        return replace(self, started_ms=started_ms, updated_ms=moved(self.updated_ms))

    @property
    def size(self) -> int:
        """The memory of its partitions and groups in bytes, about."""
        return PLACE_BYTES * (len(self.partitions) + len(self.groups)) + sum(map(getsizeof, self.groups))

    @property
    def deadline_ms(self) -> int | None:
        """The time at which the open transaction is aborted, None without one."""
        return self.started_ms + self.timeout_ms if self.state is TransactionState.ONGOING else None
