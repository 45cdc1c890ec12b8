"""Rules of the transaction coordinator: the next state of a transactional id at each request, without I/O.

Invariant: a decided end (Prepare…) is never changed and always carried out. Until it is carried out, nothing else
happens to the transactional id. Epochs only rise, and a producer with an epoch below the stored one is refused.

| state             | init           | add      | end(commit)   | end(abort)    | timeout        |
|-------------------|----------------|----------|---------------|---------------|----------------|
| (unknown), Dead   | Empty, new id  | mapping  | mapping       | mapping       | -              |
| Empty             | Empty, epoch+1 | Ongoing  | refused       | refused       | -              |
| Ongoing           | PrepareAbort * | Ongoing  | PrepareCommit | PrepareAbort  | PrepareAbort * |
| PrepareCommit     | later          | later    | later         | refused       | -              |
| PrepareAbort      | later          | later    | refused       | later         | -              |
| CompleteCommit    | Empty, epoch+1 | Ongoing  | as it is      | refused       | -              |
| CompleteAbort     | Empty, epoch+1 | Ongoing  | refused       | as it is      | -              |

add: partitions or groups. mapping: InvalidProducerIdMapping. refused: InvalidTxnState. later: ConcurrentTransactions.
*: the epoch rises by one, so that the producer is refused from then on (`fence`).

PrepareCommit becomes CompleteCommit, and PrepareAbort becomes CompleteAbort, when all markers are written and all
groups' offsets are settled (`complete`). A transactional id that was idle for transactional.id.expiration.ms becomes
Dead and is forgotten.

Epochs end at 32767. A producer at 32766 gets a new id with epoch 0; 32767 is left for fencing it. Transactions are
version 1 (KIP-890: transaction.version=2 is not offered): the epoch stays the same from one transaction to the next.

Each function returns the transaction in its next state; the shell stores that before it takes effect. Source: Kafka 4.x
(TransactionCoordinator, TransactionMetadata), KIP-98, KIP-360.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from flowshare.core_errors import (
    ConcurrentTransactions,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidRequest,
    InvalidTransactionTimeout,
    InvalidTxnState,
    ProducerFenced,
    TransactionLimit,
)
from flowshare.transactions.transaction import (
    EPOCH_EXHAUSTED,
    EPOCH_MAX,
    NO_EPOCH,
    NO_PRODUCER_ID,
    NOT_STARTED,
    Transaction,
    TransactionState,
)

ID_BYTES_MAX: Final = 1_000
PARTITIONS_MAX: Final = 10_000
"""The most partitions and groups of one transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionConfig:
    """Limits of a server on producers and transactional ids: how long they are kept, and how many.

    Times are in milliseconds; names and defaults are Kafka's.

    timeout_max_ms: longest timeout that a producer may ask for (transaction.max.timeout.ms).
    id_expiration_ms: idle transactional ids are forgotten after this (transactional.id.expiration.ms).
    producer_expiration_ms: idle producers are forgotten after this (producer.id.expiration.ms).
    ids_max: transactional ids that may exist.
    """

    timeout_max_ms: int = 900_000
    id_expiration_ms: int = 604_800_000
    producer_expiration_ms: int = 86_400_000
    ids_max: int = 10_000


class AskingProducer(NamedTuple):
    """The identity that a producer names; −1, −1: it has none yet."""

    producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_EPOCH


def check_init(transactional_id: str, timeout_ms: int, asker: AskingProducer, *, timeout_max_ms: int) -> None:
    """Check the parts of an init request that need no stored transaction. Raises: InvalidRequest,
    InvalidTransactionTimeout."""
    if not 0 < len(transactional_id.encode()) <= ID_BYTES_MAX:
        raise InvalidRequest(f"a transactional id has 1 to {ID_BYTES_MAX} bytes")
    if (asker.producer_id == NO_PRODUCER_ID) != (asker.epoch == NO_EPOCH):
        raise InvalidRequest("producer id and epoch are given both or not at all")
    if not 0 < timeout_ms <= timeout_max_ms:
        raise InvalidTransactionTimeout(
            f"a transaction timeout of {timeout_ms} ms; 1 to {timeout_max_ms} are taken (transaction.max.timeout.ms)"
        )


