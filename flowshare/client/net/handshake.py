"""The first words on a connection: which APIs the broker has (ApiVersions, KIP-511), and who we are (SASL, KIP-152)."""

from __future__ import annotations

import asyncio
import secrets
import struct
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import flowshare
from flowshare.client.errors import ClientError, ServerError
from flowshare.client.wire import codec_of
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey, entity, read_response, write_request
from flowshare.protocol.messages.security import SaslAuthenticateRequest, SaslHandshakeRequest
from flowshare.protocol.software import OWN_SOFTWARE, version
from flowshare.protocol.translation import known_error

if TYPE_CHECKING:
    from flowshare.client.net.requests import Pipeline
    from flowshare.client.net.security import Security
    from flowshare.clock import Clock, TimerHandle
    from flowshare.protocol.messages import Request

R = TypeVar("R")
Versions = Mapping[int, tuple[int, int]]
"""API key -> lowest and highest version."""
API_VERSIONS_HIGHEST: Final = 4
NAMED_FROM: Final = 3
"""The version from which ApiVersions says who asks."""
AGAIN_FROM: Final = 0.85
AGAIN_UNTIL: Final = 0.95
"""Parts of a login's time between which it is made again, as Java's clients do."""
AGAIN_S_MIN: Final = 1.0
AGAIN_S_MAX: Final = 86_400.0
"""However short or long a broker says that a login holds."""
_ERROR: Final = struct.Struct(">ih")


class Names(NamedTuple):
    """Who asks. worker: node id of the fleet's worker whose process this is; None: none's."""

    client_id: str
    worker: int | None = None


class SaslExchange:
    """SASL's frames of one login on a connection: SaslHandshake once, then SaslAuthenticate as the mechanism needs.

    lifetime_s: how long the login holds, as the broker said last (KIP-368); 0: as long as the connection.
    """

    def __init__(self, pipeline: Pipeline, client_id: str, versions: Versions) -> None:
        self._pipeline = pipeline
        self._client_id = client_id
        self._versions = versions
        self.lifetime_s = 0.0

    async def handshake(self, mechanism: str) -> None:
        """Choose a mechanism. Raises: ClientError naming those that the broker has, ConnectionError."""
        answer = await self._call(SaslHandshakeRequest(mechanism=mechanism))
        if answer.error is not ErrorCode.NONE:
            offered = ", ".join(answer.mechanisms) or "none"
            raise ClientError(
                f"{self._pipeline.about} does not take SASL {mechanism} (it takes: {offered}); choose one it has"
            )

    async def send(self, token: bytes) -> bytes:
        """One step of the mechanism: our bytes, the broker's bytes. Raises: ServerError, ConnectionError."""
        answer = await self._call(SaslAuthenticateRequest(auth_bytes=token))
        if answer.error is not ErrorCode.NONE:
            about = f"{self._pipeline.about}: authentication failed; check user name and password"
            raise ServerError(answer.error, answer.message, about=about)
        self.lifetime_s = answer.session_lifetime_ms / 1000
        return answer.auth_bytes

    async def _call(self, request: Request[R]) -> R:
        codec = codec_of(request)
        lowest, highest = codec.versions
        if codec.api.key not in self._versions:
            raise ClientError(
                f"{self._pipeline.about} does not ask for authentication; connect to it without, or use its SASL port"
            )
        version = max(lowest, min(highest, self._versions[codec.api.key][1]))
        return await self._pipeline.call(
            lambda number: codec.write(number, self._client_id, request, version),
            lambda frame: codec.read(frame, request, version),
            name=codec.api.name,
            at_once=True,
        )


class Logins:
    """The logins of one connection: the first one, and further ones before the last is over (KIP-368).

    They begin when 85 to 95 % of their time is over, drawn anew each time, so that the connections of a process do not
    log in all at once. Other requests wait meanwhile; one that fails ends the connection, and whoever opens the next
    one learns why.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        security: Security,
        exchange: Callable[[], SaslExchange],
        clock: Clock,
        random: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        """exchange: SASL's frames of a new login. random: so many fresh bytes."""
        self._pipeline = pipeline
        self._security = security
        self._exchange = exchange
        self._clock = clock
        self._random = random
        self._lifetime_s = 0.0
        self._timer: TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    async def log_in(self) -> None:
        """Log in. Raises: ClientError, ConnectionError."""
        exchange = self._exchange()
        with self._pipeline.held():
            await self._security.authenticate(exchange, random=self._random)
        self._lifetime_s = exchange.lifetime_s

    def keep_up(self) -> None:
        """Log in again whenever it is time, until the connection ends."""
        self._pipeline.on_ended(lambda _: self._stop())
        self._wait()

    def _wait(self) -> None:
        if self._lifetime_s <= 0 or self._pipeline.ended is not None:
            return
        part = AGAIN_FROM + (AGAIN_UNTIL - AGAIN_FROM) * self._random(1)[0] / 255
        pause_s = min(max(self._lifetime_s * part, AGAIN_S_MIN), AGAIN_S_MAX)
        self._timer = self._clock.call_later(pause_s, self._begin)

    def _begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._again(), name=f"login at {self._pipeline.about}")

    async def _again(self) -> None:
        try:
            await self.log_in()
        except (ClientError, OSError) as error:
            self._pipeline.end(f"the login could not be made again: {error}")
        else:
            self._wait()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()


async def api_versions(pipeline: Pipeline, names: Names) -> Versions:
    """What the broker offers. Raises: ClientError, ConnectionError."""
    error, versions = await _ask_versions(pipeline, names, API_VERSIONS_HIGHEST)
    if error is ErrorCode.UNSUPPORTED_VERSION:
        # A broker that does not know our version answers in version 0 and says which versions it does know.
        known = versions.get(ApiKey.API_VERSIONS, (0, 0))[1]
        error, versions = await _ask_versions(pipeline, names, max(0, min(known, API_VERSIONS_HIGHEST)))
    if error is not ErrorCode.NONE:
        raise ClientError(f"{pipeline.about} does not say which APIs it has: {error.name}; is it a Kafka broker?")
    return versions


async def _ask_versions(pipeline: Pipeline, names: Names, asked: int) -> tuple[ErrorCode, Versions]:
    named = {
        "client_software_name": OWN_SOFTWARE,
        "client_software_version": version(flowshare.__version__, names.worker),
    }
    request = entity("api_versions", asked, "request")(**(named if asked >= NAMED_FROM else {}))

    def read(frame: bytes) -> tuple[ErrorCode, Versions]:
        _, error = _ERROR.unpack_from(frame)
        unknown = error == ErrorCode.UNSUPPORTED_VERSION
        _, answer = read_response("api_versions", 0 if unknown else asked, frame)
        offered = {int(one.api_key): (int(one.min_version), int(one.max_version)) for one in answer.api_keys}
        return known_error(error), offered

    return await pipeline.call(lambda number: write_request(number, names.client_id, request), read, name="ApiVersions")
