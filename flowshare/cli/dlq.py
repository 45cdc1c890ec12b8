"""`flowshare dlq`: list, show and replay dead letters.

Which letters were replayed, so that a second replay leaves them out, stands where every backend keeps such things: as
committed offsets of a consumer group without members, `<dead-letter topic>.replayed`, the offset of a partition being
the first that was not replayed, and the metadata the runs behind it (`17-20,25`). Brokers forget it a week after the
last replay, unless offsets.retention.minutes says else.

Letters of a parked key (`share.parking`) are no single letters: all that are not settled are sent again, in the order
of their originals, to the partition that they came from, marked as a replay that was begun at the share group.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from flowshare.cli.options import facts_options, moment, together
from flowshare.cli.output import Failure, emit_json, headings, progress, say, show
from flowshare.cli.session import CommandSession, run
from flowshare.client.errors import ServerError, Unsupported
from flowshare.protocol.key_hash import KeyOrder
from flowshare.protocol.private import REPLAY_HEADER
from flowshare.share.parking import OVER, Mark, ParkedKey
from flowshare.share.ranges import Range, merged

if TYPE_CHECKING:
    from flowshare.client.admin.admin import ShareAdmin
    from flowshare.client.producer.producer import Message
    from flowshare.protocol.messages import ParkedKeyTold

_SUFFIX: Final = ".dlq"
_ROUND: Final = 1_000
REPLAYED: Final = ".replayed"
SHOWN: Final = 20
"""Parked keys that are told by name."""
METADATA_MAX: Final = 4000
"""Characters of metadata: brokers take 4,096 bytes (offset.metadata.max.bytes)."""
SERVER_PREFIX: Final = "__dlq.errors."
"""Headers of dead letters that the server itself writes: records that the delivery limit archived (KIP-1191)."""
_SERVERS: Final = {"delivery.count": "attempts", "message": "reason"}
"""The server's names of facts that an agent's dead letters have too."""
_FACTS: Final = ("reason", "exception", "topic", "partition", "offset", "attempts", "agent", "group", "timestamp")


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
    columns = headings("topic", "letters", "newest", "agent")
    show(rows, columns, as_json=as_json, empty="there are no dead-letter topics", right=("letters",))


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

    async def call(session: CommandSession) -> list[dict[str, Any]]:
        found, others = [], 0
        async for letter in _letters(session, topic):
            others += not letter["is_letter"]
            if letter["is_letter"] and wanted(letter):
                found.append(letter)
        if others and not found:
            raise Failure(f"{others} records of {topic} are no dead letters; `flowshare dlq ls` lists the right topics")
        return found

    found = run(url, call)
    left_out, letters = max(0, len(found) - limit), [_plain(letter) for letter in found[-limit:]]
    if as_json:
        emit_json(letters)
        return
    more = ("key", "value") if values else ()
    columns = headings("at", "died", "origin", "attempts", "reason", *more, at="letter", origin="from")
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
@click.option(
    "--delete", is_flag=True, help="Then delete them here: all up to the last one, or the first of a parked key."
)
@click.option("--again", is_flag=True, help="Those too that were replayed before.")
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

    wanted, picked = _wanted(**filters), frozenset(_place(topic, text) for text in places)
    if delete and (picked or any(filters.values())):
        raise click.UsageError("--delete removes everything up to the last letter; it does not go with filters or --at")

    async def call(session: CommandSession) -> _Replay:
        session.send_as(app_path)
        await _partitions(session, topic)
        job = _Replay(session, topic, target, dry_run=dry_run, again=again)
        await job.before.load()
        if not dry_run:
            await job.before.check()
        await job.run_all(picked, wanted, limit)
        if delete and not dry_run:
            await job.delete()
        return job

    done = run(url, call)
    sent = done.sent
    if as_json:
        emit_json({"topic": topic, "replayed": sent, "replayed_before": done.left_out, "dry_run": dry_run})
        return
    _tell_of_others(done, topic, deleted=delete and not dry_run)
    for key in done.parked[:SHOWN]:
        say(f"the parked key {_text(key.key)} of group {key.group}: all its {key.letters} letters, in order", err=True)
    if len(done.parked) > SHOWN:
        say(f"and {len(done.parked) - SHOWN} more parked keys, each in order", err=True)
    verb = "would be replayed" if dry_run else "replayed"
    for name, count in sorted(sent.items()):
        say(f"{count} {verb} to {name}")


def _tell_of_others(done: _Replay, topic: str, *, deleted: bool) -> None:
    """What was not sent, and why."""
    if done.left_out:
        say(f"{done.left_out} were replayed before and are left out; --again sends them too", err=True)
    if done.bare:
        say(_bare(done.bare), err=True)
    if deleted and done.kept:
        places = ", ".join(f"{topic}-{partition}@{offset}" for partition, offset in sorted(done.kept.items())[:SHOWN])
        say(f"nothing is deleted from {places} on: letters of parked keys are kept until these are settled", err=True)
    if not done.sent:
        say(f"no dead letters to replay in {topic}", err=True)


def _bare(count: int) -> str:
    return (
        f"{count} without the record, which was too large for this topic, cannot be replayed: read it where the letter "
        "says it was (flowshare dlq show)"
    )


class _ParkedReplay(NamedTuple):
    """A parked key that was replayed."""

    group: str
    key: bytes
    letters: int


class _Replay:
    """Sends letters again in rounds, and remembers how far it came."""

    def __init__(self, session: CommandSession, topic: str, target: str | None, *, dry_run: bool, again: bool) -> None:
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
        self._parked = _Parked(session.admin)
        self._parked_wanted: set[_KeyAt] = set()
        self.parked: list[_ParkedReplay] = []
        self.done = 0
        """Letters that are sent."""
        self.kept: dict[int, int] = {}
        """By partition the first letter of a parked key: it may have to be replayed once more."""

    async def run_all(
        self, picked: frozenset[tuple[int, int]], wanted: Callable[[Mapping[str, Any]], bool], limit: int | None
    ) -> None:
        """These letters, by partition and offset, or those that are wanted; then whole parked keys. Raises: Failure."""
        try:
            if picked:
                await self.pick(picked)
            else:
                await self.run(wanted, limit)
            await self.run_parked()
        except asyncio.CancelledError:
            say(f"{self.done} letters were replayed; another replay goes on with the rest", err=True)
            raise

    async def run(self, wanted: Callable[[Mapping[str, Any]], bool], limit: int | None) -> None:
        with progress(f"replaying {self._topic}", limit) as step:
            async for letter in _letters(self._session, self._topic):
                if limit is not None and sum(self.sent.values()) >= limit:
                    break
                if wanted(letter) and not await self._of_parked_key(letter) and self._fresh(letter):
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
            if not await self._of_parked_key(letter) and self._fresh(letter):
                await self._add(letter)
        await self._flush()

    async def _of_parked_key(self, letter: Mapping[str, Any]) -> bool:
        """Whether a letter is of a parked key, which is then replayed whole, by `run_parked`."""
        at = None if self._target else await self._parked.of(letter)
        if at is not None:
            self._parked_wanted.add(at)
            place = letter["letter_partition"]
            self.kept[place] = min(self.kept.get(place, letter["letter_offset"]), letter["letter_offset"])
        return at is not None

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
            end = min(offset + 1, self.kept.get(partition, offset + 1))
            await self._session.admin.delete_records(self._topic, partition, end)

    async def run_parked(self) -> None:
        """Replay the parked keys of which a letter was wanted. Raises: Failure."""
        begun: dict[_KeyAt, ParkedKeyTold] = {}
        for at in sorted(self._parked_wanted):
            if self._dry_run:
                begun[at] = self._parked.known(at)
                continue
            told = await self._session.admin.change_parked_key(at.group, "replay", at.topic, at.partition, at.key)
            if told is not None:  # else somebody has settled it, or let it go on
                begun[at] = told
        if not begun:
            return
        # Read after the replays began: each letter up to `last` is there by then.
        letters: dict[_KeyAt, dict[int, dict[str, Any]]] = {at: {} for at in begun}
        async for letter in _letters(self._session, self._topic):
            place = await self._parked.of(letter)
            if place is not None and place in begun and _is_of(letter, begun[place].parked):
                letters[place][int(letter["offset"])] = letter  # the last one of an original is the one that counts
        for at, told in begun.items():
            await self._run_parked(at, told, [letter for _, letter in sorted(letters[at].items())])

    async def _run_parked(self, at: _KeyAt, told: ParkedKeyTold, letters: Sequence[dict[str, Any]]) -> None:
        """Send the letters of one key that are not settled. Raises: Failure."""
        from flowshare.client.producer.producer import Message

        bare = [letter for letter in letters if letter["left_out"]]
        if bare:
            raise Failure(f"the key of {_at(bare[0])} cannot be replayed whole: {_bare(len(bare))}")
        if not letters:
            return
        self.sent[at.topic] = self.sent.get(at.topic, 0) + len(letters)
        self.parked.append(_ParkedReplay(at.group, at.key, len(letters)))
        if self._dry_run:
            return
        messages: list[Message] = []
        parked = told.parked
        for letter in letters:
            original = int(letter["offset"])
            mark = Mark(parked.version, original, parked.last if letter is letters[-1] else original)
            headers = [pair for pair in letter["headers"] if not _own(pair[0])]
            headers.append((REPLAY_HEADER, mark.encode(at.group, told.topic_id, at.partition)))
            messages.append(Message(letter["raw_value"], letter["raw_key"], tuple(headers), None, at.partition))
        await _whole(self._send_key(at.topic, messages, letters))

    async def _send_key(self, topic: str, messages: list[Message], letters: Sequence[dict[str, Any]]) -> None:
        await self._session.producer.send_many(topic, messages)
        self.done += len(messages)
        await self.before.add([(letter["letter_partition"], letter["letter_offset"]) for letter in letters])

    async def _add(self, letter: Mapping[str, Any]) -> None:
        from flowshare.client.producer.producer import Message

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
        await _whole(self._send_pending())

    async def _send_pending(self) -> None:
        pending, self._pending = self._pending, {}
        for name, messages in pending.items():
            await self._session.producer.send_many(name, messages)
            self.done += len(messages)
        new, self._new = self._new, []
        if new:
            await self.before.add(new)


async def _whole(step: Coroutine[Any, Any, None]) -> None:
    """Do it to its end, though the command is interrupted: what is sent and not remembered would be sent again."""
    task = asyncio.ensure_future(step)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise


class _KeyAt(NamedTuple):
    """A key of a share-partition."""

    group: str
    topic: str
    partition: int
    key: bytes


def _is_of(letter: Mapping[str, Any], parked: ParkedKey) -> bool:
    """Whether this letter of a parked key is one of those that are not settled."""
    return parked.done < int(letter["offset"]) <= parked.last


class _Parked:
    """Which letters are of parked keys; each group is asked once."""

    def __init__(self, admin: ShareAdmin) -> None:
        self._admin = admin
        self._groups: dict[str, tuple[KeyOrder | None, dict[_KeyAt, ParkedKeyTold]]] = {}

    async def of(self, letter: Mapping[str, Any]) -> _KeyAt | None:
        """The parked key of a letter; None: it is of none."""
        group, partition, offset = letter["group"], letter["partition"], letter["offset"]
        if not (group and partition.isdecimal() and offset.isdecimal()):
            return None
        order, keys = await self._of_group(group)
        if order is None or not keys:
            return None
        key = order.key_of_parts(letter["raw_key"], letter["headers"])
        at = None if key is None else _KeyAt(group, letter["topic"], int(partition), key)
        return at if at in keys else None

    def known(self, at: _KeyAt) -> ParkedKeyTold:
        """What was told of a parked key."""
        return self._groups[at.group][1][at]

    async def _of_group(self, group: str) -> tuple[KeyOrder | None, dict[_KeyAt, ParkedKeyTold]]:
        if group not in self._groups:
            order = ""
            keys: dict[_KeyAt, ParkedKeyTold] = {}
            with suppress(Unsupported, ServerError):  # brokers have no parked keys, and a deleted group neither
                told = await self._admin.parked_keys(group)
                order = told.order
                keys = {_KeyAt(group, one.topic, one.partition, one.key): one for one in told.keys}
            self._groups[group] = KeyOrder.parse(order), keys
        return self._groups[group]


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
                "key": _text(one.key),
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
@click.argument("key")
@click.option("--topic", help="Only in this topic.")
@facts_options
def unpark(group: str, key: str, topic: str | None, as_json: bool, url: str) -> None:
    """Let a parked key go on. Its letters stay in the dead letters, and are out of order if they are replayed later.

    KEY is written as `flowshare dlq parked` shows it.
    """

    async def call(session: CommandSession) -> list[dict[str, Any]]:
        told = await session.admin.parked_keys(group)
        found = [one for one in told.keys if _text(one.key) == key and topic in (None, one.topic)]
        if not found:
            raise Failure(f"group {group} has no parked key {key!r}; `flowshare dlq parked {group}` lists them")
        for one in found:
            await session.admin.change_parked_key(group, "unpark", one.topic, one.partition, one.key)
        return [{"topic": one.topic, "partition": one.partition} for one in found]

    rows = run(url, call, groups=True)
    if as_json:
        emit_json(rows)
        return
    for row in rows:
        say(f"{key} goes on in {row['topic']}-{row['partition']}")


async def _partitions(session: CommandSession, topic: str) -> int:
    """How many the topic has. Raises: Failure (it is a group's name), ServerError (there is none)."""
    names = {found.name: found for found in await session.admin.list_topics()}
    if topic not in names and topic + _SUFFIX in names:
        raise Failure(f"there is no topic {topic!r}; the dead letters of the group are in {topic + _SUFFIX}")
    return (names.get(topic) or await session.admin.describe_topic(topic)).partitions


async def _letters(session: CommandSession, topic: str) -> AsyncIterator[dict[str, Any]]:
    """The topic's letters, oldest first in each partition."""
    for partition in range(await _partitions(session, topic)):
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
    from flowshare.agents.feed.dead_letter import PREFIX

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
    from flowshare.agents.feed.dead_letter import PREFIX

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


async def _list(session: CommandSession, named: Mapping[str, str]) -> list[dict[str, Any]]:
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
    from flowshare.agents.app.loading import load_app

    agents = load_app(app_path).share_agents.values()
    return {agent.dead_letter_topic: agent.name for agent in agents if agent.dead_letter_topic is not None}


# --- what was replayed --------------------------------------------------------------------------------------------


class Replayed:
    """The replayed letters of one dead-letter topic."""

    def __init__(self, admin: ShareAdmin, topic: str) -> None:
        self._admin = admin
        self._topic = topic
        self._runs: dict[int, list[Range]] = {}

    async def load(self) -> None:
        """Read what is remembered."""
        for part in await self._admin.committed_offsets(self._topic + REPLAYED):
            if part.topic == self._topic and part.offset >= 0:
                self._runs[part.partition] = merged(
                    [*([(0, part.offset - 1)] if part.offset else []), *parse(part.metadata)]
                )

    def __contains__(self, place: tuple[int, int]) -> bool:
        """Whether the letter at this partition and offset was replayed."""
        partition, offset = place
        return any(first <= offset <= last for first, last in self._runs.get(partition, ()))

    async def check(self) -> None:
        """Whether letters can be remembered, before any is sent. Raises: ServerError (the group may not be written)."""
        await self._commit(self._runs or {0: []})

    async def add(self, places: list[tuple[int, int]]) -> None:
        """Remember letters, by partition and offset."""
        for partition, offset in places:
            self._runs[partition] = merged([*self._runs.get(partition, ()), (offset, offset)])
        await self._commit({partition for partition, _ in places})

    async def _commit(self, partitions: Iterable[int]) -> None:
        from flowshare.protocol.messages import OffsetToCommit

        commits = []
        for partition in sorted(partitions):
            runs = self._runs.get(partition, [])
            start = (await self._admin.offsets(self._topic, partition)).log_start
            runs = merged([*([(0, start - 1)] if start else []), *runs])  # what is deleted needs no run of its own
            behind = runs[0][1] + 1 if runs and runs[0][0] == 0 else 0
            text = format_runs([run for run in runs if run[0] >= behind])
            commits.append(OffsetToCommit(self._topic, partition, behind, -1, text))
        await self._admin.commit_offsets(self._topic + REPLAYED, commits)


def format_runs(runs: list[Range]) -> str:
    """Runs as text, the newest as far as there is room."""
    texts: list[str] = []
    room = METADATA_MAX
    for first, last in reversed(runs):
        text = str(first) if first == last else f"{first}-{last}"
        room -= len(text) + 1
        if room < 0:
            break
        texts.append(text)
    return ",".join(reversed(texts))


def parse(text: str) -> list[Range]:
    """What `format_runs` wrote; nothing of what somebody else did."""
    runs: list[Range] = []
    for word in text.split(","):
        first, _, last = word.partition("-")
        if first.isdecimal() and (last.isdecimal() or not last):
            runs.append((int(first), int(last or first)))
    return runs
