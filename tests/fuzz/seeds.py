"""Sessions that get through: each is a sequence in which every step has the outcome that it says.

They are what the fuzzer begins with, so it starts from logins that succeed, transactions that commit and records that
are acknowledged; `test_sessions.py` holds them to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode as KafkaError

from tests.fuzz import words as w
from tests.fuzz.sessions import AT_ONCE, CLOSED, LOGGED_IN, TIMES_S, Step
from tests.fuzz.speaker import OTHER_PARTITION, OTHER_TOPIC, Request, Speaker, codes
from tests.fuzz.words import WORDS

NONE: Final = frozenset({KafkaError.none})


class Said(NamedTuple):
    """A step and what has to come of it."""

    step: Step
    outcome: frozenset[KafkaError] | None
    """Error codes of the answer; None: there is none."""


def say(
    word: Callable[[Speaker], Request],
    how: int = 0,
    *errors: KafkaError,
    on: int = 0,
    who: int = LOGGED_IN,
    wait: float = 0.0,
    answered: bool = True,
    end: int = 0,
    **fields: int,
) -> Said:
    """A step. how: `Speaker.arg`. errors: of the answer, none if not given. wait: a time of `TIMES_S`."""
    step = Step(line=on | who, word=WORDS.index(word), arg=how, time=TIMES_S.index(wait) | end, **fields)
    return Said(step, frozenset(errors) or NONE if answered else None)


def login(how: int = 0, *, on: int = 0, raw: bool = False) -> list[Said]:
    """A login of a new connection that succeeds, with SCRAM or PLAIN as `words.handshake` has it."""
    tokens = 1 if how & 3 == PLAIN else 2
    return [
        say(w.handshake, how, on=on, who=0, version=int(raw)),
        *(say(w.authenticate, on=on, who=0) for _ in range(tokens)),
    ]


SHA_512, SHA_256, PLAIN, UNKNOWN = range(4)
FAILED = KafkaError.sasl_authentication_failed
DENIED = KafkaError.topic_authorization_failed


def logins() -> dict[str, list[Said]]:
    """SASL: all mechanisms by both ways, right, wrong, interrupted and again."""
    seeds: dict[str, list[Said]] = {}
    for name, how in (("SHA-512", SHA_512), ("SHA-256", SHA_256), ("PLAIN", PLAIN)):
        for raw in (False, True):
            seeds[f"{name} {'by bare tokens' if raw else 'by requests'}"] = [
                say(w.versions, who=0),
                *login(how, raw=raw),
                say(w.metadata, who=0),
            ]
        wrong = login(how | w.WRONG_PASSWORD)
        last = wrong.pop()
        refused = last._replace(step=last.step._replace(time=TIMES_S.index(0.15)), outcome=frozenset({FAILED}))
        seeds[f"{name} with a wrong password, then right"] = [*wrong, refused, *login(how), say(w.metadata, who=0)]
        seeds[f"{name} interrupted by its connection's end"] = [
            say(w.handshake, how, who=0, end=CLOSED),
            *login(how),
            say(w.metadata, who=0),
        ]
        seeds[f"{name} again"] = [
            *login(how),
            say(w.metadata, who=0, wait=46.0),
            *login(how),
            say(w.metadata, who=0, wait=31.0),
            say(w.metadata, who=0, wait=46.0),
            *login(how),  # of a new connection: the old one was closed
            say(w.metadata, who=0),
        ]
    seeds["a bare token that is wrong"] = [
        say(w.handshake, SHA_256, who=0, version=1),
        say(w.authenticate, w.NOISE, who=0, wait=0.15, answered=False),
        *login(SHA_256, raw=True),
    ]
    seeds["a proof that comes twice"] = [
        *login(SHA_512),
        say(w.authenticate, w.AGAIN, KafkaError.illegal_sasl_state, who=0),
        say(w.metadata, who=0),
    ]
    seeds["an unknown mechanism"] = [
        say(w.handshake, UNKNOWN, KafkaError.unsupported_sasl_mechanism, who=0),
        *login(SHA_512),
    ]
    seeds["a login again as somebody else"] = [
        *login(SHA_512),
        say(w.metadata, who=0, wait=2.0),
        say(w.handshake, SHA_512 | w.ALICE, who=0),
        say(w.authenticate, who=0),
        say(w.authenticate, 0, FAILED, who=0),
    ]
    seeds["a user with rights that come and go"] = [
        *login(SHA_256 | w.ALICE, on=1),
        say(w.produce, 0, DENIED, on=1),
        say(w.acls, 0),
        say(w.produce, on=1),
        say(w.acls, 8),
        say(w.produce, 0, DENIED, on=1),
    ]
    seeds["a user that is made and removed"] = [
        say(w.scram_user, 0),
        *login(SHA_512 | w.NOBODY, on=1),
        say(w.scram_user, 1),
        say(w.scram_user, 2, KafkaError.policy_violation),
        say(w.handshake, SHA_512 | w.NOBODY, on=2, who=0),
        say(w.authenticate, on=2, who=0),
        say(w.authenticate, 0, FAILED, on=2, who=0, wait=0.15),
    ]
    return seeds


def joined(on: int = 0) -> list[Said]:
    """A member of the share group with an open session, which begins at the log's begin."""
    return [
        say(w.configure, 0, on=on),
        say(w.share_heartbeat, w.JOIN, on=on, wait=1.1),
        say(w.share_heartbeat, w.BEAT, on=on),
        say(w.share_fetch, w.OPEN | w.NOTHING, on=on),
    ]


