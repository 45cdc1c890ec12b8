"""Logins by PLAIN and SCRAM, both ends, without a network."""

from __future__ import annotations

import base64
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowshare.client.net.login import LoginError, ScramClient
from flowshare.protocol import scram
from flowshare.server.security.credentials import Credential, hashed
from flowshare.server.security.sasl import (
    MECHANISMS,
    WRONG,
    LoginFailed,
    PlainLogin,
    Sasl,
    ScramLogin,
    UnknownMechanism,
)
from tests.server.security.logins import client, log_in, memory, numbered, sasl, users

pytestmark = pytest.mark.asyncio

FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
CHALLENGE = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
FINAL = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
VERIFIED = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


async def test_rfc_7677s_example_is_spoken_by_both_ends() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    found = await users(f"user: {hashed('SCRAM-SHA-256', 'pencil', salt=salt)}")
    server = ScramLogin(found, "SCRAM-SHA-256", nonce="%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    own = ScramClient("SCRAM-SHA-256", "user", "pencil", nonce="rOprNGfwEbeRWgbNEkqO")

    assert own.first() == FIRST
    assert server.step(FIRST).reply == CHALLENGE
    assert own.next(CHALLENGE) == FINAL
    step = server.step(FINAL)
    assert (step.reply, step.user) == (VERIFIED, "user")
    assert own.next(VERIFIED) is None


async def test_rfc_5802s_example_has_its_proof_and_signature() -> None:
    salted = scram.salted_password("sha1", b"pencil", base64.b64decode("QSXCR+Q6sek8bf92"), 4096)
    nonce = "fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j"
    dialogue = f"n=user,r=fyko+d2lbbFgONRv9qkxdawL,r={nonce},s=QSXCR+Q6sek8bf92,i=4096,c=biws,r={nonce}".encode()

    assert scram.base64_of(scram.client_proof("sha1", salted, dialogue)) == "v0X8v3Bz2T0CJGbJQyF0X+HI4Ts="
    signature = scram.keyed("sha1", scram.server_key("sha1", salted), dialogue)
    assert scram.base64_of(signature) == "rmF9pqV8S7suAoZWja4dJRkFsKQ="


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_the_right_password_logs_in(mechanism: str) -> None:
    assert log_in(await sasl(), mechanism, "alice", "wonder land") == "alice"


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_a_wrong_password_and_an_unknown_user_look_the_same(mechanism: str) -> None:
    server = await sasl()

    for name, password in (("alice", "builder"), ("carol", "builder"), ("alice", "\x07")):
        with pytest.raises(LoginFailed) as failed:
            log_in(server, mechanism, name, password)
        assert str(failed.value) == WRONG


async def test_an_unknown_user_gets_a_salt_that_stays_even_after_a_restart() -> None:
    storage = memory()
    first = await users(storage=storage)
    again = await users(storage=storage)

    for found in (first, again):
        for name in ("alice", "carol"):
            credential, _ = found.credential("SCRAM-SHA-512", name)
            assert credential.salt == first.credential("SCRAM-SHA-512", name)[0].salt
            assert (len(credential.salt), credential.iterations, len(credential.stored_key)) == (16, 4096, 64)
    assert first.credential("SCRAM-SHA-512", "carol")[1] is False


def unlike(count: int) -> str:
    """A file of users of whom every other one was hashed by Kafka's tools, more often, and for one mechanism only."""
    kafka = hashed("SCRAM-SHA-512", "pencil", salt=b"0123456789abcdefghijklmnop", iterations=8192)
    return "\n".join(f"user{n}: {kafka}" if n % 2 else f"user{n}=pencil" for n in range(count))


async def test_names_of_no_user_look_as_different_as_those_of_users() -> None:
    found = await users(unlike(4))

    def look(name: str) -> tuple[int, int]:
        credential, _ = found.credential("SCRAM-SHA-512", name)
        return credential.iterations, len(credential.salt)

    looks = {name: look(name) for name in map(str, range(200))}
    assert set(looks.values()) == {(4096, 16), (8192, 26)}
    assert 60 < list(looks.values()).count((8192, 26)) < 140
    letters = [salt for name in looks if len(salt := found.credential("SCRAM-SHA-512", name)[0].salt) == 26]
    assert all(salt.isalnum() and salt.islower() for salt in letters)
    assert len(set(letters)) == len(letters)
    assert {look(name) for name in ("user0", "user1")} == set(looks.values())
    assert {found.credential("SCRAM-SHA-256", name)[0].iterations for name in looks} == {4096}

    new = hashed("SCRAM-SHA-512", "pencil", salt=b"s" * 26, iterations=8192)
    await found.alter([("new", new)], [])
    assert sum(look(name) != before for name, before in looks.items()) < 40


async def test_names_of_no_user_look_like_a_user_that_the_process_made_itself() -> None:
    found = await users("")
    found.fix("own", hashed("SCRAM-SHA-512", "pencil", salt=b"s" * 24, iterations=8192))

    credential, known = found.credential("SCRAM-SHA-512", "other")
    assert (credential.iterations, len(credential.salt), known) == (8192, 24, False)


async def test_a_password_is_hashed_as_often_for_a_name_of_no_user_as_for_one_of_a_user(monkeypatch) -> None:
    found = await users(unlike(4))
    hashes: list[tuple[str, int]] = []

    def count(digest: str, password: bytes, salt: bytes, iterations: int) -> bytes:
        hashes.append((digest, iterations))
        return bytes(64)

    monkeypatch.setattr("flowshare.server.security.credentials.salted_password", count)
    for name in map(str, range(40)):
        assert not found.password_fits(name, "guess")
    unknown = set(hashes)
    hashes.clear()
    for name in ("user0", "user1"):
        assert not found.password_fits(name, "guess")

    assert set(hashes) == unknown == {("sha256", 4096), ("sha512", 8192)}


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"x" * 5000, "longer than"),
        (b"\xff\xfe", "no UTF-8"),
        (b"n=user,r=abc", "begin with n,,"),
        (b"q,,n=user,r=abc", "begin with n,,"),
        (b"p=tls-unique,,n=user,r=abc", "channel binding"),
        (b"n,,r=abc,n=user", "in this order"),
        (b"n,,n=user", "in this order"),
        (b"n,,m=ext,n=user,r=abc", "extension"),
        (b"n,,n=us=er,r=abc", "bare '='"),
        (b"n,,n=us\x07er,r=abc", "character"),
        (b"n,,n=,r=abc", "empty"),
        (b"n,,n=user,r=", "empty"),
        (b"n,a=other,n=user,r=abc", "act for another"),
        (b"n,other,n=user,r=abc", "act for another"),
    ],
)
async def test_a_first_message_that_is_not_scram_is_refused(message: bytes, reason: str) -> None:
    login = (await sasl()).login("SCRAM-SHA-256")

    with pytest.raises(LoginFailed, match=reason):
        login.step(message)
    with pytest.raises(LoginFailed, match="over already"):
        login.step(b"n,,n=alice,r=abc")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda final: final.replace(b"c=biws", b"c=eSws"), "go on with the login"),
        (lambda final: final.replace(b"r=clientnonce", b"r=othernonce!"), "go on with the login"),
        (lambda final: final.replace(b"c=biws", b"c=?"), "no base64"),
        (lambda final: final.rpartition(b",p=")[0], "in this order"),
        (lambda final: final.rpartition(b",p=")[0] + b",p=AAAA", WRONG),
        (lambda final: final.rpartition(b",p=")[0] + b",p=" + base64.b64encode(bytes(32)), WRONG),
        (lambda _: b"", "in this order"),
    ],
)
async def test_a_final_message_that_proves_nothing_is_refused(change, reason: str) -> None:
    login, own = (await sasl()).login("SCRAM-SHA-256"), client("SCRAM-SHA-256", "alice", "wonder land")
    final = own.next(login.step(own.first()).reply)

    with pytest.raises(LoginFailed, match=reason):
        login.step(change(final))
    with pytest.raises(LoginFailed, match="over already"):
        login.step(final)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"alice", "is not"),
        (b"\0alice\0", "is not"),
        (b"\0\0builder", "is not"),
        (b"\0alice\0a\0b", "is not"),
        (b"\0alice\0" + b"x" * 5000, "is not"),
        (b"\0\xff\0builder", "no UTF-8"),
        (b"\0al\x07ice\0builder", "cannot be one"),
        (b"bob\0alice\0wonder land", "act for another"),
    ],
)
async def test_a_plain_message_that_is_none_is_refused(message: bytes, reason: str) -> None:
    with pytest.raises(LoginFailed, match=reason):
        PlainLogin(await users()).step(message)