def wants_new_id(known: Transaction | None) -> bool:
    """True if `init` may need a new producer id."""
    return known is None or known.state is TransactionState.DEAD or known.epoch >= EPOCH_EXHAUSTED - 1


def init(
    known: Transaction | None,
    transactional_id: str,
    timeout_ms: int,
    asker: AskingProducer,
    *,
    new_id: int,
    now_ms: int,
) -> Transaction:
    """Return the id with a fresh epoch, so that older producers are fenced; PrepareAbort if a transaction is open.

    new_id: a producer id that nobody has, where `wants_new_id` says so: for an id that is new, or has used up its
    epochs. PrepareAbort: finish that, then call again.

    Raises: ProducerFenced, ConcurrentTransactions.
    """
    if known is None or known.state is TransactionState.DEAD:
        # A producer whose id expired goes on with a new one (KIP-360).
        assert new_id != NO_PRODUCER_ID, "an id that is new needs a producer id"
        return Transaction(
            transactional_id=transactional_id, producer_id=new_id, epoch=0, timeout_ms=timeout_ms, updated_ms=now_ms
        )
    _check_asker(known, asker)
    if known.state.prepared:
        raise _again(known)
    if known.state is TransactionState.ONGOING:
        return fence(known, now_ms=now_ms)
    fresh = replace(
        known, state=TransactionState.EMPTY, timeout_ms=timeout_ms, started_ms=NOT_STARTED, updated_ms=now_ms
    )
    if asker.epoch != NO_EPOCH and asker != (known.producer_id, known.epoch):
        return fresh  # a repeated request: its last bump holds
    if known.epoch >= EPOCH_EXHAUSTED:
        assert new_id != NO_PRODUCER_ID, "an id that has used up its epochs needs a producer id"
        last = AskingProducer(known.producer_id, known.epoch) if asker.epoch != NO_EPOCH else AskingProducer()
        return replace(fresh, producer_id=new_id, epoch=0, last_producer_id=last.producer_id, last_epoch=last.epoch)
    return replace(fresh, epoch=known.epoch + 1, last_producer_id=asker.producer_id, last_epoch=asker.epoch)


def add(
    known: Transaction | None,
    asker: AskingProducer,
    *,
    partitions: Collection[tuple[str, int]] = (),
    groups: Collection[str] = (),
    now_ms: int,
) -> Transaction:
    """Return the transaction with these partitions and groups in it; the same object if it has them already.

    Raises: InvalidProducerIdMapping, ProducerFenced, ConcurrentTransactions, TransactionLimit.
    """
    transaction = _known(known, asker)
    if transaction.state.prepared:
        raise _again(transaction)
    if len(partitions) + len(groups) > PARTITIONS_MAX:
        raise _too_many()
    if transaction.state is TransactionState.ONGOING:
        if transaction.partitions.issuperset(partitions) and transaction.groups.issuperset(groups):
            return transaction
    else:
        transaction = replace(transaction, state=TransactionState.ONGOING, started_ms=now_ms)
    grown = replace(
        transaction,
        partitions=transaction.partitions.union(partitions),
        groups=transaction.groups.union(groups),
        updated_ms=now_ms,
    )
    if len(grown.partitions) + len(grown.groups) > PARTITIONS_MAX:
        raise _too_many()
    return grown


def end(known: Transaction | None, asker: AskingProducer, *, committed: bool, now_ms: int) -> Transaction:
    """Return the transaction with its end decided; the same object if it has ended so already.

    Raises: InvalidProducerIdMapping, ProducerFenced, InvalidTxnState, ConcurrentTransactions.
    """
    transaction = _known(known, asker)
    if transaction.state is TransactionState.ONGOING:
        decided = TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT
        return replace(transaction, state=decided, updated_ms=now_ms)
    if transaction.state is (TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT):
        return transaction
    if transaction.state is (TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT):
        raise _again(transaction)
    raise InvalidTxnState(
        f"transactional id {transaction.transactional_id!r} is {transaction.state.value}: there is nothing to "
        f"{'commit' if committed else 'abort'}"
    )


