"""The obvious share-partition: one tiny record an offset, nothing merged, nothing clever.

It says what must be true of the real one after each step. Which records an acquire picks is the real one's business
(batches, throttling); the model checks that the choice was allowed and that something was picked when something was
to be had. Source: KIP-932 as built in Kafka 4.2–4.4.
"""

from __future__ import annotations

from dataclasses import dataclass

from flowshare.share.types import AcknowledgeType, AckRange, AcquiredRange, Limits, LogBatch, RecordState, StateRun


@dataclass
class Tiny:
    """One offset."""

    state: RecordState = RecordState.AVAILABLE
    count: int = 0
    owner: str | None = None
    deadline_ms: int = 0
    not_before_ms: int = 0
    pending: bool = False


Wanted = list[tuple[int, AcknowledgeType, int, bool]]


class Model:
    """The window as a dict of tiny records. The log has no holes here (the scenarios show those)."""

    def __init__(self, limits: Limits, start: int = 0) -> None:
        self.limits = limits
        self.start = start
        self.end = start
        self.tiny: dict[int, Tiny] = {}

    # -- what must hold -------------------------------------------------------------------------------------

    def fetchable(self, offset: int, now_ms: int) -> bool:
        tiny = self.tiny.get(offset)
        return (
            tiny is not None
            and tiny.state is RecordState.AVAILABLE
            and not tiny.pending
            and tiny.not_before_ms <= now_ms
        )

    @property
    def acquired_count(self) -> int:
        return sum(tiny.state is RecordState.ACQUIRED for tiny in self.tiny.values())

    @property
    def complete_count(self) -> int:
        return sum(tiny.state.terminal for tiny in self.tiny.values())

    def room_for_new(self) -> bool:
        span = self.end - self.start if self.tiny else 0
        if self.limits.window_max is None:
            return span < self.limits.record_locks_max
        return span < self.limits.window_max and self.acquired_count < self.limits.record_locks_max

    def room_for_redelivery(self) -> bool:
        return self.limits.window_max is None or self.acquired_count < self.limits.record_locks_max

    def runs(self) -> dict[int, tuple[RecordState, int]]:
        return {offset: (tiny.state, tiny.count) for offset, tiny in self.tiny.items() if not tiny.pending}

    # -- steps ----------------------------------------------------------------------------------------------

    def acquired(
        self,
        member: str,
        ranges: tuple[AcquiredRange, ...],
        batches: list[LogBatch],
        window: dict[int, StateRun],
        new_end: int,
        now_ms: int,
    ) -> None:
        """Take over what the real one acquired, checking that it may."""
        room = self.room_for_new()
        last_seen = -1
        for first, last, delivery_count in ranges:
            assert last_seen < first <= last, f"ranges must ascend and be disjoint: {ranges}"
            last_seen = last
            for offset in range(first, last + 1):
                assert offset >= self.start, f"{offset} lies below the start offset {self.start}"
                assert batches[0].first <= offset <= batches[-1].last, f"{offset} was not fetched"
                assert offset not in self.tiny or self.fetchable(offset, now_ms), f"{offset} was not to be had"
                tiny = self.tiny.setdefault(offset, Tiny())
                if offset >= self.end:
                    assert room, f"{offset} is new, but there was no room"
                tiny.state, tiny.owner, tiny.count = RecordState.ACQUIRED, member, tiny.count + 1
                tiny.deadline_ms, tiny.not_before_ms = now_ms + self.limits.lock_duration_ms, 0
                assert delivery_count == tiny.count, f"{offset} was delivered {tiny.count} times, not {delivery_count}"
        for offset in range(self.end, new_end):
            if offset not in self.tiny:
                run = window[offset]
                assert (run.state, run.delivery_count) == (RecordState.AVAILABLE, 0), f"surplus {offset} is {run}"
                self.tiny[offset] = Tiny()
        self.end = max(self.end, new_end)

    def wanted(self, member: str, batches: list[AckRange]) -> Wanted | None:
        """Return the wish of an acknowledgement for each offset; None: it must be refused as a whole."""
        wanted: Wanted = []
        seen: set[int] = set()
        for batch in batches:
            if batch.last < self.start:
                continue
            if batch.last >= self.end:
                return None
            for index, offset in enumerate(range(batch.first, batch.last + 1)):
                if offset < self.start:
                    continue
                kind = AcknowledgeType(batch.types[0] if len(batch.types) == 1 else batch.types[index])
                tiny = self.tiny[offset]
                if tiny.state is not RecordState.ACQUIRED or tiny.pending or tiny.owner != member or offset in seen:
                    return None
                if kind is AcknowledgeType.RENEW and not self.limits.renew_enabled:
                    return None
                seen.add(offset)
                wanted.append((offset, kind, batch.delay_ms, batch.unrun))
        return wanted

    def decided(self, wanted: Wanted, now_ms: int) -> Wanted:
        """Mark what is being written; renewals act at once. Returns what is left to settle."""
        left = []
        for offset, kind, delay_ms, unrun in wanted:
            if kind is AcknowledgeType.RENEW:
                self.tiny[offset].deadline_ms = now_ms + self.limits.lock_duration_ms
            else:
                self.tiny[offset].pending = True
                left.append((offset, kind, now_ms + delay_ms if delay_ms else 0, unrun))
        return left

    def committed(self, wanted: Wanted) -> None:
        for offset, kind, not_before_ms, unrun in wanted:
            tiny = self.tiny.get(offset)
            if tiny is None:
                continue  # the log start passed it meanwhile
            tiny.pending, tiny.owner = False, None
            if kind is AcknowledgeType.ACCEPT:
                tiny.state = RecordState.ACKNOWLEDGED
            elif kind is AcknowledgeType.RELEASE:
                tiny.count -= unrun
                self._give_back(tiny)
                tiny.not_before_ms = not_before_ms if tiny.state is RecordState.AVAILABLE else 0
            else:
                tiny.state = RecordState.ARCHIVED
        self._advance()

    def aborted(self, wanted: Wanted, now_ms: int) -> None:
        for offset, *_ in wanted:
            tiny = self.tiny.get(offset)
            if tiny is None:
                continue
            tiny.pending = False
            if tiny.deadline_ms <= now_ms:
                self._give_back(tiny)
        self._advance()

    def expired(self, now_ms: int) -> None:
        for tiny in self.tiny.values():
            if tiny.state is RecordState.ACQUIRED and not tiny.pending and tiny.deadline_ms <= now_ms:
                self._give_back(tiny)
        self._advance()

    def released(self, member: str) -> None:
        for tiny in self.tiny.values():
            if tiny.state is not RecordState.ACQUIRED or tiny.owner != member:
                continue
            if tiny.pending:
                tiny.deadline_ms = -1  # the member is gone: should the write fail, nobody holds the record
            else:
                self._give_back(tiny)
        self._advance()

    def log_started_at(self, log_start: int) -> None:
        if log_start <= self.start:
            return
        self.start, self.end = log_start, max(self.end, log_start)
        self.tiny = {offset: tiny for offset, tiny in self.tiny.items() if offset >= log_start}
        self._advance()

    def cut(self, end: int) -> None:
        """The log lost what was at `end` and behind."""
        if end < self.end:
            self.start, self.end = min(self.start, end), end
            self.tiny = {offset: tiny for offset, tiny in self.tiny.items() if offset < end}

    def reloaded(self) -> None:
        for tiny in self.tiny.values():
            if tiny.state is RecordState.ACQUIRED:
                self._give_back(tiny)
        self._advance()

    def _give_back(self, tiny: Tiny) -> None:
        tiny.owner = None
        used_up = tiny.count >= self.limits.delivery_count_max
        tiny.state = RecordState.ARCHIVED if used_up else RecordState.AVAILABLE

    def _advance(self) -> None:
        while (tiny := self.tiny.get(self.start)) is not None and tiny.state.terminal and not tiny.pending:
            del self.tiny[self.start]
            self.start += 1
