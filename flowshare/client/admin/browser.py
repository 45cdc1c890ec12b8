"""`Browser` carries out `ShareAdmin.browse`, `records` and `intervene`: it asks the server that knows the group.

For a share group led by flowshare this is the leader, for a cooperative group the coordinator. Kafka's brokers report
where a share group begins, and its finished records where their state may be read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from flowshare.client.admin.browsing import ActName, BrowsedClaim, BrowsedRecord, BrowsePage, RecordsPage
from flowshare.client.admin.reading import read_within
from flowshare.client.errors import ServerError, Unsupported, check
from flowshare.client.groups.reading import tell_damaged
from flowshare.protocol import messages
from flowshare.protocol.aborted import AbortedBatches
from flowshare.protocol.each_record import Unreadable
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.headers import frames
from flowshare.protocol.messages.browse import RUNS_MAX, ShareBrowseRequest, ShareInterveneRequest, SharePlacesRequest
from flowshare.share.browse import HOLES, RETENTION, Hole, SeenRun, stored_runs, together, wanted_states
from flowshare.share.intervene import Intervened
from flowshare.share.ranges import Range, check_order, minus
from flowshare.share.types import PartitionState

if TYPE_CHECKING:
    from flowshare.client.admin.admin import ShareAdmin
    from flowshare.clock import Clock
    from flowshare.protocol.messages import PartitionOffsets

Ask = Callable[[Any], Awaitable[Any]]
HURRIED_AT_ONCE: Final = 1_000
STEPS_A_SECOND: Final = 10
"""Steps a second in which delayed records are released at a rate."""
PAGES_MAX: Final = 1_000

COOPERATIVE_STATES: Final = frozenset({"committed", "claimed", "free"})
NOT_TOLD: Final = frozenset({ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED})
NATIVE: Final = (
    "Kafka's brokers do not tell which member holds a record, nor until when: what is not finished is free or held, "
    "and they do not say which"
)
NATIVE_BARE: Final = (
    "Kafka's brokers tell where the group begins and its lag only: who may CLUSTER_ACTION on the cluster sees what is "
    "finished behind that, nobody who holds what"
)
BY_KEY: Final = "which member has a record depends on its key: claims say who has which hashes of keys"
STORED: Final = (
    "nobody has loaded this share-partition: it stands here as it was stored, and until when locks hold, and what "
    "waits for its key, is not known"
)


class Browser:
    """Asks the server that knows a group. Errors are those of `ShareAdmin`."""

    def __init__(self, admin: ShareAdmin, *, ask: Ask, send: Ask, clock: Clock) -> None:
        """ask, send: the admin's functions for requests that only read, and for requests that change something."""
        self._admin = admin
        self._ask = ask
        self._send = send
        self._clock = clock

    async def places(self, group_id: str) -> list[tuple[str, int]]:
        """See `ShareAdmin.places`."""
        try:
            answer = await self._ask(SharePlacesRequest(group_id=group_id))
        except Unsupported:
            return [(one.topic, one.partition) for one in await self._admin.group_offsets(group_id)]
        if answer.error is ErrorCode.GROUP_ID_NOT_FOUND and group_id in await self._admin.cooperative.names():
            return [(one.topic, one.partition) for one in await self._admin.cooperative.offsets(group_id)]
        check(answer.error, answer.message, f"partitions of group {group_id}")
        return list(answer.places)

    async def page(
        self, group_id: str, topic: str, partition: int, offset: int | None, limit: int, states: Collection[str]
    ) -> BrowsePage:
        """See `ShareAdmin.browse`."""
        _check_limit(limit)
        share = tuple(sorted(set(states) - COOPERATIVE_STATES))
        wanted_states(share)
        request = ShareBrowseRequest(
            group_id=group_id,
            topic=topic,
            partition=partition,
            offset=-1 if offset is None else max(offset, 0),
            limit=limit,
            states=share,
        )
        asked = _Asked(group_id, topic, partition, offset, limit, tuple(states))
        try:
            answer = await self._ask(request)
        except Unsupported:
            return await self._native(asked)
        about = f"browsing group {group_id} in {topic}-{partition}"
        if answer.error is ErrorCode.GROUP_ID_NOT_FOUND and group_id in await self._admin.cooperative.names():
            return await self._cooperative(asked, about)
        check(answer.error, answer.message, about)
        begun = answer.start_offset >= 0
        return asked.page(
            "share",
            taken_ms=answer.taken_ms,
            loaded=answer.loaded,
            start_offset=answer.start_offset,
            end_offset=answer.end_offset,
            log_start=answer.log_start,
            log_end=answer.log_end,
            last_stable=answer.last_stable,
            leader=answer.leader,
            leader_epoch=answer.leader_epoch,
            next=None if answer.next < 0 else answer.next,
            runs=answer.runs if share or not states else (),
            holes=answer.holes,
            order=answer.order,
            unknown=STORED if begun and not answer.loaded else "",
        )

    async def pages(
        self,
        group_id: str,
        topic: str,
        partition: int,
        offset: int | None,
        limit: int,
        states: Collection[str],
        pages_max: int,
    ) -> AsyncIterator[BrowsePage]:
        """See `ShareAdmin.browse_all`."""
        for _ in range(pages_max):
            page = await self.page(group_id, topic, partition, offset, limit, states)
            yield page
            if page.next is None:
                return
            offset = page.next

    async def intervene(
        self, group_id: str, topic: str, partition: int, ranges: Sequence[Range], act: ActName, *, dry_run: bool
    ) -> list[Intervened]:
        """See `ShareAdmin.intervene`."""
        check_order(ranges)
        request = ShareInterveneRequest(
            group_id=group_id, topic=topic, partition=partition, act=act, ranges=tuple(ranges), dry_run=dry_run
        )
        try:
            answer = await self._send(request)
        except Unsupported:
            raise Unsupported(
                f"Kafka's brokers lead group {group_id}, and take a record away when its lock lapses only: end the "
                "process of the member that hangs, or wait for share.record.lock.duration.ms"
            ) from None
        if answer.error is ErrorCode.GROUP_ID_NOT_FOUND and group_id in await self._admin.cooperative.names():
            raise Unsupported(
                f"{group_id} is a cooperative group, whose members hold keys and not records: stop the member that "
                "hangs, its keys go to others when its lease ends"
            )
        check(answer.error, answer.message, f"{act} in group {group_id}, {topic}-{partition}")
        return list(answer.found)

    async def end_delays(self, group_id: str, per_s: float, *, dry_run: bool) -> int:
        """See `ShareAdmin.end_delays`."""
        if not per_s > 0:
            raise ValueError(f"records come at a rate above 0 a second, not at {per_s}")
        most = HURRIED_AT_ONCE if dry_run else max(1, min(HURRIED_AT_ONCE, int(per_s / STEPS_A_SECOND)))
        total = 0
        for topic, partition in await self.places(group_id):
            found = await self._delayed(group_id, topic, partition)
            for ranges in _in_parts(found, most):
                done = await self.intervene(group_id, topic, partition, ranges, "now", dry_run=dry_run)
                total += sum(one.done for one in done)
                if not dry_run:
                    await self._clock.sleep(sum(last - first + 1 for first, last in ranges) / per_s)
        return total

    async def _delayed(self, group_id: str, topic: str, partition: int) -> list[Range]:
        """Return the offset ranges that are delayed now."""
        found: list[Range] = []
        async for page in self.pages(group_id, topic, partition, None, RUNS_MAX, ("delayed",), PAGES_MAX):
            found += [(run.first, run.last) for run in page.runs]
        return found

    # --- where somebody else leads -----------------------------------------------------------------------------------

    async def _cooperative(self, asked: _Asked, about: str) -> BrowsePage:
        request = messages.CooperativeOffsetsRequest(
            group_id=asked.group_id, topics={asked.topic: (asked.partition,)}, ranges_from=asked.offset or 0
        )
        answer = await self._ask(request)
        check(answer.error, answer.message, about)
        bounds = await self._admin.offsets(asked.topic, asked.partition)
        stable = (await self._admin.offsets(asked.topic, asked.partition, committed=True)).high_watermark
        log = {"log_start": bounds.log_start, "log_end": bounds.high_watermark, "last_stable": stable}
        if not answer.partitions:
            return asked.page("cooperative", taken_ms=self._clock.now_ms(), loaded=False, **log)
        (part,) = answer.partitions
        check(part.error, part.message, about)
        ranges = [] if part.ranges is None else list(zip(part.ranges.firsts, part.ranges.ends, strict=True))
        end = max(part.stable, part.furthest)
        told = ranges[-1][1] if part.more and ranges else end
        runs = list(_cooperative_runs(part, ranges, max(asked.offset or 0, part.stable), told))
        cut = asked.cut(runs, told if told < end else None)
        claims = tuple(BrowsedClaim(one.first, one.end, one.member_id) for one in part.claims)
        return asked.page(
            "cooperative",
            taken_ms=self._clock.now_ms(),
            loaded=True,
            start_offset=part.stable,
            end_offset=end,
            **log,
            **cut,
            claims=claims,
            unknown=BY_KEY if len({one.member_id for one in claims}) > 1 else "",
        )

    async def _native(self, asked: _Asked) -> BrowsePage:
        """Return the page of one of Kafka's own share groups, as far as the brokers report its state."""
        topic = await self._admin.describe_topic(asked.topic)
        if not 0 <= asked.partition < topic.partitions:
            raise ServerError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"it has {topic.partitions} partitions",
                about=f"partition {asked.partition} of topic {asked.topic}",
            )
        wanted = {asked.topic: (asked.partition,)}
        told = await self._ask(messages.DescribeShareGroupOffsetsRequest(group_id=asked.group_id, topics=wanted))
        about = f"offsets of group {asked.group_id} for {asked.topic}-{asked.partition}"
        check(told.error, told.message, about)
        (part,) = told.partitions
        check(part.error, part.message, about)
        if part.start_offset < 0:
            await self._admin.describe_group(asked.group_id)  # of one that there is not the brokers tell the same
        bounds = await self._admin.offsets(asked.topic, asked.partition)
        stable = (await self._admin.offsets(asked.topic, asked.partition, committed=True)).high_watermark
        state, unknown = await self._native_state(asked, part)
        start, runs = max(part.start_offset, state.start_offset), state.runs
        first = max(asked.offset or 0, start)
        end = max(start, runs[-1].last + 1 if runs else start)
        seen = stored_runs(start, runs, wanted_states(asked.share_states), first=first, now_ms=self._clock.now_ms())
        cut = asked.cut(together(seen).runs if start >= 0 else [], None)
        holes: tuple[Hole, ...] = ()
        if 0 <= first < min(bounds.log_start, end) and HOLES in wanted_states(asked.share_states):
            holes = (Hole(first, min(bounds.log_start, end) - 1, RETENTION),)
        return asked.page(
            "native",
            taken_ms=self._clock.now_ms(),
            loaded=False,
            start_offset=start,
            end_offset=end,
            log_start=bounds.log_start,
            log_end=bounds.high_watermark,
            last_stable=stable,
            leader=topic.leaders[asked.partition] if topic.leaders else -1,
            leader_epoch=part.leader_epoch,
            **cut,
            holes=holes,
            unknown=unknown,
        )

    async def _native_state(self, asked: _Asked, part: messages.SharePartitionOffsets) -> tuple[PartitionState, str]:
        """Return the partition's state as the brokers store it, where it may be read, and a text on the missing facts.

        The start offset in the stored state is newer than the one that the brokers report with the lag.
        """
        nothing = PartitionState()
        if part.topic_id is None or part.start_offset < 0:
            return nothing, NATIVE
        try:
            answer = await self._ask(
                messages.ReadShareGroupStateRequest(
                    group_id=asked.group_id,
                    topic_id=part.topic_id,
                    partition=asked.partition,
                    leader_epoch=part.leader_epoch,
                )
            )
        except Unsupported:
            return nothing, NATIVE_BARE
        if answer.error in NOT_TOLD:
            return nothing, NATIVE_BARE
        check(answer.error, answer.message, f"state of group {asked.group_id} in {asked.topic}-{asked.partition}")
        return answer.state or nothing, NATIVE

    # --- records -------------------------------------------------------------------------------------------------

    async def records(
        self, topic: str, partition: int, ranges: Sequence[tuple[int, int]], max_bytes: int
    ) -> RecordsPage:
        """See `ShareAdmin.records`."""
        check_order(ranges)
        found: list[BrowsedRecord] = []
        size, log_start = 0, -1
        for first, last in ranges:
            offset = first
            while offset <= last:
                if size >= max_bytes:
                    return _records_page(found, ranges, offset)
                log = await self._fetch(topic, partition, offset, max_bytes - size)
                if log.error is ErrorCode.OFFSET_OUT_OF_RANGE:
                    log_start = (await self._admin.offsets(topic, partition)).log_start if log_start < 0 else log_start
                    if offset >= log_start:
                        break
                    offset = log_start
                    continue
                check(log.error, log.message, f"reading {topic}-{partition}@{offset}")
                headers = tuple(frames(log.records, partial_tail=True))
                if not headers:
                    break
                found += await self._told(topic, partition, log, (max(first, offset), last))
                size += len(log.records)
                offset = headers[-1].last_offset + 1
        return _records_page(found, ranges, None)

    async def _told(
        self, topic: str, partition: int, log: messages.FetchedLog, wanted: tuple[int, int]
    ) -> list[BrowsedRecord]:
        """Return the wanted records of whole batches, each with the state of its transaction."""
        found: list[BrowsedRecord] = []
        aborted: frozenset[int] | None = None
        for header in frames(log.records, partial_tail=True):
            if header.is_control or header.last_offset < wanted[0] or header.base_offset > wanted[1]:
                continue
            state = ""
            if header.is_transactional:
                if aborted is None:
                    aborted = await self._aborted(topic, partition, wanted[0], len(log.records))
                state = "open" if header.base_offset >= log.last_stable else "committed"
                state = "aborted" if header.base_offset in aborted else state
            batch = log.records[header.position : header.position + header.size]
            damaged: list[Unreadable] = []
            found += [
                BrowsedRecord(one.offset, one.timestamp_ms, one.key, one.value, one.headers, state)
                for one in await read_within(batch, *wanted, damaged=damaged)
            ]
            tell_damaged(topic, partition, damaged)
        return found

    async def _aborted(self, topic: str, partition: int, offset: int, size: int) -> frozenset[int]:
        """Return the base offsets of batches of aborted transactions, in a fetch of `size` bytes from `offset` on."""
        log = await self._fetch(topic, partition, offset, size, committed=True)
        batches = AbortedBatches(log.aborted)
        return frozenset(one.base_offset for one in frames(log.records, partial_tail=True) if batches.skips(one))

    async def _fetch(
        self, topic: str, partition: int, offset: int, max_bytes: int, *, committed: bool = False
    ) -> messages.FetchedLog:
        asked = messages.FetchPartition(topic, partition, offset, max(1, max_bytes))
        request = messages.FetchRequest(partitions=(asked,), max_bytes=max(1, max_bytes), committed=committed)
        answer = await self._ask(request)
        check(answer.error, answer.message, f"records of {topic}-{partition}")
        (found,) = answer.partitions
        assert isinstance(found, messages.FetchedLog)
        return found


