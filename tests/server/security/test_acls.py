"""Which bindings permit what, held to a naive reading of Kafka's rules; filters; bindings that are durable."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowshare.log.base import StorageDamaged
from flowshare.protocol.rights import CLUSTER_NAME, Operation, ResourceType
from flowshare.server.security import acl_store
from flowshare.server.security.acl_store import PREFIX, AclStore, TooManyAcls
from flowshare.server.security.acls import Acl, AclFilter, Acls, Pattern
from tests.server.security.logins import memory

READ_ORDERS = Acl(principal="User:alice", operation=Operation.READ, resource=ResourceType.TOPIC, name="orders")

names = st.sampled_from(["*", "a", "ab", "abc", "b", "bc"])
people = st.sampled_from(["User:alice", "User:bob"])
hosts = st.sampled_from(["10.0.0.1", "10.0.0.2"])
operations = st.sampled_from(list(Operation))
kinds = st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP])
bindings = st.builds(
    Acl,
    principal=people | st.just("User:*"),
    operation=operations,
    resource=kinds,
    name=names,
    prefixed=st.booleans(),
    host=hosts | st.just("*"),
    allow=st.booleans(),
)

IMPLIES = {
    Operation.READ: Operation.DESCRIBE,
    Operation.WRITE: Operation.DESCRIBE,
    Operation.DELETE: Operation.DESCRIBE,
    Operation.ALTER: Operation.DESCRIBE,
    Operation.ALTER_CONFIGS: Operation.DESCRIBE_CONFIGS,
}


def naive(acls, principal, host, operation, resource, name) -> bool:
    """Every binding looked at, one rule after the other."""
    bearing = [
        acl
        for acl in acls
        if acl.resource == resource
        and (name.startswith(acl.name) if acl.prefixed else acl.name in ("*", name))
        and acl.principal in ("User:*", principal)
        and acl.host in ("*", host)
    ]
    denied = any(not acl.allow and acl.operation in (operation, Operation.ALL) for acl in bearing)
    permitted = any(
        acl.allow and (acl.operation in (operation, Operation.ALL) or IMPLIES.get(acl.operation) == operation)
        for acl in bearing
    )
    return permitted and not denied


@settings(max_examples=80, deadline=None)
@given(st.lists(bindings, max_size=12), st.lists(bindings, max_size=6), people, hosts, operations, kinds, names)
def test_the_index_decides_as_a_look_at_every_binding_does(held, removed, principal, host, operation, kind, name):
    acls = Acls(held + removed)
    for acl in removed:
        acls.remove(acl)
    left = set(held) - set(removed)

    assert acls.allowed(principal, host, operation, kind, name) == naive(left, principal, host, operation, kind, name)
    assert len(acls.matching(AclFilter())) == len(left)
    assert set(acls.matching(AclFilter())) == left


@settings(max_examples=80, deadline=None)
@given(st.lists(bindings, max_size=8), people, hosts, operations, kinds)
def test_somewhere_means_that_there_is_a_name_on_which_it_is_permitted(held, principal, host, operation, kind):
    # All names that the bindings tell apart: theirs, and theirs with something behind.
    candidates = {acl.name.replace("*", "") + more for acl in held for more in ("", "a", "b", "c", "z", "~")} - {""}
    possible = any(naive(held, principal, host, operation, kind, name) for name in candidates)

    allowed = Acls(held).allowed_somewhere(principal, host, operation, kind)

    assert allowed or not possible


def test_a_denial_of_everything_leaves_nothing_anywhere() -> None:
    everybody = Acl(principal="User:*", operation=Operation.ALL, resource=ResourceType.TOPIC, name="*", allow=False)
    prefix = Acl(
        principal="User:alice",
        operation=Operation.READ,
        resource=ResourceType.TOPIC,
        name="or",
        prefixed=True,
        allow=False,
    )

    def may(*acls: Acl) -> bool:
        return Acls(acls).allowed_somewhere("User:alice", "10.0.0.1", Operation.READ, ResourceType.TOPIC)

    assert may(READ_ORDERS)
    assert not may(READ_ORDERS, everybody)
    assert not may(READ_ORDERS, prefix)
    assert not may()


def test_describing_is_included_but_a_denied_reading_does_not_deny_it() -> None:
    deny = Acl(
        principal="User:alice", operation=Operation.WRITE, resource=ResourceType.TOPIC, name="orders", allow=False
    )
    acls = Acls([READ_ORDERS, deny])

    def may(operation: Operation) -> bool:
        return acls.allowed("User:alice", "10.0.0.1", operation, ResourceType.TOPIC, "orders")

    assert may(Operation.READ)
    assert may(Operation.DESCRIBE)
    assert not may(Operation.WRITE)
    assert not may(Operation.DESCRIBE_CONFIGS)


def test_super_users_may_everything_and_others_nothing_without_a_binding() -> None:
    store = AclStore(memory(), super_users=["User:root"])

    for principal, allowed in (("User:root", True), ("User:alice", False)):
        assert store.allowed(principal, "h", Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME) is allowed
        assert store.allowed_somewhere(principal, "h", Operation.READ, ResourceType.TOPIC) is allowed


@pytest.mark.parametrize(
    ("pattern", "name", "found"),
    [
        (Pattern.ANY, None, {"orders", "*", "or…", "pay"}),
        (Pattern.ANY, "orders", {"orders"}),
        (Pattern.LITERAL, None, {"orders", "*", "pay"}),
        (Pattern.LITERAL, "*", {"*"}),
        (Pattern.PREFIXED, None, {"or…"}),
        (Pattern.PREFIXED, "orders", set()),
        (Pattern.PREFIXED, "or", {"or…"}),
        (Pattern.MATCH, "orders", {"orders", "*", "or…"}),
        (Pattern.MATCH, "or", {"*", "or…"}),
        (Pattern.MATCH, None, {"orders", "*", "or…", "pay"}),
    ],
)
def test_a_filter_finds_by_pattern(pattern: Pattern, name: str | None, found: set[str]) -> None:
    def acl(name: str) -> Acl:
        return Acl(
            principal="User:alice",
            operation=Operation.READ,
            resource=ResourceType.TOPIC,
            name=name.rstrip("…"),
            prefixed=name.endswith("…"),
        )

    acls = Acls(map(acl, ("orders", "*", "or…", "pay")))

    assert set(acls.matching(AclFilter(pattern=pattern, name=name))) == set(map(acl, found))


@settings(max_examples=80, deadline=None)
@given(
    st.lists(bindings, max_size=12),
    st.lists(bindings, max_size=6),
    st.builds(
        AclFilter, resource=st.none() | kinds, name=st.none() | names, pattern=st.sampled_from(Pattern), host=st.none()
    ),
)
def test_a_filter_with_a_name_finds_what_a_look_at_every_binding_does(held, removed, wanted):
    acls = Acls(held + removed)
    for acl in removed:
        acls.remove(acl)

    assert set(acls.matching(wanted)) == {acl for acl in set(held) - set(removed) if wanted.matches(acl)}


def test_a_filter_finds_by_every_other_field() -> None:
    acls = Acls([READ_ORDERS])

    for field, right, wrong in (
        ("principal", "User:alice", "User:*"),
        ("operation", Operation.READ, Operation.ALL),
        ("resource", ResourceType.TOPIC, ResourceType.GROUP),
        ("host", "*", "10.0.0.1"),
        ("allow", True, False),
    ):
        assert acls.matching(AclFilter(**{field: right})) == [READ_ORDERS]
        assert not acls.matching(AclFilter(**{field: wrong}))


@pytest.mark.asyncio
async def test_bindings_are_there_after_a_restart_until_they_are_deleted() -> None:
    storage = memory()
    store = AclStore(storage)
    await store.create([READ_ORDERS, READ_ORDERS])

    again = AclStore(storage)
    await again.start()
    assert again.matching(AclFilter()) == [READ_ORDERS]
    assert again.allowed("User:alice", "h", Operation.READ, ResourceType.TOPIC, "orders")

    await again.delete([READ_ORDERS])
    assert not again.allowed("User:alice", "h", Operation.READ, ResourceType.TOPIC, "orders")
    assert not await storage.scan(PREFIX)


@pytest.mark.asyncio
async def test_a_files_bindings_stay() -> None:
    storage = memory()
    store = AclStore(storage, file=[READ_ORDERS])
    await store.create([READ_ORDERS])
    await store.delete([READ_ORDERS])

    assert store.from_file(READ_ORDERS)
    assert store.matching(AclFilter()) == [READ_ORDERS]
    assert not await storage.scan(PREFIX)


@pytest.mark.asyncio
async def test_bindings_over_the_wire_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acl_store, "STORED_MAX", 0)

    with pytest.raises(TooManyAcls, match="delete some first"):
        await AclStore(memory()).create([READ_ORDERS])


@pytest.mark.asyncio
@pytest.mark.parametrize("garbage", [b"garbage", b"[1]", b'[2,"a",false,"User:a","*",99,false]'])
async def test_a_stored_binding_that_cannot_be_read_stops_the_start(garbage: bytes) -> None:
    storage = memory()
    await storage.write([(PREFIX + garbage, b"")])

    with pytest.raises(StorageDamaged, match="a stored ACL cannot be read"):
        await AclStore(storage).start()
