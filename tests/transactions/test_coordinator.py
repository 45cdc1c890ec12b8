"""The transaction coordinator's table, cell by cell, and its epochs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flowshare.core_errors import (
    ConcurrentTransactions,
    CoreError,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidRequest,
    InvalidTransactionTimeout,
    InvalidTxnState,
    ProducerFenced,
    TransactionLimit,
)
from flowshare.transactions import coordinator
from flowshare.transactions.coordinator import AskingProducer
from flowshare.transactions.transaction import EPOCH_EXHAUSTED, EPOCH_MAX, Transaction, TransactionState

ME = AskingProducer(7, 3)
NEW_ID = 99
PLACE = ("t", 0)


def transaction(state: TransactionState, **fields) -> Transaction:
    """The producer `ME`'s, with a partition and a group while there is a transaction."""
    touched = (
        {}
        if state.idle or state is TransactionState.DEAD
        else {"partitions": frozenset({PLACE}), "groups": frozenset({"g"}), "started_ms": 1000}
    )
    made = {"transactional_id": "tx", "producer_id": 7, "epoch": 3, "timeout_ms": 60_000, "updated_ms": 1000}
    return Transaction(**{**made, "state": state, **touched, **fields})


def init(known: Transaction | None, asker: AskingProducer = AskingProducer()) -> Transaction:  # noqa: B008 - a value
    return coordinator.init(known, "tx", 30_000, asker, new_id=NEW_ID, now_ms=2000)


def add(known: Transaction | None, asker: AskingProducer = ME) -> Transaction:
    return coordinator.add(known, asker, partitions=[("u", 1)], now_ms=2000)


def end(known: Transaction | None, asker: AskingProducer = ME, *, committed: bool) -> Transaction:
    return coordinator.end(known, asker, committed=committed, now_ms=2000)


def commit(known: Transaction | None, asker: AskingProducer = ME) -> Transaction:
    return end(known, asker, committed=True)


def abort(known: Transaction | None, asker: AskingProducer = ME) -> Transaction:
    return end(known, asker, committed=False)


S = TransactionState
TABLE = {
    (init, None): (S.EMPTY, NEW_ID, 0),
    (init, S.DEAD): (S.EMPTY, NEW_ID, 0),
    (init, S.EMPTY): (S.EMPTY, 7, 4),
    (init, S.ONGOING): (S.PREPARE_ABORT, 7, 4),
    (init, S.PREPARE_COMMIT): ConcurrentTransactions,
    (init, S.PREPARE_ABORT): ConcurrentTransactions,
    (init, S.COMPLETE_COMMIT): (S.EMPTY, 7, 4),
    (init, S.COMPLETE_ABORT): (S.EMPTY, 7, 4),
    (add, None): InvalidProducerIdMapping,
    (add, S.DEAD): InvalidProducerIdMapping,
    (add, S.EMPTY): (S.ONGOING, 7, 3),
    (add, S.ONGOING): (S.ONGOING, 7, 3),
    (add, S.PREPARE_COMMIT): ConcurrentTransactions,
    (add, S.PREPARE_ABORT): ConcurrentTransactions,
    (add, S.COMPLETE_COMMIT): (S.ONGOING, 7, 3),
    (add, S.COMPLETE_ABORT): (S.ONGOING, 7, 3),
    (commit, None): InvalidProducerIdMapping,
    (commit, S.DEAD): InvalidProducerIdMapping,
    (commit, S.EMPTY): InvalidTxnState,
    (commit, S.ONGOING): (S.PREPARE_COMMIT, 7, 3),
    (commit, S.PREPARE_COMMIT): ConcurrentTransactions,
    (commit, S.PREPARE_ABORT): InvalidTxnState,
    (commit, S.COMPLETE_COMMIT): (S.COMPLETE_COMMIT, 7, 3),
    (commit, S.COMPLETE_ABORT): InvalidTxnState,
    (abort, None): InvalidProducerIdMapping,
    (abort, S.DEAD): InvalidProducerIdMapping,
    (abort, S.EMPTY): InvalidTxnState,
    (abort, S.ONGOING): (S.PREPARE_ABORT, 7, 3),
    (abort, S.PREPARE_COMMIT): InvalidTxnState,
    (abort, S.PREPARE_ABORT): ConcurrentTransactions,
    (abort, S.COMPLETE_COMMIT): InvalidTxnState,
    (abort, S.COMPLETE_ABORT): (S.COMPLETE_ABORT, 7, 3),
}


