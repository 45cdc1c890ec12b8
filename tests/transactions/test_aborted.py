"""Which batches belong to aborted transactions, and what is forgotten of them."""

from __future__ import annotations

from flowshare.transactions.aborted import Aborted, AbortedIndex, AbortedSpans

FIRST, SECOND, OTHER = Aborted(7, 10, 19, 20), Aborted(7, 30, 39, 25), Aborted(8, 25, 45, 46)


def test_a_batch_is_of_an_aborted_transaction_of_its_own_producer_between_its_first_and_its_marker():
    spans = AbortedSpans([FIRST, SECOND, OTHER])

    assert [offset for offset in range(50) if spans.holds(7, offset)] == [*range(10, 20), *range(30, 40)]
    assert spans.holds(8, 25)
    assert not spans.holds(8, 24)
    assert not spans.holds(9, 30)


def test_those_are_found_that_reach_into_what_is_read():
    index = AbortedIndex()
    for one in (FIRST, SECOND, OTHER):
        index.add(one)

    assert index.between(0, 10) == ()
    assert index.between(19, 25) == (FIRST,)
    assert index.between(20, 31) == (SECOND, OTHER)
    assert index.between(46, 99) == ()


def test_those_whose_markers_are_gone_are_forgotten():
    index = AbortedIndex()
    for one in (FIRST, SECOND, OTHER):
        index.add(one)

    assert index.remove([5]) == 0
    assert index.remove([19, 45, 99]) == 2

    assert index.between(0, 99) == (SECOND,)
    assert index.remove([39]) == 1
    assert index.between(0, 99) == ()
