"""Who answers a request that is sent over a connection to a fleet: its workers, or Kafka's brokers."""

from __future__ import annotations

import pytest

from flowshare.backend.fleet import OF_WORKERS, FleetConnection, of_brokers
from flowshare.client.net.routing import ClusterConnection
from flowshare.protocol import messages as m
from flowshare.protocol.errors import ErrorCode
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


class Groups:
    """Either end: groups by name with their types, of which some are deleted."""

    def __init__(self, **types: str) -> None:
        self.types = types

    async def send(self, request):
        if isinstance(request, m.ListGroupsRequest):
            return m.ListGroupsResponse(groups=tuple(listed(*one) for one in self.types.items()))
        known = [self.types.pop(name, None) for name in request.group_ids]
        errors = (ErrorCode.NONE if one else ErrorCode.GROUP_ID_NOT_FOUND for one in known)
        return m.DeleteGroupsResponse(
            groups=tuple(
                m.GroupResult(group_id=name, error=error) for name, error in zip(request.group_ids, errors, strict=True)
            )
        )


def listed(name: str, kind: str) -> m.ListedGroup:
    return m.ListedGroup(group_id=name, state="Empty", type=kind, protocol_type="consumer")


@pytest.mark.asyncio
async def test_a_consumer_group_of_the_brokers_is_deleted_as_a_share_group_of_the_workers_is(monkeypatch) -> None:
    workers, brokers = Groups(billing="share"), Groups(ledger="classic", native="share")

    async def to_workers(_, request):
        return await workers.send(request)

    monkeypatch.setattr(ClusterConnection, "_send", to_workers)
    connection = FleetConnection.__new__(FleetConnection)
    connection._brokers = brokers

    told = await connection._send(m.DeleteGroupsRequest(group_ids=("billing", "ledger", "native", "nobody")))

    assert [(group.group_id, group.error) for group in told.groups] == [
        ("billing", ErrorCode.NONE),
        ("ledger", ErrorCode.NONE),
        ("native", ErrorCode.GROUP_ID_NOT_FOUND),
        ("nobody", ErrorCode.GROUP_ID_NOT_FOUND),
    ]
    assert (workers.types, brokers.types) == ({}, {"native": "share"})
