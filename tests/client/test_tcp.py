"""The TCP connection against a server that answers well, badly, late, out of order or not at all."""

from __future__ import annotations

import asyncio
import itertools
import struct
from dataclasses import replace

import pytest

import flowshare
from flowshare.client.errors import ClientError, ConnectionLost, NotConnected, Unsupported
from flowshare.client.net.link import Link
from flowshare.client.net.tcp import open_tcp
from flowshare.client.settings import LinkSettings
from flowshare.clock import LoopClock
from flowshare.protocol import messages as m
from flowshare.protocol.client_software import version
from flowshare.protocol.kafka import ApiKey, request_start
from flowshare.testing.clock import ManualClock
from tests.client.sockets import EVERYTHING, SETTINGS, asked, connected, fake_broker, listed, versions_answer
from tests.waiting import until

pytestmark = pytest.mark.asyncio
LIST = m.ListGroupsRequest(types=("share",))


async def test_a_connection_agrees_on_versions_and_says_that_it_is_flowshare():
    async with fake_broker() as broker, connected(broker) as connection:
        request = asked(broker.frames[0])

        assert request.client_software_name == "flowshare"
        assert connection.api_versions == EVERYTHING
        assert not connection.is_flowshare
        assert not connection.closed


@pytest.mark.parametrize("highest", [0, 2, 3])
async def test_an_older_broker_is_asked_again_in_the_version_that_it_knows(highest):
    async with fake_broker(api_versions_highest=highest) as broker, connected(broker) as connection:
        assert [start.version for start in broker.starts] == [4, highest]
        assert connection.api_versions == EVERYTHING


async def test_a_server_of_flowshare_is_known_by_its_private_api():
    async with fake_broker({**EVERYTHING, 32500: (0, 0)}) as broker, connected(broker) as connection:
        assert connection.is_flowshare


async def test_requests_leave_in_order_and_answers_may_come_in_any_order():
    async with fake_broker() as broker, connected(broker) as connection:
        held = []
        broker.answer = lambda start, frame, writer: held.append(start)
        sends = [asyncio.ensure_future(connection.send(LIST)) for _ in range(3)]
        await until(lambda: len(held) == 3)

        for place in (2, 0, 1):
            broker.writers[0].write(listed(held[place], f"g{place}"))
        answers = await asyncio.gather(*sends)

        assert [answer.groups[0].group_id for answer in answers] == ["g0", "g1", "g2"]
        assert [start.correlation_id for start in held] == sorted(start.correlation_id for start in held)


async def test_an_answer_that_comes_byte_by_byte_is_read_and_so_are_two_in_one_piece():
    async with fake_broker() as broker, connected(broker) as connection:
        held = []
        broker.answer = lambda start, frame, writer: held.append(start)
        sends = [asyncio.ensure_future(connection.send(LIST)) for _ in range(3)]
        await until(lambda: len(held) == 3)
        stream = b"".join(listed(start, "g") for start in held)

        for byte in stream[:30]:
            broker.writers[0].write(bytes([byte]))
            await asyncio.sleep(0)
        broker.writers[0].write(stream[30:])

        assert [len(answer.groups) for answer in await asyncio.gather(*sends)] == [1, 1, 1]


async def test_no_more_requests_are_under_way_than_the_bound_and_the_rest_follows_in_order():
    settings = replace(SETTINGS, max_in_flight_requests=2)
    async with fake_broker() as broker, connected(broker, settings=settings) as connection:
        held = []
        broker.answer = lambda start, frame, writer: held.append(start)
        sends = [asyncio.ensure_future(connection.send(LIST)) for _ in range(5)]
        for answered in range(5):
            await until(lambda answered=answered: len(held) == min(5, answered + 2))
            broker.writers[0].write(listed(held[answered], f"g{answered}"))
            await sends[answered]

        assert [task.result().groups[0].group_id for task in sends] == [f"g{number}" for number in range(5)]


