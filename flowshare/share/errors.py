"""What the share-group cores raise: always the peer's or the user's fault, never ours (that is AssertionError).

    ShareError
      InvalidRequest              the request contradicts itself or the rules
      InvalidRecordState          a record is not in the state that the step needs, or not this member's
      FencedStateEpoch            written by a leader from before an admin reset
      FencedLeaderEpoch           written by a leader that was replaced
      GroupIdNotFound             no such group, or the id belongs to a group of another kind
      NonEmptyGroup               the group still has members
      GroupMaxSizeReached         the group is full
      UnknownMemberId             the member never joined, left, or timed out
      FencedMemberEpoch           the member's epoch is neither its current nor its previous one
      ShareSessionNotFound        no session of this member is open
      InvalidShareSessionEpoch    the session epoch is not the expected one
      ShareSessionLimitReached    too many sessions
      InvalidConfig               a setting's name or value is refused
      UnknownTopicOrPartition     no such topic or partition
      UnknownTopicId              no such topic id
      StateCorrupt                stored state contradicts itself

`protocol/errors.py` holds the table from these to Kafka's error codes.
"""

from __future__ import annotations


class ShareError(Exception):
    """Base of all errors of the cores. The text says what is wrong and, where a user can act, what to do."""


class InvalidRequest(ShareError):
    """The request contradicts itself or the rules."""


class InvalidRecordState(ShareError):
    """A record is not in the state that the step needs, or is not this member's."""


class FencedStateEpoch(ShareError):
    """The writer's state epoch is older than the stored one."""


class FencedLeaderEpoch(ShareError):
    """The writer's leader epoch is older than the stored one."""


class GroupIdNotFound(ShareError):
    """There is no such group, or the id belongs to a group of another kind."""


class NonEmptyGroup(ShareError):
    """The group still has members."""


class GroupMaxSizeReached(ShareError):
    """The group has as many members as it may have."""


class UnknownMemberId(ShareError):
    """The member never joined, left, or timed out."""


class FencedMemberEpoch(ShareError):
    """The member's epoch is neither its current nor its previous one."""


class ShareSessionNotFound(ShareError):
    """No session of this member is open."""


class InvalidShareSessionEpoch(ShareError):
    """The session epoch is not the expected one."""


class ShareSessionLimitReached(ShareError):
    """As many sessions as allowed are open."""


class InvalidConfig(ShareError):
    """A setting's name or value is refused."""


class UnknownTopicOrPartition(ShareError):
    """There is no such topic or partition."""


class UnknownTopicId(ShareError):
    """There is no topic with this id."""


class StateCorrupt(ShareError):
    """Stored state contradicts itself; it is not served."""
