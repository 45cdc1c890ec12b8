"""Order by key: the table of `heads`, told step by step, and the seeded world of order_world.py."""

from __future__ import annotations

import pytest

from flowshare.core_errors import CoreError, InvalidRecordState
from flowshare.share import acknowledge
from flowshare.share.acquire import HOLE_MAX, Acquisition
from flowshare.share.acquire_by_key import FAR_MAX
from flowshare.share.heads import KeyedBatch
from flowshare.share.partition import Decision, SharePartition
from flowshare.share.types import AckRange, Limits, RecordState, StateRun
from tests.share.order_world import OrderWorld
from tests.sim.seeds import play, seeds

ACCEPT, RELEASE, REJECT, RENEW = b"\x01", b"\x02", b"\x03", b"\x04"
LOCK_MS = 1_000


class Group:
    """A share-partition whose log has one record for each letter of `keys` ("-": no key), and whose writes succeed."""

    def __init__(self, keys: str, *, limits: Limits | None = None, batch: int = 100, **loaded: object) -> None:
        self.keys = keys
        self.batch = batch
        self.limits = limits or Limits(lock_duration_ms=LOCK_MS)
        self.partition = SharePartition(start_offset=0, limits=self.limits, ordered=True, **loaded)  # type: ignore[arg-type]
        self.place()

    def place(self) -> None:
        while (at := self.partition.next_place_offset(len(self.keys))) >= 0:
            first = at - at % self.batch
            offsets = range(first, min(len(self.keys), first + self.batch))
            hashes = [0 if self.keys[offset] == "-" else ord(self.keys[offset]) for offset in offsets]
            self.partition.place([KeyedBatch(first, offsets[-1], offsets, hashes)])

    def take(self, member: str = "m", records: int = 100, *, heads: int = 0, chain: int = 1, now: int = 0) -> list[int]:
        picked = self.partition.pick(member, records_max=records, heads_max=heads, chain=chain, now_ms=now)
        got = self.partition.confirm(member, picked)
        return [offset for first, last, _ in got.ranges for offset in range(first, last + 1)]

    def say(self, offsets: list[int], kind: bytes, member: str = "m", *, now: int = 0, **more: object) -> None:
        batches = [AckRange(offset, offset, kind, **more) for offset in offsets]  # type: ignore[arg-type]
        self.partition.commit(self.partition.acknowledge(member, batches, now_ms=now))


def test_only_the_first_record_of_each_key_is_handed_out() -> None:
    assert Group("abacb").take() == [0, 1, 3]


def test_records_without_a_key_have_no_order() -> None:
    assert Group("-a-a-").take() == [0, 1, 2, 4]


def test_the_next_of_a_key_is_free_when_the_one_before_is_accepted() -> None:
    group = Group("aab")
    group.take()
    group.say([0], ACCEPT)

    assert group.take("n") == [1]


def test_the_next_of_a_key_is_free_when_the_one_before_is_rejected() -> None:
    group = Group("aa")
    group.take()
    group.say([0], REJECT)

    assert group.take("n") == [1]


def test_a_released_record_comes_before_the_next_of_its_key() -> None:
    group = Group("aa")
    group.take()
    group.say([0], RELEASE)

    assert group.take("n") == [0]


def test_a_delayed_record_holds_up_its_key_and_no_other() -> None:
    group = Group("aabb")
    group.take()
    group.say([0], RELEASE, delay_ms=500)
    group.say([2], ACCEPT)
    others = group.take("n", now=400)
    group.partition.lapse(500)

    assert (others, group.take("n", now=500)) == ([3], [0])


def test_a_dead_letter_under_way_holds_up_its_key() -> None:
    group = Group("aa", limits=Limits(dead_letter_on_reject=True))
    group.take()
    group.say([0], REJECT)
    before = group.take("n")
    group.partition.finish_archiving(0, 0)

    assert (before, group.take("n")) == ([], [1])


def decided(group: Group, offset: int, kind: bytes = ACCEPT, member: str = "m") -> Decision:
    """Return the decision on a member's acknowledgement of an offset; it is not written yet."""
    return group.partition.acknowledge(member, [AckRange(offset, offset, kind)], now_ms=0)


def test_the_next_of_a_key_is_free_as_soon_as_the_one_before_is_accepted_and_leaves_with_what_is_written_then() -> None:
    group = Group("aa")
    group.take()
    decision = decided(group, 0)
    picked = group.partition.pick("n", records_max=1, now_ms=0)
    got = group.partition.confirm("n", picked)

    assert [run.first for run in (*decision.update.runs, *got.update.runs)] == [1]  # type: ignore[union-attr]
    assert decision.update.start_offset == 1, "0 is written with it, or before"  # type: ignore[union-attr]
    group.partition.commit(decision)
    assert [run[:3] for run in group.partition.in_flight()] == [(1, 1, "n")]


@pytest.mark.parametrize("kind", [RELEASE, REJECT], ids=["release", "dead letter"])
def test_what_is_not_finished_when_it_is_written_holds_up_its_key_all_the_while(kind: bytes) -> None:
    group = Group("aa", limits=Limits(lock_duration_ms=LOCK_MS, dead_letter_on_reject=True))
    group.take()
    decided(group, 0, kind)

    assert group.take("n") == []