class _Asked(NamedTuple):
    """The arguments of one `browse` call."""

    group_id: str
    topic: str
    partition: int
    offset: int | None
    limit: int
    states: tuple[str, ...]

    @property
    def share_states(self) -> tuple[str, ...]:
        """The wanted states that share groups have; empty: all states."""
        return tuple(one for one in self.states if one not in COOPERATIVE_STATES)

    def page(self, kind: str, **facts: Any) -> BrowsePage:
        """Return a page of the asked group and partition with these facts."""
        return BrowsePage(group_id=self.group_id, topic=self.topic, partition=self.partition, kind=kind, **facts)

    def cut(self, runs: Sequence[SeenRun], more: int | None) -> dict[str, Any]:
        """Return the first `limit` wanted runs and the offset to go on at. more: the next offset behind all runs."""
        wanted = [one for one in runs if not self.states or one.state in self.states]
        rest = wanted[self.limit].first if len(wanted) > self.limit else more
        return {"runs": tuple(wanted[: self.limit]), "next": rest}


def _check_limit(limit: int) -> None:
    if not 1 <= limit <= RUNS_MAX:
        raise ServerError(
            ErrorCode.INVALID_REQUEST, f"ask for 1 to {RUNS_MAX} runs at once, not {limit}", about="browsing"
        )


