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
from typing import Any, Final, NamedTuple, Protocol

from flowshare.agents.handler.agent import ShareAgent
from flowshare.agents.handler.retry_headers import retry_topic
from flowshare.agents.scale import lag
from flowshare.agents.scale.rates import HandlerCost, HandlerLook, Rates
from flowshare.agents.scale.retention import Facts
from flowshare.agents.scale.scaling import TARGET_AGE_S, Demand, capacity_per_s, needed, whole
from flowshare.backend.base import Capabilities
from flowshare.client.admin.admin import MAX_IN_FLIGHT, MAX_RATE, PAUSED, ShareAdmin
from flowshare.client.errors import ClientError, ServerError
from flowshare.clock import Clock
from flowshare.share.rate import parse_rate
from flowshare.tasks import cancelled

logger = logging.getLogger("flowshare.host")

Row = dict[str, Any]

LOOK_S: Final = 2.0
"""Seconds from one look to the next one."""
SHARE: Final = 20
STALE_S: Final = 60.0


class _Allowed(NamedTuple):
    """A group's limits, from its settings: records in flight (0 while it is paused) and records handed out per second.

    None: no limit, or unknown.
    """

    in_flight: int | None
    per_s: float | None


_ANYTHING: Final = _Allowed(None, None)


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
        self._facts = Facts(admin)
        self._rates = Rates()
        self._costs: dict[str, HandlerCost] = {}
        self._members: dict[str, int | None] = {}
        self._allowed: dict[str, _Allowed] = {}
        self._rows: list[Row] = []
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
        facts, now_s = self._facts, self._clock.monotonic()
        for name, runtime in self._shared():
            cost = self._costs.get(name)
            if cost is None:
                cost = self._costs[name] = HandlerCost(runtime.agent.options.retry.max_attempts)
            cost.look(runtime.handler_look())
        groups = lag.Groups.of(runtime.agent for _, runtime in self._shared())
        facts.begin()
        found = await lag.rows(self._admin, groups, self._clock.now_ms(), facts)
        self._rates.look(found, now_s)
        await lag.add_retention(found, facts, self._rates, now_s)
        for group in groups.share or ():
            self._members[group] = await lag.members(self._admin, group)
            self._allowed[group] = await self._find_allowed(group)
        for group in groups.cooperative or ():
            self._members[group] = await lag.members(self._admin, group, cooperative=True)
        self._rows, self._at_s = found, now_s

    # --- what was found ---------------------------------------------------------------------------------------------

    @property
    def rows(self) -> Sequence[Row]:
        """One row per share-partition (`lag.rows`, `lag.add_retention`); none when the last look is too old."""
        return self._rows if self._fresh else ()

    @property
    def members(self) -> Mapping[str, int | None]:
        """Number of members of each group; None: unknown."""
        return self._members if self._fresh else {}

    def topics(self, target_age_s: float = TARGET_AGE_S) -> list[Row]:
        """Return one row per group and topic (`lag.by_topic`), with `needed_workers`, None when unknown."""
        made: list[Row] = []
        found = lag.by_topic(self.rows, self._rates)
        for name, runtime in self._shared():
            agent = runtime.agent
            topics = (*agent.topics, retry_topic(agent.group))
            mine = [row for row in found if row["group"] == agent.group and row["topic"] in topics]
            busy = self._busy_share(agent, mine)
            made += [{**row, "agent": name, **self._needs(name, agent, row, busy, target_age_s)} for row in mine]
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
        there = max((count for count in self.members.values() if count is not None), default=1)
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
            "members": self.members.get(agent.group),
            "concurrency": agent.options.concurrency,
            "handler_s": None if cost is None else cost.seconds,
            "topics": [{key: value for key, value in row.items() if key not in ("agent", "group")} for row in mine],
        }

    def _busy_share(self, agent: ShareAgent, mine: Sequence[Row]) -> float:
        """Return the part of the records in flight that is in handlers; the rest is prefetched, and waits."""
        in_flight = sum(_in_flight(row) for row in mine)
        places = (self.members.get(agent.group) or 1) * agent.options.records_at_once
        return min(1.0, places / in_flight) if in_flight else 0.0

    def _needs(self, name: str, agent: ShareAgent, row: Row, busy: float, target_age_s: float) -> Row:
        cost, limit = self._costs.get(name), agent.options.rate_limit
        waiting = max(0, row["backlog"]) - (row["delayed"] or 0) - round(busy * _in_flight(row))
        if row["topic"] == retry_topic(agent.group):
            waiting = 0  # for their time to come, not for handlers
        in_flight_max, group_per_s = self._allowed.get(agent.group, _ANYTHING)
        demand = Demand(
            arrival_per_s=row["arrival_rate"],
            waiting=max(0, waiting),
            handler_s=None if cost is None else cost.seconds,
            concurrency=agent.options.concurrency,
            rate_per_s=None if limit is None else limit.per_s,
            workers_max=float(row["partitions"])
            if agent.unshared
            else None
            if in_flight_max is None
            else in_flight_max / agent.options.records_at_once,
            group_per_s=group_per_s,
        )
        return {
            "waiting": demand.waiting,
            "capacity_per_s": capacity_per_s(demand),
            "needed_workers": needed(demand, target_age_s),
        }

    async def _find_allowed(self, group: str) -> _Allowed:
        if not (self._capabilities.pausing or self._capabilities.group_limit):
            return _ANYTHING  # brokers may want a right of its own for the question
        try:
            configs = {entry.name: entry.value for entry in await self._admin.group_configs(group)}
        except ServerError as error:
            logger.debug("the settings of group %s were refused: %s", group, error)
            return _ANYTHING
        rate = parse_rate(configs.get(MAX_RATE) or "")
        per_s = None if rate is None else rate.per_s
        if configs.get(PAUSED) == "true":
            return _Allowed(0, per_s)
        limit = int(configs.get(MAX_IN_FLIGHT) or 0)
        return _Allowed(limit if limit > 0 else None, per_s)

    async def _run(self) -> None:
        while True:
            begun_s = self._clock.monotonic()
            try:
                await self.look()
            except (ClientError, OSError) as error:
                logger.debug("the load could not be looked at: %s", error)
            self._every_s = max(LOOK_S, SHARE * (self._clock.monotonic() - begun_s))
            await self._clock.sleep(self._every_s)


def _in_flight(row: Row) -> int:
    """Return the records in flight; if unknown, the number of unfinished ones."""
    known: int | None = row["in_flight"]
    return max(0, row["backlog"]) if known is None else known
