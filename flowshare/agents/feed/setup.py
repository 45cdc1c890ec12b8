"""Preparations before an agent fetches: its topics, its dead-letter topic, its group's settings.

Group settings are set before the first fetch: a group that starts at `latest`, Kafka's default, shows a newcomer no
records (KIP-932 leaves the reset to the group's config).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

from flowshare.agents.feed.backend_limits import GroupLimits, check_asked, native_limits
from flowshare.agents.handler.errors import UsageError
from flowshare.agents.handler.order import HEADER_PREFIX
from flowshare.agents.handler.retry_headers import retry_topic
from flowshare.agents.handler.send import topic_name
from flowshare.agents.handler.texts import amount
from flowshare.backend.base import BackendError, Capabilities
from flowshare.client.admin.admin import KEY_ORDER, MAX_IN_FLIGHT, MAX_RATE, ShareAdmin
from flowshare.client.admin.sizes import MESSAGE_BYTES_MAX, letter_bytes, widen
from flowshare.client.errors import ClientError, ConnectionLost, NotConnected, ServerError
from flowshare.protocol.errors import ErrorCode
from flowshare.share.config import ISOLATION, PARK
from flowshare.share.settings import UNKNOWN_SETTING

if TYPE_CHECKING:
    from flowshare.agents.handler.agent import ShareAgent
    from flowshare.clock import Clock
    from flowshare.protocol.messages import ConfigEntry, SharePartitionOffsets

PREPARE_TRIES: Final = 10
PREPARE_PAUSE_S: Final = 1.0
"""Seconds between two tries: a fleet's worker that stands still, or is gone, is replaced within some ten seconds."""

T = TypeVar("T")

logger = logging.getLogger("flowshare.agents")

CLEANUP: Final = (("compact", "compacting"), ("delete", "deleting"))
"""Policies of cleanup.policy, with Faust's names for them."""
DEAD_LETTER_TOPIC: Final = "errors.deadletterqueue.topic.name"
DEAD_LETTER_COPY: Final = "errors.deadletterqueue.copy.record.enable"
DEAD_LETTER_ON: Final = "share.dead.letter.on"
RENEWAL: Final = "share.renew.acknowledge.enable"


async def prepare(
    agent: ShareAgent,
    admin: ShareAdmin,
    capabilities: Capabilities,
    clock: Clock,
    allow: Callable[[int], object] = lambda record_bytes: None,
) -> GroupLimits:
    """Make missing topics (if the app allows it) and set the group's settings; return the group's limits.

    allow: called with the size of the agent's largest dead letter, for the producer.

    All steps may be repeated when the connection breaks, or when the server cannot do it now: another process may be
    taking over.
    Raises: UsageError (the application asks for what it cannot have), ServerError (refused for another reason),
    BackendError (nobody could do it, PREPARE_TRIES times).
    """
    return await retried(agent, clock, lambda: _prepare(agent, admin, capabilities, allow))


async def retried(agent: ShareAgent, clock: Clock, call: Callable[[], Awaitable[T]]) -> T:
    """Return the result of `call`, tried again after errors that may pass.

    Raises: the errors of `call` that cannot pass; BackendError: it failed PREPARE_TRIES times.
    """
    for tried in range(1, PREPARE_TRIES + 1):
        try:
            return await call()
        except (ConnectionLost, NotConnected, ServerError) as error:
            if isinstance(error, ServerError) and not _may_pass(error):
                raise
            if tried == PREPARE_TRIES:
                raise BackendError(
                    f"agent {agent.name}: its topics and its group could not be set up: {error}; see whether brokers "
                    "and workers are well (`flowshare check`), then start it again"
                ) from error
            logger.info("agent=%s is set up again, tried %d of %d: %s", agent.name, tried, PREPARE_TRIES, error)
        await clock.sleep(PREPARE_PAUSE_S)
    raise AssertionError("the last try returns or raises")


def _may_pass(error: ServerError) -> bool:
    """Tell if the same request can succeed later: while a broker is away, the others may be too few for a new topic."""
    return error.retriable or error.code is ErrorCode.INVALID_REPLICATION_FACTOR


