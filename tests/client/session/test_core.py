"""The core of a member's sessions, one step at a time: what the seeded world (`world`) meets seldom or never."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flowshare.client.net.topology import Topology
from flowshare.client.session import commands as c
from flowshare.client.session.core import GONE, LOCAL, LOCK_S, UNANSWERED, SessionCore
from flowshare.client.session.custody import Generations
from flowshare.client.session.share_session import ALL, ANSWERED_S, LEFT_OUT, NO_SESSION, RESUME_S, TRICKLE_MAX, Plan
from flowshare.client.settings import LinkSettings
from flowshare.protocol import messages as m
from flowshare.protocol.errors import ErrorCode
from flowshare.share.types import AckRange, AcquiredRange, AcquireMode
from tests.client.fakes import ORDERS

P0, P1 = m.TopicPartition(ORDERS, 0), m.TopicPartition(ORDERS, 1)
PLAN = Plan(10, 10, 0.5, 1 << 20, AcquireMode.RECORD_LIMIT)
ACCEPT, RELEASE, RENEW = b"\1", b"\2", b"\4"


class Steps:
    """A core, and what was said of it since the last `said`. Its topic has one partition for each of `leaders`; without
    them it is at one server."""

    def __init__(self, *leaders, keeps, adopts=False):
        self.topology = Topology() if leaders else None
        self.keeps, self.now_s = keeps, 0.0
        self.core = SessionCore(
            group_id="g",
            member_id="m1",
            generations=Generations(),
            name_of=lambda _: "orders",
            settings=LinkSettings(acknowledge_linger=0.0),
            pause_s=lambda _: 1.0,
            adopts=adopts,
        )
        self.core.route(self.topology, keeps=keeps, now_s=0.0)
        self.lead(*leaders)

    def lead(self, *leaders):
        """These lead the partitions from now on."""
        if self.topology is not None:
            topic = m.TopicMetadata(name="orders", topic_id=ORDERS, partitions=len(leaders), leaders=leaders)
            self.topology.apply(m.MetadataResponse(topics=(topic,)))
        self.assign(*(m.TopicPartition(ORDERS, index) for index in range(max(1, len(leaders)))))

    def assign(self, *partitions):
        self.core.assign(frozenset(partitions), self.now_s)

    def opened(self, node_id):
        self.core.opened(node_id, self.now_s, keeps_time=False, serial=not self.keeps)

    def said(self, kind=c.Command):
        """All of a kind that was said since the last time."""
        return [one for one in self.core.take() if isinstance(one, kind)]

    def sent(self):
        """The one request that was said."""
        (send,) = self.said(c.SendRequest)
        return send

    def answer(self, send, answer):
        self.core.answered(send.node_id, send.number, answer, self.now_s)

    def fetching(self):
        """The fetch that is under way."""
        self.core.ask(PLAN, self.now_s)
        return self.sent()

    def fetched(self, tp=P0):
        """Ten records of a partition are in hand."""
        self.answer(self.fetching(), brought(tp))
        return self.said(c.Arrived)[0].fetched[0]

    def acknowledge(self, *partitions, types=ACCEPT, generation=None):
        acks = {tp: [AckRange(0, 9, types)] for tp in partitions}
        self.core.acknowledge(acks, generation, self.now_s, asker="asker", tells_late=False)

    def outcomes(self):
        """Return the outcomes of the answered acknowledgements: error and message."""
        return [(one.error, one.message) for answered in self.said(c.Answered) for one in answered.results]


def brought(tp=P0):
    part = m.FetchedPartition(topic_id=tp.topic_id, partition=tp.partition, acquired=(AcquiredRange(0, 9, 1),))
    return m.ShareFetchResponse(partitions=(part,), lock_timeout_ms=30_000)


def told(tp=P0, error=ErrorCode.NONE):
    part = m.AcknowledgedPartition(topic_id=tp.topic_id, partition=tp.partition, error=error)
    return m.ShareAcknowledgeResponse(partitions=(part,))


def refused(error, tp=None):
    """Of a fetch: as a whole, or of one partition."""
    if tp is None:
        return m.ShareFetchResponse(error=error)
    part = m.FetchedPartition(topic_id=tp.topic_id, partition=tp.partition, error=error)
    return m.ShareFetchResponse(partitions=(part,))


@pytest.fixture
def server():
    """At one server of flowshare's own."""
    steps = Steps(keeps=True)
    steps.opened(LOCAL)
    return steps


