"""What the errors of the slot group's coordinator mean for a member."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from flowshare.client.errors import ConnectionLost, ServerError
from flowshare.fleet.errors import SlotGroupRefused
from flowshare.protocol.errors import ErrorCode


class Verdict(enum.Enum):
    """What to do after an answer."""

    GOOD = "go on"
    AGAIN = "the group has moved on: join again"
    GONE = "the group has no such member any more: join as a new one"
    FENCED = "another process has joined under this static id: join under another one"


REFUSALS: Final[Mapping[ErrorCode, str]] = {
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "the workers need READ and DESCRIBE on this group",
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "the group has members that are no workers of this fleet, or of another "
    "release; end them, or give the fleet another name",
    ErrorCode.INVALID_SESSION_TIMEOUT: "the brokers' group.min.session.timeout.ms and group.max.session.timeout.ms do "
    "not allow the fleet's session; change them",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "the brokers' group.max.size does not allow more workers",
    ErrorCode.INVALID_GROUP_ID: "give the fleet another name",
}
"""What trying again does not mend, and what does."""


def verdict(error: ErrorCode, about: str) -> Verdict:
    """Raises: SlotGroupRefused (trying again does not help), ConnectionLost (it does, after a pause)."""
    match error:
        case ErrorCode.NONE:
            return Verdict.GOOD
        case ErrorCode.REBALANCE_IN_PROGRESS | ErrorCode.ILLEGAL_GENERATION:
            return Verdict.AGAIN
        case ErrorCode.UNKNOWN_MEMBER_ID:
            return Verdict.GONE
        case ErrorCode.FENCED_INSTANCE_ID:
            return Verdict.FENCED
        case _:
            refused = ServerError(error, about=about)
            if error in REFUSALS:
                raise SlotGroupRefused(f"{refused}: {REFUSALS[error]}")
            raise ConnectionLost(str(refused))
