"""`TcpConnection`: a `Connection` over TCP, to Kafka's brokers and flowshare's servers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from flowshare.client.errors import ClientError, NotConnected, Unsupported
from flowshare.client.net.handshake import Logins, Names, SaslExchange, Versions, api_versions
from flowshare.client.net.requests import AwaitedAnswer, Pipeline, Waits
from flowshare.client.wire import FILTERED, Codec, codec_of
from flowshare.protocol import filter_codec
from flowshare.protocol.kafka import ApiKey
from flowshare.protocol.messages import (
    FetchRequest,
    ProduceRequest,
    ShareAcknowledgeRequest,
    ShareFetchRequest,
    ShareSettleRequest,
)
from flowshare.protocol.private import decode_answer, encode_call

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from flowshare.client.net.security import Security
    from flowshare.client.settings import LinkSettings
    from flowshare.clock import Clock
    from flowshare.protocol.messages import Request
    from flowshare.protocol.messages.base import FinishedRequest
    from flowshare.protocol.private import OwnCall

R = TypeVar("R")
F = TypeVar("F", bound=Waits)

SHARE_KEYS: Final = frozenset({76, 77, 78, 79, 90, 91, 92})
"""APIs that a broker offers only when its share groups are on."""
WRITTEN_AT_ONCE: Final = (ShareFetchRequest, ShareAcknowledgeRequest, ShareSettleRequest, ProduceRequest)
"""Requests whose order matters."""


class TcpConnection:
    """One connection to one broker; made by `open_tcp`, with the contract of `protocol.messages.Connection`.

    api_versions: the broker's APIs: key -> lowest and highest version. is_flowshare: True: the broker is one of
    flowshare's own servers, which accept flowshare's own fields and answer out of order. asks_for_login: True: the
    broker accepts SASL (Kafka's brokers report this of all their ports).
    """

    def __init__(self, pipeline: Pipeline, versions: Versions, client_id: str, login: Logins | None = None) -> None:
        """login: kept up for as long as the connection lasts; None: no login."""
        self._pipeline = pipeline
        self._client_id = client_id
        if login is not None:
            login.keep_up()
        self._chosen: dict[type[Any], tuple[int, int]] = {}
        self.api_versions = versions
        self.is_flowshare = ApiKey.FLOWSHARE in versions
        self.keeps_time = True  # it ends when an answer is overdue (`client.net.requests`)
        self._filters = ApiKey.FLOWSHARE_FETCH in versions
        self.asks_for_login = ApiKey.SASL_HANDSHAKE in versions

    @property
    def closed(self) -> bool:
        """True if the connection has ended, from either side."""
        return self._pipeline.ended is not None

    async def send(self, request: Request[R]) -> R:
        """Send a request in the highest version that both ends know, and return the broker's answer.

        Raises: Unsupported (the broker does not have the API, or not in a version with these fields), ClientError (the
        request cannot be written), NotConnected and ConnectionLost (both are ConnectionErrors).
        """
        own = request.own
        if own is not None and own.when(request) and (self.is_flowshare or not own.falls_back):
            return cast("R", await self._ask(own, request))
        answer: Any = await self._begin(request, asyncio.get_running_loop().create_future())
        return cast("R", answer)

    def begin(self, request: Request[Any], told: Callable[[FinishedRequest], object]) -> None:
        """Begin a request as `Connection.begin`: record batches and requests of a share session are written before this
        returns, and the answer is reported as soon as it is read."""
        if isinstance(request, WRITTEN_AT_ONCE):
            waiting = AwaitedAnswer(told)
            try:
                self._begin(request, waiting)
            except (OSError, ClientError) as error:
                waiting.set_exception(error)
        else:
            asyncio.ensure_future(self.send(request)).add_done_callback(told)

    def _begin(self, request: Any, waits: F) -> F:
        codec = codec_of(request)
        if isinstance(request, FetchRequest) and self._filters and any(part.only for part in request.partitions):
            codec, version = FILTERED, filter_codec.VERSION
        else:
            version = self._version(codec, request)
        self._pipeline.begin(
            waits,
            lambda number: codec.write(number, self._client_id, request, version),
            lambda frame: codec.read(frame, request, version),
            name=codec.api.title,
            wait_s=codec.api.wait_ms(request) / 1000,
        )
        return waits

    async def _ask(self, own: OwnCall, request: Any) -> Any:
        """Send one of flowshare's own calls. Raises: Unsupported (the broker is not flowshare's), NotConnected,
        ConnectionLost."""
        if not self.is_flowshare:
            raise Unsupported(f"{self._pipeline.about} is no flowshare server, which {own.name} needs")
        return await self._pipeline.call(
            lambda number: encode_call(number, self._client_id, request),
            lambda frame: decode_answer(frame, own.response),
            name=own.name,
        )

    async def close(self) -> None:
        """Close; requests under way fail at once, and the server releases the records of this connection's sessions."""
        await self._pipeline.close()

    def on_closed(self, listener: Callable[[str], object]) -> None:
        """Call `listener` with the reason when the connection ends, from whichever end."""
        self._pipeline.on_ended(listener)

    async def wait_closed(self) -> None:
        """Wait until the connection is over, from either end."""
        await self._pipeline.wait_ended()

    def _version(self, codec: Codec, request: Any) -> int:
        """Return the highest common version. Raises: Unsupported."""
        kind: type[Any] = request.__class__
        common = self._chosen.get(kind)
        if common is None:
            has, ours = self.api_versions.get(codec.api.key, (0, -1)), codec.versions
            common = self._chosen[kind] = max(has[0], ours[0]), min(has[1], ours[1])
        needs = max(common[0], codec.api.needs(request))
        if needs > common[1]:
            raise Unsupported(self._refusal(codec, needs))
        return common[1]

    def _refusal(self, codec: Codec, needs: int) -> str:
        has = self.api_versions.get(codec.api.key)
        if has is not None:
            versions = f"{has[0]}" if has[0] == has[1] else f"{has[0]} to {has[1]}"
            return (
                f"{self._pipeline.about} has {codec.api.title} in version {versions}, this needs "
                f"{max(needs, codec.versions[0])}: upgrade the broker, or leave out what is new"
            )
        advice = "use a newer broker"
        if codec.api.key in (ApiKey.FLOWSHARE_SETTLE, ApiKey.FLOWSHARE_COOPERATIVE_SETTLE):
            advice = "records are settled together with outputs by flowshare's own servers, of this release or newer"
        if codec.api.key in SHARE_KEYS:
            advice = (
                "share groups need Kafka 4.2 or newer and the feature share.version=1 "
                "(kafka-features.sh upgrade --feature share.version=1)"
            )
        return f"{self._pipeline.about} does not offer {codec.api.title}: {advice}"


