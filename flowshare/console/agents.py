"""Looks at the workers' counters of agents every few seconds: handled records, and their outcomes.

While a group stands still workers are also asked for held records and their handlers' exceptions.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from flowshare.agents.handler.texts import clip
from flowshare.console.store import AGENTS, AgentFigures
from flowshare.ops import in_hand
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from flowshare.cli.worker_pages import Workers
    from flowshare.clock import Clock
    from flowshare.console.store import Store
    from flowshare.ops.in_hand import InHand

logger = logging.getLogger("flowshare.console")

LOOK_S: Final = 5.0
AGENTS_MAX: Final = 500
"""The most agents that are counted; of more the first ones that workers tell of."""
KINDS_MAX: Final = 50
"""The most exceptions, and outcomes, of an agent."""
NAME_MAX: Final = 200
"""The most characters of a name."""
COUNT_MAX: Final = 2.0**63
"""A bound above every true counter."""
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
    """Counters of an agent, summed over workers. counts: by name. exceptions: by type. buckets: upper bound in seconds
    -> handlers that took at most so long; seconds: the time of all handlers."""

    counts: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    exceptions: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    buckets: dict[float, float] = field(default_factory=lambda: defaultdict(float))
    seconds: float = 0.0

    @property
    def handled(self) -> float:
        """The number of handlers that have ended."""
        return max(self.buckets.values(), default=0.0)


def counted(workers: Sequence[Mapping[str, Any]]) -> dict[str, AgentCounts]:
    """Return agents by name, from the metrics of several workers (families by name)."""
    agents: dict[str, AgentCounts] = {}
    for families in workers:
        for name, label in COUNTERS.items():
            for sample, agent in _samples(families, name, agents):
                what = sample.labels.get(label, name) if label else name.removeprefix("flowshare_").replace("_", " ")
                _add(agent.counts, what, sample.value)
        for sample, agent in _samples(families, "flowshare_handler_exceptions", agents):
            _add(agent.exceptions, sample.labels.get("exception", ""), sample.value)
        for sample, agent in _samples(families, "flowshare_handler_seconds", agents):
            if sample.name.endswith("_bucket"):
                edge = float(sample.labels["le"])
                if edge in agent.buckets or len(agent.buckets) < KINDS_MAX:
                    agent.buckets[edge] += sample.value
            elif sample.name.endswith("_sum"):
                agent.seconds += sample.value
    return agents


def _add(counts: dict[str, float], what: str, value: float) -> None:
    what = clip(what, NAME_MAX)
    if what in counts or len(counts) < KINDS_MAX:
        counts[what] = counts.get(what, 0.0) + value


def figures(before: AgentCounts, after: AgentCounts, seconds: float) -> AgentFigures:
    """Return an agent's figures for the time between two looks. Counters fall when a worker ends; then the figures of
    that time are unknown."""
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


def _samples(
    families: Mapping[str, Any], name: str, agents: dict[str, AgentCounts]
) -> Iterator[tuple[Any, AgentCounts]]:
    """Yield the samples of a family with the counts that they belong to."""
    family = families.get(name)
    samples: list[Any] = [] if family is None else family.samples
    for one in samples:
        if "agent" not in one.labels or one.name.endswith("_created") or not _is_known(one):
            continue
        agent = clip(one.labels["agent"], NAME_MAX)
        if agent in agents or len(agents) < AGENTS_MAX:
            yield one, agents.setdefault(agent, AgentCounts())


def _is_known(sample: Any) -> bool:
    """True if a sample can be counted: a worker's figures are claims, so they are checked."""
    if not abs(sample.value) <= COUNT_MAX:
        return False
    try:
        return not sample.name.endswith("_bucket") or not math.isnan(float(sample.labels.get("le", "")))
    except ValueError:
        return False


class AgentWatch:
    """The watch over all workers' agents, on one loop. silent: workers that do not answer, with the reason. messages:
    exceptions with their texts, which may hold values of records; else by their types only."""

    def __init__(self, workers: Workers, store: Store, clock: Clock, *, messages: bool = True) -> None:
        self._workers = workers
        self._store = store
        self._clock = clock
        self._messages = messages
        self._task: asyncio.Task[None] | None = None
        self._at_s = 0.0
        self.agents: Mapping[str, AgentCounts] = {}
        self.silent: Mapping[str, str] = {}
        self.answered = 0
        self.wanted = False
        """True if a group stands still, so that it is worth asking who holds records."""
        self.in_hand: Mapping[str, InHand] = {}
        """Held records and last exceptions, by group, while wanted."""

    def start(self) -> None:
        """Begin to look, if workers are known."""
        if self._workers.known:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="flowshare-console-agents")

    async def close(self) -> None:
        """Stop."""
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
        if told.rows or not told.silent:  # else the last figures are shown, beside the silent workers
            self.agents, self.answered = found, len(told.rows)
        holding: Mapping[str, Any] = (await self._workers.in_hand()).rows if self.wanted else {}
        self.in_hand = in_hand.of_groups(holding, messages=self._messages)

    async def _run(self) -> None:
        while True:
            try:
                await self.look()
            except OSError as error:
                logger.debug("the workers could not be asked: %s", error)
            except Exception:  # a fault of the console: the next look may go well
                logger.exception("the workers could not be asked")
            await self._clock.sleep(LOOK_S)
