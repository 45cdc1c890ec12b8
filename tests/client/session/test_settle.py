"""Settles in the core of a member's sessions, one step at a time."""

from __future__ import annotations

import uuid

import pytest

from flowshare.client.errors import Unsupported
from flowshare.client.session import commands as c
from flowshare.client.session.core import CANNOT_SETTLE, GONE, LOCAL, SILENT_S, STOPPED, UNANSWERED, WATCH_S
from flowshare.protocol import messages as m
from flowshare.protocol.errors import ErrorCode
from flowshare.share.types import AckRange, AcquiredRange
from tests.client.fakes import ORDERS
from tests.client.session.test_core import P0, PLAN, Steps, told

ACKS = (AckRange(0, 3, b"\1", attempt=1), AckRange(5, 6, b"\1\3", attempt=1))
OUTPUTS = (m.SettleOutput("out", uuid.UUID(int=9), 1, b"batch"),)
ALL = ((0, 9),)
NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER


class Settling(Steps):
    """Steps of a member that settles."""

    def settle(self, *acks, outputs=OUTPUTS, generation=None, tells_late=False):
        now_s, batches = self.now_s, acks or ACKS
        self.core.settle(P0, batches, outputs, generation, now_s, asker="asker", tells_late=tells_late)

    def settles(self):
        """Return the settle requests that were sent since the last look."""
        return [one for one in self.said(c.SendRequest) if isinstance(one.request, m.ShareSettleRequest)]

    def settling(self, **fields):
        """The settle that is under way."""
        self.settle(**fields)
        (send,) = self.settles()
        return send

    def result(self):
        """Return the only result that was told."""
        (answered,) = self.said(c.Answered)
        (result,) = answered.results
        return result

    def resumed(self, node_id, *ranges):
        """The node said that so much is still the member's; what was said before that."""
        said = self.core.take()
        (resume,) = (one for one in said if isinstance(getattr(one, "request", None), m.ShareResumeRequest))
        assert resume.node_id == node_id
        parts = (m.HeldRanges(*P0, ranges),) if ranges else ()
        self.answer(resume, m.ShareResumeResponse(partitions=parts))

    @property
    def held(self):
        return self.core.custody.holding.of(P0)


def settled(error=ErrorCode.NONE, **fields):
    return m.ShareSettleResponse(error=error, **fields)


def at(*leaders):
    """At flowshare's servers with ten records in hand; without leaders there is one server."""
    steps = Settling(*leaders, keeps=True)
    steps.opened(leaders[0] if leaders else LOCAL)
    steps.generation = steps.fetched().generation
    return steps


@pytest.fixture
def server():
    return at()


@pytest.fixture
def worker():
    return at(1)


# --- one answer -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outputs", [OUTPUTS, ()], ids=["outputs", "none"])
def test_a_settle_is_a_request_of_its_own_that_names_no_session(server, outputs):
    request = server.settling(outputs=outputs).request

    assert request == m.ShareSettleRequest(
        group_id="g", member_id="m1", topic_id=ORDERS, partition=0, acks=ACKS, outputs=outputs
    )


def test_a_settle_is_sent_beside_fetches_acknowledgements_and_other_settles(server):
    fetch = server.fetching()
    server.acknowledge(P0)
    acknowledgement = server.sent()
    first, second = server.settling(), server.settling()

    server.answer(second, settled())
    assert server.result().error is ErrorCode.NONE
    server.answer(acknowledgement, told())
    server.answer(first, settled())
    assert len(server.said(c.Answered)) == 2
    server.answer(fetch, m.ShareFetchResponse())
    assert server.said(c.Arrived) == [c.Arrived([])]


def test_a_settle_needs_no_session_and_takes_no_number_of_it(server):
    server.fetching()
    before = server.core.nodes[LOCAL].session.epoch
    server.settling()

    assert server.core.nodes[LOCAL].session.epoch == before
    server.core.nodes[LOCAL].session.reset()
    assert len(server.said(c.SendRequest)) == 0
    assert server.settling().request.acks == ACKS
    assert not server.core.nodes[LOCAL].session.open


def test_what_is_settled_is_told_and_held_no_more(server):
    server.answer(server.settling(), settled(lock_timeout_ms=7_000))

    result = server.result()
    assert (result.tp, result.acks, result.error, result.message) == (P0, ACKS, ErrorCode.NONE, None)
    assert (result.refused, result.outputs) == ((), ())
    assert server.held == ((4, 4), (7, 9))
    assert server.core.lock_timeout_ms == 7_000
    assert server.core.all_told


