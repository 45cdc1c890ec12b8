"""The table of deeds: what an operator does to groups, dead letters and workers.

Each face is made from it (`ops.deed`): the command by `cli.acting`, the console's button by `console.actions`. The
docstring of an act is the help of the command. A command without a button (seed, move, delete, …) is no deed here.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from flowshare.agents.handler.texts import amount
from flowshare.ops import Failure
from flowshare.ops.arguments import (
    OFFSET_MAX,
    PARTITION,
    PARTITION_MAX,
    RANGES,
    RATE,
    changes_of,
    forget_option,
    moment,
    parameters,
)
from flowshare.ops.deed import Deed, Given, Order, Preview, effects
from flowshare.ops.groups import check_pausing, is_cooperative, keep_parked, patiently, refuse_cooperative
from flowshare.ops.letters import LetterFilter, filter_options, partitions_of, place_of, text_of
from flowshare.printable import printable
from flowshare.share.ranges import merged

if TYPE_CHECKING:
    from flowshare.client.admin.admin import OffsetReset, ResetTarget
    from flowshare.client.admin.browsing import ActName, Intervened
    from flowshare.ops.replay import Replay
    from flowshare.ops.session import CommandSession
    from flowshare.protocol.messages import ConfigEntry
    from flowshare.share.ranges import Range

ROWS_MAX: Final = 200
ORDER_S: Final = 5.0
DEEDS: Final[dict[str, Deed]] = {}
"""Deeds by their commands."""
INTERVENTIONS: Final[Mapping[ActName, tuple[str, str, str]]] = {
    "release": (
        "release",
        "Who holds them loses them, and they are delivered again; what it says of them is refused.",
        """Take records away from the members that hold them: others get them at once.

        Their deliveries count. What the former holder says of them is refused; its handlers are not ended.""",
    ),
    "now": (
        "deliver now",
        "Their delay ends at once.",
        "Let delayed records come at once; `end-delays` has all of a group's come.",
    ),
    "reject": (
        "reject",
        "They are archived and never delivered again, without a dead letter.",
        "Finish records, whoever holds them or whatever they wait for; nothing is kept of them.",
    ),
    "dead_letter": (
        "make a dead letter",
        "They are archived, and copied to the group's topic of dead letters.",
        """Make dead letters of records, whoever holds them or whatever they wait for.

        The group has to name a topic for them (errors.deadletterqueue.topic.name; agents set it).""",
    ),
}
"""Acts on records that members hold, or that wait: each in words, its effect, the help of its command."""

Act = Callable[..., Coroutine[Any, Any, Any]]
_SECONDS: Final = click.FloatRange(0, min_open=True)
_group: Final = click.argument("group")


def _deed(command: str, *options: Callable[..., Any], text: str = "", **more: Any) -> Callable[[Act], Act]:
    """Add the deed of an act to the table. text: the command's help; empty: the act's docstring."""

    def add(act: Act) -> Act:
        about = text or act.__doc__ or ""
        DEEDS[command] = Deed(command, inspect.cleandoc(about), parameters(*options), act, **more)
        return act

    return add


# --- groups -----------------------------------------------------------------------------------------------------------


@_deed(
    "groups pause",
    _group,
    about=lambda _, group: effects(
        f"No member of {group} gets another record until it is resumed, restarts included.",
        "What members hold they finish as ever.",
    ),
    said=lambda _, group: f"group {group} is paused",
)
async def _pause(session: CommandSession, *, group: str, dry_run: bool) -> None:
    """Hand out no more records of a group until it is resumed, restarts included.

    What its members hold they finish as ever.
    """
    await check_pausing(session, group)
    if not dry_run:
        await session.admin.pause_group(group)


@_deed(
    "groups resume",
    _group,
    about=lambda _, group: effects(f"Members of {group} get records again at once."),
    said=lambda _, group: f"group {group} goes on",
)
async def _resume(session: CommandSession, *, group: str, dry_run: bool) -> None:
    """Let a paused group go on, and one whose breaker is open."""
    await check_pausing(session, group)
    if not dry_run:
        await session.admin.resume_group(group)
        await session.admin.close_breaker(group)


def _about_settings(entries: Sequence[ConfigEntry], *, changes: Mapping[str, str | None], **_: Any) -> Preview:
    now = {one.name: one.value for one in entries}
    return effects(
        *(f"{name} is {now.get(name)!r} now, and becomes {text or 'its default'!r}." for name, text in changes.items()),
        "It acts at once, and stays over restarts.",
    )


@_deed(
    "groups config",
    _group,
    click.argument("settings", nargs=-1, metavar="[NAME=VALUE | NAME=]..."),
    check=lambda given: {"group": given["group"], "changes": changes_of(given["settings"])},
    about=_about_settings,
    said=lambda _, group, changes: "; ".join(
        f"{name} of {group} is {text or 'its default'} now" for name, text in changes.items()
    ),
)
async def _configure(
    session: CommandSession, *, group: str, changes: Mapping[str, str | None], dry_run: bool
) -> list[ConfigEntry]:
    """Show a group's settings, or set NAME=VALUE; `NAME=` goes back to the default."""
    await refuse_cooperative(session, group, "it has no settings; its agents' options are all there is")
    if changes:
        await session.admin.alter_group_configs(group, changes, dry_run=dry_run)
    return await session.admin.group_configs(group)


