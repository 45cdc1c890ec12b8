"""`flowshare dlq`: list, show and replay dead letters, and see to parked keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from flowshare.agents.handler.texts import amount
from flowshare.cli.acting import command
from flowshare.cli.options import facts_options
from flowshare.cli.output import emit_json, headings, say, show
from flowshare.ops import Failure
from flowshare.ops.deeds import DEEDS
from flowshare.ops.letters import SUFFIX, LetterFilter, filter_options, plain, read_letters, text_of, time_of
from flowshare.ops.replay import ParkedReplay, Replay, Replayed, replayed_in, why_bare
from flowshare.ops.session import CommandSession, run
from flowshare.share.parking import OVER

SHOWN: Final = 20
"""Parked keys that are told by name."""


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

    wanted = LetterFilter.of(**filters)

    async def call(session: CommandSession) -> tuple[list[dict[str, Any]], Replayed | None]:
        found, others = [], 0
        async for letter in read_letters(session, topic):
            others += not letter["is_letter"]
            if letter["is_letter"] and wanted.takes(letter):
                found.append(letter)
        if others and not found:
            told = amount(others, f"record of {topic} is no dead letter", f"records of {topic} are no dead letters")
            raise Failure(f"{told}; `flowshare dlq ls` lists the right topics")
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


def _show_replay(
    done: Replay, *, topic: str, wanted: LetterFilter, delete: bool, dry_run: bool, as_json: bool, **_: Any
) -> None:
    _check_matched(done, topic, wanted)
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


def _check_matched(done: Replay, topic: str, wanted: LetterFilter) -> None:
    """Raises: Failure, when letters were asked for and there is nothing to send: a script is not to go on as if there
    were."""
    if not wanted.given or done.sent or done.bare or done.lost or done.refused:
        return
    if done.left_out:
        raise Failure(f"nothing is replayed: {done.left_out} were replayed before; --again sends them too")
    if done.settled:
        raise Failure(
            f"nothing is replayed: {done.settled} of parked keys are settled, or from before these were parked"
        )
    raise Failure(f"no dead letter of {topic} matches; `flowshare dlq show {topic}` lists them")


def _parked_text(key: ParkedReplay, topic: str) -> str:
    text = (
        f"the parked key {text_of(key.at.key)} of group {key.at.group}: its {amount(key.letters, 'letter')}, in order"
    )
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
            f"{amount(len(done.lost), 'letter has', 'letters have')} no record, and it is in its topic no more: parked "
            "keys that it was of go on without it",
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


def _show_unparked(places: Sequence[tuple[str, int]], *, group: str, key: bytes, as_json: bool, **_: Any) -> None:
    if not places:
        raise Failure(f"group {group} has no parked key {text_of(key)!r}; `flowshare dlq parked {group}` lists them")
    if as_json:
        emit_json([{"topic": topic, "partition": partition} for topic, partition in places])
        return
    for topic, partition in places:
        say(f"{text_of(key)} goes on in {topic}-{partition}")


dlq.add_command(command(DEEDS["dlq replay"], _show_replay, groups=False))
dlq.add_command(command(DEEDS["dlq unpark"], _show_unparked))


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
