"""Tests of workers' reports: a worker that is silent, slow or sends something else delays nobody."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket

import pytest

from flowshare.cli import worker_pages as workers_module
from flowshare.cli.worker_pages import WORKERS_MAX, Workers
from flowshare.console.agents import AgentWatch, counted, figures
from flowshare.console.store import AgentFigures
from flowshare.testing.clock import ManualClock, settle
from tests.console.world import pages
from tests.waiting import until

pytestmark = pytest.mark.asyncio
HANDLER = {
    "agent": "bill",
    "topic": "orders",
    "partition": 0,
    "offset": 7,
    "attempt": 1,
    "age_s": 1.5,
    "lock_left_s": 2,
}
METRICS = b"""# TYPE flowshare_handler_seconds histogram
flowshare_handler_seconds_bucket{agent="bill",le="0.1"} 3
flowshare_handler_seconds_bucket{agent="bill",le="+Inf"} 5
flowshare_handler_seconds_count{agent="bill"} 5
flowshare_handler_seconds_sum{agent="bill"} 2.5
flowshare_handler_seconds_created{agent="bill"} 1.7e9
# TYPE flowshare_handler_errors_total counter
flowshare_handler_errors_total{agent="bill"} 2
# TYPE flowshare_handler_exceptions_total counter
flowshare_handler_exceptions_total{agent="bill",exception="ValueError"} 2
# TYPE flowshare_record_acknowledgements_total counter
flowshare_record_acknowledgements_total{agent="bill",type="accept"} 3
"""


def body(value):
    return 200, json.dumps(value).encode()


@contextlib.asynccontextmanager
async def asked(*addresses, token=None):
    made = Workers("memory://", addresses, token)
    try:
        yield made
    finally:
        made.close()


async def test_each_worker_is_asked_by_its_address_and_told_by_its_name():
    async with (
        pages(inflight=body([HANDLER])) as one,
        pages(inflight=body([])) as two,
        asked(one.address, two.address) as workers,
    ):
        told = await workers.in_flight()

    assert told.rows == {one.address: [HANDLER], two.address: []}
    assert told.silent == {}


async def test_who_asks_within_a_second_gets_the_same_answer():
    async with pages(scale=body({"workers": 2, "members": 1, "known": True})) as one, asked(one.address) as workers:
        first, second = await asyncio.gather(workers.scale(), workers.scale())

    assert first is second
    assert one.asked == ["/workers", "/scale"]


async def test_the_operators_token_is_shown_to_the_workers_and_in_no_word_of_theirs():
    secret = b"0123456789abcdef-secret"
    async with pages(inflight=(403, b"not you")) as one, asked(one.address, token=secret) as workers:
        told = await workers.in_flight()

    assert b"Authorization: Bearer " + secret in one.heads[-1]
    assert told.silent == {one.address: "it answered 403: not you"}


@pytest.mark.parametrize(
    "garbage",
    [
        b"", b"\xff\xfe", b"null", b"7", b'"text"', b'{"a": 1}', b"[1, 2]", b"[null]", b"[" * 100_000, b"[{}]",
        b'[{"age_s": "old", "lock_left_s": 1}]', b'[{"age_s": 1, "lock_left_s": 1, "topic": [], "agent": "a"}]',
        b'[{"age_s": 1, "lock_left_s": 1, "topic": "t", "agent": "a", "partition": 0, "offset": "x"}]',
        b'[{"age_s": NaN, "lock_left_s": 1}]', b'[{"group": 7, "topic": []}]',
        b'[{"group": "g", "topic": "t", "needed_workers": "many"}]', b'{"workers": "x"}', b'{"reasons": 7}',
    ],
    ids=range(18),
)  # fmt: skip
async def test_what_no_worker_says_is_told_as_silence(garbage):
    answer = 200, garbage
    async with pages(inflight=answer, lag=answer, scale=answer, ready=answer) as one, asked(one.address) as workers:
        silent = [(await ask()).silent for ask in (workers.in_flight, workers.topics, workers.scale, workers.ready)]

    assert sum(one.address in told for told in silent) >= 3  # each of them may fit one page


@pytest.mark.parametrize(
    "garbage",
    [b"\xff", b"{}", b"a b c d", b"x{", b'x{a="b"', b"# TYPE", b"# TYPE x y", b"# HELP", b'x{a="b"} 1 2 3 4', b"x 1e"],
)
async def test_metrics_that_are_none_are_told_as_silence_or_nothing(garbage):
    async with pages(metrics=(200, garbage)) as one, asked(one.address) as workers:
        told = await workers.metrics()

    assert told.silent or counted(list(told.rows.values())) == {}


async def test_one_that_is_not_there_is_told_beside_the_others():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        gone = f"127.0.0.1:{taken.getsockname()[1]}"
    async with pages(inflight=body([HANDLER])) as one, asked(gone, one.address) as workers:
        told = await workers.in_flight()

    assert list(told.rows) == [one.address]
    assert "refused" in told.silent[gone]


async def test_one_that_answers_in_pieces_holds_up_nobody_and_is_asked_again_when_it_has_ended(monkeypatch):
    monkeypatch.setattr(workers_module, "LIMIT_S", 0.2)
    monkeypatch.setattr(workers_module, "KEPT_S", 0.0)
    end = asyncio.Event()

    async def trickle(writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[")
        await end.wait()
        writer.write(b"]")
        await writer.drain()

    async with pages() as slow, pages(inflight=body([])) as good, asked(slow.address, good.address) as workers:
        slow.trickle = trickle
        first = await workers.in_flight()
        second = await workers.in_flight()
        end.set()
        await until(lambda: not workers._late, "the slow worker's answer is there")
        third = await workers.in_flight()

    assert first.silent == {slow.address: "it has not answered the last question yet"}
    assert second.silent == {slow.address: "it has not answered the last question yet"}
    assert [list(told.rows) for told in (first, second)] == [[good.address], [good.address]]
    assert third.silent == {}
    assert slow.asked == ["/workers", "/workers", "/inflight"]


async def test_one_that_let_a_question_lie_is_waited_for_a_moment_only_until_it_answers_in_time(monkeypatch):
    monkeypatch.setattr(workers_module, "KEPT_S", 0.0)
    monkeypatch.setattr(workers_module, "ASK_S", 0.1)
    monkeypatch.setattr(workers_module, "AGAIN_S", 0.0)
    ends = asyncio.Event()

    async def never(_writer):
        await ends.wait()

    async with pages() as mute, pages(scale=body([])) as good, asked(mute.address, good.address) as workers:
        mute.trickle = never
        first = await workers.ready()
        second = await workers.ready()
        await until(lambda: not workers._late, "the second question was given up")
        assert workers._slow == {mute.address}
        mute.trickle, mute.answers = None, {"/ready": (200, b'{"ok": true, "reasons": []}')}
        ends.set()
        monkeypatch.setattr(workers_module, "ASK_S", 30.0)
        await workers.ready()
        await until(lambda: not workers._slow, "it has answered in time")
        third = await workers.ready()

    assert "has not come in time" in first.silent[mute.address] or "timed out" in first.silent[mute.address]
    assert second.silent[mute.address] == "it has not answered within 0 s"
    assert mute.address in third.rows


async def test_those_who_said_nothing_last_time_are_asked_last(monkeypatch):
    monkeypatch.setattr(workers_module, "KEPT_S", 0.0)
    order = []
    async with asked("bad:1", "good:1") as workers:
        monkeypatch.setattr(workers, "_asked", lambda one, *_: order.append(one.address) or _none())
        monkeypatch.setattr(workers, "_covered", _none)
        await workers.in_flight()
        workers._silent = frozenset({"bad:1"})
        await workers.in_flight()

    assert order == ["bad:1", "good:1", "good:1", "bad:1"]


async def _none():
    return []


async def test_of_very_many_workers_the_first_ones_are_asked():
    async with asked(*(f"127.0.0.1:{port}" for port in range(1_000))) as workers:
        assert len(await workers.running()) == WORKERS_MAX


async def test_a_worker_is_drained_by_the_address_of_its_pages():
    async with pages(drain=body({"drained": True})) as one, asked(one.address) as workers:
        assert await workers.order(one.address, "/drain", 1.0, "drained")
        with pytest.raises(LookupError, match=r"nobody with pages at .* runs here any more"):
            await workers.order("127.0.0.1:1", "/drain", 1.0, "drained")
        one.answers["/drain"] = 403, b"this is for\nthe operator"
        with pytest.raises(OSError, match="answered 403: this is for the operator"):
            await workers.order(one.address, "/drain", 1.0, "drained")


async def test_counters_of_agents_are_summed_over_workers():
    async with (
        pages(metrics=(200, METRICS)) as one,
        pages(metrics=(200, METRICS)) as two,
        asked(one.address, two.address) as workers,
    ):
        found = counted(list((await workers.metrics()).rows.values()))["bill"]

    assert found.handled == 10
    assert (found.buckets[0.1], found.seconds) == (6, 5.0)
    assert found.exceptions == {"ValueError": 4}
    assert found.counts == {"accept": 6, "handler errors": 4}


@pytest.mark.parametrize("number", ["NaN", "+Inf", "-Inf"])
@pytest.mark.parametrize("edge", ["x", "NaN", ""])
async def test_samples_that_cannot_be_counted_are_left_out(number, edge):
    text = (
        METRICS
        + f"""flowshare_handler_errors_total{{agent="odd"}} {number}
