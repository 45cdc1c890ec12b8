"""`flowshare dlq`: list, show and replay dead letters."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from flowshare.cli.errors import Failure
from flowshare.cli.options import broker_options, broker_url, json_option
from flowshare.cli.output import say
from flowshare.cli.replayed import Replayed

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowshare.cli.session import Session
    from flowshare.client.producer import Message

_SUFFIX: Final = ".dlq"
_ROUND: Final = 1_000
SERVER_PREFIX: Final = "__dlq.errors."
"""Headers of dead letters that the server itself writes: records that the delivery limit archived (KIP-1191)."""
_SERVERS: Final = {"delivery.count": "attempts", "message": "reason"}
"""The server's names of facts that an agent's dead letters have too."""
_FACTS: Final = ("reason", "exception", "topic", "partition", "offset", "attempts", "agent", "group", "timestamp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which dead letters are meant; None: any."""

    reason: str | None = None
    exception: str | None = None
    agent: str | None = None
    since: datetime | None = None

    def takes(self, letter: Mapping[str, Any]) -> bool:
        """Whether the letter is one of them."""
        return (
            (self.reason is None or self.reason.lower() in letter["reason"].lower())
            and (self.exception is None or self.exception.lower() in letter["exception"].lower())
            and (self.agent is None or self.agent == letter["agent"])
            and (self.since is None or letter["died_ms"] >= self.since.timestamp() * 1000)
        )


def filter_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The filters that `show` and `replay` share; the command gets them as keyword arguments."""
    for option in (
        click.option("--since", metavar="ISO", help="Died at or after this time (UTC unless it names a zone)."),
        click.option("--agent", help="Died in this agent."),
        click.option("--exception", help="The exception's name contains this."),
        click.option("--reason", help="The reason contains this."),
    ):
        function = option(function)
    return function


@click.group("dlq")
def dlq() -> None:
    """List, show and replay dead letters."""


@dlq.command("ls")
@json_option
@broker_options
def ls(as_json: bool, broker: str | None, app_path: str | None) -> None:
    """List the dead-letter topics: those named *.dlq, and with --app the app's own."""
    from flowshare.cli.output import show
    from flowshare.cli.session import run

    named = _of_app(app_path) if app_path else {}
    rows = run(broker_url(broker, app_path), lambda session: _list(session, named))
    columns = {"topic": "topic", "letters": "letters", "newest": "newest", "agent": "agent"}
    show(rows, columns, as_json=as_json, empty="there are no dead-letter topics", right=("letters",))


@dlq.command("show")
@click.argument("topic")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="Newest letters to show.")
@click.option("--values", is_flag=True, help="Show keys and values too.")
@click.option("--trace", is_flag=True, help="Show tracebacks too.")
@filter_options
@json_option
@broker_options
def show_letters(
    topic: str,
    limit: int,
    values: bool,
    trace: bool,
    as_json: bool,
    broker: str | None,
    app_path: str | None,
    **filters: str | None,
) -> None:
    """Show why records died and where they came from, newest last."""
    from flowshare.cli.output import emit_json, show
    from flowshare.cli.session import run

    wanted = _filter(filters)

    async def call(session: Session) -> list[dict[str, Any]]:
        found, others = [], 0
        async for letter in _letters(session, topic):
            others += not letter["is_letter"]
            if letter["is_letter"] and wanted.takes(letter):
                found.append(letter)
        if others and not found:
            raise Failure(f"{others} records of {topic} are no dead letters; `flowshare dlq ls` lists the right topics")
        return found

    found = run(broker_url(broker, app_path), call)
    left_out, letters = max(0, len(found) - limit), [_plain(letter) for letter in found[-limit:]]
    if as_json:
        emit_json(letters)
        return
    columns = {"at": "letter", "died": "died", "origin": "from", "attempts": "attempts", "reason": "reason"}
    if values:
        columns |= {"key": "key", "value": "value"}
    show(letters, columns, as_json=False, empty=f"no dead letters in {topic}", right=("attempts",))
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
@click.option("--limit", type=click.IntRange(1), help="At most so many, oldest first.")
@click.option("--delete", is_flag=True, help="Then delete them here: everything up to the last one that was replayed.")
@click.option("--again", is_flag=True, help="Those too that were replayed before.")
@click.option("--dry-run", is_flag=True, help="Only say how many, and where to.")
@filter_options
@json_option
@broker_options
def replay(
    topic: str,
    places: tuple[str, ...],
    target: str | None,
    limit: int | None,
    delete: bool,
    again: bool,
    dry_run: bool,
    as_json: bool,
    broker: str | None,
    app_path: str | None,
    **filters: str | None,
) -> None:
    """Send dead letters again, as they were: key, value and headers without flowshare's own.

    They stay in the dead-letter topic, unless --delete is given; a second replay leaves them out, unless --again is.
    """
    from flowshare.cli.output import emit_json
    from flowshare.cli.session import run

    wanted, picked = _filter(filters), frozenset(_place(topic, text) for text in places)
    if delete and (picked or wanted != Filter()):
        raise click.UsageError("--delete removes everything up to the last letter; it does not go with filters or --at")

    async def call(session: Session) -> _Replay:
        session.send_as(app_path)
        job = _Replay(session, topic, target, dry_run=dry_run, again=again)
        await job.before.load()
        if not dry_run:
            await job.before.check()
        if picked:
            await job.pick(picked)
        else:
            await job.run(wanted, limit)
        if delete and not dry_run:
            await job.delete()
        return job

    done = run(broker_url(broker, app_path), call)
    sent = done.sent
    if as_json:
        emit_json({"topic": topic, "replayed": sent, "replayed_before": done.left_out, "dry_run": dry_run})
        return
    _tell_of_others(done, topic)
    verb = "would be replayed" if dry_run else "replayed"
    for name, count in sorted(sent.items()):
        say(f"{count} {verb} to {name}")


