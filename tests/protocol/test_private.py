"""Flowshare's own API, and what its clients say of themselves."""

from __future__ import annotations

import struct

import pytest

from flowshare.protocol import private
from flowshare.protocol.client_software import version, worker_of
from flowshare.protocol.headers import DecodeError
from flowshare.protocol.kafka import ApiKey
from flowshare.protocol.messages import DescribeShareGroupOffsetsRequest
from flowshare.protocol.messages.browse import SharePlacesResponse

ASKED = DescribeShareGroupOffsetsRequest(group_id="größe", topics={"t": (0, 1)})
ANSWER = SharePlacesResponse(places=(("größe", 1),))


def test_a_call_has_the_header_of_its_key_and_its_body_comes_back():
    frame = private.encode_call(7, "me", ASKED)
    size, key, number, correlation_id, length = struct.unpack_from(">ihhih", frame)

    assert (size, key, number, correlation_id, length) == (len(frame) - 4, ApiKey.FLOWSHARE, private.VERSION, 7, 2)
    assert frame[14:17] == b"me\0"  # the client's id, no tagged fields
    asked = private.decode_call(frame, 17, private.VERSION)
    assert asked.name == "share_offsets"
    assert private.read(DescribeShareGroupOffsetsRequest, asked.text) == ASKED


def test_an_answer_comes_back():
    frame = private.encode_answer(7, private.VERSION, ANSWER)

    assert struct.unpack_from(">ii", frame) == (len(frame) - 4, 7)
    assert private.decode_answer(frame[4:], SharePlacesResponse) == ANSWER


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"{}", b'{"call":7}', b'{"call":"x","y":' + b"[" * 100_000])
def test_what_names_no_call_is_refused(body):
    with pytest.raises(DecodeError, match="a call of flowshare cannot be read"):
        private.decode_call(body, 0, private.VERSION)


@pytest.mark.parametrize("body", [b"[]", b"1", b"null", b"{", b'{"places":[[0,1]]}'])
def test_an_answer_of_another_form_is_refused(body):
    with pytest.raises(DecodeError, match="SharePlacesResponse cannot be read"):
        private.decode_answer(bytes(5) + body, SharePlacesResponse)


def test_a_client_in_a_workers_process_names_the_worker_and_another_one_does_not():
    assert version("0.1.0", None) == "0.1.0"
    assert worker_of(version("0.1.0", None)) is None
    assert worker_of(version("0.1.0", 17)) == 17


@pytest.mark.parametrize("told", ["", "worker.1", "1-worker.", "1-worker.-2", "1-worker.12345678901", "1-worker.²"])
def test_a_version_that_only_looks_like_one_names_no_worker(told):
    assert worker_of(told) is None
