"""Texts about an app's agents, for the start of a worker and for `flowshare check`: settings and warnings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from flowshare.agents.handler.agent import ShareAgent
from flowshare.agents.handler.options import DEFAULT_LOCK_S, READ_COMMITTED, AgentOptions
from flowshare.agents.handler.order import BY_KEY, PARK
from flowshare.agents.handler.send import topic_name
from flowshare.agents.handler.sinks import Produce
from flowshare.backoff import Backoff

if TYPE_CHECKING:
    from flowshare.agents.app.app import App
    from flowshare.agents.cooperative.agent import CooperativeAgent
    from flowshare.agents.kmq.agent import KmqAgent

_SHORT_LOCK_S: Final = 5.0


def line(agent: ShareAgent) -> str:
    """Describe the agent's settings in one line."""
    facts = agent.describe()
    options = agent.options
    parts = [
        f"{agent.name} ({facts['handler']}): topic {', '.join(agent.topics)}",
        f"group {agent.group}",
        f"start {options.start if isinstance(options.start, str) else f'{options.auto_offset_reset} back'}",
        f"concurrency {options.concurrency}",
    ]
    if options.batch is not None:
        parts.append(f"batch {options.batch.size} within {options.batch.within_s:g} s")
    parts.append(_retry(options))
    parts.append("timeout none" if options.timeout is None else f"timeout {options.timeout:g} s")
    parts.append(f"lock {options.lock_duration or DEFAULT_LOCK_S:g} s{', renewed' if options.renew else ''}")
    parts.append(f"dead letter {agent.dead_letter_topic or 'none'}")
    if agent.sinks:
        parts.append(f"sink {', '.join(agent.sinks)}")
    if options.rate_limit is not None:
        parts.append(f"at most {options.rate_limit.per_s:g}/s")
    parts += _group_limits(options)
    if options.priority is not None:
        parts.append("redeliveries and new ones mixed" if options.priority == "mixed" else f"{options.priority} first")
    if options.order is not None:
        parts.append("in order of key" if options.order == BY_KEY else f"in order of {options.key_order}")
    if options.after_dead_letter == PARK:
        parts.append("parks a key after a dead letter")
    if options.exactly_once:
        parts.append("outputs exactly once")
    if options.isolation != READ_COMMITTED:
        parts.append("reads uncommitted")
    return " · ".join(parts)


def kmq_line(agent: KmqAgent) -> str:
    """Describe the settings of a KMQ queue's agent in one line."""
    facts, options = agent.describe(), agent.options
    parts = [
        f"{agent.name} ({facts['handler']}): KMQ queue {agent.queue}",
        f"markers {agent.markers}",
        f"consumer group {agent.group}",
        f"concurrency {options.concurrency}",
        f"redelivered after {agent.redeliver_after_s:g} s",
        "timeout none" if options.timeout is None else f"timeout {options.timeout:g} s",
        "with a tracker" if agent.with_tracker else "tracked by `flowshare kmq tracker`",
    ]
    if options.batch is not None:
        parts.append(f"batch {options.batch.size} within {options.batch.within_s:g} s")
    if agent.sinks:
        parts.append(f"sink {', '.join(agent.sinks)}")
    if options.rate_limit is not None:
        parts.append(f"at most {options.rate_limit.per_s:g}/s")
    return " · ".join(parts)


def cooperative_line(agent: CooperativeAgent) -> str:
    """Describe the settings of a cooperative group's agent in one line."""
    facts, options = agent.describe(), agent.options
    parts = [
        f"{agent.name} ({facts['handler']}): topics {', '.join(agent.topics)}, shared by keys",
        f"cooperative group {agent.group}",
        f"concurrency {options.concurrency}",
        f"attempts {options.retry.max_attempts}",
        "timeout none" if options.timeout is None else f"timeout {options.timeout:g} s",
        f"lease {agent.lease_s:g} s",
        f"dead letters to {agent.dead_letter_topic}" if agent.dead_letter_topic else "no dead letters",
    ]
    if options.at_most_once:
        parts.append("at most once")
    if agent.overlap_after_s is not None:
        parts.append(f"handlers may overlap after {agent.overlap_after_s:g} s")
    if options.batch is not None:
        parts.append(f"batch {options.batch.size} within {options.batch.within_s:g} s")
    if agent.sinks:
        parts.append(f"sink {', '.join(agent.sinks)}")
    if options.rate_limit is not None:
        parts.append(f"at most {options.rate_limit.per_s:g}/s")
    if options.exactly_once:
        parts.append(f"outputs exactly once{', in the order of the partition' if agent.ordered_outputs else ''}")
    return " · ".join(parts)


