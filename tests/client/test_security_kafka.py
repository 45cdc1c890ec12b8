"""Flowshare's client logs into a real Kafka with TLS and SASL."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from flowshare.client.errors import ClientError, ServerError
from flowshare.client.net.security import Security
from flowshare.client.net.tcp import open_tcp
from flowshare.client.settings import LinkSettings
from flowshare.clock import LoopClock, TimerHandle
from flowshare.dev.broker import Wanted, running
from flowshare.dev.probe import HOST, free_ports
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import MetadataRequest
from tests.server.security.certificates import Certificates

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.asyncio]

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
LIMIT_S = 30.0
LOGIN_MS = 3_000
"""How long a login holds there."""


class Secured:
    """A Kafka that listens without security, with TLS (client certificates required), and with TLS and logins."""

    def __init__(self, folder: Path) -> None:
        self.files = Certificates(folder)
        self.plain, self.tls, self.sasl, controller = free_ports(4)
        key = load_pem_private_key(self.files.server_key.read_bytes(), None)
        keystore = folder / "keystore.pem"
        keystore.write_bytes(
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + self.files.server.read_bytes()
        )
        ports = {"PLAINTEXT": self.plain, "TLS": self.tls, "LOGIN": self.sasl}
        listeners = ",".join(f"{name}://{HOST}:{port}" for name, port in ports.items())
        module = "org.apache.kafka.common.security"
        self.settings = {
            "listeners": f"{listeners},CONTROLLER://{HOST}:{controller}",
            "advertised.listeners": listeners,
            "controller.quorum.voters": f"1@{HOST}:{controller}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,TLS:SSL,LOGIN:SASL_SSL,CONTROLLER:PLAINTEXT",
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "listener.name.login.plain.sasl.jaas.config": (
                f'{module}.plain.PlainLoginModule required user_alice="wonder land";'
            ),
            "listener.name.login.scram-sha-256.sasl.jaas.config": f"{module}.scram.ScramLoginModule required;",
            "listener.name.login.scram-sha-512.sasl.jaas.config": f"{module}.scram.ScramLoginModule required;",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(keystore),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.files.ca),
            "listener.name.tls.ssl.client.auth": "required",
            "connections.max.reauth.ms": str(LOGIN_MS),
        }

    def make_users(self) -> None:
        """Users for SCRAM."""
        admin = AdminClient({"bootstrap.servers": f"{HOST}:{self.plain}"})
        mechanisms = (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
        for mechanism in mechanisms:
            made = UserScramCredentialUpsertion("alice", ScramCredentialInfo(mechanism, 8192), b"wonder land")
            for future in admin.alter_user_scram_credentials([made]).values():
                future.result(LIMIT_S)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    found = Secured(tmp_path_factory.mktemp("certificates"))
    with running(Wanted(port=found.plain, settings=found.settings)):
        found.make_users()
        yield found


async def log_in(port: int, security: Security) -> None:
    """Connect and close. Raises: what `open_tcp` raises."""
    settings = LinkSettings(connect_timeout=LIMIT_S)
    connection = await open_tcp(HOST, port, client_id="test", clock=LoopClock(), settings=settings, security=security)
    await connection.close()


async def until_known(broker: Secured, security: Security) -> None:
    """Wait until a login succeeds: a broker learns of new users a little later."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            try:
                await log_in(broker.sasl, security)
            except ServerError:
                continue
            return


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_the_right_password_logs_in_and_a_wrong_one_is_told(broker: Secured, mechanism: str) -> None:
    def login(password: str) -> Security:
        return Security(
            protocol="SASL_SSL", mechanism=mechanism, username="alice", password=password, ca_file=broker.files.ca
        )

    await until_known(broker, login("wonder land"))

    with pytest.raises(ServerError) as refused:
        await log_in(broker.sasl, login("looking glass"))
    assert refused.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED


async def test_a_client_certificate_is_shown_where_it_is_required(broker: Secured) -> None:
    await log_in(broker.tls, Security(protocol="SSL", ca_file=broker.files.ca, certificate_file=broker.files.client))

    with pytest.raises((ClientError, ConnectionError)):
        await log_in(broker.tls, Security(protocol="SSL", ca_file=broker.files.ca))


class Counting(LoopClock):
    """Counts the logins that are to be made again."""

    def __init__(self) -> None:
        self.again = 0
        self.thrice = asyncio.Event()

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> TimerHandle:
        """At its time."""
        if 0.8 * LOGIN_MS <= 1000 * delay_s < LOGIN_MS:
            self.again += 1
            if self.again == 3:
                self.thrice.set()
        return super().call_later(delay_s, callback)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
async def test_a_connection_that_is_busy_logs_in_again_and_again(broker: Secured, mechanism: str) -> None:
    clock = Counting()
    security = Security(
        protocol="SASL_SSL", mechanism=mechanism, username="alice", password="wonder land", ca_file=broker.files.ca
    )
    await until_known(broker, security)
    settings = LinkSettings(connect_timeout=LIMIT_S)
    connection = await open_tcp(HOST, broker.sasl, client_id="test", clock=clock, settings=settings, security=security)

    async def ask() -> int:
        count = 0
        while not clock.thrice.is_set():
            await connection.send(MetadataRequest())
            count += 1
        return count

    async with asyncio.timeout(LIMIT_S):
        counts = await asyncio.gather(*(ask() for _ in range(4)))
    await connection.close()
    assert min(counts) > 3
