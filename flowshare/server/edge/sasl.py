"""SASL: logins at a socket (KIP-43, KIP-152), and users made over the wire (KIP-554).

A login holds for connections.max.reauth.ms, which the client is told; until then the client logs in again on the same
connection, as the same user by the same mechanism (KIP-368), while other requests go on. A client that does not loses
the connection (`server.net.socket`); so does, after that time, a user who was removed or whose password changed. A
failed login, the first or a later one, is answered after `FAILED_S` and ends the connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from flowshare.log.base import LogError
from flowshare.protocol.declaration import Api
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey, module
from flowshare.protocol.messages.security import (
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from flowshare.protocol.rights import Operation, ResourceType
from flowshare.protocol.scram import ScramError
from flowshare.protocol.translation import NO_TIME, kafka_error
from flowshare.server.edge.base import Endpoint, Peer, SocketCall
from flowshare.server.edge.derived import derived
from flowshare.server.runtime.failures import Refused, failure
from flowshare.server.security.credentials import KEY_BYTES, Credential, from_salted
from flowshare.server.security.guesses import Guesses
from flowshare.server.security.sasl import LoginFailed, Sasl, ServerLogin, UnknownMechanism
from flowshare.server.security.users import STORED_MAX, Users
from flowshare.server.security.users_file import BadUsersFile, check_name

if TYPE_CHECKING:
    from flowshare.clock import Clock

logger = logging.getLogger(__name__)

FAILED_S: Final = 0.1
"""Seconds from a login's last message to the answer that it failed (Kafka's
connection.failed.authentication.delay.ms)."""

LOGIN: Final = "login"
"""Key in `Peer.extra` of the login under way."""
MADE: Final = "login made"
"""Key in `Peer.extra` of mechanism and time of the last login."""
AGAIN_S: Final = 1.0
"""Least seconds from a login to the next one of the connection, as in Kafka."""

MECHANISMS: Final[Mapping[int, str]] = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
"""Mechanisms by Kafka's codes (ScramMechanism)."""
CODES: Final[Mapping[str, int]] = {name: code for code, name in MECHANISMS.items()}
CHANGES_MAX: Final = 1_000
"""Most changes in one request."""

Outcome = tuple[ErrorCode, str | None]


