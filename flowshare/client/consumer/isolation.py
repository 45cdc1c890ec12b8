"""`set_isolation`: sets the isolation level of a share group, a setting of the group, as a consumer wants it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from flowshare.client.admin.admin import ShareAdmin
from flowshare.client.errors import ConnectionLost, NotConnected, ServerError
from flowshare.share.config import ISOLATION

if TYPE_CHECKING:
    from flowshare.client.net.link import Connect
    from flowshare.clock import Clock

TRIES: Final = 10
PAUSE_S: Final = 0.5
"""The pause between two tries, in seconds: the group's leader may be ready by then."""

logger = logging.getLogger(__name__)


async def set_isolation(connect: Connect, group_id: str, level: str, *, clock: Clock) -> None:
    """Set share.isolation.level of the group if it differs; a refusal is logged only.

    Raises: NotConnected.
    """
    admin = ShareAdmin(connect, clock=clock, client_id="share-consumer")
    try:
        problem = await _set(admin, group_id, level, clock)
    finally:
        await admin.close()
    if problem is not None:
        logger.warning(
            "group=%s: %s=%s could not be set, so that this consumer gets what the group is set to hand out: %s. Have "
            "an administrator set it (flowshare groups config %s %s=%s), or make the consumer with "
            "ConsumerSettings(isolation_level=None)",
            group_id,
            ISOLATION,
            level,
            problem,
            group_id,
            ISOLATION,
            level,
        )


async def _set(admin: ShareAdmin, group_id: str, level: str, clock: Clock) -> Exception | None:
    """Set the level; return the error for which it could not be set, None: it is set."""
    problem: Exception | None = None
    for tried in range(TRIES):
        if tried:
            await clock.sleep(PAUSE_S)
        try:
            if not await _is(admin, group_id, level):
                await admin.alter_group_configs(group_id, {ISOLATION: level})
        except (ServerError, ConnectionLost, NotConnected) as error:
            if isinstance(error, NotConnected) and not admin.connected:
                raise
            problem = error
            if isinstance(error, ServerError) and not error.retriable:
                break
        else:
            return None
    return problem


async def _is(admin: ShareAdmin, group_id: str, level: str) -> bool:
    """Tell if the group's isolation level is `level`; False if this login may not see the group's settings."""
    try:
        entries = await admin.group_configs(group_id)
    except ServerError as error:
        if error.retriable:
            raise
        return False
    return any(entry.name == ISOLATION and entry.value == level for entry in entries)
