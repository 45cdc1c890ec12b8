"""The number that a record's key is to the order of a group."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from flowshare.protocol.headers import crc32c
from flowshare.protocol.key_hash import (
    NAME_MAX,
    KeyOrder,
    key_hash,
    key_name,
    key_slot_hash,
    murmur2,
    name_hash,
    slot_hash_of,
)


def record(key=None, *headers):
    return SimpleNamespace(key=key, headers=list(headers))


def test_a_key_is_its_checksum_and_none_is_zero():
    assert key_hash(None) == 0
    assert key_hash(b"123456789") == 0xE3069283 == crc32c(b"123456789")


def test_no_key_has_the_hash_of_none():
    assert crc32c(b"") == 0
    assert key_hash(b"") == 1


@pytest.mark.parametrize(
    ("text", "order"), [("", None), ("key", KeyOrder()), ("header:customer", KeyOrder("customer"))]
)
def test_a_setting_is_an_order(text, order):
    assert KeyOrder.parse(text) == order


@pytest.mark.parametrize("text", ["keys", "header:", "header: x", "Key", "header"])
def test_another_setting_is_an_error(text):
    with pytest.raises(ValueError, match="an order is 'key' or 'header:<name>'"):
        KeyOrder.parse(text)


def test_the_key_of_a_record_orders_it():
    assert KeyOrder().hash_of(record(b"a", ("customer", b"b"))) == key_hash(b"a")
    assert KeyOrder().hash_of(record(None)) == 0


def test_the_hashes_of_many_records_are_those_of_each():
    records = [record(b"a", ("customer", b"b")), record(None, ("customer", b"c")), record(b"d")]
    for order in (KeyOrder(), KeyOrder("customer")):
        assert order.hashes_of(records) == [order.hash_of(one) for one in records]


def test_the_place_of_a_record_is_that_of_its_key_or_without_one_of_its_offset():
    assert slot_hash_of(SimpleNamespace(key=b"a", offset=3)) == key_slot_hash(b"a", 9)
    assert slot_hash_of(SimpleNamespace(key=None, offset=3)) == key_slot_hash(None, 3)


def test_the_last_header_of_the_name_orders_a_record():
    order = KeyOrder("customer")

    assert order.hash_of(record(b"a", ("customer", b"1"), ("other", b"3"), ("customer", b"2"))) == key_hash(b"2")
    assert order.hash_of(record(b"a", ("customer", b"1"), ("customer", None))) == 0
    assert order.hash_of(record(b"a", ("Customer", b"1"))) == 0


def test_a_name_is_short_tells_keys_apart_and_has_the_hash_of_its_key():
    same = b"k" * NAME_MAX
    keys = [b"", same, same + b"1", same + b"2", b"k" * 100_000]
    names = [key_name(key) for key in keys]

    assert names[:2] == keys[:2]
    assert len(set(names)) == len(keys)
    assert max(map(len, names)) == NAME_MAX + 1
    assert [name_hash(name) for name in names] == [key_hash(key) for key in keys]


@pytest.mark.parametrize(("key", "murmur"), [(b"21", -973932308), (b"foobar", -790332482), (b"", 275646681)])
def test_the_place_of_a_key_is_kafkas_hash_without_its_sign(key, murmur):
    assert key_slot_hash(key, 7) == murmur & 0x7FFFFFFF


def test_records_without_a_key_are_spread_by_their_offsets():
    places = [key_slot_hash(None, offset) for offset in range(4_000)]

    assert places == [murmur2(offset.to_bytes(8)) & 0x7FFFFFFF for offset in range(4_000)]
    quarters = [sum(place >> 29 == quarter for place in places) for quarter in range(4)]
    assert all(900 < count < 1_100 for count in quarters), quarters