def test_the_next_of_a_parked_key_waits_until_it_is_written_what_becomes_of_the_key() -> None:
    group = Group("aab")
    group.partition.single([ord("a")])
    assert group.take(records=1) == [0]
    decision = decided(group, 0)

    assert group.take("n") == [2]
    group.partition.commit(decision)
    assert group.take("n") == [1]


def test_what_comes_into_the_log_behind_a_record_whose_accept_is_being_written_is_free() -> None:
    group = Group("a")
    group.take()
    decision = decided(group, 0)
    group.keys = "aa"
    group.place()

    assert group.take("n") == [1]
    group.partition.commit(decision)
    group.say([1], ACCEPT, "n")
    assert group.partition.start_offset == 2


def test_an_accept_that_could_not_be_written_frees_nothing() -> None:
    group = Group("aa")
    group.take()
    decision = decided(group, 0)
    group.partition.abort(decision, now_ms=0)

    assert group.take("n") == []


def test_an_acknowledgement_that_is_refused_frees_nothing() -> None:
    group = Group("aab")
    group.take()
    batches = [AckRange(0, 0, ACCEPT), AckRange(2, 9, ACCEPT)]
    with pytest.raises(CoreError):
        group.partition.acknowledge("m", batches, now_ms=0)

    assert group.take("n") == []


def test_what_was_picked_behind_an_accept_that_could_not_be_written_is_not_confirmed() -> None:
    group = Group("aab")
    group.take(records=1)
    decision = decided(group, 0)
    picked = group.partition.pick("n", records_max=10, now_ms=0)
    group.partition.abort(decision, now_ms=0)

    assert group.partition.confirm("n", picked) == ((), None)
    assert group.take("n") == [2], "what depends on nothing comes with the next try"
    assert [run[:3] for run in group.partition.in_flight()] == [(0, 0, "m"), (2, 2, "n")]
    group.say([0], ACCEPT)
    assert group.take("n") == [1]


def test_what_was_acquired_behind_an_accept_that_could_not_be_written_goes_back_behind_it() -> None:
    group = Group("aaa")
    group.take()
    decision = decided(group, 0)
    assert group.take("n", chain=16) == [1, 2]
    group.partition.abort(decision, now_ms=0)
    with pytest.raises(CoreError):
        decided(group, 1, ACCEPT, "n")
    for offset in (1, 2):
        group.say([offset], RELEASE, "n", unrun=True)

    assert group.take("n") == []
    group.say([0], ACCEPT)
    assert group.take("n", chain=16) == [1, 2]


def test_what_vanished_behind_an_accept_that_is_being_written_holds_up_nothing() -> None:
    group = Group("aaaa")
    group.take()
    decision = decided(group, 0)
    picked = group.partition.pick("n", records_max=10, chain=2, now_ms=0)
    group.partition.confirm("n", picked, missing=[1, 2])

    assert group.take("n") == [3]
    group.partition.commit(decision)
    assert [run[:3] for run in group.partition.in_flight()] == [(3, 3, "n")]


def test_what_vanished_as_the_last_of_its_key_behind_an_accept_that_is_being_written_ends_no_order() -> None:
    group = Group("aa")
    group.take()
    decision = decided(group, 0)
    group.partition.confirm("n", group.partition.pick("n", records_max=1, now_ms=0), missing=[1])
    group.keys = "aaa"
    group.place()

    assert group.take("n") == [2]
    group.partition.commit(decision)
    group.keys = "aaaa"
    group.place()
    assert group.take("n") == []


def test_renewing_a_record_of_a_chain_keeps_what_is_before_it_too() -> None:
    group = Group("aa")
    group.take(chain=16)
    group.partition.abort(decided(group, 0), now_ms=0)
    group.partition.acknowledge("m", [AckRange(1, 1, RENEW)], now_ms=LOCK_MS - 1)
    group.partition.lapse(LOCK_MS)

    assert [run[:3] for run in group.partition.in_flight()] == [(0, 1, "m")], "else 0 would run beside 1"


def test_a_chain_is_handed_out_in_order_as_far_as_it_may_go() -> None:
    assert Group("aaaba").take(chain=3) == [0, 1, 2, 3]


def test_heads_come_before_what_may_follow_them() -> None:
    assert Group("aaabbb").take(records=3, chain=16) == [0, 1, 3]


def test_so_many_keys_are_begun_as_are_asked_for() -> None:
    assert Group("abcaa").take(heads=1, chain=16) == [0, 3, 4]


def test_of_many_keys_only_those_are_followed_whose_next_record_is_near() -> None:
    keys = "".join(chr(0x100 + number) for number in range(FAR_MAX + 10))

    assert Group(2 * keys, batch=1_000).take(records=1_000, heads=FAR_MAX, chain=16) == list(range(FAR_MAX))
    assert Group(2 * keys, batch=1_000).take(records=1_000, chain=16) == list(range(2 * len(keys))), "heads are short"


def test_what_was_delivered_before_is_in_no_chain() -> None:
    group = Group("aaa")
    group.take(chain=2)
    group.partition.lapse(LOCK_MS)

    assert group.take(chain=16) == [0]


