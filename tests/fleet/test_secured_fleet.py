"""A fleet whose listeners have TLS, logins and ACLs: its own workers work, strangers get what they are granted."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import quote

import pytest
from confluent_kafka import KafkaException, ShareConsumer
from cryptography.x509 import load_pem_x509_certificate

import flowshare as fs
from flowshare.agents.host.host import Host, HostSettings
from flowshare.backend import open_backend
from flowshare.backend.base import BackendError
from flowshare.backend.fleet import WorkersBackend
from flowshare.client.admin.admin import ShareAdmin
from flowshare.client.errors import ClientError, ServerError
from flowshare.client.net.cluster import Cluster
from flowshare.client.net.security import Security
from flowshare.client.net.tcp import open_tcp
from flowshare.client.producer.producer import Message, Producer
from flowshare.client.session.member import ShareMember
from flowshare.client.settings import LinkSettings
from flowshare.clock import LoopClock
from flowshare.fleet.messages import ProvenCall
from flowshare.fleet.peer_login import greet
from flowshare.protocol.errors import ErrorCode
from tests.server.security.certificates import Certificates
from tests.waiting import until

pytestmark = [pytest.mark.asyncio, pytest.mark.java]

LIMIT_S = 40.0
NOT_ALLOWED = (ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
USERS = "shop=the fleet's own\nalice=wonder land\nbob=builder\n"
ACLS = "allow User:alice read topic {topic}\nallow User:alice read group {group}\n"


class Guarded:
    """Files and options with which the workers of a fleet are started."""

    def __init__(self, kafka, folder: Path, unique) -> None:
        self.clock = LoopClock()
        self.files = Certificates(folder)
        self.topic, self.group, self.fleet = unique("orders"), unique("billing"), unique("shop")
        self.users, self.acls, password = folder / "users", folder / "acls", folder / "password"
        self.users.write_text(USERS)
        self.users.chmod(0o600)
        self.acls.write_text(ACLS.format(topic=self.topic, group=self.group))
        password.write_text("the fleet's own\n")
        own = f"fleet_user=shop&fleet_password_file={password}&fleet_ca_file={self.files.ca}"
        self.command = f"kafka://{','.join(kafka.addresses)}?share=workers&fleet={self.fleet}&slots=4&{own}"
        self.listen = (
            f"listen=127.0.0.1:0&listen_tls_cert={self.files.server}&listen_tls_key={self.files.server_key}"
            f"&listen_sasl_users={self.users}&listen_acls={self.acls}"
        )
        self.url = f"{self.command}&{self.listen}"

    def security(self, user: str, password: str) -> Security:
        return Security(protocol="SASL_SSL", username=user, password=password, ca_file=self.files.ca)

    @asynccontextmanager
    async def opened(self, url: str, **options):
        """A backend that is open, and an admin client on it."""
        backend = open_backend(url, **options)
        await backend.start()
        admin = ShareAdmin(lambda: backend.connect("test"), clock=self.clock)
        try:
            yield backend, admin
        finally:
            await admin.close()
            await backend.close()

    async def fetch(self, address: str, user: str, password: str) -> int:
        """Return the number of records that flowshare's own client gets, as that user, in its first fetch that has
        records."""
        cluster = Cluster([address], clock=self.clock, security=self.security(user, password))
        await cluster.start()

        async def connect():
            return cluster.connect("stranger")

        member = ShareMember(connect, group_id=self.group, topics=[self.topic], clock=self.clock)
        try:
            await member.start()
            async with asyncio.timeout(LIMIT_S):
                while True:
                    for one in await member.fetch(records_max=10):
                        return sum(run.last - run.first + 1 for run in one.acquired)
        finally:
            await member.close()
            await cluster.close()


@pytest.fixture
def guarded(kafka, tmp_path, unique):
    return Guarded(kafka, tmp_path, unique)


async def test_workers_and_commands_of_the_fleet_reach_each_other_and_strangers_only_what_is_granted(guarded):
    async with AsyncExitStack() as stack:
        first, admin = await stack.enter_async_context(guarded.opened(guarded.url, lead=True))
        assert isinstance(first, WorkersBackend)
        second, _ = await stack.enter_async_context(guarded.opened(guarded.url, lead=True))
        assert first.worker is not None
        assert second.worker is not None
        await admin.create_topic(guarded.topic, partitions=4)
        await admin.alter_group_configs(guarded.group, {"share.auto.offset.reset": "earliest"})
        producer = Producer(lambda: first.connect("test"), clock=LoopClock())
        stack.push_async_callback(producer.close)
        await producer.send_many(guarded.topic, [Message(b"%d" % n, partition=n % 4) for n in range(40)])
        address = first.bootstrap
        assert address is not None

        assert await guarded.fetch(address, "alice", "wonder land") > 0
        with pytest.raises(ServerError) as refused:
            await guarded.fetch(address, "bob", "builder")
        assert refused.value.code in NOT_ALLOWED
        with pytest.raises(ServerError) as wrong:
            await guarded.fetch(address, "alice", "looking glass")
        assert wrong.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED

        async with guarded.opened(guarded.command) as (_, command):
            assert guarded.group in {group.group_id for group in await command.list_groups()}
            assert len(await command.group_offsets(guarded.group)) == 4  # asks both workers, through either

        await call_as_a_worker(guarded, first, second)


async def call_as_a_worker(guarded, first, second):
    """A worker's keys alone do not make a worker."""
    keys = second.worker._pair
    host, port = first.bootstrap.rsplit(":", 1)
    settings = LinkSettings()
    alice = await open_tcp(
        host,
        int(port),
        client_id="x",
        clock=guarded.clock,
        settings=settings,
        security=guarded.security("alice", "wonder land"),
    )
    with pytest.raises(ServerError, match="User:alice is no worker") as refused:
        await greet(alice, keys, first.worker._pair.mark, generation=1, about="first")
    assert refused.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    refusal = await alice.send(ProvenCall(name="fleet_facts", number=1, text="{}", mac=""))
    assert refusal.message is not None
    assert "User:alice is no worker" in refusal.message
    await alice.close()


