"""Tests of the messages between workers and slot group: both directions, in the form of Kafka's own consumers, and
garbage."""

from __future__ import annotations

import random
import zlib
from dataclasses import replace

import orjson
import pytest

from flowshare.protocol.kafka import module
from flowshare.slots import membership, planning
from flowshare.slots.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from flowshare.slots.errors import MembershipError
from flowshare.slots.membership import NOBODY, SlotGroupMember, Told, decode_map, decode_told, encode_told, packed
from flowshare.slots.planning import assembled, plan

TOPIC = "__flowshare_state.orders"


def told(node_id, **more):
    return Told(**{"node_id": node_id, "host": f"10.0.0.{node_id % 250}", "port": 9092, **more})


def member(name, one):
    return SlotGroupMember(name, encode_told(TOPIC, one))


def planned(*members, slots=8, generation=3):
    return plan(members, topic=TOPIC, slots=slots, generation=generation)


def given(found):
    """SlotGroupMember id -> the map that it got."""
    return {name: decode_map(data) for name, data in found.assignments}


# --- both ways ----------------------------------------------------------------------------------------------------


def test_what_a_worker_tells_is_read_as_it_was_told():
    one = told(
        2**31 - 1, may_lead=False, claims={3: 7, 31: 2**30}, assigned=(3, 31), generation=12, stamp="a", key="ab"
    )

    assert decode_told(TOPIC, encode_told(TOPIC, one)) == one


def test_every_member_gets_the_whole_map_and_its_own_place_in_it():
    found = planned(member("a", told(1, stamp="x", claims={0: 5})), member("b", told(2, stamp="y")))

    maps = given(found)
    assert maps["a"].owners == maps["b"].owners == found.map.owners
    assert maps["a"].nodes == {1: ("10.0.0.1", 9092), 2: ("10.0.0.2", 9092)}
    assert maps["b"].claims == {0: (1, 5)}
    assert (maps["a"].node_id, maps["a"].stamp) == (1, "x")
    assert (maps["b"].node_id, maps["b"].stamp) == (2, "y")
    assert {maps["b"].generation, maps["b"].slots, maps["b"].topic} == {3, 8, TOPIC}
    assert sorted(maps["b"].mine(1) + maps["b"].mine(2)) == list(range(8))
    assert maps["b"].owner(99) == NOBODY


@pytest.mark.slow
def test_the_messages_are_those_of_kafkas_own_consumers():
    from kio.serial import entity_reader

    (told_,), found = (encode_told(TOPIC, told(1, assigned=(2, 3))),), planned(member("a", told(1)))
    subscription = module("consumer_protocol_subscription", 1, "data").ConsumerProtocolSubscription
    assignment = module("consumer_protocol_assignment", 1, "data").ConsumerProtocolAssignment

    read, size = entity_reader(subscription)(told_[2:], 0)
    assert [str(topic) for topic in read.topics] == [TOPIC]
    assert [(str(one.topic), one.partitions) for one in read.owned_partitions] == [(TOPIC, (2, 3))]
    assert size == len(told_) - 2
    read, size = entity_reader(assignment)(found.assignments[0][1][2:], 0)
    assert [(str(one.topic), one.partitions) for one in read.assigned_partitions] == [(TOPIC, tuple(range(8)))]
    assert size == len(found.assignments[0][1]) - 2


# --- the plan -----------------------------------------------------------------------------------------------------


def test_who_may_not_lead_gets_no_slots_but_the_map():
    maps = given(planned(member("a", told(1)), member("b", told(2, may_lead=False))))

    assert maps["b"].owners == dict.fromkeys(range(8), 1)
    assert maps["b"].nodes == {1: ("10.0.0.1", 9092)}
    assert maps["b"].mine(2) == ()


def test_who_gives_up_leading_is_known_as_long_as_it_holds_claims():
    found = planned(member("a", told(1)), member("b", told(2, may_lead=False, claims={4: 9})))

    assert found.map.owner(4) == 1
    assert found.map.claims == {4: (2, 9)}
    assert 2 in found.map.nodes


def test_without_anybody_who_may_lead_there_are_no_owners():
    assert planned(member("a", told(1, may_lead=False))).map.owners == {}


def test_of_two_workers_with_one_node_id_the_one_with_claims_keeps_it():
    found = planned(
        member("a", told(7)), member("b", told(7, claims={0: 1}, generation=2, assigned=(0,))), member("c", told(7))
    )

    maps = given(found)
    assert maps["b"].node_id == 7
    assert len({one.node_id for one in maps.values()}) == 3
    assert set(found.map.nodes) == {one.node_id for one in maps.values()}


def test_everybody_learns_the_keys_of_all_workers_also_of_those_that_do_not_lead():
    maps = given(planned(member("a", told(1, key="aa")), member("b", told(2, key="bb", may_lead=False))))

    assert maps["a"].keys == maps["b"].keys == {1: "aa", 2: "bb"}


def test_a_member_that_is_no_worker_gets_no_slots_and_a_warning():
    found = planned(member("a", told(1)), SlotGroupMember("stranger", b"\0\0\0\0\0\0\xff\xff\xff\xff"))

    assert found.map.owners == dict.fromkeys(range(8), 1)
    assert [name for name, _ in found.assignments] == ["a", "stranger"]
    assert len(found.warnings) == 1
    assert "stranger" in found.warnings[0]


