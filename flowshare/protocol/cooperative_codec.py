"""The calls of cooperative groups as JSON, under flowshare's own API key (`protocol.private`); both ends.

Numbers are as in the messages (`protocol.messages.cooperative`), topic ids are hex, ranges pairs, R two columns.

    cooperative_hold     {group_id, member_id, generation, sequence, lease_ms, mode, drain_timeout_ms,
                         auto_offset_reset, exact_starts, partitions: [[topic id, partition, [[first, end], …],
                         [offset, metadata]?], …]} -> {lease_ms, partitions: [{…}]}
    cooperative_commit   {group_id, member_id, partitions: [[topic id, partition, E, [[first hash, end hash, epoch,
                         [[first, end], …]] or [epoch, [[first, end], …]] or [first hash, end hash, epoch, horizon,
                         [[offset, starts], …]] or [epoch, "starts", [[offset, starts], …]], …]], …]}
                         -> {partitions: [{…, fenced}]}
    cooperative_take     {group_id, member_id, count, max_wait_ms, lease_ms, auto_offset_reset, exact_starts,
                         partitions: [[topic id, partition, [offset, metadata]?], …], renew: [[topic id, partition,
                         [epoch, …]], …], give_back} -> {lease_ms, partitions: [{…, spans}], lost: [[topic id,
                         partition, [epoch, …]], …]}
    cooperative_offsets  {group_id, topics: {name: [partition, …]} or null, ranges_from: offset or null}
                         -> {partitions: [{topic, …}]}
    cooperative_reset    {group_id, topic, partition, offset} -> {reset_epoch}
    cooperative_delete   {group_id, topics: {name: [partition, …]} or null} -> {}

Nothing in a request is trusted: `read_request` checks types and that numbers fit into 62 bits, counts are bounded
by the size of a request and by the handlers. Answers come from a server that the client chose.
"""

from __future__ import annotations

import uuid
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from flowshare.cooperative.types import KeyRange, OffsetRange
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages.cooperative import (
    BlockedKeys,
    CommitEntry,
    CommittedPartition,
    CooperativeCommitRequest,
    CooperativeCommitResponse,
    CooperativeDeleteRequest,
    CooperativeDeleteResponse,
    CooperativeHoldRequest,
    CooperativeHoldResponse,
    CooperativeOffsetsRequest,
    CooperativeOffsetsResponse,
    CooperativeResetRequest,
    CooperativeResetResponse,
    CooperativeTakeRequest,
    CooperativeTakeResponse,
    Entry,
    GroupOffset,
    HeldKeys,
    HeldPartition,
    OffsetColumns,
    PartitionCommit,
    PartitionOffsets,
    PartitionProgress,
    Reach,
    SpanEntry,
    SpanEpochs,
    SpanStartEntry,
    StartEntry,
    TakenFrom,
    TakenPartition,
    TakenSpan,
    ToldClaim,
    ToldWait,
    WantedKeys,
)

Body = dict[str, Any]
NUMBER_MAX: Final = 1 << 62
TEXT_MAX: Final = 4_096
"""The most characters of any text in a request."""
STARTS: Final = "starts"
"""Marks an entry of a commit as one of starts."""


class Malformed(ValueError):
    """A request does not have the form of its call; the text names the field."""


@dataclass(frozen=True, slots=True)
class Call:
    """Writes and reads one call."""

    request: Callable[[Any], Body]
    read_request: Callable[[Mapping[str, Any]], Any]
    answer: Callable[[Any], Body]
    read_answer: Callable[[Body], Any]
    refused: Callable[..., Any]
    """Makes an answer from an error and a message."""


# --- what requests are made of ----------------------------------------------------------------------------------------


def _number(value: object, what: str) -> int:
    if type(value) is not int or not 0 <= value < NUMBER_MAX:
        raise Malformed(f"{what} is no number from 0 to 2**62")
    return value


def _text(value: object, what: str) -> str:
    if not isinstance(value, str) or len(value) > TEXT_MAX:
        raise Malformed(f"{what} is no text of at most {TEXT_MAX} characters")
    return value


def _list(value: object, what: str) -> Sequence[Any]:
    if not isinstance(value, list):
        raise Malformed(f"{what} is no list")
    return cast("list[object]", value)


