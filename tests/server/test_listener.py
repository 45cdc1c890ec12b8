"""The listener's sockets: the order of answers, ApiVersions, and the end of a connection."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import struct

import pytest

from flowshare.protocol.client_software import version
from flowshare.protocol.kafka import ApiKey, read_response
from flowshare.server.edge.base import AdvertisedNode
from flowshare.server.edge.table import table
from flowshare.server.net.listener import Listener, ListenerError
from flowshare.testing.clock import settle
from tests.server.wire import NoSasl, api_versions, frame, login, odd, site
from tests.server.world import world
from tests.waiting import until

pytestmark = pytest.mark.asyncio


async def test_a_request_is_answered_with_its_correlation_id():
    async with site() as here:
        wire = await here.connect()
        await wire.send(odd(b"echo one", correlation_id=42))
        assert await wire.answer() == (42, b"echo one")


async def test_the_connection_knows_address_and_client_id():
    async with site() as here:
        wire = await here.connect()
        await wire.send(odd(b"echo", client_id="shop-1"))
        await wire.answer()
        (call,) = here.odd.calls
        assert (call.client_id, call.peer.host, call.peer.connection.host) == ("shop-1", "127.0.0.1", "127.0.0.1")
        assert call.peer.connection.client_id == "shop-1"
        assert call.peer.principal == "User:ANONYMOUS"


@pytest.mark.parametrize(("name", "worker"), [("flowshare", 17), ("flowshare", 2**31 - 1), ("librdkafka", None)])
async def test_the_connection_knows_in_which_workers_process_one_of_flowshares_own_clients_is(name, worker):
    async with site() as here:
        wire = await here.connect()
        await wire.versions(name=name, software=version("0.1.0", worker or 17))
        await wire.send(odd(b"echo"))
        await wire.answer()
        (call,) = here.odd.calls
        assert call.peer.connection.worker == worker


async def test_answers_keep_the_order_of_their_requests():
    async with site() as here:
        wire = await here.connect()
        await wire.send(*(odd(body, correlation_id=i) for i, body in enumerate((b"wait a", b"wait b", b"echo"))))
        await until(lambda: len(here.odd.accepted) == 3)
        here.odd.release(b"b")
        await until(lambda: here.odd.events[b"b"].is_set())
        here.odd.release(b"a")
        assert [(await wire.answer())[0] for _ in range(3)] == [0, 1, 2]


async def test_flowshares_own_client_gets_each_answer_as_soon_as_it_is_there():
    async with site() as here:
        wire = await here.connect()
        await wire.versions(name="flowshare")
        await wire.send(*(odd(body, correlation_id=i) for i, body in enumerate((b"wait a", b"wait b", b"echo"))))
        assert (await wire.answer())[0] == 2
        here.odd.release(b"b")
        assert (await wire.answer())[0] == 1
        here.odd.release(b"a")
        assert (await wire.answer())[0] == 0


async def test_requests_sent_behind_the_greeting_in_one_go_are_all_answered():
    async with site() as here:
        wire = await here.connect()
        await wire.send(odd(b"wait a"), api_versions(name="flowshare"), odd(b"echo", correlation_id=3))
        await until(lambda: b"echo" in here.odd.accepted)
        here.odd.release(b"a")
        assert sorted([(await wire.answer())[0] for _ in range(3)]) == [1, 3, 7]


async def test_requests_are_accepted_in_the_order_in_which_they_came():
    async with site(connection_requests_max=4) as here:
        wire = await here.connect()
        bodies = [b"echo %d" % i for i in range(200)]
        await wire.send(*(odd(body) for body in bodies))
        assert [(await wire.answer())[1] for _ in bodies] == bodies
        assert here.odd.accepted == bodies


async def test_a_request_that_comes_byte_by_byte_is_answered():
    async with site() as here:
        wire = await here.connect()
        for byte in odd(b"echo slowly"):
            await wire.send(bytes((byte,)))
            await asyncio.sleep(0)
        assert (await wire.answer())[1] == b"echo slowly"


async def test_a_request_without_an_answer_does_not_hold_up_the_next():
    async with site() as here:
        wire = await here.connect()
        await wire.send(odd(b"none"), odd(b"echo", correlation_id=2))
        assert await wire.answer() == (2, b"echo")


@pytest.mark.parametrize("version", range(6))
@pytest.mark.parametrize("name", ["flowshare", "kafka-python"])
async def test_api_versions_tells_exactly_the_table_and_only_flowshare_of_its_own_apis(version, name):
    async with site() as here:
        wire = await here.connect()
        told = await wire.versions(version, name=name)
        assert int(told.error_code) == 0
        named = version >= 3 and name == "flowshare"
        assert [(api.api_key, api.min_version, api.max_version) for api in told.api_keys] == [
            (ApiKey.PRODUCE, 3, 3),
            (ApiKey.SASL_HANDSHAKE, 1, 1),
            (ApiKey.API_VERSIONS, 0, 5),
            *([(ApiKey.FLOWSHARE, 0, 2)] if named else []),
        ]


@pytest.mark.parametrize("version", [4, 5])
async def test_api_versions_says_that_share_groups_are_on(version):
    async with site() as here:
        wire = await here.connect()
        told = await wire.versions(version)
        (feature,) = told.finalized_features
        assert (feature.name, feature.max_version_level) == ("share.version", 1)
        assert told.finalized_features_epoch >= 0
        assert [feature.name for feature in told.supported_features] == ["share.version"]


@pytest.mark.parametrize("version", [6, 99, -1])
async def test_an_unknown_version_of_api_versions_is_answered_in_the_form_of_v0_and_the_connection_goes_on(version):
    async with site() as here:
        wire = await here.connect()
        await wire.send(api_versions(version, correlation_id=9))
        correlation_id, told = read_response("api_versions", 0, await wire.frame())
        assert (correlation_id, int(told.error_code)) == (9, 35)
        assert [(api.api_key, api.min_version, api.max_version) for api in told.api_keys] == [(18, 0, 5)]
        assert await wire.ask(b"echo") == b"echo"


async def test_many_refused_api_versions_in_one_go_are_all_answered():
    async with site() as here:
        wire = await here.connect()
        await wire.send(api_versions(99) * 3_000)
        for _ in range(3_000):
            await wire.frame()


@pytest.mark.parametrize(
    ("meant", "error"),
    [
        ({}, 0),
        ({"cluster_id": "flowshare", "node_id": 1}, 0),
        ({"cluster_id": "another", "node_id": 1}, 129),
        ({"cluster_id": "flowshare", "node_id": 2}, 129),
        ({"cluster_id": "flowshare"}, 42),
        ({"node_id": 1}, 42),
    ],
)
async def test_a_client_that_means_another_broker_is_told_to_look_for_its_brokers_anew(meant, error):
    async with site() as here:
        wire = await here.connect()
        told = await wire.versions(5, **meant)
        assert int(told.error_code) == error
        assert bool(told.api_keys) is (error == 0)
        assert await wire.ask(b"echo") == b"echo"


async def test_version_5_is_written_as_javas_clients_of_kafka_4_4_write_it():
    own = api_versions(5, correlation_id=7, name="a", software="1", cluster_id="cl", node_id=7)
    header = struct.pack(">hhih4sB", 18, 5, 7, 4, b"test", 0)
    assert own == frame(header + bytes.fromhex("0261023103636c0000000700"))
    none = api_versions(5, correlation_id=7, name="a", software="1")
    assert none == frame(header + bytes.fromhex("0261023100ffffffff00"))


@pytest.mark.parametrize("name", ["", "two words", "-dash", "é"])
async def test_a_software_name_that_is_none_is_an_invalid_request(name):
    async with site() as here:
        wire = await here.connect()
        assert int((await wire.versions(3, name=name)).error_code) == 42


async def test_a_parked_request_and_a_closed_socket_free_the_session_at_once():
    async with site() as here:
        await here.fetch_parks(await here.world.topic())
        wire = await here.connect()
        await wire.send(odd(b"fetch"))
        await until(lambda: here.world.server.stats()["parked"] == 1)
        assert here.world.server.stats()["sessions"] == 1
        await wire.close()
        await until(lambda: here.world.server.stats()["sessions"] == 0)
        assert here.world.server.stats()["parked"] == 0


async def test_the_end_of_a_socket_is_seen_with_all_its_requests_parked():
    async with site(connection_requests_max=2) as here:
        await here.fetch_parks(await here.world.topic())
        wire = await here.connect()
        await wire.send(odd(b"fetch"), odd(b"wait a"), odd(b"echo"))
        await until(lambda: here.world.server.stats()["parked"] == 1)
        await wire.close()
        await until(lambda: here.world.server.stats()["sessions"] == 0)
        here.odd.release(b"a")


async def test_two_hundred_connections_opened_and_closed_leave_nothing():
    async with site() as here:
        before = here.world.server.stats()["connections"]
        wires = [await here.connect() for _ in range(200)]
        for wire in wires:
            await wire.send(odd(b"echo"))
        for wire in wires:
            await wire.answer()
        assert here.listener.connections == 200
        for wire in wires:
            await wire.close()
        await until(lambda: here.listener.connections == 0)
        await until(lambda: here.world.server.stats()["connections"] == before)
        assert here.listener.pool.held == 0
        assert not here.listener.unread


async def test_closing_the_listener_ends_connections_and_parked_requests():
    async with site() as here:
        await here.fetch_parks(await here.world.topic())
        wire = await here.connect()
        await wire.send(odd(b"fetch"))
        await until(lambda: here.world.server.stats()["parked"] == 1)
        await here.listener.close()
        assert await wire.closed() == b""
        assert here.listener.connections == 0
        with pytest.raises(OSError):  # noqa: PT011 - refused or reset
            await here.connect()


async def test_a_socket_accepted_as_the_listener_closes_is_closed_too():
    async with site() as here:
        with socket.create_connection((here.listener.node.host, here.listener.node.port)) as client:
            await asyncio.sleep(0)  # the loop sees the connection
            await asyncio.sleep(0)  # and takes it; the task that is to serve it has not begun
            assert here.listener.connections == 1
            await here.listener.close()
            client.settimeout(5)
            assert client.recv(1) == b""
        assert here.listener.connections == 0


async def test_a_request_that_never_ends_is_cut_when_the_listener_closes():
    async with site() as here:
        wire = await here.connect()
        await wire.send(odd(b"wait for ever"))
        await until(lambda: here.odd.accepted)
        closing = asyncio.ensure_future(here.listener.close())
        await here.world.clock.advance(3.0)
        await closing
        assert await wire.closed() == b""


async def test_a_failed_login_is_answered_and_then_closed():
    async with site(sasl=NoSasl()) as here:
        wire = await here.connect()
        await wire.send(login(b"close"), login(b"echo"))
        assert (await wire.answer())[1] == b"close"
        assert await wire.closed() == b""
        assert here.odd.accepted == [b"close"]


async def test_what_was_sent_behind_a_login_is_looked_at_when_the_login_is_over():
    async with site(sasl=NoSasl()) as here:
        wire = await here.connect()
        await wire.send(login(b"wait a"), login(b"login"), odd(b"echo"))
        await until(lambda: here.odd.accepted)
        assert here.odd.accepted == [b"wait a"]
        here.odd.release(b"a")
        assert [(await wire.answer())[1] for _ in range(3)] == [b"wait a", b"login", b"echo"]


async def test_bare_tokens_are_taken_until_the_login_is_over():
    async with site(sasl=NoSasl()) as here:
        wire = await here.connect()
        await wire.send(login(b"raw"), frame(b"a token"), frame(b"yes"), odd(b"echo"))
        assert (await wire.answer())[1] == b"raw"
        assert [await wire.frame() for _ in range(2)] == [b"ok a token", b"ok yes"]
        assert (await wire.answer())[1] == b"echo"


async def test_a_wrong_bare_token_closes_the_connection():
    async with site(sasl=NoSasl()) as here:
        wire = await here.connect()
        await wire.send(login(b"raw"), frame(b"no"), frame(b"yes"))
        assert (await wire.answer())[1] == b"raw"
        assert await wire.closed() == b""


async def test_an_api_that_fails_costs_its_connection_and_no_other(caplog):
    async with site() as here:
        wire, other = await here.connect(), await here.connect()
        with caplog.at_level(logging.WARNING):
            await wire.send(odd(b"fail"))
            assert await wire.closed() == b""
        assert "as asked" in caplog.text
        assert await other.ask(b"echo") == b"echo"


async def test_a_request_that_the_server_cannot_answer_closes_its_connection():
    async with site() as here:
        wire = await here.connect()
        await wire.send(odd(b"gone"))
        assert await wire.closed() == b""


async def test_the_node_is_told_as_given_with_the_port_that_was_found():
    async with world() as made:
        listener = Listener(
            made.server, clock=made.clock, node=AdvertisedNode(host="broker.example", port=0), apis=table(())
        )
        with pytest.raises(ListenerError, match="start it first"):
            Listener(made.server, clock=made.clock, apis=table(())).node  # noqa: B018
        _, port = await listener.start("127.0.0.1", 0)
        assert (listener.node.host, listener.node.port) == ("broker.example", port)
        await listener.close()
        await listener.close()


async def test_a_taken_port_is_refused_with_advice():
    async with site() as here:
        second = Listener(here.world.server, clock=here.world.clock, apis=table(()))
        with pytest.raises(ListenerError, match=r"cannot listen on 127\.0\.0\.1:\d+: Address already in use; choose"):
            await second.start("127.0.0.1", here.listener.node.port)


@pytest.mark.parametrize("host", ["no-such-host.invalid", "x..y", "x" * 70, "192.0.2.1", "with space"])
async def test_an_address_that_this_machine_does_not_have_is_refused_with_the_option(host):
    async with site() as here:
        second = Listener(here.world.server, clock=here.world.clock, apis=table(()))
        with pytest.raises(ListenerError, match=r"cannot listen on .*; name an address of this machine \(--listen; in"):
            await second.start(host, 0)


async def test_a_process_that_has_no_more_files_accepts_again_later(monkeypatch, caplog):
    async with site() as here:
        accept, failures = socket.socket.accept, [OSError(errno.EMFILE, "Too many open files")]

        def failing(listening):
            if failures:
                raise failures.pop()
            return accept(listening)

        first = await here.connect()
        assert await first.ask(b"echo") == b"echo"
        monkeypatch.setattr(socket.socket, "accept", failing)
        second = await here.connect()
        await until(lambda: not failures)
        await settle()
        assert "could not be accepted: Too many open files" in caplog.text
        await here.world.clock.advance(1.0)
        assert await second.ask(b"echo") == b"echo"


async def test_two_endpoints_with_one_key_are_refused():
    async with site() as here:
        with pytest.raises(ValueError, match="two endpoints serve FLOWSHARE"):
            table([*here.odd.apis(), *here.odd.apis()])


GARBAGE = {
    "negative length": struct.pack(">i", -1),
    "zero length": struct.pack(">i", 0),
    "too short for a header": frame(b"\0" * 7),
    "huge length": struct.pack(">i", 2**31 - 1),
    "too long for its key": struct.pack(">ih", 2 * 1024 * 1024, ApiKey.FLOWSHARE),
    "unknown key": frame(struct.pack(">hhih", 9_999, 0, 1, -1)),
    "negative key": frame(struct.pack(">hhih", -1, 0, 1, -1)),
    "version above": odd(b"echo", version=3),
    "version below": odd(b"echo", version=-1),
    "client id longer than the frame": frame(struct.pack(">hhih", ApiKey.FLOWSHARE, 0, 1, 30_000)),
    "client id that is no text": frame(struct.pack(">hhih2sB", ApiKey.FLOWSHARE, 0, 1, 2, b"\xff\xfe", 0)),
    "a body that the decoder refuses": odd(b"bad"),
    "a greeting cut short": frame(api_versions()[4:-3]),
    "http": b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
    "tls": bytes.fromhex("16030100f8010000f40303"),
}


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE)
async def test_garbage_costs_its_connection_one_log_line_and_nobody_else(data, caplog):
    async with site() as here:
        wire, other = await here.connect(), await here.connect()
        peer = "{}:{}".format(*wire.writer.get_extra_info("sockname"))
        with caplog.at_level(logging.WARNING):
            await wire.send(data)
            assert await wire.closed() == b""
        (line,) = caplog.records
        assert f"peer={peer}" in line.getMessage()
        assert "\n" not in line.getMessage()
        assert await other.ask(b"echo") == b"echo"
        await until(lambda: here.listener.connections == 1)
        assert here.listener.pool.held == 0


async def test_requests_before_garbage_are_answered():
    async with site() as here:
        wire = await here.connect()
        await wire.send(odd(b"echo"), struct.pack(">i", -1))
        assert (await wire.answer())[1] == b"echo"
        assert await wire.closed() == b""


async def test_a_parked_request_before_garbage_holds_the_socket_for_seconds_at_most():
    async with site() as here:
        wire = await here.connect()
        await wire.send(odd(b"wait a"), struct.pack(">i", -1))
        await until(lambda: here.odd.accepted)
        await here.world.clock.advance(11.0)
        assert await wire.closed() == b""
        here.odd.release(b"a")
