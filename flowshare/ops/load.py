"""`LoadWatch` looks at the agents' groups every few seconds and tells how many workers they need (`scaling.py`).

It lives on the service loop, beside the health pages, which show its findings. One look asks for the offsets of each
share-partition of the groups, so the time between two looks is at least twenty times the duration of the last one:
watching costs at most a twentieth of one connection, however many partitions there are. A failed look is tried again at
the next one; the last findings stand for `STALE_S` (or three looks, if that is longer), then nothing is known.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from flowshare.agents.handler.agent import ShareAgent
from flowshare.agents.handler.retry_headers import retry_topic
from flowshare.agents.run.stats import HandlerLook
from flowshare.backend.base import Capabilities
from flowshare.client.admin.admin import MAX_IN_FLIGHT, MAX_RATE, ShareAdmin
from flowshare.client.errors import ClientError
from flowshare.clock import Clock
from flowshare.ops.figures import GroupFigures, TopicFigures
from flowshare.ops.rates import HandlerCost
from flowshare.ops.reading import groups_of
from flowshare.ops.scaling import TARGET_AGE_S, Demand, capacity_per_s, needed, whole
from flowshare.ops.watcher import LookLimits, Snapshot, Watcher
from flowshare.share.rate import parse_rate
from flowshare.tasks import cancelled

logger = logging.getLogger("flowshare.host")

Row = dict[str, Any]

LOOK_S: Final = 2.0
"""Seconds from one look to the next one."""
SHARE: Final = 20
STALE_S: Final = 60.0
NOTHING: Final = Snapshot()


class Runtime(Protocol):
    """The part of an agent's runtime that load watching needs."""

    @property
    def agent(self) -> ShareAgent:
        """The agent."""

    def handler_look(self) -> HandlerLook:
        """Return its handlers' counters."""