def uncommitted(app: App) -> list[str]:
    """Warn, by agent or pipeline, of reading all records of a topic that another one writes exactly once: in a fleet, a
    crash aborts some transactions and repeats their outputs."""
    ones = [*app.share_agents.values(), *app.cooperative_agents.values()]
    readers = [(one.name, one.topics, one.options.isolation) for one in (*ones, *app.kmq_agents.values())]
    for pipeline in app.pipelines.values():
        source = {str(name).lower(): value for name, value in pipeline.options.source.items()}
        readers.append((pipeline.name, pipeline.topics, str(source.get("isolation", READ_COMMITTED))))
    writers = once_outputs(app)
    return [
        f"{name} reads {topic} with isolation={isolation!r}, and {writers[topic]} writes it exactly once: of what a "
        "crash made it write again both are read; leave isolation out"
        for name, topics, isolation in readers
        for topic in topics
        if isolation != READ_COMMITTED and topic in writers
    ]


def once_outputs(app: App) -> dict[str, str]:
    """Return the topics that the app's agents and pipelines write exactly once -> the writer's name."""
    found: dict[str, str] = {}
    for agent in (*app.share_agents.values(), *app.cooperative_agents.values()):
        if agent.options.exactly_once:
            letters = [] if agent.dead_letter_topic is None else [agent.dead_letter_topic]
            found.update(dict.fromkeys((*agent.sinks, *letters), agent.name))
    for pipeline in app.pipelines.values():
        for sink in pipeline.options.sink or ():
            if isinstance(sink, Produce) and sink.delivery == "exactly_once":
                found[topic_name(sink.topic)] = pipeline.name
    return found


def kmq_surprises(agents: Iterable[KmqAgent]) -> list[str]:
    """As `surprises`, for KMQ."""
    return [
        f"{agent.name}: no timeout: a record whose handler takes longer than {agent.redeliver_after_s:g} s "
        "(redeliver_after) runs twice; give it a timeout=… below that"
        for agent in agents
        if agent.options.timeout is None
    ]


def surprises(agents: Sequence[ShareAgent]) -> list[str]:
    """List a sentence for each setting that may not do what its author expects."""
    found = [f"{agent.name}: {text}" for agent in agents for text in _of_one(agent)]
    by_group: dict[str, list[ShareAgent]] = {}
    for agent in agents:
        by_group.setdefault(agent.group, []).append(agent)
    for group, members in by_group.items():
        if len(members) > 1:
            names = ", ".join(agent.name for agent in members)
            found.append(
                f"{names} share the group {group}: each record of a common topic goes to one of them only; "
                "give each its own group= if all should see it"
            )
    return found


def _of_one(agent: ShareAgent) -> list[str]:
    options = agent.options
    lock_s = options.lock_duration or DEFAULT_LOCK_S
    checks: list[tuple[bool, str]] = [
        (
            agent.dead_letter_topic is None,
            "dead_letter=None: a record that cannot be handled is dropped with an error log only",
        ),
        (
            options.start == "latest",
            "start='latest': what was produced before the group's first fetch is never handled",
        ),
        (
            options.retry.max_attempts == 1,
            "a single attempt: the first exception sends a record to the dead letter",
        ),
        (
            options.lock_duration is not None and options.lock_duration < _SHORT_LOCK_S,
            f"a lock of {lock_s:g} s: a pause of the process longer than that runs records twice",
        ),
        (
            options.timeout is not None and options.timeout > 3600,
            "a timeout of more than an hour: a handler that hangs holds its record that long",
        ),
        (
            not agent.is_async and options.timeout is not None,
            "timeout of a `def` handler: its thread cannot be stopped; it keeps its record until it ends",
        ),
        (
            not agent.is_async and options.concurrency > 64,
            f"concurrency {options.concurrency} of a `def` handler is as many threads; an `async def` needs none",
        ),
        (
            options.max_in_flight is not None and options.max_in_flight < options.records_at_once,
            f"max_in_flight={options.max_in_flight} is for all workers of the group together, and already one of them "
            f"could work on {options.records_at_once}",
        ),
        (not options.retry.on, "Retry(on=()) retries nothing: every exception goes to the dead letter"),
    ]
    return [text for wrong, text in checks if wrong]


def _group_limits(options: AgentOptions) -> list[str]:
    """Return the limits that apply to the whole group, as texts."""
    parts: list[str] = []
    if options.max_in_flight is not None:
        parts.append(f"at most {options.max_in_flight} in flight in the group")
    if options.max_rate is not None:
        parts.append(f"at most {_per_unit(options.max_rate)} in the group")
    if options.breaker is not None:
        parts.append(f"breaker at {options.breaker.failures:.0%} of {options.breaker.of}")
    return parts


def _per_unit(rate: str) -> str:
    return rate if "/" in rate else f"{rate}/s"


def _retry(options: AgentOptions) -> str:
    attempts = options.retry.max_attempts
    if attempts == 1:
        return "no retry"
    delay: Any = options.retry.delay
    if isinstance(delay, Backoff):
        grows = "doubling" if delay.factor == 2 else f"×{delay.factor:g}"
        how = f"after {delay.first:g} s" + (f" {grows} to {delay.most:g} s" if delay.factor != 1 else "")
    else:
        how = "after a delay of its own"
    return f"{attempts} attempts {how}"