class SaslApis:
    """The two APIs of a listener with SASL."""

    def __init__(self, sasl: Sasl, clock: Clock) -> None:
        self._sasl = sasl
        self._clock = clock
        self._guesses = Guesses(clock)

    def apis(self) -> Sequence[Endpoint]:
        """Return both."""
        return (derived(SASL_HANDSHAKE, self._handshake), derived(SASL_AUTHENTICATE, self._authenticate))

    async def _handshake(self, call: SocketCall, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
        peer, answer = call.peer, partial(SaslHandshakeResponse, mechanisms=self._sasl.mechanisms)
        if LOGIN in peer.extra or not self._may_begin(peer, call.version, request.mechanism):
            return answer(error=ErrorCode.ILLEGAL_SASL_STATE)
        try:
            peer.extra[LOGIN] = self._sasl.login(request.mechanism)
        except UnknownMechanism:
            peer.closing = True
            return answer(error=ErrorCode.UNSUPPORTED_SASL_MECHANISM)
        peer.logging_in_since_s = self._clock.monotonic()
        if call.version == 0:
            peer.raw = partial(self._raw, peer)
        return answer()

    async def _authenticate(self, call: SocketCall, request: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
        peer = call.peer
        if LOGIN not in peer.extra:
            peer.closing = peer.principal is None
            return SaslAuthenticateResponse(error=ErrorCode.ILLEGAL_SASL_STATE, message="send a SaslHandshake first")
        try:
            reply = await self._step(peer, request.auth_bytes)
        except LoginFailed as error:
            peer.closing = True
            return SaslAuthenticateResponse(error=ErrorCode.SASL_AUTHENTICATION_FAILED, message=str(error))
        lifetime_ms = 0 if LOGIN in peer.extra else peer.reauth_max_ms or 0
        return SaslAuthenticateResponse(auth_bytes=reply, session_lifetime_ms=lifetime_ms)

    async def _raw(self, peer: Peer, token: bytes) -> bytes:
        """Process a bare token after a SaslHandshake v0."""
        try:
            return await self._step(peer, token)
        except LoginFailed as error:
            raise ConnectionError(str(error)) from None

    def _may_begin(self, peer: Peer, version: int, mechanism: str) -> bool:
        """Return True if a login may begin: the connection's first one; or a repeated one with the same mechanism, not
        by bare tokens and not too soon."""
        made = peer.extra.get(MADE)
        if made is None:
            return peer.principal is None
        before, at_s = made
        return version > 0 and mechanism == before and self._clock.monotonic() - at_s >= AGAIN_S

    async def _step(self, peer: Peer, message: bytes) -> bytes:
        """Process a login's next message; return the reply.

        Raises: LoginFailed, after a time that tells nothing; ConnectionError: too many failed before it.
        """
        login: ServerLogin = peer.extra[LOGIN]
        name = login.decides(message)
        end = None if name is None else await self._guesses.begin(peer.host, name)
        begun = self._clock.monotonic()
        user: str | None = None
        try:
            step = await asyncio.to_thread(login.step, message) if login.slow else login.step(message)
            user = step.user
        except LoginFailed as error:
            logger.warning("login failed: host=%s client=%r: %s", peer.host, peer.connection.client_id[:100], error)
            await self._clock.sleep(max(0.0, begun + FAILED_S - self._clock.monotonic()))
            raise
        finally:
            if end is not None:
                end(failed=user is None)
        if user is not None:
            self._logged_in(peer, f"User:{user}", login.mechanism)
        return step.reply

    def _logged_in(self, peer: Peer, principal: str, mechanism: str) -> None:
        """Log a user in. Raises: LoginFailed (another user before)."""
        if peer.principal not in (None, principal):
            logger.warning("login failed: host=%s: it was made again as another user", peer.host)
            raise LoginFailed("log in again as the same user; who is another one opens a connection of its own")
        del peer.extra[LOGIN]
        peer.logging_in_since_s = None
        peer.raw = None
        peer.principal = principal
        now_s = self._clock.monotonic()
        peer.extra[MADE] = (mechanism, now_s)
        lifetime_ms = peer.reauth_max_ms
        peer.logged_in_until_s = None if lifetime_ms is None else now_s + lifetime_ms / 1000


class ScramApis:
    """The two APIs of users' credentials. The password itself never comes here: clients send it salted and hashed."""

    def __init__(self, users: Users) -> None:
        self._users = users

    def apis(self) -> Sequence[Endpoint]:
        """Return both, v0."""
        return (
            Endpoint(Api(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, server=(0, 0)), self._describe),
            Endpoint(Api(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, server=(0, 0)), self._alter),
        )

    async def _describe(self, call: SocketCall) -> Any:
        made: Any = module("describe_user_scram_credentials", 0, "response")
        outcome: Outcome = (ErrorCode.NONE, None)
        results: tuple[Any, ...] = ()
        try:
            call.peer.need(Operation.DESCRIBE, ResourceType.CLUSTER)
        except Refused as error:
            outcome = failure(error)
        else:
            known = self._users.all()
            asked = [user.name for user in call.request.users or ()] or sorted(known)
            times = Counter(asked)
            results = tuple(_described(made, name, known.get(name, ()), times[name]) for name in times)
        return made.DescribeUserScramCredentialsResponse(
            throttle_time=NO_TIME, error_code=kafka_error(outcome[0]), error_message=outcome[1], results=results
        )

    async def _alter(self, call: SocketCall) -> Any:
        made: Any = module("alter_user_scram_credentials", 0, "response")
        request = call.request
        names = dict.fromkeys(change.name for change in (*request.deletions, *request.upsertions))
        try:
            call.peer.need(Operation.ALTER, ResourceType.CLUSTER)
            if len(request.deletions) + len(request.upsertions) > CHANGES_MAX:
                raise Refused(ErrorCode.INVALID_REQUEST, f"a request has at most {CHANGES_MAX} changes; send several")
            outcomes = await self._altered(request, names)
        except (Refused, LogError) as error:
            outcomes = dict.fromkeys(names, failure(error))
        return made.AlterUserScramCredentialsResponse(
            throttle_time=NO_TIME,
            results=tuple(
                made.AlterUserScramCredentialsResult(user=name, error_code=kafka_error(code), error_message=text)
                for name, (code, text) in outcomes.items()
            ),
        )

    async def _altered(self, request: Any, names: Iterable[str]) -> dict[str, Outcome]:
        """Make the changes, those of one user all or none; return each user's outcome. Raises: LogError."""
        outcomes: dict[str, Outcome] = dict.fromkeys(names, (ErrorCode.NONE, None))
        puts: list[tuple[str, Credential]] = []
        removals: list[tuple[str, str]] = []
        added = 0
        for name in outcomes:
            try:
                new = [_credential(put) for put in request.upsertions if put.name == name]
                gone = [_mechanism(removal.mechanism) for removal in request.deletions if removal.name == name]
                added += self._check_changes(name, new, gone, added)
            except Refused as error:
                outcomes[name] = failure(error)
            else:
                puts += [(name, credential) for credential in new]
                removals += [(mechanism, name) for mechanism in gone]
        await self._users.alter(puts, removals)
        return outcomes

    def _check_changes(self, name: str, new: Sequence[Credential], gone: Sequence[str], before: int) -> int:
        """Return how many credentials a change adds. before: number that the request has added so far. Raises:
        Refused."""
        try:
            check_name(name)
        except BadUsersFile as error:
            raise Refused(ErrorCode.UNACCEPTABLE_CREDENTIAL, str(error)) from None
        if self._users.fixed(name):
            raise Refused(ErrorCode.POLICY_VIOLATION, f"the user {name} stands in the server's file; change that")
        mechanisms = [*gone, *(credential.mechanism for credential in new)]
        if len(mechanisms) != len(set(mechanisms)):
            raise Refused(ErrorCode.DUPLICATE_RESOURCE, "a user's mechanism is changed twice in one request")
        if not all(self._users.stored(mechanism, name) for mechanism in gone):
            raise Refused(ErrorCode.RESOURCE_NOT_FOUND, "a credential that is to be deleted does not exist")
        added = sum(not self._users.stored(credential.mechanism, name) for credential in new)
        if added and self._users.count + before + added > STORED_MAX:
            raise Refused(ErrorCode.POLICY_VIOLATION, f"there may be {STORED_MAX} credentials; delete some first")
        return added


def _described(made: Any, name: str, credentials: Sequence[Credential], times: int) -> Any:
    code, text = ErrorCode.NONE, None
    if times > 1:
        code, text = ErrorCode.DUPLICATE_RESOURCE, "the user is asked for more than once"
    elif not credentials:
        code, text = ErrorCode.RESOURCE_NOT_FOUND, "there is no such user"
    infos = (
        made.CredentialInfo(mechanism=CODES[credential.mechanism], iterations=credential.iterations)
        for credential in (credentials if code is ErrorCode.NONE else ())
    )
    return made.DescribeUserScramCredentialsResult(
        user=name, error_code=kafka_error(code), error_message=text, credential_infos=tuple(infos)
    )


def _credential(put: Any) -> Credential:
    """Return the credential that a client hashed. Raises: Refused."""
    mechanism = _mechanism(put.mechanism)
    if len(put.salted_password) != KEY_BYTES[mechanism]:
        raise Refused(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"the salted password of {mechanism} has {KEY_BYTES[mechanism]} bytes",
        )
    try:
        return from_salted(mechanism, put.salted_password, salt=put.salt, iterations=put.iterations)
    except ScramError as error:
        raise Refused(ErrorCode.UNACCEPTABLE_CREDENTIAL, str(error)) from None


def _mechanism(code: int) -> str:
    name = MECHANISMS.get(code)
    if name is None:
        raise Refused(ErrorCode.UNSUPPORTED_SASL_MECHANISM, f"there is no SCRAM mechanism {code}")
    return name