class LoadWatch:
    """Figures of one app, as this process sees them. Everything runs on the service loop."""

    def __init__(
        self, runtimes: Mapping[str, Runtime], admin: ShareAdmin, capabilities: Capabilities, *, clock: Clock
    ) -> None:
        """runtimes: of each agent by its name, filled as agents start. capabilities: of the groups' backend."""
        self._runtimes = runtimes
        self._admin = admin
        self._capabilities = capabilities
        self._clock = clock
        self._watcher = Watcher(clock, LookLimits(breakers=0))  # no figure here depends on one
        self._costs: dict[str, HandlerCost] = {}
        self._seen = NOTHING
        self._at_s: float | None = None
        self._every_s = LOOK_S
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="flowshare-load")

    async def close(self) -> None:
        """End."""
        task, self._task = self._task, None
        await cancelled(task)

    def _shared(self) -> list[tuple[str, Runtime]]:
        """Return the agents in a share or cooperative group; others have no figures here."""
        return [(name, runtime) for name, runtime in self._runtimes.items() if runtime.agent.group_type != "consumer"]

    async def look(self) -> None:
        """Take one look. Raises: ClientError, OSError."""
        now_s = self._clock.monotonic()
        for name, runtime in self._shared():
            cost = self._costs.get(name)
            if cost is None:
                cost = self._costs[name] = HandlerCost(runtime.agent.options.retry.max_attempts)
            cost.look(runtime.handler_look())
        groups = groups_of(runtime.agent for _, runtime in self._shared())
        self._seen, self._at_s = await self._watcher.look(self._admin, self._capabilities, groups), now_s

    # --- what was found ---------------------------------------------------------------------------------------------

    @property
    def seen(self) -> Snapshot:
        """The groups at the last look; none when that is too old."""
        return self._seen if self._fresh else NOTHING

    def topics(self, target_age_s: float = TARGET_AGE_S) -> list[Row]:
        """Return one row per group and topic (`TopicFigures`), with `needed_workers`, None when unknown."""
        made: list[Row] = []
        for name, runtime in self._shared():
            agent = runtime.agent
            group = self._group(agent)
            mine = [one for one in group.topics if one.topic in (*agent.topics, retry_topic(agent.group))]
            busy = _busy_share(agent, group.members, mine)
            made += [
                {**one.row(), "agent": name, **self._needs(name, agent, group, one, busy, target_age_s)} for one in mine
            ]
        return made

    def report(self, target_age_s: float = TARGET_AGE_S) -> Row:
        """Report how many workers the app needs, for autoscalers: a whole number `workers`, and its derivation.

        While it is unknown (`known` false), `workers` is the present number of members, so that nothing changes.
        """
        by_topic = self.topics(target_age_s)
        agents = [self._agent(name, by_topic) for name, _ in self._shared()]
        figures = [agent["needed"] for agent in agents]
        known = self._fresh and None not in figures
        figure = max((one for one in figures if one is not None), default=0.0)
        there = max((one.members for one in self.seen.groups.values() if one.members is not None), default=1)
        return {
            "workers": whole(figure) if known else max(whole(figure), there),
            "needed": figure if known else None,
            "known": known,
            "members": there,
            "target_age_s": target_age_s,
            "agents": agents,
        }

    # --- helpers ----------------------------------------------------------------------------------------------------

    @property
    def _fresh(self) -> bool:
        return self._at_s is not None and self._clock.monotonic() - self._at_s <= max(STALE_S, 3 * self._every_s)

    def _agent(self, name: str, by_topic: Sequence[Row]) -> Row:
        agent = self._runtimes[name].agent
        mine = [row for row in by_topic if row["agent"] == name]
        figures = [row["needed_workers"] for row in mine]
        cost = self._costs.get(name)
        return {
            "agent": name,
            "group": agent.group,
            "needed": None if None in figures else sum(figures),
            "members": self._group(agent).members,
            "concurrency": agent.options.concurrency,
            "handler_s": None if cost is None else cost.seconds,
            "topics": [{key: value for key, value in row.items() if key not in ("agent", "group")} for row in mine],
        }

    def _group(self, agent: ShareAgent) -> GroupFigures:
        return self.seen.groups.get(agent.group) or GroupFigures(name=agent.group)

    def _needs(
        self,
        name: str,
        agent: ShareAgent,
        group: GroupFigures,
        topic: TopicFigures,
        busy: float,
        target_age_s: float,
    ) -> Row:
        cost, limit = self._costs.get(name), agent.options.rate_limit
        waiting = (topic.backlog or 0) - (topic.delayed or 0) - round(busy * _in_flight(topic))
        if topic.topic == retry_topic(agent.group):
            waiting = 0  # for their time to come, not for handlers
        rate, most = parse_rate(group.settings.get(MAX_RATE, "")), int(group.settings.get(MAX_IN_FLIGHT) or 0)
        workers_max = None if most <= 0 else most / agent.options.records_at_once
        if agent.unshared:
            workers_max = float(topic.partitions)
        demand = Demand(
            arrival_per_s=topic.arrival_rate,
            waiting=max(0, waiting),
            handler_s=None if cost is None else cost.seconds,
            concurrency=agent.options.concurrency,
            rate_per_s=None if limit is None else limit.per_s,
            workers_max=0 if group.paused else workers_max,
            group_per_s=None if rate is None else rate.per_s,
        )
        return {
            "waiting": demand.waiting,
            "capacity_per_s": capacity_per_s(demand),
            "needed_workers": needed(demand, target_age_s),
        }

    async def _run(self) -> None:
        while True:
            begun_s = self._clock.monotonic()
            try:
                await self.look()
            except (ClientError, OSError) as error:
                logger.debug("the load could not be looked at: %s", error)
            self._every_s = max(LOOK_S, SHARE * (self._clock.monotonic() - begun_s))
            await self._clock.sleep(self._every_s)


def _busy_share(agent: ShareAgent, members: int | None, topics: Sequence[TopicFigures]) -> float:
    """Return the part of the records in flight that is in handlers; the rest is prefetched, and waits."""
    in_flight = sum(map(_in_flight, topics))
    places = (members or 1) * agent.options.records_at_once
    return min(1.0, places / in_flight) if in_flight else 0.0


def _in_flight(topic: TopicFigures) -> int:
    """Return the records in flight; if unknown, the number of unfinished ones."""
    return (topic.backlog or 0) if topic.in_flight is None else topic.in_flight