def test_a_member_of_a_newer_format_is_named_with_what_to_do(monkeypatch):
    monkeypatch.setattr(membership, "FORMAT", 2)
    newer = member("b", told(2))
    monkeypatch.undo()

    (warning,) = planned(member("a", told(1)), newer).warnings

    assert "format 2" in warning
    assert "upgrade" in warning


def test_claims_and_slots_beyond_the_topic_are_not_believed():
    found = planned(member("a", told(1, claims={-1: 1, 8: 1}, assigned=(8, -3), generation=1)))

    assert found.map.claims == {}
    assert sorted(found.map.owners) == list(range(8))


# --- from outside -------------------------------------------------------------------------------------------------


def described(found, members):
    assignments = dict(found.assignments)
    return [one._replace(assignment=assignments[one.member_id]) for one in members]


@pytest.mark.parametrize("bytes_max", [planning.GROUP_BYTES_MAX, 0])
def test_the_map_is_put_together_from_what_kafka_tells_of_the_members(monkeypatch, bytes_max):
    monkeypatch.setattr(planning, "GROUP_BYTES_MAX", bytes_max)
    members = [
        member("a", told(1, claims={0: 4}, key="aa")), member("b", told(1, key="bb")),
        member("c", told(3, may_lead=False, key="cc")),
        SlotGroupMember("stranger", b""),
    ]  # fmt: skip
    found = planned(*members)

    seen = assembled(described(found, members))

    assert seen == replace(found.map, node_id=NOBODY)
    assert decode_map(found.assignments[0][1]).whole is (bytes_max > 0)


def test_a_group_without_assignments_has_no_map():
    assert assembled([member("a", told(1))]) is None
    assert assembled([]) is None


def test_of_old_and_new_assignments_the_new_ones_count():
    old, new = planned(member("a", told(1)), generation=3), planned(member("a", told(1)), generation=4)

    seen = assembled(
        [SlotGroupMember("x", b"", old.assignments[0][1]), SlotGroupMember("y", b"", new.assignments[0][1])]
    )

    assert seen is not None
    assert seen.generation == 4


def test_a_thousand_workers_fit_into_kafkas_record():
    draw = random.Random(1)
    members = [
        member(
            f"worker-{number}",
            told(
                draw.randrange(2**31),
                claims={number: 5} if number < 32 else {},
                stamp=f"{draw.randrange(2**31)} 10.0.0.1:9092 0",
                key=draw.randbytes(32).hex(),
            ),
        )
        for number in range(1_000)
    ]

    found = planned(*members, slots=32)

    kept = sum(len(one.metadata) + planning.MEMBER_BYTES for one in members)
    assert kept + sum(len(data) for _, data in found.assignments) < 1_000_000
    assert decode_map(found.assignments[0][1]).whole is False


# --- garbage ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decode", [lambda data: decode_told(TOPIC, data), decode_map], ids=["told", "map"])
def test_garbage_is_refused_and_nothing_else_is_raised(decode):
    print("seed 5")
    draw = random.Random(5)
    good = [encode_told(TOPIC, told(1, claims={1: 2})), planned(member("a", told(1))).assignments[0][1]]
    for _ in range(2_000):
        data = bytearray(draw.choice(good))
        for _ in range(draw.randrange(1, 4)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        try:
            decode(bytes(data[: draw.randrange(len(data) + 1)]) if draw.random() < 0.5 else bytes(data))
        except MembershipError:
            continue


@pytest.mark.parametrize("bad", [{"node_id": -1}, {"node_id": 2**31}, {"host": ""}, {"port": 65_536}, {"port": -1}])
def test_an_impossible_worker_is_refused(bad):
    with pytest.raises(MembershipError, match="cannot be a worker"):
        decode_told(TOPIC, encode_told(TOPIC, replace(told(1), **bad)))


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"node": "1"}, "no number"),
        ({"node": True}, "no number"),
        ({"host": 5}, "no text"),
        ({"key": None}, "no text"),
        ({"claims": [[1]]}, "lack something"),
        ({"claims": 5}, "lack something"),
    ],
)
def test_words_of_another_form_are_refused(changed, says):
    subscription = decode_subscription(encode_told(TOPIC, told(1)))
    body = orjson.loads(zlib.decompress(subscription.user_data[1:])) | changed

    with pytest.raises(MembershipError, match=says):
        decode_told(TOPIC, encode_subscription(subscription._replace(user_data=packed(body))))


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"owners": [5]}, "lacks something"),
        ({"owners": [-2]}, "no place in a list"),
        ({"nodes": [[1, 2, 3]]}, "no text"),
        ({"keys": [[1]]}, "lacks something"),
    ],
)
def test_a_map_of_another_form_is_refused(changed, says):
    data = planned(member("a", told(1))).assignments[0][1]
    assignment = decode_assignment(data)
    body = orjson.loads(zlib.decompress(assignment.user_data[1:]))
    body["map"] |= changed

    with pytest.raises(MembershipError, match=says):
        decode_map(encode_assignment(assignment._replace(user_data=packed(body))))


@pytest.mark.parametrize(
    ("user_data", "says"),
    [
        (b"", "nothing"),
        (bytes([255]), "format 255"),
        (packed([1]), "no object"),
        (b"\1x", "cannot be read"),
    ],
)
def test_user_data_of_another_form_are_refused(user_data, says):
    subscription = decode_subscription(encode_told(TOPIC, told(1)))

    with pytest.raises(MembershipError, match=says):
        decode_told(TOPIC, encode_subscription(subscription._replace(user_data=user_data)))
