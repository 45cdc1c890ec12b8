"""Every limit of a listener: what goes over it is closed or waits, and nobody else notices."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import threading
from contextlib import suppress

import pytest

from flowshare.protocol.kafka import ApiKey
from flowshare.server.net import listener as listening
from flowshare.server.net.limits import ListenerLimits
from tests.server.wire import NoSasl, api_versions, login, odd, site
from tests.waiting import until

pytestmark = pytest.mark.asyncio

KIB = 1024
MIB = 1024 * KIB


def small_window() -> socket.socket:
    """A socket whose receive buffer is as small as the system allows."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * KIB)
    made.setblocking(False)
    return made


async def slow_reader(here):
    """A connection that reads nothing by itself and for which the system keeps little."""
    made = small_window()
    await asyncio.get_running_loop().sock_connect(made, (here.listener.node.host, here.listener.node.port))
    return await here.connect_with(made)


async def test_connections_beyond_the_limit_are_closed_and_the_others_go_on(caplog):
    async with site(connections_max=2, connections_per_address_max=9) as here:
        first, second = await here.connect(), await here.connect()
        assert await first.ask(b"echo") == await second.ask(b"echo") == b"echo"
        with caplog.at_level(logging.WARNING):
            third = await here.connect()
            assert await third.closed() == b""
        assert "2 connections already (max.connections)" in caplog.text
        assert await first.ask(b"echo") == await second.ask(b"echo") == b"echo"
        await first.close()
        await until(lambda: here.listener.connections == 1)
        assert await (await here.connect()).ask(b"echo") == b"echo"


async def test_one_address_has_a_limit_of_its_own(caplog):
    async with site(connections_per_address_max=1) as here:
        first = await here.connect()
        assert await first.ask(b"echo") == b"echo"
        with caplog.at_level(logging.WARNING):
            second = await here.connect()
            assert await second.closed() == b""
        assert "from 127.0.0.1 already (max.connections.per.ip)" in caplog.text
        other = await here.connect(local_addr=("127.0.0.2", 0))
        assert await other.ask(b"echo") == await first.ask(b"echo") == b"echo"


async def test_a_request_with_records_may_be_longer_than_one_without():
    async with site(plain_request_bytes_max=KIB, request_bytes_max=8 * KIB) as here:
        wire = await here.connect()
        produce = bytearray(odd(bytes(4 * KIB), version=3))
        struct.pack_into(">h", produce, 4, ApiKey.PRODUCE)
        del produce[18]  # the header of this version has no tagged fields
        struct.pack_into(">i", produce, 0, len(produce) - 4)
        await wire.send(bytes(produce), odd(b"echo"))
        assert (await wire.answer())[1] == b"echo"
        await wire.send(odd(bytes(4 * KIB)))
        assert await wire.closed() == b""


async def test_no_records_are_taken_from_who_has_not_logged_in():
    async with site(sasl=NoSasl(), login_request_bytes_max=KIB) as here:
        wire = await here.connect()
        await wire.send(struct.pack(">ih", 4 * KIB, ApiKey.PRODUCE))
        assert await wire.closed() == b""


async def test_who_has_not_logged_in_may_only_greet(caplog):
    async with site(sasl=NoSasl()) as here:
        wire = await here.connect()
        assert int((await wire.versions()).error_code) == 0
        with caplog.at_level(logging.WARNING):
            await wire.send(odd(b"echo"))
            assert await wire.closed() == b""
        assert "before it logged in" in caplog.text


async def test_a_login_that_takes_too_long_is_cut(caplog):
    async with site(sasl=NoSasl(), setup_max_ms=5_000) as here:
        wire = await here.connect()
        await wire.versions()
        with caplog.at_level(logging.WARNING):
            await here.world.clock.advance(7.0)
            assert await wire.closed() == b""
        assert "connection.setup.max.ms" in caplog.text


async def test_requests_beyond_the_limit_wait_until_others_are_answered():
    async with site(connection_requests_max=3) as here:
        wire = await here.connect()
        await wire.send(*(odd(b"wait a") for _ in range(5)))
        await until(lambda: len(here.odd.accepted) == 3)
        assert await (await here.connect()).ask(b"echo") == b"echo"
        assert len(here.odd.accepted) == 4  # three and the other connection's
        here.odd.release(b"a")
        for _ in range(5):
            await wire.answer()