def _cooperative_runs(
    part: PartitionOffsets, ranges: Sequence[tuple[int, int]], first: int, end: int
) -> Iterator[SeenRun]:
    """Yield the runs of a partition from `first` to before `end`. ranges: the committed offsets there."""
    starts = dict(part.starts)
    holders = {one.member_id for one in part.claims}
    state = "claimed" if holders else "free"
    member = next(iter(holders)) if len(holders) == 1 else ""
    begun = [(offset, offset + 1) for offset in sorted(starts)]
    edges = {first, end, *(edge for pairs in (ranges, begun) for pair in pairs for edge in pair)}
    committed = _Within(ranges)
    for low, high in pairwise(sorted(one for one in edges if first <= one <= end)):
        if committed.at(low) is not None:
            yield SeenRun(low, high - 1, "committed")
            continue
        yield SeenRun(low, high - 1, state, starts.get(low, 0), member)


class _Within:
    """Finds the half-open range (ascending, disjoint) that contains an offset; ask for ascending offsets."""

    def __init__(self, ranges: Sequence[tuple[int, int]]) -> None:
        self._ranges = ranges
        self._at = 0

    def at(self, offset: int) -> int | None:
        """Return the index of the range that contains the offset; None: no range does."""
        while self._at < len(self._ranges) and self._ranges[self._at][1] <= offset:
            self._at += 1
        there = self._at < len(self._ranges) and self._ranges[self._at][0] <= offset
        return self._at if there else None


def _records_page(
    found: Sequence[BrowsedRecord], ranges: Sequence[tuple[int, int]], next_offset: int | None
) -> RecordsPage:
    looked = [(first, last) for first, last in ranges if next_offset is None or first < next_offset]
    if next_offset is not None and looked:
        looked[-1] = looked[-1][0], min(looked[-1][1], next_offset - 1)
    missing = minus(looked, [(one.offset, one.offset) for one in found])
    return RecordsPage(records=tuple(found), missing=tuple(missing), next=next_offset)


def _in_parts(ranges: Sequence[Range], most: int) -> Iterator[list[Range]]:
    """Yield the same offsets, in order, in lists of at most `most` offsets."""
    part: list[Range] = []
    room = most
    for first, last in ranges:
        while first <= last:
            end = min(last, first + room - 1)
            part.append((first, end))
            room -= end - first + 1
            first = end + 1
            if not room:
                yield part
                part, room = [], most
    if part:
        yield part
