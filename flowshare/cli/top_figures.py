"""The figures of `flowshare top`, by the same calls as `flowshare lag` and `flowshare groups describe`.

A look asks for all names, and for the figures of `AT_ONCE` groups: those on the screen first, then those whose figures
are oldest. So thousands of groups cost no more a look than a hundred, and their figures are that much older.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from flowshare.agents.scale import lag
from flowshare.agents.scale.in_hand import InHand, of_groups
from flowshare.agents.scale.rates import Rates
from flowshare.agents.scale.stall_reason import GroupFacts, stall_reason
from flowshare.cli.top_view import GROUPS_MAX, Detail, GroupRow
from flowshare.client.admin.admin import PAUSED
from flowshare.client.errors import ServerError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowshare.agents.scale.retention import Facts
    from flowshare.cli.worker_pages import Workers
    from flowshare.ops.session import CommandSession

AT_ONCE: Final = 100
"""Groups whose figures one look asks for."""
SIDE_BY_SIDE: Final = 8


class Look(NamedTuple):
    """The result of one look: all groups by name, and figures of some."""

    names: list[str]
    rows: list[GroupRow]


class Figures:
    """Asks for groups' figures, and remembers what rates need."""

    def __init__(self, workers: Workers | None = None) -> None:
        """workers: are asked who holds what, while a group stands still; None: nobody is."""
        self._workers = workers
        self._rates: dict[str, Rates] = {}
        self._seen_s: dict[str, float] = {}

    async def look(self, session: CommandSession, facts: Facts, first: Sequence[str], most: int = AT_ONCE) -> Look:
        """first: groups that are wanted before others. Raises: ClientError."""
        facts.begin()
        kinds = await _kinds(session)
        names = sorted(kinds)
        known = dict.fromkeys(names[:GROUPS_MAX])
        self._rates = {name: rates for name, rates in self._rates.items() if name in known}
        self._seen_s = {name: at_s for name, at_s in self._seen_s.items() if name in known}
        wanted = [name for name in first if name in known]
        others = sorted(known.keys() - set(wanted), key=lambda name: (self._seen_s.get(name, -math.inf), name))
        turn = asyncio.Semaphore(SIDE_BY_SIDE)
        asked = (self._group(session, facts, name, *kinds[name], turn) for name in [*wanted, *others][:most])
        found = [one for one in await asyncio.gather(*asked) if one is not None]
        in_hand = await self._in_hand(found)
        return Look(names, [_row(one, in_hand.get(one.facts.group, InHand())) for one in found])

    async def _in_hand(self, found: Sequence[_Seen]) -> Mapping[str, InHand]:
        """Who holds what and what was raised last, where that may be why a group stands still."""
        if self._workers is None or not any(one.stands_still for one in found):
            return {}
        return of_groups((await self._workers.in_hand()).rows)

    async def _group(
        self, session: CommandSession, facts: Facts, name: str, kind: str, state: str, turn: asyncio.Semaphore
    ) -> _Seen | None:
        """None: it is gone, or is not told of at the moment."""
        async with turn:
            try:
                return await self._asked(session, facts, name, kind, state)
            except ServerError:
                self._seen_s[name] = session.clock.monotonic()
                return None

    async def _asked(self, session: CommandSession, facts: Facts, name: str, kind: str, state: str) -> _Seen:
        share = kind == "share"
        groups = lag.Groups((name,), ()) if share else lag.Groups((), (name,))
        found = await lag.rows(session.admin, groups, session.clock.now_ms(), facts)
        now_s = session.clock.monotonic()
        rates = self._rates.setdefault(name, Rates())
        rates.look(found, now_s)
        await lag.add_retention(found, facts, rates, now_s)
        settings = await _settings(session, name) if share else {}
        members = await _members(session, name, share=share)
        told = GroupFacts(
            group=name,
            rows=lag.by_topic(found, rates),
            settings=settings,
            members=None if members is None else len(members),
            assigned=None if members is None else sum(one["partitions"] > 0 for one in members),
            breaker=await lag.breaker(session.admin, name, settings),
        )
        self._seen_s[name] = now_s
        return _Seen(told, kind, state, now_s)

    async def detail(self, session: CommandSession, facts: Facts, row: GroupRow) -> Detail:
        """A group's share-partitions and members. Raises: ClientError."""
        share = row.kind == "share"
        groups = lag.Groups((row.group,), ()) if share else lag.Groups((), (row.group,))
        found = await lag.rows(session.admin, groups, session.clock.now_ms(), facts)
        return Detail(row.group, found, await _members(session, row.group, share=share) or ())


class _Seen(NamedTuple):
    facts: GroupFacts
    kind: str
    state: str
    at_s: float

    @property
    def stands_still(self) -> bool:
        """And neither somebody nor the breaker has decided so."""
        held_back = self.facts.settings.get(PAUSED) == "true" or self.facts.breaker.state != "closed"
        return not held_back and stall_reason(self.facts) is not None


def _row(seen: _Seen, in_hand: InHand) -> GroupRow:
    told = replace(seen.facts, **in_hand._asdict())
    return GroupRow(
        group=told.group,
        kind=seen.kind,
        state=seen.state,
        backlog=told.backlog,
        in_flight=told.total("in_flight"),
        delayed=told.total("delayed"),
        oldest_s=told.oldest_s,
        arriving=told.total("arrival_rate"),
        finished=told.total("rate"),
        redelivered=told.total("redelivery_rate"),
        members=told.members,
        paused=told.settings.get(PAUSED) == "true",
        breaker=told.breaker.state,
        why=stall_reason(told),
        seen_s=seen.at_s,
    )


async def _kinds(session: CommandSession) -> dict[str, tuple[str, str]]:
    """Kind and state of each group."""
    found = {one.group_id: ("share", one.state) for one in await session.admin.list_groups()}
    if session.backend.capabilities.key_order:
        found |= dict.fromkeys(await session.admin.cooperative.names(), ("cooperative", ""))
    return found


async def _settings(session: CommandSession, group: str) -> Mapping[str, str]:
    if not session.backend.capabilities.pausing:
        return {}  # brokers may want a right of its own for the question
    try:
        return {one.name: one.value for one in await session.admin.group_configs(group)}
    except ServerError:
        return {}


async def _members(session: CommandSession, group: str, *, share: bool) -> list[dict[str, Any]] | None:
    try:
        admin = session.admin
        found: Any = await (admin.describe_group(group) if share else admin.cooperative.describe(group))
    except ServerError:
        return None
    return [
        {
            "member": one.member_id,
            "host": one.client_host,
            "client": one.client_id,
            "partitions": sum(len(parts) for parts in one.assignment.values()),
        }
        for one in found.members
    ]