async def test_flowshares_own_client_may_have_more_under_way():
    async with site(connection_requests_max=1, own_connection_requests_max=4) as here:
        wire = await here.connect()
        await wire.versions(name="flowshare")
        await wire.send(*(odd(b"wait a") for _ in range(6)))
        await until(lambda: len(here.odd.accepted) == 4)
        here.odd.release(b"a")
        for _ in range(6):
            await wire.answer()


async def test_bytes_under_way_of_one_connection_are_bounded():
    async with site(connection_request_bytes_max=2 * KIB) as here:
        wire = await here.connect()
        await wire.send(*(odd(b"wait a".ljust(KIB)) for _ in range(4)))
        await until(lambda: len(here.odd.accepted) == 2)
        assert await (await here.connect()).ask(b"echo") == b"echo"
        assert len(here.odd.accepted) == 3
        here.odd.release(b"a".ljust(KIB - 5))
        for _ in range(4):
            await wire.answer()


async def test_what_all_connections_send_is_bounded_and_goes_on_when_there_is_room():
    async with site(queued_request_bytes_max=4 * KIB) as here:
        wires = [await here.connect() for _ in range(4)]
        await wires[0].send(odd(b"wait a".ljust(6 * KIB)))
        await until(lambda: here.odd.accepted)
        for wire in wires[1:]:
            await wire.send(odd(b"echo"), odd(b"echo"))
        # Each is read once, found to be too much, and not read again.
        await until(lambda: len(here.odd.accepted) == 7)
        for wire in wires[1:]:
            await wire.answer()
            await wire.answer()
            await wire.send(odd(b"late"))
        await until(lambda: here.listener.pool.held > 6 * KIB or len(here.odd.accepted) == 7)
        here.odd.release(b"a".ljust(6 * KIB - 5))
        for wire in wires:
            await wire.answer()
        await until(lambda: here.listener.pool.held == 0)


async def test_unfinished_requests_that_fill_the_budget_are_finished_one_after_the_other():
    async with site(queued_request_bytes_max=8 * KIB) as here:
        body = b"echo".ljust(200 * KIB)
        wires = [await here.connect() for _ in range(5)]
        sending = [asyncio.ensure_future(wire.send(odd(body))) for wire in wires]
        for wire in wires:
            assert (await wire.answer())[1] == body
        await asyncio.gather(*sending)
        assert here.listener.pool.held == 0


async def test_a_request_that_does_not_arrive_in_time_is_cut(caplog):
    async with site(arrival_max_ms=5_000) as here:
        wire = await here.connect()
        await wire.send(odd(b"echo")[:9])
        await until(lambda: here.listener.pool.held == 9)
        with caplog.at_level(logging.WARNING):
            await here.world.clock.advance(7.0)
            assert await wire.closed() == b""
        assert "request.arrival.max.ms" in caplog.text
        assert here.listener.pool.held == 0


async def test_a_trickle_of_bytes_does_not_keep_a_request_alive():
    async with site(arrival_max_ms=5_000) as here:
        wire = await here.connect()
        for sent, byte in enumerate(odd(b"echo")[:9], start=1):
            with suppress(ConnectionError):
                await wire.send(bytes((byte,)))
                await until(lambda sent=sent: here.listener.pool.held == sent or not here.listener.connections)
            await here.world.clock.advance(1.0)
        assert await wire.closed() == b""


async def test_an_idle_connection_is_closed_and_one_with_a_parked_request_is_not(caplog):
    async with site(idle_max_ms=60_000) as here:
        idle, busy = await here.connect(), await here.connect()
        assert await idle.ask(b"echo") == b"echo"
        await busy.send(odd(b"wait a"))
        await until(lambda: len(here.odd.accepted) == 2)
        with caplog.at_level(logging.INFO):
            await here.world.clock.advance(70.0)
            assert await idle.closed() == b""
        assert "connections.max.idle.ms" in caplog.text
        here.odd.release(b"a")
        assert (await busy.answer())[1] == b"wait a"
        await here.world.clock.advance(50.0)
        assert await busy.ask(b"echo") == b"echo"


async def test_a_client_that_does_not_read_is_asked_no_more_and_then_closed(caplog):
    async with site(connection_answer_bytes_max=64 * KIB, unread_max_ms=10_000) as here:
        wire = await slow_reader(here)
        await wire.send(*(odd(b"big %d" % MIB) for _ in range(200)))
        await until(lambda: here.listener.unread)
        await asyncio.sleep(0)
        accepted = len(here.odd.accepted)
        assert accepted < 200
        assert await (await here.connect()).ask(b"echo") == b"echo"
        assert len(here.odd.accepted) == accepted + 1
        with caplog.at_level(logging.WARNING):
            await here.world.clock.advance(15.0)
        assert "response.unread.max.ms" in caplog.text
        await until(lambda: here.listener.connections == 1)
        assert not here.listener.unread


