"""Durable state of a share-partition: its bytes, and how updates act on a snapshot (SG-14.1).

Bytes: version, kind, CRC-32, then varints. Runs are delta-coded against the offset before them; state, delivery count
and member are one number into a table, so that a window in which every second record is finished takes one byte a
run. Two ways to put updates on a state: `replay`, flowshare's own, where the last writer wins in log order (its log has
one writer), and `combine`, Kafka's, which knows no order and lets the higher delivery count, then state win.
"""

from __future__ import annotations

import heapq
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from typing import Final

from flowshare.core_errors import StateCorrupt
from flowshare.share.types import PartitionState, PartitionUpdate, RecordState, StateRun

VERSION: Final = 2
"""The format version. 2: with the log's leader epoch. Version 1 is read, too."""
STATE: Final = 1
UPDATE: Final = 2
HEADER: Final = struct.Struct(">BBI")
"""Format version; STATE or UPDATE; CRC-32 of the rest."""

ONE: Final = 1
"""Bit of a run's head: it is one offset long, no length follows."""
NEXT: Final = 2
"""Bit of a run's head: it starts right after the run before, no distance follows."""
DELAYED: Final = 1 << 3
"""Bit of a kind's state: a not-before time follows each of its runs."""
VARINT_BITS_MAX: Final = 70
OFFSET_MAX: Final = 2**63 - 1

Kind = tuple[int, int, str | None]
"""State (with the DELAYED bit), delivery count, member."""


def encode_state(state: PartitionState) -> bytes:
    """Return a snapshot as bytes."""
    out = bytearray()
    _put(out, state.state_epoch)
    _put(out, state.leader_epoch)
    _put(out, state.log_epoch + 1)
    _put_body(out, state.start_offset, state.delivery_complete_count, state.runs)
    return _sealed(STATE, out)


def decode_state(data: bytes) -> PartitionState:
    """Return the snapshot that `encode_state` wrote. Raises StateCorrupt."""
    version, body = _opened(STATE, data)
    reader = _Reader(body)
    state_epoch, leader_epoch = reader.number(), reader.number()
    log_epoch = reader.log_epoch(version)
    start_offset, complete, runs = reader.body()
    return PartitionState(
        state_epoch=state_epoch,
        leader_epoch=leader_epoch,
        log_epoch=log_epoch,
        start_offset=start_offset,
        delivery_complete_count=complete,
        runs=runs,
    )


def encode_update(update: PartitionUpdate) -> bytes:
    """Return an update as bytes."""
    out = bytearray()
    _put(out, update.log_epoch + 1)
    _put_body(out, update.start_offset, update.delivery_complete_count, update.runs)
    return _sealed(UPDATE, out)


def decode_update(data: bytes) -> PartitionUpdate:
    """Return the update that `encode_update` wrote. Raises StateCorrupt."""
    version, body = _opened(UPDATE, data)
    reader = _Reader(body)
    log_epoch = reader.log_epoch(version)
    start_offset, complete, runs = reader.body()
    return PartitionUpdate(start_offset=start_offset, delivery_complete_count=complete, runs=runs, log_epoch=log_epoch)


def replay(state: PartitionState, updates: Iterable[PartitionUpdate]) -> PartitionState:
    """Return the state after updates in log order: the last writer of an offset wins (SG-14.2).

    The start offset never goes back (−1 leaves it); runs below it are dropped, adjacent equal ones joined; the
    delivery-complete count is the last update's, the log epoch that of the last update with one. A cut log is told by a
    snapshot, because only that takes runs away. Raises StateCorrupt for a run that ends before it starts.
    """
    start, complete, log_epoch = state.start_offset, state.delivery_complete_count, state.log_epoch
    layers: list[Sequence[StateRun]] = [state.runs]
    for update in updates:
        start = max(start, update.start_offset)
        complete = update.delivery_complete_count
        log_epoch = update.log_epoch if update.log_epoch >= 0 else log_epoch
        layers.append(update.runs)
    if len(layers) == 1:
        return state
    order = 0
    ranked: list[tuple[int, int, StateRun]] = []
    for run in chain.from_iterable(layers):
        order -= 1
        ranked.append((order, 0, run))
    runs = _overlay(ranked, max(start, 0))
    return replace(state, start_offset=start, delivery_complete_count=complete, runs=runs, log_epoch=log_epoch)