def _tell_of_others(done: _Replay, topic: str) -> None:
    """What was not sent, and why."""
    if done.left_out:
        say(f"{done.left_out} were replayed before and are left out; --again sends them too", err=True)
    if done.bare:
        say(_bare(done.bare), err=True)
    if not done.sent:
        say(f"no dead letters to replay in {topic}", err=True)


def _bare(count: int) -> str:
    return (
        f"{count} without the record, which was too large for this topic, cannot be replayed: read it where the letter "
        "says it was (flowshare dlq show)"
    )


class _Replay:
    """Sends letters again in rounds, and remembers how far it came."""

    def __init__(self, session: Session, topic: str, target: str | None, *, dry_run: bool, again: bool) -> None:
        self._session = session
        self._again = again
        self.before = Replayed(session.admin, topic)
        self.left_out = 0
        """Letters that were replayed before."""
        self._new: list[tuple[int, int]] = []
        self._topic = topic
        self._target = target
        self._dry_run = dry_run
        self._last: dict[int, int] = {}
        self.bare = 0
        """Letters without their record."""
        self._pending: dict[str, list[Message]] = {}
        self.sent: dict[str, int] = {}

    async def run(self, wanted: Filter, limit: int | None) -> None:
        from flowshare.cli.output import progress

        with progress(f"replaying {self._topic}", limit) as step:
            async for letter in _letters(self._session, self._topic):
                if limit is not None and sum(self.sent.values()) >= limit:
                    break
                if wanted.takes(letter) and self._fresh(letter):
                    await self._add(letter)
                    step(1)
            await self._flush()

    async def pick(self, places: Iterable[tuple[int, int]]) -> None:
        """Send these letters only, by partition and offset. Raises: Failure."""
        for partition, offset in sorted(places):
            found = await self._session.admin.read(self._topic, partition, offset, limit=1)
            if not found or found[0].offset != offset:
                raise Failure(
                    f"there is no letter at {self._topic}-{partition}@{offset}; `flowshare dlq show` lists them"
                )
            letter = _letter(self._topic, partition, found[0])
            if self._fresh(letter):
                await self._add(letter)
        await self._flush()

    def _fresh(self, letter: Mapping[str, Any]) -> bool:
        if self._again or (letter["letter_partition"], letter["letter_offset"]) not in self.before:
            return True
        self.left_out += 1
        return False

    async def delete(self) -> None:
        """Delete up to the last letter that was sent. Raises: Failure."""
        if self.bare:
            raise Failure(f"nothing is deleted: {_bare(self.bare)}")
        for partition, offset in self._last.items():
            await self._session.admin.delete_records(self._topic, partition, offset + 1)

    async def _add(self, letter: Mapping[str, Any]) -> None:
        from flowshare.client.producer import Message

        if letter["left_out"]:
            self.bare += 1
            return
        to = self._target or letter["topic"]
        if not to:
            raise Failure(f"{_at(letter)} does not say where it came from; name a topic with --to")
        self.sent[to] = self.sent.get(to, 0) + 1
        self._last[letter["letter_partition"]] = letter["letter_offset"]
        if self._dry_run:
            return
        headers = tuple(pair for pair in letter["headers"] if not _own(pair[0]))
        self._new.append((letter["letter_partition"], letter["letter_offset"]))
        self._pending.setdefault(to, []).append(Message(letter["raw_value"], letter["raw_key"], headers))
        if sum(map(len, self._pending.values())) >= _ROUND:
            await self._flush()

    async def _flush(self) -> None:
        pending, self._pending = self._pending, {}
        for name, messages in pending.items():
            await self._session.producer.send_many(name, messages)
        new, self._new = self._new, []
        if new:
            await self.before.add(new)


