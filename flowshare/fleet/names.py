"""What a fleet is called in Kafka: one name for its state topic, its slot group and the start of its producers' names.

So one prefixed ACL of each kind, `__flowshare_state.<fleet>`, covers all that a fleet needs for itself.
"""

from __future__ import annotations

import re
from typing import Final

from flowshare.client.errors import ClientError

PREFIX: Final = "__flowshare_state."
LENGTH_MAX: Final = 200
"""A topic's name may have 249 characters; this leaves room for the prefix and a slot's number behind it."""
_ALLOWED: Final = re.compile(r"[a-zA-Z0-9._-]+")


def state_topic(fleet: str) -> str:
    """Name of the topic with the fleet's state. Raises: ClientError when a fleet cannot have this name."""
    if not _ALLOWED.fullmatch(fleet) or len(fleet) > LENGTH_MAX:
        raise ClientError(
            f"a fleet cannot be called {fleet!r}: use up to {LENGTH_MAX} letters, digits, dots, dashes and underscores"
        )
    return PREFIX + fleet


def slot_group(fleet: str) -> str:
    """Id of the consumer group in which the fleet's workers share its slots out. Raises: as `state_topic`."""
    return state_topic(fleet)


def transactional_id(fleet: str, slot: int) -> str:
    """Under which a slot's owner writes. Raises: as `state_topic`."""
    return f"{state_topic(fleet)}.{slot}"
