"""The obvious partition: a list of everything that was written; every answer comes of reading it from the start."""

from __future__ import annotations

from dataclasses import dataclass

from flowshare.transactions.producers import SEQUENCES, ProducerBatch


@dataclass(frozen=True)
class Entry:
    """A batch, or with `committed` set a marker."""

    producer_id: int
    epoch: int
    base: int
    last: int
    sequences: tuple[int, int] = (-1, -1)
    transactional: bool = True
    committed: bool | None = None


class Model:
    """`log` holds everything placed, the first `confirmed` entries of it are confirmed."""

    def __init__(self) -> None:
        self.log: list[Entry] = []
        self.confirmed = 0

    @property
    def end(self) -> int:
        return self.log[-1].last + 1 if self.log else 0

    def of(self, producer_id: int) -> list[Entry]:
        return [entry for entry in self.log if entry.producer_id == producer_id]

    def epoch(self, producer_id: int) -> int | None:
        return max((entry.epoch for entry in self.of(producer_id)), default=None)

    def recent(self, producer_id: int) -> list[Entry]:
        epoch = self.epoch(producer_id)
        batches = [entry for entry in self.of(producer_id) if entry.epoch == epoch and entry.committed is None]
        return batches[-5:]

    def duplicate(self, batch: ProducerBatch) -> Entry | None:
        wanted = (batch.sequence, (batch.sequence + batch.record_count - 1) % SEQUENCES)
        if batch.epoch != self.epoch(batch.producer_id):
            return None
        return next((entry for entry in self.recent(batch.producer_id) if entry.sequences == wanted), None)

    def refusal(self, batch: ProducerBatch) -> str | None:
        """Name of the error that a batch which is no duplicate meets."""
        epoch = self.epoch(batch.producer_id)
        if epoch is None:
            return None
        if batch.epoch < epoch:
            return "InvalidProducerEpoch"
        recent = self.recent(batch.producer_id) if batch.epoch == epoch else []
        following = (recent[-1].sequences[1] + 1) % SEQUENCES if recent else 0
        if batch.sequence != following:
            return "OutOfOrderSequence"
        open_since = self.open_since(self.log).get(batch.producer_id)
        return "InvalidTxnState" if open_since is not None and not batch.transactional else None

    def open_since(self, log: list[Entry]) -> dict[int, int]:
        opened: dict[int, int] = {}
        for entry in log:
            if entry.committed is not None:
                opened.pop(entry.producer_id, None)
            elif entry.transactional:
                opened.setdefault(entry.producer_id, entry.base)
        return opened

    def last_stable(self, high_watermark: int) -> int:
        return min(self.open_since(self.log[: self.confirmed]).values(), default=high_watermark)

    def aborted(self) -> set[tuple[int, int]]:
        """Confirmed batches whose producer's next confirmed marker says abort."""
        found, confirmed = set(), self.log[: self.confirmed]
        for index, entry in enumerate(confirmed):
            if entry.committed is not None or not entry.transactional:
                continue
            later = confirmed[index + 1 :]
            marker = next((e for e in later if e.producer_id == entry.producer_id and e.committed is not None), None)
            if marker is not None and not marker.committed:
                found.add((entry.base, entry.last))
        return found