def fence(known: Transaction, *, now_ms: int) -> Transaction:
    """Return the open transaction with its abort decided and its producer fenced: it timed out, or another one came."""
    assert known.state is TransactionState.ONGOING, "only an open transaction is fenced"
    epoch = min(known.epoch + 1, EPOCH_MAX)
    return replace(
        known,
        state=TransactionState.PREPARE_ABORT,
        epoch=epoch,
        last_epoch=NO_EPOCH,
        last_producer_id=NO_PRODUCER_ID,
        updated_ms=now_ms,
    )


def complete(known: Transaction, *, now_ms: int) -> Transaction:
    """Return the transaction after its decided end was carried out everywhere."""
    assert known.state.prepared, "only a decided end is carried out"
    done = (
        TransactionState.COMPLETE_COMMIT
        if known.state is TransactionState.PREPARE_COMMIT
        else TransactionState.COMPLETE_ABORT
    )
    return replace(
        known, state=done, partitions=frozenset(), groups=frozenset(), started_ms=NOT_STARTED, updated_ms=now_ms
    )


def expired(known: Transaction, *, now_ms: int, expiration_ms: int) -> bool:
    """True if the id was idle long enough to be forgotten (transactional.id.expiration.ms)."""
    return known.state.idle and now_ms - known.updated_ms >= expiration_ms


def check_write(known: Transaction | None, asker: AskingProducer, place: tuple[str, int]) -> None:
    """Check that a transactional batch may be written to this partition now.

    Raises: InvalidProducerIdMapping, InvalidProducerEpoch, InvalidTxnState.
    """
    transaction = _writing(known, asker)
    if transaction.state is not TransactionState.ONGOING or place not in transaction.partitions:
        raise InvalidTxnState(
            f"transactional id {transaction.transactional_id!r} is {transaction.state.value} and has not added "
            f"{place[0]}-{place[1]}; add the partition to the transaction first"
        )


def check_offsets(known: Transaction | None, asker: AskingProducer, group_id: str) -> None:
    """Check that offsets of this group may be committed with the transaction now. Raises: as `check_write`."""
    transaction = _writing(known, asker)
    if transaction.state is not TransactionState.ONGOING or group_id not in transaction.groups:
        raise InvalidTxnState(
            f"transactional id {transaction.transactional_id!r} is {transaction.state.value} and has not added group "
            f"{group_id!r}; add the group's offsets to the transaction first"
        )


def _known(known: Transaction | None, asker: AskingProducer) -> Transaction:
    if known is None or known.state is TransactionState.DEAD or known.producer_id != asker.producer_id:
        raise InvalidProducerIdMapping(
            f"producer id {asker.producer_id} is not that of the transactional id; initialise the producer anew"
        )
    if asker.epoch != known.epoch:
        raise _fenced(known, asker)
    return known


def _writing(known: Transaction | None, asker: AskingProducer) -> Transaction:
    """Return the transaction as `_known`, but with a fence told by the error that partitions use for it."""
    try:
        return _known(known, asker)
    except ProducerFenced as error:
        raise InvalidProducerEpoch(str(error)) from error


def _check_asker(known: Transaction, asker: AskingProducer) -> None:
    """Check that a producer which asks for a new epoch has this id and epoch, or had them until its own last bump.
    Raises: ProducerFenced."""
    if asker.epoch == NO_EPOCH:
        return
    mine = AskingProducer(known.producer_id, known.epoch), AskingProducer(known.last_producer_id, known.last_epoch)
    if asker not in mine:
        raise _fenced(known, asker)


def _fenced(known: Transaction, asker: AskingProducer) -> ProducerFenced:
    return ProducerFenced(
        f"transactional id {known.transactional_id!r} is in epoch {known.epoch}, the producer in {asker.epoch}: "
        "a newer producer took over, or the transaction timed out"
    )


def _too_many() -> TransactionLimit:
    return TransactionLimit(f"a transaction has at most {PARTITIONS_MAX} partitions and groups; end this one first")


def _again(known: Transaction) -> ConcurrentTransactions:
    return ConcurrentTransactions(
        f"transactional id {known.transactional_id!r} is {known.state.value}: its last transaction is being finished; "
        "try again"
    )