@pytest.fixture
def broker():
    """At a broker of Kafka's, which leads all there is."""
    steps = Steps(1, keeps=False)
    steps.opened(1)
    return steps


@pytest.fixture
def worker():
    """At a fleet's worker, which leads all there is."""
    steps = Steps(1, keeps=True)
    steps.opened(1)
    return steps


# --- requests that fail ---------------------------------------------------------------------------------------------


def test_a_fetch_that_cannot_be_sent_ends_with_the_error_and_the_next_one_is_sent(broker):
    send, error = broker.fetching(), ValueError("no")

    broker.core.failed(1, send.number, error, 0.0)

    assert broker.said() == [c.Broke(error)]
    assert isinstance(broker.fetching().request, m.ShareFetchRequest)


def test_an_acknowledgement_whose_answer_cannot_be_read_has_an_unknown_outcome(broker):
    broker.fetched()
    broker.acknowledge(P0)
    send = broker.sent()

    broker.core.failed(1, send.number, ValueError("no"), 0.0)
    broker.core.failed(1, send.number, ValueError("told once"), 0.0)

    assert broker.outcomes() == [(ErrorCode.UNKNOWN_SERVER_ERROR, "outcome unknown: ValueError('no')")]


def test_a_session_whose_end_cannot_be_sent_has_ended(broker):
    broker.fetched()
    broker.core.close_sessions({}, 0.0)

    broker.core.failed(1, broker.sent().number, ValueError("no"), 0.0)

    assert broker.core.ended


def test_a_node_that_can_never_be_connected_to_ends_the_fetch_that_waits_for_it():
    steps, error = Steps(1, keeps=False), PermissionError("login")
    steps.core.ask(PLAN, 0.0)
    assert steps.said() == [c.Connect(1)]

    steps.core.refused(1, error, 0.0)

    assert steps.said() == [c.Broke(error)]
    assert not steps.core.busy


@pytest.mark.parametrize("kind", ["fetch", "acknowledge"])
def test_a_node_whose_answer_is_overdue_is_left(server, kind):
    server.fetched()
    server.acknowledge(P0) if kind == "acknowledge" else server.core.ask(PLAN, 0.0)
    server.said()

    server.core.tick(server.core.due_s())

    (drop,) = server.said(c.Drop)
    assert drop.reason == f"no answer within {30.5 if kind == 'fetch' else 30:g} s: node -2 did not answer: {kind}"


def test_a_leader_that_does_not_say_what_is_held_is_left():
    steps = Steps(1, keeps=True)
    steps.opened(1)
    steps.fetched()
    steps.lead(2)
    steps.opened(2)

    steps.core.tick(RESUME_S)

    assert "node 2 does not say what is held" in steps.said(c.Drop)[0].reason


# --- what waits behind another request ------------------------------------------------------------------------------


def test_a_fetch_that_waits_behind_an_acknowledgement_ends_with_the_connection(broker):
    broker.fetched()
    broker.acknowledge(P0)
    broker.core.ask(PLAN, 0.0)
    broker.said(c.SendRequest)

    broker.core.lost(1, 0.0)

    assert c.Arrived([]) in broker.said()
    assert not broker.core.busy


def test_a_fetch_that_waits_ends_when_there_is_nothing_to_fetch_any_more(broker):
    broker.fetched()
    broker.acknowledge(P0)
    broker.core.ask(PLAN, 0.0)
    send = broker.sent()
    broker.assign()

    broker.answer(send, m.ShareAcknowledgeResponse(error=ErrorCode.SHARE_SESSION_NOT_FOUND))

    assert broker.said(c.Arrived) == [c.Arrived([])]