def share_groups() -> dict[str, list[Said]]:
    """Share sessions from the first heartbeat to the last."""
    got = [say(w.produce), say(w.share_fetch, w.GO_ON | w.NOTHING)]
    gone = [
        say(w.share_fetch, w.CLOSE | w.NOTHING),
        say(w.share_heartbeat, w.LEAVE),
        say(w.share_described, 0),
        say(w.share_described, 1),
    ]
    seeds = {
        f"records {name}": [*joined(), *got, say(w.share_acknowledge, w.GO_ON | how), *gone]
        for name, how in (("accepted", w.ACCEPT), ("released", w.RELEASE), ("rejected", w.REJECT), ("mixed", w.MIXED))
    }
    seeds["records accepted with the next fetch"] = [
        *joined(),
        *got,
        say(w.produce, OTHER_PARTITION),
        say(w.share_fetch, w.GO_ON | w.ACCEPT),
        say(w.share_fetch, w.CLOSE | w.ACCEPT),
        *gone[1:],
    ]
    seeds["locks renewed"] = [
        say(w.configure, 4),
        *joined(),
        *got,
        say(w.share_heartbeat, w.BEAT | w.SAME_TOPICS, wait=16.0),
        say(w.share_acknowledge, w.GO_ON | w.RENEW, wait=16.0),
        say(w.share_acknowledge, w.GO_ON | w.ACCEPT),
        *gone,
    ]
    seeds["locks that ran out"] = [
        *joined(),
        *got,
        say(w.share_heartbeat, w.BEAT | w.SAME_TOPICS, wait=31.0),
        say(w.share_acknowledge, w.GO_ON | w.ACCEPT, KafkaError.none, KafkaError.invalid_record_state),
        *gone,
    ]
    seeds["a fetch that waits for a record"] = [
        *joined(),
        say(w.share_fetch, w.GO_ON | w.PATIENT, end=AT_ONCE),
        say(w.produce, on=1),
        say(w.share_acknowledge, w.GO_ON | w.ACCEPT),
        *gone,
    ]
    seeds["another's session"] = [
        *joined(),
        say(w.share_fetch, w.GO_ON | w.NOTHING, on=1),
        say(w.share_fetch, w.OPEN | w.NOTHING, on=1),
        say(w.share_fetch, w.CLOSE | w.NOTHING, on=1),
        say(w.share_fetch, w.GO_ON | w.NOTHING, KafkaError.share_session_not_found),
        *gone[1:],
    ]
    seeds["two members, one of which goes without a word"] = [
        *joined(0),
        *joined(1),
        *got,
        say(w.share_heartbeat, w.BEAT | w.SAME_TOPICS, on=1, wait=46.0, end=CLOSED),
        say(w.share_heartbeat, w.BEAT | w.SAME_TOPICS, KafkaError.unknown_member_id),
    ]
    seeds["a member that resumes"] = [
        *joined(),
        *got,
        say(w.private, 0, answered=False),
        say(w.private, 1, answered=False),
        say(w.private, 4, answered=False),
        say(w.private, 8, answered=False),
        say(w.private, 13, answered=False),
        say(w.share_acknowledge, w.GO_ON | w.ACCEPT),
        *gone,
    ]
    seeds["offsets set from outside"] = [
        *joined(),
        *got,
        say(w.share_acknowledge, w.GO_ON | w.ACCEPT),
        *gone,
        say(w.share_described, 2),
        say(w.private, 2, answered=False),
        say(w.share_described, 3),
        say(w.share_described, 1),
    ]
    seeds["a topic deleted under a session"] = [
        *joined(),
        *got,
        say(w.change_topic, 0),
        say(w.share_acknowledge, w.GO_ON | w.ACCEPT, KafkaError.unknown_topic_id, KafkaError.none),
        say(w.share_fetch, w.GO_ON | w.NOTHING, KafkaError.unknown_topic_id, KafkaError.none),
        say(w.share_heartbeat, w.BEAT | w.SAME_TOPICS),
    ]
    return seeds