async def test_a_worker_that_its_own_listener_would_not_let_in_does_not_start(guarded):
    wrong = guarded.url.replace("fleet_ca_file=", "listen_tls_ca=").replace("fleet_user=shop", "fleet_user=carol")
    with pytest.raises(BackendError, match=r"not reached at 127\.0\.0\.1"):
        await open_backend(wrong, lead=True).start()

    certificates = (
        f"{guarded.command.split('&fleet_user')[0]}&listen=127.0.0.1:0&listen_tls_cert={guarded.files.server}"
        f"&listen_tls_key={guarded.files.server_key}&listen_tls_ca={guarded.files.ca}"
        "&listen_tls_client_auth=required"
    )
    with pytest.raises(BackendError, match=r"who is no worker: name the principals"):
        await open_backend(certificates, lead=True).start()
    principal = load_pem_x509_certificate(guarded.files.server.read_bytes()).subject.rfc4514_string()
    async with guarded.opened(f"{certificates}&listen_super_users=User:{quote(principal)}", lead=True) as (_, admin):
        assert await admin.list_groups() == []


async def test_a_command_without_the_fleets_login_is_told_so(guarded):
    async with guarded.opened(guarded.url, lead=True):
        bare = guarded.command.split("&fleet_user")[0]
        async with guarded.opened(bare) as (_, admin):
            with pytest.raises((ClientError, OSError)):
                await admin.list_groups()


async def test_an_agent_works_beside_librdkafka_which_gets_what_the_acl_file_grants(guarded, unique):
    handled = []
    app = fs.App(unique("app"), broker=guarded.url)

    @app.share_agent(guarded.topic, name="work", group=unique("agents"), start="earliest")
    async def work(value: bytes) -> None:
        handled.append(value)

    host = Host(app, settings=HostSettings(threads=True, lead=True))
    await host.start()
    try:
        await host.service.call(lambda: host.producer.send_many(guarded.topic, [Message(b"%d" % n) for n in range(20)]))
        await until(lambda: len(handled) >= 20)
        await host.service.call(
            lambda: host.admin.alter_group_configs(guarded.group, {"share.auto.offset.reset": "earliest"})
        )
        address = host.backend.bootstrap

        assert await asyncio.to_thread(take, guarded, address, "alice", "wonder land") > 0
        with pytest.raises(KafkaException, match="GROUP_AUTHORIZATION_FAILED"):
            await asyncio.to_thread(take, guarded, address, "bob", "builder")
    finally:
        await host.drain(10.0)
        await host.stop()


def take(guarded, address, user, password):
    """Return the number of records in the first batch of librdkafka's share consumer; fails after a while. Raises:
    KafkaException."""
    consumer = ShareConsumer(
        {
            "bootstrap.servers": address,
            "group.id": guarded.group,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(guarded.files.ca),
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": password,
            "log_level": 0,
        }
    )
    consumer.subscribe([guarded.topic])
    got, end_s = 0, time.monotonic() + LIMIT_S
    try:
        while not got:
            assert time.monotonic() < end_s, "no record came"
            for message in consumer.poll(timeout=0.2):
                if message.error() is not None:
                    raise KafkaException(message.error())
                got += 1
    finally:
        consumer.close()
    return got
