"""Who is let in at a path's port, and who is believed to lead the path."""

from __future__ import annotations

import asyncio
import contextlib
import stat
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from flowshare.backend import open_backend
from flowshare.backend.base import BackendError
from flowshare.backend.embedded import EmbeddedBackend
from flowshare.backend.path_login import (
    CLIENT_FILE,
    CLIENT_USER,
    SECRET_FILE,
    NoLogin,
    PathLogins,
    client_security,
    make_logins,
    open_door,
    security_at,
)
from flowshare.client.admin.admin import ShareAdmin
from flowshare.client.errors import ClientError
from flowshare.client.net import handshake
from flowshare.client.net.security import Security
from flowshare.client.net.tcp import open_tcp
from flowshare.client.producer.producer import Producer
from flowshare.client.settings import LinkSettings
from flowshare.clock import LoopClock
from flowshare.log.embedded import EmbeddedStorage
from flowshare.log.folder import OwnFolder
from flowshare.log.memory import MemoryStorage
from flowshare.log.owner import OwnerLock
from flowshare.protocol.messages import MetadataRequest
from flowshare.protocol.scram import base64_of
from flowshare.server.net.listener import Listener
from flowshare.server.security.credentials import hashed
from flowshare.server.security.sasl import LoginStep
from flowshare.server.security.users import Users
from flowshare.server.server import Server
from flowshare.share.config import ServerConfig

pytestmark = pytest.mark.asyncio


@contextlib.asynccontextmanager
async def led(path: Path, query: str = ""):
    """The path, led by this process."""
    backend = open_backend(f"embedded://{path}{query}")
    await backend.start()
    try:
        yield backend
    finally:
        await backend.close()


async def dial(address: str, security: Security | None):
    host, _, port = address.rpartition(":")
    return await open_tcp(
        host, int(port), client_id="test", clock=LoopClock(), settings=LinkSettings(), security=security
    )


class AnyLogin:
    """SCRAM of somebody who knows no password, and says of every login that it is right."""

    mechanism = "SCRAM-SHA-512"
    slow = False

    def __init__(self) -> None:
        self._messages = 0

    def decides(self, message: bytes) -> str | None:
        del message
        return "anybody" if self._messages else None

    def step(self, message: bytes) -> LoginStep:
        self._messages += 1
        if self._messages == 1:
            nonce = message.decode().rpartition("r=")[2]
            return LoginStep(reply=f"r={nonce}ours,s={base64_of(b'salt')},i=4096".encode())
        return LoginStep(reply=f"v={base64_of(bytes(64))}".encode(), user="anybody")


class AnySasl:
    mechanisms = ("SCRAM-SHA-512",)
    managed = False

    def login(self, mechanism: str) -> AnyLogin:
        del mechanism
        return AnyLogin()


@contextlib.asynccontextmanager
async def impostor(sasl):
    """A flowshare of another user's that listens; gives its address and topics, to which anything may be sent."""
    storage = MemoryStorage(LoopClock())
    server = Server(storage=storage, config=ServerConfig.embedded(), clock=LoopClock())
    await server.start()
    await storage.create_topic("orders")
    listener = Listener(server, clock=LoopClock(), sasl=sasl)
    host, port = await listener.start("127.0.0.1", 0)
    try:
        yield f"{host}:{port}", storage
    finally:
        await listener.close()
        await server.close()
        await storage.close()


async def test_who_does_not_log_in_gets_nothing_at_a_path_s_port(tmp_path: Path) -> None:
    async with led(tmp_path / "shop") as shop:
        stranger = await dial(shop.bootstrap, None)

        assert stranger.asks_for_login
        with pytest.raises(ConnectionError):
            await stranger.send(MetadataRequest(topics=None))


@pytest.mark.parametrize("password", ["guessed-by-somebody-who-cannot-read-it", ""])
async def test_a_wrong_secret_is_refused(tmp_path: Path, password: str) -> None:
    async with led(tmp_path / "shop") as shop:
        right = security_at(tmp_path / "shop", shop.bootstrap)
        assert right is not None
        wrong = Security(protocol="SASL_PLAINTEXT", username=right.username, password=password or "x")

        with pytest.raises(ClientError, match="the user name or the password is wrong"):
            await dial(shop.bootstrap, wrong)


