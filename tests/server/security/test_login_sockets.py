"""Logins and TLS over real sockets, with flowshare's own client and with bare requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from flowshare.client.errors import ClientError, ServerError
from flowshare.client.net.security import Security
from flowshare.client.net.tcp import open_tcp
from flowshare.client.settings import LinkSettings
from flowshare.clock import LoopClock, TimerHandle
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey
from flowshare.protocol.messages import MetadataRequest
from flowshare.server.edge.base import LOGIN_S
from flowshare.server.edge.sasl import FAILED_S
from flowshare.server.security import guesses
from flowshare.server.security.credentials import hashed
from flowshare.server.security.sasl import MECHANISMS
from flowshare.server.security.tls import ServerTls
from tests.server.security.broker import Secured, Talk, secured
from tests.server.security.certificates import Certificates
from tests.server.security.logins import client

pytestmark = pytest.mark.asyncio


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


class Impatient(LoopClock):
    """Notes how long short sleeps would take, and does not take them."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def monotonic(self) -> float:
        """Stands still."""
        return 0.0

    async def sleep(self, delay_s: float) -> None:
        """At once, when it is as short as a login's."""
        if delay_s > FAILED_S:
            await super().sleep(delay_s)
            return
        self.waits.append(delay_s)


async def open_and_close(broker: Secured, security: Security | None) -> set[int]:
    """Connect with flowshare's client; which APIs the broker has."""
    settings = LinkSettings(connect_timeout=15.0)
    connection = await open_tcp(
        broker.host, broker.port, client_id="test", clock=LoopClock(), settings=settings, security=security
    )
    try:
        return set(connection.api_versions)
    finally:
        await connection.close()


