"""Looks at all groups every second, whoever looks at a page: the table of groups, and figures for the store.

Share-partitions are asked about with each look; members and settings of a group every `SLOW_S`, a few groups a look. A
look that takes long makes the next one later (`SHARE`), so that the console takes a bounded part of whoever answers.
When the log does not answer, what was seen last is shown with its age, and the next look comes `AWAY_S` later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from flowshare.agents.scale import lag
from flowshare.agents.scale.in_hand import InHand
from flowshare.agents.scale.rates import Rates
from flowshare.agents.scale.retention import Facts
from flowshare.agents.scale.stall_reason import BreakerFacts, GroupFacts, of_group, stall_reason
from flowshare.cli.output import Failure, explain
from flowshare.client.admin.admin import BREAKER, PAUSED
from flowshare.client.errors import ServerError
from flowshare.console.store import GROUPS, Figures
from flowshare.errors import FlowshareError
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from flowshare.cli.session import CommandSession
    from flowshare.client.admin.watching import ShareWatch
    from flowshare.clock import Clock
    from flowshare.console.agents import AgentWatch
    from flowshare.console.source import Source
    from flowshare.console.store import Store

logger = logging.getLogger("flowshare.console")

LOOK_S: Final = 1.0
SHARE: Final = 5
"""A look may take one of so many parts of the time, as long as the next one comes within `AWAY_S`."""
SLOW_S: Final = 30.0
SETTINGS_AT_LEAST: Final = 5
"""Groups whose members and settings are asked for in one look, if so many are due."""
SLOW_PART_S: Final = 2.0
"""How long one look may take for members and settings; of very many groups the others come with the next looks."""
BREAKERS_MAX: Final = 100
"""Groups whose breaker is asked for in one look."""
AWAY_S: Final = 5.0
LEADING_S: Final = 30.0
"""Between two looks at a fleet of which no worker runs: each claims all its slots."""
LOOK_LIMIT_S: Final = 30.0
SUFFIX: Final = ".dlq"

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """What is asked for less often. members, assigned: how many; None: not known. state: of a cooperative group."""

    configs: Mapping[str, str] = field(default_factory=dict[str, str])
    members: int | None = None
    assigned: int | None = None
    state: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLine:
    """A group as it stands in the table. topics: rows of `lag.by_topic`; partitions: of `lag.rows`."""

    name: str
    kind: str
    state: str
    topics: Sequence[Row] = ()
    partitions: Sequence[Row] = ()
    settings: GroupSettings = GroupSettings()
    letters: int | None = None
    breaker: BreakerFacts = field(default_factory=BreakerFacts)
    stall: str | None = None

    def total(self, name: str) -> float | None:
        """A column's sum over the topics; None as soon as one of them is not known."""
        found = [row.get(name) for row in self.topics]
        known = [one for one in found if one is not None and one >= 0]
        return sum(known) if len(known) == len(found) else None

    def worst(self, name: str) -> float | None:
        """A column's largest value over the topics."""
        return max((row[name] for row in self.topics if row.get(name) is not None), default=None)

    def least(self, name: str) -> float | None:
        """A column's smallest value over the topics."""
        return min((row[name] for row in self.topics if row.get(name) is not None), default=None)

    @property
    def paused(self) -> bool:
        """Whether somebody paused it."""
        return self.settings.configs.get(PAUSED) == "true"

    @property
    def held_back(self) -> bool:
        """Whether it is paused, by somebody or by its breaker."""
        return self.paused or self.breaker.state != "closed"

    @property
    def shown_state(self) -> str:
        """In a word or two."""
        if self.paused:
            return "paused"
        return self.state if self.breaker.state == "closed" else f"breaker {self.breaker.state}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What was seen. at_ms: when, 0: nothing was seen yet. took_s: how long it took. leads: nobody leads the groups,
    so the console did while it looked. backend: where they live. led: how many share-partitions each worker of a fleet
    leads, by node id. controls: groups can be paused and limited there."""

    at_ms: int = 0
    took_s: float = 0.0
    groups: Mapping[str, GroupLine] = field(default_factory=dict[str, GroupLine])
    leads: bool = False
    backend: str = ""
    controls: bool = True
    led: Mapping[int, int] = field(default_factory=dict[int, int])


class _Asked(NamedTuple):
    """What is remembered of a session."""

    session: CommandSession
    facts: Facts
    watch: ShareWatch


class Collector:
    """Everything on one loop. store: where figures are kept. agents: knows what workers hold; None: nobody does."""

    def __init__(self, source: Source, store: Store, clock: Clock, agents: AgentWatch | None = None) -> None:
        self._source = source
        self._store = store
        self._clock = clock
        self._agents = agents
        self._rates = Rates()
        self._of: _Asked | None = None
        self._slow: dict[str, tuple[float, GroupSettings]] = {}
        self._letters: tuple[float, dict[str, int]] = (float("-inf"), {})
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self.look = Look()
        self.trouble: str | None = None
        """Why the last look failed."""

    def start(self) -> None:
        """Begin to look."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="flowshare-console-collector")

    async def close(self) -> None:
        """End."""
        task, self._task = self._task, None
        await cancelled(task)

    def hurry(self) -> None:
        """Look at once, and at what is asked for less often too: something was changed."""
        self._slow.clear()
        self._wake.set()

    async def _run(self) -> None:
        while True:
            try:
                await self._one()
                self.trouble = None
            except (FlowshareError, Failure, OSError) as error:
                self.trouble = explain(error)
                logger.debug("the groups could not be looked at: %s", error)
            except Exception as error:  # a fault of the console: it is told, and the next look may go well
                self.trouble = explain(error)
                logger.exception("the groups could not be looked at")
            took_s = self.look.took_s
            rest_s = min(max(LOOK_S - took_s, took_s * (SHARE - 1)), AWAY_S)
            if self.look.leads:
                rest_s = LEADING_S if self.look.backend == "workers" else AWAY_S
            await self._rest(AWAY_S if self.trouble else rest_s)

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    async def _one(self) -> None:
        look = self.look = await self._source.ask(self._see, limit_s=LOOK_LIMIT_S)
        if self._agents is not None:
            self._agents.wanted = any(one.stall and not one.held_back for one in look.groups.values())
        self._store.keep(GROUPS, look.at_ms // 1000, {name: figures_of(line) for name, line in look.groups.items()})

    async def _see(self, session: CommandSession) -> Look:
        if self._of is None or self._of.session is not session:
            self._of = _Asked(session, Facts(session.admin), session.admin.watch())
        facts = self._of.facts
        facts.begin()
        admin, now_s = session.admin, self._clock.monotonic()
        listed = {one.group_id: ("share", one.state) for one in await admin.list_groups()}
        if session.backend.capabilities.key_order:
            listed |= dict.fromkeys(await admin.cooperative.names(), ("cooperative", ""))
        kinds: dict[str, list[str]] = {"share": [], "cooperative": []}
        for name, (kind, _) in listed.items():
            kinds[kind].append(name)
        found = await _rows(self._of, kinds["share"], kinds["cooperative"], self._clock.now_ms())
        self._rates.look(found, now_s)
        await lag.add_retention(found, facts, self._rates, now_s)
        await self._ask_slowly(session, listed, now_s)
        letters = await self._count_letters(session, now_s)
        topics = lag.by_topic(found, self._rates)
        breakers = await self._breakers(session)
        of_topics = _grouped(topics)
        of_partitions = _grouped(found)
        lines = {
            name: self._line(
                name,
                kind,
                state,
                of_topics.get(name, ()),
                of_partitions.get(name, ()),
                letters=letters,
                breaker=breakers.get(name, BreakerFacts()),
            )
            for name, (kind, state) in listed.items()
        }
        return Look(
            at_ms=self._clock.now_ms(),
            took_s=self._clock.monotonic() - now_s,
            groups=lines,
            leads=session.leads,
            backend=session.backend.kind,
            controls=session.backend.capabilities.pausing,
            led=self._of.watch.led(),
        )

    def _line(
        self,
        name: str,
        kind: str,
        state: str,
        topics: Sequence[Row],
        parts: Sequence[Row],
        *,
        letters: Mapping[str, int],
        breaker: BreakerFacts,
    ) -> GroupLine:
        _, slow = self._slow.get(name, (0.0, GroupSettings()))
        in_hand = InHand() if self._agents is None else self._agents.in_hand.get(name, InHand())
        facts = GroupFacts(
            group=name,
            rows=of_group(topics, name),
            settings=slow.configs,
            members=slow.members,
            assigned=slow.assigned,
            breaker=breaker,
            **in_hand._asdict(),
        )
        return GroupLine(
            name=name,
            kind=kind,
            state=state or slow.state,
            topics=topics,
            partitions=parts,
            settings=slow,
            letters=letters.get(name + SUFFIX),
            breaker=breaker,
            stall=stall_reason(facts),
        )

    async def _breakers(self, session: CommandSession) -> dict[str, BreakerFacts]:
        """Of the groups that have one."""
        having = [name for name, (_, slow) in self._slow.items() if slow.configs.get(BREAKER, "0") != "0"]
        return {
            name: await lag.breaker(session.admin, name, self._slow[name][1].configs) for name in having[:BREAKERS_MAX]
        }

    async def _ask_slowly(self, session: CommandSession, listed: Mapping[str, tuple[str, str]], now_s: float) -> None:
        """Members and settings of the groups whose turn it is, or whose state has changed: somebody came or went."""
        for name, line in self.look.groups.items():
            if name in listed and listed[name][1] not in ("", line.state):
                self._slow.pop(name, None)
        for gone in self._slow.keys() - listed.keys():
            del self._slow[gone]
        due = [name for name in listed if now_s - self._slow.get(name, (float("-inf"), None))[0] >= SLOW_S]
        due.sort(key=lambda name: self._slow.get(name, (float("-inf"), None))[0])
        part = len(due) if len(self._slow) < len(listed) / 2 else -(-len(listed) // int(SLOW_S))
        until_s = self._clock.monotonic() + SLOW_PART_S
        for name in due[: max(part, SETTINGS_AT_LEAST)]:
            if self._clock.monotonic() > until_s:
                break
            self._slow[name] = now_s, await _settings_of(session, name, listed[name][0])

    async def _count_letters(self, session: CommandSession, now_s: float) -> Mapping[str, int]:
        """Records of the topics of dead letters."""
        at_s, known = self._letters
        if now_s - at_s < SLOW_S:
            return known
        counts: dict[str, int] = {}
        for topic in await session.admin.list_topics():
            if topic.name.endswith(SUFFIX):
                ends = await asyncio.gather(
                    *(session.admin.offsets(topic.name, number) for number in range(topic.partitions)),
                    return_exceptions=True,
                )
                counts[topic.name] = sum(
                    one.high_watermark - one.log_start for one in ends if not isinstance(one, BaseException)
                )
        self._letters = now_s, counts
        return counts


async def _rows(of: _Asked, share: Sequence[str], cooperative: Sequence[str], now_ms: int) -> list[Row]:
    """A row a partition: of share groups from what has changed, where flowshare leads them."""
    admin, rest = of.session.admin, lag.Groups(share, cooperative)
    if not of.session.backend.capabilities.pausing:
        return await lag.rows(admin, rest, now_ms, of.facts)
    return [*await lag.watched(of.watch, now_ms), *await lag.rows(admin, rest._replace(share=()), now_ms, of.facts)]


async def _settings_of(session: CommandSession, name: str, kind: str) -> GroupSettings:
    """What is known of it; nothing of what may not be seen."""
    admin = session.admin
    members: int | None = None
    assigned: int | None = None
    try:
        found = await (admin.cooperative.describe(name) if kind == "cooperative" else admin.describe_group(name))
        members, assigned = len(found.members), sum(bool(one.assignment) for one in found.members)
        state = found.state
    except ServerError as error:
        logger.debug("members of group %s: %s", name, error)
        state = ""
    configs: dict[str, str] = {}
    if kind == "share" and session.backend.capabilities.pausing:
        try:
            configs = {one.name: one.value or "" for one in await admin.group_configs(name)}
        except ServerError as error:
            logger.debug("settings of group %s: %s", name, error)
    return GroupSettings(configs=configs, members=members, assigned=assigned, state=state)


def figures_of(line: GroupLine) -> Figures:
    """What is kept of a look."""
    return Figures(
        backlog=line.total("backlog"),
        in_flight=line.total("in_flight"),
        delayed=line.total("delayed"),
        blocked=line.total("blocked"),
        arriving=_rounded(line.total("arrival_rate")),
        finished=_rounded(line.total("rate")),
        redelivered=_rounded(line.total("redelivery_rate")),
        oldest_s=None if (oldest := line.worst("oldest_age_s")) is None else round(oldest),
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def _grouped(rows: Sequence[Row]) -> dict[str, list[Row]]:
    made: dict[str, list[Row]] = {}
    for row in rows:
        made.setdefault(row["group"], []).append(row)
    return made