def test_acknowledgements_whose_session_cannot_be_opened_are_told_so(broker):
    broker.fetched()
    broker.acknowledge(P0)
    broker.answer(broker.sent(), m.ShareAcknowledgeResponse(error=ErrorCode.SHARE_SESSION_NOT_FOUND))
    broker.said()
    broker.acknowledge(P0)

    broker.answer(broker.sent(), refused(ErrorCode.SHARE_SESSION_LIMIT_REACHED))

    assert broker.outcomes() == [(ErrorCode.SHARE_SESSION_NOT_FOUND, NO_SESSION)]


def test_what_a_fetch_that_only_opens_a_session_brings_is_told(server):
    server.core.ask(PLAN, 0.0)
    server.core.end_fetches(0.0)
    parked, opening = server.said(c.SendRequest)
    assert (parked.request.max_records, opening.request.max_records) == (10, 0)

    server.answer(opening, brought())

    (arrived,) = server.said(c.Arrived)
    assert arrived.fetched[0].acquired == (AcquiredRange(0, 9, 1),)


# --- closing --------------------------------------------------------------------------------------------------------


def closing(broker, unrun):
    """The session is gone when its turn to be closed comes."""
    broker.fetched()
    broker.acknowledge(P0)
    send = broker.sent()
    broker.core.close_sessions(unrun, 0.0)
    broker.answer(send, m.ShareAcknowledgeResponse(error=ErrorCode.SHARE_SESSION_NOT_FOUND))


def test_a_session_that_is_gone_is_not_opened_to_be_closed(broker):
    closing(broker, {})

    assert broker.said(c.SendRequest) == []
    assert broker.core.ended


def test_a_session_that_is_gone_is_opened_to_give_something_back(broker):
    closing(broker, {P0: [(3, 9, broker.core.custody.generation)], P1: [(0, 0, 17)]})
    opening = broker.sent()
    assert (opening.request.session_epoch, opening.request.max_records) == (0, 0)

    broker.answer(opening, m.ShareFetchResponse())

    send = broker.sent()
    assert send.request.session_epoch == -1
    assert send.request.partitions == (m.SharePartitionRequest(*P0, (AckRange(3, 9, b"\2", 0, True),)),)


def test_closing_ends_when_no_session_can_be_opened_for_it(broker):
    closing(broker, {P0: [(3, 9, broker.core.custody.generation)]})

    broker.answer(broker.sent(), refused(ErrorCode.SHARE_SESSION_LIMIT_REACHED))

    assert broker.core.ended


def test_what_came_home_while_the_member_closes_is_given_back_in_a_new_session(server):
    generation = server.fetched().generation
    server.core.lost(LOCAL, 0.0)
    server.opened(LOCAL)
    held = m.HeldRanges(*P0, ((0, 9),))
    server.answer(server.sent(), m.ShareResumeResponse(partitions=(held,)))

    server.core.close_sessions({P0: [(0, 9, generation)]}, 0.0)

    opening, closing = server.said(c.SendRequest)
    assert (opening.request.session_epoch, closing.request.session_epoch) == (0, -1)


# --- trouble of fetches ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tp", [None, P0], ids=["whole", "partition"])
@pytest.mark.parametrize(
    ("error", "refuses", "refreshes"),
    [
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, True, False),
        (ErrorCode.UNKNOWN_TOPIC_ID, False, True),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, False, False),
    ],
)
def test_what_an_error_of_a_fetch_leads_to(server, tp, error, refuses, refreshes):
    server.answer(server.fetching(), refused(error, tp))

    assert (server.core.refusal is not None) is refuses
    assert (c.Refresh() in server.core.take()) is refreshes
    assert error.name in server.core.trouble


