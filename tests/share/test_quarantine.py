"""Records that a process died with at their second delivery, or a later one, are delivered alone."""

from __future__ import annotations

from flowshare.share.partition import SharePartition
from flowshare.share.types import (
    UNLIMITED_DELIVERIES,
    AckRange,
    AcquiredRange,
    AcquireMode,
    Limits,
    LogBatch,
    RecordState,
    StateRun,
)

ACCEPT, RELEASE = b"\x01", b"\x02"


def reloaded(count: int, limit: int = 10) -> SharePartition:
    """A share-partition whose process died with offsets 2..5 acquired for the `count`-th time."""
    run = StateRun(2, 5, RecordState.ACQUIRED, count, "dead")
    return SharePartition(start_offset=2, limits=Limits(delivery_count_max=limit), runs=(run,))


def acquire(partition: SharePartition, member: str) -> tuple[AcquiredRange, ...]:
    return partition.acquire(
        member,
        mode=AcquireMode.BATCH_OPTIMIZED,
        records_max=100,
        batch_size=100,
        fetch_offset=partition.next_fetch_offset(),
        batches=[LogBatch(0, 20)],
        now_ms=0,
    ).ranges


def settle(partition: SharePartition, member: str, offset: int, kind: bytes) -> None:
    partition.commit(partition.acknowledge(member, [AckRange(offset, offset, kind)], now_ms=0))


def test_after_one_death_nothing_is_kept_apart() -> None:
    assert acquire(reloaded(1), "m1") == (AcquiredRange(2, 5, 2), AcquiredRange(6, 20, 1))


def test_after_two_deaths_each_record_comes_alone_and_the_rest_follows() -> None:
    partition = reloaded(2)

    for offset in range(2, 6):
        assert acquire(partition, "m1") == (AcquiredRange(offset, offset, 3),)
        assert acquire(partition, "m1") == ()
        settle(partition, "m1", offset, ACCEPT)

    assert acquire(partition, "m1") == (AcquiredRange(6, 20, 1),)


def test_without_a_delivery_limit_nothing_is_ever_kept_apart() -> None:
    partition = reloaded(7, UNLIMITED_DELIVERIES)

    assert acquire(partition, "m1") == (AcquiredRange(2, 5, 8), AcquiredRange(6, 20, 1))
    partition.release_member("m1", died=True)
    assert acquire(partition, "m1") == (AcquiredRange(2, 5, 9), AcquiredRange(6, 20, 2))


def test_another_member_gets_the_next_one_meanwhile() -> None:
    partition = reloaded(2)

    assert acquire(partition, "m1") == (AcquiredRange(2, 2, 3),)
    assert acquire(partition, "m2") == (AcquiredRange(3, 3, 3),)


def test_a_member_that_holds_something_gets_no_suspect_and_nothing_behind_one() -> None:
    runs = (StateRun(2, 3, RecordState.AVAILABLE, 1), StateRun(4, 5, RecordState.ACQUIRED, 2, "dead"))
    partition = SharePartition(start_offset=2, limits=Limits(delivery_count_max=10), runs=runs)

    assert acquire(partition, "m1") == (AcquiredRange(2, 3, 2),)
    assert acquire(partition, "m1") == ()
    settle(partition, "m1", 2, ACCEPT)
    assert acquire(partition, "m1") == ()
    settle(partition, "m1", 3, ACCEPT)
    assert acquire(partition, "m1") == (AcquiredRange(4, 4, 3),)


def test_a_suspect_that_was_given_back_is_none_any_more() -> None:
    partition = reloaded(2)
    acquire(partition, "m1")
    settle(partition, "m1", 2, RELEASE)

    assert acquire(partition, "m1") == (AcquiredRange(2, 2, 4),)


def test_the_quarantine_is_over_when_the_last_suspect_is_settled_by_whoever_ran_it() -> None:
    partition = reloaded(2)
    for offset in range(2, 6):
        assert partition.choosy
        member = f"m{offset}"  # each is gone after its record
        assert acquire(partition, member) == (AcquiredRange(offset, offset, 3),)
        settle(partition, member, offset, ACCEPT)

    assert acquire(partition, "last") == (AcquiredRange(6, 20, 1),)
    assert not partition.choosy


def test_what_a_member_held_that_died_beside_a_living_leader_comes_alone_the_second_time() -> None:
    partition = SharePartition(start_offset=0, limits=Limits(delivery_count_max=10))
    assert acquire(partition, "m1") == (AcquiredRange(0, 20, 1),)
    partition.release_member("m1", died=True)
    assert acquire(partition, "m2") == (AcquiredRange(0, 20, 2),)
    partition.release_member("m2", died=True)

    assert acquire(partition, "m3") == (AcquiredRange(0, 0, 3),)
    assert acquire(partition, "m4") == (AcquiredRange(1, 1, 3),)


def test_what_a_member_gave_back_when_it_closed_in_order_is_not_kept_apart() -> None:
    partition = SharePartition(start_offset=0, limits=Limits(delivery_count_max=10))
    for count in (1, 2, 3):
        assert acquire(partition, "m1") == (AcquiredRange(0, 20, count),)
        partition.release_member("m1")


def test_records_below_older_suspects_are_kept_apart_too() -> None:
    partition = reloaded(2)
    partition.release_member("m1", died=True)
    assert acquire(partition, "m1") == (AcquiredRange(2, 2, 3),)
    partition.release_member("m1", died=True)

    assert acquire(partition, "m1") == (AcquiredRange(2, 2, 4),)
    assert acquire(partition, "m2") == (AcquiredRange(3, 3, 3),)