async def rehearse(agent: ShareAgent, admin: ShareAdmin, capabilities: Capabilities, groups: ShareAdmin) -> None:
    """Check if `prepare` would be refused; change nothing.

    groups: client that knows the group's settings. Raises: UsageError, ServerError, as `prepare` does.
    """
    limits = await _limits(agent, admin, capabilities, groups)
    for channel in _channels(agent, capabilities):
        await need_topic(agent, admin, channel, dry_run=True)
    await _check_order(agent, groups)
    await _set_group(agent, groups, limits.settings, dead_letters=False, dry_run=True)


async def _limits(agent: ShareAgent, admin: ShareAdmin, capabilities: Capabilities, groups: ShareAdmin) -> GroupLimits:
    check_asked(agent, capabilities)
    await _check_renewal(agent, groups)
    if capabilities.own_limits:
        return GroupLimits(locks=agent.options.record_locks, settings=group_settings(agent))
    limits = await native_limits(agent, admin)
    await check_kind(agent, admin)
    return limits


async def _check_renewal(agent: ShareAgent, admin: ShareAdmin) -> None:
    """Check that locks can be renewed while handlers run (KIP-1222). Raises: UsageError with what to do."""
    if not agent.options.renew:
        return
    try:
        entries = await admin.group_configs(agent.group)
    except ClientError as error:  # brokers of 4.2 have no such setting, and others may not show it
        logger.debug("whether group %s may renew locks is not known: %s", agent.group, error)
        return
    if any(entry.name == RENEWAL and entry.value == "false" for entry in entries):
        raise UsageError(
            f"agent {agent.name}: locks of group {agent.group} are not renewed, as {RENEWAL}=false: a record whose "
            f"handler takes longer than the lock would run twice. Allow it (flowshare groups config {agent.group} "
            f"{RENEWAL}=true), or give the agent renew=False and a timeout shorter than the lock"
        )


def _channels(agent: ShareAgent, capabilities: Capabilities) -> list[Any]:
    """Return the topics that the agent reads and writes, by name or as they were declared."""
    found = [*agent.channels, *agent.options.sink]
    if agent.dead_letter_topic is not None:
        given = agent.options.dead_letter  # True, a name, or a topic with partitions and settings of its own
        found.append(agent.dead_letter_topic if given is True else given)
    if not capabilities.delayed_release and not agent.options.at_most_once:
        found.append(retry_topic(agent.group))
    return found


async def _prepare(
    agent: ShareAgent, admin: ShareAdmin, capabilities: Capabilities, allow: Callable[[int], object]
) -> GroupLimits:
    limits = await _limits(agent, admin, capabilities, admin)
    channels = _channels(agent, capabilities)
    for channel in channels[: len(agent.channels)]:
        await need_topic(agent, admin, channel)
    await need_outputs(agent, admin, channels[len(agent.channels) :], allow)
    wanted = {**limits.settings, **(dead_letter_settings(agent) if capabilities.server_dead_letters else {})}
    await _check_order(agent, admin)
    others = await _other_settings(agent, admin, wanted)
    await _set_group(agent, admin, limits.settings, dead_letters=capabilities.server_dead_letters)
    if others:  # told when they are set, and not before they are refused
        logger.warning("agent=%s group=%s has %s", agent.name, agent.group, others)
    await _warn_of_older_group(agent, admin)
    await _warn_of_parked_keys(agent, admin)
    return limits


async def need_outputs(
    agent: ShareAgent, admin: ShareAdmin, channels: Iterable[Any], allow: Callable[[int], object]
) -> None:
    """Check that the agent's output topics exist; topics of dead letters and retries must take records as large as the
    agent's own topics, which exist. allow: as of `prepare`. Raises: UsageError, ServerError."""
    takers = {agent.dead_letter_topic, retry_topic(agent.group)}
    size = 0
    for channel in channels:
        takes_all = topic_name(channel) in takers
        if takes_all and not size:
            size = await letter_bytes(admin, agent.topics)
            allow(size)
        await need_topic(agent, admin, channel, size=size if takes_all else 0)


async def declare(agents: Iterable[ShareAgent], topic: str, admin: ShareAdmin) -> None:
    """Make a missing topic as the agents declare it, before a first record makes the broker create it.

    Raises: UsageError, ServerError.
    """
    for agent in agents:
        for channel in agent.channels:
            if topic_name(channel) == topic:
                await need_topic(agent, admin, channel)
                return