async def test_a_client_that_reads_again_gets_everything():
    async with site(connection_answer_bytes_max=64 * KIB) as here:
        wire = await slow_reader(here)
        await wire.send(*(odd(b"big %d" % MIB) for _ in range(10)))
        await until(lambda: here.listener.unread)
        for _ in range(10):
            assert len((await wire.answer())[1]) == MIB
        assert len(here.odd.accepted) == 10


async def test_the_worst_of_those_that_do_not_read_is_closed_when_there_is_too_much(caplog):
    async with site(connection_answer_bytes_max=64 * KIB, queued_answer_bytes_max=6 * MIB) as here:
        little = await slow_reader(here)
        await little.send(odd(b"big %d" % (4 * MIB)))
        await until(lambda: len(here.listener.unread) == 1)
        with caplog.at_level(logging.WARNING):
            much = await slow_reader(here)
            await much.send(odd(b"big %d" % (20 * MIB)))
            await until(lambda: "queued.max.response.bytes" in caplog.text)
        await until(lambda: here.listener.connections == 1)
        assert len((await little.answer())[1]) == 4 * MIB


async def test_answers_that_wait_for_their_turn_count_as_unread():
    async with site(connection_answer_bytes_max=64 * KIB, connection_requests_max=8) as here:
        wire = await here.connect()
        await wire.send(odd(b"wait a"), *(odd(b"big %d" % MIB) for _ in range(20)))
        await until(lambda: len(here.odd.accepted) == 2)  # one of them is enough
        assert await (await here.connect()).ask(b"echo") == b"echo"
        assert here.odd.accepted == [b"wait a", b"big %d" % MIB, b"echo"]
        here.odd.release(b"a")
        assert (await wire.answer())[1] == b"wait a"
        for _ in range(20):
            assert len((await wire.answer())[1]) == MIB


async def test_a_tls_listener_closes_who_speaks_no_tls(caplog, server_tls):
    async with site(tls=server_tls) as here:
        wire = await here.connect()
        with caplog.at_level(logging.WARNING):
            await wire.send(api_versions())
            await wire.closed()
            await until(lambda: here.listener.connections == 0)
        assert "TLS handshake failed" in caplog.text


async def test_a_tls_listener_answers_who_does(client_tls, server_tls):
    async with site(tls=server_tls) as here:
        wire = await here.connect(ssl=client_tls, server_hostname="localhost")
        await wire.send(odd(b"echo"), odd(b"wait a"))
        assert (await wire.answer())[1] == b"echo"
        here.odd.release(b"a")
        assert (await wire.answer())[1] == b"wait a"
        await wire.close()
        await until(lambda: here.listener.connections == 0)


async def test_a_handshake_that_never_comes_is_cut(caplog, server_tls):
    async with site(tls=server_tls, setup_max_ms=5_000) as here:
        wire = await here.connect()
        await until(lambda: here.listener.connections == 1)
        with caplog.at_level(logging.WARNING):
            await here.world.clock.advance(7.0)
            assert await wire.closed() == b""
        await until(lambda: here.listener.connections == 0)
        assert len([r for r in caplog.records if "closed peer" in r.getMessage()]) == 1


async def test_handshakes_that_do_not_end_make_room_for_those_who_want_to_begin(
    monkeypatch, caplog, client_tls, server_tls
):
    monkeypatch.setattr(listening, "HANDSHAKES_MAX", 2)
    async with site(tls=server_tls) as here:
        silent = [await here.connect() for _ in range(2)]
        await until(lambda: here.listener.connections == 2)
        coming = asyncio.create_task(here.connect(ssl=client_tls, server_hostname="localhost"))
        for _ in range(10):
            await here.world.clock.advance(listening.HANDSHAKE_S / 20)
            assert here.listener.connections == 2
        with caplog.at_level(logging.WARNING):
            while not coming.done():
                await here.world.clock.advance(listening.HANDSHAKE_S / 5)
                await asyncio.sleep(0)
        assert "its TLS handshake took more than 1 s" in caplog.text
        wire = await coming
        await wire.send(odd(b"echo"))
        assert (await wire.answer())[1] == b"echo"
        assert await silent[0].closed() == b""


