"""Actions of the console, in one table. Each action is a command of the command line, which its button shows.

An action takes two steps: the first shows the command and what would happen (`preview`), the second carries it out
(`act`). Both use the same calls as the command. Only operators act. Each action is written down before it is carried
out (`store`).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from flowshare.cli import cooperative
from flowshare.cli.letters import partitions_of
from flowshare.cli.output import Failure
from flowshare.cli.replay import Replay, parked_count, parked_text
from flowshare.console.forms import (
    GROUP,
    PARTITION_MAX,
    Action,
    BadForm,
    Field,
    Means,
    Params,
    Preview,
    is_number,
    number,
    typed,
)
from flowshare.share.ranges import merged
from flowshare.share.types import Priority

if TYPE_CHECKING:
    from flowshare.cli.session import CommandSession
    from flowshare.client.admin.admin import ResetTarget

ROWS_MAX: Final = 200
DRAIN_S: Final = 300.0
ASK_LIMIT_S: Final = 5.0


# --- groups -----------------------------------------------------------------------------------------------------------


async def _check_pausing(session: CommandSession, group: str) -> None:
    """Check that the group can be paused. Raises Failure (it cannot), ServerError (no such group)."""
    await cooperative.refuse(session, group, "stop its workers, or call `agent.pause()` in each of them")
    if not session.backend.capabilities.pausing:
        raise Failure(f"Kafka's brokers cannot pause group {group}: stop its workers")
    await session.admin.describe_group(group)


async def _pause(means: Means, params: Params, *, paused: bool) -> str:
    group = params["group"]

    async def call(session: CommandSession) -> None:
        await _check_pausing(session, group)
        if paused:
            await session.admin.pause_group(group)
        else:
            await session.admin.resume_group(group)
            await session.admin.close_breaker(group)

    await means.source.ask(call)
    return f"group {group} is paused" if paused else f"group {group} goes on"


async def _about_pausing(means: Means, params: Params) -> Preview:
    await means.source.ask(lambda session: _check_pausing(session, params["group"]))
    text = f"No member of {params['group']} gets another record until it is resumed, restarts included."
    return Preview((text, "What members hold they finish as ever."))


async def _about_resuming(means: Means, params: Params) -> Preview:
    await means.source.ask(lambda session: _check_pausing(session, params["group"]))
    return Preview((f"Members of {params['group']} get records again at once.",))


def _change(params: Params) -> dict[str, str | None]:
    return {params["setting"]: params["value"] or None}


async def _about_setting(means: Means, params: Params) -> Preview:
    async def call(session: CommandSession) -> str:
        group, name = params["group"], params["setting"]
        await cooperative.refuse(session, group, "it has no settings; its agents' options are all there is")
        entries = {one.name: one for one in await session.admin.group_configs(group)}
        if name not in entries:
            raise BadForm(f"a group has no setting {name!r}: it has {', '.join(sorted(entries))}")
        await session.admin.alter_group_configs(group, _change(params), dry_run=True)
        return f"{name} is {entries[name].value!r} now, and becomes {params['value'] or 'its default'!r}."

    return Preview((await means.source.ask(call), "It acts at once, and stays over restarts."))


async def _set(means: Means, params: Params) -> str:
    await means.source.ask(lambda session: session.admin.alter_group_configs(params["group"], _change(params)))
    return f"{params['setting']} of {params['group']} is {params['value'] or 'its default'} now"


def _setting(name: str, title: str, setting: Field, value: Field) -> Action:
    return Action(
        name=name,
        title=title,
        fields=(GROUP, setting, value),
        command=lambda params: ["groups", "config", params["group"], f"{params['setting']}={params['value']}"],
        preview=_about_setting,
        act=_set,
    )


_TO: Final = ("earliest", "latest", "offset", "time")


def _target(params: Params) -> ResetTarget:
    to, at = params["to"], params.get("at", "")
    if to == "earliest":
        return "earliest"
    if to == "latest":
        return "latest"
    if to == "offset":
        return number(params, "at", "an offset")
    try:
        found = datetime.fromisoformat(at)
    except ValueError:
        raise BadForm(f"{at!r} is no date and time such as 2026-11-21T09:00:00 (UTC unless it names a zone)") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _reset_words(params: Params) -> list[str]:
    words = ["groups", "reset-offsets", params["group"]]
    words += ["--topic", params["topic"]] if params.get("topic") else []
    flag = {"time": "--to-datetime", "offset": "--to-offset"}.get(params["to"], f"--to-{params['to']}")
    return [*words, flag, *([params["at"]] if params["to"] in ("time", "offset") else []), "--execute"]


async def _reset(means: Means, params: Params, *, dry_run: bool) -> list[Any]:
    target, group = _target(params), params["group"]
    topics = [params["topic"]] if params.get("topic") else []

    async def call(session: CommandSession) -> list[Any]:
        if await cooperative.is_cooperative(session, group):
            return list(await cooperative.reset(session, group, target, topics, execute=not dry_run))
        if count := await parked_count(session.admin, group, topics):
            raise Failure(f"{parked_text(group, count)}; replay or unpark them first: new positions would forget them")
        return await session.admin.reset_offsets(group, to=target, topics=topics or None, dry_run=dry_run)

    return await means.source.ask(call, limit_s=ACT_LIMIT_S)


async def _about_reset(means: Means, params: Params) -> Preview:
    moves = await _reset(means, params, dry_run=True)
    forward = sum(max(0, one.after - max(0, one.before)) for one in moves)
    back = sum(max(0, one.before - one.after) for one in moves)
    lines = [f"{len(moves)} share-partitions get a new start offset. The group must have no members."]
    lines += [f"Up to {back} records run again."] if back else []
    lines += [f"Up to {forward} records that are not finished are passed over, and never run."] if forward else []
    rows = tuple((one.topic, one.partition, one.before, one.after) for one in moves[:ROWS_MAX])
    return Preview(tuple(lines), ("topic", "partition", "from", "to"), rows)


async def _do_reset(means: Means, params: Params) -> str:
    moves = await _reset(means, params, dry_run=False)
    return f"{len(moves)} start offsets of {params['group']} were moved"


# --- parked keys, dead letters ---------------------------------------------------------------------------------------


def _key(params: Params) -> bytes:
    try:
        return bytes.fromhex(params["key"])
    except ValueError:
        raise BadForm(f"{params['key']!r} is not hexadecimal") from None


async def _about_unpark(_: Means, params: Params) -> Preview:
    _key(params)  # bad input is refused before the log is asked
    number(params, "partition")
    text = f"The key goes on in {params['topic']}-{params['partition']}."
    return Preview((text, "Its letters stay in the dead letters, and are out of order if they are replayed later."))


async def _unpark(means: Means, params: Params) -> str:
    key, partition = _key(params), number(params, "partition")
    change = await means.source.ask(
        lambda session: session.admin.change_parked_key(params["group"], "unpark", params["topic"], partition, key)
    )
    return "the key goes on" if change is not None else "the key is not parked any more"


def _places(params: Params) -> frozenset[tuple[int, int]]:
    """Read places such as `0@17, 0@18`. Raises BadForm."""
    places = set[tuple[int, int]]()
    for text in params.get("at", "").replace(",", " ").split():
        partition, _, offset = text.partition("@")
        if not (is_number(partition, PARTITION_MAX) and is_number(offset)):
            raise BadForm(f"{text!r} is no place of a letter, such as 0@17")
        places.add((int(partition), int(offset)))
    return frozenset(places)


def _replay_words(params: Params) -> list[str]:
    words = ["dlq", "replay", params["topic"]]
    for partition, offset in sorted(_places(params)):
        words += ["--at", f"{partition}@{offset}"]
    for name in ("reason", "exception", "limit", "rate"):
        words += [f"--{name}", params[name]] if params.get(name) else []
    return words


async def _replayed(means: Means, params: Params, *, dry_run: bool) -> Replay:
    limit = number(params, "limit", least=1) if params.get("limit") else None
    rate = float(number(params, "rate") or 1) if params.get("rate") else None
    reason, exception = params.get("reason", "").lower(), params.get("exception", "").lower()

    async def call(session: CommandSession) -> Replay:
        await partitions_of(session, params["topic"])
        job = Replay(session, params["topic"], None, dry_run=dry_run, again=False, per_s=rate, quiet=True)
        await job.before.load()
        if not dry_run:
            await job.before.check()
        await job.run_all(
            _places(params),
            lambda letter: reason in letter["reason"].lower() and exception in letter["exception"].lower(),
            limit,
        )
        return job

    return await means.source.ask(call, limit_s=REPLAY_LIMIT_S)


async def _about_replay(means: Means, params: Params) -> Preview:
    job = await _replayed(means, params, dry_run=True)
    lines = [
        f"{counted(count, 'letter')} would be sent to {topic}, unchanged." for topic, count in sorted(job.sent.items())
    ]
    lines += [f"{job.left_out} were replayed before, and are left out."] if job.left_out else []
    lines += [f"{len(job.parked)} parked keys are replayed whole, in order."] if job.parked else []
    lines += [f"{job.bare} have no record, which was too large for this topic."] if job.bare else []
    return Preview(tuple(lines or ["There is nothing to replay."]))


async def _replay(means: Means, params: Params) -> str:
    job = await _replayed(means, params, dry_run=False)
    sent = ", ".join(f"{count} to {topic}" for topic, count in sorted(job.sent.items()))
    parts = [f"replayed {sent}"] if sent else []
    parts += [job.why_refused()] if job.refused else []
    return "; ".join(parts) or "there was nothing to replay"


# --- records that members hold, or that wait -------------------------------------------------------------------------

INTERVENE: Final[Mapping[str, tuple[str, str]]] = {
    "release": (
        "Release",
        "Who holds them loses them, and they are delivered again; what it says of them is refused.",
    ),
    "now": ("Deliver now", "Their delay ends at once."),
    "reject": ("Reject", "They are archived and never delivered again, without a dead letter."),
    "dead_letter": ("Make a dead letter", "They are archived, and copied to the group's topic of dead letters."),
}
"""Acts on records, in words."""


def _ranges(params: Params) -> list[tuple[int, int]]:
    """Read ranges such as `5-9, 12`. Raises BadForm."""
    found: list[tuple[int, int]] = []
    for text in params["ranges"].replace(",", " ").split():
        first, dash, last = text.partition("-")
        last = last if dash else first
        if not (is_number(first) and is_number(last)) or int(last) < int(first):
            raise BadForm(f"{text!r} is no offset and no range of offsets such as 5-9")
        found.append((int(first), int(last)))
    if not found:
        raise BadForm("say which offsets, such as 5-9, 12")
    return merged(found)


def _intervene_words(act: str, params: Params) -> list[str]:
    words = ["groups", act.replace("_", "-"), params["group"], "--topic", params["topic"]]
    words += ["--partition", params["partition"]]
    for first, last in _ranges(params):
        words += ["--offset", str(first) if first == last else f"{first}-{last}"]
    return words


async def _intervened(means: Means, params: Params, act: Any, *, dry_run: bool) -> list[Any]:
    ranges, partition = _ranges(params), number(params, "partition")

    async def call(session: CommandSession) -> list[Any]:
        found = await session.admin.intervene(params["group"], params["topic"], partition, ranges, act, dry_run=dry_run)
        return list(found)

    return await means.source.ask(call, limit_s=ACT_LIMIT_S)


def counted(count: int, what: str) -> str:
    """Return a count as text: `1 record`, `2 records`."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _told(found: list[Any]) -> str:
    others = {
        "are not held or not delayed": sum(one.not_held for one in found),
        "are gone or finished": sum(one.gone for one in found),
        "are being settled just now": sum(one.busy for one in found),
        "wait behind another record of their key": sum(one.blocked for one in found),
    }
    return "".join(f"; {count} {text}" for text, count in others.items() if count)