def _targeted(given: Given) -> Given:
    """Replace the four options by the target that one of them names."""
    earliest, latest, at, offset = (given.pop(f"to_{name}") for name in ("earliest", "latest", "datetime", "offset"))
    if sum([earliest, latest, at is not None, offset is not None]) != 1:
        raise click.UsageError("say where to: one of --to-earliest, --to-latest, --to-datetime, --to-offset")
    named = "earliest" if earliest else "latest" if latest else offset
    return {**given, "to": named if at is None else moment(at, "--to-datetime")}


def _about_reset(moves: Sequence[OffsetReset], **_: Any) -> Preview:
    forward = sum(max(0, one.after - max(0, one.before)) for one in moves)
    back = sum(max(0, one.before - one.after) for one in moves)
    lines = [f"{len(moves)} share-partitions get a new start offset. The group must have no members."]
    lines += [f"Up to {amount(back, 'record runs', 'records run')} again."] if back else []
    lines += [f"Up to {forward} records that are not finished are passed over, and never run."] if forward else []
    rows = tuple((one.topic, one.partition, one.before, one.after) for one in moves[:ROWS_MAX])
    return Preview(tuple(lines), ("topic", "partition", "from", "to"), rows)


@_deed(
    "groups reset-offsets",
    _group,
    click.option("--topic", "topics", multiple=True, help="Only this topic; may be repeated.  [default: all it has]"),
    click.option("--to-earliest", is_flag=True),
    click.option("--to-latest", is_flag=True),
    click.option("--to-datetime", metavar="ISO", help="For example 2026-11-21T09:00:00 (UTC unless it names a zone)."),
    click.option("--to-offset", type=click.IntRange(0, OFFSET_MAX)),
    forget_option,
    check=_targeted,
    about=_about_reset,
    said=lambda moves, group, **_: f"{len(moves)} start offsets of {group} were moved",
    danger=True,
    trial="--execute",
    trial_of="the new positions",
)
async def _reset(
    session: CommandSession, *, group: str, topics: Sequence[str], to: ResetTarget, forget_parked: bool, dry_run: bool
) -> list[OffsetReset]:
    """Move a group's start offsets. The group must be empty: stop its workers first.

    Of a cooperative group these are the stable offsets; what is committed behind them is forgotten, too.

    A group with parked keys forgets them, so that says to replay or unpark them first (`flowshare dlq parked`).
    """
    admin = session.admin
    if await is_cooperative(session, group):
        reset = partial(admin.cooperative.reset, group, to=to, topics=topics or None, dry_run=dry_run)
        return await patiently(session, reset)
    if not forget_parked:
        await keep_parked(session, group, topics)
    return await admin.reset_offsets(group, to=to, topics=topics or None, dry_run=dry_run)