async def _widen(agent: ShareAgent, admin: ShareAdmin, channel: Any, size: int) -> None:
    """Check that an existing topic takes records as large as the agent's topics; raise its limit, or log what to do."""
    name, left = topic_name(channel), None
    if MESSAGE_BYTES_MAX in _topic_settings(channel):
        left = "the app gives it that limit"
    elif not agent.app.conf.topic_allow_declare:
        left = "topic_allow_declare=False"
    small = await widen(admin, name, size, left=left)
    if small is not None:
        logger.warning(
            "agent=%s topic=%s takes %d bytes at once, and the agent's topics up to %d with their headers: what is "
            "larger goes there without its value. Raise its %s to that (kafka-configs.sh --alter --entity-type "
            "topics); it is left as it is: %s",
            agent.name,
            name,
            small.takes,
            size,
            MESSAGE_BYTES_MAX,
            small.why,
        )


async def _is_there(admin: ShareAdmin, topic: str) -> bool:
    try:
        await admin.describe_topic(topic)
    except ServerError as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        return False
    return True


async def need_topic(
    agent: ShareAgent, admin: ShareAdmin, channel: Any, *, size: int = 0, dry_run: bool = False
) -> bool:
    """Make a topic if it is missing; return True if it existed. size: bytes of the largest batch that it must take; 0:
    its own setting. Raises: UsageError, ServerError."""
    name = topic_name(channel)
    if await _is_there(admin, name):
        if size:
            await _widen(agent, admin, channel, size)
        return True
    if not agent.app.conf.topic_allow_declare:
        raise UsageError(
            f"agent {agent.name}: there is no topic {name!r} and topic_allow_declare=False forbids to make it; "
            f"create it with `flowshare topics create {name}`, or check its name (`flowshare topics ls`)"
        )
    partitions, configs = declaration(channel, agent.app.conf.topic_partitions)
    wide = {MESSAGE_BYTES_MAX: str(size), **configs} if size else configs
    try:
        await admin.create_topic(name, partitions=partitions, configs=wide, exist_ok=True, dry_run=dry_run)
    except ServerError as error:
        if _may_pass(error):
            raise
        if wide == configs:
            raise UsageError(
                f"agent {agent.name}: topic {name!r} does not exist and cannot be made: {error}"
            ) from error
        # A policy of the brokers may refuse this limit alone: a topic with theirs is better than none.
        await need_topic(agent, admin, channel, dry_run=dry_run)
        await _widen(agent, admin, channel, size)
        return False
    if not dry_run:
        logger.info("agent=%s topic=%s was missing and is made, partitions=%d", agent.name, name, partitions)
    return False


def declaration(channel: Any, partitions: int) -> tuple[int, dict[str, str]]:
    """Return partitions (`partitions`, without its own) and settings of a channel's new topic."""
    return getattr(channel, "partitions", None) or partitions, _topic_settings(channel)


def _topic_settings(channel: Any) -> dict[str, str]:
    """Return settings of a channel's new topic: its `config`, and Faust's `retention` (seconds), `compacting` and
    `deleting`."""
    settings = {key: str(value) for key, value in (getattr(channel, "config", None) or {}).items()}
    retention = getattr(channel, "retention", None)
    if retention is not None:
        retention_s = retention.total_seconds() if isinstance(retention, timedelta) else float(retention)
        settings.setdefault("retention.ms", str(round(retention_s * 1000)))
    policies = [policy for policy, flag in CLEANUP if getattr(channel, flag, None)]
    if policies:
        settings.setdefault("cleanup.policy", ",".join(policies))
    return settings


def group_settings(agent: ShareAgent) -> dict[str, str | None]:
    """Return the settings of the agent's group, by Kafka's names (share-group configs of KIP-932, KIP-1240)."""
    options = agent.options
    settings: dict[str, str | None] = {
        "share.auto.offset.reset": options.auto_offset_reset,
        ISOLATION: options.isolation,
        "share.delivery.count.limit": str(options.delivery_count_limit),
        "share.partition.max.record.locks": str(options.record_locks),
    }
    if options.lock_duration is not None:
        settings["share.record.lock.duration.ms"] = str(round(options.lock_duration * 1000))
    if options.max_in_flight is not None:
        settings[MAX_IN_FLIGHT] = str(options.max_in_flight)
    if options.max_rate is not None:
        settings[MAX_RATE] = options.max_rate
    if options.breaker is not None:
        settings |= options.breaker.settings()
    if options.priority is not None:
        settings["share.delivery.priority"] = options.priority
    if options.key_order is not None:
        settings[KEY_ORDER] = options.key_order
        settings["share.key.after.dead.letter"] = options.after_dead_letter
    return settings