def test_the_table_is_whole():
    assert set(TABLE) == {(ask, state) for ask in (init, add, commit, abort) for state in (None, *TransactionState)}


@pytest.mark.parametrize(
    ("cell", "wanted"), TABLE.items(), ids=[f"{ask.__name__} {state and state.value}" for ask, state in TABLE]
)
def test_every_cell_of_the_table(cell, wanted):
    ask, state = cell
    known = None if state is None else transaction(state)

    if isinstance(wanted, tuple):
        after = ask(known)
        assert (after.state, after.producer_id, after.epoch) == wanted
    else:
        with pytest.raises(wanted):
            ask(known)


@pytest.mark.parametrize("ask", [add, commit, abort])
@pytest.mark.parametrize("epoch", [2, 4])
def test_whoever_has_another_epoch_is_fenced_in_every_state(ask, epoch):
    for state in TransactionState:
        if state is not TransactionState.DEAD:
            with pytest.raises(ProducerFenced, match="a newer producer"):
                ask(transaction(state), AskingProducer(7, epoch))


@pytest.mark.parametrize("ask", [add, commit, abort])
def test_whoever_has_another_producer_id_is_sent_back_to_the_start(ask):
    with pytest.raises(InvalidProducerIdMapping):
        ask(transaction(TransactionState.ONGOING), AskingProducer(8, 3))


def test_a_transaction_takes_in_partitions_and_groups_and_keeps_its_start():
    first = coordinator.add(transaction(TransactionState.EMPTY), ME, partitions=[PLACE], now_ms=5000)
    second = coordinator.add(first, ME, groups=["g"], now_ms=6000)

    assert (second.partitions, second.groups) == (frozenset({PLACE}), frozenset({"g"}))
    assert (second.started_ms, second.updated_ms, second.deadline_ms) == (5000, 6000, 65_000)
    assert coordinator.add(second, ME, partitions=[PLACE], groups=["g"], now_ms=7000) is second


def test_a_transaction_cannot_grow_without_limit():
    many = [("t", number) for number in range(coordinator.PARTITIONS_MAX + 1)]

    with pytest.raises(TransactionLimit):
        coordinator.add(transaction(TransactionState.EMPTY), ME, partitions=many, now_ms=0)


@pytest.mark.parametrize(
    ("prepared", "done"),
    [
        (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT),
        (TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT),
    ],
)
def test_a_carried_out_end_touches_nothing_any_more(prepared, done):
    after = coordinator.complete(transaction(prepared), now_ms=9000)

    assert (after.state, after.partitions, after.groups, after.started_ms) == (done, frozenset(), frozenset(), -1)


def test_a_fenced_producer_is_refused_and_cannot_go_on_with_a_bump():
    fenced = coordinator.fence(transaction(TransactionState.ONGOING, last_epoch=2, last_producer_id=7), now_ms=0)
    done = coordinator.complete(fenced, now_ms=0)

    for asker in (ME, AskingProducer(7, 2)):
        with pytest.raises(ProducerFenced):
            init(done, asker)
    assert init(done).epoch == 5


def test_a_producer_that_bumps_its_own_epoch_may_ask_again():
    bumped = init(transaction(TransactionState.COMPLETE_ABORT), ME)

    again = init(bumped, ME)

    assert (bumped.epoch, again.epoch) == (4, 4)
    assert init(again, AskingProducer(7, 4)).epoch == 5
    assert init(again).epoch == 5


def test_a_used_up_epoch_gets_a_new_producer_id():
    last = AskingProducer(7, EPOCH_EXHAUSTED)
    worn = transaction(TransactionState.COMPLETE_COMMIT, epoch=EPOCH_EXHAUSTED)

    fresh = init(worn, last)

    assert coordinator.wants_new_id(worn)
    assert (fresh.producer_id, fresh.epoch) == (NEW_ID, 0)
    assert (init(fresh, last).producer_id, init(fresh, last).epoch) == (NEW_ID, 0)
    assert coordinator.fence(replace(worn, state=TransactionState.ONGOING), now_ms=0).epoch == EPOCH_MAX
    assert coordinator.wants_new_id(transaction(TransactionState.ONGOING, epoch=EPOCH_EXHAUSTED - 1))
    assert not coordinator.wants_new_id(transaction(TransactionState.ONGOING))


