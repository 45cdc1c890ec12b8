"""What the core of classic groups raises or answers: always the peer's fault, never ours (that is AssertionError).

    GroupError
      InvalidRequest              the request contradicts itself or a limit
      InvalidGroupId              the group id is empty or too long
      InvalidSessionTimeout       outside group.min/max.session.timeout.ms
      InconsistentGroupProtocol   no protocol that all members know, or another protocol type
      MemberIdRequired            join again with the member id that the answer carries
      GroupMaxSizeReached         the group is full
      UnknownMemberId             the member never joined, left, or timed out
      FencedInstanceId            another process joined with the same group.instance.id
      IllegalGeneration           the generation is not the group's
      RebalanceInProgress         join again
      CoordinatorNotAvailable     the group is being deleted, or could not be written; try again
      GroupIdNotFound             no such group, or one of another kind
      NonEmptyGroup               the group still has members
      GroupSubscribedToTopic      the group's members read this topic
      OffsetMetadataTooLarge      more than offset.metadata.max.bytes with an offset
      InvalidProducerEpoch        the transaction's producer was replaced
      GroupStateCorrupt           what is stored of the group cannot be read

`protocol/errors.py` holds the table from these to Kafka's error codes.
"""

from __future__ import annotations


class GroupError(Exception):
    """Base of all errors of classic groups. The text says what is wrong and, where a user can act, what to do."""


class InvalidRequest(GroupError):
    """The request contradicts itself or a limit."""


class InvalidGroupId(GroupError):
    """The group id is empty or too long."""


class InvalidSessionTimeout(GroupError):
    """The session timeout is outside the server's bounds."""


class InconsistentGroupProtocol(GroupError):
    """There would be no protocol that all members know, or the protocol type is another one."""


class MemberIdRequired(GroupError):
    """The member is to join again with `member_id`."""

    def __init__(self, member_id: str) -> None:
        super().__init__(f"join again with the member id {member_id}")
        self.member_id = member_id


class GroupMaxSizeReached(GroupError):
    """The group has as many members as it may have."""


class UnknownMemberId(GroupError):
    """The member never joined, left, or timed out."""


class FencedInstanceId(GroupError):
    """Another process joined with the same group.instance.id."""


class IllegalGeneration(GroupError):
    """The generation is not the group's."""


class RebalanceInProgress(GroupError):
    """The group rebalances; join again."""


class CoordinatorNotAvailable(GroupError):
    """The group is being deleted, or could not be written; try again."""


class GroupIdNotFound(GroupError):
    """There is no such group, or the id belongs to a group of another kind."""


class NonEmptyGroup(GroupError):
    """The group still has members."""


class GroupSubscribedToTopic(GroupError):
    """The group's members read this topic."""


class OffsetMetadataTooLarge(GroupError):
    """More metadata with an offset than the server takes."""


class InvalidProducerEpoch(GroupError):
    """The transaction's producer was replaced by a newer one."""


class GroupStateCorrupt(GroupError):
    """What is stored of the group cannot be read; it is not served."""
