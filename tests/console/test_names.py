"""Names, values and texts of others, on pages: they look like what they are, mean what they name, and have bounds."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from types import SimpleNamespace

import aiohttp
import pytest

from flowshare.client.producer.producer import Message
from flowshare.console.actions import ACTIONS
from flowshare.console.forms import BadForm
from flowshare.console.markup import HEADERS_MAX, NAME_MAX, mark
from flowshare.console.pages import group as group_page
from flowshare.console.pages.group import ASSIGNED_MAX, assigned
from flowshare.console.pages.keys import KEY_MAX
from flowshare.console.pages.page import ROWS_MAX
from tests.console.test_server import LETTER, letter
from tests.console.world import browser, console, words

pytestmark = pytest.mark.asyncio
TURNED = "bil\u202eling\u2066\u200b\u001b[2J"
HIDDEN = re.compile(r"[\u202a-\u202e\u2066-\u2069\u200b\u001b]")


def quoted(text: str) -> str:
    return aiohttp.helpers.quote(text, safe="")


@pytest.mark.parametrize("name", ["billing ", " billing", "billing\u200b", "bil\u202eling"])
async def test_a_button_acts_on_the_group_that_it_stands_beside_and_on_no_other_of_almost_this_name(tmp_path, name):
    async with console(tmp_path / "c") as made, browser(made) as who:
        await made.topic()
        await made.group("billing")
        await made.group(name)

        await who.do("pause", group=name)

        paused = {one.name: one.value for one in await made.ask(lambda admin: admin.group_configs(name))}
        other = {one.name: one.value for one in await made.ask(lambda admin: admin.group_configs("billing"))}
        assert (paused["share.paused"], other["share.paused"]) == ("true", "false")


@pytest.mark.parametrize("name", ["bil\nling", "bil\rling", "billing\n", "bil\x00ling", "\x1b[2J", "bil\x85ling"])
async def test_a_name_that_no_form_carries_as_it_is_is_refused_before_anything_is_done(tmp_path, name):
    async with console(tmp_path / "c") as made, browser(made) as who:
        status, text = await who.get("/do/pause?group=" + quoted(name))
        assert (status, "use the command line" in words(text)) == (400, True)
        status, text = await who.post("/do/pause", {"group": name, "page_token": await who.token()})
        assert (status, "use the command line" in text) == (400, True)
        assert await made.store.deeds() == []


async def test_what_is_typed_may_have_spaces_around_it():
    assert ACTIONS["set"].read({"group": "g", "setting": " a ", "value": " 5 "}) == {
        "group": "g", "setting": "a", "value": "5",
    }  # fmt: skip
    with pytest.raises(BadForm, match="missing"):
        ACTIONS["set"].read({"group": "g", "setting": "  ", "value": ""})


@pytest.mark.slow
async def test_marks_of_direction_and_controls_are_shown_as_their_escapes_everywhere(tmp_path):
    async with console(tmp_path / "c") as made, browser(made) as who:
        await made.topic(values=[TURNED.encode()])
        await made.send("orders", Message(b"v", key=TURNED.encode(), partition=0, headers=((TURNED, TURNED.encode()),)))
        await made.topic("g.dlq", values=0)
        await made.send(
            "g.dlq", letter(TURNED.encode(), **{**LETTER, **dict.fromkeys(("reason", "exception"), TURNED)})
        )
        name = TURNED.replace("\u001b[2J", "")
        await made.held(name)
        await made.look()
        await who.do("resume", group=name)
        for path in ("groups", f"group?name={quoted(name)}", "in-flight", "stuck", "delayed", "keys", "audit",
                     f"browse?topic=orders&form=text&group={quoted(name)}", "letters?topic=g.dlq", "letters",
                     "letters?topic=g.dlq&at=0@0&form=text", f"do/pause?group={quoted(name)}",
                     f"partition?group={quoted(name)}&topic=orders&partition=0"):  # fmt: skip
            text = await who.page(f"/{path}")
            # What a form sends back and the id of a row are to the letter; nobody sees them.
            seen = re.sub(r' (?:value|id)="[^"]*"', "", text)
            assert HIDDEN.findall(html.unescape(seen)) == [], path
        assert "bil\\u202eling" in await who.said("/groups")


async def test_rows_of_two_things_never_have_one_id():
    assert mark("r", "x", 0, 1, "g-orders") != mark("r", "orders-x", 0, 1, "g")
    assert mark("r", "orders", 1, 11, "g") != mark("r", "orders", 11, 1, "g")
    assert mark("m", "x" * 9_999) != mark("m", "x" * 9_998)
    assert len(mark("m", "x" * 9_999)) < NAME_MAX
    assert "<" not in mark("g", "<script>")


async def test_of_thousands_of_members_with_thousands_of_partitions_some_are_named(tmp_path, monkeypatch):
    member = {"member": "m", "client": "c" * 30_000, "host": "h", "epoch": 1, "assignment": {"orders": range(10_000)}}

    async def asked(_session, _name, _kind):
        return {"members": [{**member, "member": f"m{n}"} for n in range(5_000)], "settings": None}

    monkeypatch.setattr(group_page, "_ask", asked)
    async with console(tmp_path / "c") as made, browser(made) as who:
        await made.topic()
        await made.group()
        await made.look()
        text = await who.page("/group?name=g")

    assert text.count('<tr id="m-') == ROWS_MAX
    assert "4 500 more members" in words(text).replace("\N{NARROW NO-BREAK SPACE}", " ")
    assert "and 9950 more" in text
    assert len(text) < 2_000_000


async def test_topics_and_partitions_of_a_member_are_bounded():
    found = assigned({f"t{n:04}": range(3) for n in range(1_000)})

    assert len(found) == ASSIGNED_MAX
    assert found["t0000"] == "0, 1, 2"


async def test_headers_of_a_record_and_of_a_letter_are_bounded(tmp_path):
    many = tuple(("h", b"v") for _ in range(5_000))
    async with console(tmp_path / "c") as made, browser(made) as who:
        await made.topic(values=0)
        await made.topic("g.dlq", values=0)
        await made.send("orders", Message(b"v", partition=0, headers=(*many, ("n" * 90_000, b"v"))))
        await made.send("g.dlq", Message(b"v", partition=0, headers=(*letter(**LETTER).headers, *many)))
        browsed = await who.page("/browse?topic=orders")
        shown = await who.page("/letters?topic=g.dlq&at=0@0")

    assert browsed.count('<div class="header">') == HEADERS_MAX + 1
    assert "more headers" in browsed
    assert "more headers" in shown
    assert max(len(browsed), len(shown)) < 50_000


async def test_long_names_of_headers_and_texts_of_letters_are_cut(tmp_path):
    async with console(tmp_path / "c") as made, browser(made) as who:
        await made.topic(values=0)
        await made.topic("g.dlq", values=0)
        await made.send("orders", Message(b"v", partition=0, headers=(("n" * 90_000, b"v" * 90_000),)))
        await made.send("g.dlq", letter(b"v", **dict.fromkeys(LETTER, "x" * 90_000)))
        for path in ("browse?topic=orders", "letters?topic=g.dlq", "letters?topic=g.dlq&at=0@0"):
            assert len(await who.page(f"/{path}")) < 60_000, path


async def test_a_parked_key_that_no_form_can_name_has_no_button_and_a_masked_one_is_in_no_id(tmp_path, monkeypatch):
    keys = [b'{"ssn": "SECRET"}', b"k" * 1_000_000]
    parked = SimpleNamespace(first=1, last=2, version=0)
    told = SimpleNamespace(keys=[SimpleNamespace(topic="orders", partition=0, key=key, parked=parked) for key in keys])
    async with console(tmp_path / "c", masks=("ssn",)) as made, browser(made) as who:
        await made.topic()
        await made.group()
        await made.look()
        (line,) = made.collector.look.groups.values()
        made.collector.look.groups[line.name] = replace(line, topics=[line.topics[0]._replace(parked=2)])

        async def found(_self, _group):
            return told

        monkeypatch.setattr("flowshare.client.admin.admin.ShareAdmin.parked_keys", found)
        text = await who.page("/keys")

    assert text.count(">go on<") == 1
    assert len(text) < 40_000
    ids = re.findall(r'<tr id="([^"]*)"', text)
    assert len(set(ids)) == 2
    assert b"SECRET".hex() not in "".join(ids)
    assert len(keys[0]) <= KEY_MAX
