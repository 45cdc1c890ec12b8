"""Slots of keys never change: workers of different releases have to agree."""

from __future__ import annotations

import uuid
from collections import Counter

import pytest

from flowshare.server.cooperative.store import PartitionKey, group_prefix
from flowshare.server.runtime.state import ShareKey
from flowshare.slots.placement import REGISTRY_SLOT, group_slot, is_whole, share_slot, slot_of_key

TOPIC = uuid.UUID("6f9619ff-8b86-d011-b42d-00c04fc964ff")


def test_places_are_pinned():
    assert share_slot(TOPIC, 0, 32) == 29
    assert share_slot(TOPIC, 11, 32) == 8
    assert group_slot("größe", 32) == 9
    assert slot_of_key(b"acl/x", 32) == REGISTRY_SLOT


def test_all_keys_of_a_share_partition_lie_in_the_slot_of_its_topic_partition():
    for group in ("g", "x" * 300, "größe"):
        prefix = ShareKey(group, TOPIC, 7).prefix
        for key in (prefix + b"\0", prefix + b"\1" + bytes(8), prefix):
            assert slot_of_key(key, 32) == share_slot(TOPIC, 7, 32)


def test_a_group_and_its_settings_lie_in_the_groups_slot():
    assert slot_of_key(b"g/orders", 32) == slot_of_key(b"c/orders", 32) == group_slot("orders", 32)


@pytest.mark.parametrize("group", ["g", "x" * 300, "größe", "g" * 255])
def test_all_of_a_cooperative_group_lies_in_the_groups_slot(group):
    prefix = PartitionKey(group, TOPIC, 7).prefix
    for key in (group_prefix(group), prefix, prefix + b"\0", prefix + b"\1" + bytes(8)):
        assert slot_of_key(key, 32) == group_slot(group, 32)
        assert is_whole(key)


def test_what_is_of_several_groups_is_looked_for_in_all_slots():
    assert not is_whole(b"k/")
    assert not is_whole(b"k/\0\5ab")


def test_the_partitions_of_a_topic_spread_evenly():
    found = Counter(share_slot(TOPIC, partition, 32) for partition in range(64))

    assert set(found.values()) == {2}


def test_a_key_that_is_cut_short_has_no_slot():
    with pytest.raises(ValueError, match="no key of a share-partition"):
        slot_of_key(b"s/\0\1g" + bytes(15), 32)
