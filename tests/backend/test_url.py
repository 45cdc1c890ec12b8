"""Broker URLs."""

from __future__ import annotations

import pytest

from flowshare.backend import BadBrokerUrl, open_backend, parse_broker
from flowshare.backend.base import BackendError


@pytest.mark.parametrize(
    ("url", "kind", "path", "hosts"),
    [
        ("embedded:///data/shop", "embedded", "/data/shop", ()),
        ("embedded:///data/my%20shop?fsync=true", "embedded", "/data/my shop", ()),
        ("EMBEDDED:///a", "embedded", "/a", ()),
        ("memory://", "memory", "", ()),
        ("kafka://a:9092,b", "kafka", "", ("a:9092", "b")),
    ],
)
def test_urls_are_read(url: str, kind: str, path: str, hosts: tuple[str, ...]) -> None:
    broker = parse_broker(url)

    assert (broker.kind, broker.path, broker.hosts) == (kind, path, hosts)


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("localhost:9092", "no URL"),
        ("embeded:///x", "did you mean embedded://"),
        ("redis://x", "unknown scheme"),
        ("embedded://shop", "embedded:///shop"),
        ("embedded://", "no absolute path"),
        ("embedded:///", "root directory"),
        ("embedded:///x?fsnc=true", "did you mean fsync"),
        ("memory://x", "keeps nothing"),
        ("kafka://", "host:port"),
        ("kafka://a:x", "host:port"),
    ],
)
def test_a_bad_url_says_what_to_write(url: str, hint: str) -> None:
    with pytest.raises(BadBrokerUrl, match=hint):
        parse_broker(url)


def test_a_flag_is_true_or_false() -> None:
    assert parse_broker("embedded:///x?fsync=true").flag("fsync")
    assert not parse_broker("embedded:///x").flag("fsync")
    with pytest.raises(BadBrokerUrl, match="true or false"):
        parse_broker("embedded:///x?fsync=1").flag("fsync")


def test_kafka_is_refused_with_one_clear_error() -> None:
    with pytest.raises(BackendError, match="native and workers"):
        open_backend("kafka://localhost:9092")


def test_the_url_is_shown_again() -> None:
    for url in ("embedded:///x?fsync=true", "memory://", "kafka://a:1,b:2"):
        assert str(parse_broker(url)) == url
