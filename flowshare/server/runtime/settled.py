"""State changes of settles decided apart from the state (`log.base.SettlesApart`) that nobody has made yet.

An update is made only where the records are still acquired in the delivery that was settled: there, nobody has made it.
While a settle is under way its records are stored as acquired, and the settling server writes the changes that follow
before the records can become anything else. So an update that is found a second time changes nothing, and one of a log
that was cut and begins anew does not touch other records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from flowshare.log.base import SettlesApart
from flowshare.server.runtime.state import Journal, ShareKey, Write, key_of, stored_in
from flowshare.share.records import decode_update, encode_update
from flowshare.share.types import PartitionUpdate, RecordState, StateRun

if TYPE_CHECKING:
    from flowshare.log.base import StateStore
    from flowshare.share.partition import Decision


def encode_settled(decision: Decision) -> bytes:
    """Encode the changes of a decision's records, as they are stored until the state has them."""
    return encode_update(PartitionUpdate(start_offset=-1, delivery_complete_count=-1, runs=tuple(decision.changes)))


async def follow_settled(store: StateStore, key: ShareKey) -> None:
    """Write all decided settles into a share-partition's state, before it is read. Raises: LogError."""
    if isinstance(store, SettlesApart):
        await store.decided(key.prefix)


def settled_writes(
    entries: Sequence[tuple[bytes, bytes]], settles: Iterable[tuple[bytes, Sequence[Write]]]
) -> list[Write]:
    """Return the writes by which a share-partition's state, which is `entries`, follows settles: an update each, and
    the writes beside it. Raises: StateCorrupt."""
    if not entries:
        return []
    key = key_of(entries[0][0])
    stored = stored_in(entries, key)
    if stored is None:
        return []
    acquired = [run for run in stored.state.runs if run.state is RecordState.ACQUIRED]
    runs: list[StateRun] = []
    writes: list[Write] = []
    for update, beside in settles:
        made = list(_common(acquired, sorted(decode_update(update).runs)))
        runs += made
        writes += beside if made else ()
    if not runs:
        return []
    state = stored.state
    whole = PartitionUpdate(
        start_offset=state.start_offset, delivery_complete_count=state.delivery_complete_count, runs=tuple(sorted(runs))
    )
    return [*Journal.following(key, stored, whole), *writes]


def _common(acquired: Sequence[StateRun], changes: Sequence[StateRun]) -> Iterator[StateRun]:
    """Yield the parts of changes whose records are acquired, in the same delivery; both ascend."""
    at = 0
    for change in changes:
        while at < len(acquired) and acquired[at].last < change.first:
            at += 1
        for run in acquired[at:]:
            if run.first > change.last:
                break
            if run.delivery_count == change.delivery_count:
                yield change._replace(first=max(run.first, change.first), last=min(run.last, change.last))
