"""Broker URLs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowshare.backend import BadBrokerUrl, open_backend, parse_broker


@pytest.mark.parametrize(
    ("url", "kind", "path", "hosts"),
    [
        ("embedded:///data/shop", "embedded", "/data/shop", ()),
        ("embedded:///data/my%20shop?fsync=true", "embedded", "/data/my shop", ()),
        ("EMBEDDED:///a", "embedded", "/a", ()),
        ("memory://", "memory", "", ()),
        ("kafka://a:9092 , b", "kafka", "", ("a:9092", "b")),
        ("kafka://[::1]:9092,b:1?ca_file=/x:y&security=SSL", "kafka", "", ("[::1]:9092", "b:1")),
        ("kafka://a:65535", "kafka", "", ("a:65535",)),
        ("embedded:///data/~old/$x", "embedded", "/data/~old/$x", ()),
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
        ("embedded://./shop", r"write embedded://\$PWD/shop for a directory below the working"),
        ("embedded://~/data", "neither ~ nor .* in full, such as embedded:///home/me/data"),
        ("embedded:///~/data", "neither ~ nor"),
        ("embedded:///~me/data", "neither ~ nor"),
        ("embedded:///$HOME/x", r"nor \$HOME is replaced"),
        ("embedded://$HOME/x", r"nor \$HOME is replaced"),
        ("embedded:////$HOME/x", r"nor \$HOME is replaced"),
        ("embedded://", "no absolute path"),
        ("embedded:///tmp/a%00b", "has %00 in its path"),
        ("embedded:///", "root directory"),
        ("embedded:///x?fsnc=true", "did you mean fsync"),
        ("embedded:///x?offset.retention.minutes=5", "did you mean offsets.retention.minutes"),
        ("embedded:///x?offsets.retention.minutes=soon", "offsets.retention.minutes"),
        ("embedded:///x?transaction.max.timeout.ms=0", "transaction.max.timeout.ms"),
        ("memory://?offsets.retention.minutes=5", "unknown option 'offsets.retention.minutes'"),
        ("kafka://a?offsets.retention.minutes=5", "unknown setting 'offsets.retention.minutes'"),
        ("kafka://a?group.share.max.sise=5", "did you mean group.share.max.size"),
        ("kafka://a?share=native&group.share.max.size=5", "kafka-configs.sh"),
        ("memory://x", "keeps nothing"),
        ("kafka://", "host:port"),
        ("kafka://a:x", "host:port"),
        ("kafka://127.0.0.1:99999", "port 99999.*1 to 65535"),
        ("kafka://b:1,a:0", "port 0.*1 to 65535"),
        ("kafka://a:²", "host:port"),
        ("kafka://:9", "no host before the port.*kafka://host:9"),
        ("kafka://[]:9", "no host before the port.*kafka://host:9"),
        ("kafka://[::1", r"bracket.*kafka://\[::1\]:9092"),
        ("kafka://[::1:9092", r"bracket.*kafka://\[::1\]:9092"),
        ("kafka://[::1]", r"bracket.*kafka://\[::1\]:9092"),
        ("kafka://a]:9092", r"bracket.*kafka://\[::1\]:9092"),
        ("kafka://me:word", "kafka://user:password@host:9092"),
        ("kafka://me:a@b@host", "write %40 for @"),
        ("kafka://me:a/b@host", "write %40 for @ and %2F"),
        ("kafka://me:a?b@host", "write %3F"),
        ("kafka://:word@host", "without a user name"),
        ("kafka://a?securty=SSL", "did you mean security"),
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


def test_kafka_opens_the_backend_of_whoever_is_to_lead_the_groups() -> None:
    assert open_backend("kafka://localhost:9092").kind == "auto"
    assert open_backend("kafka://localhost:9092?share=native").kind == "native"
    assert open_backend("kafka://localhost:9092?share=workers").kind == "workers"
    with pytest.raises(BadBrokerUrl, match="auto, native or workers"):
        parse_broker("kafka://localhost:9092?share=brokers")


def test_the_url_is_shown_again() -> None:
    for url in (
        "embedded:///x?fsync=true",
        "embedded:///x?fsync=true&offsets.retention.minutes=5",
        "memory://",
        "kafka://a:1,b:2",
        "kafka://a:1?ca_file=/a%26%2B%25b",
    ):
        assert str(parse_broker(url)) == url


def test_how_a_cluster_is_secured_stands_in_its_url(tmp_path: Path) -> None:
    url = "kafka://al%40ice:p%3A%2Fw@a:1,b?security=sasl_ssl&sasl_mechanism=scram-sha-256&ca_file=/ca.pem"

    security = parse_broker(url + "&check_hostname=false").security({})

    assert (security.protocol, security.mechanism, security.username, security.password) == (
        "SASL_SSL",
        "SCRAM-SHA-256",
        "al@ice",
        "p:/w",
    )
    assert security.ca_file == Path("/ca.pem")
    assert not security.check_hostname


def test_a_login_is_encrypted_unless_the_url_says_otherwise() -> None:
    security = parse_broker("kafka://alice:word@a").security({})

    assert (security.protocol, security.mechanism, security.check_hostname) == ("SASL_SSL", "SCRAM-SHA-512", True)
    assert parse_broker("kafka://a").security({}).protocol == "PLAINTEXT"


def test_the_password_can_stand_in_a_file_or_in_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("of the file\n", encoding="utf-8")
    environment = {"FLOWSHARE_SASL_PASSWORD": "of the environment"}

    assert parse_broker("kafka://alice@a").security(environment).password == "of the environment"
    assert parse_broker(f"kafka://alice@a?password_file={file}").security(environment).password == "of the file"
    assert parse_broker(f"kafka://alice:own@a?password_file={file}").security(environment).password == "own"


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("kafka://alice@a", "FLOWSHARE_SASL_PASSWORD"),
        ("kafka://a?security=SASL_SSL", "no user name"),
        ("kafka://a?security=TLS", "none of PLAINTEXT, SSL"),
        ("kafka://alice:word@a?sasl_mechanism=GSSAPI", "none of PLAIN, SCRAM"),
        ("kafka://alice:word@a?security=SSL", "write SASL_SSL"),
        ("kafka://a?ca_file=/ca.pem", "has no TLS"),
        ("kafka://a?security=SSL&key_file=/key.pem", "without a certificate"),
        ("kafka://a?security=SSL&check_hostname=no", "true or false"),
        ("kafka://alice@a?password_file=/nowhere/at/all", "cannot be read"),
        ("kafka://alice:a%00b@a", "NUL"),
    ],
)
def test_security_that_cannot_be_used_is_refused_with_what_to_write(url: str, hint: str) -> None:
    with pytest.raises(BadBrokerUrl, match=hint) as refused:
        parse_broker(url).security({})

    assert "word" not in str(refused.value).replace("password", "")


def test_no_text_shows_a_password() -> None:
    broker = parse_broker("kafka://alice:hid%2Fden@a:1,b:2?security=SASL_SSL")

    assert str(broker) == "kafka://alice:***@a:1,b:2?security=SASL_SSL"
    assert "hid" not in repr(broker) + repr(broker.security({}))
    assert broker.revealed() == "kafka://alice:hid%2Fden@a:1,b:2?security=SASL_SSL"
    assert parse_broker(broker.revealed()) == broker


@pytest.mark.parametrize(
    "url",
    [
        "alice:hidden@a",
        "kafak://alice:hidden@a",
        "kafka://alice:hi@dden@a",
        "kafka://alice:hid/den@a",
        "kafka://alice:hid?den@a",
        "kafka://alice:hidden@a:port",
        "kafka://alice:hidden@a?unknown=1",
        "kafka://alice@a?password=hidden",
        "kafka://:hidden@a",
        "kafka://alice:hidden",
        "kafka://alice:hidden/",
        "kafka://alice:hid?den",
        "kafka://alice:hid,den",
        "kafka://a:9092,alice:hidden",
        "kafak://alice:1hidden",
        "alice:hidden",
        "embedded://alice:hidden@/data/shop",
        "embedded://alice:hidden@data/shop",
        "embedded://alice:hidden?.@host:9092",
        "embedded:///~alice:hidden@host",
        "embedded://~alice:hidden@host",
    ],
)
def test_no_error_shows_a_password(url: str) -> None:
    with pytest.raises(BadBrokerUrl) as refused:
        parse_broker(url)

    assert "den" not in str(refused.value)


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(["kafka", "KAFKA", "kafak", "memory", "embedded", ""]),
    st.lists(st.sampled_from("@:/?#&=%,. aZ1"), max_size=6).map("".join),
    st.lists(st.sampled_from("@:/?#&=%,. aZ1"), max_size=6).map("".join),
)
def test_whatever_stands_around_it_no_text_shows_a_password(scheme: str, before: str, after: str) -> None:
    url = f"{scheme}://alice:{before}hidden{after}@host:9092"
    try:
        broker = parse_broker(url)
    except BadBrokerUrl as error:
        shown = str(error)
    else:
        shown = f"{broker} {broker!r}"

    assert "hidden" not in shown