def test_trouble_that_goes_on_is_a_warning_once(server):
    levels = []
    for _ in range(2):
        server.answer(server.fetching(), refused(ErrorCode.KAFKA_STORAGE_ERROR, P0))
        levels += [note.level for note in server.said(c.Note)]
        server.now_s += 2.0
        server.core.tick(server.now_s)

    assert levels == [c.WARNING]


def test_a_partition_of_brokers_whose_leader_is_not_known_is_trouble():
    steps = Steps(-1, keeps=False)

    assert steps.core.trouble == "the leaders of some partitions of orders are not known"


# --- outcomes -------------------------------------------------------------------------------------------------------


def test_a_call_about_nothing_is_answered_at_once(server):
    server.acknowledge()

    assert server.said() == [c.Answered("asker", [])]


def test_an_acknowledgement_that_is_refused_is_told_why(server):
    server.fetched()
    server.acknowledge(P0)

    server.answer(server.sent(), told(error=ErrorCode.TOPIC_AUTHORIZATION_FAILED))

    assert server.outcomes() == [(ErrorCode.TOPIC_AUTHORIZATION_FAILED, None)]


def test_an_acknowledgement_that_the_answer_leaves_out_failed(server):
    server.fetched()
    server.acknowledge(P0)

    server.answer(server.sent(), m.ShareAcknowledgeResponse())

    assert server.outcomes() == [(ErrorCode.INVALID_RECORD_STATE, LEFT_OUT)]


def said(steps, *batches):
    """Acknowledge these batches, of which the server refuses offsets 2 to 5, and return the result."""
    steps.core.acknowledge({P0: batches}, None, steps.now_s, asker="asker", tells_late=False)
    part = m.AcknowledgedPartition(topic_id=P0.topic_id, partition=P0.partition, message="gone", refused=((2, 5),))
    steps.answer(steps.sent(), m.ShareAcknowledgeResponse(partitions=(part,), lock_timeout_ms=30_000))
    ((result,),) = [answered.results for answered in steps.said(c.Answered)]
    return result


def test_what_is_refused_of_acknowledgements_is_told_and_held_no_more(server):
    server.fetched()

    result = said(server, AckRange(1, 3, ACCEPT, attempt=1), AckRange(5, 6, RELEASE, attempt=1))

    assert (result.error, result.refused, result.refusal, result.message) == (
        ErrorCode.NONE,
        ((2, 5),),
        ErrorCode.INVALID_RECORD_STATE,
        "gone",
    )
    assert server.core.custody.holding.of(P0) == ((0, 0), (4, 4), (7, 9))


def test_of_renewed_records_those_that_are_refused_are_held_no_more(server):
    server.fetched()

    result = said(server, AckRange(0, 9, RENEW, attempt=1))

    assert (result.refused, result.lock_deadline) == (((2, 5),), 30.0)
    assert server.core.custody.holding.of(P0) == ((0, 1), (6, 9))


def test_what_is_refused_of_an_attempt_is_held_on_when_a_later_one_came(server):
    server.fetched()
    server.core.custody.took(LOCAL, P0, [AcquiredRange(4, 4, 2)])

    said(server, AckRange(0, 9, RENEW, attempt=1))

    assert server.core.custody.holding.of(P0) == ((0, 1), (4, 4), (6, 9))


def test_what_is_refused_of_an_earlier_attempt_says_nothing_of_the_later_one(server):
    custody = server.core.custody
    custody.took(LOCAL, P0, [AcquiredRange(0, 9, 1)])
    custody.took(LOCAL, P0, [AcquiredRange(4, 4, 2)])

    custody.ended(P0, [AckRange(3, 3, ACCEPT, attempt=1)], custody.taken, renewed=False, refused=ALL)
    custody.ended(P0, [AckRange(4, 4, ACCEPT, attempt=1)], custody.taken, renewed=False, refused=ALL)
    assert custody.holding.of(P0) == ((0, 2), (4, 9))

    custody.ended(P0, [AckRange(4, 4, ACCEPT, attempt=2)], custody.taken, renewed=False, refused=ALL)
    assert custody.holding.of(P0) == ((0, 2), (5, 9))


