"""State of one idempotent producer on a partition, and the checks of the producer's next batch or marker.

Rules (Kafka 4.x: ProducerAppendInfo; KIP-98, KIP-360):

- A batch that equals one of the last five of the same epoch (first and last sequence) is a duplicate. It is not written
  again; the answer names its first place. This makes a retried request harmless.
- An epoch below the known one is refused: InvalidProducerEpoch.
- A higher epoch starts at sequence 0, else OutOfOrderSequence.
- Within an epoch sequences follow each other; after 2^31-1 comes 0. A gap is OutOfOrderSequence.
- A producer that is not known (never seen, or expired) may start at any sequence.
- The first transactional batch opens a transaction on the partition. Until its marker comes, only transactional batches
  are accepted from the producer (else InvalidTxnState).
- A marker ends the transaction. If the marker's epoch is higher, the producer takes it, and sequences start at 0 again.

Pure functions over values; offsets and times are arguments.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from flowshare.core_errors import InvalidProducerEpoch, InvalidTxnState, OutOfOrderSequence

SEQUENCES: Final = 2**31
"""The number of sequences: they run from 0 to this, exclusive, and then from 0 again."""
BATCHES_KEPT: Final = 5
"""The number of a producer's last batches that are recognised as duplicates; a client has at most five under way."""
NO_SEQUENCE: Final = -1
NOT_OPEN: Final = -1


class ProducerBatch(NamedTuple):
    """The producer's fields in a produced batch. `sequence` is that of the batch's first record, of `record_count`."""

    producer_id: int
    epoch: int
    sequence: int
    record_count: int
    transactional: bool

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record."""
        return (self.sequence + self.record_count - 1) % SEQUENCES


class Written(NamedTuple):
    """A batch of the producer that is in the log; offsets are inclusive."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int


class ProducerState(NamedTuple):
    """A producer as one partition knows it.

    batches: its last ones of this epoch, oldest first. open_since: first offset of its open transaction, −1 without.
    touched_ms: time of its last batch or marker.
    """

    epoch: int
    batches: tuple[Written, ...]
    open_since: int
    touched_ms: int

    @property
    def last_sequence(self) -> int:
        """Sequence of its last record, −1 if it wrote none in this epoch."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE


def duplicate(producer: ProducerState | None, batch: ProducerBatch) -> Written | None:
    """Return the batch's place in the log, if it is one of the producer's last."""
    if producer is None or producer.epoch != batch.epoch:
        return None
    for written in producer.batches:
        if written.first_sequence == batch.sequence and written.last_sequence == batch.last_sequence:
            return written
    return None


def check(producer: ProducerState | None, batch: ProducerBatch) -> None:
    """Check that a batch, which is no duplicate, may be written now.

    Raises: InvalidProducerEpoch, OutOfOrderSequence, InvalidTxnState.
    """
    if producer is None:
        return
    if batch.epoch < producer.epoch:
        raise _old_epoch(batch.producer_id, batch.epoch, producer.epoch)
    last = producer.last_sequence if batch.epoch == producer.epoch else NO_SEQUENCE
    if batch.sequence != (last + 1) % SEQUENCES:
        raise OutOfOrderSequence(
            f"producer {batch.producer_id} in epoch {batch.epoch} sent sequence {batch.sequence}, its last one was "
            f"{last}: batches in between were lost, or are older than the last {BATCHES_KEPT}"
        )
    if producer.open_since != NOT_OPEN and not batch.transactional:
        raise InvalidTxnState(
            f"producer {batch.producer_id} has an open transaction on the partition and sent a batch outside it"
        )


def follow(producer: ProducerState | None, batch: ProducerBatch, base_offset: int, now_ms: int) -> ProducerState:
    """Return the producer after a batch, checked by `check`, was placed at `base_offset`."""
    last_offset = base_offset + batch.record_count - 1
    written = Written(batch.sequence, batch.last_sequence, base_offset, last_offset)
    known = producer.batches if producer is not None and producer.epoch == batch.epoch else ()
    open_since = NOT_OPEN if producer is None else producer.open_since
    if open_since == NOT_OPEN and batch.transactional:
        open_since = base_offset
    return ProducerState(batch.epoch, (*known[1 - BATCHES_KEPT :], written), open_since, now_ms)


def check_marker(producer: ProducerState | None, producer_id: int, epoch: int) -> None:
    """Check that a marker of this epoch may be written. Raises: InvalidProducerEpoch."""
    if producer is not None and epoch < producer.epoch:
        raise _old_epoch(producer_id, epoch, producer.epoch)


def end(producer: ProducerState | None, epoch: int, now_ms: int) -> ProducerState:
    """Return the producer after a marker of this epoch."""
    known = producer.batches if producer is not None and producer.epoch == epoch else ()
    return ProducerState(epoch, known, NOT_OPEN, now_ms)


def _old_epoch(producer_id: int, epoch: int, known: int) -> InvalidProducerEpoch:
    return InvalidProducerEpoch(
        f"producer {producer_id} came with epoch {epoch}, {known} is known: a newer producer took over, or its "
        "transaction timed out"
    )
