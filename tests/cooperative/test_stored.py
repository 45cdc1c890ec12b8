"""The form in the store: what cannot be read is refused, but for ranges, whose records come again."""

from __future__ import annotations

import pytest

from flowshare.cooperative.attempts import AttemptsState
from flowshare.cooperative.partition import CooperativePartition
from flowshare.cooperative.stored import (
    CLAIMS_KEY,
    PENDING_KEY,
    REACHES_KEY,
    SPANS_KEY,
    STABLE_KEY,
    VERSION,
    encode,
    load,
)
from flowshare.cooperative.types import (
    HASHES,
    Claim,
    DropPending,
    DropRange,
    DropSpans,
    Holder,
    Horizon,
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
from flowshare.sealing import seal

STABLE = encode(PutStable(5, 2))


def entries(*mutations):
    return [(key, value) for key, value in map(encode, mutations) if value is not None]


def test_keys_sort_as_their_offsets():
    firsts = [0, 1, 255, 256, 2**40]

    assert sorted(encode(DropRange(first))[0] for first in firsts) == [encode(DropRange(first))[0] for first in firsts]
    assert encode(PutRange(7, 9, 0))[0] == encode(DropRange(7))[0]
    assert encode(DropRange(7))[1] is None
    assert encode(DropPending(7)) == (encode(PutPending(7, PendingOffsets(0, ())))[0], None)


def test_there_is_no_partition_without_its_stable_offset():
    assert load([], now_ms=0) is None
    assert load(entries(PutRange(7, 9, 0)), now_ms=0) is None


def test_ranges_of_another_epoch_count_no_more_and_are_to_be_deleted():
    loaded = load(entries(PutRange(7, 9, 1), PutStable(5, 2), PutRange(11, 12, 2), PutRange(14, 15, 3)), now_ms=0)

    assert loaded is not None
    assert loaded.state.offsets.ranges() == [(11, 12)]
    assert loaded.repair == (DropRange(7), DropRange(14))


def test_what_a_crash_left_undone_is_repaired():
    found = entries(PutStable(5, 2), PutRange(3, 4, 2), PutRange(4, 8, 2), PutRange(10, 13, 2), PutRange(12, 15, 2))
    loaded = load(found, now_ms=0)

    assert loaded is not None
    assert (loaded.state.offsets.stable, loaded.state.offsets.ranges()) == (8, [(10, 15)])
    assert loaded.repair == (PutRange(10, 15, 2), PutStable(8, 2), DropRange(3), DropRange(4), DropRange(12))
    store = dict(found)
    for mutation in loaded.repair:
        key, value = encode(mutation)
        store.pop(key, None) if value is None else store.update({key: value})
        again = load(store.items(), now_ms=0)
        assert again is not None
        assert again.state.offsets.ranges() == [(10, 15)]
    assert again.repair == ()


def test_a_range_that_cannot_be_read_is_left_out():
    key, _ = encode(PutRange(7, 9, 2))
    good = entries(PutStable(5, 2), PutRange(11, 12, 2))
    for broken in ((key, b"?"), (key, seal(b"short", VERSION)), (key + b"x", good[1][1]), encode(PutRange(9, 9, 2))):
        loaded = load([*good, broken], now_ms=0)
        assert loaded is not None
        assert (loaded.unreadable, loaded.state.offsets.ranges()) == (1, [(11, 12)])


@pytest.mark.parametrize(
    "broken",
    [
        (STABLE_KEY, b""),
        (STABLE_KEY, seal(b"1234", VERSION)),
        (STABLE_KEY, b"\x09" + STABLE[1][1:]),
        (STABLE_KEY, STABLE[1][:-1] + b"\x55"),
        (CLAIMS_KEY, seal(b"{", VERSION)),
        (CLAIMS_KEY, seal(b"[1,[],[[0,5,0,1]]]", VERSION)),
        (CLAIMS_KEY, seal(b"[1]", VERSION)),
        (SPANS_KEY, seal(b"[1,[[0]]]", VERSION)),
        (REACHES_KEY, seal(b"[[]]", VERSION)),
        (REACHES_KEY, seal(b"[[],[],[[1]]]", VERSION)),
        (PENDING_KEY + bytes(8), seal(b"[1,2]", VERSION)),
        (PENDING_KEY, encode(PutPending(7, PendingOffsets(0, ())))[1]),
        (b"\x09", b""),
    ],
)
def test_what_is_not_a_range_and_cannot_be_read_is_refused(broken):
    with pytest.raises(StateCorrupt):
        load([STABLE, broken], now_ms=0)


def test_everything_comes_back_with_whole_leases():
    claims = PutClaims(9, (Holder("a", 4, 1_000), Holder("b", 5, 2_000)), (Claim(0, 5, "a", 2), Claim(7, 9, "b", 8)))
    pending = PutPending(7, PendingOffsets(2, ((5, 6),), ((0, 3),)))

    begun = PutReaches((Reach(0, 5, 9),), (Horizon("a", 7),))

    loaded = load(entries(PutStable(5, 2), claims, pending, begun, PutStarts(7, 3)), now_ms=100)

    assert loaded is not None
    state = loaded.state
    assert state.claims.state.claims == claims.claims
    assert state.claims.state.epoch == 9
    assert {name: one.deadline_ms for name, one in state.claims.state.members.items()} == {"a": 1_100, "b": 2_100}
    assert state.attempts.state == (begun.reaches, {7: 3}, {"a": 7})
    assert state.pending.state == {7: pending.pending}


def test_offsets_that_members_had_whatever_their_keys_are_free_and_may_have_been_begun():
    """As free mode stored them: spans (first, end, member, epoch, lease, exact starts), and, beside reaches and
    horizons, the offsets of those that had ended."""
    spans = seal(b'[3,[[5,9,"a",3,1000,false],[9,40,"b",2,1000,true]]]', VERSION)
    reaches = seal(b'[[[0,5,3]],[["a",7]],[[6,12],[20,22]]]', VERSION)
    old = [STABLE, (SPANS_KEY, spans), (REACHES_KEY, reaches)]

    loaded = load(old, now_ms=0)

    assert loaded is not None
    assert not CooperativePartition(loaded.state).in_use
    assert [loaded.state.attempts.told(at, 9) for at in (11, 21, 22, 30)] == [1, 1, 0, 0]
    assert loaded.repair == (PutReaches((Reach(0, HASHES, 22),), (Horizon("a", 7),)), DropSpans())
    now = dict(old)
    for key, value in map(encode, loaded.repair):
        if value is None:
            del now[key]
        else:
            now[key] = value
    again = load(now.items(), now_ms=0)
    assert again is not None
    assert (again.repair, again.state.attempts.state) == ((), loaded.state.attempts.state)


def test_of_spans_before_the_stable_offset_or_with_exact_starts_nothing_counts():
    spans = seal(b'[3,[[5,9,"a",3,1000,true]]]', VERSION)
    loaded = load([STABLE, (SPANS_KEY, spans), (REACHES_KEY, seal(b"[[],[],[[0,1]]]", VERSION))], now_ms=0)

    assert loaded is not None
    assert loaded.state.attempts.state == AttemptsState()
    assert loaded.repair == (DropSpans(),)