def test_of_a_renewal_what_else_it_says_has_ended(server):
    server.fetched()
    server.acknowledge(P0, types=RENEW + ACCEPT + RENEW * 8)

    server.answer(server.sent(), told())

    assert server.core.custody.holding.of(P0) == ((0, 0), (2, 9))


def test_what_the_old_leader_does_not_take_goes_to_the_next_one_which_is_known_by_then():
    steps = Steps(1, keeps=True)
    steps.opened(1)
    steps.opened(2)
    steps.fetched()
    steps.acknowledge(P0)
    late = steps.sent()
    steps.lead(2)
    steps.answer(steps.sent(), m.ShareResumeResponse(partitions=(m.HeldRanges(*P0, ((0, 9),)),)))

    steps.answer(late, told(error=ErrorCode.NOT_LEADER_OR_FOLLOWER))

    again = steps.said(c.SendRequest)[-1]
    assert (again.node_id, again.request.partitions) == (2, late.request.partitions)


def test_a_release_that_was_written_is_not_sent_again_when_some_of_it_came_again_in_an_answer_that_was_lost(server):
    server.fetched()
    server.acknowledge(P0, types=RELEASE)
    server.sent()
    server.fetching()  # it is given 0 to 5 once more, and does not hear of it
    server.core.lost(LOCAL, 0.0)
    server.opened(LOCAL)

    server.answer(server.sent(), m.ShareResumeResponse(partitions=(m.HeldRanges(*P0, ((0, 5),)),)))

    said = server.said()
    assert not [one for one in said if isinstance(one, c.SendRequest)]
    (answered,) = (one for one in said if isinstance(one, c.Answered))
    assert [one.message for one in answered.results] == [UNANSWERED]
    assert server.core.custody.holding.of(P0) == ((0, 5),)


@pytest.mark.parametrize("error", [ErrorCode.INVALID_RECORD_STATE, ErrorCode.SHARE_SESSION_NOT_FOUND])
def test_a_release_in_doubt_that_is_sent_again_and_refused_has_no_outcome(server, error):
    server.fetched()
    server.acknowledge(P0, types=RELEASE)
    server.core.lost(LOCAL, 0.0)
    server.said()
    server.opened(LOCAL)
    kept = m.ShareResumeResponse(partitions=(m.HeldRanges(*P0, ((0, 9),)),))  # or again, in an answer that was lost
    server.answer(server.sent(), kept)
    _, again = server.said(c.SendRequest)

    server.answer(again, m.ShareAcknowledgeResponse(error=error))

    assert server.outcomes() == [(ErrorCode.NETWORK_EXCEPTION, UNANSWERED)]


@pytest.mark.parametrize("doubted", [False, True])
def test_an_acknowledgement_without_a_leader_for_the_lock_time_has_no_outcome(doubted):
    steps = Steps(1, keeps=True)
    steps.opened(1)
    generation = steps.fetched().generation
    if doubted:
        steps.acknowledge(P0, generation=generation)
        steps.sent()
    steps.core.lost(1, 0.0)
    if not doubted:
        steps.acknowledge(P0, generation=generation)
    steps.said()

    steps.core.looked([P0], LOCK_S)

    assert steps.outcomes() == [(ErrorCode.NETWORK_EXCEPTION, UNANSWERED if doubted else GONE)]


# --- what changes nothing -------------------------------------------------------------------------------------------


def test_one_server_has_no_leaders_to_be_looked_up_and_a_member_that_has_ended_looks_no_more(server):
    server.core.looked([P0], 0.0)
    steps = Steps(1, keeps=True)
    steps.core.stop()
    steps.said()
    steps.core.looked([P0], 0.0)

    assert server.said(c.Look) == steps.said() == []


