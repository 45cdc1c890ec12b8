"""`flowshare groups browse`: what stands in a group's partitions, without taking it; and `release`, `reject`,
`dead-letter` and `now`, which act on what others hold."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import click

from flowshare.agents.handler.texts import age
from flowshare.cli.acting import command
from flowshare.cli.options import facts_options
from flowshare.cli.output import emit_json, headings, say, show
from flowshare.ops import Failure
from flowshare.ops.arguments import moment
from flowshare.ops.deeds import DEEDS, INTERVENTIONS
from flowshare.ops.letters import text_of, time_of
from flowshare.ops.session import CommandSession, run
from flowshare.share.ranges import Range, merged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import datetime

    from flowshare.client.admin.browsing import BrowsedRecord, BrowsedRun, BrowsePage, Intervened
    from flowshare.ops.deed import Deed

STATES: Final = (
    "available", "delayed", "blocked", "acquired", "pending", "archiving", "acknowledged", "archived",
    "committed", "claimed", "free",
)  # fmt: skip
"""Of share groups, then of cooperative ones."""
SHOWN_MAX: Final = 200
"""Characters of a key or value in a table; JSON has all of it."""
LOOKED_MAX: Final = 100_000
"""Records that are looked at for a key."""
PAGE: Final = 10_000
_RUNS: Final = headings("topic", "partition", "first", "last", "state", "attempts", "member", "until", "behind")
_RECORDS: Final = headings("topic", "partition", "offset", "state", "attempts", "member", "until", "behind", "key")
_SPARE: Final = ("behind", "until", "attempts", "member", "topic", "partition")


@click.command("browse")
@click.argument("group")
@click.option("--topic", help="Only this topic.  [default: all that the group has begun with]")
@click.option("--partition", type=click.IntRange(0), help="Only this partition; needs --topic.")
@click.option("--from", "from_offset", type=click.IntRange(0), help="Begin at this offset; needs --partition.")
@click.option("--at", "at", metavar="ISO", help="Begin at the first record of this time or after it (UTC).")
@click.option("--state", "states", multiple=True, type=click.Choice(STATES), help="Only this state; may be repeated.")
@click.option("--key", help="Only records with this key, one a line.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="Lines of a partition.")
@click.option(
    "--values",
    type=click.Choice(["none", "text", "json", "hex"]),
    default="none",
    show_default=True,
    help="Show records one a line, with keys and values as that; needs the right to read the topic.",
)
@facts_options
def browse(
    group: str,
    topic: str | None,
    partition: int | None,
    from_offset: int | None,
    at: str | None,
    states: tuple[str, ...],
    key: str | None,
    limit: int,
    values: str,
    as_json: bool,
    url: str,
) -> None:
    """Show the state of each record of a group, who holds it and until when, without taking any.

    Nothing is locked, counted or written. Records that nobody was given yet are not shown.
    """
    if partition is not None and topic is None:
        raise click.UsageError("--partition needs --topic")
    if from_offset is not None and (partition is None or at is not None):
        raise click.UsageError("--from needs --topic and --partition, and goes without --at")
    since = None if at is None else moment(at, "--at")
    reads = values != "none" or key is not None
    look = _Look(states, limit, key, values, since)

    async def call(session: CommandSession) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for name, number in await _places(session, group, topic, partition):
            found.append(await look.partition(session, group, name, number, from_offset, records=reads))
        return found

    found = run(url, call, groups=True)
    if as_json:
        emit_json(found)
        return
    _show(group, found, records=reads, values=values != "none")


async def _places(
    session: CommandSession, group: str, topic: str | None, partition: int | None
) -> list[tuple[str, int]]:
    """The partitions that are meant. Raises: Failure, ServerError."""
    if topic is not None and partition is not None:
        return [(topic, partition)]
    if topic is not None:
        return [(topic, number) for number in range((await session.admin.describe_topic(topic)).partitions)]
    found = await session.admin.places(group)
    if not found:
        raise Failure(f"group {group} has begun with no topic yet; its members begin when they fetch")
    return found


class _Look:
    """The filters to apply to each partition."""

    def __init__(self, states: Sequence[str], limit: int, key: str | None, values: str, since: datetime | None) -> None:
        """since: begin at the first record of then."""
        self._since = since
        self._states = states
        self._limit = limit
        self._key = None if key is None else key.encode()
        self._values = values

    async def partition(
        self, session: CommandSession, group: str, topic: str, partition: int, begin: int | None, *, records: bool
    ) -> dict[str, Any]:
        """Facts and rows of one partition."""
        since = self._since
        most = PAGE if records else min(self._limit, PAGE)
        rows: list[dict[str, Any]] = []
        first: BrowsePage | None = None
        looked, more = 0, True
        at = begin if since is None else await session.admin.offset_at(topic, partition, since)
        while more and len(rows) < self._limit:
            page = await session.admin.browse(group, topic, partition, from_offset=at, limit=most, states=self._states)
            if first is None and since is None:
                _check_begin(page, begin)
            first = first or page
            if records:
                looked += await self._records(session, page, rows, LOOKED_MAX - looked)
            else:
                rows += _rows(page)
            more = page.next is not None and looked < LOOKED_MAX
            at = page.next
        assert first is not None
        if looked >= LOOKED_MAX:
            say(f"{topic}-{partition}: {looked} records were looked at; --from goes on behind them", err=True)
        cut = more or len(rows) > self._limit
        return {**_facts(first), "rows": rows[: self._limit], "more": cut}

    async def _records(self, session: CommandSession, page: BrowsePage, rows: list[dict[str, Any]], room: int) -> int:
        """Add a row for each record of a page, up to the limit; how many were looked at."""
        looked = 0
        for part in _parts(page.runs, min(room, PAGE)):
            at = part[0][0]
            while len(rows) < self._limit:
                wanted = [(max(first, at), last) for first, last in part if last >= at]
                found = await session.admin.records(page.topic, page.partition, wanted)
                rows += self._told(page, found.records)
                end = wanted[-1][1] + 1 if found.next is None else found.next
                looked += sum(min(last, end - 1) - first + 1 for first, last in wanted if first < end)
                if found.next is None:
                    break
                at = found.next
            if len(rows) >= self._limit or looked >= room:
                break
        return looked

    def _told(self, page: BrowsePage, records: Sequence[BrowsedRecord]) -> Iterator[dict[str, Any]]:
        at = 0
        for record in records:
            if self._key is not None and record.key != self._key:
                continue
            while page.runs[at].last < record.offset:
                at += 1
            row = {**_row(page, page.runs[at]), "offset": record.offset, "key": text_of(record.key)}
            del row["first"], row["last"]
            if self._values != "none":
                shown = _SHOWN[self._values]
                row |= {
                    "key": shown(record.key),
                    "value": shown(record.value),
                    "headers": {name: text_of(value) for name, value in record.headers},
                    "timestamp": time_of(record.timestamp_ms) if record.timestamp_ms >= 0 else None,
                    "transaction": record.transaction or None,
                }
            yield row


def _parts(runs: Sequence[BrowsedRun], most: int) -> Iterator[list[Range]]:
    """The offsets of runs in parts of at most so many."""
    part: list[Range] = []
    size = 0
    for first, last in merged((one.first, one.last) for one in runs):
        while first <= last:
            end = min(last, first + most - size - 1)
            part.append((first, end))
            size += end - first + 1
            if size >= most:
                yield part
                part, size = [], 0
            first = end + 1
    if part:
        yield part


def _check_begin(page: BrowsePage, begin: int | None) -> None:
    """Raises: Failure (nothing can stand there)."""
    if begin is None or not page.initialised or begin <= page.end_offset or page.log_end < 0:
        return
    where = f"{page.topic}-{page.partition}"
    if begin > page.log_end:
        raise Failure(f"{where} ends at offset {page.log_end - 1}; --from takes one up to that")
    raise Failure(
        f"nothing of {where} was handed out from offset {page.end_offset} on yet; the window of {page.group_id} is "
        f"{page.start_offset} to {page.end_offset - 1}"
    )


def _facts(page: BrowsePage) -> dict[str, Any]:
    names = ("topic", "partition", "kind", "loaded", "start_offset", "end_offset", "log_start", "log_end")
    return {
        **{name: getattr(page, name) for name in names},
        "last_stable": page.last_stable,
        "leader": page.leader if page.leader >= 0 else None,
        "taken": time_of(page.taken_ms),
        "order": page.order or None,
        "claims": [one._asdict() for one in page.claims],
        "unknown": page.unknown or None,
    }


def _rows(page: BrowsePage) -> list[dict[str, Any]]:
    rows = [_row(page, one) for one in page.runs]
    rows += [{"first": one.first, "last": one.last, "state": f"none ({one.why})"} for one in page.holes]
    return sorted(rows, key=lambda row: (row["first"], row["last"]))


def _row(page: BrowsePage, one: BrowsedRun) -> dict[str, Any]:
    return {
        "first": one.first,
        "last": one.last,
        "state": one.state,
        "attempts": one.delivery_count,
        "member": one.member_id or None,
        "due_ms": one.due_ms or None,
        "until": f"in {age(max(0, one.due_ms - page.taken_ms) / 1000)}" if one.due_ms else None,
        "behind": one.head if one.head >= 0 else None,
    }


def _as_json(value: bytes | None) -> object:
    try:
        return None if value is None else json.loads(value)
    except ValueError:
        return text_of(value)


_SHOWN: Final[dict[str, Callable[[bytes | None], object]]] = {
    "text": text_of,
    "json": _as_json,
    "hex": lambda value: None if value is None else value.hex(),
}


def _show(group: str, found: Sequence[dict[str, Any]], *, records: bool, values: bool) -> None:
    rows: list[dict[str, Any]] = []
    for part in found:
        where = f"{part['topic']}-{part['partition']}"
        if part["start_offset"] < 0:
            say(f"{where}: group {group} has begun nothing here; its log is {part['log_start']} to {part['log_end']}")
        else:
            say(
                f"{where}: window {part['start_offset']} to {part['end_offset']}, log {part['log_start']} to "
                f"{part['log_end']}, at {part['taken']}{'' if part['loaded'] else ', as stored'}"
            )
        if part["unknown"]:
            say(f"{where}: {part['unknown']}")
        rows += [{"topic": part["topic"], "partition": part["partition"], **row} for row in part["rows"]]
        if part["more"]:
            say(f"{where}: there is more; --limit shows more, --from goes on", err=True)
    for row in rows:
        for name in ("key", "value"):
            if name in row:
                row[name] = _short(row[name])
    columns = {**(_RECORDS if records else _RUNS), **(headings("value") if values else {})}
    right = ("partition", "first", "last", "offset", "attempts", "behind")
    show(rows, columns, as_json=False, empty="nothing stands there", right=right, spare=_SPARE)


def _short(value: object) -> str | None:
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN_MAX else f"{text[: SHOWN_MAX - 1]}…"


# --- acting -----------------------------------------------------------------------------------------------------------


def _show_done(deed: Deed) -> Callable[..., None]:
    """Return the function that prints what an intervention did."""

    def show_done(
        found: Sequence[Intervened], *, group: str, topic: str, partition: int, dry_run: bool, as_json: bool, **_: Any
    ) -> None:
        rows = [one._asdict() for one in found]
        columns = headings("first", "last", "done", "not_held", "gone", "busy", "blocked", gone="finished")
        show(rows, columns, as_json=as_json, empty="nothing", right=tuple(columns))
        if not as_json and any(row["busy"] for row in rows):
            say("busy: an acknowledgement is being written, or its key is not known yet; try again", err=True)
        if not as_json and any(row["blocked"] for row in rows):
            say(
                f"blocked: it waits for another record of its key; `flowshare groups browse {group}` names that one",
                err=True,
            )
        if dry_run and not as_json:
            say("nothing was changed; leave out --dry-run to do it", err=True)
        _check_done(rows, f"{deed.name} of {group} in {topic}-{partition}", dry_run=dry_run)

    return show_done


def _check_done(rows: Sequence[Mapping[str, Any]], deed: str, *, dry_run: bool) -> None:
    """Raises: Failure, when nothing was, or would be, done: a script is not to go on as if it were."""
    if any(row["done"] for row in rows):
        return
    counts = {name: sum(row[name] for row in rows) for name in ("not_held", "gone", "busy", "blocked")}
    words = {"not_held": "are in no state for that, or were handed out to nobody yet", "gone": "are finished"}
    why = ", ".join(f"{count} {words.get(name, f'are {name}')}" for name, count in counts.items() if count)
    raise Failure(f"{deed}: nothing {'would be' if dry_run else 'was'} done: {why or 'no record stands there'}")


def _show_ended(count: int, *, group: str, dry_run: bool, as_json: bool, **_: Any) -> None:
    if as_json:
        emit_json({"group": group, "records": count, "dry_run": dry_run})
        return
    say(f"{count} delayed records {'would come' if dry_run else 'come'} now")


COMMANDS: Final = (
    browse,
    *(command(deed, _show_done(deed)) for act in INTERVENTIONS if (deed := DEEDS[f"groups {act.replace('_', '-')}"])),
    command(DEEDS["groups end-delays"], _show_ended),
)