def dead_letter_settings(agent: ShareAgent) -> dict[str, str | None]:
    """Return settings that make the leader write dead letters for records archived by the delivery limit (KIP-1191)."""
    topic = agent.dead_letter_topic
    if topic is None:
        return {DEAD_LETTER_TOPIC: None, DEAD_LETTER_COPY: None, DEAD_LETTER_ON: None}
    return {DEAD_LETTER_TOPIC: topic, DEAD_LETTER_COPY: "true", DEAD_LETTER_ON: "limit"}


async def check_kind(agent: ShareAgent, admin: ShareAdmin) -> None:
    """Check that the group's name is free for a share group, and log where the group lives and why.

    The first start of a group decides; later starts see the group on the brokers.
    Raises: UsageError when it is a group of another kind.
    """
    kind = await admin.group_kind(agent.group)
    if kind not in (None, "share"):
        raise UsageError(
            f"agent {agent.name}: {agent.group!r} is a {kind} group on the brokers, and a name is for one kind of "
            f"group only; give the agent another one with group=…, or delete that group first"
        )
    reason = "its group is there" if kind else "the brokers have share groups and the agent asks for nothing they lack"
    logger.info("agent=%s group=%s: share=native (asked: %s), as %s", agent.name, agent.group, agent.app.share, reason)


async def _set_group(
    agent: ShareAgent,
    admin: ShareAdmin,
    settings: Mapping[str, str | None],
    *,
    dead_letters: bool,
    dry_run: bool = False,
) -> None:
    try:
        await admin.alter_group_configs(agent.group, settings, dry_run=dry_run)
    except ServerError as error:
        if error.retriable:
            raise
        known = not (error.message or "").startswith(UNKNOWN_SETTING)
        older = "" if known else "; who leads the group runs an older release of flowshare: restart it with this one"
        raise UsageError(f"agent {agent.name}: its group's settings are refused: {error}{older}") from error
    if not dead_letters:
        return
    try:
        await admin.alter_group_configs(agent.group, dead_letter_settings(agent))
    except ServerError as error:
        if error.retriable:
            raise
        logger.warning(
            "agent=%s group=%s: the server writes no dead letters for records that the delivery limit archives: %s",
            agent.name,
            agent.group,
            error,
        )


async def _check_order(agent: ShareAgent, admin: ShareAdmin) -> None:
    """Refuse an agent without an order in a group that works in one; its setting stays. Raises: UsageError.

    An agent with another order is refused by the group itself (SG-18.2).
    """
    if agent.options.order is not None:
        return
    order, members = "", 0
    try:
        entries = await admin.group_configs(agent.group)
        order = next((entry.value for entry in entries if entry.name == KEY_ORDER), "")
        members = len((await admin.describe_group(agent.group)).members) if order else 0
    except ServerError as error:
        if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:  # no right to read it
            logger.debug("the order of group %s could not be looked at: %s", agent.group, error)
            return
    except ClientError as error:
        logger.debug("the order of group %s could not be looked at: %s", agent.group, error)
        return
    if not order:
        return
    as_option = f"fs.Header({order.removeprefix(HEADER_PREFIX)!r})" if order.startswith(HEADER_PREFIX) else repr(order)
    if members:
        raise UsageError(
            f"agent {agent.name}: group {agent.group} has {amount(members, 'member')} and delivers in an order "
            f"({KEY_ORDER}={order}), and this agent has none: give all agents of the group order={as_option}, or stop "
            f"them and take the order from the group (flowshare groups config {agent.group} {KEY_ORDER}=)"
        )
    logger.warning(
        "agent=%s group=%s delivers in an order (%s=%s) that the agent does not ask for: it is kept, and each key has "
        "one record at a time. Give the agent order=%s, or take it from the group (flowshare groups config %s %s=)",
        agent.name,
        agent.group,
        KEY_ORDER,
        order,
        as_option,
        agent.group,
        KEY_ORDER,
    )


