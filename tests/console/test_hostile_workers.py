"""Who listens where a worker is looked for may say anything, at any pace: it breaks no page and fills no memory."""

from __future__ import annotations

import asyncio
import json
import socket
import threading

import pytest

from flowshare.agents.pages import own_user
from flowshare.cli import worker_answers as answers
from flowshare.cli import worker_pages as workers_module
from flowshare.cli.worker_pages import ANSWER_MAX, Worker, Workers
from flowshare.console.agents import AGENTS_MAX, counted
from tests.console.test_workers import HANDLER, METRICS, asked, body
from tests.console.world import browser, console, pages, words

pytestmark = pytest.mark.asyncio
HUGE = b"1" + b"0" * 4_000
PAGES = ("groups", "in-flight", "in-flight?stacks=1", "stuck", "handlers", "fleet")
PIPELINE = {
    **dict.fromkeys(("name", "group", "state", "last_error"), "x" * 9_999),
    **dict.fromkeys(("batches", "records", "rate", "batch_s", "backlog", "failures"), 9),
}
LONG = {**HANDLER, "age_s": 99}


def counters(*lines: str) -> tuple[int, bytes]:
    return 200, "\n".join(["# TYPE flowshare_handler_seconds histogram", *lines, ""]).encode()


SAID = [
    {"inflight": (200, b'[{"age_s": %s, "lock_left_s": 1}]' % HUGE)},
    {"inflight": (200, b'[{"age_s": 99, "lock_left_s": -%s, "agent": "a", "topic": "orders"}]' % HUGE)},
    {"inflight": body([{"age_s": 99, "lock_left_s": 1, "agent": "a", "topic": "orders"}])},
    {"inflight": body([{**LONG, "offset": "x"}])},
    {"inflight": body([{**LONG, "offset": 1.5, "partition": [0]}])},
    {"inflight": body([{**LONG, "blocked": "many", "agent": ["a"], "attempt": {}}])},
    {"inflight": body([{**LONG, "worker": {"a": 1}, "stack": 7}])},
    {"inflight": body([{**LONG, "offset": 2**63}])},
    {"inflight": body([{"age_s": 99, "lock_left_s": 1, "topic": "orders", "partition": 0, "offset": 1}])},
    {"lag": body([{"group": "g", "needed_workers": 1}])},
    {"lag": (200, b'[{"group": "g", "topic": "t", "needed_workers": %s}]' % HUGE)},
    {"scale": (200, b'{"workers": %s, "members": 1e308, "known": true}' % HUGE)},
    {"ready": body({"ok": False, "reasons": ["x" * 1_000] * 10_000})},
    {"ready": body({"ok": {}, "reasons": [{"a": []}]})},
    {"workers": body([{"address": "\ud800"}, {"address": None}, {}])},
    {"pipelines": body([PIPELINE] * 999)},
    {"metrics": counters(*['flowshare_handler_seconds_bucket{agent="b",le="0.1"} 1e308'] * 2)},
    {
        "metrics": counters(
            'flowshare_handler_seconds_bucket{agent="b",le="-1e308"} 5',
            'flowshare_handler_seconds_sum{agent="b"} -1e308',
        )
    },
    {"metrics": counters(*(f'flowshare_handler_seconds_sum{{agent="a{n}"}} 1' for n in range(3_000)))},
    {"metrics": counters(*(f'flowshare_handler_seconds_bucket{{agent="a",le="{n}"}} {n}' for n in range(3_000)))},
]


async def test_whatever_a_worker_says_every_page_is_shown_and_is_no_longer_for_it(tmp_path):
    async with (
        pages() as one,
        console(tmp_path / "c", addresses=(one.address,)) as made,
        browser(made) as who,
    ):
        await made.topic()
        await made.held()
        await made.look()
        for number, said in enumerate(SAID):
            one.answers = {f"/{name}": answer for name, answer in said.items()}
            made.workers._kept.clear()
            await made.agents.look()
            for path in PAGES:
                assert len(await who.page(f"/{path}")) < 500_000, (number, path)


async def test_of_very_many_handlers_those_are_kept_that_run_for_longest():
    found = answers.handlers(json.dumps([{**HANDLER, "age_s": age} for age in range(3_000)]).encode())

    assert len(found) == answers.ROWS_MAX
    assert min(row["age_s"] for row in found) == 2_000