def _row(value: object, what: str, *lengths: int) -> Sequence[Any]:
    row = _list(value, what)
    if len(row) not in lengths:
        raise Malformed(f"{what} has {len(row)} parts")
    return row


def _id(value: Any) -> uuid.UUID:
    try:
        return uuid.UUID(hex=value)
    except (ValueError, AttributeError, TypeError):
        raise Malformed("a topic id is no UUID in hex") from None


def _pairs(value: Any, what: str) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for one in _list(value, what):
        if isinstance(one, list) and len(pair := cast("list[object]", one)) == 2:
            first, end = pair
            if type(first) is int and type(end) is int and 0 <= first < NUMBER_MAX and 0 <= end < NUMBER_MAX:
                found.append((first, end))
                continue
        raise Malformed(f"{what} holds what is no pair of numbers")
    return found


def _committed(row: Sequence[Any], at: int) -> GroupOffset | None:
    if len(row) <= at or row[at] is None:
        return None
    offset, metadata = _row(row[at], "a committed offset", 2)
    text = _text(metadata, "the metadata of an offset")
    return GroupOffset(-1, text) if offset == -1 else GroupOffset(_number(offset, "a committed offset"), text)


def _place(row: Sequence[Any]) -> tuple[uuid.UUID, int]:
    return _id(row[0]), _number(row[1], "a partition")


def _told(committed: GroupOffset | None) -> list[Any]:
    return [] if committed is None else [[committed.offset, committed.metadata]]


# --- what answers are made of -----------------------------------------------------------------------------------------


def _progress(part: PartitionProgress) -> Body:
    body: Body = {
        "at": [part.topic_id.hex, part.partition],
        "progress": [part.stable, part.reset_epoch, part.count, part.furthest, part.log_start, part.log_end],
    }
    if part.error is not ErrorCode.NONE:
        body["failed"] = [int(part.error), part.message]
    return body


def _read_progress(body: Body) -> Body:
    """Read the fields of `PartitionProgress`."""
    topic_id, partition = body["at"]
    stable, reset_epoch, count, furthest, log_start, log_end = body["progress"]
    error, message = body.get("failed", (0, None))
    return {
        "topic_id": uuid.UUID(hex=topic_id),
        "partition": partition,
        "stable": stable,
        "reset_epoch": reset_epoch,
        "count": count,
        "furthest": furthest,
        "log_start": log_start,
        "log_end": log_end,
        "error": ErrorCode.known(error),
        "message": message,
    }


def _columns(ranges: OffsetColumns | None) -> Body:
    return {} if ranges is None else {"ranges": [ranges.firsts.tolist(), ranges.ends.tolist()]}


def _read_columns(body: Body) -> OffsetColumns | None:
    found = body.get("ranges")
    return None if found is None else OffsetColumns(array("q", found[0]), array("q", found[1]))


def _read_pairs(value: Sequence[Sequence[int]]) -> tuple[tuple[int, int], ...]:
    return tuple((first, end) for first, end in value)


def _begun(part: HeldPartition | TakenPartition | PartitionOffsets) -> Body:
    told = (part.reaches, part.starts, part.abandoned)
    return {"begun": [[tuple(one) for one in ones] for ones in told]} if any(told) else {}


def _read_begun(body: Body) -> Body:
    """Read `reaches`, `starts` and `abandoned`."""
    reaches, starts, abandoned = body.get("begun", ((), (), ()))
    return {
        "reaches": tuple(Reach(*one) for one in reaches),
        "starts": _read_pairs(starts),
        "abandoned": tuple(OffsetRange(*one) for one in abandoned),
    }


# --- hold -------------------------------------------------------------------------------------------------------------


def _hold(request: CooperativeHoldRequest) -> Body:
    return {
        "group_id": request.group_id,
        "member_id": request.member_id,
        "generation": request.generation,
        "sequence": request.sequence,
        "lease_ms": request.lease_ms,
        "mode": request.mode,
        "drain_timeout_ms": request.drain_timeout_ms,
        "auto_offset_reset": request.auto_offset_reset,
        "exact_starts": request.exact_starts,
        "partitions": [
            [part.topic_id.hex, part.partition, [tuple(one) for one in part.keys], *_told(part.committed)]
            for part in request.partitions
        ],
    }