async def check_order_kept(agent: ShareAgent, admin: ShareAdmin, clock: Clock) -> None:
    """Check, as a member, that the group works in the agent's order: another agent that started at the same time may
    have set its own before either had joined. From now on nobody can (SG-18.2). Raises: as `prepare`."""
    wanted = agent.options.key_order
    if wanted is None:
        return
    try:
        entries = await retried(agent, clock, lambda: admin.group_configs(agent.group))
    except ServerError as error:  # no right to read it
        logger.debug("the order of group %s could not be looked at: %s", agent.group, error)
        return
    order = next((entry.value for entry in entries if entry.name == KEY_ORDER), wanted)
    if order != wanted:
        raise UsageError(
            f"agent {agent.name}: another agent of group {agent.group} that started beside this one has set "
            f"{KEY_ORDER}={order}, and this one wants {wanted}: give all agents of the group the same order, then "
            "start it again"
        )


async def _other_settings(agent: ShareAgent, admin: ShareAdmin, wanted: Mapping[str, str | None]) -> str:
    """Describe settings that running members chose differently: a group has each setting once, and the last start
    decides for all. Empty if none differ."""
    try:
        # Members first: a worker that starts beside this one sets them before it joins.
        members = len((await admin.describe_group(agent.group)).members)
        entries = {entry.name: entry for entry in await admin.group_configs(agent.group)} if members else {}
    except ClientError as error:  # no such group yet, or no right to see it
        logger.debug("the settings of group %s could not be looked at: %s", agent.group, error)
        return ""
    others = {
        name: "the default" if entries[name].is_default else entries[name].value
        for name, value in wanted.items()
        if name in entries and not _is_set(entries[name], value)
    }
    if not others:
        return ""
    texts = (f"{name}={wanted[name] or 'the default'} (was {was})" for name, was in sorted(others.items()))
    return (
        f"{amount(members, 'member')}, and its settings were others than this worker's; from now on they are for all "
        f"of them: {', '.join(texts)}. Give all workers of a group the same options."
    )


def _is_set(entry: ConfigEntry, wanted: str | None) -> bool:
    """Tell if a setting has the value that the agent wants; wanted None: its default."""
    return entry.is_default if wanted is None else entry.value == wanted


async def _warn_of_parked_keys(agent: ShareAgent, admin: ShareAdmin) -> None:
    """Warn of parked keys, which stay parked when the group parks no more keys."""
    if agent.options.order is None or agent.options.after_dead_letter == PARK:
        return
    try:
        parked = len((await admin.parked_keys(agent.group)).keys)
    except ClientError as error:
        logger.debug("the parked keys of group %s could not be looked at: %s", agent.group, error)
        return
    if parked:
        logger.warning(
            "agent=%s group=%s parks no more keys, and %d are parked since it did: their records become dead letters "
            "until they are replayed or let go on (flowshare dlq parked %s)",
            agent.name,
            agent.group,
            parked,
            agent.group,
        )


async def _warn_of_older_group(agent: ShareAgent, admin: ShareAdmin) -> None:
    """Warn of the old group of a renamed function, whose new group begins anew: when the old one is idle and has a
    backlog, or has read the same topics and the new one does not exist yet."""
    if agent.options.group is not None:
        return
    used = {one.group for one in agent.app.share_agents.values()}
    try:
        groups = await admin.list_groups()
        begins = agent.group not in {one.group_id for one in groups}
        for one in groups:
            idle = one.state == "Empty" and one.group_id.startswith(f"{agent.app.app_id}.")
            if not idle or one.group_id in used:
                continue
            has = _left_by(await admin.group_offsets(one.group_id), agent, begins=begins)
            if has is not None:
                logger.warning(
                    "agent=%s uses group %s; group %s has no member and %s. Was the function renamed? Then pass "
                    "group=%r to go on where it was, or delete the old group.",
                    agent.name,
                    agent.group,
                    one.group_id,
                    has,
                    one.group_id,
                )
    except ClientError as error:
        logger.debug("older groups could not be looked at: %s", error)


def _left_by(offsets: Iterable[SharePartitionOffsets], agent: ShareAgent, *, begins: bool) -> str | None:
    """Describe records of an idle group that the agent's group would do again; None: none.

    offsets: of the idle group; only the agent's topics count. begins: the agent's group does not exist yet.
    """
    parts = [part for part in offsets if part.topic in agent.topics]
    backlog = sum(max(0, part.lag) for part in parts)
    if backlog:
        return f"{amount(backlog, 'unfinished record')} of the same topic"
    if begins and any(part.start_offset > 0 for part in parts):
        start = agent.options.auto_offset_reset
        return f"finished records of the same topic, on which the new group begins anew (start {start})"
    return None
