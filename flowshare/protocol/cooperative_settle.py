"""A settle of a cooperative group on the wire: flowshare's own API, key 32503, offered in ApiVersions.

A request header (v2) and a body, an answer header (v1) and a body; there is one version, 0. The commit is JSON, as that
of a call (`protocol.private`); outputs are bytes, as in a settle of a share group (`settle_codec`).

    request   count of bytes, so much JSON: `SettleHead`,
              topics, outputs, records as in `settle_codec`
    answer    JSON: `CooperativeSettleResponse`
"""

from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, cast

from msgspec import Meta

from flowshare.protocol.compact import FrameReader, count, framed, head
from flowshare.protocol.headers import DecodeError
from flowshare.protocol.kafka import ApiKey
from flowshare.protocol.messages.cooperative import (
    CooperativeSettleRequest,
    CooperativeSettleResponse,
    EntryTold,
    entry_of,
    tell_entry,
)
from flowshare.protocol.private import TEXT_MAX, Number, read, write
from flowshare.protocol.settle_codec import output_pieces, problem_of_outputs, read_outputs

if TYPE_CHECKING:
    from flowshare.protocol.messages.cooperative import CommitEntry

_START: Final = struct.Struct(">iB")
"""The start of an answer: correlation id, no tags."""
JSON_BYTES_MAX: Final = 1024 * 1024
"""The largest JSON part of a request, in bytes: its parts become objects, which take many times their bytes."""
Name = Annotated[str, Meta(min_length=1, max_length=TEXT_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettleHead:
    """The part of a `CooperativeSettleRequest` before its outputs."""

    group_id: Name
    member_id: Name
    topic_id: uuid.UUID
    partition: Number
    reset_epoch: Number
    entries: tuple[EntryTold, ...]
    ordered: bool
    generation: Annotated[int, Meta(ge=0, lt=1 << 31)]


def encode_settle(correlation_id: int, client_id: str, request: CooperativeSettleRequest, version: int) -> bytes:
    """Return the frame of a request, its length included. Raises: ValueError (no server accepts the request)."""
    wrong = problem_of_outputs(request.outputs)
    if wrong is not None:
        raise ValueError(f"a settle cannot be written: {wrong}")
    told = write(
        SettleHead(
            group_id=request.group_id,
            member_id=request.member_id,
            topic_id=request.topic_id,
            partition=request.partition,
            reset_epoch=request.reset_epoch,
            entries=tuple(map(tell_entry, request.entries)),
            ordered=request.ordered,
            generation=request.generation,
        )
    )
    start = head(ApiKey.FLOWSHARE_COOPERATIVE_SETTLE, version, correlation_id, client_id)
    return framed([start, count(len(told)), told, *output_pieces(request.outputs)])


def decode_settle(frame: bytes, position: int, version: int) -> CooperativeSettleRequest:
    """Read the request whose body begins at `position`. Raises: DecodeError."""
    del version  # there is one
    reader = FrameReader(frame, position)
    size = reader.count(1)
    if size > JSON_BYTES_MAX:
        raise DecodeError(f"a settle has {size} bytes of JSON; {JSON_BYTES_MAX} are taken")
    told = read(SettleHead, reader.take(size))
    if any(entry.starts for entry in told.entries):
        raise DecodeError("a settle tells of no starts")
    return CooperativeSettleRequest(
        group_id=told.group_id,
        member_id=told.member_id,
        topic_id=told.topic_id,
        partition=told.partition,
        reset_epoch=told.reset_epoch,
        entries=cast("tuple[CommitEntry, ...]", tuple(map(entry_of, told.entries))),
        outputs=read_outputs(reader),
        ordered=told.ordered,
        generation=told.generation,
    )


def encode_settled(correlation_id: int, version: int, answer: CooperativeSettleResponse) -> bytes:
    """Return the frame of an answer, its length included."""
    del version
    return framed([_START.pack(correlation_id, 0), write(answer)])


def decode_settled(frame: bytes) -> CooperativeSettleResponse:
    """Read the answer in a frame without its length. Raises: DecodeError."""
    return read(CooperativeSettleResponse, frame[_START.size :])
