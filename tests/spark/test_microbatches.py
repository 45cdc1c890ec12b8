"""The process of a query, without Spark: its checkpoint is written here."""

from __future__ import annotations

import itertools
import json
import signal
import uuid
from contextlib import contextmanager

import pytest

from flowshare.client.errors import ConnectionLost, ServerError
from flowshare.client.producer.message import partition_for
from flowshare.client.session.membership import Membership
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import ShareGroupHeartbeatResponse
from flowshare.spark.source import microbatches, progress
from flowshare.spark.source.checkpoint import DamagedNote, local_checkpoint
from flowshare.spark.source.ledger import Ledger
from flowshare.spark.source.member import GroupMember
from flowshare.spark.source.microbatches import MicroBatches
from flowshare.spark.source.narrowing import Narrowing
from flowshare.spark.source.options import SourceOptions
from flowshare.spark.source.ranges import Offset, Range
from tests.spark.serving import serving
from tests.waiting import blocking_until

pytestmark = pytest.mark.slow
BATCH = 100


class Query:
    """Spark's use of the source: batch by batch, one checkpoint."""

    def __init__(self, folder, broker, topic, group, **options):
        self._folder = folder
        for log in ("offsets", "commits"):
            (folder / log).mkdir(parents=True, exist_ok=True)
        given = {"broker": broker.url, "group": group, "checkpoint": str(folder)}
        given |= {"topics": topic} if topic else {}
        self._begun = {}
        """Number of a batch -> the offset that was committed before it."""
        self.driver = MicroBatches(SourceOptions.parse({**given, "records_per_trigger": str(BATCH), **options}))

    def plan(self, begun=None):
        """The next batch, in the write-ahead log."""
        offset = blocking_until(
            lambda: self.driver.next(begun or self.driver.initial), good=lambda found: found is not None
        )
        self._log(offset, begun or self.driver.initial)
        return offset

    def empty(self):
        """Run as Trigger.AvailableNow does, which ends when there is no next batch; return the records."""
        self.driver.emptying = True
        begun, found = self.driver.initial, set()
        while (offset := self.driver.next(begun)) is not None:
            self._log(offset, begun)
            begun = self.run(offset)
            found |= offsets(offset)
        return found

    def tasks(self, offset):
        """Return the tasks of a batch."""
        begun = self._begun.get(offset.number)
        return self.driver.tasks(offset, begun or self._logged(offset.number - 1))

    def run(self, offset):
        self.tasks(offset)
        self.commit(offset)
        return offset

    def commit(self, offset):
        self._write("commits", offset, "{}")

    def kill(self, offset):
        """A record of it kills the Python worker: the query ends, and whoever started it notes why."""
        self.fail(offset)
        local_checkpoint(str(self._folder)).note_kill(str(uuid.uuid4()))

    def fail(self, offset):
        """Its sink fails, or it is stopped: the query ends."""
        self.tasks(offset)
        self.driver.close()

    def newest(self):
        numbers = [int(path.name) + 1 for path in (self._folder / "offsets").iterdir()]
        return self._logged(max(numbers))

    def _logged(self, number):
        path = self._folder / "offsets" / str(number - 1)
        return Offset.from_json(json.loads(path.read_text().splitlines()[-1])) if number else Offset()

    def die(self, offset):
        """Its broker takes the member for dead: what it held is the group's again, as delivered."""
        self.driver._closing.set()
        self.driver._member.close(run=[*offset.ranges, *offset.done])

    def _log(self, offset, begun):
        self._begun[offset.number] = begun
        self._write("offsets", offset, json.dumps(offset.to_json()))

    def _write(self, log, offset, line):
        (self._folder / log / str(offset.number - 1)).write_text(f"v1\n{{}}\n{line}\n")


@contextmanager
def interrupted_after(seconds):
    """A signal raises in whatever this thread does then."""

    def end(*_):
        raise SystemExit

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def offsets(offset):
    return {(one.topic, one.partition, number) for one in offset.ranges for number in range(one.first, one.last + 1)}


def test_a_clean_stop_after_a_crash_accepts_what_was_committed_and_is_the_groups_again(broker, unique, tmp_path):
    topic, group = broker.topic(unique("orders")), unique("etl")
    for number in range(10):
        broker.produce(topic, [b"%d-%d" % (number, one) for one in range(BATCH)])
    first = Query(tmp_path / "old", broker, topic, group)
    committed = first.run(first.plan())
    under_way = first.plan(committed)
    first.die(under_way)

    second = Query(tmp_path / "old", broker, topic, group)
    second.run(second.newest())
    second.driver.close()

    other = Query(tmp_path / "new", broker, topic, group)
    fresh = offsets(other.plan())
    other.driver.close()
    assert not fresh & (offsets(committed) | offsets(under_way))


