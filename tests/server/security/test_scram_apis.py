"""DescribeUserScramCredentials and AlterUserScramCredentials over real sockets."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from flowshare.protocol.errors import ErrorCode
from flowshare.server.edge import sasl as scram
from tests.server.security.broker import Talk, parts, secured

pytestmark = pytest.mark.asyncio

SHA_256, SHA_512 = 1, 2


def put(name: str, password: str = "word", *, mechanism: int = SHA_256, **other):
    """Return the fields that a client sends to set a password."""
    digest = {SHA_256: "sha256"}.get(mechanism, "sha512")
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), b"salt", 4096)
    fields = {"name": name, "mechanism": mechanism, "iterations": 4096, "salt": b"salt", "salted_password": salted}
    return fields | other


async def alter(talk: Talk, *puts, gone=()) -> dict[str, ErrorCode]:
    """Code by user."""
    name = "alter_user_scram_credentials"
    answer = await talk.ask(
        name,
        0,
        deletions=parts(name, 0, ScramCredentialDeletion=[{"name": user, "mechanism": code} for user, code in gone]),
        upsertions=parts(name, 0, ScramCredentialUpsertion=puts),
    )
    return {result.user: ErrorCode(int(result.error_code)) for result in answer.results}


async def described(talk: Talk, *users: str):
    """By user: code, and mechanism and iterations of all credentials."""
    name = "describe_user_scram_credentials"
    asked = parts(name, 0, UserName=[{"name": user} for user in users]) if users else None
    answer = await talk.ask(name, 0, users=asked)
    assert int(answer.error_code) == 0
    return {
        result.user: (
            ErrorCode(int(result.error_code)),
            [(info.mechanism, info.iterations) for info in result.credential_infos],
        )
        for result in answer.results
    }


async def test_a_user_made_over_the_wire_can_log_in_until_it_is_removed(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker:
        talk = await broker.as_user()
        assert await alter(talk, put("carol"), put("carol", mechanism=SHA_512)) == {"carol": ErrorCode.NONE}
        assert (await described(talk, "carol"))["carol"] == (ErrorCode.NONE, [(SHA_256, 4096), (SHA_512, 4096)])
        await broker.as_user("carol", "word")

        assert await alter(talk, gone=[("carol", SHA_256), ("carol", SHA_512)]) == {"carol": ErrorCode.NONE}

        refused = await (await broker.connect()).log_in("carol", "word")
        assert ErrorCode(int(refused.error_code)) is ErrorCode.SASL_AUTHENTICATION_FAILED


async def test_all_users_are_described_when_none_is_named(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker:
        found = await described(await broker.as_user())

    assert sorted(found) == ["admin", "alice", "bob"]


async def test_unknown_users_and_users_named_twice_are_told(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker:
        found = await described(await broker.as_user(), "carol", "alice", "alice")

    assert found == {"carol": (ErrorCode.RESOURCE_NOT_FOUND, []), "alice": (ErrorCode.DUPLICATE_RESOURCE, [])}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (put("alice"), ErrorCode.POLICY_VIOLATION),
        (put("carol", iterations=100), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (put("carol", iterations=100_000), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (put("carol", salt=b""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (put("carol", salted_password=b"short"), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (put("car ol"), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (put(""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (put("carol", mechanism=9), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
    ],
)
async def test_a_change_that_is_refused_spoils_no_other(tmp_path: Path, change, code: ErrorCode) -> None:
    async with secured(tmp_path) as broker:
        talk = await broker.as_user()

        assert await alter(talk, change, put("dave")) == {change["name"]: code, "dave": ErrorCode.NONE}
        assert sorted(await described(talk)) == ["admin", "alice", "bob", "dave"]


async def test_a_users_changes_are_made_together_or_not_at_all(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker:
        talk = await broker.as_user()

        assert await alter(talk, put("carol"), put("carol")) == {"carol": ErrorCode.DUPLICATE_RESOURCE}
        assert await alter(talk, put("carol"), gone=[("carol", SHA_512)]) == {"carol": ErrorCode.RESOURCE_NOT_FOUND}
        assert "carol" not in await described(talk)


async def test_a_request_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scram, "CHANGES_MAX", 1)
    async with secured(tmp_path) as broker:
        talk = await broker.as_user()

        assert set((await alter(talk, put("a"), put("b"))).values()) == {ErrorCode.INVALID_REQUEST}


async def test_users_are_shown_and_changed_by_those_who_may(tmp_path: Path) -> None:
    async with secured(tmp_path, acls="allow User:bob describe cluster\n") as broker:
        bob, alice = await broker.as_user("bob", "builder"), await broker.as_user("alice", "wonder land")
        assert len(await described(bob)) == 3
        assert await alter(bob, put("carol")) == {"carol": ErrorCode.CLUSTER_AUTHORIZATION_FAILED}

        answer = await alice.ask("describe_user_scram_credentials", 0, users=None)
        assert ErrorCode(int(answer.error_code)) is ErrorCode.CLUSTER_AUTHORIZATION_FAILED


async def test_there_are_only_so_many_credentials_however_many_a_request_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scram, "STORED_MAX", 2)
    async with secured(tmp_path) as broker:
        talk = await broker.as_user()
        assert await alter(talk, *(put(name) for name in ("u", "v", "w"))) == {
            "u": ErrorCode.NONE,
            "v": ErrorCode.NONE,
            "w": ErrorCode.POLICY_VIOLATION,
        }
        assert await alter(talk, put("u", "another")) == {"u": ErrorCode.NONE}
        assert await alter(talk, put("w")) == {"w": ErrorCode.POLICY_VIOLATION}
