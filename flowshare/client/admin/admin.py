"""`ShareAdmin`: manages topics and share groups, their offsets and settings, and reads records without a group.

Each call raises `ServerError` when the server refuses (the text says what to do), `NotConnected` when no server can be
reached in time, and `ConnectionLost` when a change may or may not have been made. Requests that only read are sent
again instead.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeVar

from flowshare.client.admin.browsing import ActName, BrowsePage, Intervened, RecordsPage
from flowshare.client.admin.internal_topics import deletes_internal, what_is_lost
from flowshare.client.admin.reading import read_within
from flowshare.client.arguments import checked, settings_of
from flowshare.client.errors import ConnectionLost, NotConnected, ServerError, check
from flowshare.client.groups.reading import tell_damaged
from flowshare.client.net.link import Connect, Link
from flowshare.client.settings import MIB, LinkSettings
from flowshare.protocol import messages
from flowshare.protocol.aborted import AbortedBatches
from flowshare.protocol.batches import DecodedRecord, batch_headers
from flowshare.protocol.each_record import Unreadable
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.headers import frames
from flowshare.share.breaker import BreakerState

if TYPE_CHECKING:
    from flowshare.client.admin.browser import Browser
    from flowshare.client.admin.cooperative import CooperativeAdmin
    from flowshare.client.admin.watching import ShareWatch
    from flowshare.clock import Clock

R = TypeVar("R")
TRIES_MAX: Final = 5
PAUSED: Final = "share.paused"
MAX_IN_FLIGHT: Final = "share.max.in.flight"
MAX_RATE: Final = "share.max.rate"
BREAKER: Final = "share.breaker.failure.percent"
"""The setting of a group's circuit breaker: any value but 0 gives the group a breaker."""
KEY_ORDER: Final = "share.key.order"
TAKEN_UP_S: Final = 10.0
"""The longest wait, in seconds, for new settings of a group to take effect; always this long where the server reports a
value in another form than it was set."""
TAKEN_UP_LOOK_S: Final = 0.05

ResetTarget = Literal["earliest", "latest"] | int | datetime
"""The target of an offset reset: an end of the log, an offset, or the first record at or after a moment (with a
zone)."""


class PartitionBounds(NamedTuple):
    """Offsets of one partition's log: the first offset in the log, and the next offset to be written."""

    log_start: int
    high_watermark: int


class BatchFacts(NamedTuple):
    """The timestamp of a record (−1: none), and the mean size in the log of a record of its batch, in bytes."""

    timestamp_ms: int
    record_bytes: float


class OffsetReset(NamedTuple):
    """The move of one share-partition. before: the old start offset, −1: none. lag: records from `after` on."""

    topic: str
    partition: int
    before: int
    after: int
    lag: int