async def test_bytes_under_way_are_bounded_too():
    settings = replace(SETTINGS, max_in_flight_bytes=1000)
    request = m.DeleteGroupsRequest(group_ids=("g" * 900,))
    async with fake_broker() as broker, connected(broker, settings=settings) as connection:
        sends = [asyncio.ensure_future(connection.send(request)) for _ in range(4)]
        await until(lambda: len(broker.frames) == 3)

        assert len(connection._pipeline._waiting) == 2  # the second began below the bound
        await connection.close()
        assert all(isinstance(error, ConnectionError) for error in await asyncio.gather(*sends, return_exceptions=True))


async def test_a_request_that_was_given_up_while_it_waited_is_never_sent():
    settings = replace(SETTINGS, max_in_flight_requests=1)
    async with fake_broker() as broker, connected(broker, settings=settings) as connection:
        held = []
        broker.answer = lambda start, frame, writer: held.append(start)
        first = asyncio.ensure_future(connection.send(LIST))
        second = asyncio.ensure_future(connection.send(LIST))
        third = asyncio.ensure_future(connection.send(LIST))
        await until(lambda: held)

        second.cancel()
        broker.writers[0].write(listed(held[0], "first"))
        await first
        await until(lambda: len(held) == 2)
        broker.writers[0].write(listed(held[1], "third"))

        assert (await third).groups[0].group_id == "third"


async def test_an_answer_to_a_request_that_was_given_up_is_dropped_and_the_connection_goes_on():
    async with fake_broker() as broker, connected(broker) as connection:
        held = []
        broker.answer = lambda start, frame, writer: held.append(start)
        gone = asyncio.ensure_future(connection.send(LIST))
        await until(lambda: held)
        gone.cancel()
        stays = asyncio.ensure_future(connection.send(LIST))
        await until(lambda: len(held) == 2)

        for start in held:
            broker.writers[0].write(listed(start, "g"))

        assert (await stays).groups
        assert not connection.closed


@pytest.mark.parametrize(
    ("bytes_", "words"),
    [
        (struct.pack(">ii", 8, 77) + b"1234", "nobody asked"),
        (struct.pack(">i", -5), "not Kafka's protocol"),
        (struct.pack(">i", 0), "not Kafka's protocol"),
        (struct.pack(">i", 1 << 30), "not Kafka's protocol"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "not Kafka's protocol"),
    ],
)
async def test_bytes_that_are_no_answer_end_the_connection_with_a_reason(bytes_, words):
    async with fake_broker() as broker, connected(broker) as connection:
        broker.answer = lambda start, frame, writer: bytes_

        with pytest.raises(ConnectionLost, match=words):
            await connection.send(LIST)

        assert connection.closed
        with pytest.raises(NotConnected, match=words):
            await connection.send(LIST)


async def test_every_answer_that_is_cut_or_changed_is_read_or_ends_the_connection_and_nothing_else():
    whole = None

    async def send_to(change):
        async with fake_broker() as broker, connected(broker) as connection:

            def answer(start, frame, writer):
                nonlocal whole
                whole = listed(start, "group-a", "group-b")
                return change(whole)

            broker.answer = answer
            try:
                return await connection.send(LIST)
            except ConnectionLost:
                assert connection.closed
                return None

    assert (await send_to(lambda frame: frame)).groups[1].group_id == "group-b"
    for length in range(8, len(whole) - 4, 7):
        assert await send_to(lambda frame, n=length: struct.pack(">i", n) + frame[4 : 4 + n]) is None
    for place in range(8, len(whole), 5):
        await send_to(lambda frame, n=place: frame[:n] + b"\xff" + frame[n + 1 :])


async def test_a_socket_that_closes_in_the_middle_of_a_frame_fails_all_that_wait():
    async with fake_broker() as broker, connected(broker) as connection:

        def break_off(start, frame, writer):
            writer.write(listed(start, "g")[:20])
            writer.close()

        broker.answer = break_off

        answers = await asyncio.gather(*(connection.send(LIST) for _ in range(3)), return_exceptions=True)

        assert [type(answer) for answer in answers] == [ConnectionLost] * 3


