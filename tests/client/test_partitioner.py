"""The partitioner against Kafka's published hashes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowshare.client.producer.message import partition_for
from flowshare.protocol.key_hash import murmur2


@pytest.mark.parametrize(
    ("key", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_hashes_are_those_of_kafkas_own_test(key, signed):
    assert murmur2(key) == signed & 0xFFFFFFFF


@given(st.binary(max_size=40), st.integers(1, 50))
def test_partitions_are_those_of_other_clients(key, partitions):
    from aiokafka.partitioner import murmur2 as peer

    assert murmur2(key) == peer(key)
    assert partition_for(key, partitions) == (peer(key) & 0x7FFFFFFF) % partitions
