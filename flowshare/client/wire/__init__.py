"""How a client's plain requests (`protocol.messages`) cross a socket: bytes of a request, and the answer in bytes.

Most of it is derived: `codec_of` makes an API's codec from its declaration, by `protocol.translation`. By hand are what
is asked all the time (`records`, `protocol.share_codec`), held equal to kio by tests, flowshare's own settling
(`protocol.settle_codec`), and answers that have to be computed from the wire's fields (`computed_answers`).
Connections, and which version is asked in, are `client.net`'s.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from flowshare.client.errors import ClientError
from flowshare.client.wire import computed_answers, records
from flowshare.client.wire.base import Codec
from flowshare.protocol import filter_codec, settle_codec, share_codec, translation
from flowshare.protocol.kafka import ApiKey, read_response, write_request
from flowshare.protocol.messages import ShareAcknowledgeRequest, ShareFetchRequest, ShareSettleRequest
from flowshare.protocol.messages.records import FILTERED_FETCH

if TYPE_CHECKING:
    from flowshare.client.wire.base import Codecs, Read, Write
    from flowshare.protocol.declaration import Api
    from flowshare.protocol.messages import Request

SHARE: Final[Codecs] = {
    ShareFetchRequest: (
        share_codec.encode_fetch,
        lambda frame, _request, _version: share_codec.decode_fetched(frame),
    ),
    ShareAcknowledgeRequest: (
        share_codec.encode_acknowledge,
        lambda frame, _request, version: share_codec.decode_acknowledged(frame, version),
    ),
    ShareSettleRequest: (
        settle_codec.encode_settle,
        lambda frame, _request, _version: settle_codec.decode_settled(frame),
    ),
}
"""The codecs of share groups' frequent requests, which servers use, too."""
BY_HAND = {**computed_answers.CODECS, **records.CODECS, **SHARE}
"""Request class -> its codec; None for a side that is derived."""


FILTERED: Final = Codec(
    FILTERED_FETCH, filter_codec.encode_fetch, lambda frame, _request, _version: filter_codec.decode_fetched(frame)
)
"""The codec of a `FetchRequest` for some keys, to a server that can filter."""


def codec_of(request: Request[Any]) -> Codec:
    """Return the codec of a request. Raises: ClientError: it has no form on a socket."""
    kind: Any = request.__class__
    return _codec(kind)


@functools.cache
def _codec(request: type[Any]) -> Codec:
    api: Api | None = request.api
    if api is None or api.client is None:
        raise ClientError(f"{request.__name__} is for servers in the same process; it has no form on a socket")
    write, read = _by_hand(request, api)
    return Codec(api, write or functools.partial(_write, api), read or functools.partial(_read, api))


def _by_hand(request: type[Any], api: Api) -> tuple[Write | None, Read | None]:
    if api.key is ApiKey.FLOWSHARE_COOPERATIVE_SETTLE:  # which only those ask for that settle, and is read for them
        from flowshare.protocol.cooperative_settle import decode_settled, encode_settle

        return encode_settle, lambda frame, _request, _version: decode_settled(frame)
    return BY_HAND.get(request, (None, None))


def _write(api: Api, number: int, client_id: str, request: Any, version: int) -> bytes:
    writer = translation.writer(api, version, "request")
    try:
        return write_request(number, client_id, writer.all(translation.build, request))
    except KeyError as error:
        raise ClientError(f"{api.title} has no {error}") from None


def _read(api: Api, frame: bytes, request: Any, version: int) -> Any:
    return translation.read_answer(api, read_response(api.name, version, frame)[1], request)


__all__ = ["FILTERED", "Codec", "codec_of"]
