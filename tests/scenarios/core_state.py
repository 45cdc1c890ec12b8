"""Durable state, driven directly: Kafka's combiner and the share coordinator's state shard."""

from __future__ import annotations

from collections.abc import Callable

from flowshare.protocol.errors import error_code
from flowshare.share.errors import ShareError
from flowshare.share.records import combine
from flowshare.share.shard import ShardKey, ShardRecord, StateShard
from flowshare.share.types import PartitionState
from tests.scenarios import words
from tests.scenarios.core_groups import topic_id
from tests.scenarios.language import Outcome, Step
from tests.scenarios.words import Place


class CoreState:
    """Steps about stored state; a written record takes effect at once."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self.clock = clock
        self.shard = StateShard()

    def do_combine(self, step: Step) -> Outcome:
        """`combine 100-110A1 + 105-108A1 start=100`: stored runs, then new ones."""
        at = step.words.index("+")
        start = int(step.options.get("start", "0"))
        return Outcome(words.show_runs(combine(words.runs(step.words[:at]), words.runs(step.words[at + 1 :]), start)))

    def do_init(self, step: Step) -> Outcome:
        """`init key=1 epoch=1 start=40`."""
        return self._attempt(
            lambda: self._write(
                self.shard.initialize(
                    self._key(step),
                    state_epoch=int(step.options["epoch"]),
                    start_offset=int(step.options.get("start", "-1")),
                    now_ms=self.clock(),
                )
            )
        )

    def do_write(self, step: Step) -> Outcome:
        """`write 0-4K1 epoch=1 leader=5 start=0 complete=5 [times=500]`."""
        outcome = Outcome()
        for _ in range(int(step.options.get("times", "1"))):
            outcome = self._attempt(
                lambda: self._write(
                    self.shard.write(
                        self._key(step),
                        state_epoch=int(step.options.get("epoch", "1")),
                        leader_epoch=int(step.options.get("leader", "0")),
                        start_offset=int(step.options.get("start", "0")),
                        delivery_complete_count=int(step.options.get("complete", "0")),
                        runs=words.runs(step.words),
                        now_ms=self.clock(),
                    )
                )
            )
        return outcome

    def do_read(self, step: Step) -> Outcome:
        """`read leader=5`: the state that a new leader gets."""

        def read() -> Outcome:
            leader = int(step.options.get("leader", "0"))
            state, record = self.shard.read(self._key(step), leader_epoch=leader, now_ms=self.clock())
            self._write(record)
            fields = {"start": str(state.start_offset), "complete": str(state.delivery_complete_count)}
            return Outcome(words.show_runs(state.runs), {**fields, "epoch": str(state.state_epoch)})

        return self._attempt(read)

    def do_summary(self, step: Step) -> Outcome:
        """`summary`: start offset and delivery-complete count."""
        start, complete = self.shard.summary(self._key(step))
        return Outcome("ok", {"start": str(start), "complete": str(complete)})

    def do_delete(self, step: Step) -> Outcome:
        """`delete`: the state is gone."""
        return self._attempt(lambda: self._write(self.shard.delete(self._key(step))))

    def do_drop_topic(self, step: Step) -> Outcome:
        """`drop_topic t`: the topic was deleted."""
        found = [self._write(record) for record in self.shard.topic_deleted(topic_id(step.words[0]))]
        return Outcome("ok", {"tombstones": str(sum(outcome.fields["record"] == "tombstone" for outcome in found))})

    def do_cold(self, step: Step) -> Outcome:
        """`cold`: the job that writes snapshots of what is not written any more."""
        del step
        found = self.shard.snapshot_cold(self.clock())
        for record in found:
            self._write(record)
        return Outcome("ok", {"snapshots": ",".join(str(record.key.partition) for record in found) or "none"})

    def _key(self, step: Step) -> ShardKey:
        where = words.place(step.options["key"]) if "key" in step.options else Place(words.TOPIC, 0)
        return ShardKey(words.GROUP, topic_id(where.topic), where.partition)

    def _write(self, record: ShardRecord | None) -> Outcome:
        if record is None:
            return Outcome("NONE", {"record": "none"})
        self.shard.apply(record)
        kind = "tombstone" if record.value is None else "update"
        kind = "snapshot" if isinstance(record.value, PartitionState) else kind
        return Outcome("NONE", {"record": kind, "snapshot_epoch": str(record.snapshot_epoch)})

    def _attempt(self, work: Callable[[], Outcome]) -> Outcome:
        try:
            return work()
        except ShareError as error:
            return Outcome(error_code(error).name)