# --- records that members hold, or that wait -------------------------------------------------------------------------


async def _intervene(
    session: CommandSession, *, act: ActName, group: str, topic: str, partition: int, ranges: list[Range], dry_run: bool
) -> list[Intervened]:
    return await session.admin.intervene(group, topic, partition, ranges, act, dry_run=dry_run)


def _told(found: Sequence[Intervened], where: str = "") -> str:
    others = {
        "are not held or not delayed": sum(one.not_held for one in found),
        "are gone or finished": sum(one.gone for one in found),
        "are being settled just now": sum(one.busy for one in found),
        "wait behind another record of their key": sum(one.blocked for one in found),
    }
    done = amount(sum(one.done for one in found), "record")
    return f"{done}{where}" + "".join(f"; {count} {text}" for text, count in others.items() if count)


def _add_intervention(act: ActName, words: str, effect: str, text: str) -> None:
    _deed(
        f"groups {act.replace('_', '-')}",
        _group,
        click.option("--topic", required=True, help="The topic."),
        click.option("--partition", type=PARTITION, required=True, help="The partition."),
        click.option(
            "--offset",
            "ranges",
            type=RANGES,
            multiple=True,
            required=True,
            help="An offset, or a range such as 17-20; may be repeated.",
        ),
        text=text,
        check=lambda given: {**given, "ranges": merged(given["ranges"])},
        about=lambda found, topic, partition, **_: effects(f"{_told(found, f' of {topic}-{partition}')}.", effect),
        said=lambda found, **_: f"{words}: {_told(found)}",
        danger=act in ("reject", "dead_letter"),
        trial="--dry-run",
        trial_of="what would be done",
    )(partial(_intervene, act=act))


for _act, _words in INTERVENTIONS.items():
    _add_intervention(_act, *_words)


@_deed(
    "groups end-delays",
    _group,
    click.option("--rate", type=RATE, default=100.0, show_default=True, help="Records a second."),
    about=lambda count, rate, **_: effects(
        f"{amount(count, 'record comes', 'records come')}, {rate:.10g} a second; it takes about {count / rate:.0f} s."
    ),
    said=lambda count, group, **_: f"{count} delayed records of {group} came",
    trial="--dry-run",
    trial_of="how many there are",
)
async def _end_delays(session: CommandSession, *, group: str, rate: float, dry_run: bool) -> int:
    """Let all of a group's delayed records come, so many a second: what they waited for is well again."""
    return await session.admin.end_delays(group, rate=rate, dry_run=dry_run)


# --- parked keys, dead letters ---------------------------------------------------------------------------------------


def _named(given: Given) -> Given:
    """Replace the two texts of a key by its bytes."""
    text, in_hex = given["key"], given.pop("key_hex")
    if (text is None) == (in_hex is None):
        raise click.UsageError("name the key: KEY, or --hex with its bytes")
    if given["partition"] is not None and given["topic"] is None:
        raise click.UsageError("--partition needs --topic")
    try:
        return {**given, "key": os.fsencode(text) if text is not None else bytes.fromhex(in_hex)}
    except ValueError:
        raise click.BadParameter(f"{in_hex!r} is not hexadecimal", param_hint="--hex") from None


