"""`Watcher` looks at groups again and again, and remembers what rates, retention and turns need.

Every face that shows groups has one: `flowshare lag`, `top` and `groups`, the console, a worker's pages and metrics. A
look has these steps; `LookLimits` bounds each of them, and a `Watcher` made for less leaves some out:

| step | of which groups | how often |
|---|---|---|
| names and kinds | all that are wanted | each look |
| partitions, by the changes that servers report (`changes`) | all share groups, where flowshare leads | each look |
| partitions, one by one | the others: those wanted first, then those with the oldest figures | as many as fit |
| members and settings (`details`) | state changed; asked in this look; longest unasked | every `slow_s`, or changed |
| breakers (`details`) | those asked in this look that have one: the longest unasked | as many as fit |
| dead letters (`letters`) | all topics of dead letters | `LetterCounts` |

So thousands of groups cost no more per look than some hundred; their figures are older in turn. Groups that are gone
are forgotten.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from flowshare.client.admin.admin import BREAKER
from flowshare.client.errors import ServerError
from flowshare.ops import reading
from flowshare.ops.figures import BreakerFacts, GroupFigures, PartitionFigures, TopicFigures, of_topics
from flowshare.ops.rates import Rates
from flowshare.ops.retention import Facts
from flowshare.ops.stall_reason import judged

if TYPE_CHECKING:
    from flowshare.backend.base import Capabilities
    from flowshare.client.admin.admin import ShareAdmin
    from flowshare.client.admin.watching import ShareWatch
    from flowshare.clock import Clock
    from flowshare.ops.in_hand import InHand

logger = logging.getLogger("flowshare.host")

SIDE_BY_SIDE: Final = 8
"""Groups whose members and settings are asked for at the same time."""
DETAILS_AT_LEAST: Final = 5
"""The least number of groups whose members and settings are asked for in one look, if so many are due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookLimits:
    """Bounds of one look.

    groups: most groups that are asked one by one; None: no bound. seconds: for asking groups one by one, and as many
    again for members and settings. slow_s: seconds for which members and settings are believed; 0: those of groups that
    a look asks are asked for each time. breakers: most groups whose breaker is asked for; None: no bound.
    """

    groups: int | None = None
    seconds: float = math.inf
    slow_s: float = 0.0
    breakers: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Result of a look at all groups.

    at_ms: time of the look; 0: none yet. now_s: the same on the watcher's clock. took_s: its duration. controls: groups
    can be paused and limited there. led: number of share-partitions that each worker of a fleet leads, by node id.
    backend: where the groups live; leads: the groups had no leader, so the asking process led them during the look;
    both as whoever opened the session says.
    """

    at_ms: int = 0
    now_s: float = 0.0
    took_s: float = 0.0
    groups: Mapping[str, GroupFigures] = field(default_factory=dict[str, GroupFigures])
    controls: bool = True
    led: Mapping[int, int] = field(default_factory=dict[int, int])
    backend: str = ""
    leads: bool = False

    @property
    def partitions(self) -> list[PartitionFigures]:
        """The figures of all partitions."""
        return [part for one in self.groups.values() for part in one.partitions]

    @property
    def topics(self) -> list[TopicFigures]:
        """The figures of all topics."""
        return [topic for one in self.groups.values() for topic in one.topics]

    @property
    def unasked(self) -> int:
        """Number of groups that have not had their turn yet."""
        return sum(one.seen_s is None for one in self.groups.values())

    @property
    def oldest_s(self) -> float:
        """Age of the oldest known figures in seconds."""
        return self.now_s - min(
            (one.seen_s for one in self.groups.values() if one.seen_s is not None), default=self.now_s
        )

    @property
    def stalled(self) -> bool:
        """True if a group stands still, and neither a user nor a breaker decided so."""
        return any(one.stall and not one.held_back for one in self.groups.values())

    def with_in_hand(self, told: Mapping[str, InHand]) -> Snapshot:
        """Return the snapshot with what workers say of these groups."""
        made = {
            name: judged(replace(self.groups[name], **found._asdict()))
            for name, found in told.items()
            if name in self.groups
        }
        return replace(self, groups={**self.groups, **made}) if made else self


@dataclass(slots=True, kw_only=True)
class _Known:
    """The last findings about a group. told_state: as its members' answer has it. detailed_s: time of that answer;
    state_then: the group's state at that time. breaker_s: time of the breaker's answer. made: of these findings, None:
    they have changed since."""

    kind: str
    state: str
    rates: Rates = field(default_factory=Rates)
    seen_s: float | None = None
    partitions: Sequence[PartitionFigures] = ()
    topics: Sequence[TopicFigures] = ()
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    members: int | None = None
    assigned: int | None = None
    told_state: str = ""
    detailed_s: float = -math.inf
    state_then: str = ""
    breaker: BreakerFacts = field(default_factory=BreakerFacts)
    breaker_s: float = -math.inf
    letters: int | None = None
    made: GroupFigures | None = None

    @property
    def changed(self) -> bool:
        """True if the group's state is another one than when its members were asked for."""
        return self.state not in ("", self.state_then)

    @property
    def has_breaker(self) -> bool:
        """True if the group's settings have a breaker."""
        return self.settings.get(BREAKER, "0") != "0"

    def figures(self, name: str) -> GroupFigures:
        """Return the figures."""
        if self.made is None:
            self.made = judged(
                GroupFigures(
                    name=name,
                    kind=self.kind,
                    state=self.state or self.told_state,
                    seen_s=self.seen_s,
                    partitions=self.partitions,
                    topics=self.topics,
                    settings=self.settings,
                    members=self.members,
                    assigned=self.assigned,
                    breaker=self.breaker,
                    letters=self.letters,
                )
            )
        return self.made


