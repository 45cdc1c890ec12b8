"""`flowshare dlq`: list, show and replay dead letters, and see to parked keys."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import click

from flowshare.cli.letters import SUFFIX, partitions_of, place_of, plain, read_letters, text_of, time_of
from flowshare.cli.options import facts_options, moment, together
from flowshare.cli.output import Failure, emit_json, headings, say, show
from flowshare.cli.replay import ParkedReplay, Replay, Replayed, replayed_in, why_bare
from flowshare.cli.session import CommandSession, run
from flowshare.printable import printable
from flowshare.protocol.key_hash import key_name
from flowshare.share.parking import OVER

SHOWN: Final = 20
"""Parked keys that are told by name."""


def _wanted(
    *, since: str | None = None, reason: str | None = None, exception: str | None = None, agent: str | None = None
) -> Callable[[Mapping[str, Any]], bool]:
    """Which dead letters are meant; without a filter any."""
    since_ms = float("-inf") if since is None else moment(since, "--since").timestamp() * 1000

    def takes(letter: Mapping[str, Any]) -> bool:
        return (
            (reason or "").lower() in letter["reason"].lower()
            and (exception or "").lower() in letter["exception"].lower()
            and agent in (None, letter["agent"])
            and letter["died_ms"] >= since_ms
        )

    return takes


filter_options: Final = together(
    click.option("--reason", help="The reason contains this."),
    click.option("--exception", help="The exception's name contains this."),
    click.option("--agent", help="Died in this agent."),
    click.option("--since", metavar="ISO", help="Died at or after this time (UTC unless it names a zone)."),
)
"""The filters that `show` and `replay` share; the command gets them as keyword arguments."""


@click.group("dlq")
def dlq() -> None:
    """List, show and replay dead letters."""


@dlq.command("ls")
@facts_options
def ls(as_json: bool, url: str, app_path: str | None) -> None:
    """List the dead-letter topics: those named *.dlq, and with --app the app's own."""

    named = _of_app(app_path) if app_path else {}
    rows = run(url, lambda session: _list(session, named))
    columns = headings("topic", "letters", "replayed", "newest", "agent")
    show(
        rows,
        columns,
        as_json=as_json,
        empty="there are no dead-letter topics",
        right=("letters", "replayed"),
        spare=("agent", "newest"),
    )


@dlq.command("show")
@click.argument("topic")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="Newest letters to show.")
@click.option("--values", is_flag=True, help="Show keys and values too.")
@click.option("--trace", is_flag=True, help="Show tracebacks too.")
@filter_options
@facts_options
def show_letters(
    topic: str,
    limit: int,
    values: bool,
    trace: bool,
    as_json: bool,
    url: str,
    **filters: str | None,
) -> None:
    """Show why records died and where they came from, newest last."""

    wanted = _wanted(**filters)

    async def call(session: CommandSession) -> tuple[list[dict[str, Any]], Replayed | None]:
        found, others = [], 0
        async for letter in read_letters(session, topic):
            others += not letter["is_letter"]
            if letter["is_letter"] and wanted(letter):
                found.append(letter)
        if others and not found:
            raise Failure(f"{others} records of {topic} are no dead letters; `flowshare dlq ls` lists the right topics")
        return found, await replayed_in(session.admin, topic)

    found, replayed = run(url, call)
    left_out, letters = max(0, len(found) - limit), [plain(letter, replayed) for letter in found[-limit:]]
    if as_json:
        emit_json(letters)
        return
    more = ("key", "value") if values else ()
    columns = headings("at", "died", "origin", "attempts", "replayed", "reason", *more, at="letter", origin="from")
    show(
        letters,
        columns,
        as_json=False,
        empty=f"no dead letters in {topic}",
        right=("attempts",),
        spare=("attempts", "died", "replayed", "origin"),
        prose=("reason", *more),
    )
    for letter in letters if trace else ():
        say("")
        say(f"{letter['at']} from {letter['origin']}:")
        say(letter["trace"] or "(no traceback)", lines=True)
    if left_out:
        say(f"{left_out} older ones are not shown; --limit shows more", err=True)


