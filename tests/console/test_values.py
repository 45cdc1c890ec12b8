"""How values stand on a page: as JSON, text or bytes, or by their schema, and without what is masked."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from flowshare.agents.codecs.avro import Avro
from flowshare.agents.codecs.client import SchemaText
from flowshare.agents.codecs.json_schema import JsonSchema
from flowshare.agents.codecs.wire import prefix
from flowshare.console import schemas as schemas_module
from flowshare.console import values
from flowshare.console.schemas import ASKED_MAX, Schemas
from flowshare.console.values import DEPTH_MAX, MASKED, SHOWN_MAX, Values, masked, masked_kind, masked_trace
from tests.agents.registry_codecs.fake import FakeClient, registry_of

MASKS = ("ssn", "card")


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
    assert Values().text(raw, form) == text


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
    shown = Values(MASKS).text(raw, form)

    assert "SECRET" not in shown
    assert b"SECRET".hex(" ") not in shown
    assert MASKED in shown or len(shown) > SHOWN_MAX


def test_what_is_not_masked_is_shown():
    assert json.loads(Values(MASKS).text(b'{"ssn": 1, "Ssn": 2, "b": [{"card": 3, "c": 4}]}', "text")) == {
        "ssn": MASKED, "Ssn": 2, "b": [{"card": MASKED, "c": 4}],
    }  # fmt: skip
    assert Values(MASKS).text(None, "json") == "null"


@pytest.mark.parametrize("form", ["json", "text", "hex"])
def test_long_values_are_cut_with_their_length(form):
    raw = b'{"a": "' + b"x" * 100_000 + b'"}'
    shown = Values().text(raw, form)

    assert len(shown) <= 3 * SHOWN_MAX + 40
    assert shown.endswith(f" … {len(raw)} bytes")


@pytest.mark.parametrize("masks", [(), MASKS])
def test_a_value_of_megabytes_is_not_read_as_json_for_the_first_thousands_of_its_characters(masks, monkeypatch):
    raw = json.dumps([{"a": list(range(50))}] * 20_000).encode()
    monkeypatch.setattr(values.json, "loads", lambda _: pytest.fail("it was read"))

    shown = Values(masks).text(raw, "json")

    assert len(shown) < SHOWN_MAX + 100
    assert f"{len(raw)} bytes" in shown
    assert (MASKED in shown) == bool(masks)


def test_what_lies_too_deep_is_left_out_and_nothing_recurses():
    value: object = "end"
    for _ in range(2_000):
        value = [value]
    found = masked(value, frozenset())
    assert MASKED in json.dumps(found, ensure_ascii=False)


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
    assert Values(MASKS).aside(raw, name) == shown


def test_no_key_or_header_shows_what_is_masked_because_it_cannot_be_read_as_json():
    inner = '{"a": 1, "ssn": "SECRET"}'
    for raw in (
        json.dumps({"more": "x" * values.PARSED_MAX, "ssn": "SECRET"}),
        "[" * 5_000 + inner + "]" * 5_000,
        '{"n": ' + "9" * 5_000 + ', "ssn": "SECRET"}',
        inner[:-1],
        "\ufeff " + inner[:-1],
        json.dumps(inner),
        "1 " + inner,
    ):
        for encoded in (raw.encode(), raw.encode("utf-16"), raw.encode("utf-32")):
            assert "SECRET" not in Values(MASKS).aside(encoded)
            assert "SECRET" not in Values(MASKS).text(encoded, "json")


@pytest.mark.parametrize("before", [b"\0\0\0\0\x01", b"\0\0", b"\0", b"a\0", b"\0a\0b", b"\0\0\0a", b"a\0\0\0"])
@pytest.mark.parametrize("schemas", [False, True], ids=["no registry", "registry"])
def test_no_nul_in_front_of_a_key_or_header_shows_what_is_masked(before, schemas, shop):
    shown = shop.masked if schemas else Values(MASKS)

    assert "SECRET" not in shown.aside(before + b'{"ssn": "SECRET"}')
    assert "SECRET" not in shown.aside(before + b'{"ssn": "SECRET", "more": "' + b"x" * values.PARSED_MAX)
    assert "SECRET" not in shown.aside(before + b"x" + '{"ssn": "SECRET"}'.encode("utf-16-le")).replace("\0", "")


@pytest.mark.asyncio
async def test_a_key_of_a_known_schema_that_is_no_record_is_shown_with_masks(shop):
    raw = shop.avro(17, schema="long", subject="record")
    await shop.masked.learn([raw], "schema")

    assert shop.masked.aside(raw) == "17"


@pytest.mark.parametrize("schemas", [False, True], ids=["no registry", "registry"])
def test_with_masks_a_key_or_header_whose_schema_is_not_known_is_not_shown(schemas, shop):
    shown = shop.masked if schemas else Values(MASKS)

    assert shown.aside(shop.avro()) == MASKED
    assert shown.aside(shop.avro() + b"x" * values.PARSED_MAX) == MASKED


def test_keys_that_are_plain_are_shown_with_masks_too():
    for raw in (b"order-1", b"12", b"a[1]", "größe".encode(), b"\xff\x00", b""):
        assert Values(MASKS).aside(raw) == Values().aside(raw)


def test_of_many_parts_no_more_are_gone_through_than_are_shown(monkeypatch):
    value = [[number] for number in range(100_000)]
    found = masked(value, frozenset(), room=[SHOWN_MAX])
    assert len(found) < SHOWN_MAX
    assert found[:10] == value[:10]
    raw = json.dumps(value[:20_000]).encode()
    assert Values().text(raw, "json").endswith(f"… {len(raw)} bytes")


# --- by schema -------------------------------------------------------------------------------------------------------


@dataclass
class Card:
    holder: str
    ssn: str = "SECRET"
    tags: list[str] = field(default_factory=list)


class Shop:
    """A registry with the schemas of a topic, and the console's look at it."""

    def __init__(self) -> None:
        self.client = FakeClient()
        self.schemas = Schemas(registry_of(self.client))
        self.values = Values((), self.schemas)
        self.masked = Values(MASKS, self.schemas)

    def avro(self, value: Any = None, **more: Any) -> bytes:
        codec = Avro(None if "schema" in more else Card, registry=registry_of(self.client), **more)
        return codec.bind("cards", "value").encode(Card("Olga") if value is None else value)