@checked
class ShareAdmin:
    """Manages topics and share groups. Call all methods on one event loop.

    Each method raises TypeError at once if an argument does not have the declared type.
    """

    def __init__(
        self,
        connect: Connect,
        *,
        clock: Clock,
        settings: LinkSettings | None = None,
        client_id: str = "admin",
    ) -> None:
        """Store the settings; the connection is opened at the first call."""
        self._clock = clock
        self._link = Link(connect, clock=clock, settings=settings_of(settings, LinkSettings), name=client_id)

    async def close(self) -> None:
        """Close the connection."""
        await self._link.close()

    @property
    def connected(self) -> bool:
        """True if the connection is open; one to a cluster is, whatever brokers are reached."""
        return self._link.current is not None

    async def ping(self) -> None:
        """Ask the server for a minimal answer, once and without a retry. Raises: NotConnected, ConnectionLost."""
        await self._link.send(messages.MetadataRequest(topics=()))

    # --- topics -------------------------------------------------------------------------------------------------

    async def list_topics(self) -> list[messages.TopicMetadata]:
        """Return all topics, sorted by name."""
        answer = await self._ask(messages.MetadataRequest(topics=None))
        return sorted(answer.topics, key=lambda topic: topic.name)

    async def describe_topics(self, names: Collection[str]) -> list[messages.TopicMetadata]:
        """Return those of the named topics that exist and may be seen, with one request."""
        asked = tuple(names)
        answer = await self._ask(messages.MetadataRequest(topics=asked)) if asked else None
        return [topic for topic in answer.topics if topic.error is ErrorCode.NONE] if answer else []

    async def describe_topic(self, name: str) -> messages.TopicMetadata:
        """Return the metadata of one topic. Raises: ServerError (UNKNOWN_TOPIC_OR_PARTITION)."""
        answer = await self._ask(messages.MetadataRequest(topics=(name,)))
        for topic in answer.topics:
            if topic.name == name:
                check(topic.error, None, f"topic {name}")
                return topic
        raise ServerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, about=f"topic {name}")

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        configs: Mapping[str, str] | None = None,
        exist_ok: bool = False,
        dry_run: bool = False,
    ) -> None:
        """Create a topic. exist_ok: an existing topic is no error. dry_run: only check if the topic can be created."""
        answer = await self._link.send(
            messages.CreateTopicRequest(
                name=name, partitions=partitions, configs=dict(configs or {}), validate_only=dry_run
            )
        )
        if not (exist_ok and answer.error is ErrorCode.TOPIC_ALREADY_EXISTS):
            check(answer.error, answer.message, f"creating topic {name}")

    async def delete_topic(self, name: str, *, internal: bool = False) -> None:
        """Remove a topic with its records.

        internal: remove also an internal topic of Kafka or flowshare (its name begins with `__`).
        Raises: ServerError (POLICY_VIOLATION: the topic is internal, the text says what would be lost; …).
        """
        if not internal and (lost := what_is_lost(name)) is not None:
            check(ErrorCode.POLICY_VIOLATION, deletes_internal(name, lost), f"deleting topic {name}")
        answer = await self._link.send(messages.DeleteTopicRequest(name=name))
        check(answer.error, answer.message, f"deleting topic {name}")

    async def create_partitions(self, name: str, total: int, *, breaks_order: bool = False) -> None:
        """Raise a topic's number of partitions to `total`.

        breaks_order: do so also where a group reads the topic in key order (`ordered_groups`). The order does not hold
        over the change: a key's next records may go to another partition. Kafka's brokers do not check this.
        Raises: ServerError (POLICY_VIOLATION: such a group exists; UNKNOWN_TOPIC_OR_PARTITION, …).
        """
        request = messages.CreatePartitionsRequest(name=name, total=total, breaks_order=breaks_order)
        answer = await self._link.send(request)
        check(answer.error, answer.message, f"adding partitions to topic {name}")

    async def topic_configs(self, name: str) -> list[messages.ConfigEntry]:
        """Return a topic's settings, defaults included."""
        return await self._configs("topic", name)

    async def alter_topic_configs(self, name: str, configs: Mapping[str, str | None], *, dry_run: bool = False) -> None:
        """Set (None: unset) settings of a topic. dry_run: only check them."""
        await self._alter_configs("topic", name, configs, dry_run)

    async def broker_configs(self) -> list[messages.ConfigEntry]:
        """Return the settings of one broker of a cluster, defaults included. Raises: ServerError (the server is in this
        process)."""
        nodes = (await self._ask(messages.MetadataRequest(topics=()))).nodes
        if not nodes:
            check(ErrorCode.INVALID_REQUEST, "there are no brokers: the server is in this process", "broker settings")
        return await self._configs("broker", str(min(nodes)))

    async def alter_broker_configs(self, configs: Mapping[str, str | None], *, dry_run: bool = False) -> None:
        """Set (None: unset) settings of all brokers together, or of a fleet. dry_run: only check them."""
        await self._alter_configs("broker", "", configs, dry_run)

    async def group_kind(self, group_id: str) -> str | None:
        """Return the kind of a group (share, consumer, classic, …) in lower case; None: the group does not exist."""
        answer = await self._ask(messages.ListGroupsRequest())
        check(answer.error, None, "listing groups")
        return next((group.type.lower() for group in answer.groups if group.group_id == group_id), None)

    async def offsets(self, topic: str, partition: int, *, committed: bool = False) -> PartitionBounds:
        """Return the first and the next offset of a partition's log. committed: the log ends at the first open
        transaction."""
        start = await self._offset(topic, partition, messages.EARLIEST)
        return PartitionBounds(start, await self._offset(topic, partition, messages.LATEST, committed=committed))

    async def log_end(self, topic: str, partition: int) -> int:
        """Return the next offset of a partition's log."""
        return await self._offset(topic, partition, messages.LATEST)

    async def peek(self, topic: str, partition: int, offset: int) -> BatchFacts | None:
        """Return facts on the first record from `offset` on, read from one batch; None: the batch has no record there
        any more."""
        answer = await self._fetch(topic, partition, offset, max_bytes=1)
        if answer.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            return None
        check(answer.error, answer.message, f"reading {topic}-{partition}@{offset}")
        for header in batch_headers(answer.records):
            batch = answer.records[header.position : header.position + header.size]
            for record in await read_within(batch, offset, limit=1, damaged=[]):
                return BatchFacts(record.timestamp_ms, header.size / max(1, header.record_count))
        return None

    async def offset_at(self, topic: str, partition: int, moment: datetime) -> int:
        """Return the first offset at or after `moment` (with a zone); the log's next offset if no record is that
        late."""
        found = await self._offset(topic, partition, _timestamp_ms(moment))
        return found if found >= 0 else await self._offset(topic, partition, messages.LATEST)

    async def delete_records(self, topic: str, partition: int, before: int) -> int:
        """Delete the records below offset `before` (−1: all); return the new log start."""
        answer = await self._link.send(messages.DeleteRecordsRequest(topic=topic, partition=partition, before=before))
        check(answer.error, answer.message, f"deleting records of {topic}-{partition}")
        return answer.log_start

    async def read(
        self,
        topic: str,
        partition: int,
        offset: int = 0,
        *,
        limit: int = 100,
        bytes_max: int | None = None,
        committed: bool = True,
    ) -> list[DecodedRecord]:
        """Read up to `limit` records from `offset` on, without any group.

        Offsets that the log no longer has are skipped, and so are records that cannot be read, with a warning.

        bytes_max: stop fetching after so many bytes of the log; the result may then be shorter. committed: leave out
        records of transactions that are open or were aborted.
        """
        found: list[DecodedRecord] = []
        taken = 0
        while len(found) < limit and (bytes_max is None or taken < bytes_max):
            answer = await self._fetch(topic, partition, offset, committed=committed)
            if answer.error is ErrorCode.OFFSET_OUT_OF_RANGE:
                log_start = await self._offset(topic, partition, messages.EARLIEST)
                if offset >= log_start:
                    break
                offset = log_start
                continue
            check(answer.error, answer.message, f"reading {topic}-{partition}@{offset}")
            headers = tuple(frames(answer.records, partial_tail=True))
            if not headers:
                break
            damaged: list[Unreadable] = []
            found += await read_within(_counting(answer), offset, limit=limit - len(found), damaged=damaged)
            tell_damaged(topic, partition, damaged)
            offset = headers[-1].last_offset + 1
            taken += len(answer.records)
        return found[:limit]

    # --- groups -------------------------------------------------------------------------------------------------

    async def list_groups(self, *, states: Sequence[str] = ()) -> list[messages.ListedGroup]:
        """Return the share groups, sorted by name. states: only groups in one of these states (Empty, Stable)."""
        answer = await self._ask(messages.ListGroupsRequest(states=tuple(states), types=("share",)))
        check(answer.error, None, "listing groups")
        return sorted(answer.groups, key=lambda group: group.group_id)

    async def describe_group(self, group_id: str) -> messages.GroupDescription:
        """Return a group's state, epochs and members with their assignments. Raises: ServerError
        (GROUP_ID_NOT_FOUND)."""
        group = await self._ask(messages.ShareGroupDescribeRequest(group_id=group_id))
        check(group.error, group.message, f"group {group_id}")
        return group

    async def group_offsets(
        self, group_id: str, topics: Sequence[str] | None = None
    ) -> list[messages.SharePartitionOffsets]:
        """Return start offset, lag and more of each share-partition of `topics`; None: of all that the group has."""
        wanted: dict[str, tuple[int, ...]] | None = None
        if topics is not None:
            wanted = {name: tuple(range((await self.describe_topic(name)).partitions)) for name in topics}
        answer = await self._ask(messages.DescribeShareGroupOffsetsRequest(group_id=group_id, topics=wanted))
        check(answer.error, answer.message, f"offsets of group {group_id}")
        for part in answer.partitions:
            check(part.error, part.message, f"offsets of group {group_id} for {part.topic}-{part.partition}")
        return sorted(answer.partitions, key=lambda part: (part.topic, part.partition))

    async def parked_keys(self, group_id: str) -> messages.ParkedKeysResponse:
        """Return a group's parked keys and its order setting. Raises: ServerError (GROUP_ID_NOT_FOUND), Unsupported."""
        answer = await self._ask(messages.ParkedKeysRequest(group_id=group_id))
        check(answer.error, answer.message, f"parked keys of group {group_id}")
        return answer

    async def change_parked_key(
        self, group_id: str, act: Literal["replay", "unpark"], topic: str, partition: int, key: bytes
    ) -> messages.ParkedKeyTold | None:
        """Begin a replay of a parked key, or unpark the key; return the facts on the key, None: the key is not parked.

        Raises: ServerError, Unsupported, ConnectionLost (the key may or may not be changed).
        """
        request = messages.ParkedKeysRequest(group_id=group_id, act=act, topic=topic, partition=partition, key=key)
        answer = await self._link.send(request)
        check(answer.error, answer.message, f"{act} of a parked key of group {group_id}")
        return answer.keys[0] if answer.keys else None

    async def breaker(self, group_id: str) -> messages.ShareBreakerResponse:
        """Return the state of a group's circuit breaker; `closed` also if the group has none. Raises: ServerError,
        Unsupported."""
        return await self._breaker(messages.ShareBreakerRequest(group_id=group_id))

    async def close_breaker(self, group_id: str) -> None:
        """Close a group's circuit breaker by hand: the group hands out records again. Raises: ServerError, Unsupported,
        ConnectionLost (the breaker may or may not be closed)."""
        answer = await self._link.send(messages.ShareBreakerRequest(group_id=group_id, act="close"))
        check(answer.error, answer.message, f"breaker of group {group_id}")

    async def report_outcomes(
        self,
        group_id: str,
        member_id: str,
        outcomes: tuple[int, int, int, int],
        known: tuple[BreakerState, int, int] = (BreakerState.CLOSED, 0, 0),
    ) -> messages.ShareBreakerResponse:
        """Report a member's counts since its start (`share.breaker.Outcomes`); return the state of the group's breaker.

        known: the breaker's state as the member knows it, milliseconds until the next trial, and for how many it is
        open.
        Raises: ServerError (UNKNOWN_MEMBER_ID, …), Unsupported.
        """
        request = messages.ShareBreakerRequest(
            group_id=group_id, act="report", member_id=member_id, outcomes=outcomes, known=known
        )
        return await self._breaker(request)

    async def _breaker(self, request: messages.ShareBreakerRequest) -> messages.ShareBreakerResponse:
        """Ask, or report, which may be repeated: a report has the counts since the member's start."""
        answer = await self._ask(request)
        check(answer.error, answer.message, f"breaker of group {request.group_id}")
        return answer

    async def reset_offsets(
        self, group_id: str, *, to: ResetTarget, topics: Sequence[str] | None = None, dry_run: bool = False
    ) -> list[OffsetReset]:
        """Move the start offsets of a group without members, in `topics` (None: in all that the group has).

        An offset outside the log is moved to its nearer end. dry_run: change nothing, return the moves that would be
        made.
        Raises: ServerError (NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND, …).
        """
        moves: list[OffsetReset] = []
        for part in await self.group_offsets(group_id, topics):
            bounds = await self.offsets(part.topic, part.partition)
            after = await self._target(part.topic, part.partition, to, bounds)
            lag = bounds.high_watermark - after
            moves.append(OffsetReset(part.topic, part.partition, part.start_offset, after, lag))
        if not dry_run and moves:
            await self.place_group(group_id, {(move.topic, move.partition): move.after for move in moves})
        return moves

    async def place_group(
        self,
        group_id: str,
        offsets: Mapping[tuple[str, int], int],
        finished: Mapping[tuple[str, int], Sequence[tuple[int, int]]] | None = None,
    ) -> None:
        """Set the start offsets of a group without members, by topic and partition; the group is created if it does not
        exist.

        finished: ranges behind the start that count as processed; only flowshare's own servers accept them.
        Raises: ServerError (NON_EMPTY_GROUP, UNKNOWN_TOPIC_OR_PARTITION, …), Unsupported (finished at a Kafka broker).
        """
        ranges = {at: tuple(sorted(known)) for at, known in (finished or {}).items() if known}
        request = messages.AlterShareGroupOffsetsRequest(group_id=group_id, offsets=offsets, finished=ranges)
        answer = await self._link.send(request)
        check(answer.error, answer.message, f"moving group {group_id}")
        for part in answer.partitions:
            check(part.error, part.message, f"moving group {group_id} in {part.topic}-{part.partition}")

    async def finished_ranges(self, group_id: str, part: messages.SharePartitionOffsets) -> list[tuple[int, int]]:
        """Return the finished offset ranges of a share-partition from its start offset on, as its coordinator has
        stored them.

        Raises: ServerError (CLUSTER_AUTHORIZATION_FAILED: only brokers have this right), Unsupported.
        """
        if part.topic_id is None:
            return []
        answer = await self._ask(
            messages.ReadShareGroupStateRequest(
                group_id=group_id, topic_id=part.topic_id, partition=part.partition, leader_epoch=part.leader_epoch
            )
        )
        check(answer.error, answer.message, f"state of group {group_id} in {part.topic}-{part.partition}")
        runs = () if answer.state is None else answer.state.runs
        return [(run.first, run.last) for run in runs if run.state.terminal]

    async def consumer_members(self, group_id: str) -> int:
        """Return the number of members of a consumer group (classic protocol); 0: the group does not exist."""
        answer = await self._ask(messages.DescribeGroupRequest(group_id=group_id))
        return len(answer.members)

    async def committed_offsets(self, group_id: str) -> list[messages.FetchedOffset]:
        """Return the committed offsets of a consumer group, sorted by topic and partition; empty if the group does not
        exist."""
        answer = await self._ask(messages.OffsetFetchRequest(group_id=group_id))
        if answer.error is ErrorCode.GROUP_ID_NOT_FOUND:
            return []
        check(answer.error, answer.message, f"committed offsets of consumer group {group_id}")
        for part in answer.partitions:
            check(part.error, None, f"committed offset of consumer group {group_id} in {part.topic}-{part.partition}")
        return sorted(answer.partitions, key=lambda part: (part.topic, part.partition))

    async def commit_offsets(self, group_id: str, offsets: Sequence[messages.OffsetToCommit]) -> None:
        """Set the committed offsets of a consumer group without members, each with a text for its partition (metadata).

        Brokers delete them some time after the last commit (offsets.retention.minutes, a week by default).
        """
        answer = await self._link.send(messages.OffsetCommitRequest(group_id=group_id, offsets=tuple(offsets)))
        for part in answer.partitions:
            check(part.error, answer.message, f"offset of consumer group {group_id} in {part.topic}-{part.partition}")

    async def delete_offsets(self, group_id: str, topics: Sequence[str]) -> None:
        """Delete the positions of a group without members in these topics."""
        answer = await self._link.send(messages.DeleteShareGroupOffsetsRequest(group_id=group_id, topics=tuple(topics)))
        check(answer.error, answer.message, f"deleting offsets of group {group_id}")
        for topic in answer.topics:
            check(topic.error, topic.message, f"deleting offsets of group {group_id} for {topic.topic}")

    async def delete_group(self, group_id: str) -> None:
        """Remove a group that has no members, with its positions."""
        answer = await self._link.send(messages.DeleteGroupsRequest(group_ids=(group_id,)))
        for group in answer.groups:
            check(group.error, group.message, f"deleting group {group.group_id}")

    async def group_configs(self, group_id: str) -> list[messages.ConfigEntry]:
        """Return a group's settings, defaults included."""
        return await self._configs("group", group_id)

    async def alter_group_configs(
        self, group_id: str, configs: Mapping[str, str | None], *, dry_run: bool = False
    ) -> None:
        """Set (None: unset) settings of a group, which need not exist yet. dry_run: only check them.

        Brokers apply settings some time after their answer, and a share-partition starts with the settings of that
        moment. So this call returns when the server reports the new settings, or after `TAKEN_UP_S`.
        """
        await self._alter_configs("group", group_id, configs, dry_run)
        if dry_run or not configs:
            return
        until_s = self._clock.monotonic() + TAKEN_UP_S
        while self._clock.monotonic() < until_s:
            try:
                entries = await self.group_configs(group_id)
            except ServerError as error:
                if error.retriable:
                    raise
                return  # they may be set but not seen
            if all(_is_told(entry, configs[entry.name]) for entry in entries if entry.name in configs):
                return
            await self._clock.sleep(TAKEN_UP_LOOK_S)

    async def ordered_groups(self, topic: str) -> list[str]:
        """Return the groups that read a topic in key order, sorted by name, as far as their offsets and settings may be
        seen.

        Raises: ServerError.
        """
        found: list[str] = []
        for group in await self.list_groups():
            try:
                parts = await self.group_offsets(group.group_id)
                entries = await self.group_configs(group.group_id) if any(one.topic == topic for one in parts) else []
            except ServerError as error:
                if error.retriable:
                    raise
                continue  # it has gone meanwhile, or may not be seen
            if any(entry.name == KEY_ORDER and entry.value for entry in entries):
                found.append(group.group_id)
        return found

    async def pause_group(self, group_id: str) -> None:
        """Pause a group: no member acquires more of its records. Members can settle and renew the records that they
        hold.

        The pause lasts until `resume_group`, restarts included. Raises: ServerError (Kafka's brokers cannot).
        """
        await self.alter_group_configs(group_id, {PAUSED: "true"})

    async def resume_group(self, group_id: str) -> None:
        """End a group's pause: waiting fetches get records at once. Raises: ServerError (Kafka's brokers cannot)."""
        await self.alter_group_configs(group_id, {PAUSED: None})

    # --- looking, and acting on what others hold (`browsing`) ------------------------------------------------------

    async def places(self, group_id: str) -> list[tuple[str, int]]:
        """Return topic and partition of all that a group of any kind has begun with; the server loads nothing for this.

        Raises: ServerError (GROUP_ID_NOT_FOUND, …).
        """
        return await self._browser.places(group_id)

    async def browse(
        self,
        group_id: str,
        topic: str,
        partition: int,
        *,
        from_offset: int | None = None,
        limit: int = 1_000,
        states: Collection[str] = (),
    ) -> BrowsePage:
        """Show the records of one partition and their states for a group of any kind, from `from_offset` on.

        Returns at most `limit` runs and holes (10,000 at most). Reading acquires, counts, loads and writes nothing.

        states: return only runs in one of these states; empty: all runs, and holes. Raises: ServerError
        (GROUP_ID_NOT_FOUND, UNKNOWN_TOPIC_OR_PARTITION, …), ValueError (there is no such state).
        """
        return await self._browser.page(group_id, topic, partition, from_offset, limit, states)

    def browse_all(
        self,
        group_id: str,
        topic: str,
        partition: int,
        *,
        from_offset: int | None = None,
        limit: int = 10_000,
        states: Collection[str] = (),
        pages_max: int = 1_000,
    ) -> AsyncIterator[BrowsePage]:
        """Yield all pages, each with the state of its own moment, at most `pages_max`. The last page's `next` tells if
        more exist."""
        return self._browser.pages(group_id, topic, partition, from_offset, limit, states, pages_max)

    async def records(
        self, topic: str, partition: int, ranges: Sequence[tuple[int, int]], *, max_bytes: int = MIB
    ) -> RecordsPage:
        """Return the raw records at these offsets, of open and aborted transactions, too. Needs READ on the topic.

        ranges: first and last offset of each, ascending and disjoint. max_bytes: reading ends behind the batch that
        reaches it.
        Raises: ServerError, ValueError.
        """
        return await self._browser.records(topic, partition, ranges, max_bytes)

    async def intervene(
        self,
        group_id: str,
        topic: str,
        partition: int,
        ranges: Sequence[tuple[int, int]],
        act: ActName,
        *,
        dry_run: bool = False,
    ) -> list[Intervened]:
        """Act on records of a share group that members hold or that wait; return the durable outcome of each range.

        release: held records are available again; the member is told so when it acknowledges. reject: the records are
        finished, and no copy is kept. dead_letter: the records become dead letters in
        errors.deadletterqueue.topic.name. now: a delayed record comes at once. ranges: as for `records`; at most 1,000
        ranges and 10,000 records.
        Raises: ServerError, ValueError, Unsupported (Kafka's brokers cannot).
        """
        return await self._browser.intervene(group_id, topic, partition, ranges, act, dry_run=dry_run)

    async def end_delays(self, group_id: str, *, rate: float = 100.0, dry_run: bool = False) -> int:
        """End the delays of all delayed records of a share group, `rate` records a second; return the number of
        records.

        Records that are delayed anew meanwhile stay delayed. Raises: as `browse` and `intervene`.
        """
        return await self._browser.end_delays(group_id, rate, dry_run=dry_run)

    @property
    def _browser(self) -> Browser:
        from flowshare.client.admin.browser import Browser

        return Browser(self, ask=self._ask, send=self._link.send, clock=self._clock)

    def watch(self) -> ShareWatch:
        """Return a watch over all share-partitions: after the first look the servers send only changes."""
        from flowshare.client.admin.watching import ShareWatch

        return ShareWatch(self._ask)

    @property
    def cooperative(self) -> CooperativeAdmin:
        """Return the same calls for cooperative groups."""
        from flowshare.client.admin.cooperative import CooperativeAdmin

        return CooperativeAdmin(self, ask=self._ask, send=self._link.send, target=self._target)

    # --- helpers ------------------------------------------------------------------------------------------------

    async def _ask(self, request: messages.Request[R]) -> R:
        """Send a request that only reads; send it again, `TRIES_MAX` times in all, when the connection is lost on the
        way, or the cluster's broker for it is not reached."""
        for tries in range(1, TRIES_MAX):
            try:
                return await self._link.send(request)
            except (ConnectionLost, NotConnected) as error:
                if isinstance(error, NotConnected) and not self.connected:  # connecting was tried for its full time
                    raise
                await self._clock.sleep(self._link.pause_s(tries))
        return await self._link.send(request)

    async def _configs(self, resource_type: str, resource: str) -> list[messages.ConfigEntry]:
        answer = await self._ask(messages.DescribeConfigsRequest(resource_type=resource_type, resource=resource))
        check(answer.error, answer.message, f"settings of {resource_type} {resource}")
        return sorted(answer.entries, key=lambda entry: entry.name)

    async def _alter_configs(
        self, resource_type: str, resource: str, configs: Mapping[str, str | None], dry_run: bool
    ) -> None:
        answer = await self._link.send(
            messages.IncrementalAlterConfigsRequest(
                resource_type=resource_type, resource=resource, configs=dict(configs), validate_only=dry_run
            )
        )
        check(answer.error, answer.message, f"settings of {f'{resource_type} {resource}'.strip()}")

    async def _offset(self, topic: str, partition: int, timestamp_ms: int, *, committed: bool = False) -> int:
        request = messages.ListOffsetsRequest(
            topic=topic, partition=partition, timestamp_ms=timestamp_ms, committed=committed
        )
        answer = await self._ask(request)
        check(answer.error, None, f"offsets of {topic}-{partition}")
        return answer.offset

    async def _fetch(
        self, topic: str, partition: int, offset: int, *, max_bytes: int = 4 * MIB, committed: bool = False
    ) -> messages.FetchedLog:
        asked = messages.FetchPartition(topic, partition, offset, max_bytes)
        request = messages.FetchRequest(partitions=(asked,), max_bytes=max_bytes, committed=committed)
        answer = await self._ask(request)
        check(answer.error, answer.message, f"records of {topic}-{partition}")
        (found,) = answer.partitions
        return found

    async def _target(self, topic: str, partition: int, to: ResetTarget, bounds: PartitionBounds) -> int:
        match to:
            case "earliest":
                return bounds.log_start
            case "latest":
                return bounds.high_watermark
            case datetime():
                return await self.offset_at(topic, partition, to)
            case _:
                return min(max(to, bounds.log_start), bounds.high_watermark)


def _counting(log: messages.FetchedLog) -> bytes:
    """Return the batches of a fetch; of a fetch of committed records without those of aborted transactions."""
    if not log.aborted:
        return log.records
    transactions = AbortedBatches(log.aborted)
    kept = [one for one in frames(log.records, partial_tail=True) if not transactions.skips(one)]
    return b"".join([log.records[one.position : one.position + one.size] for one in kept])


def _timestamp_ms(moment: datetime) -> int:
    if moment.tzinfo is None:
        raise ValueError(f"{moment.isoformat()} names no time zone; add one, for example tzinfo=UTC")
    return round(moment.timestamp() * 1000)


def _is_told(entry: messages.ConfigEntry, wanted: str | None) -> bool:
    """Tell if the server reports a setting with the wanted value (None: unset)."""
    if wanted is None:
        return entry.is_default
    told, asked = entry.value.strip().lower(), wanted.strip().lower()
    return told == asked or (told.lstrip("-").isdecimal() and _number(asked) == int(told))


def _number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None