@dlq.command("replay")
@click.argument("topic")
@click.option("--at", "places", multiple=True, metavar="PARTITION@OFFSET", help="This letter only; may be repeated.")
@click.option("--to", "target", help="Send them here.  [default: the topic that each one came from]")
@click.option(
    "--limit",
    type=click.IntRange(1),
    help="At most so many, oldest first; a parked key with all of its letters is one.",
)
@click.option(
    "--delete", is_flag=True, help="Then delete them here: all up to the last one, or the first of a parked key."
)
@click.option("--again", is_flag=True, help="Those too that were replayed before.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Letters a second at most.")
@click.option("--dry-run", is_flag=True, help="Only say how many, and where to.")
@filter_options
@facts_options
def replay(
    topic: str,
    places: tuple[str, ...],
    target: str | None,
    limit: int | None,
    delete: bool,
    again: bool,
    rate: float | None,
    dry_run: bool,
    as_json: bool,
    url: str,
    app_path: str | None,
    **filters: str | None,
) -> None:
    """Send dead letters again, as they were: key, value and headers without flowshare's own.

    They stay in the dead-letter topic, unless --delete is given; a second replay leaves them out, unless --again is.

    One letter of a parked key brings all of its key that are not settled, in order (see `flowshare dlq parked`).
    """

    wanted, picked = _wanted(**filters), frozenset(place_of(topic, text) for text in places)
    if delete and (picked or any(filters.values())):
        raise click.UsageError("--delete removes everything up to the last letter; it does not go with filters or --at")

    async def call(session: CommandSession) -> Replay:
        session.send_as(app_path)
        await partitions_of(session, topic)
        if target is not None:
            await partitions_of(session, target)  # a mistyped name would make a topic that nobody reads
        job = Replay(session, topic, target, dry_run=dry_run, again=again, per_s=rate)
        await job.before.load()
        if not dry_run:
            await job.before.check()
        await job.run_all(picked, wanted, limit)
        if delete and not dry_run:
            await job.delete()
        return job

    done = run(url, call)
    _check_matched(done, topic, filters)
    sent = done.sent
    if as_json:
        counts = {"replayed": sent, "replayed_before": done.left_out, "refused": done.refused}
        emit_json({"topic": topic, **counts, "dry_run": dry_run})
        _check_refused(done)
        return
    _tell_of_others(done, topic, deleted=delete and not dry_run)
    for key in done.parked[:SHOWN]:
        say(_parked_text(key, topic), err=True)
    if len(done.parked) > SHOWN:
        say(f"and {len(done.parked) - SHOWN} more parked keys, each in order", err=True)
    verb = "would be replayed" if dry_run else "replayed"
    for name, count in sorted(sent.items()):
        say(f"{count} {verb} to {name}")
    _check_refused(done)


def _check_refused(done: Replay) -> None:
    """Raises: Failure, when letters cannot be sent."""
    if done.refused:
        raise Failure(done.why_refused())


def _check_matched(done: Replay, topic: str, filters: Mapping[str, str | None]) -> None:
    """Raises: Failure, when letters were asked for and there is nothing to send: a script is not to go on as if there
    were."""
    if not any(filters.values()) or done.sent or done.bare or done.lost or done.refused:
        return
    if done.left_out:
        raise Failure(f"nothing is replayed: {done.left_out} were replayed before; --again sends them too")
    if done.settled:
        raise Failure(
            f"nothing is replayed: {done.settled} of parked keys are settled, or from before these were parked"
        )
    raise Failure(f"no dead letter of {topic} matches; `flowshare dlq show {topic}` lists them")


def _parked_text(key: ParkedReplay, topic: str) -> str:
    text = f"the parked key {text_of(key.key)} of group {key.group}: its {key.letters} letters, in order"
    if key.gone:
        offsets = ", ".join(map(str, key.gone))
        text += f"; those of the offsets {offsets} are not in {topic} any more, and others may be missing between them"
    return text


def _tell_of_others(done: Replay, topic: str, *, deleted: bool) -> None:
    """Print which letters were not sent, and why."""
    if done.left_out:
        say(f"{done.left_out} were replayed before and are left out; --again sends them too", err=True)
    if done.settled:
        say(
            f"{done.settled} of parked keys are from before these were parked, or settled by now, and left out: what "
            "is sent for a parked key beside its replay becomes a dead letter again; replay them when the key goes on",
            err=True,
        )
    if done.lost:
        say(
            f"{len(done.lost)} letters have no record, and it is in its topic no more: if they were of parked keys, "
            "these go on without them",
            err=True,
        )
    if done.bare:
        say(why_bare(done.bare), err=True)
    if deleted and done.kept:
        places = ", ".join(f"{topic}-{partition}@{offset}" for partition, offset in sorted(done.kept.items())[:SHOWN])
        say(f"nothing is deleted from {places} on: letters of parked keys are kept until these are settled", err=True)
    if not (done.sent or done.refused):
        say(f"no dead letters to replay in {topic}", err=True)


