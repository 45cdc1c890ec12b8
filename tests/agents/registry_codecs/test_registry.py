"""The registry: asked once for each thing, within bounds; what agents do with values of it."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import trustme

import flowshare as fs
from flowshare.agents.codecs import registry as registries
from flowshare.agents.codecs import wire
from flowshare.agents.codecs.client import TEXT_MAX, SchemaText, _schema
from flowshare.agents.codecs.schemas import avro_schema
from flowshare.agents.handler.errors import OptionError
from flowshare.testing import Bus
from tests.agents.agents_kit import run_app
from tests.agents.registry_codecs.fake import FakeClient, registry_of
from tests.agents.registry_codecs.http_fake import served
from tests.agents.registry_codecs.messages import Order as OrderMessage


@dataclass
class Order:
    id: int


AVRO = SchemaText("AVRO", json.dumps(avro_schema(Order)))


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


def test_a_schema_is_asked_for_once_by_all_threads(client: FakeClient):
    client.register("a", AVRO)
    registry, barrier = registry_of(client), threading.Barrier(8)

    def ask() -> None:
        barrier.wait(10)
        assert registry.schema(1).text == AVRO

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)

    assert client.asked["id 1"] == 1
    assert not registry.has_not(1)


def test_what_is_not_known_is_not_asked_for_again_for_a_while(client: FakeClient, monkeypatch: pytest.MonkeyPatch):
    registry = registry_of(client)
    for _ in range(3):
        with pytest.raises(fs.errors.UnknownSchema):
            registry.schema(7)
    assert client.asked["id 7"] == 1
    assert registry.has_not(7)

    monkeypatch.setattr(registries, "UNKNOWN_S", 0.0)
    client.register("a", AVRO)
    assert not registry.has_not(7)


def test_ids_out_of_records_displace_no_schema_that_is_used(client: FakeClient, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(registries, "KEPT", 3)
    client.register("a", AVRO)
    registry = registry_of(client)
    registry.schema(1)
    for number in range(100, 120):
        with pytest.raises(fs.errors.UnknownSchema):
            registry.schema(number)

    client.down = 1
    assert registry.schema(1).text == AVRO
    assert len(registry._schemas._without) == 3


def test_an_outage_is_told_to_all_who_wait_by_one_question(client: FakeClient):
    client.register("a", AVRO)
    client.down = 1
    registry = registry_of(client)
    for _ in range(3):
        with pytest.raises(fs.errors.RegistryUnavailable):
            registry.schema(1)
    assert client.asked["id 1"] == 1


def test_a_schema_that_is_too_large_is_not_taken():
    with pytest.raises(fs.errors.SchemaRefused, match="characters"):
        _schema({"schema": "x" * (TEXT_MAX + 1)})
    for odd in (None, [], {}, {"schema": 5}, {"schema": "x", "references": [{}]}):
        with pytest.raises(fs.errors.RegistryUnavailable, match="answer"):
            _schema(odd)


@pytest.mark.parametrize("url", ["", "registry:8081", "ftp://x", None, "http://", "http://a, b"])
def test_an_address_that_is_none_is_refused(url: Any):
    with pytest.raises(OptionError, match="Registry takes an address"):
        fs.Registry(url)


@pytest.mark.parametrize("url", ["user:hidden@host", "ftp://user:hidden@host", "ftp://user:hid/den@host"])
def test_the_error_of_an_address_shows_no_password(url: str):
    with pytest.raises(OptionError) as refused:
        fs.Registry(url)
    assert "den" not in str(refused.value)


def test_a_registry_says_what_is_not_installed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(registries.importlib.util, "find_spec", lambda name: None if name == "authlib" else name)
    with pytest.raises(OptionError, match=r"needs authlib: pip install 'flowshare\[registry\]'"):
        fs.Registry("http://a")


def test_no_secret_is_shown():
    registry = fs.Registry("https://user:hunter2@a:1,https://b/x", auth=None)
    assert repr(registry) == "Registry('https://a:1, https://b/x')"
    assert "hunter2" not in repr(fs.RegistryTls(key_password="hunter2"))
    for auth in ("token", ("user", "password")):
        assert "token" not in repr(fs.Registry("http://a", auth=auth))
    for wrong in (5, ("a",), ("a:b", "c"), ("a", None)):
        with pytest.raises(OptionError, match="takes \\(user, password\\), or a token") as raised:
            fs.Registry("http://a", auth=wrong)  # type: ignore[arg-type]
        assert "'a'" not in str(raised.value)


def test_what_cannot_be_asked_is_told_with_the_address():
    with pytest.raises(OptionError, match=r"the schema registry https://a: .*"):
        fs.Registry("https://a", tls="/nowhere/ca.pem").client  # noqa: B018
    with pytest.raises(fs.errors.RegistryUnavailable, match=r"http://127.0.0.1:9 does not answer: ConnectError"):
        fs.Registry("http://user:hunter2@127.0.0.1:9").schema(1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("auth", "sent"),
    [(("user", "password"), "Basic dXNlcjpwYXNzd29yZA=="), ("token", "Bearer token"), (None, "Basic ZW52OnNlY3JldA==")],
)
def test_a_login_goes_with_each_question(client: FakeClient, monkeypatch: pytest.MonkeyPatch, auth: Any, sent: str):
    monkeypatch.setenv("FLOWSHARE_REGISTRY_AUTH", "env:secret")
    logins: list[str] = []
    client.register("a", AVRO)
    with served(client, logins=logins) as url:
        registry = fs.Registry(url, auth=auth)
        assert registry.schema(1).text == AVRO
        registry.close()
    assert logins == [sent]


@pytest.mark.slow
@pytest.mark.parametrize("login", ["user:hunter2", "us%40er:hunt%3Aer2"])
def test_a_login_in_the_address_is_sent_and_stands_in_no_log(client: FakeClient, caplog: Any, login: str):
    logins: list[str] = []
    client.register("a", AVRO)
    with caplog.at_level("DEBUG"), served(client, logins=logins) as url:
        registry = fs.Registry(url.replace("//", f"//{login}@"))
        assert registry.schema(1).text == AVRO
        registry.close()

    assert [base64.b64decode(one.removeprefix("Basic ")).decode() for one in logins] == [unquote(login)]
    assert f"{url}/schemas/ids/1" in caplog.text
    assert "hunt" not in caplog.text


def test_a_login_in_the_address_and_another_one_is_refused():
    with pytest.raises(OptionError, match=r"the login of http://a stands in its address and in auth=") as raised:
        fs.Registry("http://user:hunter2@a", auth="token")
    assert "hunter2" not in str(raised.value)


@pytest.mark.slow
def test_a_login_that_is_refused_is_an_outage_and_is_not_shown(client: FakeClient):
    client.register("a", AVRO)
    with served(client, logins=[]) as url:
        registry = fs.Registry(url, auth="wrong")
        with pytest.raises(
            fs.errors.RegistryUnavailable, match=r"does not let this process in .401. for schema 1: check"
        ) as raised:
            registry.schema(1)
        registry.close()
    assert "wrong" not in str(raised.value)


@pytest.mark.slow
def test_a_registry_is_spoken_to_by_tls(client: FakeClient, tmp_path: Path):
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    client.register("a", AVRO)
    with served(client, context) as url:
        for tls in (tmp_path / "ca.pem", fs.RegistryTls(ca=str(tmp_path / "ca.pem"))):
            registry = fs.Registry(url, tls=tls)
            assert registry.schema(1).text == AVRO
            registry.close()
        stranger = fs.Registry(url)
        with pytest.raises(fs.errors.RegistryUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
            stranger.schema(1)
        stranger.close()


# --- in agents ----------------------------------------------------------------------------------------------------


def app_of(codec: Any, got: list[Any], **options: Any) -> fs.App:
    app = fs.App("t")

    @app.share_agent(app.topic("in", value_codec=codec), name="agent", retry=fs.Retry(max_attempts=1), **options)
    async def agent(value: Any) -> None:
        got.append(value)

    return app


def test_records_are_read_by_the_schema_they_were_written_with(client: FakeClient):
    got: list[Any] = []
    registry = registry_of(client)
    codec = fs.Avro(Order, registry=registry)
    writes = codec.bind("in", "value")

    seen = run_app(app_of(codec, got), [writes.encode(Order(1)), writes.encode({"id": 5})])

    assert got == [Order(1), Order(5)]
    assert client.asked["id 1"] == 1
    assert seen.dead == []


def test_what_has_no_schema_or_does_not_fit_is_a_dead_letter_with_its_reason(client: FakeClient):
    got: list[Any] = []
    codec = fs.Avro(Order, registry=registry_of(client))
    other = client.register("other", SchemaText("AVRO", '"string"'))
    protobuf = client.register("proto", SchemaText("PROTOBUF", "message A {}"))
    client.register("in-value", AVRO)
    raws = [
        b'{"id":1}',
        b"\0",
        wire.prefix(99) + b"x",
        wire.prefix(other) + b"\x02a",
        wire.prefix(protobuf) + b"\0",
        wire.prefix(client.ids[AVRO]) + b"\x02\x02",
    ]
    app = fs.App("t")
    app.share_agent("in", name="agent", value_codec=codec)(lambda order: got.append(order))

    seen = run_app(app, raws)

    assert got == []
    for letter, why in zip(
        seen.dead,
        [
            "the byte 123",
            "it has 1 bytes",
            "schema 99 is not known",
            "schema 1, which does not fit",
            "kind PROTOBUF",
            "1 bytes are left",
        ],
        strict=True,
    ):
        assert why in letter.reason


def test_while_the_registry_is_away_records_wait_and_none_is_lost(
    client: FakeClient, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(registries, "FAILED_S", 0.0)
    got: list[Any] = []
    codec = fs.Avro(Order, registry=registry_of(client))
    raws = [fs.Avro(Order, registry=registry_of(client)).bind("in", "value").encode(Order(n)) for n in range(50)]
    app = fs.App("t")

    @app.share_agent("in", name="agent", value_codec=codec, retry=fs.Retry(max_attempts=1))
    async def agent(order: Order) -> None:
        got.append(order.id)

    client.down = 10**9

    async def during(bus: Bus) -> None:
        await bus.advance(600)
        assert got == []
        assert "records wait for schema 1 of http://registry.test:8081" in str(
            app.host.runtimes["agent"]._pool.problems()
        )
        client.down = 0

    seen = run_app(app, raws, during=during)

    assert sorted(got) == list(range(50))
    assert seen.dead == []
    assert {one.attempt for one in seen.report.settled if one.outcome == "accepted"} == {1}
    assert sum("records wait" in record.message for record in caplog.records) < 50


def test_what_is_sent_waits_for_the_registry_too(client: FakeClient, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(registries, "FAILED_S", 0.0)
    app = fs.App("t")
    out = app.topic("out", value_codec=fs.Avro(Order, registry=registry_of(client)))
    runs: list[int] = []

    @app.share_agent("in", name="agent", sink=out, retry=fs.Retry(max_attempts=1))
    async def agent(value: int) -> Order:
        runs.append(value)
        return Order(value)

    client.down = 5
    seen = run_app(app, [1, 2])

    assert sorted(runs) == [1, 2]
    assert sorted(record.value.id for record in seen.out) == [1, 2]
    assert seen.dead == []


def test_what_the_registry_refuses_is_the_senders_error(client: FakeClient):
    app = fs.App("t")
    out = app.topic("out", value_codec=fs.Avro(Order, registry=registry_of(client)))
    client.refuses = lambda subject, schema: True

    @app.share_agent("in", name="agent", sink=out, retry=fs.Retry(max_attempts=2, delay=0))
    async def agent(value: int) -> Order:
        return Order(value)

    seen = run_app(app, [1])

    assert "topic 'out': its value: SchemaRefused" in seen.dead[0].reason
    assert "incompatible with version 1" in seen.dead[0].reason


def test_keys_have_codecs_as_values_do(client: FakeClient):
    registry = registry_of(client)
    app, got = fs.App("t"), []
    orders = app.topic(
        "in",
        key_codec=fs.Avro(schema="string", registry=registry),
        value_codec=fs.Protobuf(OrderMessage, registry=registry),
    )

    @app.share_agent(orders, name="agent", order="key")
    async def agent(order: OrderMessage, delivery: fs.Delivery) -> None:
        got.append((delivery.key, order.id))

    async def main() -> None:
        async with fs.testing.harness(app) as bus:
            await bus.send(orders, OrderMessage(id=1), key="ann")
            await bus.run_until_idle()

    fs.testing.run(main())

    assert got == [("ann", 1)]
    assert {"in-key", "in-value"} <= set(client.subjects)
