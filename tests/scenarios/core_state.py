"""Durable state, driven directly: Kafka's combiner and the share coordinator's state shard."""

from __future__ import annotations

from flowshare.share.records import combine
from tests.scenarios import words
from tests.scenarios.language import Outcome, Step


class CoreState:
    """Steps about stored state."""

    def do_combine(self, step: Step) -> Outcome:
        """`combine 100-110A1 + 105-108A1 start=100`: stored runs, then new ones."""
        at = step.words.index("+")
        start = int(step.options.get("start", "0"))
        return Outcome(words.show_runs(combine(words.runs(step.words[:at]), words.runs(step.words[at + 1 :]), start)))
