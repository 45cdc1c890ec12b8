"""Whatever comes over a socket ends in an answer or a closed connection, for every API of the table.

Valid requests of random content, the same with faults, and plain noise; each example on a server of its own. Errors
that the server itself logs count as failures: a stranger's bytes may not lead to one.
"""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flowshare.protocol.kafka import ApiKey, request_start
from flowshare.server.edge.base import BEFORE_LOGIN
from tests.fuzz.pipe import Target, run
from tests.fuzz.samples import frames, stream, valid

EXAMPLES = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@pytest.mark.slow
@settings(EXAMPLES, max_examples=400)
@given(rng=st.randoms(use_true_random=False), count=st.integers(1, 5), piece=st.sampled_from((1, 7, 65_536)))
def test_faulty_requests_of_any_api_end_in_an_answer_or_a_closed_connection(rng, count, piece):
    async def work(target: Target) -> None:
        data = stream(frames(target.apis, rng, count), rng)
        await target.feed(data, piece=piece if len(data) < 2_000 else 65_536)

    run(work)


@pytest.mark.slow
@EXAMPLES
@given(rng=st.randoms(use_true_random=False), count=st.integers(1, 3))
def test_faulty_requests_before_a_login_do_no_harm(rng, count):
    async def work(target: Target) -> None:
        table = {key: api for key, api in target.apis.items() if key in BEFORE_LOGIN}
        await target.feed(stream(frames(table, rng, count), rng), logged_in=False)

    run(work)


@pytest.mark.slow
@EXAMPLES
@given(data=st.binary(max_size=300))
def test_noise_does_no_harm(data):
    run(lambda target: target.feed(data))


@pytest.mark.slow
@EXAMPLES
@given(body=st.binary(max_size=200), number=st.integers(0), version=st.integers(0, 20))
def test_noise_behind_a_good_header_does_no_harm(body, number, version):
    async def work(target: Target) -> None:
        table = tuple(target.apis.values())
        api = table[number % len(table)]
        version_ = api.versions[0] + version % (api.versions[1] - api.versions[0] + 1)
        head = struct.pack(">hhihB", api.key, version_, 1, -1, 0)
        for data in (head + body, head[:-1] + body):  # headers of flexible versions have one byte more
            await target.feed(struct.pack(">i", len(data)) + data)

    run(work)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_every_version_of_every_api_answers_a_valid_request(seed):
    """Valid in form: what it asks for may be refused, and the refusal is an answer (none to Produce with acks=0)."""

    async def work(target: Target) -> None:
        rng = random.Random(seed)
        for api in target.apis.values():
            if api.key in (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.FLOWSHARE):
                continue  # they may end the connection
            for version in range(api.versions[0], api.versions[1] + 1):
                request = valid(api, version, rng)
                answer = await target.feed(struct.pack(">i", len(request)) + request)
                what = f"{api.key.name} v{version} seed {seed}: {request.hex()}"
                if answer:
                    assert struct.unpack_from(">i", answer, 4)[0] == request_start(request).correlation_id, what
                else:
                    assert api.key is ApiKey.PRODUCE, what

    run(work)