def test_of_a_settle_that_is_refused_for_some_records_only_these_are_not_held(server):
    server.answer(server.settling(), settled(ErrorCode.INVALID_RECORD_STATE, message="gone", refused=((2, 4), (6, 7))))

    result = server.result()
    assert (result.error, result.message, result.refused) == (
        ErrorCode.INVALID_RECORD_STATE,
        "gone",
        ((2, 4), (6, 7)),
    )
    assert server.held == ((0, 1), (4, 5), (7, 9))


def test_of_a_settle_that_is_refused_for_its_records_and_names_none_nothing_is_held(server):
    server.answer(server.settling(), settled(ErrorCode.INVALID_RECORD_STATE))

    assert server.result().refused == ((0, 3), (5, 6))
    assert server.held == ((4, 4), (7, 9))


@pytest.mark.parametrize("attempt", [0, 1])
def test_a_record_that_is_refused_and_was_acquired_again_meanwhile_is_held(server, attempt):
    send = server.settling()
    server.core.custody.took(LOCAL, P0, [AcquiredRange(2, 2, 2)])

    server.answer(send, settled(ErrorCode.INVALID_RECORD_STATE, refused=((1, 2),)))

    assert server.held == ((0, 0), (2, 9))


def test_a_record_that_is_refused_was_acquired_for_a_later_attempt_before_and_is_held(server):
    server.core.custody.took(LOCAL, P0, [AcquiredRange(2, 2, 2)])

    server.answer(server.settling(), settled(ErrorCode.INVALID_RECORD_STATE, refused=((1, 2),)))

    assert server.held == ((0, 0), (2, 9))


@pytest.mark.parametrize("error", [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.INVALID_REQUEST])
def test_of_a_settle_that_is_refused_otherwise_everything_is_held(server, error):
    refused = (m.RefusedOutput(0, ErrorCode.MESSAGE_TOO_LARGE, "too large"),)

    server.answer(server.settling(), settled(error, message="no", outputs=refused))

    result = server.result()
    assert (result.error, result.message, result.outputs, result.refused) == (error, "no", refused, ())
    assert server.held == ALL


def test_a_server_that_cannot_settle_is_told_of_and_everything_is_held(server):
    send = server.settling()

    server.core.failed(LOCAL, send.number, Unsupported("upgrade it"), 0.0)

    result = server.result()
    assert (result.error, result.message) == (ErrorCode.UNSUPPORTED_VERSION, "upgrade it")
    assert server.held == ALL


def test_kafkas_brokers_are_not_asked_to_settle():
    broker = Settling(1, keeps=False)
    broker.opened(1)
    broker.fetched()

    broker.settle()

    (answered,) = broker.said()
    assert [(one.error, one.message) for one in answered.results] == [(ErrorCode.UNSUPPORTED_VERSION, CANNOT_SETTLE)]
    assert broker.held == ALL


def test_a_settle_whose_answer_cannot_be_read_has_an_unknown_outcome(server):
    send = server.settling()

    server.core.failed(LOCAL, send.number, ValueError("no"), 0.0)
    server.core.failed(LOCAL, send.number, ValueError("told once"), 0.0)

    assert server.result().message == "outcome unknown: ValueError('no')"


# --- what is not sent -----------------------------------------------------------------------------------------------


def test_nothing_is_sent_of_what_is_lost(worker):
    worker.core.given_up(0.0)
    worker.said()

    worker.settle(generation=worker.generation)

    (answered,) = worker.said()
    assert [(one.error, one.message) for one in answered.results] == [(ErrorCode.NETWORK_EXCEPTION, GONE)]


def test_a_member_that_has_ended_settles_nothing_and_what_was_under_way_has_no_outcome(server):
    server.settling()
    server.core.stop()
    assert server.result().message == STOPPED

    server.settle()

    assert server.result().message == STOPPED
    assert server.core.all_told


def test_a_settle_that_is_under_way_is_waited_for_and_the_session_ends_behind_it(server):
    send = server.settling()
    assert not server.core.all_told

    server.core.close_sessions({}, 0.0)
    closing = server.sent()
    server.answer(send, settled())
    assert server.result().error is ErrorCode.NONE
    server.answer(closing, m.ShareAcknowledgeResponse())

    assert server.core.ended


# --- leaders --------------------------------------------------------------------------------------------------------


def test_a_settle_without_an_answer_is_sent_again_once_where_the_records_are_still_held(server):
    first = server.settling()
    server.core.lost(LOCAL, 0.0)
    assert server.said(c.Answered) == []
    server.opened(LOCAL)

    server.resumed(LOCAL, (0, 9))

    (again,) = server.settles()
    assert again.request == first.request
    server.answer(first, settled())  # of a connection that is gone
    assert server.said(c.Answered) == []
    server.answer(again, settled())
    assert server.result().error is ErrorCode.NONE
    server.core.tick(100.0)
    assert server.settles() == []
    assert server.held == ((4, 4), (7, 9))


