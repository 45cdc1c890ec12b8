"""`flowshare dlq`: list, show and replay dead letters.

Which letters were replayed, so that a second replay leaves them out, stands where every backend keeps such things: as
committed offsets of a consumer group without members, `<dead-letter topic>.replayed`, the offset of a partition being
the first that was not replayed, and the metadata the runs behind it (`17-20,25`). Brokers forget it a week after the
last replay, unless offsets.retention.minutes says else.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from flowshare.cli.options import facts_options, moment, together
from flowshare.cli.output import Failure, emit_json, headings, progress, say, show
from flowshare.cli.session import CommandSession, run
from flowshare.share.ranges import Range, merged

if TYPE_CHECKING:
    from flowshare.client.admin.admin import ShareAdmin
    from flowshare.client.producer.producer import Message

_SUFFIX: Final = ".dlq"
_ROUND: Final = 1_000
REPLAYED: Final = ".replayed"
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
@click.option("--delete", is_flag=True, help="Then delete them here: everything up to the last one that was replayed.")
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
        if picked:
            await job.pick(picked)
        else:
            await job.run(wanted, limit)
        if delete and not dry_run:
            await job.delete()
        return job

    done = run(url, call)
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

    async def run(self, wanted: Callable[[Mapping[str, Any]], bool], limit: int | None) -> None:
        with progress(f"replaying {self._topic}", limit) as step:
            async for letter in _letters(self._session, self._topic):
                if limit is not None and sum(self.sent.values()) >= limit:
                    break
                if wanted(letter) and self._fresh(letter):
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
        pending, self._pending = self._pending, {}
        for name, messages in pending.items():
            await self._session.producer.send_many(name, messages)
        new, self._new = self._new, []
        if new:
            await self.before.add(new)


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