async def open_tcp(
    host: str,
    port: int,
    *,
    client_id: str,
    clock: Clock,
    settings: LinkSettings,
    security: Security | None = None,
    worker: int | None = None,
    process: tuple[int, int] | None = None,
    meant: tuple[str, int] | None = None,
) -> TcpConnection:
    """Connect, agree on versions, authenticate; all within connect_timeout.

    worker: node id of the fleet's worker in this process, sent to the other end. process: the id of this process, sent
    to the leader of a path of this machine. meant: cluster id and node id of the broker that should be there; None:
    any.
    Raises: NotConnected (an OSError: a retry may help), ClientError (it will not: a wrong password, no Kafka broker).
    """
    about = f"{host}:{port}"
    opening = _open(host, port, about, clock, settings, security, Names(client_id, worker, process, meant))
    try:
        return await clock.wait_for(opening, settings.connect_timeout)
    except TimeoutError:
        raise NotConnected(f"{about}: no connection within {settings.connect_timeout:g} s") from None


async def _open(
    host: str,
    port: int,
    about: str,
    clock: Clock,
    settings: LinkSettings,
    security: Security | None,
    names: Names,
) -> TcpConnection:
    context = None
    if security is not None and security.tls:
        context = await asyncio.to_thread(security.ssl_context)  # reads all CAs: tens of milliseconds
    pipeline = await _connect(host, port, about, clock, settings, context)
    login = None
    try:
        versions = await api_versions(pipeline, names)
        if security is not None and security.sasl:
            login = Logins(pipeline, security, lambda: SaslExchange(pipeline, names.client_id, versions), clock)
            await login.log_in()
    except BaseException as error:
        pipeline.end(str(error) or "the connection was given up")
        raise
    return TcpConnection(pipeline, versions, names.client_id, login)


async def _connect(
    host: str, port: int, about: str, clock: Clock, settings: LinkSettings, context: ssl.SSLContext | None
) -> Pipeline:
    def protocol() -> Pipeline:
        return Pipeline(about=about, clock=clock, settings=settings)

    try:
        _, pipeline = await asyncio.get_running_loop().create_connection(protocol, host, port, ssl=context)
    except (OSError, ValueError, OverflowError) as error:  # the others: of a name or port that is none
        if context is not None and type(error).__module__ == "ssl":
            raise ClientError(
                f"{about}: TLS failed: {error}; check the port, the certificate authority and the host name"
            ) from error
        raise NotConnected(
            f"{about} cannot be reached: {error}; check the address, and that the broker runs"
        ) from error
    return pipeline
