"""Roots of all errors, and the errors that the cores raise (`share`, `groups`, `cooperative`, `transactions`).

A core's error has Kafka's name. The peer or the user is at fault, never flowshare (that is an AssertionError).
`protocol/errors.py` holds the table from these to Kafka's error codes. UNKNOWN_PRODUCER_ID has no class: since Kafka
2.5 a partition that forgot a producer takes its next batch whatever its sequence (KIP-360).
"""

from __future__ import annotations


class FlowshareError(Exception):
    """Base of all errors that users of flowshare meet; `except fs.FlowshareError` catches each of them."""


class CoreError(Exception):
    """Base of all errors of the cores. The text says what is wrong and, where a user can act, what to do."""


class InvalidRequest(CoreError):
    """The request contradicts itself, the rules or a limit."""


class StateCorrupt(CoreError):
    """Stored state contradicts itself or cannot be read; it is not served."""


# --- groups of both kinds ---------------------------------------------------------------------------------------------


class GroupIdNotFound(CoreError):
    """There is no such group, or the id belongs to a group of another kind."""


class NonEmptyGroup(CoreError):
    """The group still has members."""


class GroupMaxSizeReached(CoreError):
    """The group has as many members as it may have."""


class UnknownMemberId(CoreError):
    """The member never joined, left, or timed out."""


# --- share groups -----------------------------------------------------------------------------------------------------


class InvalidRecordState(CoreError):
    """A record is not in the state that the step needs, or another member holds it.

    ranges: the refused records as (first, last), ascending, when a request needs all its records; else empty.
    """

    def __init__(self, message: str, ranges: tuple[tuple[int, int], ...] = ()) -> None:
        super().__init__(message)
        self.ranges = ranges


class FencedStateEpoch(CoreError):
    """The writer's state epoch is older than the stored one: it led before an admin reset."""


class FencedLeaderEpoch(CoreError):
    """The writer's leader epoch is older than the stored one: it was replaced."""


class FencedMemberEpoch(CoreError):
    """The member's epoch is neither its current nor its previous one."""


class ShareSessionNotFound(CoreError):
    """No session of this member is open."""


class InvalidShareSessionEpoch(CoreError):
    """The session epoch is not the expected one."""


class ShareSessionLimitReached(CoreError):
    """As many sessions as allowed are open."""


class InvalidConfig(CoreError):
    """A setting's name or value is refused."""


class UnknownTopicOrPartition(CoreError):
    """There is no such topic or partition."""


class UnknownTopicId(CoreError):
    """There is no topic with this id."""


# --- consumer groups --------------------------------------------------------------------------------------------------


class InvalidGroupId(CoreError):
    """The group id is empty or too long."""


class InvalidSessionTimeout(CoreError):
    """The session timeout is outside the server's bounds (group.min/max.session.timeout.ms)."""


class InconsistentGroupProtocol(CoreError):
    """No protocol is known to all members, or the protocol type differs from the group's."""


class MemberIdRequired(CoreError):
    """The member is to join again with `member_id`."""

    def __init__(self, member_id: str) -> None:
        super().__init__(f"join again with the member id {member_id}")
        self.member_id = member_id


class FencedInstanceId(CoreError):
    """Another process joined with the same group.instance.id."""


class IllegalGeneration(CoreError):
    """The generation is not the group's."""


class RebalanceInProgress(CoreError):
    """The group rebalances; join again."""


class StaleMemberEpoch(CoreError):
    """The member's epoch is not its current one; the member must send its request again."""


class UnreleasedInstanceId(CoreError):
    """Another member has this group.instance.id, and has not left."""


class UnsupportedAssignor(CoreError):
    """The server does not have this assignor."""


class InvalidRegularExpression(CoreError):
    """The pattern of topics cannot be read."""


class UnsupportedVersion(CoreError):
    """The version of the request has no field for a value that it needs."""


class CoordinatorNotAvailable(CoreError):
    """The group is being deleted, or could not be written; try again."""


class GroupSubscribedToTopic(CoreError):
    """The group's members read this topic."""


class OffsetMetadataTooLarge(CoreError):
    """The metadata of an offset is longer than the server takes (offset.metadata.max.bytes)."""


# --- cooperative groups -----------------------------------------------------------------------------------------------


class OffsetOutOfRange(CoreError):
    """The offset is behind the end of the log, so no member can have handled it."""


class BoundReached(CoreError):
    """The state to keep has reached its bound; steps that fill gaps or need less still pass. Try again later."""


# --- producers and transactions ---------------------------------------------------------------------------------------


class OutOfOrderSequence(CoreError):
    """The batch does not follow the producer's last one: batches before it are missing."""


class InvalidProducerEpoch(CoreError):
    """A producer with a higher epoch has taken over: this producer must stop (in answer to a write)."""


class ProducerFenced(CoreError):
    """A producer with a higher epoch has taken over the transactional id, or its transaction timed out."""


class InvalidProducerIdMapping(CoreError):
    """The transactional id is unknown, or has another producer id."""


class InvalidTxnState(CoreError):
    """No such transaction exists, or the transaction's state does not allow this step now."""


class ConcurrentTransactions(CoreError):
    """The transaction is being committed or aborted; the request is to be sent again."""


class InvalidTransactionTimeout(CoreError):
    """The timeout is not positive, or longer than the server allows (transaction.max.timeout.ms)."""


class TransactionalIdNotFound(CoreError):
    """There is no transaction of this id."""


class TransactionLimit(CoreError):
    """No more producers or transactional ids are taken."""


class TransactionStateCorrupt(CoreError):
    """Stored state of producers or transactions cannot be read."""
