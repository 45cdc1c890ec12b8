"""As many names as a request may have: what is done with each does not depend on how many others there are.

Where it did, the server stood still for minutes, and the client's time limit ended the test.
"""

from __future__ import annotations

import pytest

from flowshare.protocol.kafka import REQUEST_PARTS_MAX
from tests.server.edge.kit import edge, errors, part

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

NAMES = [f"n{number}" for number in range(REQUEST_PARTS_MAX - 2)]
TOPICS = [part(name=name) for name in NAMES]
REQUESTS = {
    "delete_groups": (2, {"groups_names": NAMES}, {"group_id_not_found"}),
    "describe_topic_partitions": (
        0,
        {"topics": TOPICS, "response_partition_limit": 2_000, "cursor": None},
        {"unknown_topic_or_partition"},
    ),
    "list_transactions": (1, {"state_filters": NAMES, "producer_id_filters": [], "duration_filter": -1}, set()),
    "find_coordinator": (6, {"coordinator_keys": NAMES, "key_type": 0}, set()),
    "metadata": (
        9,
        {
            "topics": TOPICS,
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": False,
            "include_cluster_authorized_operations": False,
        },
        {"unknown_topic_or_partition"},
    ),
}


@pytest.mark.parametrize("name", REQUESTS)
async def test_a_request_of_tens_of_thousands_of_names_is_answered(name: str) -> None:
    version, fields, told = REQUESTS[name]
    async with edge() as e:
        s = await e.socket()
        assert errors(await s.ask(name, version, **fields)) == told
