"""The bytes before a value that has a schema in a registry."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowshare.agents.codecs import wire
from flowshare.agents.codecs.proto_text import message_name


@given(st.integers(0, 2**32 - 1), st.binary())
def test_an_id_is_read_as_it_was_written(number: int, value: bytes):
    assert wire.schema_id(wire.prefix(number) + value) == number


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=wire.INDEXES_MAX), st.binary())
def test_indexes_are_read_as_they_were_written(indexes: list[int], value: bytes):
    raw = b"12345" + wire.write_indexes(indexes) + value
    found, at = wire.read_indexes(raw, 5)
    assert found == indexes
    assert raw[at:] == value


@pytest.mark.parametrize(
    ("raw", "found"), [(b"\0", [0]), (b"\x02\0", [0]), (b"\x02\x02", [1]), (b"\x04\x02\x00", [1, 0])]
)
def test_the_first_message_has_a_short_form_and_a_long_one(raw: bytes, found: list[int]):
    assert wire.read_indexes(raw, 0) == (found, len(raw))


@given(st.binary(max_size=40))
def test_foreign_bytes_are_indexes_or_refused(raw: bytes):
    try:
        indexes, at = wire.read_indexes(raw, 0)
    except wire.NotFramed:
        return
    assert 0 < len(indexes) <= wire.INDEXES_MAX
    assert at <= len(raw)


@pytest.mark.parametrize(
    ("raw", "why"),
    [(b"", "it has 0 bytes"), (b"\0\0\0\1", "4 bytes"), (b'{"id":1}', "the byte 123, not with the zero")],
)
def test_what_was_written_without_a_registry_is_told(raw: bytes, why: str):
    with pytest.raises(wire.NotFramed, match=why):
        wire.schema_id(raw)


PROTO = """
// message Commented { }
syntax = "proto3";
/* message Also { */
package shop.v1;
import "google/protobuf/timestamp.proto";
option (my.option) = { message: "}" };
message First {
  string message = 1;
  enum Kind { A = 0; message_b = 1; }
  oneof either { string a = 2; string b = 3; }
  map<string, int32> counts = 4;
  message Inner { message Innermost { int32 x = 1; } }
  message Second_inner {}
}
enum Top { NONE = 0; }
service S { rpc Call (First) returns (First) { option deprecated = true; } }
message Last { extensions 100 to 200; }
"""


@pytest.mark.parametrize(
    ("indexes", "name"),
    [
        ([0], "shop.v1.First"),
        ([0, 0], "shop.v1.First.Inner"),
        ([0, 0, 0], "shop.v1.First.Inner.Innermost"),
        ([0, 1], "shop.v1.First.Second_inner"),
        ([1], "shop.v1.Last"),
        ([2], None),
        ([0, 2], None),
    ],
)
def test_indexes_name_a_message_of_a_schema_in_text(indexes: list[int], name: str | None):
    assert message_name(PROTO, indexes) == name


def test_a_text_without_end_or_sense_names_nothing():
    assert message_name("message", [0]) in (None, "")
    assert message_name("}}}} message", [1]) is None
    assert message_name("message A { message B {", [0, 0]) == "A.B"
    assert message_name("export message A {}", [0]) == "A"
