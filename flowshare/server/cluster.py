"""The cluster's id, kept with the records: clients refuse a broker whose cluster id changes."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from flowshare.log.base import StateStore

KEY: Final = b"m/cluster-id"


async def cluster_id(store: StateStore) -> str:
    """The id of the cluster that these records are of, made at the first time. Raises: StorageError."""
    for key, value in await store.scan(KEY):
        if key == KEY:
            return value.decode()
    made = str(uuid.uuid4())
    await store.write([(KEY, made.encode())])
    return made
