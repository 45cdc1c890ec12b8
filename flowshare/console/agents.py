"""Looks at the workers' counters of agents every few seconds: how many records they handle, and how that ends."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from flowshare.console.store import AGENTS, AgentFigures
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from flowshare.clock import Clock
    from flowshare.console.store import Store
    from flowshare.console.workers import Workers

logger = logging.getLogger("flowshare.console")

LOOK_S: Final = 5.0
COUNTERS: Final = {
    "flowshare_record_acknowledgements": "type",
    "flowshare_records_redelivered": None,
    "flowshare_handler_errors": None,
    "flowshare_handler_timeouts": None,
    "flowshare_records_undecodable": None,
    "flowshare_dead_letter_queue_records": None,
}
"""Metrics of agents that are shown, with the label that tells their kinds apart."""


@dataclass(slots=True)
class AgentCounts:
    """Counters of an agent, summed over workers. counts: by name. exceptions: by type. buckets: handlers that took at
    most so many seconds; seconds: all of them took."""

    counts: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    exceptions: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    buckets: dict[float, float] = field(default_factory=lambda: defaultdict(float))
    seconds: float = 0.0

    @property
    def handled(self) -> float:
        """Handlers that have ended."""
        return max(self.buckets.values(), default=0.0)


def counted(workers: Sequence[Mapping[str, Any]]) -> dict[str, AgentCounts]:
    """Agents by name, from the metrics of several workers (families by name)."""
    agents: dict[str, AgentCounts] = defaultdict(AgentCounts)
    for families in workers:
        for name, label in COUNTERS.items():
            for sample in _samples(families, name):
                what = sample.labels.get(label, name) if label else name.removeprefix("flowshare_").replace("_", " ")
                agents[sample.labels["agent"]].counts[what] += sample.value
        for sample in _samples(families, "flowshare_handler_exceptions"):
            agents[sample.labels["agent"]].exceptions[sample.labels.get("exception", "")] += sample.value
        for sample in _samples(families, "flowshare_handler_seconds"):
            if sample.name.endswith("_bucket"):
                agents[sample.labels["agent"]].buckets[float(sample.labels["le"])] += sample.value
            elif sample.name.endswith("_sum"):
                agents[sample.labels["agent"]].seconds += sample.value
    return dict(agents)


def figures(before: AgentCounts, after: AgentCounts, seconds: float) -> AgentFigures:
    """What was done between two looks. Counters fall when a worker ends; then nothing is known of that time."""
    handled = after.handled - before.handled
    errors = after.counts["handler errors"] - before.counts["handler errors"]
    late = after.counts["handler timeouts"] - before.counts["handler timeouts"]
    if seconds <= 0 or min(handled, errors, late) < 0:
        return AgentFigures()
    return AgentFigures(
        handled=round(handled / seconds, 2),
        failed=round(errors / seconds, 2),
        timed_out=round(late / seconds, 2),
        mean_s=round((after.seconds - before.seconds) / handled, 4) if handled > 0 else None,
    )


def _samples(families: Mapping[str, Any], name: str) -> list[Any]:
    family = families.get(name)
    samples: list[Any] = [] if family is None else family.samples
    return [one for one in samples if "agent" in one.labels and not one.name.endswith("_created") and _is_known(one)]


def _is_known(sample: Any) -> bool:
    """Whether it can be counted: what a worker says is a claim."""
    if not sample.name.endswith("_bucket"):
        return math.isfinite(sample.value)
    try:
        return math.isfinite(sample.value) and not math.isnan(float(sample.labels.get("le", "")))
    except ValueError:
        return False


class AgentWatch:
    """Everything on one loop. silent: workers that do not answer, and why."""

    def __init__(self, workers: Workers, store: Store, clock: Clock) -> None:
        self._workers = workers
        self._store = store
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._at_s = 0.0
        self.agents: Mapping[str, AgentCounts] = {}
        self.silent: Mapping[str, str] = {}
        self.answered = 0

    def start(self) -> None:
        """Begin to look, where workers are known."""
        if self._workers.known:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="flowshare-console-agents")

    async def close(self) -> None:
        """End."""
        task, self._task = self._task, None
        await cancelled(task)

    async def look(self) -> None:
        """Ask all workers once."""
        told = await self._workers.metrics()
        now_s = self._clock.monotonic()
        found = counted(list(told.rows.values()))
        if self.agents and told.rows:
            made = {
                name: figures(self.agents[name], one, now_s - self._at_s)
                for name, one in found.items()
                if name in self.agents
            }
            self._store.keep(AGENTS, self._clock.now_ms() // 1000, made)
        self.silent, self._at_s = dict(told.silent), now_s
        if told.rows or not told.silent:  # else what was seen last is shown, beside who is silent
            self.agents, self.answered = found, len(told.rows)

    async def _run(self) -> None:
        while True:
            try:
                await self.look()
            except OSError as error:
                logger.debug("the workers could not be asked: %s", error)
            except Exception:  # a fault of the console: the next look may go well
                logger.exception("the workers could not be asked")
            await self._clock.sleep(LOOK_S)