def transactions() -> dict[str, list[Said]]:
    """Idempotent producers and transactions."""
    tx = w.TRANSACTIONAL
    begun = [
        say(w.init_producer, tx),
        say(w.add_partitions),
        say(w.produce, tx),
        say(w.produce, tx),
    ]
    offsets = [say(w.add_offsets), say(w.commit_in_transaction)]
    seeds = {
        f"a transaction {name}": [
            *begun,
            say(w.transactions, 0),
            *offsets,
            say(w.end_transaction, how),
            say(w.fetch, 1),
            say(w.committed, 0),
            say(w.transactions, 1),
        ]
        for name, how in (("committed", 0), ("aborted", 1))
    }
    seeds["two transactions one after the other"] = [
        *begun,
        say(w.end_transaction, 0),
        say(w.add_partitions, OTHER_PARTITION),
        say(w.produce, tx | OTHER_PARTITION),
        say(w.end_transaction, 1),
        say(w.add_partitions),
        say(w.produce, tx | w.COMPRESSED),
        say(w.end_transaction, 0),
    ]
    seeds["a producer that is fenced"] = [
        *begun,
        say(w.init_producer, tx, on=1),
        say(w.produce, tx, KafkaError.invalid_producer_epoch),
        say(w.end_transaction, 0, KafkaError.producer_fenced),
        say(w.add_partitions, on=1),
        say(w.produce, tx, on=1),
        say(w.end_transaction, 0, on=1),
    ]
    seeds["a transaction that takes too long"] = [
        *begun,
        say(w.transactions, 0, wait=46.0),
        say(w.end_transaction, 0, KafkaError.producer_fenced),
    ]
    seeds["the next epoch of a producer"] = [
        *begun,
        say(w.end_transaction, 0),
        say(w.init_producer, tx | 4),
        say(w.add_partitions),
        say(w.produce, tx),
        say(w.end_transaction, 0),
    ]
    idempotent = w.IDEMPOTENT
    seeds["an idempotent producer"] = [
        say(w.init_producer),
        say(w.produce, idempotent),
        say(w.produce, idempotent | OTHER_PARTITION),
        say(w.produce, idempotent | w.COMPRESSED),
        say(w.transactions, 2),
        say(w.fetch),
    ]
    seeds["sequences twice, and with a gap"] = [
        say(w.init_producer),
        say(w.produce, idempotent),
        say(w.produce, idempotent),
        say(w.produce, idempotent, pick=3 << 6 | 1),
        say(w.produce, idempotent, KafkaError.out_of_order_sequence_number, pick=3 << 6 | 1 << 4),
    ]
    seeds["records seen when their transaction is committed only"] = [
        say(w.configure, 1),
        *joined(),
        *begun,
        say(w.share_fetch, w.GO_ON | w.NOTHING),
        say(w.end_transaction, 0),
        say(w.share_fetch, w.GO_ON | w.NOTHING),
        say(w.share_acknowledge, w.GO_ON | w.ACCEPT),
    ]
    return seeds