def test_a_stop_that_cuts_off_an_acquire_accepts_what_was_committed(broker, unique, tmp_path):
    """Spark ends the process by a signal, in the middle of whatever it does."""
    topic, group = broker.topic(unique("orders")), unique("etl")
    broker.produce(topic, [b"%d" % one for one in range(BATCH)])
    first = Query(tmp_path / "old", broker, topic, group)
    first.die(first.plan())
    second = Query(tmp_path / "old", broker, topic, group)
    begun = second.run(second.newest())
    member = second.driver._open(begun, begun)
    acquire = member.acquire

    def cut_off(records_max, wait_s):
        member.acquire = acquire
        assert blocking_until(lambda: acquire(records_max, wait_s)), "it is free again"
        with interrupted_after(0.2):
            acquire(records_max, 30.0)
        raise SystemExit  # Kafka's brokers answer at once who has records in hand

    member.acquire = cut_off
    with pytest.raises(SystemExit):
        second.driver.next(begun)
    second.driver.close()

    other = Query(tmp_path / "new", broker, topic, group)
    assert other.driver.next(other.driver.initial) is None
    other.driver.close()


def test_what_a_killed_broker_forgot_to_have_delivered_is_in_no_second_batch(mortal_pair, unique, tmp_path):
    """Kafka's brokers count acquires in memory: the next leader delivers for the first time what a batch had."""
    group, doomed = unique("etl"), 2
    with serving(f"kafka://{mortal_pair.addresses[0]}?share=native") as broker:
        topic = broker.topic(unique("orders"), partitions=2)
        partition = broker.call(broker.admin.describe_topic(topic)).leaders.index(doomed)
        key = next(key for key in map(b"%d".__mod__, range(100)) if partition_for(key, 2) == partition)
        for _ in range(3):
            broker.produce(topic, [b"%d" % one for one in range(BATCH)], [key] * BATCH)
        first = Query(tmp_path, broker, topic, group)
        committed = first.plan()
        first.commit(committed)
        mortal_pair.processes[doomed - 1].end(0)
        first.die(committed)
        blocking_until(
            lambda: broker.call(broker.admin.describe_topic(topic)).leaders, good=lambda leaders: doomed not in leaders
        )

        second = Query(tmp_path, broker, topic, group)
        member = second.driver._open(committed, committed)
        acquire, got = member.acquire, []

        def noted(records_max, wait_s):
            found = acquire(records_max, wait_s)
            got.extend(found)
            return found

        member.acquire = noted
        fresh = offsets(second.plan(committed))
        second.driver.close()

    forgotten = {place for one in got if one.delivery == 1 for place in offsets(Offset(ranges=(one,)))}
    assert forgotten & offsets(committed), "it was to be delivered for the first time once more"
    assert not fresh & offsets(committed)


@pytest.fixture
def ledger_away(monkeypatch):
    """The ledger takes no note, so nothing is accepted; call it to end that."""

    async def refused(self, batch):
        raise ServerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, about="the ledger")

    monkeypatch.setattr(Ledger, "note", refused)
    return monkeypatch.undo


def twice_committed(query, known, seen):
    """Go on after batch `known`; return the records of the next two batches that were in a batch before."""
    found = set()
    for _ in range(2):
        known = query.run(query.plan(known))
        found |= offsets(known) & seen
    query.driver.close()
    return found


def test_a_stop_that_cannot_accept_what_was_committed_gives_back_none_of_it_as_not_delivered(
    broker, unique, tmp_path, ledger_away
):
    """It would come for the first time then, as in a group that was reset, and be read again."""
    topic, group = broker.topic(unique("orders")), unique("etl")
    for number in range(5):
        broker.produce(topic, [b"%d-%d" % (number, one) for one in range(BATCH)])
    first = Query(tmp_path, broker, topic, group)
    committed = first.run(first.plan())
    under_way = first.plan(committed)
    first.tasks(under_way)
    assert under_way.done
    first.driver.close()
    ledger_away()

    second = Query(tmp_path, broker, topic, group)
    second.run(under_way)
    assert not twice_committed(second, under_way, offsets(committed) | offsets(under_way))


@pytest.mark.parametrize("seen", [True, False], ids=["after its batch was handed out", "before"])
def test_a_process_that_never_reached_the_group_gives_back_nothing_of_its_checkpoint_as_not_delivered(
    broker, unique, tmp_path, monkeypatch, ledger_away, seen
):
    topic, group = broker.topic(unique("orders")), unique("etl")
    for number in range(5):
        broker.produce(topic, [b"%d-%d" % (number, one) for one in range(BATCH)])
    first = Query(tmp_path, broker, topic, group)
    committed = first.run(first.plan())
    under_way = first.plan(committed)
    first.tasks(under_way)
    if not seen:
        first.commit(under_way)
    first.driver._closing.set()  # it stands still, and its records are the next process's
    ledger_away()

    async def unanswered(admin, group):
        raise ConnectionLost("away")

    second = Query(tmp_path, broker, topic, group)
    with monkeypatch.context() as patch:
        patch.setattr(progress, "starts", unanswered)
        if seen:
            second.tasks(under_way)
        else:
            assert second.driver.next(under_way) is None
        blocking_until(lambda: first.driver._member.fenced)
        first.driver._member.close()
        second.driver.close()

    third = Query(tmp_path, broker, topic, group)
    if seen:
        third.run(under_way)
    assert not twice_committed(third, under_way, offsets(committed) | offsets(under_way))