def test_a_chain_is_settled_in_order() -> None:
    group = Group("aaa")
    group.take(chain=2)
    with pytest.raises(InvalidRecordState):
        group.say([1], ACCEPT)
    group.say([0], ACCEPT)
    group.say([1], ACCEPT)

    assert group.take("n") == [2]


def test_a_chain_may_be_settled_in_one_request() -> None:
    group = Group("aaa")
    group.take(chain=3)
    group.say([0, 1, 2], ACCEPT)

    assert group.partition.start_offset == 3


def test_a_chain_may_be_settled_while_the_one_before_is_written() -> None:
    group = Group("aaa")
    group.take(chain=3)
    first = group.partition.acknowledge("m", [AckRange(0, 0, ACCEPT)], now_ms=0)
    second = group.partition.acknowledge("m", [AckRange(1, 1, ACCEPT)], now_ms=0)
    group.partition.commit(first)
    group.partition.commit(second)
    group.say([2], ACCEPT)

    assert group.partition.start_offset == 3


def test_what_follows_a_release_is_not_accepted() -> None:
    group = Group("aa")
    group.take(chain=2)
    batches = [AckRange(0, 0, RELEASE), AckRange(1, 1, ACCEPT)]
    with pytest.raises(InvalidRecordState):
        group.partition.acknowledge("m", batches, now_ms=0)
    group.partition.acknowledge("m", [AckRange(0, 0, RELEASE)], now_ms=0)
    with pytest.raises(InvalidRecordState):
        group.partition.acknowledge("m", [AckRange(1, 1, ACCEPT)], now_ms=0)


def test_what_follows_a_dead_letter_waits_until_it_is_buried() -> None:
    group = Group("aa", limits=Limits(dead_letter_on_reject=True))
    group.take(chain=2)
    group.say([0], REJECT)
    with pytest.raises(InvalidRecordState):
        group.say([1], ACCEPT)
    group.partition.finish_archiving(0, 0)
    group.say([1], ACCEPT)

    assert group.partition.start_offset == 2


def test_the_rest_of_a_chain_goes_back_behind_its_head() -> None:
    group = Group("aaa")
    group.take(chain=3)
    batches = [AckRange(0, 0, RELEASE, 500), AckRange(1, 2, RELEASE, 500, True)]
    group.partition.commit(group.partition.acknowledge("m", batches, now_ms=0))
    blocked = group.partition.blocked_count
    group.partition.lapse(500)

    assert (blocked, group.take(chain=16)) == (2, [0])


def test_what_was_delivered_before_follows_no_head_that_was_not() -> None:
    group = Group("aa")
    group.take(chain=2)
    batches = [AckRange(0, 0, RELEASE, unrun=True), AckRange(1, 1, RELEASE)]
    group.partition.commit(group.partition.acknowledge("m", batches, now_ms=0))

    assert group.take(chain=16) == [0]


def test_what_is_lost_before_it_was_read_is_not_confirmed() -> None:
    group = Group("ab")
    picked = group.partition.pick("m", records_max=9, now_ms=0)
    group.partition.lapse(LOCK_MS)
    others = group.take("n", now=LOCK_MS)

    assert (others, group.partition.confirm("m", picked).ranges) == ([0, 1], ())


def test_the_locks_of_a_chain_are_renewed() -> None:
    group = Group("aa")
    group.take(chain=2)
    group.partition.acknowledge("m", [AckRange(0, 1, RENEW)], now_ms=500)
    group.partition.lapse(LOCK_MS)

    assert group.partition.acquired_count == 2


def test_a_member_that_is_gone_without_a_word_keeps_its_heads_until_its_locks_lapse() -> None:
    group = Group("aab")
    group.take()
    group.partition.release_member("m", died=True)
    before = group.take("n")
    group.partition.lapse(LOCK_MS)

    assert (before, group.take("n", now=LOCK_MS)) == ([], [0, 2])


@pytest.mark.parametrize("kind", [ACCEPT, RELEASE, RENEW])
def test_what_is_said_of_a_lock_that_lapsed_is_not_said_of_the_next_one(kind: bytes) -> None:
    group = Group("aa")
    group.take(now=0)
    group.partition.lapse(LOCK_MS)
    again = group.take(now=LOCK_MS)

    with pytest.raises(InvalidRecordState):
        group.say([0], kind, attempt=1)
    group.say([0], ACCEPT, attempt=2)

    assert (again, group.take()) == ([0], [1])


def test_the_lock_of_a_record_that_is_finished_is_not_renewed() -> None:
    """It lapsed, and another member finished it: who stood still meanwhile would begin it once more."""
    group = Group("ab")
    group.take(now=0, records=1)
    group.partition.lapse(LOCK_MS)
    group.take("n", now=LOCK_MS, records=1)
    group.say([0], ACCEPT, "n", now=LOCK_MS)
    group.take("m", now=LOCK_MS)

    assert group.partition.start_offset == 1
    with pytest.raises(InvalidRecordState, match="finished"):
        group.partition.acknowledge("m", [AckRange(0, 0, RENEW, attempt=1)], now_ms=LOCK_MS)
    both = group.partition.acknowledge("m", [AckRange(0, 1, RENEW, attempt=1)], now_ms=LOCK_MS)
    assert both.refused is not None
    assert both.refused.ranges == ((0, 0),)


