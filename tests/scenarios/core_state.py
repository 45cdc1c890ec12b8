"""Durable state, driven directly: Kafka's combiner and the share coordinator's rules."""

from __future__ import annotations

from collections.abc import Callable

from flowshare.core_errors import CoreError
from flowshare.protocol.errors import error_code
from flowshare.share.records import combine
from flowshare.share.shard import StateEntry
from flowshare.share.types import PartitionState
from tests.scenarios import words
from tests.scenarios.core_groups import topic_id
from tests.scenarios.language import Outcome, Step


class CoreState:
    """Steps about stored state; what is decided is stored at once."""

    def __init__(self) -> None:
        self.state: PartitionState | None = None

    def do_combine(self, step: Step) -> Outcome:
        """`combine 100-110A1 + 105-108A1 start=100`: stored runs, then new ones."""
        at = step.words.index("+")
        start = int(step.options.get("start", "0"))
        return Outcome(words.show_runs(combine(words.runs(step.words[:at]), words.runs(step.words[at + 1 :]), start)))

    def do_init(self, step: Step) -> Outcome:
        """`init epoch=1 start=40`."""
        return self._store(
            lambda entry: entry.initialize(
                state_epoch=int(step.options["epoch"]), start_offset=int(step.options.get("start", "-1"))
            )
        )

    def do_write(self, step: Step) -> Outcome:
        """`write 0-4K1 epoch=1 leader=5 start=0 complete=5`."""
        return self._store(
            lambda entry: entry.write(
                state_epoch=int(step.options.get("epoch", "1")),
                leader_epoch=int(step.options.get("leader", "0")),
                start_offset=int(step.options.get("start", "0")),
                delivery_complete_count=int(step.options.get("complete", "0")),
                runs=words.runs(step.words),
            )
        )

    def do_read(self, step: Step) -> Outcome:
        """`read leader=5`: the state that a new leader gets."""
        outcome = self._store(lambda entry: entry.read(leader_epoch=int(step.options.get("leader", "0"))))
        if outcome.failed or self.state is None:
            return outcome
        fields = {"start": str(self.state.start_offset), "complete": str(self.state.delivery_complete_count)}
        return Outcome(words.show_runs(self.state.runs), {**fields, "epoch": str(self.state.state_epoch)})

    def _store(self, decide: Callable[[StateEntry], PartitionState]) -> Outcome:
        try:
            self.state = decide(StateEntry(words.GROUP, topic_id(words.TOPIC), 0, self.state))
        except CoreError as error:
            return Outcome(error_code(error).name)
        return Outcome("NONE")
