"""Fetch by hand says what kio would say."""

from __future__ import annotations

import datetime

import pytest
from kio.schema.errors import ErrorCode as KioError

from flowshare.client.wire.records import read_fetch as read
from flowshare.client.wire.records import write_fetch as write
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.headers import DecodeError
from flowshare.protocol.kafka import module, write_request, write_response
from flowshare.protocol.messages import FetchRequest, FetchResponse
from flowshare.protocol.messages.records import AbortedTransaction, FetchedLog, FetchPartition

VERSION = 12
PARTS = (
    FetchPartition("orders", 3, 17, 1_000, 5),
    FetchPartition("größen", 0, 2**40, 1 << 20),
    FetchPartition("orders", 300, 0),
)


def part(index, *, error=0, records=b"abc", aborted=None, cut=None):
    m = module("fetch", VERSION, "response")
    more = {} if cut is None else {"diverging_epoch": m.EpochEndOffset(epoch=cut[0], end_offset=cut[1])}
    return m.PartitionData(
        partition_index=index,
        error_code=KioError(error),
        high_watermark=20,
        last_stable_offset=19,
        log_start_offset=2,
        aborted_transactions=None
        if aborted is None
        else tuple(m.AbortedTransaction(producer_id=one, first_offset=first) for one, first in aborted),
        preferred_read_replica=-1,
        records=records,
        **more,
    )


def answer(topics, *, error=0, session_id=0, throttle_ms=3):
    m = module("fetch", VERSION, "response")
    response = m.FetchResponse(
        throttle_time=datetime.timedelta(milliseconds=throttle_ms),
        error_code=KioError(error),
        session_id=session_id,
        responses=tuple(m.FetchableTopicResponse(topic=name, partitions=parts) for name, parts in topics.items()),
    )
    return write_response(5, response)[4:]


@pytest.mark.parametrize("session", [None, (0, 0), (77, 3)])
@pytest.mark.parametrize("forgotten", [(), (("orders", 1), ("bills", 2), ("orders", 5))])
@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("parts", [(), PARTS])
def test_a_request_has_the_bytes_that_kio_would_write(session, forgotten, committed, parts):
    m = module("fetch", VERSION, "request")
    by_topic, away = {}, {}
    for one in parts:
        by_topic.setdefault(one.topic, []).append(one)
    for topic, number in forgotten:
        away.setdefault(topic, []).append(number)
    by_kio = m.FetchRequest(
        cluster_id=None,
        replica_id=-1,
        max_wait=datetime.timedelta(milliseconds=500),
        min_bytes=7,
        max_bytes=1_000_000,
        isolation_level=int(committed),
        topics=tuple(
            m.FetchTopic(
                topic=topic,
                partitions=tuple(
                    m.FetchPartition(
                        partition=one.partition,
                        fetch_offset=one.offset,
                        last_fetched_epoch=one.last_epoch,
                        partition_max_bytes=one.max_bytes,
                    )
                    for one in listed
                ),
            )
            for topic, listed in by_topic.items()
        ),
        forgotten_topics_data=tuple(m.ForgottenTopic(topic=topic, partitions=tuple(away[topic])) for topic in away),
        **({} if session is None else {"session_id": session[0], "session_epoch": session[1]}),
    )
    request = FetchRequest(
        partitions=parts, max_wait_ms=500, min_bytes=7, max_bytes=1_000_000, committed=committed, session=session,
        forgotten=forgotten,
    )  # fmt: skip

    assert write(9, "me", request, VERSION) == write_request(9, "me", by_kio)


def test_an_answer_is_read_in_the_order_of_the_question():
    frame = answer({"größen": (part(0, records=None),), "orders": (part(300, aborted=((4, 5), (6, 7))), part(3))})
    found = read(frame, FetchRequest(partitions=PARTS))

    told = {"log_start": 2, "high_watermark": 20, "last_stable": 19}
    assert found == FetchResponse(
        partitions=(
            FetchedLog(topic="orders", partition=3, records=b"abc", **told),
            FetchedLog(topic="größen", partition=0, **told),
            FetchedLog(
                topic="orders",
                partition=300,
                records=b"abc",
                aborted=(AbortedTransaction(4, 5), AbortedTransaction(6, 7)),
                **told,
            ),
        ),
        throttle_ms=3,
    )


def test_an_answer_for_one_partition_is_read():
    (log,) = read(answer({"orders": (part(3, aborted=()),)}), FetchRequest(partitions=PARTS[:1])).partitions

    assert (log.topic, log.partition, log.records, log.aborted, log.diverging) == ("orders", 3, b"abc", (), None)


def test_in_a_session_the_answer_has_what_has_news():
    frame = answer({"orders": (part(300),)}, session_id=77)
    found = read(frame, FetchRequest(partitions=PARTS, session=(0, 0)))

    assert found.session_id == 77
    assert [(log.topic, log.partition) for log in found.partitions] == [("orders", 300)]


def test_errors_are_read_of_all_and_of_one():
    assert read(answer({}, error=70), FetchRequest(partitions=PARTS)).error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND

    (log,) = read(answer({"orders": (part(3, error=6, records=None),)}), FetchRequest(partitions=PARTS[:1])).partitions
    assert log.error is ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize(("cut", "told"), [((4, 11), (4, 11)), ((-1, -1), None), (None, None)])
def test_where_a_log_was_cut_is_read(cut, told):
    (log,) = read(answer({"orders": (part(3, cut=cut),)}), FetchRequest(partitions=PARTS[:1])).partitions

    assert log.diverging == told


def test_an_answer_that_a_quota_holds_back_leaves_all_out_and_says_so():
    found = read(answer({}, throttle_ms=7_000), FetchRequest(partitions=PARTS))

    assert found.throttle_ms == 7_000
    assert [log.error for log in found.partitions] == [ErrorCode.THROTTLING_QUOTA_EXCEEDED] * 3


def test_what_the_answer_leaves_out_is_an_error():
    found = read(answer({"orders": (part(3),)}, throttle_ms=0), FetchRequest(partitions=PARTS))

    assert [log.error for log in found.partitions] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ]


def test_an_answer_that_is_cut_short_is_refused():
    whole = answer({"orders": (part(3, aborted=((4, 5),), cut=(4, 11)), part(4))})
    for size in range(4, len(whole) - 2):
        with pytest.raises(DecodeError):
            read(whole[:size], FetchRequest(partitions=PARTS[:1]))