def some_are_gone(keys: str = "abcdef", **taken: int) -> Group:
    """Member m was given all; the locks of 1 and 3 are not its own any more."""
    group = Group(keys)
    group.take(**taken)
    group.say([1, 3], RELEASE)
    assert group.take("n", records=2) == [1, 3]
    return group


def refused(group: Group, *batches: AckRange, now: int = 0) -> tuple[tuple[int, int], ...]:
    decision = group.partition.acknowledge("m", batches, now_ms=now)
    group.partition.commit(decision)
    return decision.refused.ranges if decision.refused is not None else ()


@pytest.mark.parametrize(
    "ranges", [[(0, 5)], [(at, at) for at in range(6)], [(0, 1), (2, 2), (3, 5)], [(0, 3), (4, 5)]]
)
def test_who_says_which_deliveries_are_meant_is_told_which_are_no_more_and_the_others_hold(
    ranges: list[tuple[int, int]],
) -> None:
    group = some_are_gone()

    said = refused(group, *(AckRange(first, last, ACCEPT, attempt=1) for first, last in ranges))

    assert said == ((1, 1), (3, 3))
    assert group.partition.acquired_count == 2
    assert group.partition.start_offset == 1


def test_of_a_range_the_offsets_before_one_that_is_no_more_hold_too() -> None:
    group = Group("abcd")
    group.take()
    group.say([2], RELEASE)

    assert refused(group, AckRange(0, 3, ACCEPT, attempt=1)) == ((2, 2),)
    assert (group.partition.start_offset, group.partition.acquired_count) == (2, 0)