def _read_hold(body: Mapping[str, Any]) -> CooperativeHoldRequest:
    parts: list[WantedKeys] = []
    for told in _list(body.get("partitions"), "partitions"):
        row = _row(told, "a partition", 3, 4)
        keys = tuple(_pairs(row[2], "the keys of a partition"))
        parts.append(WantedKeys(*_place(row), keys, _committed(row, 3)))
    return CooperativeHoldRequest(
        group_id=_text(body.get("group_id"), "group_id"),
        member_id=_text(body.get("member_id"), "member_id"),
        generation=_number(body.get("generation"), "generation"),
        sequence=_number(body.get("sequence"), "sequence"),
        lease_ms=_number(body.get("lease_ms"), "lease_ms"),
        mode=_text(body.get("mode"), "mode"),
        drain_timeout_ms=_number(body.get("drain_timeout_ms"), "drain_timeout_ms"),
        auto_offset_reset=_text(body.get("auto_offset_reset"), "auto_offset_reset"),
        exact_starts=body.get("exact_starts") is True,
        partitions=tuple(parts),
    )


def _held(answer: CooperativeHoldResponse) -> Body:
    return {
        "lease_ms": answer.lease_ms,
        "partitions": [
            {
                **_progress(part),
                "held": [tuple(one) for one in part.held],
                "granted": [tuple(one) for one in part.granted],
                "blocked": [tuple(one) for one in part.blocked],
                "superseded": part.superseded,
                "pending": [tuple(one) for one in part.pending],
                "horizon": part.horizon,
                **_begun(part),
                **_columns(part.ranges),
            }
            for part in answer.partitions
        ],
    }


def _read_held(body: Body) -> CooperativeHoldResponse:
    return CooperativeHoldResponse(
        lease_ms=body["lease_ms"],
        partitions=tuple(
            HeldPartition(
                **_read_progress(part),
                held=tuple(HeldKeys(*one) for one in part["held"]),
                granted=_read_pairs(part["granted"]),
                blocked=tuple(BlockedKeys(*one) for one in part["blocked"]),
                superseded=part["superseded"],
                pending=_read_pairs(part["pending"]),
                horizon=part["horizon"],
                **_read_begun(part),
                ranges=_read_columns(part),
            )
            for part in body["partitions"]
        ),
    )


# --- commit -----------------------------------------------------------------------------------------------------------


def _commit(request: CooperativeCommitRequest) -> Body:
    return {
        "group_id": request.group_id,
        "member_id": request.member_id,
        "partitions": [
            [part.topic_id.hex, part.partition, part.reset_epoch, [_entry(entry) for entry in part.entries]]
            for part in request.partitions
        ],
    }


def _entry(entry: Entry) -> list[Any]:
    if isinstance(entry, StartEntry):
        return [*entry.keys, entry.epoch, entry.horizon, [tuple(one) for one in entry.starts]]
    if isinstance(entry, SpanStartEntry):
        return [entry.epoch, STARTS, [tuple(one) for one in entry.starts]]
    ranges = [tuple(one) for one in entry.ranges]
    return [entry.epoch, ranges] if isinstance(entry, SpanEntry) else [*entry.keys, entry.epoch, ranges]


def _read_entry(told: Any) -> Entry:
    row = _row(told, "an entry of a commit", 2, 3, 4, 5)
    if len(row) == 3:
        if row[1] != STARTS:
            raise Malformed("an entry of a commit with three parts is none of starts")
        return SpanStartEntry(_number(row[0], "the epoch of a span"), _pairs(row[2], "the starts of a commit"))
    *numbers, last = row
    if len(row) == 5:
        first, end, epoch, horizon = (_number(one, "a number of a commit's entry") for one in numbers)
        return StartEntry(KeyRange(first, end), epoch, _pairs(last, "the starts of a commit"), horizon)
    epoch, *keys = [_number(one, "a number of a commit's entry") for one in reversed(numbers)]
    ranges = [OffsetRange(*pair) for pair in _pairs(last, "the ranges of a commit")]
    return CommitEntry(KeyRange(keys[1], keys[0]), epoch, ranges) if keys else SpanEntry(epoch, ranges)


