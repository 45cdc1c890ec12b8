"""Groups of which something stored cannot be read: they are refused, and what is stored of them is left as it is.

A group that was left out instead would be made anew by the next member that joins, over the bytes that a backup or a
later version could still make sense of. Only deleting such a group on purpose removes them.
"""

from __future__ import annotations

import logging

from flowshare.share.errors import StateCorrupt

logger = logging.getLogger(__name__)


class Damage:
    """Damaged entries of the store, by the group they belong to."""

    def __init__(self) -> None:
        self._found: dict[str, dict[bytes, str]] = {}

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._found

    def add(self, group_id: str, key: bytes, reason: str) -> None:
        """Remember that the entry under `key` cannot be read."""
        self._found.setdefault(group_id, {})[key] = reason
        logger.error("group is refused, what is stored of it cannot be read: %s group=%s", reason, group_id)

    def check(self, group_id: str) -> None:
        """Whether a group can be worked with. Raises: StateCorrupt."""
        found = self._found.get(group_id)
        if found:
            raise StateCorrupt(
                f"group {group_id!r} is refused, what is stored of it cannot be read ({'; '.join(found.values())}); "
                "nothing of it was changed. Restore a backup, use another group id, or give the group up with its "
                f"offsets and settings: flowshare groups delete {group_id}"
            )

    def keys(self, group_id: str) -> tuple[bytes, ...]:
        """Store keys of a group's damaged entries."""
        return tuple(self._found.get(group_id, ()))

    def forget(self, group_id: str) -> None:
        """The group's entries are deleted."""
        self._found.pop(group_id, None)


def group_id_of(key: bytes, prefix: bytes) -> str | None:
    """The group id behind `prefix` in a store key; None, with a log line, when it is no text."""
    try:
        return key[len(prefix) :].decode()
    except UnicodeDecodeError:
        logger.error("an entry of the store is left out, its group id is no text: %r", key)  # noqa: TRY400
        return None