def test_a_member_that_is_given_up_drops_the_workers_that_it_has_a_connection_to():
    steps = Steps(1, 2, keeps=True)
    steps.opened(1)
    steps.said()

    steps.core.given_up(0.0)

    assert [drop.node_id for drop in steps.said(c.Drop)] == [1]


def test_what_an_earlier_process_held_is_told_to_a_leader_that_becomes_known_later():
    steps = Steps(1, keeps=True)
    steps.topology = steps.core._topology = Topology()  # nothing of the topic is known yet, its name neither
    steps.core.custody.homes.clear()
    steps.assign(P0)

    steps.core.adopt({P0: [(0, 9)]}, 0.0)
    steps.lead(1)
    steps.core.looked([P0], 0.0)
    steps.opened(1)

    requests = [send.request for send in steps.said(c.SendRequest)]
    resume = next(one for one in requests if isinstance(one, m.ShareResumeRequest))
    assert resume.partitions == (m.HeldRanges(ORDERS, 0, ((0, 9),)),)


def test_a_connection_that_ends_before_something_is_adopted_tells_nobody_that_nothing_is_held():
    steps = Steps(1, keeps=True, adopts=True)
    steps.opened(1)
    steps.core.lost(1, 0.0)
    steps.opened(1)
    assert steps.said(c.SendRequest) == []

    steps.core.adopt({P0: [(0, 9)]}, 0.0)

    assert steps.sent().request.partitions == (m.HeldRanges(ORDERS, 0, ((0, 9),)),)


def test_what_an_earlier_process_held_of_what_is_assigned_later_goes_back_at_once():
    steps = Steps(1, keeps=True, adopts=True)
    steps.opened(1)
    steps.core.adopt({P0: [(0, 9)]}, 0.0)
    steps.answer(steps.sent(), m.ShareResumeResponse(partitions=(m.HeldRanges(*P0, ((0, 9),)),)))
    steps.said()

    steps.lead(1, 1)
    assert steps.sent().request.partitions == (m.HeldRanges(*P1),)


def test_what_is_told_once_after_an_adoption_is_at_home_when_it_is_assigned_again():
    steps = Steps(1, keeps=True, adopts=True)
    steps.opened(1)
    steps.core.adopt({}, 0.0)
    steps.answer(steps.sent(), m.ShareResumeResponse())
    steps.assign()
    assert steps.core.custody.homes == {}
    steps.said()

    steps.assign(P0)

    assert steps.core.custody.homes == {P0: 1}
    assert steps.said(c.SendRequest) == []


@pytest.mark.parametrize("assigned_meanwhile", [True, False])
def test_what_was_adopted_and_comes_again_is_held_when_the_acknowledgement_before_it_is_answered(assigned_meanwhile):
    steps = Steps(1, keeps=True, adopts=True)
    steps.opened(1)
    steps.core.adopt({P0: [(0, 9)]}, 0.0)
    if not assigned_meanwhile:
        steps.assign()
    steps.answer(steps.sent(), m.ShareResumeResponse())  # it was lost with the earlier process
    steps.assign(P0)
    steps.said()
    fetch = steps.fetching()
    steps.acknowledge(P0)
    acknowledgement = steps.sent()

    steps.answer(fetch, brought())
    steps.answer(acknowledgement, told(error=ErrorCode.INVALID_RECORD_STATE))

    assert steps.core.custody.holding.of(P0) == ((0, 9),)


def test_brokers_hear_nothing_of_what_an_earlier_process_held(broker):
    broker.said()

    broker.core.adopt({P0: [(0, 9)]}, 0.0)

    assert broker.said() == []
    assert broker.core.custody.homes == {P0: 1}


# --- how old locks are ---------------------------------------------------------------------------------------------


def read_late(steps, late_s, **locked):
    """When the locks of records are taken to lapse whose answer was read so long after its fetch was sent."""
    send = steps.fetching()
    steps.now_s += late_s
    (part,) = brought().partitions
    steps.answer(send, m.ShareFetchResponse(partitions=(replace(part, **locked),), lock_timeout_ms=30_000))
    return steps.said(c.Arrived)[0].fetched[0].lock_deadline