async def test_a_plain_login_is_tried_once() -> None:
    login = PlainLogin(await users())
    with pytest.raises(LoginFailed, match=WRONG):
        login.step(b"\0alice\0no")
    with pytest.raises(LoginFailed, match="over already"):
        login.step(b"\0alice\0wonder land")


async def test_names_and_passwords_may_be_written_in_another_unicode_form() -> None:
    server = await sasl("jos\u00e9=caf\u00e9\n")

    assert log_in(server, "PLAIN", "jose\u0301", "cafe\u0301") == "jos\u00e9"
    assert log_in(server, "SCRAM-SHA-256", "jose\u0301", "caf\u00e9") == "jos\u00e9"


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"e=other-error", "refused: other-error"),
        (b"r=stranger,s=QUJD,i=4096", "another login"),
        (b"r=clientnonce,s=QUJD,i=4096", "another login"),
        (b"r=clientnonceX,s=QUJD,i=1", "iterations"),
        (b"r=clientnonceX,s=QUJD,i=999999999999", "iterations"),
        (b"r=clientnonceX,s=QUJD,i=many", "iterations"),
        (b"r=clientnonceX,s=?,i=4096", "base64"),
        (b"s=QUJD", "in this order"),
        (b"\xff", "UTF-8"),
    ],
)
async def test_a_client_refuses_a_broker_whose_first_words_are_wrong(message: bytes, reason: str) -> None:
    with pytest.raises(LoginError, match=reason):
        client("SCRAM-SHA-256", "alice", "wonder land").next(message)


