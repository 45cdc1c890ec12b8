"""The plain messages of `protocol.messages` as frames of a socket: one module a family of APIs.

`codec_of(request)` finds how a request is written and its answer read. kio is imported when the first frame is made,
and what only a fleet of workers says to Kafka when it is first said.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from flowshare.client.errors import ClientError
from flowshare.client.wire import configs, fetch, groups, produce, records, share, share_admin, topics
from flowshare.client.wire.base import Codec

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Final

    from flowshare.protocol.messages import Request

CODECS: Final[dict[type[Any], Codec]] = {
    **share.CODECS,
    **share_admin.CODECS,
    **groups.CODECS,
    **configs.CODECS,
    **topics.CODECS,
    **records.CODECS,
    **produce.CODECS,
    **fetch.CODECS,
}
"""Request class -> how it crosses the wire."""


@functools.cache
def fleet_codecs() -> Mapping[type[Any], Codec]:
    """Those of `CODECS` that only fleets need: classic groups, producer ids, leader epochs, state of share groups."""
    from flowshare.client.wire import classic, epochs, producers, share_state

    return {**classic.CODECS, **producers.CODECS, **epochs.CODECS, **share_state.CODECS}


def codec_of(request: Request[Any]) -> Codec:
    """How `request` crosses the wire. Raises: ClientError when it cannot."""
    codec = CODECS.get(type(request)) or fleet_codecs().get(type(request))
    if codec is None:
        raise ClientError(f"{type(request).__name__} is for servers in the same process; it has no form on a socket")
    return codec


__all__ = ["CODECS", "Codec", "codec_of", "fleet_codecs"]