@_deed(
    "dlq unpark",
    _group,
    click.argument("key", required=False),
    click.option("--hex", "key_hex", metavar="HEX", help="The key's bytes, as --json of `dlq parked` has them."),
    click.option("--topic", help="Only in this topic."),
    click.option("--partition", type=PARTITION, help="Only in this partition; needs --topic."),
    check=_named,
    about=lambda _, topic, partition, **__: effects(
        f"The key goes on in {topic}-{partition}.",
        "Its letters stay in the dead letters, and are out of order if they are replayed later.",
    ),
    said=lambda places, **_: "the key goes on" if places else "the key is not parked any more",
    danger=True,
)
async def _unpark(
    session: CommandSession, *, group: str, key: bytes, topic: str | None, partition: int | None, dry_run: bool
) -> list[tuple[str, int]]:
    """Let a parked key go on. Its letters stay in the dead letters, and are out of order if they are replayed later.

    KEY is the key's text; one that begins with a dash comes behind `--`. What is no text is named by --hex.
    """
    from flowshare.protocol.key_hash import key_name  # not at import: `flowshare drain` is a hook, and starts quickly

    if dry_run:
        return []
    unpark = partial(session.admin.change_parked_key, group, "unpark")
    if topic is not None and partition is not None:
        for name in dict.fromkeys((key, key_name(key))):  # not from a list, which takes the leaders of all partitions
            if await unpark(topic, partition, name) is not None:
                return [(topic, partition)]
    told = await session.admin.parked_keys(group)
    found = [one for one in told.keys if one.key in (key, key_name(key))]
    if not found:
        _check_alike(group, key, [one.key for one in told.keys])
    chosen = [one for one in found if topic in (None, one.topic) and partition in (None, one.partition)]
    if found and not chosen:
        where = ", ".join(one.topic if partition is None else f"{one.topic}-{one.partition}" for one in found)
        wanted = topic if partition is None else f"{topic}-{partition}"
        raise Failure(f"that key is parked in {where}, and not in {wanted}")
    return [(one.topic, one.partition) for one in chosen if await unpark(one.topic, one.partition, one.key) is not None]


def _check_alike(group: str, key: bytes, parked: Sequence[bytes]) -> None:
    """Check that no parked key only looks like this one. Raises: Failure, which names it as it can be."""
    shown = text_of(key)
    alike = next((one for one in parked if shown in (text_of(one), printable(text_of(one) or ""))), None)
    if alike is not None:
        raise Failure(f"group {group} has a parked key that looks like it: name its bytes, --hex {alike.hex()}")


def _chosen(given: Given) -> Given:
    """Replace places and filters by what they choose."""
    wanted = LetterFilter.of(*(given.pop(name) for name in ("reason", "exception", "agent", "since")))
    picked = frozenset(place_of(given["topic"], text) for text in given.pop("places"))
    for partition, offset in picked:
        if partition > PARTITION_MAX or offset > OFFSET_MAX:
            raise click.BadParameter(f"there is no letter at {partition}@{offset}", param_hint="--at")
    if given["delete"] and (picked or wanted.given):
        raise click.UsageError("--delete removes everything up to the last letter; it does not go with filters or --at")
    return {**given, "picked": picked, "wanted": wanted}


def _about_replay(job: Replay, **_: Any) -> Preview:
    lines = [
        f"{amount(count, 'letter')} would be sent to {topic}, unchanged." for topic, count in sorted(job.sent.items())
    ]
    lines += [f"{job.left_out} were replayed before, and are left out."] if job.left_out else []
    lines += (
        [f"{amount(len(job.parked), 'parked key is', 'parked keys are')} replayed whole, in order."]
        if job.parked
        else []
    )
    lines += [f"{job.bare} have no record, which was too large for this topic."] if job.bare else []
    return effects(*(lines or ["There is nothing to replay."]))


def _said_replayed(job: Replay, **_: Any) -> str:
    sent = ", ".join(f"{count} to {topic}" for topic, count in sorted(job.sent.items()))
    parts = [f"replayed {sent}"] if sent else []
    parts += [job.why_refused()] if job.refused else []
    return "; ".join(parts) or "there was nothing to replay"