class Watcher:
    """Looks at groups, one look at a time, on one event loop."""

    def __init__(
        self,
        clock: Clock,
        limits: LookLimits = LookLimits(),
        *,
        changes: bool = False,
        details: bool = True,
        letters: bool = False,
    ) -> None:
        """changes: read share groups from the changes that servers report, which tell of all groups at once. details:
        ask for members, settings and breakers. letters: count dead letters."""
        self._clock = clock
        self._limits = limits
        self._changes = changes
        self._details = details
        self._letters = reading.LetterCounts(clock) if letters else None
        self._known: dict[str, _Known] = {}
        self._admin: ShareAdmin | None = None
        self._facts: Facts
        self._watch: ShareWatch | None = None

    async def look(
        self,
        admin: ShareAdmin,
        capabilities: Capabilities,
        groups: Mapping[str, str] | None = None,
        *,
        first: Collection[str] = (),
    ) -> Snapshot:
        """Take one look. groups: kind by name; None: all that the backend knows. first: groups asked before others.

        Raises: ClientError, OSError.
        """
        begun_s = self._clock.monotonic()
        if admin is not self._admin:
            self._admin, self._facts = admin, Facts(admin)
            self._watch = admin.watch() if self._changes and capabilities.pausing else None
        self._facts.begin()
        listed = (
            await reading.every_group(admin, capabilities)
            if groups is None
            else {name: (kind, "") for name, kind in groups.items()}
        )
        self._known = {name: self._kept(name, *listed[name]) for name in sorted(listed)}
        asked = set[str]() if self._watch is None else await self._take_changes(self._watch)
        asked |= await self._ask_in_turn(admin, asked, first)
        if self._details:
            await self._ask_details(admin, capabilities, asked)
            await self._ask_breakers(admin, asked)
        if self._letters is not None:
            self._count_letters(await self._letters.look(admin))
        now_s = self._clock.monotonic()
        return Snapshot(
            at_ms=self._clock.now_ms(),
            now_s=now_s,
            took_s=now_s - begun_s,
            groups={name: known.figures(name) for name, known in self._known.items()},
            controls=capabilities.pausing,
            led={} if self._watch is None else self._watch.led(),
        )

    def hurry(self) -> None:
        """Ask for members and settings of all groups anew: a setting was changed."""
        for known in self._known.values():
            known.detailed_s = -math.inf

    def finished_rate(self, one: PartitionFigures) -> float | None:
        """Return the finished records per second of one partition; None when unknown."""
        known = self._known.get(one.group)
        return None if known is None else known.rates.of_partition(one.group, one.topic, one.partition).finished

    # --- partitions -------------------------------------------------------------------------------------------------

    def _kept(self, name: str, kind: str, state: str) -> _Known:
        known = self._known.get(name)
        if known is None or known.kind != kind:
            return _Known(kind=kind, state=state)
        if known.state != state:
            known.state, known.made = state, None
        return known

    async def _take_changes(self, watch: ShareWatch) -> set[str]:
        share = [name for name, known in self._known.items() if known.kind == "share"]
        if share:
            await self._take(share, await reading.watched(watch, self._clock.now_ms()))
        return set(share)

    async def _ask_in_turn(self, admin: ShareAdmin, asked: Collection[str], first: Iterable[str]) -> set[str]:
        """Ask for the partitions of groups that were not asked yet; return those that had their turn."""
        names = {name: known for name, known in self._known.items() if name not in asked}
        oldest = sorted(names, key=lambda name: -math.inf if (at_s := names[name].seen_s) is None else at_s)
        due = list(dict.fromkeys([*(name for name in first if name in names), *oldest]))
        until_s = self._clock.monotonic() + self._limits.seconds
        done = set[str]()
        for some in reading.chunks(due[: self._limits.groups], reading.AT_ONCE):
            if self._clock.monotonic() > until_s:
                break
            kinds = {name: names[name].kind for name in some}
            await self._take(some, await reading.partitions(admin, kinds, self._clock.now_ms(), self._facts))
            done.update(some)
        return done

    async def _take(self, names: Iterable[str], found: Iterable[PartitionFigures]) -> None:
        """Take in the partitions of these groups."""
        now_s = self._clock.monotonic()
        rows: dict[str, list[PartitionFigures]] = {name: [] for name in names}
        for part in found:
            if part.group in rows:
                rows[part.group].append(part)
        for name, parts in rows.items():
            self._known[name].rates.look(parts, now_s)
        every = [part for parts in rows.values() for part in parts]
        kept = iter(await reading.with_retention(every, self._facts, lambda name: self._known[name].rates, now_s))
        for name, parts in rows.items():
            known = self._known[name]
            known.partitions = [next(kept) for _ in parts]
            known.topics = of_topics(known.partitions, known.rates)
            known.seen_s, known.made = now_s, None

    # --- everything else --------------------------------------------------------------------------------------------

    async def _ask_details(self, admin: ShareAdmin, capabilities: Capabilities, asked: Collection[str]) -> None:
        """Ask for members and settings of the groups whose turn it is, or whose state has changed: members came or
        went."""
        begun_s, limits = self._clock.monotonic(), self._limits
        due = [
            name
            for name, known in self._known.items()
            if (limits.slow_s or name in asked) and self._due(known, begun_s)
        ]
        due.sort(key=lambda name: self._turn(name, asked))
        if (
            sum(known.detailed_s > -math.inf for known in self._known.values()) >= len(self._known) / 2
            and limits.slow_s
        ):
            due = due[: max(math.ceil(len(self._known) / limits.slow_s), DETAILS_AT_LEAST)]
        for some in reading.chunks(due, SIDE_BY_SIDE):
            if self._clock.monotonic() > begun_s + limits.seconds:
                break
            await asyncio.gather(*(self._ask_detail(admin, capabilities, name) for name in some))

    def _due(self, known: _Known, now_s: float) -> bool:
        return known.changed or now_s - known.detailed_s >= self._limits.slow_s

    def _turn(self, name: str, asked: Collection[str]) -> tuple[bool, bool, float]:
        """Return a sort key: groups whose state has changed, those asked in this look, the longest unasked."""
        known = self._known[name]
        return not known.changed, name not in asked, known.detailed_s

    async def _ask_detail(self, admin: ShareAdmin, capabilities: Capabilities, name: str) -> None:
        """Ask for members and settings of a group; what may not be seen is not known."""
        known = self._known[name]
        # Before the questions: `hurry` may come during them, and counts for the next look.
        known.detailed_s, state_then = self._clock.monotonic(), known.state
        members: int | None = None
        assigned: int | None = None
        told_state, settings, share = "", dict[str, str](), known.kind == "share"
        try:
            try:
                found = await (admin.describe_group(name) if share else admin.cooperative.describe(name))
                members, told_state = len(found.members), found.state
                assigned = sum(any(one.assignment.values()) for one in found.members)
            except ServerError as error:
                logger.debug("members of group %s: %s", name, error)
            if share and capabilities.pausing:  # brokers may want a right of its own for the question
                try:
                    settings = {one.name: one.value or "" for one in await admin.group_configs(name)}
                except ServerError as error:
                    logger.debug("settings of group %s: %s", name, error)
        except BaseException:  # unanswered, or the look was cancelled: what was known stands, and the next look asks
            known.detailed_s = -math.inf
            raise
        known.members, known.assigned, known.told_state, known.settings = members, assigned, told_state, settings
        known.state_then, known.made = state_then, None
        if not known.has_breaker:
            known.breaker = BreakerFacts()

    async def _ask_breakers(self, admin: ShareAdmin, asked: Iterable[str]) -> None:
        """Ask for the breakers whose turn it is; the last answer of the others stands."""
        having = sorted(
            (name for name in asked if self._known[name].has_breaker), key=lambda name: self._known[name].breaker_s
        )
        for some in reading.chunks(having[: self._limits.breakers], SIDE_BY_SIDE):
            told = (reading.breaker(admin, name, self._known[name].settings) for name in some)
            for name, breaker in zip(some, await asyncio.gather(*told), strict=True):
                known = self._known[name]
                known.breaker, known.breaker_s, known.made = breaker, self._clock.monotonic(), None

    def _count_letters(self, counts: Mapping[str, int]) -> None:
        for name, known in self._known.items():
            letters = counts.get(name + reading.SUFFIX)
            if letters != known.letters:
                known.letters, known.made = letters, None