@pytest.mark.parametrize("ranges", [(), ((4, 4), (7, 9))], ids=["nothing", "the rest"])
def test_a_settle_without_an_answer_whose_records_are_not_held_any_more_has_an_unknown_outcome(server, ranges):
    server.settling()
    server.core.lost(LOCAL, 0.0)
    server.opened(LOCAL)

    server.resumed(LOCAL, *ranges)

    said = server.core.take()
    assert not [one for one in said if isinstance(getattr(one, "request", None), m.ShareSettleRequest)]
    (answered,) = (one for one in said if isinstance(one, c.Answered))
    assert [(one.error, one.message) for one in answered.results] == [(ErrorCode.NETWORK_EXCEPTION, UNANSWERED)]
    assert server.held == ranges


def test_a_settle_that_was_in_doubt_and_is_refused_when_it_is_sent_again_has_an_unknown_outcome(server):
    server.settling()
    server.core.lost(LOCAL, 0.0)
    server.opened(LOCAL)
    server.resumed(LOCAL, (0, 9))
    (again,) = server.settles()

    server.answer(again, settled(ErrorCode.INVALID_RECORD_STATE, refused=((0, 3),)))

    result = server.result()
    assert (result.error, result.message, result.refused) == (ErrorCode.NETWORK_EXCEPTION, UNANSWERED, ())
    assert server.held == ((4, 9),)


def test_what_a_worker_does_not_lead_any_more_is_settled_by_the_next_one(worker):
    worker.opened(2)
    send = worker.settling()
    leader = {"current_leader": (2, 2), "node_endpoints": {2: ("host", 1)}}

    worker.answer(send, settled(NOT_LEADER, **leader))
    worker.resumed(2, (0, 9))

    (again,) = worker.settles()
    assert (again.node_id, again.request) == (2, send.request)
    worker.answer(again, settled())
    assert worker.result().error is ErrorCode.NONE


def test_a_settle_waits_for_the_next_leader_which_hears_first_what_is_held(worker):
    worker.core.lost(1, 0.0)
    worker.settle(generation=worker.generation)
    assert worker.settles() == []
    worker.lead(2)
    worker.opened(2)

    worker.resumed(2, (0, 9))

    (send,) = worker.settles()
    assert send.node_id == 2


def test_a_settle_that_waits_for_a_leader_is_told_late(worker):
    worker.core.lost(1, 0.0)
    worker.settle(tells_late=True)
    assert worker.said(c.Answered) == [c.Answered("asker", [])]
    worker.lead(2)
    worker.opened(2)
    worker.resumed(2, (0, 9))
    (send,) = worker.settles()

    worker.answer(send, settled())

    (late,) = worker.said(c.Late)
    assert (late.asker, late.result.error) == ("asker", ErrorCode.NONE)


def test_one_server_that_does_not_lead_is_told_of_at_once(server):
    server.answer(server.settling(), settled(NOT_LEADER, message="no"))

    result = server.result()
    assert (result.error, result.message) == (NOT_LEADER, "no")
    assert server.held == ALL


# --- how long it may take -------------------------------------------------------------------------------------------


def pass_time(steps, until_s):
    """Time passes; who is looked up still leads."""
    looks = 0
    while steps.now_s < until_s:
        steps.now_s += WATCH_S / 2
        steps.core.tick(steps.now_s)
        for look in steps.said(c.Look | c.Drop):
            assert isinstance(look, c.Look), f"dropped at {steps.now_s}"
            looks += 1
            steps.core.looked(look.partitions, steps.now_s)
    return looks


def test_a_slow_settle_drops_no_worker_that_answers_other_requests(worker):
    worker.settling()
    for _ in range(8):
        fetch = worker.fetching()
        assert pass_time(worker, worker.now_s + PLAN.max_wait_s) == 0
        worker.answer(fetch, m.ShareFetchResponse())
        worker.said()


def test_the_leader_of_a_slow_settle_is_looked_up_and_not_dropped_while_it_leads(worker):
    worker.settling()

    assert pass_time(worker, 4 * SILENT_S) > 0


def test_a_worker_that_does_not_answer_a_settle_in_time_is_left(worker):
    worker.settling()

    worker.core.tick(30.0)

    (drop,) = worker.said(c.Drop)
    assert drop.reason == "no answer within 30 s: node 1 did not answer: settle"