def _read_commit(body: Mapping[str, Any]) -> CooperativeCommitRequest:
    parts: list[PartitionCommit] = []
    for told in _list(body.get("partitions"), "partitions"):
        row = _row(told, "a partition", 4)
        entries = tuple(_read_entry(one) for one in _list(row[3], "the entries of a commit"))
        parts.append(PartitionCommit(*_place(row), _number(row[2], "a reset epoch"), entries))
    return CooperativeCommitRequest(
        group_id=_text(body.get("group_id"), "group_id"),
        member_id=_text(body.get("member_id"), "member_id"),
        partitions=tuple(parts),
    )


def _committed_answer(answer: CooperativeCommitResponse) -> Body:
    return {"partitions": [{**_progress(part), "fenced": list(part.fenced)} for part in answer.partitions]}


def _read_committed(body: Body) -> CooperativeCommitResponse:
    return CooperativeCommitResponse(
        partitions=tuple(
            CommittedPartition(**_read_progress(part), fenced=tuple(part["fenced"])) for part in body["partitions"]
        )
    )


# --- take -------------------------------------------------------------------------------------------------------------


def _spans(spans: Sequence[SpanEpochs]) -> list[Any]:
    return [[one.topic_id.hex, one.partition, list(one.epochs)] for one in spans]


def _read_spans(told: Any, what: str) -> tuple[SpanEpochs, ...]:
    found: list[SpanEpochs] = []
    for one in _list(told, what):
        row = _row(one, what, 3)
        epochs = tuple(_number(epoch, "the epoch of a span") for epoch in _list(row[2], what))
        found.append(SpanEpochs(*_place(row), epochs))
    return tuple(found)


def _take(request: CooperativeTakeRequest) -> Body:
    return {
        "group_id": request.group_id,
        "member_id": request.member_id,
        "count": request.count,
        "max_wait_ms": request.max_wait_ms,
        "lease_ms": request.lease_ms,
        "auto_offset_reset": request.auto_offset_reset,
        "exact_starts": request.exact_starts,
        "partitions": [[part.topic_id.hex, part.partition, *_told(part.committed)] for part in request.partitions],
        "renew": _spans(request.renew),
        "give_back": _spans(request.give_back),
    }


def _read_take(body: Mapping[str, Any]) -> CooperativeTakeRequest:
    rows = [_row(told, "a partition", 2, 3) for told in _list(body.get("partitions"), "partitions")]
    return CooperativeTakeRequest(
        group_id=_text(body.get("group_id"), "group_id"),
        member_id=_text(body.get("member_id"), "member_id"),
        count=_number(body.get("count"), "count"),
        max_wait_ms=_number(body.get("max_wait_ms"), "max_wait_ms"),
        lease_ms=_number(body.get("lease_ms"), "lease_ms"),
        auto_offset_reset=_text(body.get("auto_offset_reset"), "auto_offset_reset"),
        exact_starts=body.get("exact_starts") is True,
        partitions=tuple(TakenFrom(*_place(row), _committed(row, 2)) for row in rows),
        renew=_read_spans(body.get("renew"), "renew"),
        give_back=_read_spans(body.get("give_back"), "give_back"),
    )


def _taken(answer: CooperativeTakeResponse) -> Body:
    return {
        "lease_ms": answer.lease_ms,
        "partitions": [
            {**_progress(part), "spans": [tuple(one) for one in part.spans], **_begun(part)}
            for part in answer.partitions
        ],
        "lost": _spans(answer.lost),
    }


def _read_taken(body: Body) -> CooperativeTakeResponse:
    return CooperativeTakeResponse(
        lease_ms=body["lease_ms"],
        partitions=tuple(
            TakenPartition(
                **_read_progress(part), spans=tuple(TakenSpan(*one) for one in part["spans"]), **_read_begun(part)
            )
            for part in body["partitions"]
        ),
        lost=_read_spans(body["lost"], "lost"),
    )


# --- offsets, reset ---------------------------------------------------------------------------------------------------


_COUNTS: Final = ("unfinished", "blocked", "lapsed", "overlaps")
"""Names of counts in `PartitionOffsets`."""


def _topics(topics: Mapping[str, Sequence[int]] | None) -> Body | None:
    return None if topics is None else {name: list(numbers) for name, numbers in topics.items()}


def _read_topics(asked: object) -> dict[str, tuple[int, ...]] | None:
    if asked is None:
        return None
    if not isinstance(asked, dict):
        raise Malformed("topics are no object")
    return {
        _text(name, "a topic"): tuple(_number(one, "a partition") for one in _list(numbers, "partitions"))
        for name, numbers in cast("Body", asked).items()
    }


