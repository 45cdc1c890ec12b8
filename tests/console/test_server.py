"""The console as it is served: pages empty, with data, about what is not there, with the log away; and each deed."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3

import pytest

from flowshare.agents.codecs.avro import Avro
from flowshare.agents.feed.dead_letter import PREFIX
from flowshare.client.cooperative.consumer import CooperativeConsumer
from flowshare.client.errors import Unsupported
from flowshare.client.producer.producer import Message
from flowshare.console import server as server_module
from flowshare.console.actions import ACTIONS
from flowshare.console.logins import Role
from flowshare.console.pages import PAGES
from flowshare.console.schemas import Schemas
from flowshare.console.server import ConsoleError, ConsoleServer, ConsoleSettings
from flowshare.console.source import NotAnswering
from flowshare.share.types import AckRange
from tests.agents.registry_codecs.fake import FakeClient, registry_of
from tests.console.test_workers import HANDLER, METRICS, body
from tests.console.world import ACCEPT, RELEASE, Browser, MemorySource, browser, console, logins_at, pages, words
from tests.waiting import until

pytestmark = pytest.mark.asyncio
REPLAY = {"topic": "g.dlq", "at": "", "reason": "", "exception": "", "limit": "", "rate": ""}
PLACE = {"group": "g", "topic": "orders", "partition": "0"}
ONE_SENTENCE = re.compile(r'<p class="notice bad" role="alert"[^>]*>([^<]+)</p>')


def letter(value: bytes = b'{"n": 1}', **facts: str) -> Message:
    headers = tuple((PREFIX + name, text.encode()) for name, text in facts.items())
    return Message(value, key=b"k1", partition=0, headers=headers)


LETTER = {
    "reason": "ValueError: no 17", "exception": "ValueError", "trace": "Traceback …", "topic": "orders",
    "partition": "0", "offset": "1", "attempts": "3", "agent": "bill", "group": "g",
}  # fmt: skip


async def problem(who: Browser, path: str, status: int) -> str:
    """The one sentence of a page that cannot be shown."""
    text = await who.page(path, status)
    (found,) = ONE_SENTENCE.findall(text)
    assert "Traceback" not in text
    assert "--debug" not in text
    return found


# --- pages -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("groups", "There are no groups yet."),
        ("in-flight", "Nobody holds a record."),
        ("stuck", "Nothing is stuck."),
        ("delayed", "No record waits for the end of a delay."),
        ("letters", "There are no topics of dead letters"),
        ("browse", "Choose a topic."),
        ("keys", "No key is parked."),
        ("handlers", "Workers of this log are not known to it"),
        ("fleet", "Workers of this log are not known to it"),
        ("audit", "Nobody has done anything here yet."),
    ],
)
async def test_an_empty_page_says_what_is_not_there(tmp_path, page, said):
    async with console(tmp_path / "c") as made, browser(made) as who:
        await made.look()
        assert said in await who.said(f"/{page}")


async def test_all_pages_are_shown_before_the_first_look(tmp_path):
    async with console(tmp_path / "c") as made, browser(made) as who:
        for page in PAGES.values():
            if page.listed:
                assert "not seen yet" in await who.page(f"/{page.path}")
        assert await problem(who, "/group?name=g", 503) == "the groups have not been looked at yet"


async def test_each_page_shows_what_the_log_has(tmp_path):
    async with console(tmp_path / "c") as made, browser(made) as who:
        await made.topic()
        await made.topic("g.dlq", values=0)
        await made.send("g.dlq", letter(**LETTER))
        member, _ = await made.held()
        await made.look()

        assert " 1 group " in await who.said("/groups")
        group = await who.said("/group?name=g")
        assert member.member_id in group
        assert "share.auto.offset.reset earliest this group" in group
        partition = await who.said("/partition?group=g&topic=orders&partition=0")
        assert "the start offset waits for 1 , which is acquired (delivery count 1)" in partition
        assert "acquired 3 acknowledged 1 delayed 1" in partition
        assert "orders-0 1 – 2 1 " + member.member_id in await who.said("/in-flight?group=g")
        assert "4 records that are acquired or delayed were delivered once so far" in await who.said("/stuck")
        assert "1 record waits for the end of a delay" in await who.said("/delayed")
        assert "g.dlq 1" in await who.said("/letters")
        assert "ValueError ValueError: no # 1" in await who.said("/letters?topic=g.dlq")
        one = await who.said("/letters?topic=g.dlq&at=0@0")
        assert "orders-0@1" in one
        assert "The record now" in one
        assert '"n": 1' in one
        assert "delayed, delivery count 1" in await who.said("/browse?topic=orders&group=g")


async def test_nothing_is_said_of_groups_that_were_not_looked_at_yet(tmp_path):
    async with console(tmp_path / "c") as made, browser(made) as who:
        for path in ("in-flight", "stuck", "delayed", "keys"):
            said = await who.said(f"/{path}")
            for claim in ("Nobody holds", "stuck.", "No record", "No group has an order", "No key is parked"):
                assert claim not in said, (path, claim)


async def test_a_member_is_shown_with_what_it_holds_and_where_its_handlers_are_at_work(tmp_path):
    at_work = [{**HANDLER, "offset": 1, "age_s": 7.0}, {**HANDLER, "offset": 2, "age_s": 9.0}]
    others = [{**HANDLER, "agent": "mail", "offset": 1, "age_s": 70.0}, {**HANDLER, "offset": 4, "age_s": 80.0}]
    async with (
        pages(inflight=body(at_work + others)) as worker,
        console(tmp_path / "c", addresses=(worker.address,)) as made,
        browser(made) as who,
    ):
        await made.topic()
        member, _ = await made.held("shop.bill")
        await made.group("shop.mail")
        await made.look()

        assert f"{member.member_id} test in-process {worker.address} 3 9 s" in await who.said("/group?name=shop.bill")
        bill = await who.said("/in-flight?group=shop.bill")
        assert f"shop.bill {worker.address} bill orders-0@1 1 7 s" in bill
        assert " mail " not in bill
        assert f"shop.mail {worker.address} mail orders-0@1" in await who.said("/in-flight?group=shop.mail")
        assert bill.count(" bill orders-0@") == 3


async def test_a_share_partition_says_how_much_of_its_locks_and_its_window_is_used(tmp_path):
    async with console(tmp_path / "c") as made, browser(made) as who:
        await made.topic()
        await made.held(**{"share.partition.max.record.locks": "100"})
        await made.look()
        said = await who.said("/partition?group=g&topic=orders&partition=0")
        assert "locks used 3 of 100" in said
        assert "window used 5 of " in said, said


async def test_a_key_that_others_wait_behind_is_named_with_its_head(tmp_path):
    async with console(tmp_path / "c") as made, browser(made) as who:
        await made.topic()
        member = await made.group(**{"share.key.order": "key"})
        await member.fetch(records_max=2)
        await made.look()
        said = await who.said("/keys")
        assert re.search(r"g k0 orders-0@0 20\d\d-\S+ \S+ acquired 1 " + member.member_id, said), said
    async with console(tmp_path / "d", masks=("name",)) as made, browser(made) as who:
        await made.ask(lambda admin: admin.create_topic("orders", partitions=1))
        await made.send("orders", *[Message(b"{}", b'{"name": "Ann", "id": 7}', partition=0) for _ in range(3)])
        member = await made.group(**{"share.key.order": "key"})
        await member.fetch(records_max=1)
        await made.look()
        said = await who.said("/keys")
        assert '"id": 7' in said
        assert "Ann" not in said


async def test_records_are_found_by_offset_time_and_key(tmp_path):
    async with console(tmp_path / "c") as made, browser(made) as who:
        await made.topic(values=120)

        async def offsets(query):
            return re.findall(r'<tr id="o-(\d+)">', await who.page(f"/browse?topic=orders&{query}"))

        assert await offsets("") == [str(number) for number in range(70, 120)]
        assert await offsets("from=3") == [str(number) for number in range(3, 53)]
        assert await offsets("time=2001-01-01") == [str(number) for number in range(50)]
        assert await offsets("time=2999-01-01T00:00:00") == []
        assert await offsets("key=k1&from=0") == [str(number) for number in range(1, 100, 2)]
        assert await offsets("from=999") == []
        page = await who.page("/browse?topic=orders&from=3")
        assert 'href="/browse?topic=orders&amp;partition=0&amp;form=json&amp;from=53"' in page


async def test_values_are_shown_by_their_schema_where_a_registry_is_named(tmp_path):
    client = FakeClient()
    schemas = Schemas(registry_of(client))
    codec = Avro(registry=registry_of(client), schema={"type": "record", "name": "R", "fields": [
        {"name": "city", "type": "string"},
    ]}).bind("orders", "value")  # fmt: skip
    async with console(tmp_path / "c", schemas=schemas) as made, browser(made) as who:
        await made.topic(values=[codec.encode({"city": "Oslo"}), b'{"n": 1}'])
        await made.topic("g.dlq", values=0)
        await made.send("g.dlq", letter(codec.encode({"city": "Rome"}), reason="no"))

        said = await who.said("/browse?topic=orders")
        assert '"city": "Oslo"' in said
        assert '"n": 1' in said
        assert "00 00 00 00 01" in await who.said("/browse?topic=orders&form=hex")
        assert '"city": "Rome"' in await who.said("/letters?topic=g.dlq&at=0@0")
        assert "00 00 00 00 01" in await who.said("/letters?topic=g.dlq&at=0@0&form=hex")
        client.down = 1
        schemas.registry._begin()
        assert "the registry does not answer" in await who.said("/browse?topic=orders")
    schemas.close()


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/group", 400, "which name"),
        ("/group?name=nope", 404, "there is no group &#39;nope&#39;"),
        ("/partition?group=g&topic=orders", 400, "partition has to be a whole number"),
        ("/partition?group=g&topic=orders&partition=-1", 400, "partition has to be a whole number"),
        (f"/partition?group=g&topic=orders&partition={2**31}", 400, "partition has to be a whole number"),
        ("/partition?group=g&topic=orders&partition=0&from=x", 400, "from has to be a whole number"),
        ("/partition?group=nope&topic=orders&partition=0", 404, "there is no group"),
        ("/partition?group=g&topic=nope&partition=0", 404, "there is no topic"),
        ("/partition?group=g&topic=orders&partition=9", 404, "has no partition 9"),
        ("/browse?topic=nope", 404, "UNKNOWN_TOPIC_OR_PARTITION"),
        ("/browse?topic=orders&partition=9", 404, "UNKNOWN_TOPIC_OR_PARTITION"),
        (f"/browse?topic=orders&partition={2**31}", 400, "partition has to be a whole number"),
        ("/browse?topic=orders&from=x", 400, "from has to be a whole number"),
        ("/browse?topic=orders&time=now", 400, "is no time such as"),
        ("/letters?topic=nope", 404, "UNKNOWN_TOPIC_OR_PARTITION"),
        ("/letters?topic=orders", 404, "are no dead letters"),
        ("/letters?topic=g", 422, "the dead letters of the group are in g.dlq"),
        ("/letters?topic=g.dlq&at=x", 400, "is no place of g.dlq"),
        ("/letters?topic=g.dlq&at=0@99", 404, "there is no letter at g.dlq-0@99"),
        (f"/letters?topic=g.dlq&at={2**31}@0", 404, "there is no letter"),
        (f"/letters?topic=g.dlq&at=0@{2**63}", 404, "there is no letter"),
        ("/audit?before=x", 400, "before has to be a whole number"),
        ("/audit?before=99999999999999999999", 400, "before has to be a whole number"),
    ],
)  # fmt: skip
async def test_what_cannot_be_shown_is_one_clear_sentence(tmp_path, path, status, said):
    async with console(tmp_path / "c") as made, browser(made) as who:
        await made.topic()
        await made.topic("g.dlq", values=0)
        await made.group()
        await made.look()

        assert said in await problem(who, path, status)


async def test_while_the_log_is_away_the_last_look_is_shown_with_its_age_and_the_rest_says_why(tmp_path, monkeypatch):
    async with console(tmp_path / "c") as made, browser(made) as who:
        await made.topic()
        await made.held()
        await made.look()

        async def away(*_, **__):
            raise NotAnswering("the log does not answer: refused")

        monkeypatch.setattr(made.source, "ask", away)
        made.collector.start()
        await until(lambda: made.collector.trouble, "the log is away")

        assert "the log does not answer: refused. What is shown of groups is what was seen last" in await who.said(
            "/groups"
        )
        assert "the log does not answer: refused" in await who.said("/group?name=g")
        for path in ("/audit", "/handlers", "/fleet"):
            await who.page(path)
        for path in (
            "/partition?group=g&topic=orders&partition=0",
            "/in-flight",
            "/stuck",
            "/delayed",
            "/letters",
            "/browse",
        ):
            text = await who.page(path, 503)
            assert text.count("the log does not answer: refused") >= 1, path
        status, text = await who.get("/do/release", params={**PLACE, "ranges": "1"})
        assert (status, "the log does not answer: refused" in text) == (503, True)


async def test_what_a_log_cannot_do_is_no_failure_of_the_log(tmp_path, monkeypatch):
    async with console(tmp_path / "c") as made, browser(made) as who:
        await made.topic()
        await made.held()
        await made.look()
        session = await made.source._opened()

        async def cannot(*_, **__):
            raise Unsupported("brokers take a record away when its lock lapses only")

        monkeypatch.setattr(session.admin, "intervene", cannot)
        status, text = await who.get("/do/release", params={**PLACE, "ranges": "1"})

        assert (status, "brokers take a record away" in text, "does not answer" in text) == (422, True, False)
        assert await made.source._opened() is session


async def test_a_log_that_never_answers_costs_its_pages_their_limit_and_the_others_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("flowshare.console.source.ASK_S", 0.05)
    async with console(tmp_path / "c") as made, browser(made) as who:
        await made.topic()
        await made.held()
        await made.look()
        session = await made.source._opened()

        async def never(*_, **__):
            await asyncio.Event().wait()

        monkeypatch.setattr(session.admin, "_ask", never)
        monkeypatch.setattr(made.source.ask.__func__, "__kwdefaults__", {"limit_s": 0.05})
        hung = [asyncio.ensure_future(who.get("/browse")) for _ in range(5)]
        assert " 1 group " in await who.said("/groups")
        await who.page("/audit")
        for status, text in await asyncio.gather(*hung):
            assert status == 503
            assert "has not answered within 0.05 s" in text


async def test_a_fault_of_the_console_is_told_as_one_and_the_next_page_is_shown(tmp_path, monkeypatch, caplog):
    async with console(tmp_path / "c") as made, browser(made) as who:
        monkeypatch.setattr(made.store, "deeds", None)
        status, text = await who.get("/audit")

        assert (status, text) == (500, "the page failed; the log says why")
        assert "TypeError" in caplog.text
        await who.page("/groups")


async def test_history_and_audit_that_cannot_be_read_are_told(tmp_path):
    async with console(tmp_path / "c") as made, browser(made) as who:
        await made.topic()
        await made.group()
        await made.look()
        await made.store._run(lambda: made.store._write("DROP TABLE deed", ()))

        await who.page("/audit")
        assert "Figures are not kept: no such table: deed" in await who.said("/group?name=g")


async def test_half_a_surrogate_in_a_value_is_shown(tmp_path):
    async with console(tmp_path / "c") as made, browser(made) as who:
        await made.topic(values=[b'{"a": "\\ud800"}', b'["\\udfff"]'])

        assert "\\ud800" in await who.page("/browse?topic=orders")


@pytest.mark.parametrize(
    "facts",
    [
        {"partition": "9" * 40}, {"offset": "9" * 5_000}, {"offset": "9" * 25}, {"partition": "²"}, {"topic": "a/b"},
        {"offset": "-1"}, {"partition": ""}, {"topic": ""}, {"partition": "٣"},
    ],
    ids=range(9),
)  # fmt: skip
async def test_a_letter_that_says_nonsense_of_its_origin_is_shown(tmp_path, facts):
    async with console(tmp_path / "c") as made, browser(made) as who:
        await made.topic()
        await made.topic("g.dlq", values=0)
        await made.send("g.dlq", letter(**{**LETTER, **facts}))

        assert "It is not at its place any more" in await who.said("/letters?topic=g.dlq&at=0@0")
        assert "1 letter " in await who.said("/letters?topic=g.dlq")


async def test_letters_are_grouped_by_exception_and_reason_and_found_by_either(tmp_path):
    async with console(tmp_path / "c") as made, browser(made) as who:
        await made.topic("g.dlq", values=0)
        await made.send(
            "g.dlq",
            *(letter(reason=f"no {number}", exception="ValueError") for number in range(5)),
            letter(reason="away", exception="OSError"),
            letter(reason="away"),
        )

        async def shown(query):
            return len(
                re.findall(r'href="/letters\?topic=g.dlq&amp;at=', await who.page(f"/letters?topic=g.dlq&{query}"))
            )

        kinds = re.findall(r'kind=([^"]+)">', await who.page("/letters?topic=g.dlq"))
        assert kinds == ["no+%23", "away", "away"]
        assert await shown("exception=ValueError&kind=no+%23") == 5
        assert await shown("exception=&kind=away") == 1
        assert await shown("exception=oserr") == 1
        assert await shown("reason=AWAY") == 2
        assert await shown("reason=none") == 0


async def test_letters_that_were_replayed_are_shown_as_that(tmp_path):
    async with console(tmp_path / "c") as made, browser(made) as who:
        await made.topic("g.dlq", values=0)
        await made.topic("orders", values=0)
        await made.send("g.dlq", *(letter(topic="orders", reason=f"no {number}") for number in range(2)))
        assert "replayed 1" in await who.do(
            "replay", topic="g.dlq", at="0@1", reason="", exception="", limit="", rate=""
        )

        assert "g.dlq 2 1" in await who.said("/letters")
        assert re.search("0@1 .* yes no 1 0@0 .* no no 0", await who.said("/letters?topic=g.dlq"))
        assert "replayed yes" in await who.said("/letters?topic=g.dlq&at=0@1")
        assert "replayed no" in await who.said("/letters?topic=g.dlq&at=0@0")


async def test_what_lies_beyond_the_window_is_not_shown_as_available(tmp_path):
    async with console(tmp_path / "c") as made, browser(made) as who:
        await made.topic(values=20)
        await made.held()
        page = await who.page("/partition?group=g&topic=orders&partition=0&from=500")

        assert page.count("<rect") == 0


async def test_only_what_holds_the_start_offset_up_is_said_to(tmp_path):
    async with console(tmp_path / "c") as made, browser(made) as who:
        await made.topic(values=20)
        await made.held()

        assert "the start offset waits for 1 ," in await who.said("/partition?group=g&topic=orders&partition=0")
        later = await who.said("/partition?group=g&topic=orders&partition=0&from=5")
        assert "the start offset waits" not in later
        assert "holds others up" not in later


async def test_runs_that_are_left_out_are_counted(tmp_path):
    async with console(tmp_path / "c") as made, browser(made) as who:
        await made.topic(values=450)
        member = await made.group()
        (fetched,) = await member.fetch(records_max=500)
        acks = [AckRange(at, at, RELEASE if at % 2 else ACCEPT, 60_000 if at % 4 == 1 else 0) for at in range(1, 449)]
        await member.acknowledge({fetched.tp: acks}, generation=fetched.generation)
        page = await made.ask(lambda admin: admin.browse("g", "orders", 0))
        told = [run for run in page.runs if run.state != "available"]

        text = await who.said("/partition?group=g&topic=orders&partition=0")
        assert f"and {len(told) - 100} more runs" in text


async def test_a_cooperative_group_is_shown_with_what_it_has_and_no_button_that_it_has_not(tmp_path):
    async with console(tmp_path / "c") as made, browser(made) as who:
        await made.topic()
        consumer = CooperativeConsumer(made.connect, group_id="coop", clock=made.clock)
        consumer.subscribe(["orders"])
        try:
            await until(lambda: consumer.poll(3), "it has records")
            await made.look()

            assert "coop cooperative" in await who.said("/groups")
            group = await who.page("/group?name=coop")
            assert "/do/pause" not in group
            assert "orders-0" in words(group)
            assert "orders-0 of coop" in words(await who.page("/partition?group=coop&topic=orders&partition=0"))
            assert "<th>state</th>" in await who.page("/browse?topic=orders&group=coop")
            for path in ("in-flight", "stuck", "delayed", "keys"):
                await who.page(f"/{path}?group=coop")
            for action, form in (("pause", {}), ("limit", {"setting": "share.max.in.flight", "value": "1"})):
                status, text = await who.get(f"/do/{action}", params={"group": "coop", **form})
                assert (status, "cooperative" in text) == (422, True)
        finally:
            await consumer.close()


# --- workers ---------------------------------------------------------------------------------------------------------


async def test_what_workers_say_is_shown_and_who_says_nothing_is_named(tmp_path):
    answers = {
        "inflight": body([{**HANDLER, "blocked": 2, "stack": "File x"}]),
        "lag": body([{"group": "g", "topic": "orders", "needed_workers": 1.5}]),
        "scale": body({"workers": 2, "members": 1, "known": True}),
        "ready": (503, json.dumps({"ok": False, "reasons": ["the loop is blocked"]}).encode()),
        "metrics": (200, METRICS),
    }
    async with (
        pages(**answers) as one,
        pages(inflight=(200, b"[{}]")) as odd,
        console(tmp_path / "c", addresses=(one.address, odd.address)) as made,
        browser(made) as who,
    ):
        await made.topic()
        await made.group()
        await made.look()
        await made.agents.look()

        assert "bill orders-0@7 1 1 s 2 s 2 File x" in await who.said("/in-flight?stacks=1")
        assert f"worker {odd.address} does not answer" in await who.said("/in-flight")
        assert " 1.5 " in await who.said("/groups")
        fleet = await who.said("/fleet")
        assert "needed: 2" in fleet
        assert "not ready the loop is blocked" in fleet
        handlers = await who.said("/handlers")
        assert "bill 5 handled" in handlers
        assert "ValueError 2" in handlers


async def test_a_worker_is_drained_with_a_word_in_the_audit(tmp_path):
    async with (
        pages(drain=body({"drained": True})) as one,
        console(tmp_path / "c", addresses=(one.address,)) as made,
        browser(made) as who,
    ):
        assert await who.do("drain", worker=one.address) == f"good: worker {one.address} is drained"
        assert "/drain" in one.asked
        (deed,) = await made.store.deeds()
        assert deed.command == f"flowshare drain --web {one.address}"


async def test_an_order_goes_to_those_workers_only_that_the_console_was_given(tmp_path):
    async with (
        pages(drain=body({"drained": True})) as other,
        console(tmp_path / "c", addresses=("127.0.0.1:1",)) as made,
        browser(made) as who,
    ):
        said = await who.do("drain", worker=other.address)

    assert said.startswith("bad: ")
    assert other.asked == []


async def test_what_is_shown_can_be_typed_and_tells_no_password(tmp_path):
    source = MemorySource()
    source.url = "kafka://olga:s3cret@127.0.0.1:9092"
    async with console(tmp_path / "c", source=source) as made, browser(made) as who:
        source.url = "memory://"
        await made.topic()
        await made.group()
        page = await who.page("/do/pause?group=g")

    assert "s3cret" not in page
    assert "flowshare groups pause --broker kafka://olga@127.0.0.1:9092 g" in words(page)
    assert "with the broker's password in FLOWSHARE_SASL_PASSWORD" in words(page)


# --- deeds -----------------------------------------------------------------------------------------------------------


async def test_each_deed_does_what_its_command_does_and_is_written_down(tmp_path):
    async with console(tmp_path / "c") as made, browser(made) as who:
        await made.topic()
        await made.topic("g.dlq", values=0)
        await made.send("g.dlq", letter(**LETTER), letter(**LETTER))
        member, _ = await made.held(**{"errors.deadletterqueue.topic.name": "g.dlq"})

        async def setting(name):
            return {one.name: one.value for one in await made.ask(lambda admin: admin.group_configs("g"))}[name]

        async def runs():
            page = await made.ask(lambda admin: admin.browse("g", "orders", 0))
            return [(one.first, one.last, one.state) for one in page.runs]

        assert await who.do("pause", group="g") == "good: group g is paused"
        assert await setting("share.paused") == "true"
        assert await who.do("resume", group="g") == "good: group g goes on"
        assert await setting("share.paused") == "false"
        await who.do("limit", group="g", setting="share.max.in.flight", value="7")
        assert await setting("share.max.in.flight") == "7"
        await who.do("priority", group="g", setting="share.delivery.priority", value="new")
        assert await setting("share.delivery.priority") == "new"
        await who.do("set", group="g", setting="share.max.in.flight", value="")
        assert await setting("share.max.in.flight") == "0"

        assert (await who.do("release", **PLACE, ranges="1")).startswith("good: release: 1 record")
        assert (1, 1, "available") in await runs()
        assert (await who.do("now", **PLACE, ranges="4")).startswith("good: deliver now: 1 record")
        assert (4, 4, "available") in await runs()
        assert (await who.do("reject", **PLACE, ranges="2")).startswith("good: reject: 1 record")
        assert (2, 2, "archived") in await runs()
        assert (await who.do("dead_letter", **PLACE, ranges="5")).startswith("good: make a dead letter: 1 record")
        said = await who.do("replay", topic="g.dlq", at="0@0", reason="", exception="", limit="", rate="")
        assert said == "good: replayed 1 to orders"
        assert (await made.ask(lambda admin: admin.offsets("orders", 0))).high_watermark == 7

        await member.close(timeout_s=1.0)
        said = await who.do("reset", group="g", to="offset", at="3", topic="")
        assert said == "good: 1 start offsets of g were moved"
        assert (await made.ask(lambda admin: admin.browse("g", "orders", 0))).start_offset == 3

        deeds = await made.store.deeds()
        assert [one.action for one in reversed(deeds)] == [
            "pause", "resume", "limit", "priority", "set", "release", "now", "reject", "dead_letter", "replay", "reset",
        ]  # fmt: skip
        assert {(one.who, one.role, one.peer) for one in deeds} == {("operator", "operator", "127.0.0.1")}
        assert deeds[0].command == "flowshare groups reset-offsets g --to-offset 3 --execute"
        assert deeds[0].outcome == "1 start offsets of g were moved"
        assert "flowshare groups reset-offsets g --to-offset 3 --execute" in await who.said("/audit")


async def test_all_delays_of_a_group_are_ended_at_a_rate(tmp_path):
    async with console(tmp_path / "c") as made, browser(made) as who:
        await made.topic()
        member = await made.group()
        (fetched,) = await member.fetch(records_max=100)
        acks = [AckRange(0, 3, RELEASE * 4, 60_000)]
        await member.acknowledge({fetched.tp: acks}, generation=fetched.generation)

        said = await who.do("end_delays", group="g", rate="1000")

        assert said.startswith("good: "), said
        page = await made.ask(lambda admin: admin.browse("g", "orders", 0))
        assert "delayed" not in {run.state for run in page.runs}
        (deed,) = await made.store.deeds()
        assert deed.command == "flowshare groups end-delays g --rate 1000"


@pytest.mark.parametrize(
    ("action", "form", "said"),
    [
        ("pause", {"group": "nope"}, "GROUP_ID_NOT_FOUND"),
        ("set", {"group": "g", "setting": "share.max.in.flight", "value": "x"}, "share.max.in.flight"),
        ("reset", {"group": "g", "to": "earliest", "at": "", "topic": ""}, "NON_EMPTY_GROUP"),
        ("release", {**PLACE, "partition": "9", "ranges": "1"}, "has no partition 9"),
        ("replay", {**REPLAY, "topic": "g"}, "in g.dlq"),
        ("replay", {**REPLAY, "at": "0@9"}, "no letter"),
        ("drain", {"worker": "127.0.0.1:1"}, "nobody with pages at"),
    ],
)  # fmt: skip
async def test_a_deed_that_fails_is_told_and_written_down_as_failed(tmp_path, action, form, said):
    async with console(tmp_path / "c", addresses=()) as made, browser(made) as who:
        await made.topic()
        await made.topic("g.dlq", values=0)
        await made.group()
        token = await who.token()

        status, text = await who.post(f"/do/{action}", {**form, "page_token": token})

        assert status == 303, text
        (deed,) = await made.store.deeds()
        assert deed.outcome.startswith("failed: ")
        assert said in deed.outcome
        assert said in (await who.said("/audit"))


async def test_a_deed_that_ends_in_a_fault_is_no_begun_one_for_ever(tmp_path, monkeypatch, caplog):
    async with console(tmp_path / "c") as made, browser(made) as who:
        monkeypatch.setattr(made.source, "ask", None)
        await who.post("/do/resume", {"group": "g", "page_token": await who.token()})

        (deed,) = await made.store.deeds()
        assert deed.outcome == "failed: the log says why"
        assert "TypeError" in caplog.text


async def test_nothing_is_done_that_cannot_be_written_down(tmp_path, monkeypatch):
    async with console(tmp_path / "c") as made, browser(made) as who:
        await made.topic()
        await made.group()

        async def full(_):
            raise sqlite3.OperationalError("database or disk is full")

        monkeypatch.setattr(made.store, "note", full)
        status, _ = await who.post("/do/pause", {"group": "g", "page_token": await who.token()})

        assert status == 303
        assert "nothing was done, as it cannot be written down" in await who.said("/groups")
        configs = await made.ask(lambda admin: admin.group_configs("g"))
        assert {one.name: one.value for one in configs}["share.paused"] == "false"


async def test_a_deed_goes_on_when_who_asked_has_gone(tmp_path, monkeypatch):
    async with console(tmp_path / "c") as made, browser(made) as who:
        go, done = asyncio.Event(), asyncio.Event()

        async def slow(_question, **_):
            await go.wait()
            done.set()

        token = await who.token()
        monkeypatch.setattr(made.source, "ask", slow)
        asking = asyncio.ensure_future(who.post("/do/resume", {"group": "g", "page_token": token}))
        await until(lambda: made.server._deeds, "it has begun")
        asking.cancel()
        go.set()
        await done.wait()
        await until(lambda: not made.server._deeds, "it has ended")

        (deed,) = await made.store.deeds()
        assert deed.outcome == "group g goes on"


async def test_long_deeds_leave_room_for_short_ones_and_too_many_are_refused(tmp_path, monkeypatch):
    async with console(tmp_path / "c") as made, browser(made) as who:
        go = asyncio.Event()
        monkeypatch.setattr(server_module, "ANSWER_S", 0.01)

        async def slow(_question, **_):
            await go.wait()
            return []

        token = await who.token()
        form = {"topic": "g.dlq", "at": "", "reason": "", "exception": "", "limit": "", "rate": "", "page_token": token}
        monkeypatch.setattr(made.source, "ask", slow)
        for _ in range(server_module.ACTIONS_AT_ONCE):
            assert (await who.post("/do/replay", form))[0] == 303
        status, text = await who.post("/do/replay", form)
        assert (status, "too much is being done already" in text) == (503, True)
        assert (await who.post("/do/pause", {"group": "g", "page_token": token}))[0] == 303
        go.set()
        await until(lambda: not made.server._deeds, "they have ended")


async def test_what_is_to_be_filled_in_is_asked_for_first(tmp_path):
    async with console(tmp_path / "c") as made, browser(made) as who:
        await made.topic()
        await made.group()
        text = await who.page("/do/limit?group=g&setting=share.max.in.flight")

        assert 'name="value"' in text
        assert 'name="page_token" value' in text  # the button that logs out; no deed can be sent from here
        assert 'class="sure"' not in text
        assert await who.page("/do/nope", 404) == "there is no such action"
        assert {name for name in ACTIONS if not name.isidentifier()} == set()


# --- beginning and end -----------------------------------------------------------------------------------------------


async def test_a_port_that_is_taken_is_told(tmp_path):
    async with console(tmp_path / "c") as made:
        taken = int(made.server.address.rpartition(":")[2])
        other = ConsoleServer(ConsoleSettings(port=taken), made.server._view)
        with pytest.raises(ConsoleError, match=f"cannot listen on 127.0.0.1:{taken}: .*choose another --port"):
            await other.start()
        await other.close()


@pytest.mark.parametrize("host", ["x..y", "192.0.2.1"])
async def test_an_address_that_this_machine_does_not_have_is_told(tmp_path, host):
    async with console(tmp_path / "c") as made:
        other = ConsoleServer(ConsoleSettings(bind=host, port=0, insecure=True), made.server._view)
        with pytest.raises(ConsoleError, match="name an address of this machine with --bind"):
            await other.start()


async def test_it_ends_twice(tmp_path):
    async with console(tmp_path / "c") as made:
        await made.server.close()
        await made.server.close()


async def test_logins_that_cannot_be_read_any_more_let_nobody_in_and_say_so(tmp_path):
    file = logins_at(tmp_path / "logins", ann=Role.OPERATOR)
    async with console(tmp_path / "c", ConsoleSettings(logins=file)) as made, browser(made, "ann") as who:
        await who.page("/groups")
        (tmp_path / "logins").write_text("nonsense")
        for path in ("/groups", "/do/pause?group=g", "/login"):
            text = await who.page(path, 503)
            assert "line 1 of" in text
        status, text = await who.post("/login", {"name": "ann", "password": "x"})
        assert (status, text) == (503, "logins cannot be read now; the console's log says why")  # no path for strangers
