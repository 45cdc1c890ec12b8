"""The file of users, and users that were made over the wire."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from flowshare.log.base import StorageDamaged
from flowshare.server.security.credentials import hashed
from flowshare.server.security.users import PREFIX, Users
from flowshare.server.security.users_file import BadUsersFile, entry, parse_users, read_users
from tests.server.security.logins import memory, numbered, users

HASHED = str(hashed("SCRAM-SHA-256", "word", salt=b"salt"))


def test_a_file_has_passwords_and_hashed_passwords() -> None:
    line = entry("bob", "builder", mechanism="SCRAM-SHA-512", salt=b"salt")
    found = parse_users(f"# people\n\n alice = wonder=land \n{line}\n", where="users")

    assert found.passwords == {"alice": "wonder=land"}
    assert found.hashed["SCRAM-SHA-512", "bob"].matches("builder")
    assert "wonder" not in repr(found)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "users has no user"),
        ("alice", "line 1: write name=password"),
        ("alice=", "line 1: write name=password"),
        ("ali ce=word", "line 1: write name=password"),
        ("alice=word\nalice=other", "line 2: the user alice stands here twice"),
        (f"alice=word\nalice: {HASHED}", "line 2: the user alice stands here twice"),
        (f"alice: {HASHED}\nalice=word", "line 2: the user alice stands here twice"),
        (f"alice: {HASHED}\nalice: {HASHED}", "line 2: the user alice stands here twice"),
        ("alice: SCRAM-SHA-256=QUJD,4096,QUJD", "stand salt,iterations"),
        ("alice: SCRAM-SHA-256=QUJD,few,QUJD,QUJD", "stand salt,iterations"),
        ("alice: SCRAM-SHA-256=QUJD,100,QUJD,QUJD", "iterations are not from 4096"),
        ("alice: SCRAM-SHA-256=QUJD,99999,QUJD,QUJD", "iterations are not from 4096 to 16384"),
        ("alice: SCRAM-SHA-256=QUJD,4096,QUJD,QUJD", "do not have the 32 bytes"),
        ("alice: SCRAM-SHA-256=?,4096,QUJD,QUJD", "no base64"),
        ("alice: SCRAM-SHA-256=,4096,QUJD,QUJD", "the salt does not have"),
        ("alice=" + "x" * 2000, "line 1: the line is longer"),
        ("x" * 300 + "=word", "1 to 255 characters"),
        ("jose\u0301=word", "name is not in its normal form"),
        ("alice=cafe\u0301", "password of alice is not in its normal form"),
    ],
)
def test_a_bad_line_is_named(text: str, reason: str) -> None:
    with pytest.raises(BadUsersFile, match=reason) as refused:
        parse_users(text, where="users")

    assert "cafe" not in str(refused.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")

    with pytest.raises(BadUsersFile, match=r"missing cannot be read: No such file"):
        read_users(tmp_path / "missing")
    with pytest.raises(BadUsersFile, match=r"binary cannot be read: it is no UTF-8"):
        read_users(tmp_path / "binary")


def test_passwords_that_others_can_read_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "users"
    file.write_text("alice=wonder\n", encoding="utf-8")

    with caplog.at_level(logging.WARNING):
        file.chmod(0o600)
        read_users(file)
        assert not caplog.records
        file.chmod(0o644)
        read_users(file)

    assert "run chmod 600" in caplog.text
    assert "wonder" not in caplog.text


@pytest.mark.asyncio
async def test_users_made_over_the_wire_are_there_after_a_restart() -> None:
    storage = memory()
    first = await users(storage=storage)
    await first.alter([("carol", hashed("SCRAM-SHA-256", "word", salt=b"salt"))], [])

    again = await users("", storage=storage)
    assert again.password_fits("carol", "word")
    assert list(again.all()) == ["carol"]

    await again.alter([], [("SCRAM-SHA-256", "carol")])
    assert not (await users("", storage=storage)).all()


@pytest.mark.asyncio
async def test_what_the_file_says_goes_before_what_is_stored() -> None:
    storage = memory()
    await (await users("", storage=storage)).alter([("alice", hashed("SCRAM-SHA-256", "old", salt=b"salt"))], [])

    found = await users("alice=new\n", storage=storage)

    assert found.password_fits("alice", "new")
    assert not found.password_fits("alice", "old")
    assert found.fixed("alice")


@pytest.mark.asyncio
async def test_a_stored_user_that_cannot_be_read_stops_the_start() -> None:
    storage = memory()
    await storage.write([(PREFIX + b"SCRAM-SHA-256/alice", b"garbage")])

    with pytest.raises(StorageDamaged, match="a stored user cannot be read"):
        await Users(storage).start(numbered)
