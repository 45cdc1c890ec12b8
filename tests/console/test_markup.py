"""How figures stand on a page, and that everything is escaped."""

from __future__ import annotations

from flowshare.console.logins import Role
from flowshare.console.markup import (
    NOTHING,
    Markup,
    bare,
    number,
    rate,
    time,
    url,
)
from flowshare.console.sessions import Session
from flowshare.testing.clock import ManualClock

EVIL = '<script>alert("1")</script>&\'"'


def test_numbers_rates_and_times_are_written_for_people():
    assert [number(one) for one in (None, -1, 0, 12_345, 1.6)] == [NOTHING, NOTHING, "0", "12\u202f345", "2"]
    assert [rate(one) for one in (None, 0, 0.04, 9.96, 10.4)] == [NOTHING, "0", "0.0", "10.0", "10"]
    assert [time(one) for one in (None, -1, 0)] == [NOTHING, NOTHING, "1970-01-01 00:00:00"]
    assert time(2**62) == str(2**62)


def test_what_brokers_explain_in_html_stands_in_words():
    told = "The strategy. <ul><li>earliest: the first</li> <li>by_duration:&lt;span&gt;: since</li></ul> a < b"
    assert bare(told) == "The strategy; earliest: the first; by_duration:<span>: since a < b"
    assert bare("How long a member holds `records`.") == "How long a member holds `records`."


def test_an_address_has_what_is_known_and_nothing_else_in_it():
    assert url("groups") == "/groups"
    assert url("groups", find=None) == "/groups"
    assert url("group", name="a&b=c d/é#?") == "/group?name=a%26b%3Dc+d%2F%C3%A9%23%3F"
    assert "\n" not in url("group", name="a\r\nSet-Cookie: x")


def test_everything_is_escaped_unless_it_is_markup_already():
    page = Markup(ManualClock())
    text = page.render(
        "problem.html",
        {
            "problem": EVIL, "page": None, "session": Session(EVIL, Role.VIEWER, "t", 0.0, 0.0), "pages": {},
            "look": Look(), "trouble": EVIL,
            "history_trouble": EVIL, "seen_s": 0.0, "broker": EVIL, "notices": [Notice()],
        },
    )  # fmt: skip

    assert "<script>" not in text.replace('<script src="/static/console.js" defer></script>', "")
    assert text.count("&lt;script&gt;") == 5
    assert 'title="the log">&lt;script&gt;' in text


class Look:
    backend, at_ms, leads = EVIL, 0, False


class Notice:
    text, good = EVIL, True
