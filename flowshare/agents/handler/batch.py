"""Batch handlers: `Batch` sets the number of records per call, `Records` is the handler's argument."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from flowshare.agents.handler.delivery import Delivery
from flowshare.agents.handler.outcomes import Reject, Release
from flowshare.agents.handler.retry import Seconds, count, seconds
from flowshare.agents.handler.texts import named, said, shown

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Batch:
    """Up to `size` records at once; fewer when `within` seconds passed since the first of them arrived."""

    size: int
    within: Seconds = field(default=0.5, kw_only=True)

    def __post_init__(self) -> None:
        """Raises: OptionError when a value is refused."""
        count(self.size, "fs.Batch(size)", 10_000)
        object.__setattr__(self, "within", seconds(self.within, "fs.Batch(within=…)"))

    @property
    def within_s(self) -> float:
        """`within` in seconds."""
        assert isinstance(self.within, float)
        return self.within


class BatchRecord(Generic[T]):
    """One record of a batch: its `value` and its `delivery`."""

    __slots__ = ("delivery", "value")

    def __init__(self, value: T, delivery: Delivery) -> None:
        self.value = value
        self.delivery = delivery

    @property
    def key(self) -> Any:
        """The record's key, of the topic's `key_type`; see `Delivery.key`."""
        return self.delivery.key

    @property
    def id(self) -> str:
        """The delivery's id, the same on every attempt: a key for idempotent writes."""
        return self.delivery.id

    def __repr__(self) -> str:
        return f"<BatchRecord {self.delivery.topic}-{self.delivery.partition}@{self.delivery.offset}>"


class Records(Generic[T]):
    """The records of one batch, in order, with an outcome for each: accept, unless the handler says otherwise.

    When the handler raises, every record without an outcome goes the way of the exception.

    With an order (`order=`), a record that is not accepted takes the later records of its key out of the batch.
    Whatever outcome those have, they are released as if no handler had begun them, and come again behind that record.
    """

    __slots__ = ("_by_id", "_records", "outcomes")

    def __init__(self, records: list[BatchRecord[T]]) -> None:
        self._records = records
        self._by_id: dict[int, list[int]] | None = None
        self.outcomes: list[Release | Reject | BaseException | None] = [None] * len(records)

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[BatchRecord[T]]:
        return iter(self._records)

    def __getitem__(self, index: int) -> BatchRecord[T]:
        return self._records[index]

    @property
    def agent(self) -> str:
        """Name of the agent."""
        return self._records[0].delivery.agent

    @property
    def group(self) -> str:
        """Name of the agent's share group."""
        return self._records[0].delivery.group

    def values(self) -> list[T]:
        """Return the values, in order."""
        return [record.value for record in self._records]

    def reject(self, record: BatchRecord[T] | T, reason: object = "rejected by the handler") -> None:
        """Reject this record (or the one with this very value) for good: to the dead letter with `reason`."""
        text = named(reason) if isinstance(reason, BaseException) else said(reason)
        self.outcomes[self._index(record)] = Reject(text)

    def release(self, record: BatchRecord[T] | T, delay: Seconds = 0) -> None:
        """Release this record; it is available again after `delay` seconds."""
        self.outcomes[self._index(record)] = Release(delay)

    def retry(self, record: BatchRecord[T] | T, error: BaseException) -> None:
        """Treat this record as if its handler had raised `error`."""
        self.outcomes[self._index(record)] = error

    def _index(self, record: Any) -> int:
        if self._by_id is None:
            self._by_id = {}
            for index, one in enumerate(self._records):
                self._by_id.setdefault(id(one), []).append(index)
                self._by_id.setdefault(id(one.value), []).append(index)
        found = self._by_id.get(id(record))
        if found is None:
            found = [index for index, one in enumerate(self._records) if one.value == record]
        if not found:
            raise ValueError(f"{shown(record)} is not a record of this batch")
        return next((index for index in found if self.outcomes[index] is None), found[-1])
