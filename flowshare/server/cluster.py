"""The cluster's id, kept with the records: clients refuse a broker whose cluster id changes."""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, Final

from flowshare.log.base import StorageFull

if TYPE_CHECKING:
    from flowshare.log.base import StateStore

KEY: Final = b"m/cluster-id"
logger = logging.getLogger(__name__)


async def cluster_id(store: StateStore) -> str:
    """The id of the cluster that these records are of, made at the first time. Raises: StorageError.

    On a full disk a new one is not kept: the next start has another.
    """
    for key, value in await store.scan(KEY):
        if key == KEY:
            return value.decode()
    made = str(uuid.uuid4())
    try:
        await store.write([(KEY, made.encode())])
    except StorageFull as error:
        logger.warning("the cluster's id is not kept: %s", error)
    return made
