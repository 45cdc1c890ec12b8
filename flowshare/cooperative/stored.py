"""The form of a partition in the store: one entry of each kind, many of ranges and transactions. Keys are suffixes, of
whatever names the group and the partition.

    0x00                       S and E
    0x01 first offset (8)      a committed range behind S: its end, and the E that it belongs to
    0x02                       all claims, and the epoch of the newest one
    0x03                       offsets that members had whatever their keys: read, and deleted (`_spans`)
    0x04 producer id (8)       what is pending of an open transaction
    0x05 offset (8)            how often a record was begun that is not committed
    0x06                       what members that are gone may have begun, and the horizons of those that are here

A value is sealed (`flowshare.sealing`). `load` takes the entries in any order, and whatever prefix of the
mutations was written: S is what its entry says, ranges of another E than S's count no more, all others are united and
cut below S. A range that cannot be read is left out and counted: its records come again, none is lost. Everything else
that cannot be read raises StateCorrupt, because claims and epochs that are forgotten would count twice.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import orjson

from flowshare.cooperative.attempts import Attempts
from flowshare.cooperative.claims import Claims
from flowshare.cooperative.offsets import CommittedOffsets
from flowshare.cooperative.partition import PartitionState
from flowshare.cooperative.pending import Pending
from flowshare.cooperative.types import (
    WHOLE,
    Claim,
    DropPending,
    DropRange,
    DropSpans,
    DropStarts,
    Holder,
    Horizon,
    KeyRange,
    Mutation,
    OffsetRange,
    PendingOffsets,
    PutClaims,
    PutPending,
    PutRange,
    PutReaches,
    PutStable,
    PutStarts,
    Reach,
)
from flowshare.core_errors import StateCorrupt
from flowshare.sealing import seal, unseal

VERSION: Final = 1
STABLE_KEY: Final = b"\x00"
RANGE_KEY: Final = b"\x01"
CLAIMS_KEY: Final = b"\x02"
SPANS_KEY: Final = b"\x03"
PENDING_KEY: Final = b"\x04"
STARTS_KEY: Final = b"\x05"
REACHES_KEY: Final = b"\x06"
_number: Final = struct.Struct(">q")
_two: Final = struct.Struct(">qq")


class Loaded(NamedTuple):
    """The result of `load`. unreadable: how many ranges could not be read. repair: mutations that a crash left undone.
    They must be written before anything else, or entries stay that nobody deletes."""

    state: PartitionState
    unreadable: int
    repair: tuple[Mutation, ...]


def is_entry(name: bytes) -> bool:
    """True if the entry belongs to the stored form of a partition; servers have other entries beside these."""
    return STABLE_KEY <= name[:1] <= REACHES_KEY


def encode(mutation: Mutation) -> tuple[bytes, bytes | None]:
    """Key and value of what is to be written; None: the key is to be deleted."""
    match mutation:
        case PutRange(first, end, reset_epoch):
            return RANGE_KEY + _number.pack(first), _sealed(_two.pack(end, reset_epoch))
        case DropRange(first):
            return RANGE_KEY + _number.pack(first), None
        case PutStable(stable, reset_epoch):
            return STABLE_KEY, _sealed(_two.pack(stable, reset_epoch))
        case PutClaims(epoch, holders, claims):
            places = {holder.member: at for at, holder in enumerate(holders)}
            rows = [(first, end, places[member], of) for first, end, member, of in claims]
            return CLAIMS_KEY, _sealed(orjson.dumps([epoch, [list(one) for one in holders], rows]))
        case DropSpans():
            return SPANS_KEY, None
        case PutPending(producer_id, (producer_epoch, ranges, keys)):
            body = [producer_epoch, [tuple(one) for one in ranges], [tuple(one) for one in keys]]
            return PENDING_KEY + _number.pack(producer_id), _sealed(orjson.dumps(body))
        case DropPending(producer_id):
            return PENDING_KEY + _number.pack(producer_id), None
        case _:
            return _encode_attempts(mutation)


def _encode_attempts(mutation: PutStarts | DropStarts | PutReaches) -> tuple[bytes, bytes | None]:
    match mutation:
        case PutStarts(offset, starts):
            return STARTS_KEY + _number.pack(offset), _sealed(_number.pack(starts))
        case DropStarts(offset):
            return STARTS_KEY + _number.pack(offset), None
        case PutReaches(reaches, horizons):
            return REACHES_KEY, _sealed(orjson.dumps([list(map(tuple, one)) for one in (reaches, horizons)]))


def load(entries: Iterable[tuple[bytes, bytes]], *, now_ms: int) -> Loaded | None:
    """The partition that these entries are of; None without that of S: there is no partition, or none any more. Every
    lease begins now. Raises: StateCorrupt."""
    claims, pending = Claims(), dict[int, PendingOffsets]()
    begun: list[tuple[bytes, bytes]] = []
    spans: list[tuple[int, int]] | None = None
    stable: tuple[int, int] | None = None
    ranges: list[tuple[int, int, int]] = []
    unreadable = 0
    for key, value in entries:
        kind = key[:1]
        if kind == RANGE_KEY:
            try:
                ranges.append(_range(key, value))
            except StateCorrupt:
                unreadable += 1
        elif kind == STABLE_KEY:
            stable = _unpack(_two, unseal(value, VERSION))
        elif kind == CLAIMS_KEY:
            claims = _claims(value, now_ms)
        elif kind == SPANS_KEY:
            spans = _spans(value)
        elif kind == PENDING_KEY:
            pending[_unpack(_number, key[1:])[0]] = _pending(value)
        elif kind in (STARTS_KEY, REACHES_KEY):
            begun.append((key, value))
        else:
            raise StateCorrupt(f"an entry of a partition has the unknown kind {kind!r}: a newer flowshare wrote it")
    if stable is None:
        return None
    counted = {first: end for first, end, reset_epoch in ranges if reset_epoch == stable[1]}
    offsets = CommittedOffsets(stable[0], counted.items(), stable[1])
    repair = _repair(offsets, stable, counted, [first for first, _, _ in ranges])
    attempts, gone = _attempts(begun, offsets, spans or ())
    repair += gone if spans is None else (*gone, DropSpans())
    return Loaded(PartitionState(offsets, claims, Pending(pending), attempts), unreadable, repair)


def _repair(
    offsets: CommittedOffsets, stable: tuple[int, int], counted: Mapping[int, int], keys: Iterable[int]
) -> tuple[Mutation, ...]:
    """Return the mutations that make the entries match the offsets. Any prefix of them leaves the entries as good as
    before."""
    there = dict(offsets.ranges())
    puts = [PutRange(first, end, offsets.reset_epoch) for first, end in there.items() if counted.get(first) != end]
    moved = [PutStable(*stable)._replace(stable=offsets.stable)] if offsets.stable != stable[0] else []
    return (*puts, *moved, *(DropRange(first) for first in sorted(keys) if first not in there))


def _range(key: bytes, value: bytes) -> tuple[int, int, int]:
    (first,) = _unpack(_number, key[1:])
    end, reset_epoch = _unpack(_two, unseal(value, VERSION))
    if not 0 <= first < end:
        raise StateCorrupt(f"a stored range goes from {first} to {end}")
    return first, end, reset_epoch


def _claims(value: bytes, now_ms: int) -> Claims:
    with _readable("claims"):
        epoch, told, rows = orjson.loads(unseal(value, VERSION))
        holders = [Holder(str(member), int(generation), int(lease_ms)) for member, generation, lease_ms in told]
        claims = [Claim(int(first), int(end), holders[int(at)].member, int(of)) for first, end, at, of in rows]
        return Claims(int(epoch), holders, claims, now_ms=now_ms)


def _spans(value: bytes) -> list[tuple[int, int]]:
    """Read the offsets that members had of a partition, whatever their keys, in free mode, which there is no more."""
    with _readable("spans"):
        _, rows = orjson.loads(unseal(value, VERSION))
        return [(int(first), int(end)) for first, end, *_, exact_starts in rows if not exact_starts]


def _pending(value: bytes) -> PendingOffsets:
    with _readable("pending offsets"):
        producer_epoch, ranges, keys = orjson.loads(unseal(value, VERSION))
        return PendingOffsets(
            int(producer_epoch),
            tuple(OffsetRange(int(first), int(end)) for first, end in ranges),
            tuple(KeyRange(int(first), int(end)) for first, end in keys),
        )


def _attempts(
    entries: Iterable[tuple[bytes, bytes]], offsets: CommittedOffsets, free: Iterable[tuple[int, int]]
) -> tuple[Attempts, tuple[Mutation, ...]]:
    """Load the starts, and return the mutations that drop useless entries with them. free: offsets that members had
    whatever their keys, and may have begun: all records before their end count as begun once."""
    reaches, horizons, abandoned = list[Reach](), list[Horizon](), list(free)
    starts: dict[int, int] = {}
    for key, value in entries:
        if key[:1] == REACHES_KEY:
            reaches, horizons, left = _reaches(value)
            abandoned += left
        else:
            starts[_unpack(_number, key[1:])[0]] = _unpack(_number, unseal(value, VERSION))[0]
    gone = tuple(DropStarts(at) for at in starts if offsets.is_committed(at))
    attempts = Attempts(reaches, {at: n for at, n in starts.items() if not offsets.is_committed(at)}, horizons)
    before, end = attempts.state, max((end for _, end in abandoned), default=0)
    if end > offsets.stable:
        attempts.reach(*WHOLE[0], end)
    return attempts, (*gone, *attempts.changed_since(before))


def _reaches(value: bytes) -> tuple[list[Reach], list[Horizon], list[tuple[int, int]]]:
    """Read reaches and horizons, and offsets of spans that ended (`_spans`), which older entries have."""
    with _readable("reaches"):
        reaches, horizons, *old = orjson.loads(unseal(value, VERSION))
        return (
            [Reach(int(first), int(end), int(before)) for first, end, before in reaches],
            [Horizon(str(member), int(offset)) for member, offset in horizons],
            [(int(first), int(end)) for left in old for first, end in left],
        )


def _sealed(body: bytes) -> bytes:
    return seal(body, VERSION)


@contextmanager
def _readable(what: str) -> Generator[None]:
    try:
        yield
    except (ValueError, TypeError, IndexError) as error:
        raise StateCorrupt(f"stored {what} cannot be read: {error!r}") from error


def _unpack(form: struct.Struct, data: bytes) -> Any:
    if len(data) != form.size:
        raise StateCorrupt(f"a stored entry has {len(data)} bytes instead of {form.size}")
    return form.unpack(data)
