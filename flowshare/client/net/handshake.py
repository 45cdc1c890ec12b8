"""The first requests on a connection: the broker's APIs (ApiVersions, KIP-511), the check that the broker is the one
that is meant (KIP-1242), and the login (SASL, KIP-152)."""

from __future__ import annotations

import asyncio
import secrets
import struct
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from flowshare.client.errors import AnotherBroker, ClientError, ServerError
from flowshare.client.wire import codec_of
from flowshare.protocol.client_software import MEANT_FROM, OWN_SOFTWARE, version
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey, entity, read_response, write_request
from flowshare.protocol.messages.security import SaslAuthenticateRequest, SaslHandshakeRequest
from flowshare.protocol.translation import known_error
from flowshare.version import __version__

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
"""The version from which ApiVersions names the client."""
AGAIN_FROM: Final = 0.85
AGAIN_UNTIL: Final = 0.95
"""The parts of a login's lifetime between which it is renewed, as in Java's clients."""
AGAIN_S_MIN: Final = 1.0
AGAIN_S_MAX: Final = 86_400.0
"""The shortest and longest time, in seconds, to the next login, whatever lifetime a broker reports."""
_ERROR: Final = struct.Struct(">ih")


class Names(NamedTuple):
    """The client's identity. worker: node id of the fleet's worker in this process; None: no worker. process: the
    process itself, sent to a server of this machine. meant: cluster id and node id of the broker that should be at the
    other end; None: any."""

    client_id: str
    worker: int | None = None
    process: tuple[int, int] | None = None
    meant: tuple[str, int] | None = None


class SaslExchange:
    """The SASL messages of one login on a connection: SaslHandshake once, then SaslAuthenticate as the mechanism needs.

    lifetime_s: seconds that the login holds, as the broker last said (KIP-368); 0: as long as the connection.
    """

    def __init__(self, pipeline: Pipeline, client_id: str, versions: Versions) -> None:
        self._pipeline = pipeline
        self._client_id = client_id
        self._versions = versions
        self.lifetime_s = 0.0

    async def handshake(self, mechanism: str) -> None:
        """Choose a mechanism. Raises: ClientError naming the broker's mechanisms, ConnectionError."""
        answer = await self._call(SaslHandshakeRequest(mechanism=mechanism))
        if answer.error is not ErrorCode.NONE:
            offered = ", ".join(answer.mechanisms) or "none"
            raise ClientError(
                f"{self._pipeline.about} does not take SASL {mechanism} (it takes: {offered}); choose one it has"
            )

    async def send(self, token: bytes) -> bytes:
        """Send one message of the mechanism, return the broker's. Raises: ServerError, ConnectionError."""
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
    """The logins of one connection: the first, and further ones before the last expires (KIP-368).

    They begin when 85 to 95 % of the lifetime is over, drawn at random each time, so that the connections of a process
    do not log in all at once. Other requests wait meanwhile. A failed login ends the connection, and the next opening
    reports the reason.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        security: Security,
        exchange: Callable[[], SaslExchange],
        clock: Clock,
        random: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        """exchange: makes the SASL messages of a new login. random: returns so many random bytes."""
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
        """Log in again before each expiry, until the connection ends."""
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
    """Ask the broker for its APIs and their versions. Raises: ClientError, ConnectionError, AnotherBroker (another
    broker answers at the address)."""
    highest = API_VERSIONS_HIGHEST if names.meant is None else MEANT_FROM
    error, versions = await _ask_versions(pipeline, names, highest)
    if error is ErrorCode.UNSUPPORTED_VERSION:
        # A broker that does not know our version answers in version 0 and names the versions that it knows.
        known = versions.get(ApiKey.API_VERSIONS, (0, 0))[1]
        error, versions = await _ask_versions(pipeline, names, max(0, min(known, highest)))
    if error is ErrorCode.REBOOTSTRAP_REQUIRED and names.meant is not None:
        cluster, node = names.meant
        raise AnotherBroker(
            f"broker {node} of cluster {cluster} is no longer at {pipeline.about}: another one is there"
        )
    if error is not ErrorCode.NONE:
        raise ClientError(f"{pipeline.about} does not say which APIs it has: {error.name}; is it a Kafka broker?")
    return versions


async def _ask_versions(pipeline: Pipeline, names: Names, asked: int) -> tuple[ErrorCode, Versions]:
    named: dict[str, object] = {
        "client_software_name": OWN_SOFTWARE,
        "client_software_version": version(__version__, names.worker, names.process),
    }
    if names.meant is not None and asked >= MEANT_FROM:
        named["cluster_id"], named["node_id"] = names.meant
    request = entity("api_versions", asked, "request")(**(named if asked >= NAMED_FROM else {}))

    def read(frame: bytes) -> tuple[ErrorCode, Versions]:
        _, error = _ERROR.unpack_from(frame)
        unknown = error == ErrorCode.UNSUPPORTED_VERSION
        _, answer = read_response("api_versions", 0 if unknown else asked, frame)
        offered = {int(one.api_key): (int(one.min_version), int(one.max_version)) for one in answer.api_keys}
        return known_error(error), offered

    return await pipeline.call(lambda number: write_request(number, names.client_id, request), read, name="ApiVersions")