def test_so_many_offsets_are_looked_at_one_by_one_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many ranges they come in: others wait for the leader meanwhile."""
    monkeypatch.setattr(acknowledge, "SPLIT_MAX", 3)
    group = some_are_gone()

    said = refused(group, *(AckRange(first, first + 1, ACCEPT, attempt=1) for first in (0, 2, 4)))

    assert said == ((1, 3),)
    assert group.partition.acquired_count == 3


def test_who_does_not_say_it_is_refused_as_a_whole() -> None:
    group = some_are_gone()

    with pytest.raises(InvalidRecordState):
        refused(group, *(AckRange(at, at, ACCEPT) for at in range(6)))
    assert group.partition.acquired_count == 6


def test_where_none_holds_the_whole_is_refused() -> None:
    group = some_are_gone()

    with pytest.raises(InvalidRecordState, match="offset 1 is"):
        refused(group, AckRange(1, 1, ACCEPT, attempt=1), AckRange(3, 3, ACCEPT, attempt=1))
    assert group.partition.acquired_count == 6


def test_of_locks_that_are_renewed_together_those_that_are_gone_keep_no_other_from_it() -> None:
    group = some_are_gone()

    said = refused(group, AckRange(0, 5, RENEW, attempt=1), now=LOCK_MS // 2)
    group.partition.lapse(LOCK_MS)

    assert said == ((1, 1), (3, 3))
    assert group.partition.acquired_count == 4


def test_what_is_being_acknowledged_is_not_refused_to_a_renewal_that_was_overtaken() -> None:
    """Else its member lets go of it, and has not told of it when the write fails and another leader asks."""
    group = Group("abc")
    group.take()
    settling = group.partition.acknowledge("m", [AckRange(1, 1, ACCEPT, attempt=1)], now_ms=0)

    assert refused(group, AckRange(0, 2, RENEW, attempt=1)) == ()
    with pytest.raises(InvalidRecordState):
        group.partition.acknowledge("n", [AckRange(1, 1, RENEW, attempt=1)], now_ms=0)
    with pytest.raises(InvalidRecordState):
        group.partition.acknowledge("m", [AckRange(1, 1, RENEW, attempt=2)], now_ms=0)
    group.partition.commit(settling)
    assert refused(group, AckRange(0, 2, RENEW, attempt=1)) == ((1, 1),)


def test_what_follows_a_record_of_its_chain_that_is_refused_is_refused_too() -> None:
    group = Group("aaab")
    group.take(chain=3)
    group.partition.lapse(LOCK_MS)
    assert group.take(chain=3, now=LOCK_MS, records=2) == [0, 3]

    batches = [AckRange(at, at, ACCEPT, attempt=2 - (at < 3)) for at in range(4)]
    assert refused(group, *batches, now=LOCK_MS) == ((0, 2),)
    assert group.partition.acquired_count == 1


def test_a_decision_with_refusals_that_is_not_written_leaves_the_rest_with_its_member() -> None:
    group = some_are_gone()

    batches = [AckRange(at, at, ACCEPT, attempt=1) for at in range(6)]
    decision = group.partition.acknowledge("m", batches, now_ms=0)
    group.partition.abort(decision, now_ms=0)

    assert refused(group, *batches) == ((1, 1), (3, 3))


def test_a_member_whose_process_has_ended_keeps_nothing() -> None:
    group = Group("aab")
    group.take()
    group.partition.release_member("m", died=True, gone=True)

    assert group.take("n") == [0, 2]


def test_what_could_not_be_read_is_free_again_and_counts_no_delivery() -> None:
    group = Group("aaa")
    picked = group.partition.pick("m", records_max=3, chain=3, now_ms=0)
    group.partition.put_back(picked)
    picked = group.partition.pick("m", records_max=3, chain=3, now_ms=0)

    assert [tuple(one) for one in picked.ranges] == [(0, 2, 1)]


def test_a_head_that_the_log_has_no_more_lets_the_next_one_go() -> None:
    group = Group("aab")
    picked = group.partition.pick("m", records_max=3, now_ms=0)
    got = group.partition.confirm("m", picked, missing=[0])

    assert ([tuple(one) for one in got.ranges], group.take("n")) == ([(2, 2, 1)], [1])


def test_one_that_vanished_within_a_chain_holds_up_nothing() -> None:
    group = Group("aaa")
    picked = group.partition.pick("m", records_max=3, chain=3, now_ms=0)
    group.partition.confirm("m", picked, missing=[1])
    with pytest.raises(InvalidRecordState):
        group.say([2], ACCEPT)
    group.say([0, 2], ACCEPT)

    assert group.partition.start_offset == 3


def test_a_head_that_retention_took_blocks_its_key_while_it_is_held() -> None:
    group = Group("aaba")
    group.take("m", records=1)
    group.partition.move_log_start(2)
    before = group.take("n")
    group.say([0], ACCEPT)

    assert (before, group.take("n")) == ([2], [3])


def test_a_key_whose_free_head_retention_took_goes_on() -> None:
    group = Group("aaa")
    group.partition.move_log_start(2)

    assert group.take() == [2]


def test_after_a_reload_nothing_is_handed_out_before_its_key_is_known() -> None:
    runs = (StateRun(0, 0, RecordState.ACQUIRED, 1, "m"), StateRun(1, 3, RecordState.AVAILABLE, 1))
    partition = SharePartition(start_offset=0, limits=Limits(), ordered=True, runs=runs, living=["m"])
    before = partition.pick("n", records_max=9, now_ms=0)
    partition.place([KeyedBatch(0, 3, range(4), [1, 1, 2, 1])])
    after = partition.pick("n", records_max=9, now_ms=0)

    assert (before.ranges, [tuple(one) for one in after.ranges]) == ((), [(2, 2, 2)])


def test_what_a_reload_finds_free_is_no_free_head_before_its_key_is_known() -> None:
    runs = (StateRun(0, 3, RecordState.AVAILABLE, 1),)
    partition = SharePartition(start_offset=0, limits=Limits(), ordered=True, runs=runs)
    before = partition.available_count
    partition.place([KeyedBatch(0, 1, range(2), [1, 1])])
    between = partition.available_count
    partition.place([KeyedBatch(2, 3, range(2, 4), [1, 2])])

    assert (before, between, partition.available_count) == (0, 1, 2)


def test_what_a_reload_finds_delayed_behind_its_head_waits_for_it_and_no_time() -> None:
    runs = (
        StateRun(0, 0, RecordState.ACQUIRED, 1, "m"),
        StateRun(1, 1, RecordState.AVAILABLE, 1, None, 5_000),
        StateRun(3, 3, RecordState.ACKNOWLEDGED, 1),
    )
    partition = SharePartition(start_offset=0, limits=Limits(), ordered=True, runs=runs, living=["m"])
    partition.place([KeyedBatch(0, 3, range(4), [1, 1, 1, 1])])
    due_ms = partition.next_deadline_ms()
    partition.commit(partition.acknowledge("m", [AckRange(0, 0, ACCEPT)], now_ms=0))

    assert due_ms == 30_000
    assert [tuple(one) for one in partition.pick("n", records_max=9, now_ms=0).ranges] == [(1, 1, 2)]


def test_what_a_reload_finds_free_and_the_log_has_no_more_is_archived() -> None:
    runs = (StateRun(0, 1, RecordState.AVAILABLE, 1),)
    partition = SharePartition(start_offset=0, limits=Limits(), ordered=True, runs=runs)
    update = partition.place([KeyedBatch(1, 1, [1], [1])])

    assert update is not None
    assert (update.start_offset, partition.available_count) == (1, 1)


def handed_out(partition: SharePartition, member: str) -> Acquisition:
    """Return the free records, picked and read."""
    return partition.confirm(member, partition.pick(member, records_max=9, now_ms=0))


def test_what_is_being_read_for_a_member_is_not_its_to_acknowledge_nor_to_keep() -> None:
    partition = SharePartition(start_offset=0, limits=Limits(), ordered=True)
    partition.place([KeyedBatch(0, 1, [0, 1], [1, 2])])
    picked = partition.pick("m", records_max=9, now_ms=0)

    assert partition.in_flight() == ()
    for said in ([AckRange(0, 0, ACCEPT)], [AckRange(0, 1, RENEW)], [AckRange(1, 1, RELEASE)]):
        with pytest.raises(InvalidRecordState, match="not seen"):
            partition.acknowledge("m", said, now_ms=1)
    partition.put_back(picked)
    assert [tuple(one) for one in handed_out(partition, "n").ranges] == [(0, 1, 1)]
    assert [run.member_id for run in partition.in_flight()] == ["n"]


def test_what_is_held_and_in_the_log_no_more_holds_up_all_keys_behind_it() -> None:
    runs = (StateRun(1, 1, RecordState.ACQUIRED, 1, "m"),)
    partition = SharePartition(start_offset=0, limits=Limits(), ordered=True, runs=runs, living=["m"])
    batch = KeyedBatch(0, 3, [0, 2, 3], [1, 2, 3])
    partition.place([batch])
    before = handed_out(partition, "n")
    partition.commit(partition.acknowledge("n", [AckRange(0, 0, ACCEPT)], now_ms=0))
    still = partition.next_place_offset(4)
    partition.commit(partition.acknowledge("m", [AckRange(1, 1, ACCEPT)], now_ms=0))
    partition.place([batch])
    after = partition.pick("n", records_max=9, now_ms=0)

    assert ([tuple(one) for one in before.ranges], still) == ([(0, 0, 1)], -1)
    assert [tuple(one) for one in after.ranges] == [(2, 3, 1)]


def test_a_batch_that_cannot_be_opened_comes_when_all_before_it_is_settled_and_nothing_passes_it() -> None:
    partition = SharePartition(start_offset=0, limits=Limits(), ordered=True)
    batches = [KeyedBatch(0, 0, [0], [1]), KeyedBatch(1, 2, None), KeyedBatch(3, 3, [3], [2])]
    seen = []
    for first, last in ((0, 0), (1, 2), (3, 3)):
        for _ in range(2):
            partition.place(batches)
            seen += [tuple(one) for one in handed_out(partition, "m").ranges]
            seen += ["more to read"] if partition.next_place_offset(4) >= 0 else []
        partition.commit(partition.acknowledge("m", [AckRange(first, last, REJECT)], now_ms=0))

    assert seen == [(0, 0, 1), (1, 2, 1), (3, 3, 1)]


def test_of_records_on_their_last_delivery_the_first_one_that_may_go_to_a_member_does() -> None:
    runs = (StateRun(0, 2, RecordState.AVAILABLE, 4),)
    partition = SharePartition(start_offset=0, limits=Limits(delivery_count_max=5), ordered=True, runs=runs)
    partition.place([KeyedBatch(0, 2, (0, 1, 2), (11, 12, 13))])
    partition.single({11})

    picked = partition.pick("m", records_max=9, now_ms=0, singles=False)

    assert [tuple(one) for one in picked.ranges] == [(1, 1, 5)]


def test_a_poisonous_head_bounds_only_one_member() -> None:
    group = Group("abab", limits=Limits(lock_duration_ms=LOCK_MS))
    for turn in (0, 1):
        group.take("m", records=1, now=turn * LOCK_MS)
        group.partition.release_member("m", died=True)
        group.partition.lapse((turn + 1) * LOCK_MS)
    now = 2 * LOCK_MS
    alone = group.take("n", now=now)
    more_for_it = group.take("n", now=now)

    assert (alone, more_for_it, group.take("o", now=now)) == ([0], [], [1])


def test_a_poisonous_head_waits_for_its_member_and_goes_to_no_other() -> None:
    group = Group("abc")
    group.take("m", records=1)
    group.partition.release_member("m", died=True)
    group.partition.lapse(LOCK_MS)
    group.take("m", records=1, now=LOCK_MS)
    group.take("n", records=1, now=LOCK_MS + 500)
    group.partition.release_member("m", died=True)
    now = 2 * LOCK_MS
    group.partition.lapse(now)
    while_it_holds = group.take("n", now=now)
    others = group.take("o", now=now)
    group.say([1], ACCEPT, "n", now=now)

    assert (while_it_holds, others, group.take("n", now=now)) == ([], [2], [0])


def test_the_window_bounds_how_far_other_keys_run_past_a_stuck_one() -> None:
    group = Group("a" * 30 + "b", limits=Limits(window_max=20), batch=5)

    assert (group.take(), group.partition.next_place_offset(31)) == ([0], -1)


def test_it_says_which_keys_hold_up_most_records_and_who_holds_their_heads() -> None:
    group = Group("abababa--cca", limits=Limits(lock_duration_ms=LOCK_MS))
    group.take("m", records=1)
    group.take("n", records=1)
    group.say([1], RELEASE, "n", delay_ms=500)
    group.take("o", records=1)

    assert group.partition.blocked_count == 4 + 2 + 1
    assert [tuple(one) for one in group.partition.most_blocked(9)] == [
        (0, 4, "HELD", 1, "m"),
        (1, 2, "DELAYED", 1, ""),
        (9, 1, "AVAILABLE", 0, ""),
    ]
    assert len(group.partition.most_blocked(1)) == 1


def test_what_a_member_holds_in_a_chain_waits_for_the_one_before_it_as_what_is_blocked_does() -> None:
    group = Group("aaaaab", limits=Limits(lock_duration_ms=LOCK_MS))
    group.take("m", chain=3)
    held = group.partition.blocked_count, [tuple(one) for one in group.partition.most_blocked(9)]
    group.say([0], ACCEPT)
    one_is_done = group.partition.blocked_count, [tuple(one) for one in group.partition.most_blocked(9)]
    group.say([1, 2], ACCEPT)

    assert held == (4, [(0, 4, "HELD", 1, "m")])
    assert one_is_done == (3, [(1, 3, "HELD", 1, "m")])
    assert group.partition.blocked_count == 1


def test_it_says_that_a_dead_letter_is_under_way_and_nothing_of_what_is_settled() -> None:
    group = Group("baaa", limits=Limits(lock_duration_ms=LOCK_MS, dead_letter_on_reject=True))
    group.take("m")
    group.say([0], ACCEPT)
    group.say([1], REJECT)

    assert [tuple(one) for one in group.partition.most_blocked(9)] == [(1, 2, "ARCHIVING", 1, "")]


def test_keys_that_come_one_at_a_time_begin_no_chain_and_go_only_to_who_asks_for_them() -> None:
    group = Group("aabb")
    group.partition.single([ord("a")])
    without = group.partition.pick("m", records_max=9, heads_max=9, chain=4, now_ms=0, singles=False)
    with_them = group.partition.pick("n", records_max=9, heads_max=9, chain=4, now_ms=0)

    assert [tuple(one) for one in without.ranges] == [(2, 3, 1)]
    assert [tuple(one) for one in with_them.ranges] == [(0, 0, 1)]
    assert (group.partition.hash_at(1), group.partition.hash_at(2)) == (ord("a"), ord("b"))


def test_it_says_how_much_of_its_window_is_used_and_how_much_is_on_its_way_to_the_dead_letters() -> None:
    group = Group("aabb", limits=Limits(window_max=8, dead_letter_on_reject=True))
    group.take("m")
    group.say([0], REJECT)

    assert (group.partition.window_used, group.partition.archiving_count) == (0.5, 1)


def test_what_members_held_whose_processes_have_ended_is_free_after_a_reload() -> None:
    runs = (StateRun(0, 0, RecordState.ACQUIRED, 1, "gone"), StateRun(1, 1, RecordState.ACQUIRED, 1, "unknown"))
    partition = SharePartition(start_offset=0, limits=Limits(), ordered=True, runs=runs, gone=["gone"])
    partition.place([KeyedBatch(0, 1, range(2), [1, 2])])

    assert [tuple(one) for one in partition.pick("m", records_max=9, now_ms=0).ranges] == [(0, 0, 2)]


def test_a_cut_log_forgets_who_waited_behind_the_cut() -> None:
    group = Group("abab")
    group.take("m", records=1)
    group.partition.cut(2)
    group.keys = "abb"
    group.place()
    group.say([0], ACCEPT)

    assert (group.take("n"), group.partition.blocked_count) == ([1], 1)


def test_what_comes_in_the_place_of_a_chain_that_was_cut_is_in_none() -> None:
    group = Group("aaa")
    group.take(chain=3)
    group.partition.cut(2)
    group.keys = "aab"
    group.place()
    taken = group.take("n")
    group.say(taken, ACCEPT, "n")

    assert (taken, group.partition.delivery_complete_count) == ([2], 1)


def test_a_cut_within_a_closed_batch_holds_up_what_comes_behind_no_longer_than_its_rest() -> None:
    partition = SharePartition(start_offset=0, limits=Limits(), ordered=True)
    partition.place([KeyedBatch(0, 2, None)])
    handed_out(partition, "m")
    partition.cut(1)
    held_up = partition.next_place_offset(3)
    partition.commit(partition.acknowledge("m", [AckRange(0, 0, ACCEPT)], now_ms=0))
    partition.place([KeyedBatch(1, 1, [1], [1])])

    assert (held_up, partition.next_place_offset(3)) == (-1, 2)


def test_a_cut_log_holds_nothing_up_any_more() -> None:
    partition = SharePartition(start_offset=0, limits=Limits(), ordered=True)
    partition.place([KeyedBatch(0, 2, None)])
    partition.pick("m", records_max=9, now_ms=0)
    partition.cut(0)
    partition.place([KeyedBatch(0, 0, [0], [1])])

    assert partition.next_place_offset(2) == 1


def test_a_cut_in_a_gap_that_was_passed_is_read_again() -> None:
    partition = SharePartition(start_offset=0, limits=Limits(), ordered=True)
    far = 2 * HOLE_MAX
    partition.place([KeyedBatch(0, 0, [0], [1]), KeyedBatch(far, far, [far], [2])])
    passed = partition.next_place_offset(far + 1)
    partition.cut(5)

    assert (passed, partition.next_place_offset(6)) == (far, 5)


def test_a_few_worlds_keep_the_order_of_keys() -> None:
    play(range(1, 9), lambda seed: OrderWorld(seed).run())


@pytest.mark.slow
def test_no_handler_begins_before_the_record_before_it_is_settled() -> None:
    play(seeds(150, 1), lambda seed: OrderWorld(seed).run())


# --- picked, and not confirmed ------------------------------------------------------------------------------------


def twice_delivered() -> SharePartition:
    """One record that has one delivery left."""
    limits = Limits(lock_duration_ms=1_000, delivery_count_max=3)
    runs = [StateRun(0, 0, RecordState.AVAILABLE, 2)]
    partition = SharePartition(start_offset=0, limits=limits, runs=runs, now_ms=0, ordered=True)
    partition.place([KeyedBatch(0, 0, [0], [1])])
    return partition


def test_a_snapshot_while_picked_records_are_read_knows_nothing_of_the_delivery() -> None:
    partition = twice_delivered()
    picked = partition.pick("m", records_max=10, now_ms=0)

    assert partition.state() == (StateRun(0, 0, RecordState.AVAILABLE, 2),)
    partition.confirm("m", picked)
    assert partition.state() == (StateRun(0, 0, RecordState.ACQUIRED, 3, "m"),)


def test_a_lock_that_lapses_while_picked_records_are_read_counts_no_delivery() -> None:
    partition = twice_delivered()
    picked = partition.pick("m", records_max=10, now_ms=0)
    partition.lapse(2_000)

    assert partition.confirm("m", picked).ranges == ()
    assert partition.state() == (StateRun(0, 0, RecordState.AVAILABLE, 2),)


def test_a_few_that_follow_between_many_heads_are_taken_with_them() -> None:
    partition = SharePartition(start_offset=0, limits=Limits(), now_ms=0, ordered=True)
    partition.place([KeyedBatch(0, 14, range(15), [*range(1, 11), 3, 1, 3, 7, 11])])
    picked = partition.pick("m", records_max=30, heads_max=11, chain=2, now_ms=0)

    offsets = [one for first, last, _ in picked.ranges for one in range(first, last + 1)]
    assert offsets == [*range(12), 13, 14], "12 would be the third of its chain"


def test_a_suspect_that_is_put_back_comes_alone_again() -> None:
    runs = [StateRun(0, 0, RecordState.ACQUIRED, 2, "dead")]
    limits = Limits(lock_duration_ms=1_000)
    partition = SharePartition(start_offset=0, limits=limits, runs=runs, gone={"dead"}, now_ms=0, ordered=True)
    partition.place([KeyedBatch(0, 4, range(5), [1, 2, 3, 4, 5])])
    partition.put_back(partition.pick("m", records_max=10, now_ms=0))

    assert partition.pick("n", records_max=10, now_ms=0).ranges == ((0, 0, 3),)


@pytest.mark.parametrize("far", [3, 2_000])
def test_what_follows_between_two_heads_is_taken_whether_it_is_near_or_far(far: int) -> None:
    """Offset 0 and every 7th behind it have key 1; all others but the last one are settled."""
    end = 7 * far
    hashes = [1 if offset % 7 == 0 else 2 for offset in range(end)] + [3]
    partition = SharePartition(start_offset=0, limits=Limits(), now_ms=0, ordered=True)
    partition.place([KeyedBatch(0, end, range(end + 1), hashes)])
    picked = partition.pick("m", records_max=100, heads_max=3, chain=3, now_ms=0)

    assert [one for first, last, _ in picked.ranges for one in range(first, last + 1)] == [0, 1, 2, 3, 7, 14, end]


def test_dead_letters_that_are_under_way_are_found_without_looking_at_all_the_rest() -> None:
    limits = Limits(delivery_count_max=3, dead_letter_on_limit=True, dead_letter_on_reject=True)
    runs = [StateRun(at, at, RecordState.ARCHIVING, 1 + at % 2) for at in (5, 6, 9)]
    partition = SharePartition(start_offset=0, limits=limits, runs=runs, now_ms=0, ordered=True)

    assert partition.has_archiving
    assert [(one.first, one.last, one.delivery_count) for one in partition.archiving()] == [
        (5, 5, 2),
        (6, 6, 1),
        (9, 9, 2),
    ]


# --- what is made durable by itself -------------------------------------------------------------------------------


def held_back(group: Group, offsets: list[int]) -> Decision:
    """Accept records apart from all that is decided later."""
    batches = [AckRange(offset, offset, ACCEPT) for offset in offsets]
    decision = group.partition.acknowledge("m", batches, now_ms=0)
    group.partition.hold_back(decision)
    return decision


@pytest.mark.parametrize("chain", [1, 2])
def test_the_next_of_a_key_waits_until_what_is_held_back_is_committed(chain: int) -> None:
    group = Group("aaab")
    taken = group.take(chain=chain)
    decision = held_back(group, [offset for offset in taken if offset < 3])

    assert group.take("n") == []
    group.partition.commit(decision)
    assert group.take("n") == [chain]


def test_what_is_held_back_and_aborted_is_the_members_again() -> None:
    group = Group("aab")
    group.take()
    decision = held_back(group, [0])

    assert group.partition.abort(decision, now_ms=0) is None
    assert group.take("n") == []
    group.say([0], ACCEPT)
    assert group.take("n") == [1]


def test_within_a_chain_nothing_ends_before_what_is_held_back_is_committed() -> None:
    group = Group("aab")
    group.take(chain=2)
    decision = held_back(group, [0])

    with pytest.raises(InvalidRecordState):
        group.partition.acknowledge("m", [AckRange(1, 1, ACCEPT)], now_ms=0)
    group.partition.commit(decision)
    group.say([1], ACCEPT)


def test_records_that_come_meanwhile_wait_for_what_is_held_back() -> None:
    group = Group("ab")
    group.take()
    decision = held_back(group, [0])
    group.keys += "a"
    group.place()

    assert group.take("n") == []
    group.partition.commit(decision)
    assert group.take("n") == [2]
