"""What an agent may ask for, checked when the app starts: by what its backend can do, and by the brokers' limits.

Kafka's group settings have bounds in the brokers' own settings (share-group configs of KIP-932 and KIP-1240; 4.2 lacks
the latter, there delivery limit and record locks are the brokers' for all groups).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from flowshare.agents.handler.errors import UsageError
from flowshare.agents.handler.retry import DELAY_MAX_S, Exponential
from flowshare.backend.base import Capabilities, GroupNeeds
from flowshare.client.errors import ClientError

if TYPE_CHECKING:
    from flowshare.agents.handler.agent import ShareAgent
    from flowshare.client.admin.admin import ShareAdmin

logger = logging.getLogger("flowshare.agents")


DELIVERIES_MAX: Final = "group.share.max.delivery.count.limit"
DELIVERIES: Final = "group.share.delivery.count.limit"
LOCKS_MAX: Final = "group.share.max.partition.max.record.locks"
LOCKS: Final = "group.share.partition.max.record.locks"
LOCK_LEAST: Final = "group.share.min.record.lock.duration.ms"
LOCK_MOST: Final = "group.share.max.record.lock.duration.ms"
STOCK: Final = {LOCK_LEAST: 15_000, LOCK_MOST: 60_000, DELIVERIES: 5, LOCKS: 2_000}
"""Kafka's defaults, for brokers that do not say."""
DELAY_HONEST_S: Final = 24 * 3600.0
"""Longest retry delay on a backend without delayed release: a waiting record is written anew every 30 s."""


def check_asked(agent: ShareAgent, offered: Capabilities) -> None:
    """See that the backend can do what the agent asks for by name. Raises: UsageError with what to do."""
    options = agent.options
    if options.max_in_flight is not None and not offered.group_limit:
        raise UsageError(
            f"agent {agent.name}: max_in_flight={options.max_in_flight} cannot be kept, as Kafka's brokers have no "
            f"limit for a whole group: leave it out, and let concurrency={options.concurrency} times the number of "
            "workers be the limit"
        )
    if options.max_rate is not None and not offered.group_limit:
        raise UsageError(
            f"agent {agent.name}: max_rate={options.max_rate!r} cannot be kept, as Kafka's brokers have no limit for a "
            "whole group: let the workers lead (share=workers, or share=auto, which chooses them), or give each worker "
            "its part with rate_limit=…"
        )
    if options.breaker is not None and not offered.group_limit:
        raise UsageError(
            f"agent {agent.name}: breaker={options.breaker!r} cannot be kept, as Kafka's brokers have no way to hold a "
            "group back: let the workers lead (share=workers, or share=auto, which chooses them), or leave breaker out "
            "and let retries wait longer"
        )
    if options.priority not in (None, "redeliveries") and not offered.priority:
        raise UsageError(
            f"agent {agent.name}: priority={options.priority!r} cannot be kept, as Kafka's brokers deliver what was "
            "delivered before first: leave it out, or let retries wait with a longer delay"
        )
    if options.order is not None and not offered.key_order:
        raise UsageError(
            f"agent {agent.name}: order={options.order!r} cannot be kept, as Kafka's brokers hand records of one key "
            "to several workers at once: let the workers lead (share=workers, or share=auto, which chooses them), or "
            "leave order out"
        )
    if options.exactly_once and not offered.settling:
        raise UsageError(
            f"agent {agent.name}: exactly_once=True cannot be kept, as {_why_unsettled(offered)}, or leave "
            "exactly_once out and make the effects idempotent (delivery.id, fs.Once)"
        )


def _why_unsettled(offered: Capabilities) -> str:
    if offered.key_order:  # the workers lead, and that is not enough
        return "these brokers are older than Kafka 3.7 and may leave a transaction open (KIP-890): use newer ones"
    return (
        "Kafka's brokers accept records in no step with what is produced (KIP-1289): let the workers lead "
        "(share=workers, or share=auto, which chooses them)"
    )


