"""Short ways to set up a share-partition: every argument of the core's calls has a default here."""

from __future__ import annotations

from collections.abc import Container, Sequence

from flowshare.share.partition import Decision, SharePartition
from flowshare.share.types import AcknowledgeType, AckRange, AcquireMode, Limits, LogBatch, RecordState, StateRun

GAP, ACCEPT, RELEASE, REJECT, RENEW = AcknowledgeType
AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVING, ARCHIVED = RecordState

Taken = list[tuple[int, int, int]]


def partition(
    start: int = 0, runs: Sequence[StateRun] = (), *, living: Container[str] = (), now: int = 0, **limits: object
) -> SharePartition:
    """A share-partition that counts as Kafka does unless `window_max` is given."""
    chosen = Limits(**{"window_max": None, **limits})
    return SharePartition(start_offset=start, limits=chosen, runs=runs, living=living, now_ms=now)


def run(first: int, last: int, state: RecordState, count: int = 1, member: str | None = None, due: int = 0) -> StateRun:
    return StateRun(first, last, state, count, member, due)


def acquire(
    target: SharePartition,
    *batches: tuple[int, int],
    member: str = "m1",
    most: int = 500,
    batch_size: int = 500,
    record_limit: bool = False,
    fetch: int | None = None,
    now: int = 0,
    aborted: Sequence[tuple[int, int]] = (),
) -> Taken:
    """Acquire from a log that returned `batches`, read from the next fetch offset."""
    acquisition = target.acquire(
        member,
        mode=AcquireMode.RECORD_LIMIT if record_limit else AcquireMode.BATCH_OPTIMIZED,
        records_max=most,
        batch_size=batch_size,
        fetch_offset=target.next_fetch_offset() if fetch is None else fetch,
        batches=[LogBatch(*batch) for batch in batches],
        now_ms=now,
        aborted=[LogBatch(*batch) for batch in aborted],
    )
    return [tuple(taken) for taken in acquisition.ranges]


def decide(
    target: SharePartition,
    first: int,
    last: int,
    *types: AcknowledgeType,
    member: str = "m1",
    now: int = 0,
    not_before: int = 0,
    unrun: bool = False,
) -> Decision:
    """Acknowledge one batch and leave the decision open."""
    batch = AckRange(first, last, bytes(types), max(0, not_before - now), unrun)
    return target.acknowledge(member, [batch], now_ms=now)


def settle(target: SharePartition, first: int, last: int, *types: AcknowledgeType, **options: object) -> Decision:
    """Acknowledge one batch and commit it."""
    decision = decide(target, first, last, *types, **options)
    target.commit(decision)
    return decision


def states(target: SharePartition) -> list[tuple[int, int, RecordState, int]]:
    """The window as (first, last, state, delivery count)."""
    return [(one.first, one.last, one.state, one.delivery_count) for one in target.state()]