def login(mechanism: str = "SCRAM-SHA-512", password: str = "wonder land", **options) -> Security:
    options = {"protocol": "SASL_PLAINTEXT", **options}
    return Security(mechanism=mechanism, username="alice", password=password, **options)


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_the_right_password_logs_in(tmp_path: Path, mechanism: str) -> None:
    async with secured(tmp_path) as broker:
        apis = await open_and_close(broker, login(mechanism))

        assert {ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.ALTER_USER_SCRAM_CREDENTIALS} <= apis


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_a_wrong_password_is_told_and_stands_in_no_log(
    tmp_path: Path, mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        async with secured(tmp_path) as broker:
            with pytest.raises(ServerError) as failed:
                await open_and_close(broker, login(mechanism, "looking glass"))

    assert failed.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED
    assert "login failed: host=127.0.0.1" in caplog.text
    assert "glass" not in caplog.text + str(failed.value)


async def test_a_failed_login_is_answered_later_and_ends_the_connection(tmp_path: Path) -> None:
    clock = Impatient()
    async with secured(tmp_path, clock=clock) as broker:
        talk = await broker.connect()
        clock.waits.clear()
        answer = await talk.log_in("nobody", "word")

        (waited_s,) = clock.waits
        assert waited_s == FAILED_S
        assert ErrorCode(int(answer.error_code)) is ErrorCode.SASL_AUTHENTICATION_FAILED
        assert await talk.ended() == b""


async def test_who_guesses_too_fast_loses_the_connection_and_nobody_at_another_address_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(guesses, "ADDRESS", guesses.Pace(burst=2, per_s=0.001))
    monkeypatch.setattr(guesses, "ADDRESS_WAIT_S", 0.0)
    async with secured(tmp_path) as broker:
        for mechanism in ("PLAIN", "SCRAM-SHA-512"):
            with pytest.raises(ServerError):
                await open_and_close(broker, login(mechanism, "looking glass"))
        for mechanism in ("PLAIN", "SCRAM-SHA-512"):
            with pytest.raises(ConnectionError):
                await open_and_close(broker, login(mechanism))

        talk = await broker.connect(local_addr=("127.0.0.2", 0))
        assert int((await talk.log_in("alice", "wonder land")).error_code) == 0
    assert "too many logins from 127.0.0.1 failed" in caplog.text


async def test_nothing_is_answered_before_the_login(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker:
        talk = await broker.connect()
        await talk.ask("api_versions", 3, client_software_name="test", client_software_version="1")
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await talk.ask("describe_user_scram_credentials", 0, users=None)


async def test_an_unknown_mechanism_is_answered_with_those_that_are_known(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker:
        talk = await broker.connect()
        answer = await talk.ask("sasl_handshake", 1, mechanism="GSSAPI")

        assert ErrorCode(int(answer.error_code)) is ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert answer.mechanisms == MECHANISMS
        assert await talk.ended() == b""


async def test_plain_is_not_offered_without_tls_unless_it_is_named(tmp_path: Path, files: Certificates) -> None:
    async with secured(tmp_path, mechanisms=None) as broker:
        with pytest.raises(ClientError, match="it takes: SCRAM-SHA-512, SCRAM-SHA-256\\)"):
            await open_and_close(broker, login("PLAIN"))
        assert await open_and_close(broker, login("SCRAM-SHA-256"))
    async with secured(tmp_path, mechanisms=None, tls=files.tls()) as broker:
        assert await open_and_close(broker, login("PLAIN", protocol="SASL_SSL", ca_file=files.ca))
    async with secured(tmp_path, mechanisms=("PLAIN",)) as broker:
        assert await open_and_close(broker, login("PLAIN"))
        with pytest.raises(ClientError, match="it takes: PLAIN\\)"):
            await open_and_close(broker, login("SCRAM-SHA-512"))


async def test_a_login_begins_with_a_handshake_and_is_not_made_again_at_once(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker:
        talk = await broker.connect()
        answer = await talk.ask("sasl_authenticate", 0, auth_bytes=b"\0alice\0wonder land")
        assert ErrorCode(int(answer.error_code)) is ErrorCode.ILLEGAL_SASL_STATE
        assert await talk.ended() == b""

        talk = await broker.as_user()
        for name, version, fields in (
            ("sasl_handshake", 1, {"mechanism": "PLAIN"}),
            ("sasl_authenticate", 2, {"auth_bytes": b"\0alice\0wonder land"}),
        ):
            answer = await talk.ask(name, version, **fields)
            assert ErrorCode(int(answer.error_code)) is ErrorCode.ILLEGAL_SASL_STATE
        assert await _goes_on(talk)


class Ahead(LoopClock):
    """Can be moved on."""

    ahead_s = 0.0

    def monotonic(self) -> float:
        """Later than it is."""
        return super().monotonic() + self.ahead_s


async def _goes_on(talk: Talk) -> bool:
    """True if the connection is served."""
    return bool((await talk.ask("describe_user_scram_credentials", 0, users=None)).results)


async def test_a_login_holds_for_its_time_and_is_made_again_on_the_connection(tmp_path: Path) -> None:
    clock = Ahead()
    async with secured(tmp_path, clock=clock, connections_max_reauth_ms="100000") as broker:
        talk = await broker.connect()
        answer = await talk.log_in("admin", "top secret")
        assert answer.session_lifetime == timedelta(seconds=100)

        clock.ahead_s = 95
        assert (await talk.log_in("admin", "top secret")).session_lifetime == timedelta(seconds=100)
        clock.ahead_s = 190
        assert await _goes_on(talk)

        clock.ahead_s = 196
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await _goes_on(talk)


async def test_a_login_that_is_made_again_too_late_holds_and_nothing_else_is_answered_until_then(
    tmp_path: Path,
) -> None:
    clock = Ahead()
    async with secured(tmp_path, clock=clock, connections_max_reauth_ms="100000") as broker:
        talk, other = await broker.connect(), await broker.connect()
        for one in (talk, other):
            await one.log_in("admin", "top secret")
        clock.ahead_s = 101
        for one in (talk, other):
            handshake = await one.ask("sasl_handshake", 1, mechanism="PLAIN")
            assert ErrorCode(int(handshake.error_code)) is ErrorCode.NONE
        broker.listener._watch()  # a login under way has its time
        answer = await talk.ask("sasl_authenticate", 2, auth_bytes=b"\0admin\0top secret")

        assert answer.session_lifetime == timedelta(seconds=100)
        assert await _goes_on(talk)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await _goes_on(other)


async def test_a_login_that_is_begun_too_late_and_not_ended_does_not_keep_the_connection(tmp_path: Path) -> None:
    clock = Ahead()
    async with secured(tmp_path, clock=clock, connections_max_reauth_ms="100000") as broker:
        talk = await broker.connect()
        await talk.log_in("admin", "top secret")
        clock.ahead_s = 101
        await talk.ask("sasl_handshake", 1, mechanism="PLAIN")
        clock.ahead_s = 101 + LOGIN_S + 1
        broker.listener._watch()

        assert await talk.ended() == b""


async def test_a_connection_that_does_not_log_in_again_is_closed_also_while_it_waits(tmp_path: Path) -> None:
    clock = Ahead()
    async with secured(tmp_path, clock=clock, connections_max_reauth_ms="100000") as broker:
        talk = await broker.as_user()
        clock.ahead_s = 101
        broker.listener._watch()

        assert await talk.ended() == b""


async def test_who_was_removed_or_has_another_password_does_not_log_in_again(tmp_path: Path) -> None:
    clock = Ahead()
    async with secured(tmp_path, clock=clock) as broker:
        users = broker.listener.sasl.users
        await users.alter([("eve", hashed("SCRAM-SHA-512", "apple", salt=b"salt"))], [])
        talk = await broker.connect()
        assert int((await talk.log_in("eve", "apple")).error_code) == 0

        await users.alter([("eve", hashed("SCRAM-SHA-512", "pear", salt=b"salt"))], [])
        clock.ahead_s = 2
        answer = await talk.log_in("eve", "apple")
        assert ErrorCode(int(answer.error_code)) is ErrorCode.SASL_AUTHENTICATION_FAILED
        assert await talk.ended() == b""


async def test_a_login_is_made_again_as_the_same_user_by_the_same_mechanism_and_not_at_once(tmp_path: Path) -> None:
    clock = Ahead()
    async with secured(tmp_path, clock=clock) as broker:
        talk = await broker.as_user()
        for seconds, mechanism, version in ((0.5, "PLAIN", 1), (2.0, "SCRAM-SHA-512", 1), (2.0, "PLAIN", 0)):
            clock.ahead_s = seconds
            answer = await talk.ask("sasl_handshake", version, mechanism=mechanism)
            assert ErrorCode(int(answer.error_code)) is ErrorCode.ILLEGAL_SASL_STATE
        assert await _goes_on(talk)

        answer = await talk.log_in("alice", "wonder land")
        assert ErrorCode(int(answer.error_code)) is ErrorCode.SASL_AUTHENTICATION_FAILED
        assert await talk.ended() == b""


async def test_without_a_limit_a_login_holds_as_long_as_its_connection(tmp_path: Path) -> None:
    clock = Ahead()
    async with secured(tmp_path, clock=clock, connections_max_reauth_ms="0") as broker:
        talk = await broker.connect()
        assert (await talk.log_in("admin", "top secret")).session_lifetime == timedelta()

        clock.ahead_s = 300
        assert await _goes_on(talk)


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_after_a_handshake_of_version_0_tokens_come_bare(tmp_path: Path, mechanism: str) -> None:
    async with secured(tmp_path) as broker:
        talk = await broker.connect()
        own = client(mechanism, "alice", "wonder land")
        await talk.ask("sasl_handshake", 0, mechanism=mechanism)
        token = own.first()
        while token is not None:
            token = own.next(await talk.raw(token))

        assert (await talk.ask("describe_user_scram_credentials", 0, users=None)).results


async def test_a_wrong_bare_token_is_not_answered(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker:
        talk = await broker.connect()
        await talk.ask("sasl_handshake", 0, mechanism="PLAIN")
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await talk.raw(b"\0alice\0looking glass")


async def test_a_client_that_wants_to_log_in_where_nobody_has_to_is_told(tmp_path: Path) -> None:
    async with secured(tmp_path, users=None) as broker:
        with pytest.raises(ClientError, match="does not ask for authentication"):
            await open_and_close(broker, login())


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
async def test_logins_go_over_tls(tmp_path: Path, files: Certificates, mechanism: str) -> None:
    async with secured(tmp_path, tls=files.tls()) as broker:
        assert await open_and_close(broker, login(mechanism, protocol="SASL_SSL", ca_file=files.ca))


async def test_a_certificate_has_to_be_trusted(tmp_path: Path, files: Certificates) -> None:
    async with secured(tmp_path, users=None, tls=files.tls()) as broker:
        with pytest.raises(ClientError, match="certificate verify failed"):
            await open_and_close(broker, Security(protocol="SSL"))


async def test_a_certificate_has_to_name_the_host_unless_told_otherwise(tmp_path: Path, files: Certificates) -> None:
    async with secured(tmp_path, users=None, tls=ServerTls(certificate=files.elsewhere)) as broker:
        security = Security(protocol="SSL", ca_file=files.ca)
        with pytest.raises(ClientError, match="certificate is not valid for '127"):
            await open_and_close(broker, security)

        assert await open_and_close(broker, replace(security, check_hostname=False))


async def test_a_client_without_tls_at_a_port_with_it_is_told_and_nobody_else_suffers(
    tmp_path: Path, files: Certificates
) -> None:
    async with secured(tmp_path, tls=files.tls()) as broker:
        with pytest.raises(ConnectionError):
            await open_and_close(broker, login())

        assert await open_and_close(broker, login(protocol="SASL_SSL", ca_file=files.ca))


async def test_a_client_with_tls_at_a_port_without_it_is_told_and_nobody_else_suffers(
    tmp_path: Path, files: Certificates
) -> None:
    async with secured(tmp_path) as broker:
        with pytest.raises(ConnectionError):
            await open_and_close(broker, login(protocol="SASL_SSL", ca_file=files.ca))

        assert await open_and_close(broker, login())


async def test_a_handshake_that_never_comes_ends(tmp_path: Path, files: Certificates) -> None:
    async with secured(tmp_path, tls=files.tls(), connection_setup_max_ms="50") as broker:
        talk = await broker.connect()

        assert await talk.ended() == b""


async def test_a_login_that_never_comes_ends(tmp_path: Path) -> None:
    async with secured(tmp_path, connection_setup_max_ms="400") as broker:
        talk = await broker.connect()
        await talk.ask("sasl_handshake", 1, mechanism="PLAIN")

        assert await talk.ended() == b""


async def test_a_client_certificate_that_is_required_has_to_be_shown(tmp_path: Path, files: Certificates) -> None:
    async with secured(tmp_path, users=None, tls=files.tls("required")) as broker:
        with pytest.raises(ConnectionError):
            await open_and_close(broker, Security(protocol="SSL", ca_file=files.ca))

        shown = Security(protocol="SSL", ca_file=files.ca, certificate_file=files.client)
        assert await open_and_close(broker, shown)


async def test_a_certificate_says_who_is_there(tmp_path: Path, files: Certificates) -> None:
    acls = f'allow "User:{files.client_name}" describe cluster'
    async with secured(tmp_path, users=None, acls=acls, tls=files.tls("requested")) as broker:
        known = Security(protocol="SSL", ca_file=files.ca, certificate_file=files.client).ssl_context()
        unknown = Security(protocol="SSL", ca_file=files.ca).ssl_context()
        codes = [await _describe(broker, context) for context in (known, unknown)]

    assert codes == [ErrorCode.NONE, ErrorCode.CLUSTER_AUTHORIZATION_FAILED]


async def _describe(broker: Secured, context) -> ErrorCode:
    talk = await broker.connect(ssl=context)
    answer = await talk.ask(
        "describe_acls",
        2,
        resource_type_filter=1,
        resource_name_filter=None,
        pattern_type_filter=1,
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=1,
    )
    return ErrorCode(int(answer.error_code))


async def test_a_token_that_is_too_long_is_refused(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker:
        talk = await broker.connect()
        await talk.ask("sasl_handshake", 1, mechanism="SCRAM-SHA-256")
        answer = await talk.ask("sasl_authenticate", 1, auth_bytes=b"n,,n=alice,r=" + b"x" * 10_000)

        assert ErrorCode(int(answer.error_code)) is ErrorCode.SASL_AUTHENTICATION_FAILED
        assert "longer than" in answer.error_message


class Timed(LoopClock):
    """Keeps what is to be done much later, for a test to do it."""

    def __init__(self) -> None:
        self.later: list[tuple[float, Callable[[], object]]] = []

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> TimerHandle:
        """Not at all, when it is one of a login's times."""
        if 80 < delay_s < 100:
            self.later.append((delay_s, callback))
            delay_s = 10_000.0
        return super().call_later(delay_s, callback)


@asynccontextmanager
async def held_up(broker: Secured, clock: Timed, mechanism: str):
    """A connection of flowshare's own client, as admin."""
    security = Security(protocol="SASL_PLAINTEXT", mechanism=mechanism, username="admin", password="top secret")
    connection = await open_tcp(
        broker.host, broker.port, client_id="test", clock=clock, settings=LinkSettings(), security=security
    )
    try:
        yield connection
    finally:
        await connection.close()


async def logins() -> None:
    """Wait until those that were begun again are over."""
    await asyncio.gather(*(task for task in asyncio.all_tasks() if task.get_name().startswith("login at")))


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_flowshares_client_logs_in_again_before_its_time_is_over(tmp_path: Path, mechanism: str) -> None:
    server, own = Ahead(), Timed()
    async with (
        secured(tmp_path, clock=server, connections_max_reauth_ms="100000") as broker,
        held_up(broker, own, mechanism) as connection,
    ):
        for elapsed_s in (90.0, 180.0, 270.0):
            server.ahead_s = elapsed_s
            delay_s, again = own.later.pop()
            assert 85 <= delay_s <= 95
            again()
            await logins()
            assert (await connection.send(MetadataRequest())).topics == ()

        server.ahead_s = 360.0
        assert (await connection.send(MetadataRequest())).topics == ()
        assert len(own.later) == 1


async def test_a_connection_whose_login_cannot_be_made_again_ends_with_the_reason(tmp_path: Path) -> None:
    server, own = Ahead(), Timed()
    reasons: list[str] = []
    async with (
        secured(tmp_path, clock=server, connections_max_reauth_ms="100000") as broker,
        held_up(broker, own, "SCRAM-SHA-256") as connection,
    ):
        connection.on_closed(reasons.append)
        broker.listener.sasl.users._fixed.clear()
        server.ahead_s = 90.0
        own.later.pop()[1]()
        await logins()
        assert connection.closed

    assert "the login could not be made again" in reasons[0]
    assert "check user name and password" in reasons[0]