@dlq.command("parked")
@click.argument("group")
@facts_options
def parked(group: str, as_json: bool, url: str) -> None:
    """List a group's parked keys: one of their records became a dead letter, and the later ones follow it.

    `flowshare dlq replay` sends all letters of such a key again, in order; when they are settled it goes on.
    `flowshare dlq unpark` lets it go on without.
    """

    async def call(session: CommandSession) -> list[dict[str, Any]]:
        told = await session.admin.parked_keys(group)
        return [
            {
                "key": text_of(one.key),
                "key_hex": one.key.hex(),
                "topic": one.topic,
                "partition": one.partition,
                "since": one.parked.first,
                "settled_to": one.parked.done,
                "last": one.parked.last,
                "replayed": one.parked.version > OVER,
            }
            for one in told.keys
        ]

    rows = run(url, call, groups=True)
    columns = headings(
        "key", "topic", "partition", "since", "last", "replayed", since="since offset", last="last letter"
    )
    show(
        rows, columns, as_json=as_json, empty=f"group {group} has no parked keys", right=("partition", "since", "last")
    )


@dlq.command("unpark")
@click.argument("group")
@click.argument("key", required=False)
@click.option("--hex", "key_hex", metavar="HEX", help="The key's bytes, as --json of `dlq parked` has them.")
@click.option("--topic", help="Only in this topic.")
@facts_options
def unpark(group: str, key: str | None, key_hex: str | None, topic: str | None, as_json: bool, url: str) -> None:
    """Let a parked key go on. Its letters stay in the dead letters, and are out of order if they are replayed later.

    KEY is the key's text; one that begins with a dash comes behind `--`. What is no text is named by --hex.
    """
    wanted = _key(key, key_hex)

    async def call(session: CommandSession) -> list[dict[str, Any]]:
        told = await session.admin.parked_keys(group)
        found = [one for one in told.keys if one.key in (wanted, key_name(wanted))]
        if not found:
            raise Failure(_no_such_key(group, wanted, [one.key for one in told.keys]))
        if topic is not None and topic not in {one.topic for one in found}:
            topics = ", ".join(sorted({one.topic for one in found}))
            raise Failure(f"that key is parked in {topics}, and not in {topic}")
        chosen = [one for one in found if topic in (None, one.topic)]
        for one in chosen:
            await session.admin.change_parked_key(group, "unpark", one.topic, one.partition, one.key)
        return [{"topic": one.topic, "partition": one.partition} for one in chosen]

    rows = run(url, call, groups=True)
    if as_json:
        emit_json(rows)
        return
    for row in rows:
        say(f"{text_of(wanted)} goes on in {row['topic']}-{row['partition']}")


def _key(text: str | None, in_hex: str | None) -> bytes:
    """The key that a command is about. Raises: UsageError."""
    if (text is None) == (in_hex is None):
        raise click.UsageError("name the key: KEY, or --hex with its bytes")
    try:
        return os.fsencode(text) if text is not None else bytes.fromhex(in_hex or "")
    except ValueError:
        raise click.BadParameter(f"{in_hex!r} is not hexadecimal", param_hint="--hex") from None


def _no_such_key(group: str, key: bytes, parked: Sequence[bytes]) -> str:
    """The error; keys that only look like it are named as they can be."""
    shown = text_of(key)
    alike = next((one for one in parked if shown in (text_of(one), printable(text_of(one) or ""))), None)
    if alike is not None:
        return f"group {group} has a parked key that looks like it: name its bytes, --hex {alike.hex()}"
    return f"group {group} has no parked key {text_of(key)!r}; `flowshare dlq parked {group}` lists them"


async def _list(session: CommandSession, named: Mapping[str, str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for topic in await session.admin.list_topics():
        if not topic.name.endswith(SUFFIX) and topic.name not in named:
            continue
        count, newest, sent = 0, 0, 0
        replayed = await replayed_in(session.admin, topic.name)
        for partition in range(topic.partitions):
            ends = await session.admin.offsets(topic.name, partition)
            count += ends.high_watermark - ends.log_start
            sent += 0 if replayed is None else replayed.count(partition, ends.log_start, ends.high_watermark)
            if ends.high_watermark > ends.log_start:
                last = await session.admin.read(topic.name, partition, ends.high_watermark - 1, limit=1)
                newest = max([newest, *(record.timestamp_ms for record in last)])
        row = {"topic": topic.name, "letters": count, "replayed": None if replayed is None else sent}
        rows.append({**row, "newest": time_of(newest) if newest else None, "agent": named.get(topic.name)})
    return sorted(rows, key=lambda row: str(row["topic"]))


def _of_app(app_path: str) -> dict[str, str]:
    """Dead-letter topic of each of the app's agents -> the agent's name."""
    from flowshare.agents.app.loading import load_app

    agents = load_app(app_path).share_agents.values()
    return {agent.dead_letter_topic: agent.name for agent in agents if agent.dead_letter_topic is not None}
