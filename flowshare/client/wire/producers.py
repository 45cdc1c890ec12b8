"""Who a producer is: its id and epoch, with or without a transactional id."""

from __future__ import annotations

from typing import Any, Final

from flowshare.client.wire.base import Codec, by_kio, code, timedelta_ms
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey, module
from flowshare.protocol.messages import InitProducerIdRequest, InitProducerIdResponse, ProducerIdentity
from flowshare.protocol.messages.transactions import NOBODY

GOES_ON_FROM: Final = 3
"""The version from which a producer can say who it was (KIP-360)."""


def _init(request: InitProducerIdRequest, version: int) -> Any:
    m = module("init_producer_id", version, "request")
    known = {}
    if version >= GOES_ON_FROM:
        known = {"producer_id": request.known.producer_id, "producer_epoch": request.known.epoch}
    return m.InitProducerIdRequest(
        transactional_id=request.transactional_id, transaction_timeout=timedelta_ms(request.timeout_ms), **known
    )


def _init_answer(answer: Any, _: InitProducerIdRequest) -> InitProducerIdResponse:
    error = code(answer.error_code)
    if error is not ErrorCode.NONE:
        return InitProducerIdResponse(error=error)
    return InitProducerIdResponse(producer=ProducerIdentity(int(answer.producer_id), int(answer.producer_epoch)))


CODECS: Final[dict[type[Any], Codec]] = {
    InitProducerIdRequest: Codec(
        key=ApiKey.INIT_PRODUCER_ID,
        name="init_producer_id",
        lowest=2,
        highest=5,
        write=by_kio(_init),
        decode=_init_answer,
        needs=lambda request: 0 if request.known == NOBODY else GOES_ON_FROM,
    ),
}