@pytest.mark.parametrize(
    ("transactional_id", "timeout_ms", "asker", "error"),
    [
        ("", 1000, AskingProducer(), InvalidRequest),
        ("x" * 1001, 1000, AskingProducer(), InvalidRequest),
        ("tx", 1000, AskingProducer(7, -1), InvalidRequest),
        ("tx", 1000, AskingProducer(-1, 3), InvalidRequest),
        ("tx", 0, AskingProducer(), InvalidTransactionTimeout),
        ("tx", -1, AskingProducer(), InvalidTransactionTimeout),
        ("tx", 60_001, AskingProducer(), InvalidTransactionTimeout),
    ],
)
def test_what_contradicts_itself_or_a_limit_is_refused(transactional_id, timeout_ms, asker, error):
    with pytest.raises(error):
        coordinator.check_init(transactional_id, timeout_ms, asker, timeout_max_ms=60_000)


def test_only_what_was_added_may_be_written_while_the_transaction_is_open():
    for state in TransactionState:
        known = transaction(state)
        if state is TransactionState.ONGOING:
            coordinator.check_write(known, ME, PLACE)
            coordinator.check_offsets(known, ME, "g")
        else:
            with pytest.raises(CoreError):
                coordinator.check_write(known, ME, PLACE)
            with pytest.raises(CoreError):
                coordinator.check_offsets(known, ME, "g")
    ongoing = transaction(TransactionState.ONGOING)
    with pytest.raises(InvalidTxnState, match="add the partition"):
        coordinator.check_write(ongoing, ME, ("t", 1))
    with pytest.raises(InvalidTxnState, match="add the group"):
        coordinator.check_offsets(ongoing, ME, "h")
    with pytest.raises(InvalidProducerEpoch):
        coordinator.check_write(ongoing, AskingProducer(7, 2), PLACE)
    with pytest.raises(InvalidProducerIdMapping):
        coordinator.check_write(None, ME, PLACE)


def test_only_idle_ids_expire_and_not_before_their_time():
    def expired(state: TransactionState, now_ms: int) -> bool:
        return coordinator.expired(transaction(state), now_ms=now_ms, expiration_ms=500)

    assert {state for state in TransactionState if expired(state, 1500)} == {
        TransactionState.EMPTY,
        TransactionState.COMPLETE_COMMIT,
        TransactionState.COMPLETE_ABORT,
    }
    assert not any(expired(state, 1499) for state in TransactionState)


def test_a_transaction_that_grows_beyond_its_limit_is_refused_and_stays(monkeypatch):
    monkeypatch.setattr(coordinator, "PARTITIONS_MAX", 3)
    known = transaction(TransactionState.ONGOING)

    grown = add(known)

    with pytest.raises(TransactionLimit, match="at most 3"):
        coordinator.add(grown, ME, partitions=[("v", 1)], now_ms=2000)
    assert coordinator.add(grown, ME, partitions=[PLACE], now_ms=2000) is grown


def test_the_times_of_a_transaction_move_together_but_not_beyond_now():
    known = replace(transaction(TransactionState.ONGOING), started_ms=1000, updated_ms=1500)

    assert (known.shifted(-100).started_ms, known.shifted(-100).updated_ms) == (900, 1400)
    assert (known.shifted(300, until_ms=1600).started_ms, known.shifted(300, until_ms=1600).updated_ms) == (1300, 1600)
    assert transaction(TransactionState.EMPTY).shifted(300).started_ms == transaction(TransactionState.EMPTY).started_ms


def test_a_transaction_takes_memory_for_each_partition_and_group():
    assert transaction(TransactionState.EMPTY).size == 0
    assert transaction(TransactionState.ONGOING).size < add(transaction(TransactionState.ONGOING)).size