def consumer_groups() -> dict[str, list[Said]]:
    """Classic consumer groups, static members among them."""
    rebalancing, required = KafkaError.rebalance_in_progress, KafkaError.member_id_required
    alone = [say(w.join, w.WITHOUT_ID, required), say(w.join, 0, wait=3.1), say(w.sync), say(w.heartbeat)]
    return {
        "a member alone": [
            say(w.groups, 0),
            *alone,
            say(w.produce),
            say(w.fetch),
            say(w.commit),
            say(w.committed),
            say(w.groups, 1, KafkaError.none, KafkaError.group_id_not_found),
            say(w.groups, 2),
            say(w.leave),
            say(w.groups, 3),
        ],
        "a second member joins": [
            *alone,
            say(w.join, w.WITHOUT_ID, required, on=1),
            say(w.join, 0, on=1, end=AT_ONCE),
            say(w.heartbeat, 0, rebalancing),
            say(w.join, 0),
            say(w.sync, 2, on=1, end=AT_ONCE),
            say(w.sync, 0),
            say(w.heartbeat, 0, on=1),
            say(w.heartbeat, 0),
            say(w.leave, 0, on=1),
            say(w.heartbeat, 0, rebalancing),
        ],
        "a static member comes back": [
            say(w.join, w.STATIC | w.WITHOUT_ID, wait=3.1),
            say(w.sync, w.STATIC),
            say(w.commit, w.STATIC, end=CLOSED),
            say(w.join, w.STATIC | w.WITHOUT_ID, wait=3.1),
            say(w.sync, w.STATIC),
            say(w.heartbeat, w.STATIC),
            say(w.leave, w.STATIC),
        ],
        "a member that says nothing": [
            *alone,
            say(w.metadata, wait=11.0),
            say(w.heartbeat, 0, KafkaError.unknown_member_id),
            say(w.commit, 2),
            say(w.committed, 1),
        ],
        "offsets of a member in a transaction": [
            *alone,
            say(w.init_producer, w.TRANSACTIONAL),
            say(w.add_offsets),
            say(w.commit_in_transaction, 1),
            say(w.committed, 2, KafkaError.none, KafkaError.unstable_offset_commit),
            say(w.end_transaction, 0),
            say(w.committed, 2),
        ],
    }


def administration() -> dict[str, list[Said]]:
    """Topics that come and go, settings, and what of it others are in the middle of."""
    made = OTHER_TOPIC
    return {
        "a topic made, written to, grown and deleted": [
            say(w.create_topic),
            say(w.produce, made),
            say(w.change_topic, made | 3),
            say(w.positions, made),
            say(w.positions, made | 3),
            say(w.fetch, made | 4),
            say(w.change_topic, made),
            say(w.produce, made, KafkaError.unknown_topic_id),
        ],
        "a fetch session that nobody has": [
            say(w.produce),
            say(w.fetch, 2),
            say(w.fetch, 2 | 8, KafkaError.fetch_session_id_not_found, pick=1 << 4),
        ],
        "a log's settings": [
            say(w.configure, 5),
            say(w.configure, 6),
            say(w.configure, 7),
            say(w.produce, 0, KafkaError.message_too_large),
            say(w.configure, 7 | 8),
            say(w.produce),
        ],
        "flowshare's own client": [say(w.versions, 1), say(w.produce), say(w.fetch), say(w.metadata)],
        "records without an answer": [say(w.produce, w.SILENT, answered=False), say(w.fetch)],
    }


def seeds() -> Mapping[str, list[Said]]:
    """All of them by name."""
    return {**logins(), **share_groups(), **transactions(), **consumer_groups(), **administration()}


def encoded(said: list[Said]) -> bytes:
    """The sequence of a seed."""
    return b"".join(bytes(one.step) for one in said)


def outcome(answer: Any) -> frozenset[KafkaError] | None:
    """Return the value of `Said.outcome` for an answer."""
    if answer is None:
        return None
    return NONE if isinstance(answer, bytes) else frozenset(codes(answer)) or NONE
