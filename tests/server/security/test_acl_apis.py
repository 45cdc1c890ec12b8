"""DescribeAcls, CreateAcls and DeleteAcls over real sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from flowshare.clock import LoopClock
from flowshare.log.memory import MemoryStorage
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey
from flowshare.server.edge import acls as acl_apis
from flowshare.server.edge.acls import AclApis
from flowshare.server.runtime.turns import TURN, Turns
from flowshare.server.security.acl_store import AclStore
from tests.server.security.broker import ACLS, Talk, parts, secured

pytestmark = pytest.mark.asyncio

READ, WRITE, ALTER, ANY = 3, 4, 7, 1
TOPIC, GROUP, CLUSTER = 2, 3, 4
LITERAL, PREFIXED, MATCH = 3, 4, 2
DENY, ALLOW = 2, 3

GOOD = {
    "resource_type": TOPIC,
    "resource_name": "paid",
    "resource_pattern_type": LITERAL,
    "principal": "User:bob",
    "host": "*",
    "operation": READ,
    "permission_type": ALLOW,
}
EVERYTHING = {
    "resource_type_filter": ANY,
    "resource_name_filter": None,
    "pattern_type_filter": ANY,
    "principal_filter": None,
    "host_filter": None,
    "operation": ANY,
    "permission_type": ANY,
}


async def create(talk: Talk, *bindings, version: int = 3) -> list[tuple[ErrorCode, str | None]]:
    """Codes and texts."""
    creations = parts("create_acls", version, AclCreation=[GOOD | binding for binding in bindings])
    answer = await talk.ask("create_acls", version, creations=creations)
    return [(ErrorCode(int(result.error_code)), result.error_message) for result in answer.results]


async def describe(talk: Talk, *, version: int = 3, **wanted):
    """Code and the bindings found: kind, name, pattern, principal, host, operation, permission."""
    answer = await talk.ask("describe_acls", version, **(EVERYTHING | wanted))
    return ErrorCode(int(answer.error_code)), [
        (
            resource.resource_type,
            resource.resource_name,
            resource.pattern_type,
            acl.principal,
            acl.host,
            acl.operation,
            acl.permission_type,
        )
        for resource in answer.resources
        for acl in resource.acls
    ]


async def delete(talk: Talk, *filters, version: int = 3):
    """For each filter its code, and codes and names of what it found."""
    wanted = parts("delete_acls", version, DeleteAclsFilter=[EVERYTHING | one for one in filters])
    answer = await talk.ask("delete_acls", version, filters=wanted)
    return [
        (
            ErrorCode(int(result.error_code)),
            [(ErrorCode(int(acl.error_code)), acl.resource_name) for acl in result.matching_acls],
        )
        for result in answer.filter_results
    ]


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_bindings_are_made_found_and_removed(tmp_path: Path, version: int) -> None:
    async with secured(tmp_path, acls="") as broker:
        talk = await broker.as_user()
        prefixed = {"resource_name": "pa", "resource_pattern_type": PREFIXED, "permission_type": DENY}
        assert await create(talk, {}, prefixed, version=version) == [(ErrorCode.NONE, None)] * 2

        both = [
            (TOPIC, "pa", PREFIXED, "User:bob", "*", READ, DENY),
            (TOPIC, "paid", LITERAL, "User:bob", "*", READ, ALLOW),
        ]
        assert await describe(talk, version=version) == (ErrorCode.NONE, both)
        found = await describe(
            talk, version=version, resource_type_filter=TOPIC, resource_name_filter="paid", pattern_type_filter=MATCH
        )
        assert found == (ErrorCode.NONE, both)
        assert await describe(talk, version=version, principal_filter="User:alice") == (ErrorCode.NONE, [])

        removed = await delete(talk, {"permission_type": DENY}, {"operation": WRITE}, version=version)
        assert removed == [(ErrorCode.NONE, [(ErrorCode.NONE, "pa")]), (ErrorCode.NONE, [])]
        assert (await describe(talk, version=version))[1] == both[1:]


async def test_a_new_binding_acts_at_once(tmp_path: Path) -> None:
    async with secured(tmp_path, acls="") as broker:
        admin, bob = await broker.as_user(), await broker.as_user("bob", "builder")
        assert await describe(bob) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, [])

        cluster = {"resource_type": CLUSTER, "resource_name": "kafka-cluster", "operation": ALTER}
        assert (await create(admin, cluster))[0][0] is ErrorCode.NONE

        assert (await describe(bob))[0] is ErrorCode.NONE
        await delete(admin, {})
        assert (await describe(bob))[0] is ErrorCode.CLUSTER_AUTHORIZATION_FAILED


async def test_who_may_not_alter_the_cluster_changes_nothing(tmp_path: Path) -> None:
    async with secured(tmp_path, acls=ACLS + "allow User:bob describe cluster\n") as broker:
        talk = await broker.as_user("bob", "builder")

        assert (await create(talk, {}, {}))[1][0] is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert await delete(talk, {}) == [(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, [])]
        assert len((await describe(talk))[1]) == 4


async def test_what_stands_in_the_file_is_described_and_stays(tmp_path: Path) -> None:
    async with secured(tmp_path, acls=ACLS) as broker:
        talk = await broker.as_user()
        assert len((await describe(talk))[1]) == 3

        removed = await delete(talk, {"resource_type_filter": GROUP})

        assert removed == [(ErrorCode.NONE, [(ErrorCode.POLICY_VIOLATION, "billing")])]
        assert len((await describe(talk))[1]) == 3


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"resource_type": ANY}, "not 'any'"),
        ({"operation": ANY}, "not 'any'"),
        ({"permission_type": ANY}, "not 'any'"),
        ({"resource_type": 7}, "resource type 7"),
        ({"operation": 99}, "operation 99"),
        ({"permission_type": 0}, "permission type 0"),
        ({"resource_pattern_type": MATCH}, "LITERAL or PREFIXED"),
        ({"resource_name": ""}, "names a thing"),
        ({"resource_type": CLUSTER}, "kafka-cluster"),
        ({"principal": "bob"}, "User:name"),
        ({"host": ""}, "has a host"),
        ({"resource_name": "x" * 2000}, "at most 1024"),
    ],
)
async def test_a_binding_that_is_wrong_spoils_no_other(tmp_path: Path, wrong, reason: str) -> None:
    async with secured(tmp_path, acls="") as broker:
        talk = await broker.as_user()
        bad, good = await create(talk, wrong, {})

        assert bad[0] is ErrorCode.INVALID_REQUEST
        assert reason in str(bad[1])
        assert good == (ErrorCode.NONE, None)
        assert len((await describe(talk))[1]) == 1


async def test_a_filter_that_is_wrong_spoils_no_other(tmp_path: Path) -> None:
    async with secured(tmp_path, acls="") as broker:
        talk = await broker.as_user()
        await create(talk, {})

        assert await describe(talk, pattern_type_filter=9) == (ErrorCode.INVALID_REQUEST, [])
        assert await delete(talk, {"pattern_type_filter": 0}, {}) == [
            (ErrorCode.INVALID_REQUEST, []),
            (ErrorCode.NONE, [(ErrorCode.NONE, "paid")]),
        ]


async def test_a_request_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acl_apis, "CREATED_MAX", 1)
    async with secured(tmp_path, acls="") as broker:
        talk = await broker.as_user()

        assert [code for code, _ in await create(talk, {}, {})] == [ErrorCode.INVALID_REQUEST] * 2
        assert await delete(talk, {}, {}) == [(ErrorCode.INVALID_REQUEST, [])] * 2


@pytest.mark.parametrize("limit", ["DELETED_MAX", "LOOKED_AT_MAX"])
async def test_what_one_request_removes_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(acl_apis, limit, 3)
    async with secured(tmp_path, acls="") as broker:
        talk = await broker.as_user()
        await create(talk, {}, {"resource_name": "other"})

        assert await delete(talk, {}, {}) == [(ErrorCode.INVALID_REQUEST, [])] * 2
        assert len((await describe(talk))[1]) == 2
        assert [code for code, _ in await delete(talk, {"resource_name_filter": "paid"}, {})] == [ErrorCode.NONE] * 2


async def test_a_request_of_many_filters_lets_others_run_after_every_few() -> None:
    filters = [SimpleNamespace(**EVERYTHING | {"resource_name_filter": f"n{number}"}) for number in range(4 * TURN)]
    clock = LoopClock()
    peer = SimpleNamespace(need=lambda *_: None, turns=Turns(clock))
    (deletes,) = (api for api in AclApis(AclStore(MemoryStorage(clock))).apis() if api.key is ApiKey.DELETE_ACLS)

    call = SimpleNamespace(peer=peer, version=3, request=SimpleNamespace(filters=filters))
    deleting = asyncio.ensure_future(deletes.answer(call))
    rounds = 0
    while not deleting.done():
        await asyncio.sleep(0)
        rounds += 1

    assert rounds >= 4
    assert len((await deleting).filter_results) == len(filters)


async def test_a_broker_without_acls_says_so(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker:
        talk = await broker.as_user()

        assert await describe(talk) == (ErrorCode.SECURITY_DISABLED, [])
        assert (await create(talk, {}))[0][0] is ErrorCode.SECURITY_DISABLED
        assert await delete(talk, {}) == [(ErrorCode.SECURITY_DISABLED, [])]