def _intervention(act: str) -> Action:
    title, about = INTERVENE[act]

    async def preview(means: Means, params: Params) -> Preview:
        found = await _intervened(means, params, act, dry_run=True)
        done = sum(one.done for one in found)
        return Preview((f"{counted(done, 'record')} of {params['topic']}-{params['partition']}{_told(found)}.", about))

    async def do(means: Means, params: Params) -> str:
        found = await _intervened(means, params, act, dry_run=False)
        return f"{title.lower()}: {counted(sum(one.done for one in found), 'record')}{_told(found)}"

    return Action(
        name=act,
        title=title,
        fields=(GROUP, Field("topic"), Field("partition"), typed("ranges", "offsets", "5-9, 12")),
        command=lambda params: _intervene_words(act, params),
        preview=preview,
        act=do,
        danger=act in ("reject", "dead_letter"),
        back=lambda params: f"stuck?{urlencode({'group': params['group']})}",
    )


def _rate(params: Params) -> float:
    rate = number(params, "rate")
    if not rate:
        raise BadForm("a rate is at least 1 a second")
    return float(rate)


async def _about_ending_delays(means: Means, params: Params) -> Preview:
    rate = _rate(params)
    count = await means.source.ask(
        lambda session: session.admin.end_delays(params["group"], dry_run=True), limit_s=ACT_LIMIT_S
    )
    return Preview((f"{count} records come, {rate:.0f} a second; it takes about {count / rate:.0f} s.",))