async def test_a_login_at_a_path_s_port_holds_as_long_as_its_connection(tmp_path: Path, monkeypatch) -> None:
    """Its password changes only while nobody leads, and Faust's clients could not log in again on a connection."""
    told: list[float] = []
    log_in = handshake.Logins.log_in

    async def heard(self: handshake.Logins) -> None:
        await log_in(self)
        told.append(self._lifetime_s)

    monkeypatch.setattr(handshake.Logins, "log_in", heard)
    async with led(tmp_path / "shop") as shop:
        connection = await dial(shop.bootstrap, security_at(tmp_path / "shop", shop.bootstrap))
        await connection.close()

    assert told == [0.0]


async def test_both_files_are_this_user_s_alone_and_last_over_restarts(tmp_path: Path) -> None:
    async with led(tmp_path / "shop"):
        before = [(tmp_path / "shop" / name).read_text() for name in (SECRET_FILE, CLIENT_FILE)]
        modes = {stat.S_IMODE((tmp_path / "shop" / name).stat().st_mode) for name in (SECRET_FILE, CLIENT_FILE)}
    async with led(tmp_path / "shop"):
        assert [(tmp_path / "shop" / name).read_text() for name in (SECRET_FILE, CLIENT_FILE)] == before

    assert modes == {0o600}


async def test_a_torn_secret_is_made_anew(tmp_path: Path) -> None:
    with OwnFolder.own(tmp_path / "shop") as folder:
        first = make_logins(folder, lambda: "a" * 43)
        folder.write(SECRET_FILE, b"aaa")
        folder.write(CLIENT_FILE, b"")

        assert make_logins(folder, lambda: "b" * 43) == PathLogins("b" * 43, "b" * 43) != first
        assert make_logins(folder, lambda: "c" * 43) == PathLogins("b" * 43, "b" * 43)


@pytest.mark.parametrize("kind", ["with another secret", "that says yes to all"])
async def test_an_impostor_on_the_leader_s_port_is_not_joined_and_gets_nothing(
    tmp_path: Path, kind: str, monkeypatch
) -> None:
    monkeypatch.setattr("flowshare.backend.embedded.FIRST_LIMIT_S", 0.0)
    monkeypatch.setattr("flowshare.backend.embedded.FIRST_TRIES", 1)
    door = await open_door(PathLogins("z" * 43, "y" * 43), LoopClock())
    sasl = door.sasl() if kind == "with another secret" else AnySasl()
    async with impostor(sasl) as (address, storage):
        lock = OwnerLock(tmp_path / "shop", now_ms=0)
        make_logins(lock.folder, lambda: "a" * 43)
        lock.set_listener(address, secret=True)
        door.bound(address)

        with pytest.raises(BackendError, match="did not prove that it leads"):
            await EmbeddedBackend(tmp_path / "shop").start()

        assert storage.offsets("orders", 0).high_watermark == 0
        lock.release()


async def test_a_process_that_had_joined_sends_nothing_to_who_took_the_dead_leader_s_port(tmp_path: Path) -> None:
    shop = tmp_path / "shop"
    leader, joined = EmbeddedBackend(shop), EmbeddedBackend(shop)
    await leader.start()
    await joined.start()
    async with impostor(AnySasl()) as (address, storage):
        joined.bootstrap = address  # the port is the impostor's from now on
        producer = Producer(lambda: joined.connect("test"), clock=LoopClock())
        sending = asyncio.create_task(producer.send_many("orders", [b"one"]))
        with pytest.raises(ConnectionError, match="could not prove that it knows the user"):
            await joined.connect("test")

        await leader.close()
        await sending

        assert storage.offsets("orders", 0).high_watermark == 0
        await producer.close()
    await joined.close()


