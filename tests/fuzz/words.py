"""Words of a fuzzed session's client: requests made of earlier answers and of the client's memory.

A word is a function of `Speaker`; `WORDS` has the words in the order of their numbers. Bits of `arg` decide the group,
the topic and the partition of a word; the low bits are the word's own.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Final

import orjson
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from kio.schema.errors import ErrorCode as KafkaError

from flowshare.client.errors import ClientError
from flowshare.client.net.login import PlainClient, ScramClient
from flowshare.protocol.batches import CODECS
from flowshare.protocol.kafka import ApiKey
from flowshare.protocol.scram import salted_password
from flowshare.server.security.sasl import MECHANISMS
from flowshare.testing.clock import START_MS
from tests.fuzz.samples import TOPIC
from tests.fuzz.speaker import MADE_TOPIC, REMEMBERED_MAX, Request, Speaker, codes

part = SimpleNamespace
"""Type of the entities given to `kit.build`."""


def _ms(number: int) -> datetime.timedelta:
    return datetime.timedelta(milliseconds=number)


def _fine(answer: Any) -> bool:
    return codes(answer) <= {KafkaError.none}


# --- logins -----------------------------------------------------------------------------------------------------

WRONG_PASSWORD, ALICE, NOBODY = 4, 8, 16


def handshake(say: Speaker) -> Request:
    """Begin a login: the mechanism by two bits, the right password or a wrong one, as one of three users."""
    mechanism = (*MECHANISMS, "GSSAPI")[say.how & 3]
    name = "alice" if say.how & ALICE else "nobody" if say.how & NOBODY else "fuzz"
    password = "wrong" if say.how & WRONG_PASSWORD else f"{name}'s"
    login = (
        PlainClient(name, password)
        if mechanism == "PLAIN"
        else ScramClient(_hashing(mechanism), name, password, nonce="nonce")
    )
    say.client.logins[say.line] = (login, login.first())
    return Request(ApiKey.SASL_HANDSHAKE, {"mechanism": mechanism})


def _hashing(mechanism: str) -> str:
    return mechanism if mechanism in MECHANISMS else MECHANISMS[0]


AGAIN, EMPTY, NOISE = 1, 2, 3


def authenticate(say: Speaker) -> Request:
    """The login's next message, the same one again, or what is none."""
    login, token = say.client.logins.get(say.line, (None, b""))
    sent = (token or b"", token or b"", b"", random.Random(say.arg).randbytes(40))[say.how & 3]

    def then(answer: Any) -> None:
        reply = answer if isinstance(answer, bytes) else bytes(answer.auth_bytes)
        fine = isinstance(answer, bytes) or _fine(answer)
        if login is None or not fine or say.how & 3 == AGAIN:
            return
        try:
            following = login.next(reply)
        except ClientError:
            following = None
        say.client.logins[say.line] = (login, following)

    return Request(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": sent}, then)


def versions(say: Speaker) -> Request:
    """ApiVersions; as flowshare's own client, whose answers come in any order, or as another."""
    name = "flowshare" if say.how & 1 else "test"
    return Request(ApiKey.API_VERSIONS, {"client_software_name": name, "client_software_version": "1.0"})


# --- share groups -----------------------------------------------------------------------------------------------

JOIN, BEAT, LEAVE, SAME_TOPICS = 0, 1, 2, 4


def share_heartbeat(say: Speaker) -> Request:
    """Join a share group, go on, or leave it."""
    epoch = {JOIN: 0, BEAT: say.known("member_epoch", 1), LEAVE: -1}.get(say.how & 3, 0)
    member = say.known("member_id", "m") if say.how & 3 else f"member-{say.line}"
    return Request(
        ApiKey.SHARE_GROUP_HEARTBEAT,
        {
            "group_id": say.group("share"),
            "member_id": member,
            "member_epoch": epoch,
            "rack_id": None,
            "subscribed_topic_names": None if say.how & SAME_TOPICS else [TOPIC, say.topic],
        },
    )


OPEN, GO_ON, CLOSE = 0, 1, 2
ACCEPT, RELEASE, REJECT, RENEW, MIXED, NOTHING = 0, 4, 8, 12, 16, 20
PATIENT = 24
"""Acknowledges nothing and waits for records."""


def share_fetch(say: Speaker) -> Request:
    """Fetch in a share session: open it, go on, or close it; acknowledges what is held on the way."""
    member = say.known("member_id", f"member-{say.line}")
    topics, forget = _acknowledged(say)
    opened = say.how & 3 == OPEN
    fields = {
        "max_wait": _ms(5_000 if say.how & 28 == PATIENT else 0),
        "min_bytes": 1 if say.how & 28 == PATIENT else 0,
        "max_bytes": 1 << 20,
        "max_records": 10,
        "batch_size": 5,
        "share_acquire_mode": int(say.how & 28 == MIXED),
        "forgotten_topics_data": [part(topic_id=say.topic_id, partitions=(0,))] if say.how & 31 == 31 else [],
    }

    def then(answer: Any) -> None:
        if _fine(answer):
            forget()
        for topic in answer.responses:
            for one in topic.partitions:
                held = say.client.held[topic.topic_id, one.partition_index]
                held.extend((acquired.first_offset, acquired.last_offset) for acquired in one.acquired_records)
                del held[:-REMEMBERED_MAX]

    wanted = part(
        topic_id=say.topic_id,
        partitions=[part(partition_index=number, acknowledgement_batches=[]) for number in (0, 1)],
    )
    return _in_session(say, ApiKey.SHARE_FETCH, member, fields, [wanted] if opened else topics, then)


def share_acknowledge(say: Speaker) -> Request:
    """Acknowledge what is held: accept, release, reject, renew, or each record otherwise."""
    member = say.known("member_id", f"member-{say.line}")
    topics, forget = _acknowledged(say)

    def then(answer: Any) -> None:
        if _fine(answer):
            forget()

    return _in_session(say, ApiKey.SHARE_ACKNOWLEDGE, member, {}, topics, then)


def _in_session(
    say: Speaker, key: ApiKey, member: str, fields: dict[str, Any], topics: list[Any], then: Callable[[Any], None]
) -> Request:
    epoch = {OPEN: 0, CLOSE: -1}.get(say.how & 3, say.client.epochs[member])
    if say.how & 3 == GO_ON:
        say.client.note(say.line, "share_session_epoch", epoch)
        epoch = say.known("share_session_epoch", epoch)

    def after(answer: Any) -> None:
        if answer.error_code is KafkaError.none:
            say.client.epochs[member] = max(epoch, 0) + 1
        then(answer)

    common = {
        "group_id": say.group("share"),
        "member_id": member,
        "share_session_epoch": epoch,
        "is_renew_ack": say.how & 28 == RENEW,
        "topics": topics,
    }
    return Request(key, {**common, **fields}, after)


def _acknowledged(say: Speaker) -> tuple[list[Any], Callable[[], None]]:
    """Acknowledgements of all that is held, and what notes that they were taken."""
    kind = say.how & 28
    if kind in (NOTHING, PATIENT):
        return [], lambda: None
    said = {place: tuple(ranges) for place, ranges in say.client.held.items() if ranges}
    types = {ACCEPT: (1,), RELEASE: (2,), REJECT: (3,), RENEW: (4,)}.get(kind)
    topics = [
        part(
            topic_id=topic_id,
            partitions=[
                part(
                    partition_index=number,
                    acknowledgement_batches=[
                        part(
                            first_offset=first,
                            last_offset=last,
                            acknowledge_types=types or tuple(at % 4 for at in range(last - first + 1)),
                        )
                        for first, last in ranges
                    ],
                )
            ],
        )
        for (topic_id, number), ranges in said.items()
    ]

    def forget() -> None:
        if kind != RENEW:
            for place, ranges in said.items():
                say.client.held[place] = [one for one in say.client.held[place] if one not in ranges]

    return topics, forget


def share_described(say: Speaker) -> Request:
    """Look at share groups, their offsets, and change those."""
    group, topic = say.group("share"), say.topic
    kind = say.how & 3
    if kind == 0:
        return Request(
            ApiKey.SHARE_GROUP_DESCRIBE, {"group_ids": (group, group), "include_authorized_operations": True}
        )
    if kind == 1:
        asked = part(group_id=group, topics=[part(topic_name=topic, partitions=(0, 1))])
        return Request(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, {"groups": [asked]})
    named = part(
        topic_name=topic, partitions=[part(partition_index=say.partition, start_offset=say.known("base_offset", 0))]
    )
    key = ApiKey.ALTER_SHARE_GROUP_OFFSETS if kind == 2 else ApiKey.DELETE_SHARE_GROUP_OFFSETS
    return Request(key, {"group_id": group, "topics": [named]})


def private(say: Speaker) -> Request:
    """Flowshare's own calls about what a member holds, and of who looks at it or acts on it."""
    group, topic_id = say.group("share"), say.topic_id.hex
    member = say.known("member_id", f"member-{say.line}")
    held = [[first, last] for first, last in say.client.held[say.topic_id, say.partition]]
    body: dict[str, Any]
    if say.how & 12:
        place = {"topic": say.topic, "partition": say.partition}
        acts = ("release", "reject", "dead_letter", "now")
        body = {
            4: {"call": "share_browse", **place, "limit": 5, "states": []},
            8: {"call": "share_places"},
            12: {"call": "share_intervene", **place, "act": acts[say.how & 3], "ranges": held or [[0, 3]]},
        }[say.how & 12]
    elif say.how & 3 == 0:
        body = {
            "call": "share_resume",
            "member_id": member,
            "partitions": [[topic_id, say.partition, held]],
        }
    elif say.how & 3 == 1:
        body = {"call": "share_offsets", "topics": {say.topic: [0, 1]}}
    else:
        body = {
            "call": "share_place",
            "offsets": [[[say.topic, say.partition], say.known("base_offset", 0)]],
            "finished": [[[say.topic, say.partition], held]],
        }
    return Request(ApiKey.FLOWSHARE, {"body": orjson.dumps({"group_id": group, **body})})


# --- records and producers --------------------------------------------------------------------------------------

IDEMPOTENT, TRANSACTIONAL, SILENT, COMPRESSED = 1, 2, 4, 8


def produce(say: Speaker) -> Request:
    """Write two records: as anybody, as an idempotent producer or within a transaction, with the sequence in turn."""
    numbered = say.how & (IDEMPOTENT | TRANSACTIONAL)
    identity = (-1, -1)
    if numbered:
        identity = (int(say.known("producer_id", 0)), int(say.known("producer_epoch", 0)))
    place = (*identity, say.topic, say.partition)
    say.client.note(say.line, "sequence", say.client.sequences[place])
    sequence = say.known("sequence", 0) if numbered else -1
    codec = CODECS.index("zstd" if say.how & COMPRESSED else "none")
    builder = DefaultRecordBatchBuilder(2, codec, bool(say.how & TRANSACTIONAL), *identity, sequence, 1 << 20)
    for number, value in enumerate((b"one", b"two")):
        builder.append(number, START_MS, b"key", value, [])
    data = [part(index=say.partition, records=bytes(builder.build()))]

    def then(answer: Any) -> None:
        if _fine(answer):
            say.client.sequences[place] = sequence + 2

    return Request(
        ApiKey.PRODUCE,
        {
            "transactional_id": "tx" if say.how & TRANSACTIONAL else None,
            "acks": 0 if say.how & SILENT else -1,
            "timeout": _ms(1_000),
            "topic_data": [part(name=say.topic, topic_id=say.topic_id, partition_data=data)],
        },
        then,
        answered=not say.how & SILENT,
    )


def init_producer(say: Speaker) -> Request:
    """A producer id: for a transactional id, without one, or the next epoch of the one that is known."""
    again = say.how & TRANSACTIONAL and say.how & 4
    return Request(
        ApiKey.INIT_PRODUCER_ID,
        {
            "transactional_id": "tx" if say.how & TRANSACTIONAL else None,
            "transaction_timeout": _ms(30_000),
            "producer_id": say.known("producer_id", -1) if again else -1,
            "producer_epoch": say.known("producer_epoch", -1) if again else -1,
        },
    )


def _producer(say: Speaker) -> dict[str, Any]:
    number, epoch = say.known("producer_id", 0), say.known("producer_epoch", 0)
    return {
        "transactional_id": "tx",
        "v3_and_below_transactional_id": "tx",
        "producer_id": number,
        "v3_and_below_producer_id": number,
        "producer_epoch": epoch,
        "v3_and_below_producer_epoch": epoch,
    }


def add_partitions(say: Speaker) -> Request:
    """Partitions to the transaction."""
    topics = [part(name=say.topic, partitions=(say.partition,))]
    return Request(ApiKey.ADD_PARTITIONS_TO_TXN, {**_producer(say), "v3_and_below_topics": topics})


def add_offsets(say: Speaker) -> Request:
    """A group's offsets to the transaction."""
    return Request(ApiKey.ADD_OFFSETS_TO_TXN, {**_producer(say), "group_id": say.group("classic")})


def commit_in_transaction(say: Speaker) -> Request:
    """Offsets within the transaction; as a member of the group or as nobody."""
    member: dict[str, Any] = {"generation_id": -1, "member_id": "", "group_instance_id": None}
    if say.how & 1:
        member["generation_id"] = say.known("generation_id", 1)
        member["member_id"] = say.known("member_id", "m")
    fields = {**_producer(say), **member, "group_id": say.group("classic"), "topics": [_offsets(say)]}
    return Request(ApiKey.TXN_OFFSET_COMMIT, fields)


def end_transaction(say: Speaker) -> Request:
    """Commit it, or abort it."""
    return Request(ApiKey.END_TXN, {**_producer(say), "committed": not say.how & 1})


def _offsets(say: Speaker) -> Any:
    return part(
        name=say.topic,
        topic_id=say.topic_id,
        partitions=[
            part(
                partition_index=say.partition,
                committed_offset=say.known("base_offset", 0),
                committed_leader_epoch=-1,
                committed_metadata="",
            )
        ],
    )


def fetch(say: Speaker) -> Request:
    """Read records: committed ones or all, with a fetch session or without."""
    session = say.how & 2
    one = part(
        partition=say.partition,
        current_leader_epoch=-1,
        fetch_offset=say.known("base_offset", 0) if say.how & 4 else 0,
        last_fetched_epoch=-1,
        log_start_offset=-1,
        partition_max_bytes=1 << 20,
    )
    return Request(
        ApiKey.FETCH,
        {
            "replica_id": -1,
            "max_wait": _ms(1_000 if say.how & 8 else 0),
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "isolation_level": say.how & 1,
            "session_id": say.known("session_id", 0) if session else 0,
            "session_epoch": (say.how >> 3) if session else -1,
            "topics": [part(topic=say.topic, topic_id=say.topic_id, partitions=[one])],
            "forgotten_topics_data": [],
            "rack_id": "",
        },
    )


def positions(say: Speaker) -> Request:
    """Where a log begins and ends; delete records before an offset."""
    if say.how & 3 == 3:
        cut = part(partition_index=say.partition, offset=say.known("base_offset", 0))
        return Request(
            ApiKey.DELETE_RECORDS, {"topics": [part(name=say.topic, partitions=[cut])], "timeout": _ms(1_000)}
        )
    asked = part(partition_index=say.partition, current_leader_epoch=-1, timestamp=(-1, -2, START_MS)[say.how & 3])
    return Request(
        ApiKey.LIST_OFFSETS,
        {
            "replica_id": -1,
            "isolation_level": 1,
            "topics": [part(name=say.topic, partitions=[asked])],
            "timeout": _ms(1_000),
        },
    )


# --- consumer groups --------------------------------------------------------------------------------------------

STATIC, WITHOUT_ID = 1, 2


def join(say: Speaker) -> Request:
    """Join a consumer group, as a static member or not, for the first time or with the id that was given."""
    return Request(
        ApiKey.JOIN_GROUP,
        {
            "group_id": say.group("classic"),
            "session_timeout": _ms(10_000),
            "rebalance_timeout": _ms(20_000),
            "member_id": "" if say.how & WITHOUT_ID else say.known("member_id", ""),
            "group_instance_id": _instance(say),
            "protocol_type": "consumer",
            "protocols": [part(name="range", metadata=b"\0\0\0\0\0\1\0\6orders\xff\xff\xff\xff")],
            "reason": None,
        },
    )


def _instance(say: Speaker) -> str | None:
    return "static" if say.how & STATIC else None


def _member(say: Speaker) -> dict[str, Any]:
    generation = say.known("generation_id", 1)
    return {
        "group_id": say.group("classic"),
        "generation_id": generation,
        "generation_id_or_member_epoch": generation,
        "member_id": say.known("member_id", "m"),
        "group_instance_id": _instance(say),
    }


def sync(say: Speaker) -> Request:
    """The leader's assignment, or a follower's question for it."""
    member = _member(say)
    names = dict.fromkeys(name for _, name in say.client.values.get("member_id", ()))
    assigned = [part(member_id=name, assignment=b"\0\0\0\0\0\0\xff\xff\xff\xff") for name in names]
    fields = {"protocol_type": "consumer", "protocol_name": "range", "assignments": [] if say.how & 2 else assigned}
    return Request(ApiKey.SYNC_GROUP, {**member, **fields})


def heartbeat(say: Speaker) -> Request:
    """A member's heartbeat."""
    return Request(ApiKey.HEARTBEAT, _member(say))


def leave(say: Speaker) -> Request:
    """A member leaves."""
    member = _member(say)
    gone = part(member_id=member["member_id"], group_instance_id=member["group_instance_id"], reason=None)
    return Request(ApiKey.LEAVE_GROUP, {**member, "members": [gone]})


def commit(say: Speaker) -> Request:
    """A member's offsets, or those of a group without members."""
    member = _member(say)
    if say.how & 2:
        member.update(generation_id=-1, generation_id_or_member_epoch=-1, member_id="")
    return Request(ApiKey.OFFSET_COMMIT, {**member, "retention_time": _ms(-1), "topics": [_offsets(say)]})


def committed(say: Speaker) -> Request:
    """The offsets of a group; delete them."""
    group = say.group("classic")
    if say.how & 1:
        gone = part(name=say.topic, partitions=[part(partition_index=say.partition)])
        return Request(ApiKey.OFFSET_DELETE, {"group_id": group, "topics": [gone]})
    topics = [part(name=say.topic, topic_id=say.topic_id, partition_indexes=(0, 1))]
    asked = part(group_id=group, member_id=None, member_epoch=-1, topics=topics)
    return Request(
        ApiKey.OFFSET_FETCH, {"group_id": group, "topics": topics, "groups": [asked], "require_stable": say.how & 2 > 0}
    )


def groups(say: Speaker) -> Request:
    """Find a coordinator, look at groups, delete one."""
    names = (say.group("classic"), say.group("share"))
    kind = say.how & 3
    if kind == 0:
        return Request(ApiKey.FIND_COORDINATOR, {"key": names[0], "key_type": say.how >> 4, "coordinator_keys": names})
    if kind == 1:
        return Request(ApiKey.DESCRIBE_GROUPS, {"groups": names, "include_authorized_operations": True})
    if kind == 2:
        return Request(ApiKey.LIST_GROUPS, {"states_filter": (), "types_filter": ()})
    return Request(ApiKey.DELETE_GROUPS, {"groups_names": names[:1]})


# --- administration ---------------------------------------------------------------------------------------------


def create_topic(say: Speaker) -> Request:
    """The other topic."""
    made = part(name=MADE_TOPIC, num_partitions=2, replication_factor=1, assignments=[], configs=[])

    def then(answer: Any) -> None:
        for topic in answer.topics:
            if getattr(topic, "topic_id", None) is not None:
                say.client.topics[MADE_TOPIC] = topic.topic_id

    return Request(ApiKey.CREATE_TOPICS, {"topics": [made], "timeout": _ms(1_000), "validate_only": False}, then)


def change_topic(say: Speaker) -> Request:
    """Delete a topic, or give it more partitions."""
    if say.how & 1:
        more = part(name=say.topic, count=2 + say.how // 2, assignments=None)
        return Request(ApiKey.CREATE_PARTITIONS, {"topics": [more], "timeout": _ms(1_000), "validate_only": False})
    named = part(name=say.topic, topic_id=None)
    return Request(ApiKey.DELETE_TOPICS, {"topics": [named], "topic_names": (say.topic,), "timeout": _ms(1_000)})


CHANGES: Final = (
    (32, "share.auto.offset.reset", "earliest"),
    (32, "share.isolation.level", "read_committed"),
    (32, "share.record.lock.duration.ms", "1000"),
    (32, "share.delivery.count.limit", "2"),
    (32, "share.renew.acknowledge.enable", "true"),
    (2, "cleanup.policy", "compact"),
    (2, "retention.ms", "1000"),
    (2, "max.message.bytes", "50"),
)


def configure(say: Speaker) -> Request:
    """A setting of a share group or of a topic; take it back."""
    kind, name, value = CHANGES[say.how & 7]
    change = part(name=name, config_operation=int(say.how & 8 > 0), value=value)
    resource = part(resource_type=kind, resource_name=say.group("share") if kind == 32 else say.topic, configs=[change])
    return Request(ApiKey.INCREMENTAL_ALTER_CONFIGS, {"resources": [resource], "validate_only": say.how & 16 > 0})


RESOURCES: Final = ((2, TOPIC), (3, "g"), (3, "c"), (5, "tx"), (4, "kafka-cluster"))


def acls(say: Speaker) -> Request:
    """Alice may do all with something; take that away again."""
    kind, name = RESOURCES[(say.how & 7) % len(RESOURCES)]
    if say.how & 8:
        gone = part(
            resource_type_filter=kind,
            resource_name_filter=name,
            pattern_type_filter=3,
            principal_filter="User:alice",
            host_filter=None,
            operation=1,
            permission_type=1,
        )
        return Request(ApiKey.DELETE_ACLS, {"filters": [gone]})
    made = part(
        resource_type=kind,
        resource_name=name,
        resource_pattern_type=3,
        principal="User:alice",
        host="*",
        operation=2,
        permission_type=2 if say.how & 16 else 3,
    )
    return Request(ApiKey.CREATE_ACLS, {"creations": [made]})


def scram_user(say: Speaker) -> Request:
    """Make the third user, or remove it; a fixed one cannot be changed."""
    name = "alice" if say.how & 2 else "nobody"
    if say.how & 1:
        fields: dict[str, Any] = {"deletions": [part(name=name, mechanism=2)], "upsertions": []}
    else:
        salted = salted_password("sha512", b"nobody's", b"salt", 4_096)
        made = part(name=name, mechanism=2, iterations=4_096, salt=b"salt", salted_password=salted)
        fields = {"deletions": [], "upsertions": [made]}
    return Request(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, fields)


def metadata(say: Speaker) -> Request:
    """Request the metadata of a topic."""
    asked = part(name=say.topic, topic_id=None)
    return Request(
        ApiKey.METADATA,
        {
            "topics": [asked],
            "allow_auto_topic_creation": say.how & 1 > 0,
            "include_cluster_authorized_operations": True,
            "include_topic_authorized_operations": True,
        },
    )


def transactions(say: Speaker) -> Request:
    """Look at producers and transactions."""
    kind = say.how & 3
    if kind == 0:
        return Request(ApiKey.DESCRIBE_TRANSACTIONS, {"transactional_ids": ("tx",)})
    if kind == 1:
        return Request(
            ApiKey.LIST_TRANSACTIONS, {"state_filters": (), "producer_id_filters": (), "duration_filter": -1}
        )
    return Request(ApiKey.DESCRIBE_PRODUCERS, {"topics": [part(name=say.topic, partition_indexes=(say.partition,))]})


WORDS: Final[Sequence[Callable[[Speaker], Request]]] = (
    handshake,
    authenticate,
    versions,
    share_heartbeat,
    share_fetch,
    share_acknowledge,
    share_described,
    private,
    produce,
    init_producer,
    add_partitions,
    add_offsets,
    commit_in_transaction,
    end_transaction,
    fetch,
    positions,
    join,
    sync,
    heartbeat,
    leave,
    commit,
    committed,
    groups,
    create_topic,
    change_topic,
    configure,
    acls,
    scram_user,
    metadata,
    transactions,
)
"""A step's number says which; numbers beyond are samples of any API, with what is known in their fields."""