async def test_a_client_refuses_a_broker_that_does_not_know_the_user() -> None:
    own = client("SCRAM-SHA-256", "alice", "wonder land")
    own.next(b"r=clientnonceX,s=QUJD,i=4096")

    with pytest.raises(LoginError, match="could not prove"):
        own.next(b"v=" + base64.b64encode(bytes(32)))


async def test_only_mechanisms_that_are_on_are_spoken() -> None:
    found = await users()

    with pytest.raises(UnknownMechanism, match="none of"):
        Sasl(found, random=numbered, mechanisms=["GSSAPI"])
    with pytest.raises(UnknownMechanism, match="name at least one"):
        Sasl(found, random=numbered, mechanisms=[])
    with pytest.raises(UnknownMechanism, match="speaks SCRAM-SHA-512"):
        Sasl(found, random=numbered, mechanisms=["SCRAM-SHA-512"]).login("PLAIN")


async def test_what_is_kept_of_a_password_is_not_shown() -> None:
    credential = hashed("SCRAM-SHA-256", "secret", salt=b"salt")

    assert repr(credential) == "Credential(mechanism='SCRAM-SHA-256', iterations=4096)"
    assert Credential.parse(str(credential)) == credential


def pieces() -> st.SearchStrategy[bytes]:
    """Bytes that look a little like messages of a login."""
    words = [
        b"n,,",
        b"y,,",
        b"n=",
        b"r=",
        b"c=",
        b"p=",
        b"a=",
        b"m=",
        b",",
        b"=",
        b"alice",
        b"biws",
        b"AAAA",
        b"\0",
        b"=2C",
    ]
    return st.lists(st.sampled_from(words) | st.binary(max_size=4), max_size=8).map(b"".join)


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_whatever_comes_a_login_only_goes_on_or_fails(mechanism: str) -> None:
    server = await sasl()
    # The hash of a password takes too long for so many tries, and nothing here has the right one.
    server.users.password_fits = lambda name, password: False

    @settings(max_examples=100, deadline=None)
    @given(st.lists(pieces(), min_size=1, max_size=3))
    def speak(messages: list[bytes]) -> None:
        login = server.login(mechanism)
        with suppress(LoginFailed):
            for message in messages:
                assert login.step(message).user is None

    speak()


async def test_escaped_names_are_read_again() -> None:
    for name in ("plain", "a=b,c", "=2C", "=3D2C", ",="):
        assert scram.unescaped(scram.escaped(name)) == name