def test_a_query_whose_member_the_group_refused_fails_and_goes_on_when_it_is_started_again(
    broker, unique, tmp_path, monkeypatch
):
    """Nobody sends its heartbeats any more: to wait would be for ever, though the group may take it again."""
    topic, group = broker.topic(unique("orders")), unique("etl")
    broker.produce(topic, [b"%d" % one for one in range(BATCH)])
    first = Query(tmp_path, broker, topic, group)
    committed = first.run(first.plan())
    with monkeypatch.context() as patch:
        answer = ShareGroupHeartbeatResponse(error=ErrorCode.GROUP_AUTHORIZATION_FAILED)
        patch.setattr(Membership, "_beat", lambda self: self._refused(answer))
        membership = first.driver._member._member._membership
        first.driver._member._service.loop.call_soon_threadsafe(membership.refresh)
        blocking_until(lambda: membership.failed is not None)
    broker.produce(topic, [b"%d" % one for one in range(BATCH)])

    with pytest.raises(ServerError, match="GROUP_AUTHORIZATION_FAILED"):
        first.plan(committed)
    first.driver.close()

    second = Query(tmp_path, broker, topic, group)
    assert not offsets(second.plan(committed)) & offsets(committed)
    second.driver.close()


def test_a_member_whose_acquire_was_cut_off_acquires_again(broker, unique, tmp_path):
    topic, group = broker.topic(unique("orders")), unique("etl")
    query = Query(tmp_path, broker, topic, group)
    member = query.driver._open(query.driver.initial, query.driver.initial)
    with pytest.raises(SystemExit), interrupted_after(0.2):
        member.acquire(BATCH, 30.0)
    broker.produce(topic, [b"%d" % one for one in range(BATCH)])

    got = blocking_until(lambda: member.acquire(BATCH, 1.0))

    assert sum(one.last - one.first + 1 for one in got) == BATCH
    query.driver.close()


@pytest.mark.parametrize("recovery", ["rerun", "drop"])
def test_a_record_that_kills_the_workers_of_every_batch_becomes_a_dead_letter_and_the_others_are_handled_once(
    broker, unique, tmp_path, recovery
):
    topic, group = broker.topic(unique("orders")), unique("etl")
    for number in range(20):
        broker.produce(topic, [b"%d" % number])
    bad, handled, buried, failures = (topic, 0, 13), [], [], 0
    query = Query(tmp_path, broker, topic, group, recovery=recovery)
    begun, offset = None, query.plan()
    while len(handled) + len(buried) < 20:
        parts = query.tasks(offset)
        given = {one for part in parts for one in offsets(part)}
        if bad in given and not parts[0].buried:
            failures += 1
            assert failures < 9
            query.kill(offset)
            query = Query(tmp_path, broker, topic, group, recovery=recovery)
            continue
        (buried if parts and parts[0].buried else handled).extend(given)
        query.commit(offset)
        begun = offset
        if len(handled) + len(buried) < 20:
            offset = query.plan(begun)
    query.driver.close()

    assert buried == [bad]
    assert len(set(handled)) == len(handled) == 19
    other = Query(tmp_path / "new", broker, topic, group)
    assert other.driver.next(other.driver.initial) is None, "all of it is accepted"
    other.driver.close()


def test_what_an_earlier_process_handled_is_no_loss_where_batches_are_not_run_again(broker, unique, tmp_path):
    topic, group = broker.topic(unique("orders")), unique("etl")
    for number in range(35):
        broker.produce(topic, [b"%d-%d" % (number, one) for one in range(20)])
    first = Query(tmp_path, broker, topic, group, recovery="drop")
    handled = first.run(first.plan())
    for _ in range(2):
        first.driver._prune_s = 0.0
        handled = first.run(first.plan(handled))
    first.driver.close()

    second = Query(tmp_path, broker, topic, group, recovery="drop")
    for _ in range(3):
        handled = second.run(second.plan(handled))
        second.driver._prune_s = 0.0
    second.plan(handled)
    told = second.driver.told()
    second.driver.close()

    assert told["records_archived"] == 0