def combine(current: Sequence[StateRun], new: Sequence[StateRun], start_offset: int) -> tuple[StateRun, ...]:
    """Combine stored and new batches as Kafka does (SG-14.3); the result is sorted and without overlap.

    Parts below `start_offset` are dropped. On overlap the higher delivery count wins, then the higher state; the loser
    survives only outside the overlap. Adjacent equal runs are joined. Raises StateCorrupt as `replay`.
    """
    ranked = [(-run.delivery_count, -run.state, run) for run in chain(new, current)]
    return _overlay(ranked, start_offset)


def _overlay(ranked: list[tuple[int, int, StateRun]], start_offset: int) -> tuple[StateRun, ...]:
    """Return overlapping runs as shown by lowest rank (of equal ranks the first), from `start_offset` on.

    One sweep over all borders with the open runs in a heap: n runs cost n·log n, however many updates they came in.
    """
    opening: list[tuple[int, int, int, int, StateRun]] = []
    borders: set[int] = set()
    for i, (rank, second, run) in enumerate(ranked):
        if not 0 <= run.first <= run.last:
            raise StateCorrupt(f"stored run {run.first} to {run.last} is not a range of offsets")
        if run.last >= start_offset:
            opening.append((run.first, rank, second, i, run))
            borders.add(max(run.first, start_offset))
            borders.add(run.last + 1)
    opening.sort()
    heap: list[tuple[int, int, int, StateRun]] = []
    shown: list[StateRun] = []
    at = 0
    for begin, end in pairwise(sorted(borders)):
        while at < len(opening) and opening[at][0] <= begin:
            heapq.heappush(heap, opening[at][1:])
            at += 1
        while heap and heap[0][3].last < begin:
            heapq.heappop(heap)
        if heap:
            _show(shown, heap[0][3], begin, end - 1)
    return tuple(shown)


def _show(shown: list[StateRun], run: StateRun, first: int, last: int) -> None:
    """Append a piece of a run; join it with the piece before if that one is adjacent and equal."""
    if shown and shown[-1].last == first - 1 and shown[-1][2:] == run[2:]:
        first = shown.pop().first
    shown.append(StateRun(first, last, *run[2:]))


def _sealed(kind: int, body: bytearray) -> bytes:
    return HEADER.pack(VERSION, kind, zlib.crc32(body)) + body


def _opened(kind: int, data: bytes) -> tuple[int, bytes]:
    """Return the format version and the checked body. Raises StateCorrupt."""
    if len(data) < HEADER.size:
        raise StateCorrupt("stored state is cut short")
    version, found, checksum = HEADER.unpack_from(data)
    if version > VERSION:
        raise StateCorrupt(
            f"stored state has format {version}, which a later release of flowshare wrote; this one reads formats up "
            f"to {VERSION}: install that release, or one after it, here, too"
        )
    if version < 1:
        raise StateCorrupt(f"stored state has format {version}, which no release of flowshare wrote")
    if found != kind:
        raise StateCorrupt(f"stored state is of kind {found}, expected {kind}")
    body = data[HEADER.size :]
    if zlib.crc32(body) != checksum:
        raise StateCorrupt("stored state fails its checksum")
    return version, body


def _put(out: bytearray, value: int) -> None:
    """Append a number ≥ 0, seven bits a byte, the lowest first."""
    if value < 0:
        raise ValueError(f"a stored number must not be negative: {value}")
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _put_signed(out: bytearray, value: int) -> None:
    _put(out, value << 1 if value >= 0 else (-value << 1) - 1)


def _put_body(out: bytearray, start_offset: int, complete: int, runs: Sequence[StateRun]) -> None:
    """Append the common part of snapshot and update: start offset, count, the tables of members and kinds, the runs."""
    kinds: dict[Kind, int] = {}
    body = bytearray()
    position, due = max(start_offset, 0), 0
    for first, last, state, count, member_id, not_before_ms in runs:
        if not 0 <= first <= last:
            raise ValueError(f"a stored run must not end before it begins: {first}-{last}")
        kind = (state | DELAYED if not_before_ms else state, count, member_id)
        number = kinds.get(kind)
        if number is None:
            number = kinds[kind] = len(kinds)
        head = number << 2
        if first == position:
            head |= NEXT
        if first == last:
            head |= ONE
        if head < 0x80:
            body.append(head)  # The usual case, and a call less: windows have up to 200,000 runs.
        else:
            _put(body, head)
        if not head & NEXT:
            _put_signed(body, first - position)
        if not head & ONE:
            _put(body, last - first - 1)
        if not_before_ms:
            _put_signed(body, not_before_ms - due)
            due = not_before_ms
        position = last + 1
    _put(out, start_offset + 1)
    _put(out, complete + 1)
    _put_tables(out, kinds)
    _put(out, len(runs))
    out += body