async def _letters(session: Session, topic: str) -> AsyncIterator[dict[str, Any]]:
    """The topic's letters, oldest first in each partition."""
    names = {found.name: found for found in await session.admin.list_topics()}
    if topic not in names and topic + _SUFFIX in names:
        raise Failure(f"there is no topic {topic!r}; the dead letters of the group are in {topic + _SUFFIX}")
    found = names.get(topic) or await session.admin.describe_topic(topic)
    for partition in range(found.partitions):
        ends = await session.admin.offsets(topic, partition)
        offset = ends.log_start
        while offset < ends.high_watermark:
            records = await session.admin.read(topic, partition, offset, limit=_ROUND)
            if not records:
                break
            for record in records:
                yield _letter(topic, partition, record)
            offset = records[-1].offset + 1


def _letter(topic: str, partition: int, record: Any) -> dict[str, Any]:
    from flowshare.agents.dead_letter import PREFIX

    texts = {name: (value or b"").decode("utf-8", "replace") for name, value in record.headers}
    facts = {_SERVERS.get(name, name): text for name, text in _cut(texts, SERVER_PREFIX).items()}
    facts |= _cut(texts, PREFIX)
    return {
        **{name: facts.get(name, "") for name in _FACTS},
        "is_letter": bool(facts),
        "trace": facts.get("trace", ""),
        "left_out": facts.get("left_out", ""),
        "letter_topic": topic,
        "letter_partition": partition,
        "letter_offset": record.offset,
        "died_ms": record.timestamp_ms,
        "headers": record.headers,
        "raw_key": record.key,
        "raw_value": record.value,
    }


def _place(topic: str, text: str) -> tuple[int, int]:
    """Partition and offset of a letter, with the topic in front or without, as `dlq show` prints them."""
    partition, _, offset = text.removeprefix(f"{topic}-").partition("@")
    if not (partition.isdecimal() and offset.isdecimal()):
        raise click.BadParameter(f"{text!r} is no place of {topic}, such as {topic}-0@17 or 0@17", param_hint="--at")
    return int(partition), int(offset)


def _cut(texts: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {name.removeprefix(prefix): text for name, text in texts.items() if name.startswith(prefix)}


def _own(name: str) -> bool:
    from flowshare.agents.dead_letter import PREFIX

    return name.startswith((PREFIX, SERVER_PREFIX))


def _plain(letter: Mapping[str, Any]) -> dict[str, Any]:
    """A letter as text, for tables and JSON."""
    kept = {name: letter[name] for name in (*_FACTS, "trace")}
    origin = f"{letter['topic']}-{letter['partition']}@{letter['offset']}" if letter["topic"] else ""
    headers = {name: _text(value) for name, value in letter["headers"] if not _own(name)}
    return {
        **kept,
        "at": _at(letter),
        "died": _time(letter["died_ms"]),
        "origin": origin,
        "key": _text(letter["raw_key"]),
        "value": _text(letter["raw_value"]),
        "headers": headers,
    }


def _at(letter: Mapping[str, Any]) -> str:
    return f"{letter['letter_topic']}-{letter['letter_partition']}@{letter['letter_offset']}"


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "backslashreplace")


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


async def _list(session: Session, named: Mapping[str, str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for topic in await session.admin.list_topics():
        if not topic.name.endswith(_SUFFIX) and topic.name not in named:
            continue
        count, newest = 0, 0
        for partition in range(topic.partitions):
            ends = await session.admin.offsets(topic.name, partition)
            count += ends.high_watermark - ends.log_start
            if ends.high_watermark > ends.log_start:
                last = await session.admin.read(topic.name, partition, ends.high_watermark - 1, limit=1)
                newest = max([newest, *(record.timestamp_ms for record in last)])
        row = {"topic": topic.name, "letters": count, "newest": _time(newest) if newest else None}
        rows.append({**row, "agent": named.get(topic.name)})
    return sorted(rows, key=lambda row: str(row["topic"]))


def _of_app(app_path: str) -> dict[str, str]:
    """Dead-letter topic of each of the app's agents -> the agent's name."""
    from flowshare.agents.loading import load_app

    agents = load_app(app_path).share_agents.values()
    return {agent.dead_letter_topic: agent.name for agent in agents if agent.dead_letter_topic is not None}


def _filter(given: Mapping[str, str | None]) -> Filter:
    since = given.get("since")
    moment: datetime | None = None
    if since is not None:
        try:
            moment = datetime.fromisoformat(since)
        except ValueError:
            raise click.UsageError(f"--since {since!r} is no date and time such as 2026-11-21T09:00:00") from None
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return Filter(reason=given.get("reason"), exception=given.get("exception"), agent=given.get("agent"), since=moment)
