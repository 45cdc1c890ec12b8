"""The file of ACLs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowshare.protocol.rights import CLUSTER_NAME, Operation, ResourceType
from flowshare.server.security.acl_file import BadAclFile, parse_acls, read_acls
from flowshare.server.security.acls import Acl


def test_a_line_is_a_binding() -> None:
    text = """
    # who may do what
    allow User:alice read topic orders
    ALLOW User:alice READ GROUP billing- PREFIXED
    allow "User:CN=etl,O=My Shop" write topic * from 10.0.0.7
    deny User:* all topic prefixed
    allow User:root alter cluster
    allow User:root describe cluster kafka-cluster from ::1
    allow User:alice write transactional_id "my tx"
    """

    assert parse_acls(text, where="acls") == (
        Acl(principal="User:alice", operation=Operation.READ, resource=ResourceType.TOPIC, name="orders"),
        Acl(
            principal="User:alice",
            operation=Operation.READ,
            resource=ResourceType.GROUP,
            name="billing-",
            prefixed=True,
        ),
        Acl(
            principal="User:CN=etl,O=My Shop",
            operation=Operation.WRITE,
            resource=ResourceType.TOPIC,
            name="*",
            host="10.0.0.7",
        ),
        Acl(
            principal="User:*",
            operation=Operation.ALL,
            resource=ResourceType.TOPIC,
            name="prefixed",
            allow=False,
        ),
        Acl(principal="User:root", operation=Operation.ALTER, resource=ResourceType.CLUSTER, name=CLUSTER_NAME),
        Acl(
            principal="User:root",
            operation=Operation.DESCRIBE,
            resource=ResourceType.CLUSTER,
            name=CLUSTER_NAME,
            host="::1",
        ),
        Acl(
            principal="User:alice",
            operation=Operation.WRITE,
            resource=ResourceType.TRANSACTIONAL_ID,
            name="my tx",
        ),
    )


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("allow User:a read", "3 words are too few"),
        ("permit User:a read topic t", "begins with 'permit'"),
        ("allow alice read topic t", "'alice' is no User:name"),
        ("allow User: read topic t", "'User:' is no User:name"),
        ("allow User:a reed topic t", "'reed' cannot be done to a topic; known: all, read"),
        ("allow User:a write group g", "'write' cannot be done to a group"),
        ("allow User:a read queue q", "'queue' is no kind of thing; known: topic, group"),
        ("allow User:a read topic", "stands one name, and there is ''"),
        ('allow User:a read topic ""', "stands one name, and there is ''"),
        ("allow User:a read topic t u", "stands one name, and there is 't u'"),
        ("allow User:a read topic t from here", "'here' is no address"),
        ("allow User:a alter cluster mine", "a cluster has no name"),
        ('allow User:a read topic "t', "double quote"),
    ],
)
def test_a_line_that_is_wrong_is_named_with_what_is_wrong(line: str, reason: str) -> None:
    with pytest.raises(BadAclFile, match="acls line 2: ") as refused:
        parse_acls(f"# comment\n{line}\n", where="acls")

    assert reason in str(refused.value)


def test_a_line_that_stands_twice_is_named() -> None:
    with pytest.raises(BadAclFile, match="line 2: the same as line 1"):
        parse_acls("allow User:a read topic t\nALLOW User:a READ TOPIC t from *\n", where="acls")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff")
    (tmp_path / "good").write_text("allow User:a read topic t\n", encoding="utf-8")

    assert len(read_acls(tmp_path / "good")) == 1
    with pytest.raises(BadAclFile, match="binary cannot be read: it is no UTF-8"):
        read_acls(tmp_path / "binary")
    with pytest.raises(BadAclFile, match="missing cannot be read: No such file"):
        read_acls(tmp_path / "missing")


WORDS = [
    "allow",
    "deny",
    "User:a",
    "User:*",
    "read",
    "all",
    "topic",
    "cluster",
    "*",
    "prefixed",
    "from",
    "::1",
    '"',
    "#",
    "\n",
]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(WORDS) | st.text(max_size=4), max_size=12))
def test_any_text_is_bindings_or_refused_with_its_line(words: list[str]) -> None:
    acls: tuple[Acl, ...] = ()
    refusal = "acls line "
    try:
        acls = parse_acls(" ".join(words), where="acls")
    except BadAclFile as error:
        refusal = str(error)

    assert refusal.startswith("acls line ")
    assert len(set(acls)) == len(acls)