@pytest.fixture
def shop():
    made = Shop()
    yield made
    made.schemas.close()


@pytest.mark.asyncio
async def test_a_value_is_shown_by_the_schema_whose_id_it_carries(shop):
    raw = shop.avro()
    assert shop.values.forms[0] == "schema"
    assert await shop.values.learn([raw, None, b"{}"], "schema") is None

    assert json.loads(shop.values.text(raw, "schema")) == {"holder": "Olga", "ssn": "SECRET", "tags": []}
    assert shop.values.text(raw, "hex").startswith("00 00 00 00 01")
    assert shop.values.aside(raw) == '{ "holder": "Olga", "ssn": "SECRET", "tags": [] }'
    assert shop.client.asked["id 1"] == 1


@pytest.mark.asyncio
async def test_values_of_json_schema_are_shown_without_being_held_against_it(shop):
    raw = JsonSchema(Card, registry=registry_of(shop.client)).bind("cards", "value").encode(Card("Olga"))
    await shop.values.learn([raw], "schema")

    assert json.loads(shop.values.text(raw, "schema"))["holder"] == "Olga"
    assert json.loads(shop.values.text(raw[:5] + b'{"odd": 1}', "schema")) == {"odd": 1}


@pytest.mark.parametrize("raw", [b'{"a": 1}', b"plain", b"", b"\x00\x01"])
@pytest.mark.asyncio
async def test_a_value_without_a_schemas_id_is_shown_as_if_there_were_no_registry(shop, raw):
    assert await shop.values.learn([raw], "schema") is None

    assert shop.values.text(raw, "schema") == Values().text(raw, "json")
    assert not shop.client.asked


@pytest.mark.asyncio
async def test_times_decimals_and_bytes_of_avro_are_shown_as_text(shop):
    fields = [
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "cost", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
        {"name": "raw", "type": "bytes"},
    ]
    schema = {"type": "record", "name": "Fee", "fields": fields}
    raw = shop.avro(
        {"at": datetime(2026, 11, 1, tzinfo=UTC), "cost": Decimal("1.50"), "raw": b"\x01\xff"}, schema=schema
    )
    await shop.values.learn([raw], "schema")

    shown = json.loads(shop.values.text(raw, "schema"))
    assert shown == {"at": "2026-11-01T00:00:00+00:00", "cost": "1.50", "raw": "01 ff"}


