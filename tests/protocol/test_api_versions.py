"""ApiVersions v5, whose form is written down here: it names the broker that is meant (KIP-1242)."""

from __future__ import annotations

from datetime import timedelta

import pytest
from kio.schema.errors import ErrorCode

from flowshare.protocol import kafka
from flowshare.protocol.client_software import process_of, version, worker_of
from flowshare.protocol.kafka import RequestStart

HEADER = bytes.fromhex("0012 0005 00000007 0002 6d65 00")
"""ApiVersions, v5, correlation id 7, client id "me", no tagged fields."""


def asked(body):
    frame = HEADER + body
    header, request = kafka.read_request("api_versions", kafka.request_start(frame), frame)
    assert (header.correlation_id, header.client_id) == (7, "me")
    return request


def test_a_request_names_the_cluster_and_the_node_it_means():
    request = asked(b"\x05java\x064.4.0" + b"\x03cl" + b"\x00\x00\x00\x09" + b"\x00")

    assert (request.client_software_name, request.client_software_version) == ("java", "4.4.0")
    assert (request.cluster_id, request.node_id) == ("cl", 9)


def test_a_request_of_whoever_does_not_know_the_cluster_means_any_broker():
    request = asked(b"\x05java\x064.4.0" + b"\x00" + b"\xff\xff\xff\xff" + b"\x00")

    assert (request.cluster_id, request.node_id) == (None, -1)


def test_our_own_request_has_that_form():
    made = kafka.entity("api_versions", 5, "request")(
        client_software_name="java", client_software_version="4.4.0", cluster_id="cl", node_id=9
    )

    written = kafka.write_request(7, "me", made)

    assert written[4:] == HEADER + b"\x05java\x064.4.0" + b"\x03cl" + b"\x00\x00\x00\x09" + b"\x00"
    assert int.from_bytes(written[:4], "big") == len(written) - 4


def test_the_answer_is_that_of_version_4():
    v4, v5 = (kafka.entity("api_versions", number, "response") for number in (4, 5))
    told = {"error_code": ErrorCode.none, "api_keys": (), "throttle_time": timedelta(0)}

    frame = kafka.write_response(7, v5(**told))

    assert frame == kafka.write_response(7, v4(**told))
    assert kafka.read_response("api_versions", 5, frame[4:])[0] == 7


def test_what_reads_and_writes_it_can_be_loaded_beforehand():
    kafka.load([("api_versions", 5)])


def test_a_name_or_version_that_does_not_exist_is_said_to_be_unknown():
    with pytest.raises(ImportError):
        kafka.entity("api_versions", 99, "request")


def test_a_client_id_longer_than_its_request_is_refused():
    frame = bytes.fromhex("0012 0005 00000007 0fff 6d65")

    with pytest.raises(kafka.MalformedMessage, match="4095 bytes"):
        kafka.read_request("api_versions", RequestStart(18, 5, 7), frame)


@pytest.mark.parametrize(("told", "worker", "process"), [
    (version("0.1.0", 17), 17, None),
    (version("0.1.0", None, (4711, 8899)), None, (4711, 8899)),
    (version("0.1.0", None), None, None),
    ("0.1.0-worker.x", None, None),
    ("0.1.0-worker.12345678901", None, None),
])  # fmt: skip
def test_a_version_says_in_which_worker_or_process_its_client_lives(told, worker, process):
    assert (worker_of(told), process_of(told)) == (worker, process)