@pytest.fixture(scope="module")
def authority():
    import trustme

    return trustme.CA()


@pytest.fixture
def server_tls(authority):
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    return context


@pytest.fixture
def client_tls(authority):
    import ssl

    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


async def test_one_long_request_of_a_connection_is_answered_before_the_next_is_begun():
    async with site() as here:
        wire, other = await here.connect(), await here.connect()
        await wire.send(*(odd(b"turns a") for _ in range(5)))
        await until(lambda: here.odd.turns > 10)
        assert here.odd.accepted == [b"turns a"]
        assert await other.ask(b"echo") == b"echo"
        here.odd.release(b"a")
        for _ in range(5):
            assert (await wire.answer())[1] == b"turns a"


async def test_a_long_answer_is_written_beside_the_loop_and_a_short_one_on_it():
    async with site() as here:
        wire = await here.connect()
        for size, beside in ((100, False), (MIB, True)):
            assert await wire.ask(b"built %d" % size) == b"built %d" % size
            assert (here.odd.written_by != threading.get_ident()) is beside
        assert here.listener.answers.reserved == 0


async def test_a_long_request_is_read_beside_the_loop_and_what_comes_behind_it_has_the_next_place():
    async with site() as here:
        wire = await here.connect()
        bodies = [b"echo 1", b"echo 2" + bytes(100 * KIB), b"echo 3", b"echo 4" + bytes(100 * KIB), b"echo 5"]
        await wire.send(*(odd(body, correlation_id=number) for number, body in enumerate(bodies)))
        assert [await wire.answer() for _ in bodies] == list(enumerate(bodies))
        assert here.odd.accepted == bodies
        assert [one != threading.get_ident() for one in here.odd.read_by] == [False, True, False, True, False]


async def test_a_long_request_that_is_none_ends_its_connection_and_no_other(caplog):
    async with site() as here:
        wire, other = await here.connect(), await here.connect()
        with caplog.at_level(logging.WARNING):
            await wire.send(odd(b"bad" + bytes(100 * KIB)), odd(b"echo"))
            assert await wire.closed() == b""
        assert "ValueError: cannot read v0" in caplog.text
        assert await other.ask(b"echo") == b"echo"
        await until(lambda: not here.listener.pool.held)


async def test_an_answer_that_grows_beyond_its_limit_ends_the_connection(caplog):
    async with site(answer_bytes_max=64 * KIB) as here:
        wire = await here.connect()
        with caplog.at_level(logging.WARNING):
            await wire.send(odd(b"built %d" % MIB))
            assert await wire.closed() == b""
        assert "response.max.bytes" in caplog.text
        assert here.listener.answers.reserved == 0


async def test_answers_below_the_limit_of_a_connection_count_when_all_are_too_much(caplog):
    async with site(queued_answer_bytes_max=4 * MIB, connection_answer_bytes_max=8 * MIB) as here:
        with caplog.at_level(logging.WARNING):
            for _ in range(4):
                await (await slow_reader(here)).send(odd(b"big %d" % (6 * MIB)))
            await until(lambda: "queued.max.response.bytes" in caplog.text)
        await until(lambda: here.listener.answers.held <= 4 * MIB)


async def test_before_a_login_only_small_requests_are_taken(caplog):
    async with site(sasl=NoSasl(), login_request_bytes_max=4 * KIB) as here:
        wire = await here.connect()
        with caplog.at_level(logging.WARNING):
            await wire.send(struct.pack(">ih", 8 * KIB, ApiKey.SASL_AUTHENTICATE))
            assert await wire.closed() == b""
        assert "4096 are allowed" in caplog.text


async def test_who_sends_ahead_before_the_login_is_closed(caplog):
    async with site(sasl=NoSasl(), login_request_bytes_max=4 * KIB) as here:
        wire = await here.connect()
        with caplog.at_level(logging.WARNING):
            await wire.send(login(b"wait a"), *(login(b"echo".ljust(2 * KIB)) for _ in range(10)))
            assert await wire.closed() == b""
        assert "sasl.server.max.receive.size" in caplog.text
        here.odd.release(b"a")


async def test_who_has_logged_in_may_send_more():
    async with site(sasl=NoSasl(), login_request_bytes_max=4 * KIB) as here:
        wire = await here.connect()
        await wire.send(login(b"login"))
        await wire.answer()
        assert await wire.ask(b"echo".ljust(100 * KIB)) == b"echo".ljust(100 * KIB)
        assert here.listener.strangers.held == here.listener.pool.held == 0