async def test_texts_of_workers_are_cut_and_unknown_ones_are_left_out():
    (row,) = answers.handlers(json.dumps([{**HANDLER, "agent": "a" * 9_999, "more": "x" * 9_999}]).encode())

    assert len(row["agent"]) == answers.TEXT_MAX
    assert "more" not in row


async def test_agents_that_are_counted_are_bounded_and_so_are_their_names_and_exceptions():
    lines = [f'flowshare_handler_exceptions_total{{agent="a",exception="{"E" * 999}{n}"}} 1' for n in range(200)]
    lines += [f'flowshare_handler_errors_total{{agent="{n}"}} 1' for n in range(2 * AGENTS_MAX)]
    text = "\n".join(["# TYPE flowshare_handler_exceptions_total counter", *lines[:200],
                      "# TYPE flowshare_handler_errors_total counter", *lines[200:], ""])  # fmt: skip
    found = counted([answers.families(text.encode())])

    assert len(found) == AGENTS_MAX
    assert all(len(name) < 300 for one in found.values() for name in one.exceptions)


async def test_of_metrics_only_those_of_agents_are_read():
    more = b"# TYPE python_info gauge\n" + b'python_info{a="b"} 1\n' * 30_000

    assert counted([answers.families(more + METRICS)]) == counted([answers.families(METRICS)])


async def test_an_answer_that_is_too_long_is_told_as_silence(monkeypatch):
    monkeypatch.setattr(workers_module, "ANSWERS_MAX", 200)
    async with (
        pages(inflight=body([{**HANDLER, "stack": "x" * 200}])) as one,
        pages(inflight=body([])) as two,
        asked(one.address, two.address) as workers,
    ):
        told = await workers.in_flight()

    assert told.silent == {one.address: "the page is too long"}
    assert ANSWER_MAX < own_user.ANSWER_MAX


async def test_the_answers_of_very_many_workers_together_have_a_bound():
    async with asked(*["127.0.0.1:1"] * 256) as workers:
        await workers.in_flight()

        assert 256 * workers._bytes_max <= workers_module.ANSWERS_MAX


async def test_who_answers_a_byte_at_a_time_is_read_for_as_long_as_any_other():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        done = threading.Event()

        def trickle():
            line, _ = listening.accept()
            with line:
                line.recv(4_096)
                line.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
                while not done.wait(0.02):
                    try:
                        line.sendall(b"x")
                    except OSError:
                        return

        sending = threading.Thread(target=trickle)
        sending.start()
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        try:
            with pytest.raises(TimeoutError):  # a million bytes take hours
                await asyncio.to_thread(own_user.ask, address, "/inflight", timeout_s=0.3)
        finally:
            done.set()
            await asyncio.to_thread(sending.join)


async def test_the_token_goes_to_named_workers_and_to_nobody_at_the_port_of_one_of_the_path(monkeypatch):
    secret = b"0123456789abcdef-secret"
    async with pages(inflight=body([]), drain=body({"drained": True})) as one:
        made = Workers("memory://", (), secret)
        found = [Worker(name="7", address=one.address, host="elsewhere", pid=7, since_ms=1)]

        async def running():
            return found

        monkeypatch.setattr(made, "running", running)
        monkeypatch.setattr(workers_module.sys, "platform", "linux")
        try:
            await made.in_flight()
            await made.order(one.address, "/drain", 5, "drained")
            assert len(one.heads) == 2
            assert not [head for head in one.heads if b"Authorization" in head or secret in head]
            found[:] = [Worker(name=one.address, address=one.address)]
            await made.order(one.address, "/drain", 5, "drained")
            assert secret in one.heads[-1]
        finally:
            made.close()


@pytest.mark.parametrize("said", [b"[]", b"7", b"null", b'{"workers": "many"}', b"", b"x" * 100, b"{}"])
async def test_an_order_whose_answer_is_none_is_told_as_failed(tmp_path, said):
    async with (
        pages(resize=(200, said), drain=(200, said)) as one,
        console(tmp_path / "c", addresses=(one.address,)) as made,
        browser(made) as who,
    ):
        for action, form in (("resize", {"count": "3"}), ("drain", {})):
            token = await who.token()
            await who.post(f"/do/{action}", {"worker": one.address, "page_token": token, **form})
        deeds = await made.store.deeds()

        assert [deed.outcome.partition(":")[0] for deed in deeds] == ["failed"] * 2
        assert "the log says why" not in words(await who.page("/audit"))