def asked_of(agents: Iterable[ShareAgent]) -> GroupNeeds:
    """By group, what its agents ask for that only flowshare's leaders keep; checked at a start on Kafka's brokers."""
    groups: dict[str, list[str]] = {}
    for agent in agents:
        words = groups.setdefault(agent.group, [])
        if agent.options.max_in_flight is not None:
            words.append(f"a limit for the whole group (max_in_flight={agent.options.max_in_flight})")
        if agent.options.max_rate is not None:
            words.append(f"a rate for the whole group (max_rate={agent.options.max_rate!r})")
        if agent.options.breaker is not None:
            words.append("a breaker for the whole group (breaker=fs.Breaker(…))")
        if agent.options.priority not in (None, "redeliveries"):
            words.append(f"an order of new records and redeliveries (priority={agent.options.priority!r})")
        if agent.options.order is not None:
            words.append(f"an order by key (order={agent.options.order!r})")
        if agent.options.exactly_once:
            words.append("outputs in one step with their inputs (exactly_once=True)")
    return groups


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """What an agent's group gets. locks: records of one partition in flight, for all members together."""

    locks: int
    settings: Mapping[str, str | None]


async def native_limits(agent: ShareAgent, admin: ShareAdmin) -> GroupLimits:
    """The group's settings within what the brokers allow. Raises: UsageError naming the config to change."""
    broker = await broker_limits(admin)
    _check_delay(agent)
    _check_lock(agent, broker)
    options = agent.options
    settings: dict[str, str | None] = {"share.auto.offset.reset": options.auto_offset_reset}
    if options.lock_duration is not None:
        settings["share.record.lock.duration.ms"] = str(round(options.lock_duration * 1000))
    per_group = DELIVERIES_MAX in broker
    name = DELIVERIES_MAX if per_group else DELIVERIES
    deliveries = broker[name]
    attempts = options.retry.max_attempts
    if attempts >= deliveries:
        raise UsageError(
            f"agent {agent.name}: Retry(max_attempts={attempts}) needs brokers that deliver a record more than "
            f"{attempts} times, and theirs is {name}={deliveries}: raise it above {attempts}, or set max_attempts to "
            f"{deliveries - 1} or less (at the limit Kafka drops the record, and no dead letter tells of it)"
        )
    locks = min(options.record_locks, broker.get(LOCKS_MAX, broker[LOCKS]))
    if per_group:
        settings["share.delivery.count.limit"] = str(max(2, min(options.delivery_count_limit, deliveries)))
        settings["share.partition.max.record.locks"] = str(locks)
    return GroupLimits(locks=locks, settings=settings)


def _check_lock(agent: ShareAgent, broker: Mapping[str, int]) -> None:
    if agent.options.lock_duration is None:
        return
    wanted_ms = round(agent.options.lock_duration * 1000)
    for name, fits in ((LOCK_LEAST, wanted_ms >= broker[LOCK_LEAST]), (LOCK_MOST, wanted_ms <= broker[LOCK_MOST])):
        if not fits:
            raise UsageError(
                f"agent {agent.name}: lock_duration={agent.options.lock_duration:g} s is not allowed by the brokers' "
                f"{name}={broker[name]}: change it there, or leave lock_duration out (locks are renewed while "
                "handlers run)"
            )


def _check_delay(agent: ShareAgent) -> None:
    policy = agent.options.retry.delay
    longest_s = policy.cap_s if isinstance(policy, Exponential) else 0.0
    if min(longest_s, DELAY_MAX_S) > DELAY_HONEST_S:
        raise UsageError(
            f"agent {agent.name}: retries wait up to {longest_s:g} s, but on Kafka's own share groups a waiting record "
            f"is written anew every 30 s, so that {DELAY_HONEST_S:g} s is the most: shorten the delay (cap=…), or "
            "send the record to a topic of its own and handle it later"
        )


async def broker_limits(admin: ShareAdmin) -> dict[str, int]:
    """The brokers' limits by their names, Kafka's defaults where they do not tell."""
    found = dict(STOCK)
    try:
        entries = await admin.broker_configs()
    except ClientError as error:
        logger.info("the brokers' limits cannot be read, Kafka's defaults are taken: %s", error)
        return found
    names = {*STOCK, DELIVERIES_MAX, LOCKS_MAX}
    found.update({entry.name: int(entry.value) for entry in entries if entry.name in names and entry.value.isdigit()})
    return found