@_deed(
    "dlq replay",
    click.argument("topic"),
    click.option(
        "--at", "places", multiple=True, metavar="PARTITION@OFFSET", help="This letter only; may be repeated."
    ),
    click.option("--to", "target", help="Send them here.  [default: the topic that each one came from]"),
    click.option(
        "--limit",
        type=click.IntRange(1),
        help="At most so many, oldest first; a parked key with all of its letters is one.",
    ),
    click.option(
        "--delete", is_flag=True, help="Then delete them here: all up to the last one, or the first of a parked key."
    ),
    click.option("--again", is_flag=True, help="Those too that were replayed before."),
    click.option("--rate", type=RATE, help="Letters a second at most."),
    filter_options,
    check=_chosen,
    about=_about_replay,
    said=_said_replayed,
    trial="--dry-run",
    trial_of="how many, and where to",
    produces=True,
)
async def _replay(
    session: CommandSession,
    *,
    topic: str,
    picked: frozenset[tuple[int, int]],
    wanted: LetterFilter,
    target: str | None,
    limit: int | None,
    delete: bool,
    again: bool,
    rate: float | None,
    dry_run: bool,
) -> Replay:
    """Send dead letters again, as they were: key, value and headers without flowshare's own.

    They stay in the dead-letter topic, unless --delete is given; a second replay leaves them out, unless --again is.

    One letter of a parked key brings all of its key that are not settled, in order (see `flowshare dlq parked`).
    """
    from flowshare.ops.replay import Replay

    await partitions_of(session, topic)
    if target is not None:
        await partitions_of(session, target)  # a mistyped name would make a topic that nobody reads
    job = Replay(session, topic, target, dry_run=dry_run, again=again, per_s=rate)
    await job.before.load()
    if not dry_run:
        await job.before.check()
    await job.run_all(picked, wanted.takes, limit)
    if delete and not dry_run:
        await job.delete()
    return job


# --- workers ----------------------------------------------------------------------------------------------------------


@_deed(
    "drain",
    click.option("--web", "worker", metavar="HOST:PORT", help="The worker's health pages."),
    click.option(
        "--timeout",
        "wait_s",
        type=click.FloatRange(0, min_open=True),
        default=300.0,
        show_default=True,
        help="Seconds.",
    ),
    about=lambda _, worker, **__: effects(
        f"Worker {worker} fetches nothing more and finishes what it is running.",
        "It ends by SIGTERM later; until then it stands idle.",
    ),
    said=lambda _, worker, **__: f"worker {worker} is drained",
    on_workers=True,
)
async def _drain(order: Order, *, worker: str, wait_s: float, dry_run: bool) -> None:
    """Have a worker on this machine finish what it is running; it fetches nothing more, and ends by SIGTERM later.

    The one worker of an embedded path is found by it, or the one supervisor (flowshare worker --procs), which drains
    all of its workers. Of several, and on other brokers, name one: --web with the address that it prints when it is
    ready.

    For hooks that run before a stop, as Kubernetes' preStop. Handlers get the worker's --drain-timeout, and what is
    left then is given back; --timeout is how long this command waits for the answer.
    """
    if not dry_run and not await order(worker, "/drain", wait_s, "drained"):
        raise Failure("handlers were cut off at the drain deadline; their records run again")


@_deed(
    "resize",
    click.argument("count", type=click.IntRange(1, 256), metavar="WORKERS"),
    click.option("--web", "worker", metavar="HOST:PORT", help="The supervisor's health pages."),
    about=lambda _, worker, count: effects(
        f"The supervisor at {worker} keeps {amount(count, 'worker')} from now on.",
        "More start at once; those that go drain first.",
    ),
    said=lambda kept, worker, **_: f"the supervisor at {worker} keeps {amount(kept, 'worker')}",
    on_workers=True,
)
async def _resize(order: Order, *, worker: str, count: int, dry_run: bool) -> int:
    """Have a supervisor (flowshare worker --procs) keep so many workers from now on; those that go drain first.

    The one supervisor of an embedded path is found by it. Of several, and on other brokers, name one: --web with the
    address that it prints when it starts.
    """
    return count if dry_run else int(await order(worker, f"/resize?workers={count}", ORDER_S, "workers"))
