"""What a heartbeat of Kafka's consumer protocol must say, whatever the group is like (KIP-848)."""

from __future__ import annotations

from flowshare.core_errors import InvalidRequest, UnsupportedAssignor
from flowshare.groups.consumer_types import JOIN, LEAVE_FOR_NOW, Beat


def check_beat(group_id: str, beat: Beat, assignors: tuple[str, ...]) -> None:
    """Check a heartbeat by itself. Raises: InvalidRequest, UnsupportedAssignor.

    Call it before a group is looked up: epoch 0 makes a group that does not exist.
    """
    for name, text in (
        ("group id", group_id),
        ("member id", beat.member_id),
        ("instance id", beat.instance_id),
        ("rack id", beat.rack_id),
    ):
        if text is not None and not text.strip():
            raise InvalidRequest(f"the {name} must not be empty")
    if beat.member_epoch < LEAVE_FOR_NOW:
        raise InvalidRequest(f"the member epoch {beat.member_epoch} is invalid; it must be -2 or more")
    if beat.member_epoch == LEAVE_FOR_NOW and beat.instance_id is None:
        raise InvalidRequest("only a member with an instance id leaves for now (epoch -2)")
    if beat.member_epoch == JOIN:
        _check_join(beat)
    if beat.assignor is not None and beat.assignor not in assignors:
        raise UnsupportedAssignor(f"assignor {beat.assignor!r} is not known here; known: {', '.join(assignors)}")


def _check_join(beat: Beat) -> None:
    if beat.rebalance_timeout_ms < 0:
        raise InvalidRequest("the rebalance timeout must be given when joining")
    if beat.owned is None or beat.owned:
        raise InvalidRequest("the owned partitions must be given when joining, and there must be none")
    if beat.topics is None and beat.pattern is None:
        raise InvalidRequest("the subscribed topic names or a regular expression must be given when joining")