@pytest.mark.parametrize("late_s", [0.2, 0.5, 20.0])
def test_a_lock_lapses_by_when_the_server_says_that_it_began_however_late_the_answer_is_read(server, late_s):
    assert read_late(server, late_s, fence=(1, 2), locked_after_ms=200) == pytest.approx(30.2)


def test_who_does_not_say_when_its_locks_began_answered_at_the_end_of_the_wait_at_the_latest(broker):
    assert read_late(broker, 0.4) == pytest.approx(30.4)
    broker.now_s = 0.0
    assert read_late(broker, 20.0) == pytest.approx(30.0 + max(PLAN.max_wait_s, ANSWERED_S))


# --- a fetch beside another -----------------------------------------------------------------------------------------


def few(count=1):
    part = m.FetchedPartition(topic_id=P0.topic_id, partition=P0.partition, acquired=(AcquiredRange(0, count - 1, 1),))
    return m.ShareFetchResponse(partitions=(part,), lock_timeout_ms=30_000)


def beside(steps):
    """Return the requests that are sent for a caller that may be asked beside a parked fetch."""
    steps.core.ask(PLAN._replace(beside=True), steps.now_s)
    return steps.said(c.SendRequest)


def sizes(sends):
    return [one.request.max_records for one in sends]


def trickled(steps, count=1):
    """A fetch has brought so many records."""
    (send,) = beside(steps)
    steps.answer(send, few(count) if count else m.ShareFetchResponse())
    steps.said()


def test_where_records_trickle_in_two_fetches_share_what_is_asked_for(worker):
    trickled(worker)

    both = beside(worker)
    assert sizes(both) == [PLAN.records_max // 2] * 2
    assert beside(worker) == []
    worker.answer(both[0], few())
    assert sizes(beside(worker)) == [PLAN.records_max // 2], "one is still parked"


@pytest.mark.parametrize("count", [0, TRICKLE_MAX + 1, PLAN.records_max])
def test_where_nothing_or_many_or_all_came_that_was_asked_for_one_fetch_is_enough(worker, count):
    trickled(worker, count)

    assert sizes(beside(worker)) == [PLAN.records_max]


@pytest.mark.parametrize("kind", ["broker", "server"])
def test_who_writes_acquires_at_once_is_asked_for_one_fetch_at_a_time(kind, request):
    steps = request.getfixturevalue(kind)
    trickled(steps)

    assert sizes(beside(steps)) == [PLAN.records_max]


def ordered(steps, records_max, heads):
    """Return the fetches that are sent for so many records of so many keys: (records, keys, records of one key in a
    row)."""
    plan = PLAN._replace(records_max=records_max, heads=heads, chain=16, beside=True)
    steps.core.ask(plan, steps.now_s)
    requests = [one.request for one in steps.said(c.SendRequest)]
    return [(one.max_records, one.heads, one.chain) for one in requests]


def test_a_fetch_says_how_many_keys_to_begin_and_how_many_records_of_one_may_follow(server):
    assert ordered(server, 100, 7) == [(100, 7, 16)]


def test_fetches_that_share_what_is_asked_for_share_its_keys(worker):
    trickled(worker)

    assert ordered(worker, 100, 7) == [(50, 3, 16)] * 2


def test_a_fetch_that_has_a_part_of_one_key_asks_for_one(worker):
    trickled(worker)

    assert ordered(worker, 16, 1) == [(8, 1, 16)] * 2


def test_a_fetch_without_an_order_says_nothing_of_keys(server):
    request = server.fetching().request

    assert (request.heads, request.chain) == (0, 1)


def test_both_fetches_of_a_connection_that_is_lost_end_with_nothing(worker):
    trickled(worker)
    assert len(beside(worker)) == 2
    worker.said()

    worker.core.lost(1, worker.now_s)

    assert worker.said(c.Arrived) == [c.Arrived([])] * 2
    assert not worker.core.busy
