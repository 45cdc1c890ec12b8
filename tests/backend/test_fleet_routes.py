"""Who answers a request that is sent over a connection to a fleet: its workers, or Kafka's brokers."""

from __future__ import annotations

import pytest

from flowshare.backend.fleet import OF_WORKERS, of_brokers
from flowshare.protocol import messages as m
from flowshare.protocol.kafka import ApiKey


@pytest.mark.parametrize(
    "request_",
    [
        m.FindCoordinatorRequest(key="copy", kind="transaction"),
        m.InitProducerIdRequest(transactional_id="copy"),
        m.EndTxnRequest(transactional_id="copy", producer=m.ProducerIdentity(1, 0), committed=True),
        m.MetadataRequest(topics=()),
        m.ProduceRequest(topic="orders", partition=0, records=b""),
        m.DescribeGroupRequest(group_id="a consumer group"),
        m.DescribeConfigsRequest(resource_type="topic", resource="orders"),
    ],
    ids=lambda request: type(request).__name__,
)
def test_topics_records_producers_and_consumer_groups_are_the_brokers(request_) -> None:
    assert of_brokers(request_)


@pytest.mark.parametrize(
    "request_",
    [
        m.FindCoordinatorRequest(key="billing"),
        m.ListGroupsRequest(),
        m.ShareGroupDescribeRequest(group_id="billing"),
        m.DescribeConfigsRequest(resource_type="group", resource="billing"),
        m.ShareResumeRequest(group_id="billing", member_id="m", partitions=()),
    ],
    ids=lambda request: type(request).__name__,
)
def test_share_groups_are_the_workers(request_) -> None:
    assert not of_brokers(request_)


def test_all_that_is_a_share_groups_by_its_name_is_the_workers() -> None:
    share = {key for key in ApiKey if "SHARE_" in key.name and "STATE" not in key.name}
    share.remove(ApiKey.FLOWSHARE_FETCH)  # records are the brokers'

    assert share <= OF_WORKERS