@pytest.mark.asyncio
async def test_what_is_masked_is_shown_in_no_form_of_a_value_with_a_schema(shop):
    raw, broken = shop.avro(), shop.avro() + b"SECRET"
    plain = shop.avro("SECRET", schema="string", subject="record")
    before = [shop.masked.text(one, form) for one in (raw, broken, plain) for form in shop.values.forms]
    before += [shop.masked.aside(one) for one in (raw, broken)]
    await shop.masked.learn([raw, broken, plain], "schema")
    after = [shop.masked.text(one, form) for one in (raw, broken, plain) for form in shop.values.forms]
    after += [shop.masked.aside(one) for one in (raw, broken)]

    for shown in (*before, *after):
        assert "SECRET" not in shown
        assert b"SECRET".hex(" ") not in shown
    assert json.loads(shop.masked.text(raw, "schema")) == {"holder": "Olga", "ssn": MASKED, "tags": []}


@pytest.mark.asyncio
async def test_what_cannot_be_read_says_why_before_its_bytes(shop):
    unknown, cut = prefix(77) + b"x", shop.avro()[:-1]
    shop.client.register("p", SchemaText("PROTOBUF", 'syntax = "proto3";'))
    proto = prefix(shop.client.ids[SchemaText("PROTOBUF", 'syntax = "proto3";')]) + b"\x00"
    assert shop.values.text(unknown, "schema").startswith("(schema 77 is not known yet) 00 00 00 00 4d")
    assert await shop.values.learn([unknown, cut, proto], "schema") is None

    assert shop.values.text(unknown, "schema").startswith("(schema 77 is not known) 00 00")
    assert "no value of schema 1" in shop.values.text(cut, "schema")
    assert "PROTOBUF" in shop.values.text(proto, "schema")
    assert shop.values.aside(unknown) == "\x00\x00\x00\x00Mx"


@pytest.mark.asyncio
async def test_a_registry_that_is_away_is_said_once_and_its_values_are_shown_as_bytes(shop):
    raw = shop.avro()
    shop.client.down = 1

    assert await shop.values.learn([raw, raw], "schema") == "the registry does not answer"
    assert shop.values.text(raw, "schema").startswith("(schema 1 is not known yet) 00")
    shop.schemas.registry._schemas._failed.clear()
    assert await shop.values.learn([raw], "schema") is None
    assert "Olga" in shop.values.text(raw, "schema")


@pytest.mark.asyncio
async def test_a_registry_that_never_answers_holds_a_page_up_for_a_bounded_time_and_is_asked_few_questions(
    shop, monkeypatch
):
    monkeypatch.setattr(schemas_module, "WAIT_S", 0.001)
    go_on = threading.Event()
    monkeypatch.setattr(shop.client, "by_id", lambda number: go_on.wait(60) and pytest.fail("never"))
    try:
        for _ in range(3):
            why = await shop.values.learn([prefix(number) + b"x" for number in range(100)], "schema")
            assert why is not None
            assert "has not answered" in why
            assert len(shop.schemas._asking) == ASKED_MAX
    finally:
        shop.schemas.close()
        monkeypatch.setattr(shop.client, "by_id", FakeClient.by_id.__get__(shop.client))
        go_on.set()
        await asyncio.sleep(0)


@pytest.mark.asyncio
async def test_other_forms_ask_no_registry(shop):
    raw = shop.avro()
    for form in ("json", "text", "hex"):
        assert await shop.values.learn([raw], form) is None
        shop.values.text(raw, form)
    assert shop.client.asked["id 1"] == 0


TRACE = """Traceback (most recent call last):
  File "/app/shop.py", line 12, in bill
    charge(SECRET)
    ^^^^^^^^^^^^^^
  [Previous line repeated 3 more times]
  File "/app/bank.py", line 3, in <lambda>
    raise ValueError(f"no iban {iban}")
ValueError: no iban SECRET
  File "/SECRET.py", line 1, in SECRET
"""


@pytest.mark.parametrize("trace", [TRACE, TRACE.partition("\n")[2], TRACE + "\nThe above …\n\n" + TRACE])
def test_a_masked_trace_is_the_frames_alone(trace):
    assert masked_trace(trace).split("\n") == [
        '  File "/app/shop.py", line 12, in bill',
        '  File "/app/bank.py", line 3, in <lambda>',
    ]


@pytest.mark.parametrize(
    "trace", ["", "ValueError: SECRET", "…SECRET\n" + TRACE, "    SECRET\n" + TRACE, " \n" + TRACE]
)
def test_of_what_is_no_trace_nothing_is_shown(trace):
    assert masked_trace(trace) == ""


def test_a_masked_exception_is_the_name_of_a_class_or_nothing():
    assert masked_kind("shop.errors.NoStock") == "shop.errors.NoStock"
    assert masked_kind("f.<locals>.Odd") == "f.<locals>.Odd"
    assert masked_kind("") == ""
    assert masked_kind("ValueError: SECRET") == MASKED
