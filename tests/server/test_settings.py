"""Settings of a server: every name in one table, from files and words."""

from __future__ import annotations

import dataclasses

import pytest

from flowshare.core_errors import InvalidConfig
from flowshare.server.net.limits import LISTENER_CONFIGS, ListenerLimits
from flowshare.server.settings import Settings, parse_properties, parse_words, read_properties
from flowshare.share.config import EMBEDDED_CONFIGS


def test_settings_of_share_groups_and_of_the_listener_stand_side_by_side():
    settings = Settings.parse({"group.share.max.size": "7", "max.connections": "9"})
    assert (settings.server.group_max_size, settings.limits.connections_max) == (7, 9)


def test_what_is_not_said_has_its_default():
    assert Settings.parse({}).limits == ListenerLimits()


def test_every_limit_has_a_name_and_no_name_is_taken_twice():
    fields = {field.name for field in dataclasses.fields(ListenerLimits)}
    assert {setting.field for setting in LISTENER_CONFIGS.values()} == fields
    assert len(LISTENER_CONFIGS) == len(fields)
    assert not LISTENER_CONFIGS.keys() & EMBEDDED_CONFIGS.keys()


@pytest.mark.parametrize(
    ("name", "near"),
    [("max.conections", "max.connections"), ("group.share.max.sise", "group.share.max.size")],
)
def test_an_unknown_name_is_refused_with_the_nearest(name, near):
    with pytest.raises(InvalidConfig, match=f"unknown setting '{name}'; did you mean {near}"):
        Settings.parse({name: "1"})


def test_limits_alone_refuse_an_unknown_name_too():
    with pytest.raises(InvalidConfig, match=r"did you mean max\.connections"):
        ListenerLimits.parse({"max.connection": "1"})


def test_a_value_out_of_bounds_is_refused_with_what_is_allowed():
    with pytest.raises(InvalidConfig, match=r"max\.connections is '0'; allowed: 1 to 2147483647"):
        Settings.parse({"max.connections": "0"})


def test_properties_are_read_as_javas():
    text = """
        # a comment
        ! another
        max.connections = 5
        group.share.max.size: 6
        socket.listen.backlog.size 7
        errors.deadletterqueue.topic.name.prefix=a\\
            .b.
        share.acquire.durable=false
        share.acquire.durable=true
    """
    assert parse_properties(text) == {
        "max.connections": "5",
        "group.share.max.size": "6",
        "socket.listen.backlog.size": "7",
        "errors.deadletterqueue.topic.name.prefix": "a.b.",
        "share.acquire.durable": "true",
    }
    Settings.parse(parse_properties(text))


def test_a_line_that_goes_on_at_the_end_of_the_file_is_taken():
    assert parse_properties("a=1\\") == {"a": "1"}


def test_words_are_name_and_value():
    assert parse_words(["a=1", "b = x=y"]) == {"a": "1", "b": "x=y"}


@pytest.mark.parametrize("word", ["a", "=1", ""])
def test_a_word_without_a_name_or_a_value_is_refused(word):
    with pytest.raises(InvalidConfig, match="write name=value"):
        parse_words([word])


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(InvalidConfig, match=r"missing cannot be read: No such file"):
        read_properties(tmp_path / "missing")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidConfig, match=r"binary cannot be read: it is no UTF-8"):
        read_properties(tmp_path / "binary")
    (tmp_path / "large").write_bytes(b"#" * (1024 * 1024 + 1))
    with pytest.raises(InvalidConfig, match="has more than 1048576 bytes"):
        read_properties(tmp_path / "large")
    (tmp_path / "good").write_text("max.connections=3\n")
    assert read_properties(tmp_path / "good") == {"max.connections": "3"}
