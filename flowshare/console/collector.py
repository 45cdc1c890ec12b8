"""Looks at all groups every second, pages open or not: the table of groups, and figures for the store.

Share-partitions are asked about with each look; members and settings of a group every `SLOW_S`, a few groups a look. A
look that takes long makes the next one later (`SHARE`), so that the console takes a bounded part of the answering
process. When the log does not answer, the last figures are shown with their age, and the next look comes `AWAY_S`
later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from flowshare.agents.scale import lag
from flowshare.agents.scale.in_hand import InHand
from flowshare.agents.scale.in_turn import InTurn
from flowshare.agents.scale.rates import Rates
from flowshare.agents.scale.retention import Facts
from flowshare.agents.scale.stall_reason import BreakerFacts, GroupFacts, of_group, stall_reason
from flowshare.cli.output import explain
from flowshare.client.admin.admin import BREAKER, PAUSED
from flowshare.client.errors import ServerError
from flowshare.console.store import GROUPS, Figures
from flowshare.core_errors import FlowshareError
from flowshare.ops import Failure
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from flowshare.client.admin.watching import ShareWatch
    from flowshare.clock import Clock
    from flowshare.console.agents import AgentWatch
    from flowshare.console.source import Source
    from flowshare.console.store import Store
    from flowshare.ops.session import CommandSession
    from flowshare.protocol.messages import TopicMetadata

logger = logging.getLogger("flowshare.console")

LOOK_S: Final = 1.0
SHARE: Final = 5
"""A look may take one part in `SHARE` of the time, as long as the next one comes within `AWAY_S`."""
SLOW_S: Final = 30.0
SETTINGS_AT_LEAST: Final = 5
"""The least number of groups whose members and settings are asked for in one look, if so many are due."""
SLOW_PART_S: Final = 2.0
"""Time, in s, that one look may take for members and settings; of very many groups the others come with the next
looks."""
BREAKERS_MAX: Final = 100
"""The most groups whose breaker is asked for in one look."""
AWAY_S: Final = 5.0
LEADING_S: Final = 30.0
"""Time, in s, between two looks at a fleet without running workers: each look claims all its slots."""
LOOK_LIMIT_S: Final = 30.0
SUFFIX: Final = ".dlq"
NEVER: Final = (float("-inf"), 0)
"""The time of counting a topic of dead letters, and its count, before the first time."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Facts of a group that are asked for less often. members, assigned: their numbers; None: not known. state: of a
    cooperative group."""

    configs: Mapping[str, str] = field(default_factory=dict[str, str])
    members: int | None = None
    assigned: int | None = None
    state: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLine:
    """A group in the table. topics: rows of `lag.by_topic`; partitions: of `lag.rows`. asked: False: of very many
    groups, this one's turn has not come yet."""

    name: str
    kind: str
    state: str
    topics: Sequence[Row] = ()
    partitions: Sequence[Row] = ()
    asked: bool = True
    settings: GroupSettings = GroupSettings()
    letters: int | None = None
    breaker: BreakerFacts = field(default_factory=BreakerFacts)
    stall: str | None = None

    def total(self, name: str) -> float | None:
        """Return a column's sum over the topics; None if one of them is not known."""
        if not self.asked:
            return None
        found = [row.get(name) for row in self.topics]
        known = [one for one in found if one is not None and one >= 0]
        return sum(known) if len(known) == len(found) else None

    def worst(self, name: str) -> float | None:
        """Return a column's largest value over the topics."""
        return max((row[name] for row in self.topics if row.get(name) is not None), default=None)

    def least(self, name: str) -> float | None:
        """Return a column's smallest value over the topics."""
        return min((row[name] for row in self.topics if row.get(name) is not None), default=None)

    @property
    def paused(self) -> bool:
        """True if a user paused the group."""
        return self.settings.configs.get(PAUSED) == "true"

    @property
    def held_back(self) -> bool:
        """True if the group is paused, by a user or by its breaker."""
        return self.paused or self.breaker.state != "closed"

    @property
    def shown_state(self) -> str:
        """The state in a word or two."""
        if self.paused:
            return "paused"
        return self.state if self.breaker.state == "closed" else f"breaker {self.breaker.state}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Result of a look at all groups. at_ms: time of the look; 0: none yet. took_s: its duration. leads: the groups had
    no leader, so the console led them during the look. backend: where the groups live. led: number of share-partitions
    that each worker of a fleet leads, by node id. controls: groups can be paused and limited there. oldest_s: with very
    many groups, which are asked in turn, the age of the oldest figures. unasked: number of groups that have not had
    their turn yet."""

    at_ms: int = 0
    took_s: float = 0.0
    groups: Mapping[str, GroupLine] = field(default_factory=dict[str, GroupLine])
    leads: bool = False
    backend: str = ""
    controls: bool = True
    oldest_s: float = 0.0
    unasked: int = 0
    led: Mapping[int, int] = field(default_factory=dict[int, int])


class _Asked(NamedTuple):
    """State that is kept of a session."""

    session: CommandSession
    facts: Facts
    watch: ShareWatch


class Collector:
    """The collector of all groups, on one loop. store: keeps the figures. agents: knows the workers' held records;
    None: not known."""

    def __init__(self, source: Source, store: Store, clock: Clock, agents: AgentWatch | None = None) -> None:
        self._source = source
        self._store = store
        self._clock = clock
        self._agents = agents
        self._rates = Rates()
        self._in_turn = InTurn(clock)
        self._of: _Asked | None = None
        self._slow: dict[str, tuple[float, GroupSettings]] = {}
        self._letters: tuple[float, dict[str, tuple[float, int]]] = (float("-inf"), {})
        """The time at which all topics were counted, and for each topic the time of its count and the count."""
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self.look = Look()
        self.trouble: str | None = None
        """The last look's failure; None: it succeeded."""

    def start(self) -> None:
        """Begin to look."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="flowshare-console-collector")

    async def close(self) -> None:
        """Stop."""
        task, self._task = self._task, None
        await cancelled(task)

    def hurry(self) -> None:
        """Look at once, also at the slow facts, because a setting was changed."""
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
        watched = kinds["share"] if session.backend.capabilities.pausing else []
        found = await lag.watched(self._of.watch, self._clock.now_ms()) if watched else []
        self._rates.look(found, now_s)
        await lag.add_retention(found, facts, self._rates, now_s)
        of_topics = _grouped(lag.by_topic(found, self._rates))
        of_partitions = _grouped(found)
        in_turn = await self._in_turn.look(admin, facts, [] if watched else kinds["share"], kinds["cooperative"])
        for name, one in in_turn.items():
            of_topics[name], of_partitions[name] = one.topics, one.partitions
        await self._ask_slowly(session, listed, now_s)
        letters = await self._count_letters(session, now_s)
        breakers = await self._breakers(session)
        lines = {
            name: self._line(
                name,
                kind,
                state,
                of_topics.get(name, ()),
                of_partitions.get(name, ()),
                letters=letters,
                breaker=breakers.get(name, BreakerFacts()),
                asked=name not in in_turn or in_turn[name].known,
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
            oldest_s=self._in_turn.oldest_s,
            unasked=sum(not one.known for one in in_turn.values()),
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
        asked: bool,
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
            asked=asked,
            settings=slow,
            letters=letters.get(name + SUFFIX),
            breaker=breaker,
            stall=stall_reason(facts),
        )

    async def _breakers(self, session: CommandSession) -> dict[str, BreakerFacts]:
        """Return the breakers of the groups that have one."""
        having = [name for name, (_, slow) in self._slow.items() if slow.configs.get(BREAKER, "0") != "0"]
        return {
            name: await lag.breaker(session.admin, name, self._slow[name][1].configs) for name in having[:BREAKERS_MAX]
        }

    async def _ask_slowly(self, session: CommandSession, listed: Mapping[str, tuple[str, str]], now_s: float) -> None:
        """Ask for members and settings of the groups whose turn it is, or whose state has changed: members came or
        went."""
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
        """Return the number of records of each topic of dead letters."""
        at_s, known = self._letters
        if now_s - at_s < SLOW_S:
            return {name: count for name, (_, count) in known.items()}

        async def count(topic: TopicMetadata) -> int:
            ends = await asyncio.gather(
                *(session.admin.offsets(topic.name, number) for number in range(topic.partitions)),
                return_exceptions=True,
            )
            return sum(one.high_watermark - one.log_start for one in ends if not isinstance(one, BaseException))

        topics = [topic for topic in await session.admin.list_topics() if topic.name.endswith(SUFFIX)]
        counts = {topic.name: known[topic.name] for topic in topics if topic.name in known}
        due = [topic for topic in topics if now_s - counts.get(topic.name, NEVER)[0] >= SLOW_S]
        due.sort(key=lambda topic: counts.get(topic.name, NEVER)[0])  # of very many, the others come later
        until_s = self._clock.monotonic() + SLOW_PART_S
        for first in range(0, len(due), lag.AT_ONCE):
            if self._clock.monotonic() > until_s:
                break
            some = due[first : first + lag.AT_ONCE]
            found = await asyncio.gather(*map(count, some))
            counts |= {topic.name: (now_s, number) for topic, number in zip(some, found, strict=True)}
        else:
            at_s = now_s
        self._letters = at_s, counts
        return {name: number for name, (_, number) in counts.items()}


async def _settings_of(session: CommandSession, name: str, kind: str) -> GroupSettings:
    """Return the known facts of a group; those that may not be seen are left out."""
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
    """Return the figures of a look to keep."""
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