async def test_closing_fails_what_waits_at_once():
    async with (
        fake_broker() as broker,
        connected(broker, settings=replace(SETTINGS, max_in_flight_requests=1)) as connection,
    ):
        sends = [asyncio.ensure_future(connection.send(LIST)) for _ in range(2)]
        await until(lambda: len(broker.frames) == 2)

        await connection.close()
        await connection.close()
        sent, waiting = await asyncio.gather(*sends, return_exceptions=True)

        assert isinstance(sent, ConnectionLost)
        assert isinstance(waiting, NotConnected)


async def test_a_server_that_never_answers_costs_the_time_limit_and_the_connection():
    clock = ManualClock()
    async with fake_broker() as broker, connected(broker, clock=clock) as connection:
        listing = asyncio.ensure_future(connection.send(LIST))
        fetching = asyncio.ensure_future(
            connection.send(m.ShareFetchRequest(group_id="g", member_id="m", session_epoch=0, max_wait_ms=5000))
        )
        await until(lambda: len(broker.frames) == 3)

        await clock.advance(19.9)
        assert not listing.done()
        await clock.advance(0.2)

        with pytest.raises(ConnectionLost, match="no answer to ListGroups within 20 s"):
            await listing
        with pytest.raises(ConnectionLost, match="no answer to ListGroups"):
            await fetching
        assert connection.closed


async def test_a_fetch_that_the_server_may_hold_has_that_much_longer():
    clock = ManualClock()
    async with fake_broker() as broker, connected(broker, clock=clock) as connection:
        fetching = asyncio.ensure_future(
            connection.send(m.ShareFetchRequest(group_id="g", member_id="m", session_epoch=0, max_wait_ms=5000))
        )
        await until(lambda: len(broker.frames) == 2)

        await clock.advance(24.9)
        assert not fetching.done()
        await clock.advance(0.2)

        with pytest.raises(ConnectionLost, match="ShareFetch within 25 s"):
            await fetching


async def test_a_server_that_says_nothing_at_the_start_is_given_up_in_time():
    clock = ManualClock()

    async def silent(reader, writer):
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    opening = asyncio.ensure_future(
        open_tcp(host, port, client_id="c", clock=clock, settings=LinkSettings(connect_timeout=3.0))
    )
    await until(lambda: clock.next_due_s() is not None)
    await clock.advance(3.1)

    with pytest.raises(NotConnected, match="no connection within 3 s"):
        await opening
    server.close()
    await server.wait_closed()


async def test_nobody_at_the_address_is_said_so():
    async with fake_broker() as broker:
        port = broker.port

    with pytest.raises(NotConnected, match=f"127.0.0.1:{port} cannot be reached"):
        await open_tcp("127.0.0.1", port, client_id="c", clock=LoopClock(), settings=SETTINGS)


@pytest.mark.parametrize(
    ("offered", "request_", "words"),
    [
        ({}, LIST, "does not offer ListGroups: use a newer broker"),
        (
            {},
            m.ShareFetchRequest(group_id="g", member_id="m", session_epoch=0),
            "does not offer ShareFetch.*Kafka 4.2 or newer.*share.version=1",
        ),
        ({ApiKey.LIST_GROUPS: (0, 4)}, LIST, "has ListGroups in version 0 to 4, this needs 5: upgrade"),
        (
            {ApiKey.SHARE_FETCH: (1, 1)},
            m.ShareFetchRequest(group_id="g", member_id="m", session_epoch=0, acquire_mode=1),
            "has ShareFetch in version 1, this needs 2",
        ),
        (
            {ApiKey.SHARE_ACKNOWLEDGE: (1, 1)},
            m.ShareAcknowledgeRequest(group_id="g", member_id="m", session_epoch=1, is_renew_ack=True),
            "has ShareAcknowledge in version 1, this needs 2",
        ),
    ],
)
async def test_what_a_broker_does_not_have_is_named_with_what_to_do(offered, request_, words):
    async with fake_broker(offered) as broker, connected(broker) as connection:
        with pytest.raises(Unsupported, match=words) as caught:
            await connection.send(request_)

        assert f"127.0.0.1:{broker.port}" in str(caught.value)
        assert not connection.closed


