"""The client's security settings, apart from sockets; those are in tests/server/security."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowshare.client.errors import ClientError
from flowshare.client.net.login import LoginError
from flowshare.client.net.security import ROUNDS_MAX, BadSecurity, Security, find_password


class Broker:
    """Answers every message of a login with the next of `answers`, and keeps what it was asked."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.asked: list[str | bytes] = []

    async def handshake(self, mechanism: str) -> None:
        self.asked.append(mechanism)

    async def send(self, token: bytes) -> bytes:
        self.asked.append(token)
        return self.answers.pop(0)


def random(count: int) -> bytes:
    return bytes(count)


def login(mechanism: str = "SCRAM-SHA-256") -> Security:
    return Security(protocol="SASL_SSL", mechanism=mechanism, username="alice", password="wonder land")


@pytest.mark.asyncio
async def test_plain_sends_name_and_password() -> None:
    broker = Broker(b"")
    await login("PLAIN").authenticate(broker)

    assert broker.asked == ["PLAIN", b"\0alice\0wonder land"]


@pytest.mark.asyncio
async def test_nothing_is_said_without_a_login() -> None:
    broker = Broker()
    await Security(protocol="SSL").authenticate(broker)

    assert not broker.asked


@pytest.mark.asyncio
async def test_a_nonce_comes_from_the_random_bytes() -> None:
    broker = Broker(b"r=other,s=QUJD,i=4096")

    with pytest.raises(LoginError, match="another login"):
        await login().authenticate(broker, random=random)

    assert broker.asked == ["SCRAM-SHA-256", b"n,,n=alice,r=" + b"A" * 32]


@pytest.mark.asyncio
async def test_a_login_without_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless:
        def first(self) -> bytes:
            return b"hello"

        def next(self, message: bytes) -> bytes:
            return message

    monkeypatch.setattr(Security, "_login", lambda *_: Endless())
    broker = Broker(*[b"again"] * 10)

    with pytest.raises(LoginError, match=f"within {ROUNDS_MAX} messages"):
        await login().authenticate(broker)


def test_what_aiokafka_is_given() -> None:
    arguments = login().for_aiokafka()

    assert arguments.pop("ssl_context").check_hostname
    assert arguments == {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": "alice",
        "sasl_plain_password": "wonder land",
    }
    assert Security().for_aiokafka() == {"security_protocol": "PLAINTEXT"}


def test_the_password_is_not_shown() -> None:
    assert "wonder" not in repr(login())
    with pytest.raises(BadSecurity) as refused:
        Security(protocol="SSL", username="alice", password="wonder land")
    assert "wonder" not in str(refused.value)


def test_a_password_file_has_a_password(tmp_path: Path) -> None:
    empty, binary = tmp_path / "empty", tmp_path / "binary"
    empty.write_text("\nsecond line\n", encoding="utf-8")
    binary.write_bytes(b"\xff")

    for file, reason in ((empty, "no password in its first line"), (binary, "no UTF-8"), (tmp_path, "cannot be read")):
        with pytest.raises(ClientError, match=reason):
            find_password("", file, {})


def test_the_machines_own_authorities_are_trusted_when_none_is_named() -> None:
    context = Security(protocol="SSL").ssl_context()

    assert context is not None
    assert context.check_hostname
    assert Security().ssl_context() is None
