"""What the cores (`share`, `groups`, `cooperative`, `transactions`) raise, under Kafka's names for it: always the
peer's or the user's fault, never ours (that is AssertionError).

`protocol/errors.py` holds the table from these to Kafka's error codes. UNKNOWN_PRODUCER_ID has no class: since Kafka
2.5 a partition that forgot a producer takes its next batch whatever its sequence (KIP-360).
"""

from __future__ import annotations


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
    """A record is not in the state that the step needs, or is not this member's.

    ranges: where all records were asked for that are not, first and last of each, ascending; else empty.
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
    """There would be no protocol that all members know, or the protocol type is another one."""


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
    """The member's epoch is not the one that it is at by now; it is to send its request again."""


class UnreleasedInstanceId(CoreError):
    """Another member has this group.instance.id, and has not left."""


class UnsupportedAssignor(CoreError):
    """The server does not have this assignor."""


class InvalidRegularExpression(CoreError):
    """The pattern of topics cannot be read."""


class UnsupportedVersion(CoreError):
    """The version of the request cannot say what it would have to."""


class CoordinatorNotAvailable(CoreError):
    """The group is being deleted, or could not be written; try again."""


class GroupSubscribedToTopic(CoreError):
    """The group's members read this topic."""


class OffsetMetadataTooLarge(CoreError):
    """More metadata with an offset than the server takes (offset.metadata.max.bytes)."""


# --- cooperative groups -----------------------------------------------------------------------------------------------


class OffsetOutOfRange(CoreError):
    """The offset is behind the end of the log, so nobody can have handled it."""


class BoundReached(CoreError):
    """As much is kept as may be; what fills gaps or waits for less still goes. To be tried again later."""


# --- producers and transactions ---------------------------------------------------------------------------------------


class OutOfOrderSequence(CoreError):
    """The batch does not follow the producer's last one: batches before it are missing."""


class InvalidProducerEpoch(CoreError):
    """A producer with a higher epoch has taken over: this one is to stop (in answer to a write)."""


class ProducerFenced(CoreError):
    """A producer with a higher epoch has taken over the transactional id, or its transaction timed out."""


class InvalidProducerIdMapping(CoreError):
    """The transactional id is unknown, or has another producer id."""


class InvalidTxnState(CoreError):
    """There is no such transaction, or it cannot do this now."""


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