async def test_a_login_is_worth_nothing_at_another_port_so_that_nobody_can_pass_it_on(tmp_path: Path) -> None:
    async with led(tmp_path / "shop") as shop:
        host, _, port = shop.bootstrap.rpartition(":")

        async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there_reader, there = await asyncio.open_connection(host, int(port))
            await asyncio.gather(copy(reader, there), copy(there_reader, writer))

        async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                while block := await reader.read(65_536):
                    writer.write(block)
            writer.close()

        between = await asyncio.start_server(pass_on, "127.0.0.1", 0)
        address = f"127.0.0.1:{between.sockets[0].getsockname()[1]}"

        with pytest.raises(ClientError, match="the user name or the password is wrong"):
            await dial(address, security_at(tmp_path / "shop", address))
        await (await dial(shop.bootstrap, security_at(tmp_path / "shop", shop.bootstrap))).close()
        between.close()


@pytest.mark.slow
async def test_another_client_logs_in_with_what_stands_beside(tmp_path: Path) -> None:
    async with led(tmp_path / "shop") as shop:
        login = client_security(tmp_path / "shop").for_aiokafka()
        await create(shop, "orders")

        async with AIOKafkaProducer(bootstrap_servers=shop.bootstrap, **login) as producer:
            await producer.send_and_wait("orders", b"one")
        async with AIOKafkaConsumer(
            "orders", bootstrap_servers=shop.bootstrap, auto_offset_reset="earliest", **login
        ) as consumer:
            assert (await consumer.getone()).value == b"one"


async def test_what_stands_beside_is_a_file_for_java_s_clients(tmp_path: Path) -> None:
    async with led(tmp_path / "shop"):
        lines = (tmp_path / "shop" / CLIENT_FILE).read_text().splitlines()

    assert lines[1:3] == ["security.protocol=SASL_PLAINTEXT", "sasl.mechanism=SCRAM-SHA-512"]
    password = client_security(tmp_path / "shop").password
    assert lines[3] == (
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="{CLIENT_USER}" password="{password}";'
    )


async def test_a_password_is_never_asked_for_in_plain(tmp_path: Path) -> None:
    async with led(tmp_path / "shop") as shop:
        password = client_security(tmp_path / "shop").password
        plain = Security(protocol="SASL_PLAINTEXT", mechanism="PLAIN", username=CLIENT_USER, password=password)

        with pytest.raises(ClientError, match="PLAIN"):
            await dial(shop.bootstrap, plain)


async def test_a_path_that_is_open_asks_nobody_and_is_joined(tmp_path: Path) -> None:
    async with led(tmp_path / "shop", "?open=true") as shop, led(tmp_path / "shop") as second:
        await create(second, "orders")
        stranger = await dial(shop.bootstrap, None)

        assert [topic.name for topic in (await stranger.send(MetadataRequest(topics=None))).topics] == ["orders"]
        assert second.kafka == shop.kafka
        assert second.kafka.security is None
        await stranger.close()


async def test_users_of_a_server_on_the_same_data_are_none_at_the_path_s_port(tmp_path: Path) -> None:
    storage = await EmbeddedStorage.open(tmp_path / "shop", clock=LoopClock())
    users = Users(storage)
    await users.start(bytes)
    await users.alter([("alice", hashed("SCRAM-SHA-512", "wonderland", salt=b"s"))], [])
    await storage.close()

    async with led(tmp_path / "shop") as shop:
        with pytest.raises(ClientError, match="the user name or the password is wrong"):
            await dial(shop.bootstrap, Security(protocol="SASL_PLAINTEXT", username="alice", password="wonderland"))


async def test_a_path_without_a_login_says_where_one_comes_from(tmp_path: Path) -> None:
    with pytest.raises(NoLogin, match="it is made when a process opens the path"):
        client_security(tmp_path)
    with pytest.raises(NoLogin, match="start one, which makes a new one"):
        security_at(tmp_path, "127.0.0.1:1")


async def create(backend: EmbeddedBackend, topic: str) -> None:
    admin = ShareAdmin(lambda: backend.connect("test"), clock=LoopClock())
    await admin.create_topic(topic)
    await admin.close()