def _offsets(request: CooperativeOffsetsRequest) -> Body:
    return {"group_id": request.group_id, "topics": _topics(request.topics), "ranges_from": request.ranges_from}


def _read_offsets(body: Mapping[str, Any]) -> CooperativeOffsetsRequest:
    topics = _read_topics(body.get("topics"))
    from_ = body.get("ranges_from")
    return CooperativeOffsetsRequest(
        group_id=_text(body.get("group_id"), "group_id"),
        topics=topics,
        ranges_from=None if from_ is None else _number(from_, "ranges_from"),
    )


def _offsets_answer(answer: CooperativeOffsetsResponse) -> Body:
    return {
        "partitions": [
            {
                **_progress(part),
                "topic": part.topic,
                "more": part.more,
                "unstable": part.unstable,
                "claims": [tuple(one) for one in part.claims],
                "spans": [tuple(one) for one in part.spans],
                "waits": [tuple(one) for one in part.waits],
                **_begun(part),
                "counts": [part.unfinished, part.blocked, part.lapsed, part.overlaps],
                **_columns(part.ranges),
            }
            for part in answer.partitions
        ]
    }


def _read_offsets_answer(body: Body) -> CooperativeOffsetsResponse:
    return CooperativeOffsetsResponse(
        partitions=tuple(
            PartitionOffsets(
                **_read_progress(part),
                topic=part["topic"],
                more=part["more"],
                unstable=part["unstable"],
                claims=tuple(ToldClaim(*one) for one in part["claims"]),
                spans=tuple(ToldClaim(*one) for one in part["spans"]),
                waits=tuple(ToldWait(*one) for one in part["waits"]),
                **_read_begun(part),
                **dict(zip(_COUNTS, part["counts"], strict=True)),
                ranges=_read_columns(part),
            )
            for part in body["partitions"]
        )
    )


def _reset(request: CooperativeResetRequest) -> Body:
    return {
        "group_id": request.group_id,
        "topic": request.topic,
        "partition": request.partition,
        "offset": request.offset,
    }


def _read_reset(body: Mapping[str, Any]) -> CooperativeResetRequest:
    return CooperativeResetRequest(
        group_id=_text(body.get("group_id"), "group_id"),
        topic=_text(body.get("topic"), "topic"),
        partition=_number(body.get("partition"), "partition"),
        offset=_number(body.get("offset"), "offset"),
    )


def _delete(request: CooperativeDeleteRequest) -> Body:
    return {"group_id": request.group_id, "topics": _topics(request.topics)}


def _read_delete(body: Mapping[str, Any]) -> CooperativeDeleteRequest:
    return CooperativeDeleteRequest(
        group_id=_text(body.get("group_id"), "group_id"), topics=_read_topics(body.get("topics"))
    )


def _nothing(_: Any) -> Body:
    return {}


def _read_nothing(_: Body) -> CooperativeDeleteResponse:
    return CooperativeDeleteResponse()


def _reset_answer(answer: CooperativeResetResponse) -> Body:
    return {"reset_epoch": answer.reset_epoch}


def _read_reset_answer(body: Body) -> CooperativeResetResponse:
    return CooperativeResetResponse(reset_epoch=body["reset_epoch"])


CALLS: Final[Mapping[str, Call]] = {
    str(CooperativeHoldRequest.call): Call(_hold, _read_hold, _held, _read_held, CooperativeHoldResponse),
    str(CooperativeCommitRequest.call): Call(
        _commit, _read_commit, _committed_answer, _read_committed, CooperativeCommitResponse
    ),
    str(CooperativeTakeRequest.call): Call(_take, _read_take, _taken, _read_taken, CooperativeTakeResponse),
    str(CooperativeOffsetsRequest.call): Call(
        _offsets, _read_offsets, _offsets_answer, _read_offsets_answer, CooperativeOffsetsResponse
    ),
    str(CooperativeResetRequest.call): Call(
        _reset, _read_reset, _reset_answer, _read_reset_answer, CooperativeResetResponse
    ),
    str(CooperativeDeleteRequest.call): Call(_delete, _read_delete, _nothing, _read_nothing, CooperativeDeleteResponse),
}
"""The codec of each call, by name."""
