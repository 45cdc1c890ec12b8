"""A settle of a cooperative group on the wire: flowshare's own API, key 32503, offered in ApiVersions.

A request header (v2) and a body, an answer header (v1) and a body; there is one version, 0. The commit is JSON,
as in a commit (`protocol.cooperative_codec`); outputs are bytes, as in a settle of a share group (`settle_codec`).

    request   count of bytes, so much JSON: a commit's of one partition, with {ordered, generation},
              topics, outputs, records as in `settle_codec`
    answer    JSON: a commit's of one partition, with {error, message, refused: fenced ranges,
              committed: ranges, outputs: [[place, error, message], …]}
"""

from __future__ import annotations

import struct
from typing import Final

import orjson

from flowshare.protocol.compact import FrameReader, count, framed, head
from flowshare.protocol.cooperative_codec import CALLS, Malformed
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.headers import DecodeError
from flowshare.protocol.kafka import ApiKey
from flowshare.protocol.messages.cooperative import (
    CommittedPartition,
    CooperativeCommitRequest,
    CooperativeCommitResponse,
    CooperativeSettleRequest,
    CooperativeSettleResponse,
    PartitionCommit,
    SpanStartEntry,
    StartEntry,
)
from flowshare.protocol.messages.share import RefusedOutput
from flowshare.protocol.private import json_object
from flowshare.protocol.settle_codec import output_pieces, problem_of_outputs, read_outputs

_COMMIT: Final = CALLS[str(CooperativeCommitRequest.call)]
_START: Final = struct.Struct(">iB")
"""The start of an answer: correlation id, no tags."""
JSON_BYTES_MAX: Final = 1024 * 1024
"""The largest JSON part of a request, in bytes: its parts become objects, which take many times their bytes."""
GENERATION_MAX: Final = 2**31 - 1


def encode_settle(correlation_id: int, client_id: str, request: CooperativeSettleRequest, version: int) -> bytes:
    """Return the frame of a request, its length included. Raises: ValueError (no server accepts the request)."""
    wrong = problem_of_outputs(request.outputs)
    if wrong is not None:
        raise ValueError(f"a settle cannot be written: {wrong}")
    part = PartitionCommit(request.topic_id, request.partition, request.reset_epoch, request.entries)
    commit = CooperativeCommitRequest(group_id=request.group_id, member_id=request.member_id, partitions=(part,))
    body = _COMMIT.request(commit)
    told = orjson.dumps({**body, "ordered": request.ordered, "generation": request.generation})
    start = head(ApiKey.FLOWSHARE_COOPERATIVE_SETTLE, version, correlation_id, client_id)
    return framed([start, count(len(told)), told, *output_pieces(request.outputs)])


def decode_settle(frame: bytes, position: int, version: int) -> CooperativeSettleRequest:
    """Read the request whose body begins at `position`. Raises: DecodeError."""
    del version  # there is one
    reader = FrameReader(frame, position)
    size = reader.count(1)
    if size > JSON_BYTES_MAX:
        raise DecodeError(f"a settle has {size} bytes of JSON; {JSON_BYTES_MAX} are taken")
    body = json_object(reader.take(size), "what a settle commits")
    try:
        commit: CooperativeCommitRequest = _COMMIT.read_request(body)
    except Malformed as error:
        raise DecodeError(f"a settle cannot be read: {error}") from None
    ordered, generation = body.get("ordered"), body.get("generation")
    if not isinstance(ordered, bool) or type(generation) is not int or not 0 <= generation <= GENERATION_MAX:
        raise DecodeError("a settle says whether it is ordered, and its generation")
    if len(commit.partitions) != 1 or not commit.group_id or not commit.member_id:
        raise DecodeError("a settle has a group, a member and one partition")
    (part,) = commit.partitions
    entries = tuple(entry for entry in part.entries if not isinstance(entry, StartEntry | SpanStartEntry))
    if len(entries) < len(part.entries):
        raise DecodeError("a settle tells of no starts")
    return CooperativeSettleRequest(
        group_id=commit.group_id,
        member_id=commit.member_id,
        topic_id=part.topic_id,
        partition=part.partition,
        reset_epoch=part.reset_epoch,
        entries=entries,
        outputs=read_outputs(reader),
        ordered=ordered,
        generation=generation,
    )


def encode_settled(correlation_id: int, version: int, answer: CooperativeSettleResponse) -> bytes:
    """Return the frame of an answer, its length included."""
    del version
    told = CommittedPartition(
        topic_id=answer.topic_id,
        partition=answer.partition,
        stable=answer.stable,
        reset_epoch=answer.reset_epoch,
        count=answer.count,
        furthest=answer.furthest,
        log_start=answer.log_start,
        log_end=answer.log_end,
    )
    body = {
        **_COMMIT.answer(CooperativeCommitResponse(partitions=(told,))),
        "error": int(answer.error),
        "message": answer.message,
        "refused": [tuple(one) for one in answer.fenced],
        "committed": [tuple(one) for one in answer.committed],
        "outputs": [[place, int(error), message] for place, error, message in answer.outputs],
    }
    return framed([_START.pack(correlation_id, 0), orjson.dumps(body)])


def decode_settled(frame: bytes) -> CooperativeSettleResponse:
    """Read the answer in a frame without its length. Raises: DecodeError."""
    body = json_object(frame[_START.size :], "the answer to a settle")
    try:
        (told,) = _COMMIT.read_answer(body).partitions
        return CooperativeSettleResponse(
            topic_id=told.topic_id,
            partition=told.partition,
            stable=told.stable,
            reset_epoch=told.reset_epoch,
            count=told.count,
            furthest=told.furthest,
            log_start=told.log_start,
            log_end=told.log_end,
            error=ErrorCode.known(body["error"]),
            message=body["message"],
            fenced=tuple((first, end) for first, end in body["refused"]),
            committed=tuple((first, end) for first, end in body["committed"]),
            outputs=tuple(RefusedOutput(place, ErrorCode.known(error), why) for place, error, why in body["outputs"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DecodeError(f"the answer to a settle cannot be read: {error!r}") from None