def _put_tables(out: bytearray, kinds: Iterable[Kind]) -> None:
    members: dict[str, int] = {}
    table = bytearray()
    for state, count, member_id in kinds:
        table.append(state)
        _put(table, count)
        _put(table, 0 if member_id is None else members.setdefault(member_id, len(members)) + 1)
    _put(out, len(members))
    for member_id in members:
        encoded = member_id.encode()
        _put(out, len(encoded))
        out += encoded
    _put(out, len(table))
    out += table


class _Reader:
    """Reader of the bytes that `_put_body` wrote; raises StateCorrupt, whatever the bytes are."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self) -> int:
        value = shift = 0
        while True:
            if self._at >= len(self._data) or shift >= VARINT_BITS_MAX:
                raise StateCorrupt("stored state is cut short")
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def signed(self) -> int:
        value = self.number()
        return value >> 1 if not value & 1 else -((value + 1) >> 1)

    def part(self) -> bytes:
        """Read bytes with their length before them."""
        size = self.number()
        part = self._data[self._at : self._at + size]
        if len(part) != size:
            raise StateCorrupt("stored state is cut short")
        self._at += size
        return part

    def log_epoch(self, version: int) -> int:
        """Read the leader epoch of the log, which format 1 did not have."""
        return self.number() - 1 if version > 1 else -1

    def body(self) -> tuple[int, int, tuple[StateRun, ...]]:
        """Read start offset, delivery-complete count, runs; nothing may follow."""
        start_offset, complete = self.number() - 1, self.number() - 1
        kinds = self._kinds()
        runs = tuple(self._runs(kinds, max(start_offset, 0)))
        if self._at != len(self._data):
            raise StateCorrupt("stored state has bytes left over")
        return start_offset, complete, runs

    def _kinds(self) -> list[tuple[RecordState, int, str | None, bool]]:
        try:
            members = [self.part().decode() for _ in range(self._count())]
        except UnicodeDecodeError as error:
            raise StateCorrupt("stored member id is not UTF-8") from error
        table = _Reader(self.part())
        kinds: list[tuple[RecordState, int, str | None, bool]] = []
        while table._at < len(table._data):
            state, count, member = table.number(), table.number(), table.number()
            if state & ~DELAYED > max(RecordState) or member > len(members):
                raise StateCorrupt("stored state names an unknown record state or member")
            member_id = members[member - 1] if member else None
            kinds.append((RecordState(state & ~DELAYED), count, member_id, bool(state & DELAYED)))
        return kinds

    def _count(self) -> int:
        """Read the number of items that take at least a byte each."""
        count = self.number()
        if count > len(self._data) - self._at:
            raise StateCorrupt("stored state is cut short")
        return count

    def _runs(self, kinds: Sequence[tuple[RecordState, int, str | None, bool]], position: int) -> Iterator[StateRun]:
        due = 0
        data = self._data
        for _ in range(self._count()):
            if self._at < len(data) and data[self._at] < 0x80:
                head = data[self._at]  # The usual case, and a call less: windows have up to 200,000 runs.
                self._at += 1
            else:
                head = self.number()
            if head >> 2 >= len(kinds):
                raise StateCorrupt("stored state names an unknown kind of run")
            state, count, member_id, delayed = kinds[head >> 2]
            first = position if head & NEXT else position + self.signed()
            last = first if head & ONE else first + self.number() + 1
            if first < 0 or last > OFFSET_MAX:
                raise StateCorrupt(f"stored run {first} to {last} is not a range of offsets")
            if delayed:
                due += self.signed()
            yield StateRun(first, last, state, count, member_id, due if delayed else 0)
            position = last + 1
