"""How values stand on a page: as text, JSON or bytes, with what is masked; and everything escaped."""

from __future__ import annotations

import json

import pytest

from flowshare.console import markup
from flowshare.console.logins import Role
from flowshare.console.markup import (
    DEPTH_MAX,
    MASKED,
    NOTHING,
    SHOWN_MAX,
    Markup,
    aside_text,
    masked,
    number,
    rate,
    time,
    url,
    value_text,
)
from flowshare.console.sessions import Session
from flowshare.testing.clock import ManualClock

EVIL = '<script>alert("1")</script>&\'"'
MASKS = ("ssn", "card")


def test_numbers_rates_and_times_are_written_for_people():
    assert [number(one) for one in (None, -1, 0, 12_345, 1.6)] == [NOTHING, NOTHING, "0", "12\u202f345", "2"]
    assert [rate(one) for one in (None, 0, 0.04, 9.96, 10.4)] == [NOTHING, "0", "0.0", "10.0", "10"]
    assert [time(one) for one in (None, -1, 0)] == [NOTHING, NOTHING, "1970-01-01 00:00:00"]
    assert time(2**62) == str(2**62)


def test_an_address_has_what_is_known_and_nothing_else_in_it():
    assert url("groups") == "/groups"
    assert url("groups", find=None) == "/groups"
    assert url("group", name="a&b=c d/é#?") == "/group?name=a%26b%3Dc+d%2F%C3%A9%23%3F"
    assert "\n" not in url("group", name="a\r\nSet-Cookie: x")


@pytest.mark.parametrize(
    ("raw", "form", "text"),
    [
        (None, "json", "null"),
        (b"", "json", ""),
        (b"", "hex", ""),
        (b"\x00\xff", "hex", "00 ff"),
        (b"a\xffb", "text", "a\\xffb"),
        (b"plain", "json", "plain"),
        (b'{"a":1}', "text", '{"a":1}'),
        (b'{"a":1}', "json", '{\n  "a": 1\n}'),
        (b"[1", "json", "[1"),
        (b"17", "json", "17"),
        ("é漢".encode(), "json", "é漢"),
    ],
)
def test_values_are_shown_as_they_are_asked_for(raw, form, text):
    assert value_text(raw, form) == text


@pytest.mark.parametrize("form", ["json", "text", "hex", "odd"])
@pytest.mark.parametrize(
    "raw",
    [
        b'{"ssn": "SECRET"}', b'{"a": {"ssn": "SECRET"}}', b'[{"card": ["SECRET"]}]', b'{"ssn": {"x": "SECRET"}}',
        b'{"ssn": 1, "ssn": "SECRET"}', b'{"s\\u0073n": "SECRET"}', b"SECRET", b'"SECRET"', b'{"ssn": "SECRET"',
        b'\xef\xbb\xbf{"ssn": "SECRET"}', b'{"ssn": "SECRET"} x', b"\x00\x00\x00\x00\x01SECRET",
        b'{"a":' * (DEPTH_MAX + 5) + b'{"ssn": "SECRET"}' + b"}" * (DEPTH_MAX + 5),
        b"[" * 100_000 + b'"SECRET"' + b"]" * 100_000, json.dumps({"ssn": "SECRET", "a": "x" * 99_999}).encode(),
        '{"ssn": "SECRET"}'.encode("utf-16"), b'{"n": ' + b"9" * 5_000 + b', "x": "SECRET"}',
    ],
    ids=range(17),
)  # fmt: skip
def test_what_is_masked_is_shown_in_no_form(raw, form):
    shown = value_text(raw, form, MASKS)

    assert "SECRET" not in shown
    assert b"SECRET".hex(" ") not in shown
    assert MASKED in shown or len(shown) > SHOWN_MAX


def test_what_is_not_masked_is_shown():
    assert json.loads(value_text(b'{"ssn": 1, "Ssn": 2, "b": [{"card": 3, "c": 4}]}', "text", MASKS)) == {
        "ssn": MASKED, "Ssn": 2, "b": [{"card": MASKED, "c": 4}],
    }  # fmt: skip
    assert value_text(None, "json", MASKS) == "null"


@pytest.mark.parametrize("form", ["json", "text", "hex"])
def test_long_values_are_cut_with_their_length(form):
    raw = b'{"a": "' + b"x" * 100_000 + b'"}'
    shown = value_text(raw, form)

    assert len(shown) <= 3 * SHOWN_MAX + 40
    assert shown.endswith(f" … {len(raw)} bytes")


@pytest.mark.parametrize("masks", [(), MASKS])
def test_a_value_of_megabytes_is_not_read_as_json_for_the_first_thousands_of_its_characters(masks, monkeypatch):
    raw = json.dumps([{"a": list(range(50))}] * 20_000).encode()
    monkeypatch.setattr(markup.json, "loads", lambda _: pytest.fail("it was read"))

    shown = value_text(raw, "json", masks)

    assert len(shown) < SHOWN_MAX + 100
    assert f"{len(raw)} bytes" in shown
    assert (MASKED in shown) == bool(masks)


def test_what_lies_too_deep_is_left_out_and_nothing_recurses():
    value: object = "end"
    for _ in range(2_000):
        value = [value]
    found = masked(value, frozenset())
    assert MASKED in json.dumps(found, ensure_ascii=False)


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


@pytest.mark.parametrize(
    ("raw", "name", "shown"),
    [
        (None, "", "null"),
        (b"k1", "", "k1"),
        (b'{"ssn": "SECRET", "a": 1}', "", f'{{ "ssn": "{MASKED}", "a": 1 }}'),
        (b"SECRET", "ssn", MASKED),
        (b"open", "trace", "open"),
    ],
)
def test_keys_and_headers_are_shown_without_what_is_masked(raw, name, shown):
    assert aside_text(raw, MASKS, name) == shown