def test_what_an_earlier_process_finds_out_late_does_not_make_a_batch_void_that_its_successor_ran(
    broker, unique, tmp_path
):
    topic, group = broker.topic(unique("orders")), unique("etl")
    for number in range(3):
        broker.produce(topic, [b"%d-%d" % (number, one) for one in range(BATCH)])
    first = Query(tmp_path, broker, topic, group)
    offset = first.plan()
    first.kill(offset)
    earlier = Query(tmp_path, broker, topic, group)
    earlier.tasks(offset)

    second = Query(tmp_path, broker, topic, group)
    second.run(offset)
    local_checkpoint(str(tmp_path)).note_kill("of the earlier process")
    blocking_until(lambda: earlier.driver._member.fenced)
    following = second.run(second.plan(offset))
    second.driver.close()
    earlier.driver._closing.set()

    third = Query(tmp_path, broker, topic, group)
    last = third.run(third.plan(following))
    third.driver.close()
    assert not third.driver._narrowing.is_void(offset.number)
    assert not offsets(last) & (offsets(offset) | offsets(following))


def test_a_damaged_note_stops_the_query_with_what_to_do(broker, unique, tmp_path):
    topic, group = broker.topic(unique("orders")), unique("etl")
    for number in range(3):
        broker.produce(topic, [b"%d-%d" % (number, one) for one in range(BATCH)])
    first = Query(tmp_path, broker, topic, group)
    offset = first.plan()
    first.kill(offset)
    Query(tmp_path, broker, topic, group).fail(offset)
    [note] = (tmp_path / "flowshare").glob("*.json")
    note.write_text("{")

    second = Query(tmp_path, broker, topic, group)
    with pytest.raises(DamagedNote, match="restore it, or start with a new checkpoint"):
        second.tasks(second.newest())
    second.driver.close()


def test_what_was_noted_of_a_topic_does_not_count_for_one_that_was_made_anew(broker, unique, tmp_path):
    topic, group = broker.topic(unique("orders")), unique("etl")
    broker.produce(topic, [b"%d" % one for one in range(20)])
    first = Query(tmp_path, broker, topic, group)
    begun = first.run(first.plan())
    first.driver.close()
    bad = Range(topic, 0, 25, 25)
    condemned = {**Narrowing().to_json(), "pool": [list(bad[:4])], "condemned": [list(bad[:4])]}
    local_checkpoint(str(tmp_path)).write_note(begun.member, "an earlier one", condemned)
    broker.call(broker.admin.delete_topic(topic))
    blocking_until(
        lambda: [one.name for one in broker.call(broker.admin.list_topics())], good=lambda names: topic not in names
    )
    broker.topic(topic)
    broker.produce(topic, [b"new %d" % one for one in range(30)])

    second = Query(tmp_path, broker, topic, group)
    offset = second.plan(begun)
    parts = second.tasks(offset)
    second.driver.close()

    assert not any(part.buried for part in parts)
    assert {place for part in parts for place in offsets(part)} == {(topic, 0, number) for number in range(30)}


@contextmanager
def away_at(monkeypatch, numbers):
    """Acquires of these numbers meet a broker that is away."""
    acquire, calls = GroupMember.acquire, itertools.count(1)

    def sometimes(self, records_max, wait_s):
        if next(calls) in numbers:
            raise ConnectionLost("away")
        return acquire(self, records_max, wait_s)

    with monkeypatch.context() as patch:
        patch.setattr(GroupMember, "acquire", sometimes)
        yield


def test_a_run_that_empties_the_backlog_does_not_end_at_a_broker_that_is_away_for_a_moment(
    broker, unique, tmp_path, monkeypatch
):
    topic, group = broker.topic(unique("orders")), unique("etl")
    for number in range(3):
        broker.produce(topic, [b"%d-%d" % (number, one) for one in range(BATCH)])
    query = Query(tmp_path, broker, topic, group)

    with away_at(monkeypatch, {2, 3, 5}):
        assert len(query.empty()) == 3 * BATCH
    query.driver.close()


def test_a_run_that_empties_the_backlog_fails_at_a_broker_that_stays_away(broker, unique, tmp_path, monkeypatch):
    """To end would say that all is read."""
    topic, group = broker.topic(unique("orders")), unique("etl")
    broker.produce(topic, [b"%d" % one for one in range(BATCH)])
    query = Query(tmp_path, broker, topic, group)
    monkeypatch.setattr(microbatches, "AWAY_S", 0.3)

    with away_at(monkeypatch, itertools.count(1)), pytest.raises(ConnectionLost):
        query.empty()
    query.driver.close()


def test_a_run_that_empties_the_backlog_waits_for_its_rate(broker, unique, tmp_path):
    topic, group = broker.topic(unique("orders")), unique("etl")
    broker.produce(topic, [b"%d" % one for one in range(12)])
    query = Query(tmp_path, broker, topic, group, records_per_second="5")

    assert len(query.empty()) == 12
    query.driver.close()