async def test_what_strangers_send_does_not_count_for_those_who_logged_in(caplog):
    async with site(
        sasl=NoSasl(), queued_login_bytes_max=4 * KIB, queued_request_bytes_max=4 * KIB, connections_max=100
    ) as here:
        known = await here.connect()
        await known.send(login(b"login"))
        await known.answer()
        strangers = []
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                wire = await here.connect()
                strangers.append(wire)
                await wire.send(struct.pack(">ih", 3 * KIB, ApiKey.SASL_AUTHENTICATE) + bytes(2 * KIB))
                await until(lambda: here.listener.strangers.held)
            assert await strangers[0].closed() == b""
        assert "queued.max.login.bytes" in caplog.text
        assert here.listener.pool.held == 0
        assert await known.ask(b"echo".ljust(KIB)) == b"echo".ljust(KIB)


async def test_a_request_before_the_login_has_seconds_to_arrive(caplog):
    async with site(sasl=NoSasl(), login_arrival_max_ms=5_000, setup_max_ms=30_000) as here:
        wire = await here.connect()
        await wire.send(login(b"echo")[:9])
        await until(lambda: here.listener.strangers.held == 9)
        with caplog.at_level(logging.WARNING):
            await here.world.clock.advance(7.0)
            assert await wire.closed() == b""
        assert "login.arrival.max.ms" in caplog.text


async def test_begun_requests_that_stand_still_give_way_to_those_that_arrive(caplog):
    async with site(queued_request_bytes_max=512 * KIB) as here:
        idle = [await here.connect() for _ in range(4)]
        for wire in idle:
            await wire.send(odd(b"echo".ljust(900 * KIB))[: 100 * KIB])
        await until(lambda: here.listener.pool.held >= 300 * KIB)
        wire = await here.connect()
        body = b"echo".ljust(900 * KIB)
        sending = asyncio.ensure_future(wire.send(odd(body)))
        await until(lambda: here.listener.pool.waiting)
        answer = asyncio.ensure_future(wire.answer())
        with caplog.at_level(logging.WARNING):
            await until(lambda: answer.done() or here.world.clock.advance(0.5), look_s=0.001)
        await sending
        assert (await answer)[1] == body


async def test_small_requests_are_answered_while_begun_ones_hold_all_that_they_may():
    async with site(queued_request_bytes_max=512 * KIB) as here:
        for _ in range(8):
            await (await here.connect()).send(odd(b"echo".ljust(900 * KIB))[: 200 * KIB])
        await until(lambda: here.listener.pool.waiting >= 6)
        wire = await here.connect()
        for _ in range(5):
            assert await wire.ask(b"echo".ljust(4 * KIB)) == b"echo".ljust(4 * KIB)


async def test_an_address_of_its_own_has_half_of_the_connections_and_this_machine_nine_of_ten():
    limits = ListenerLimits(connections_max=2_000)
    assert limits.connections_from(2_000, own=False) == 1_000
    assert limits.connections_from(2_000, own=True) == 1_800
    assert ListenerLimits().connections_from(1, own=False) == 1
    assert ListenerLimits.parse({"max.connections.per.ip": "7"}).connections_from(2_000, own=True) == 7
    assert ListenerLimits.parse({"max.connections.per.ip": "auto"}).connections_per_address_max is None


async def test_when_all_connections_are_taken_those_make_room_that_asked_for_nothing(caplog):
    async with site(connections_max=3) as here:
        first = await here.connect()
        assert await first.ask(b"echo") == b"echo"
        silent = [await here.connect() for _ in range(2)]
        await until(lambda: here.listener.connections == 3)
        with caplog.at_level(logging.WARNING):
            late = await here.connect()
            assert await late.ask(b"echo") == b"echo"
            assert await silent[0].closed() == b""
        assert "others want to connect (max.connections)" in caplog.text
        assert await silent[1].ask(b"echo") == await first.ask(b"echo") == b"echo"


async def test_who_has_not_logged_in_makes_room_whatever_it_asked_for():
    async with site(sasl=NoSasl(), connections_max=2) as here:
        stranger, known = await here.connect(), await here.connect()
        await known.send(login(b"login"))
        await known.answer()
        assert await known.ask(b"echo") == b"echo"
        await stranger.versions()
        late = await here.connect()
        await late.send(login(b"login"))
        assert (await late.answer())[1] == b"login"
        assert await stranger.closed() == b""
        assert await known.ask(b"echo") == b"echo"