async def _end_delays(means: Means, params: Params) -> str:
    count = await means.source.ask(
        lambda session: session.admin.end_delays(params["group"], rate=_rate(params)), limit_s=REPLAY_LIMIT_S
    )
    return f"{count} delayed records of {params['group']} came"


# --- workers ----------------------------------------------------------------------------------------------------------


async def _about_drain(_: Means, params: Params) -> Preview:
    return Preview((f"Worker {params['worker']} fetches nothing more and finishes what it is running.",
                    "It ends by SIGTERM later; until then it stands idle."))  # fmt: skip


async def _drain(means: Means, params: Params) -> str:
    try:
        done = await means.workers.drain(params["worker"], DRAIN_S)
    except (LookupError, OSError, ValueError) as error:
        raise Failure(str(error)) from None
    if done:
        return f"worker {params['worker']} is drained"
    return f"handlers of worker {params['worker']} were cut off at its drain deadline; their records run again"


async def _about_resizing(_: Means, params: Params) -> Preview:
    return Preview(
        (
            f"The supervisor at {params['worker']} keeps {number(params, 'count')} workers from now on.",
            "More start at once; those that go drain first.",
        )
    )


async def _resize(means: Means, params: Params) -> str:
    try:
        page = f"/resize?workers={number(params, 'count')}"
        count = await means.workers.order(params["worker"], page, ASK_LIMIT_S, figure="workers")
    except (LookupError, OSError, ValueError) as error:
        raise Failure(str(error)) from None
    return f"the supervisor at {params['worker']} keeps {count:.0f} workers"