# TYPE flowshare_handler_seconds histogram
flowshare_handler_seconds_bucket{{agent="odd",le="{edge}"}} 3
flowshare_handler_seconds_sum{{agent="odd"}} {number}
flowshare_handler_seconds_bucket{{le="1"}} 3
""".encode()
    )
    async with pages(metrics=(200, text)) as one, asked(one.address) as workers:
        told = await workers.metrics()

    found = counted(list(told.rows.values()))
    assert "odd" not in found or (found["odd"].handled, found["odd"].seconds) == (0, 0)


def look(handled=0, errors=0, late=0, seconds=0.0):
    from flowshare.console.agents import AgentCounts

    made = AgentCounts(seconds=seconds)
    made.buckets[float("inf")] = handled
    made.counts["handler errors"], made.counts["handler timeouts"] = errors, late
    return made


async def test_what_agents_did_between_two_looks_is_said_a_second():
    assert figures(look(10, 1, 0, 5.0), look(30, 2, 4, 9.0), 5.0) == AgentFigures(4.0, 0.2, 0.8, 0.2)
    assert figures(look(10), look(10), 5.0) == AgentFigures(0.0, 0.0, 0.0, None)


@pytest.mark.parametrize(
    ("before", "after", "seconds"),
    [(look(10), look(5), 5.0), (look(1, 5), look(9, 1), 5.0), (look(1), look(2), 0.0), (look(1), look(2), -1.0)],
)
async def test_counters_that_fell_say_nothing(before, after, seconds):
    assert figures(before, after, seconds) == AgentFigures()


class Written:
    def __init__(self):
        self.looks = []

    def keep(self, kind, at_s, figures):
        self.looks.append(figures)


async def test_agents_are_looked_at_again_and_again_and_stay_as_they_were_while_all_are_silent():
    clock, written = ManualClock(), Written()
    async with pages(metrics=(200, METRICS)) as one, asked(one.address) as workers:
        watch = AgentWatch(workers, written, clock)
        await watch.look()
        workers._kept.clear()
        one.answers["/metrics"] = 200, METRICS.replace(b'"+Inf"} 5', b'"+Inf"} 15')
        await clock.advance(5.0)
        await watch.look()
        workers._kept.clear()
        one.answers["/metrics"] = 500, b"no"
        await watch.look()

    assert written.looks == [{"bill": AgentFigures(2.0, 0.0, 0.0, 0.0)}]
    assert (list(watch.agents), watch.answered) == (["bill"], 1)
    assert list(watch.silent) == [one.address]


async def test_agents_are_looked_at_again_after_a_look_that_failed(caplog):
    clock, asked_at = ManualClock(), []

    class Odd:
        known = True

        async def metrics(self):
            asked_at.append(clock.monotonic())
            raise (OSError("gone"), KeyError("odd"))[len(asked_at) % 2]

    watch = AgentWatch(Odd(), Written(), clock)
    watch.start()
    for _ in range(4):
        await settle()
        await clock.advance(5.0)
    await watch.close()

    assert asked_at[:4] == [0.0, 5.0, 10.0, 15.0]
    assert "KeyError" in caplog.text
