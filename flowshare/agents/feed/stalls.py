"""A stall explains itself: when nothing is fetched for a while, one log line says why, again when the reason changes.

"Nothing left to do" is told at level INFO, everything else at WARNING.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from flowshare.agents.handler.texts import amount
from flowshare.client.admin.admin import MAX_IN_FLIGHT, MAX_RATE, PAUSED, ShareAdmin
from flowshare.client.errors import ClientError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flowshare.agents.feed.feeder import Feeder
    from flowshare.agents.feed.members import Member
    from flowshare.agents.handler.agent import ShareAgent
    from flowshare.clock import Clock
    from flowshare.protocol.messages import SharePartitionOffsets

logger = logging.getLogger("flowshare.agents")

QUIET_S: Final = 10.0
"""Seconds without a fetched record until the reason is looked for."""


class Reason(NamedTuple):
    """Reason why nothing is fetched. normal: True when there is nothing wrong."""

    text: str
    normal: bool


class StallWatch:
    """Looks for the reason after 10 s without a fetched record; on the service loop."""

    def __init__(self, agent: ShareAgent, *, clock: Clock, admin: ShareAdmin) -> None:
        self._agent = agent
        self._clock = clock
        self._admin = admin
        self._member: Member | None = None
        self._since = clock.monotonic()
        self._looked = self._since
        self._told: str | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, member: Member) -> None:
        """Begin to watch this member."""
        self._member = member
        self._since = self._looked = self._clock.monotonic()

    def stop(self) -> None:
        """End it."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def something_fetched(self) -> None:
        """Note that records came."""
        self._since = self._looked = self._clock.monotonic()
        self._told = None

    def paused(self) -> None:
        """Log that the agent is paused: at once, as no empty fetch will come to tell it."""
        self._tell(Reason("the agent is paused; resume it", normal=True), 0.0)

    def rate_limited(self, wait_s: float) -> None:
        """Log a wait for the rate limit that takes as long as a stall."""
        if wait_s >= QUIET_S:
            limit = self._agent.options.rate_limit
            assert limit is not None
            text = f"rate_limit allows {limit.per_s * 3600:g} records an hour, the next one in {QUIET_S:g} s or later"
            self._tell(Reason(text, normal=True), 0.0)

    def nothing_fetched(self, feeder: Feeder) -> None:
        """Look for the reason after an empty fetch."""
        now = self._clock.monotonic()
        if now - self._looked < QUIET_S or (self._task is not None and not self._task.done()):
            return
        self._looked = now
        self._task = asyncio.create_task(self._explain(feeder, now), name=f"stall {self._agent.name}")

    async def _explain(self, feeder: Feeder, now: float) -> None:
        assert self._member is not None
        reason = await explain(self._agent, self._admin, self._member, feeder)
        if self._since <= now:  # else a record came meanwhile
            self._tell(reason, now - self._since)

    def _tell(self, reason: Reason, quiet_s: float) -> None:
        if reason.text == self._told:
            return
        self._told = reason.text
        logger.log(
            logging.INFO if reason.normal else logging.WARNING,
            "agent=%s group=%s: nothing to handle for %.0f s: %s",
            self._agent.name,
            self._agent.group,
            quiet_s,
            reason.text,
        )


async def explain(agent: ShareAgent, admin: ShareAdmin, member: Member, feeder: Feeder) -> Reason:
    """Return the reason why an agent gets no records now."""
    if feeder.paused:
        return Reason("the agent is paused; resume it", normal=True)
    if feeder.held_back is not None:
        return Reason(f"{feeder.held_back}; `flowshare groups resume {agent.group}` closes it by hand", normal=False)
    problems = feeder.problems()
    if problems:
        return Reason("; ".join(problems), normal=False)
    if member.trouble:
        return Reason(member.trouble, normal=False)
    if agent.group_type != "share":
        return Reason("there is nothing new, or its keys are busy", normal=True)
    try:
        offsets = await admin.group_offsets(agent.group, agent.topics)
    except ClientError as error:
        return Reason(f"the group's positions cannot be read: {error}", normal=False)
    reason = of_offsets(offsets, assigned={(one.topic, one.partition) for one in member.assignment})
    if not any(part.lag > 0 and part.in_flight >= 0 for part in offsets):
        return reason
    try:
        configs = {one.name: one.value for one in await admin.group_configs(agent.group)}
    except ClientError:
        return reason
    return of_configs(agent.group, configs, sum(part.in_flight for part in offsets)) or reason


