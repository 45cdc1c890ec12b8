"""Appending to the embedded storage: offsets are given on the loop at once, in the order in which they are written."""

from __future__ import annotations

from collections.abc import Callable

from flowshare.clock import Clock
from flowshare.log.base import Appended
from flowshare.log.commits import Commits
from flowshare.log.partition import Partition
from flowshare.log.producing import Decide, decided, writes
from flowshare.log.store import Step
from flowshare.log.tail import TailBatch, TailBudget
from flowshare.log.topics import TopicSettings
from flowshare.log.writer import REQUEST_BYTES
from flowshare.protocol.batches import BatchHeader, rebase
from flowshare.transactions.producers import Written


class Appender:
    """Places checked batches. `find` and `settings` raise UnknownTopic."""

    def __init__(
        self,
        commits: Commits,
        budget: TailBudget,
        clock: Clock,
        *,
        find: Callable[[str, int], Partition],
        settings: Callable[[str], TopicSettings],
    ) -> None:
        self._commits = commits
        self._budget = budget
        self._clock = clock
        self._find = find
        self._settings = settings

    async def place(
        self, place: tuple[str, int], records: bytes, headers: tuple[BatchHeader, ...], decide: Decide | None
    ) -> Appended:
        """Give the batches offsets and return when they are durable; `decide`: what a producer's batch changes.

        Raises: UnknownTopic, ProducerRefused, StorageError.
        """
        topic, partition = place
        size = len(records) + REQUEST_BYTES * len(headers)
        await self._commits.gate.enter(size)
        try:
            # The topic may have gone while this waited. From here to the queue nothing is awaited: offsets are
            # given in the order in which they are written.
            self._commits.check()
            log = self._find(topic, partition)
            append_time = self._settings(topic).append_time
            base, now_ms = log.next_offset, self._clock.now_ms()
            placed = rebase(records, headers, base, now_ms=now_ms if append_time else None)
            change = None if decide is None else decided(decide, log.producers, base, self._clock.steady_ms())
            if isinstance(change, Written):
                # Behind the first one in the queue: whatever becomes of that becomes of this.
                future = self._commits.queue(Step(()), size)
                base, end = change.base_offset, change.last_offset + 1
                batches = list[TailBatch]()
            else:
                if append_time:
                    headers = tuple(header._replace(max_timestamp=now_ms) for header in headers)
                stored, batches = log.place(placed, headers)
                if change is not None:
                    stored += writes(log.topic_id, partition, change)
                end, position = log.next_offset, log.position

                def applied() -> None:
                    log.confirm(end, position, change)

                future = self._commits.queue(Step(stored), size, applied, place)
        except BaseException:
            self._commits.gate.leave(1, size)
            raise
        for batch in batches:
            self._budget.append(log.tail, batch)
        await future
        stamp_ms = now_ms if append_time else -1
        return Appended(base_offset=base, last_offset=end - 1, log_start=log.log_start, append_time_ms=stamp_ms)
