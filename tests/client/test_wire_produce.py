"""Produce by hand says what kio would say."""

from __future__ import annotations

import datetime

import pytest
from kio.schema.errors import ErrorCode as KioError

from flowshare.client.wire.records import read_produce as read
from flowshare.client.wire.records import write_produce as write
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.headers import DecodeError
from flowshare.protocol.kafka import module, write_request, write_response
from flowshare.protocol.messages import ProduceRequest, ProduceResponse

VERSIONS = (9, 10, 11, 12)


def answer(version, *, error=0, message=None, errors=(), offset=7, append_time_ms=None, parts=1):
    m = module("produce", version, "response")
    time = None
    if append_time_ms is not None:
        time = datetime.datetime.fromtimestamp(append_time_ms / 1000, datetime.UTC)
    part = m.PartitionProduceResponse(
        index=3,
        error_code=KioError(error),
        base_offset=offset,
        log_append_time=time,
        log_start_offset=2,
        record_errors=tuple(
            m.BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=text) for index, text in errors
        ),
        error_message=message,
    )
    response = m.ProduceResponse(
        responses=(m.TopicProduceResponse(name="orders", partition_responses=(part,) * parts),),
        throttle_time=datetime.timedelta(0),
    )
    return write_response(5, response)[4:]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("transactional_id", [None, "größe"])
def test_a_request_has_the_bytes_that_kio_would_write(version, transactional_id):
    m = module("produce", version, "request")
    records = bytes(range(256)) * 3
    by_kio = m.ProduceRequest(
        transactional_id=transactional_id,
        acks=-1,
        timeout=datetime.timedelta(seconds=15),
        topic_data=(
            m.TopicProduceData(name="orders", partition_data=(m.PartitionProduceData(index=3, records=records),)),
        ),
    )
    request = ProduceRequest(topic="orders", partition=3, records=records, transactional_id=transactional_id)

    assert write(9, "me", request, version) == write_request(9, "me", by_kio)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_answer_is_read(version):
    found = read(answer(version, error=0, append_time_ms=1_700_000_000_000))

    assert found == ProduceResponse(base_offset=7, log_start=2, append_time_ms=1_700_000_000_000)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_error_is_read_with_its_message_whatever_is_said_of_single_records(version):
    found = read(answer(version, error=87, message="no key", errors=((0, "first"), (4, None)), offset=-1))

    assert (found.error, found.message, found.base_offset) == (ErrorCode.INVALID_RECORD, "no key", -1)


def test_an_answer_without_the_partition_is_an_error():
    assert read(answer(9, parts=0)).error is ErrorCode.UNKNOWN_SERVER_ERROR


def test_an_answer_that_is_cut_short_is_refused():
    whole = answer(12, message="text", errors=((1, "x"),))
    for size in range(4, len(whole) - 8):
        with pytest.raises(DecodeError):
            read(whole[:size])