def of_configs(group: str, configs: Mapping[str, str], in_flight: int) -> Reason | None:
    """Return the reason in a group's settings; None: they are no reason."""
    if configs.get(PAUSED) == "true":
        return Reason(f"the group is paused; `flowshare groups resume {group}` lets it go on", normal=True)
    limit = int(configs.get(MAX_IN_FLIGHT, "0"))
    if 0 < limit <= in_flight:
        return Reason(
            f"{amount(in_flight, 'record is', 'records are')} in flight in the group, and its max_in_flight={limit} "
            "allows no more",
            normal=True,
        )
    if (rate := configs.get(MAX_RATE, "0")) != "0":
        return Reason(f"the group's max_rate={rate} hands out no more at present", normal=True)
    return None


def _of_blocked(offsets: Sequence[SharePartitionOffsets], blocked: int, backlog: int, *, all_known: bool) -> Reason:
    """Return the reason of an order by key: most idle records wait for another record of their key."""
    text = f"{blocked} of {backlog} unfinished records wait for another one of their key"
    most = max(((key, part) for part in offsets for key in part.stuck), key=lambda one: one[0].blocked, default=None)
    if most is not None:
        key, part = most
        text += f", {key.blocked} of them for {part.topic}-{part.partition}@{key.offset} ({key.state.lower()})"
    if not all_known:
        text += "; the window (share.partition.max.window) may be full, so that no key behind it goes on"
    return Reason(f"{text}; `flowshare lag` shows who holds it", normal=all_known)


def of_offsets(offsets: Sequence[SharePartitionOffsets], *, assigned: set[tuple[str, int]]) -> Reason:
    """Return the reason that a group's positions show."""
    backlog = sum(max(0, part.lag) for part in offsets)
    if backlog == 0:
        return Reason("every record of the topic is finished", normal=True)
    waiting = {(part.topic, part.partition) for part in offsets if part.lag > 0}
    if not waiting & assigned:
        return Reason(
            f"{amount(backlog, 'unfinished record lies', 'unfinished records lie')} in partitions that are assigned to "
            "other members",
            normal=True,
        )
    if any(part.in_flight < 0 for part in offsets):
        return Reason(
            f"{backlog} records are unfinished, and brokers do not tell how many of them members hold: it may be all, "
            "or one record that takes long holds up the others, which a partition hands out up to "
            "share.partition.max.record.locks offsets beyond it",
            normal=False,
        )
    in_flight = sum(part.in_flight for part in offsets)
    delayed = sum(part.delayed for part in offsets)
    blocked = sum(part.blocked for part in offsets)
    if 2 * blocked >= backlog:  # members may hold them all, and work on the heads that others wait for
        return _of_blocked(offsets, blocked, backlog, all_known=in_flight + delayed + blocked >= backlog)
    if in_flight and in_flight + delayed >= backlog:
        return Reason(
            f"all {backlog} unfinished records are taken: {in_flight} are in flight at members of the group"
            + (f", {delayed} wait for their retry delay" if delayed else ""),
            normal=True,
        )
    if delayed >= backlog:
        return Reason(f"all {backlog} unfinished records wait for their retry delay", normal=True)
    if blocked > 0:
        return _of_blocked(offsets, blocked, backlog, all_known=in_flight + delayed + blocked >= backlog)
    if in_flight:
        return Reason(
            f"{amount(backlog, 'record is', 'records are')} unfinished and {in_flight} in flight: the group's limit of "
            "records in flight (share.partition.max.record.locks) or its window (share.partition.max.window) may be "
            "reached",
            normal=False,
        )
    return Reason(
        f"{amount(backlog, 'record is', 'records are')} unfinished and free, but the group hands none out", normal=False
    )