async def test_a_request_that_cannot_be_written_costs_nobody_else_the_connection():
    async with fake_broker() as broker, connected(broker) as connection:
        broker.answer = lambda start, frame, writer: listed(start, "g")

        with pytest.raises(ClientError, match="DeleteGroups cannot be written"):
            await connection.send(m.DeleteGroupsRequest(group_ids=(object(),)))

        assert (await connection.send(LIST)).groups


async def test_a_message_of_the_same_process_is_refused_on_a_socket():
    class Inner(m.Request[None]):
        pass

    async with fake_broker() as broker, connected(broker) as connection:
        with pytest.raises(ClientError, match="Inner is for servers in the same process"):
            await connection.send(Inner())


async def test_correlation_ids_begin_anew_before_they_become_negative():
    async with fake_broker() as broker, connected(broker) as connection:
        broker.answer = lambda start, frame, writer: listed(start, "g")
        connection._pipeline._next_id = 0x7FFFFFFE

        for _ in range(3):
            await connection.send(LIST)

        assert [start.correlation_id for start in broker.starts[1:]] == [0x7FFFFFFF, 0, 1]


@pytest.mark.parametrize("worker", [17, None])
async def test_a_broker_hears_of_the_worker_in_whose_process_a_client_is(worker):
    async with fake_broker() as broker:
        connection = await open_tcp(
            broker.host, broker.port, client_id="c", clock=LoopClock(), settings=SETTINGS, worker=worker
        )
        await connection.close()

        told = asked(broker.frames[0]).client_software_version
        assert told == version(flowshare.__version__, worker)


async def test_a_link_opens_another_connection_when_one_is_lost():
    async with fake_broker() as broker:
        count = itertools.count()
        broker.answer = lambda start, frame, writer: listed(start, "g") if next(count) else b"garbage!"

        async def connect():
            return await open_tcp(broker.host, broker.port, client_id="c", clock=LoopClock(), settings=SETTINGS)

        link = Link(connect, clock=LoopClock(), settings=SETTINGS, name="test")
        with pytest.raises(ConnectionLost):
            await link.send(LIST)

        assert (await link.send(LIST)).groups
        assert len(broker.writers) == 2
        await link.close()


async def test_a_broker_that_stops_reading_holds_requests_back_in_bounded_memory():
    big = m.DeleteGroupsRequest(group_ids=("g" * 30_000,) * 10)

    async def deaf(reader, writer):
        frame = await reader.readexactly(struct.unpack(">i", await reader.readexactly(4))[0])
        writer.write(versions_answer(request_start(frame).correlation_id, 4, EVERYTHING))
        await over.wait()
        writer.close()

    over = asyncio.Event()
    server = await asyncio.start_server(deaf, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    connection = await open_tcp(host, port, client_id="c", clock=LoopClock(), settings=SETTINGS)
    sends = [asyncio.ensure_future(connection.send(big)) for _ in range(90)]
    await until(lambda: connection._pipeline._paused)

    transport = connection._pipeline._transport
    assert transport.get_write_buffer_size() < 2 << 20
    assert connection._pipeline._waiting

    await connection.close()
    over.set()
    assert all(isinstance(error, ConnectionError) for error in await asyncio.gather(*sends, return_exceptions=True))
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize(("host", "port"), [("a..b", 9092), ("x" * 70, 9092), ("127.0.0.1", 70_000), ("a\0b", 9092)])
async def test_a_name_or_port_that_is_none_cannot_be_reached(host, port):
    with pytest.raises(NotConnected, match="cannot be reached"):
        await open_tcp(host, port, client_id="c", clock=LoopClock(), settings=SETTINGS)


async def test_a_closer_that_is_cancelled_leaves_the_others_alone():
    async with fake_broker() as broker, connected(broker) as connection:
        closers = [asyncio.ensure_future(connection.close()) for _ in range(2)]
        await asyncio.sleep(0)
        closers[0].cancel()
        await asyncio.wait(closers)

        assert closers[1].exception() is None
        await connection.close()
