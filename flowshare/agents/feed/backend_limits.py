"""Checks of an agent's options when the app starts: against the backend's abilities and the brokers' limits.

The bounds of Kafka's group settings are in the brokers' own settings (share-group configs of KIP-932 and KIP-1240).
Kafka 4.2 lacks the configs of KIP-1240: there, delivery limit and record locks are set on the brokers for all groups.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from flowshare.agents.handler.errors import UsageError
from flowshare.agents.handler.retry import DELAY_MAX_S
from flowshare.backend.base import Capabilities, GroupNeeds, Leader
from flowshare.backoff import Backoff
from flowshare.client.errors import ClientError
from flowshare.share.config import ISOLATION

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
"""Kafka's defaults, for brokers that do not tell theirs."""
DELAY_HONEST_S: Final = 24 * 3600.0
"""Longest retry delay in seconds without delayed release: a waiting record is written anew every 30 s."""


def check_asked(agent: ShareAgent, offered: Capabilities) -> None:
    """Check that the backend can do what the agent asks for by name. Raises: UsageError with what to do."""
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
    if offered.leader is not Leader.BROKERS:  # the brokers below the workers are too old
        return "these brokers are older than Kafka 3.7 and may leave a transaction open (KIP-890): use newer ones"
    return (
        "Kafka's brokers accept records in no step with what is produced (KIP-1289): let the workers lead "
        "(share=workers, or share=auto, which chooses them)"
    )


def asked_of(agents: Iterable[ShareAgent]) -> GroupNeeds:
    """Return by group the options that only flowshare's leaders keep; checked at a start on Kafka's brokers."""
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
    """Limits and settings of an agent's group. locks: records of one partition in flight, for all members together."""

    locks: int
    settings: Mapping[str, str | None]


async def native_limits(agent: ShareAgent, admin: ShareAdmin) -> GroupLimits:
    """Return the group's settings within the brokers' limits. Raises: UsageError naming the config to change."""
    broker = await broker_limits(admin)
    _check_delay(agent)
    _check_lock(agent, broker)
    options = agent.options
    settings: dict[str, str | None] = {
        "share.auto.offset.reset": options.auto_offset_reset,
        ISOLATION: options.isolation,
    }
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
    refused = lock_refusal(agent.options.lock_duration, broker)
    if refused is not None:
        raise UsageError(f"agent {agent.name}: {refused} (locks are renewed while handlers run)")


def lock_refusal(lock_s: float | None, broker: Mapping[str, int]) -> str | None:
    """Say why the brokers' limits (`broker_limits`) do not allow a lock of `lock_s` seconds; None: they do."""
    if lock_s is None or broker[LOCK_LEAST] <= round(lock_s * 1000) <= broker[LOCK_MOST]:
        return None
    name = LOCK_LEAST if round(lock_s * 1000) < broker[LOCK_LEAST] else LOCK_MOST
    return (
        f"lock_duration={lock_s:g} s is not allowed by the brokers' {name}={broker[name]}: take "
        f"{broker[LOCK_LEAST] / 1000:g} to {broker[LOCK_MOST] / 1000:g} s, change it there, or leave lock_duration out"
    )


def _check_delay(agent: ShareAgent) -> None:
    policy = agent.options.retry.delay
    longest_s = policy.most if isinstance(policy, Backoff) else 0.0
    if min(longest_s, DELAY_MAX_S) > DELAY_HONEST_S:
        raise UsageError(
            f"agent {agent.name}: retries wait up to {longest_s:g} s, but on Kafka's own share groups a waiting record "
            f"is written anew every 30 s, so that {DELAY_HONEST_S:g} s is the most: shorten the delay (cap=…), or "
            "send the record to a topic of its own and handle it later"
        )


async def broker_limits(admin: ShareAdmin) -> dict[str, int]:
    """Return the brokers' limits by name, Kafka's defaults where they do not tell."""
    found = dict(STOCK)
    try:
        entries = await admin.broker_configs()
    except ClientError as error:
        logger.info("the brokers' limits cannot be read, Kafka's defaults are taken: %s", error)
        return found
    names = {*STOCK, DELIVERIES_MAX, LOCKS_MAX}
    found.update({entry.name: int(entry.value) for entry in entries if entry.name in names and entry.value.isdigit()})
    return found