ACT_LIMIT_S: Final = 60.0
REPLAY_LIMIT_S: Final = 1800.0

_ALL: Final = (
    Action(
        name="pause",
        title="Pause",
        fields=(GROUP,),
        command=lambda params: ["groups", "pause", params["group"]],
        preview=_about_pausing,
        act=lambda means, params: _pause(means, params, paused=True),
    ),
    Action(
        name="resume",
        title="Resume",
        fields=(GROUP,),
        command=lambda params: ["groups", "resume", params["group"]],
        preview=_about_resuming,
        act=lambda means, params: _pause(means, params, paused=False),
    ),
    _setting(
        "set",
        "Change a setting",
        typed("setting", "setting"),
        typed("value", "value", "empty: the default", optional=True),
    ),
    _setting(
        "limit",
        "Limit",
        Field("setting", choices=("share.max.in.flight",)),
        typed("value", "records in flight", "of the whole group; empty: no limit", optional=True),
    ),
    _setting(
        "rate",
        "Limit the rate",
        Field("setting", choices=("share.max.rate",)),
        typed("value", "records", "of the whole group: 100/s, 10/m, 2/h; empty: no limit", optional=True),
    ),
    _setting(
        "priority",
        "Priority",
        Field("setting", choices=("share.delivery.priority",)),
        typed("value", "first", choices=tuple(str(one) for one in Priority)),
    ),
    Action(
        name="reset",
        title="Reset offsets",
        fields=(
            GROUP,
            typed("to", "to", choices=_TO),
            typed("at", "offset or time", "2026-11-21T09:00:00 is UTC", optional=True),
            typed("topic", "topic", "empty: all it has", optional=True),
        ),
        command=_reset_words,
        preview=_about_reset,
        act=_do_reset,
        danger=True,
    ),
    Action(
        name="unpark",
        title="Let the key go on",
        fields=(GROUP, Field("topic"), Field("partition"), Field("key")),
        command=lambda params: ["dlq", "unpark", params["group"], "--hex", params["key"], "--topic", params["topic"]],
        preview=_about_unpark,
        act=_unpark,
        danger=True,
        back=lambda params: f"keys?{urlencode({'group': params['group']})}",
    ),
    Action(
        name="replay",
        title="Replay",
        fields=(
            Field("topic"),
            typed("at", "these letters", "0@17, 0@18; empty: all that match", optional=True),
            typed("reason", "reason contains", optional=True),
            typed("exception", "exception contains", optional=True),
            typed("limit", "at most", optional=True),
            typed("rate", "letters a second at most", "empty: as fast as it goes", optional=True),
        ),
        command=_replay_words,
        preview=_about_replay,
        act=_replay,
        long=True,
        back=lambda params: f"letters?{urlencode({'topic': params['topic']})}",
    ),
    Action(
        name="drain",
        title="Drain",
        fields=(Field("worker"),),
        command=lambda params: ["drain", "--web", params["worker"]],
        preview=_about_drain,
        act=_drain,
        long=True,
        back=lambda _: "fleet",
    ),
    Action(
        name="resize",
        title="Scale",
        fields=(Field("worker"), typed("count", "workers")),
        command=lambda params: ["resize", params["count"], "--web", params["worker"]],
        preview=_about_resizing,
        act=_resize,
        back=lambda _: "fleet",
    ),
    *(_intervention(act) for act in INTERVENE),
    Action(
        name="end_delays",
        title="Let all come",
        fields=(GROUP, typed("rate", "records a second")),
        command=lambda params: ["groups", "end-delays", params["group"], "--rate", params["rate"]],
        preview=_about_ending_delays,
        act=_end_delays,
        back=lambda params: f"delayed?{urlencode({'group': params['group']})}",
    ),
)
ACTIONS: Final[Mapping[str, Action]] = {one.name: one for one in _ALL}
"""Actions by name."""
