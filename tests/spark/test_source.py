"""The driver's side of the source, without a JVM: what is acquired, accepted and swallowed at each place to crash."""

from __future__ import annotations

import json
import pickle
import re
import threading
import time
from concurrent.futures import Future

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BinaryType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from flowshare.agents.handler.errors import OptionError
from flowshare.backend.base import Capabilities, Feature, Leader
from flowshare.backend.embedded import EmbeddedBackend
from flowshare.client.errors import NotConnected
from flowshare.spark.datasource import ShareStreamReader
from flowshare.spark.sink import outcomes as sink_outcomes
from flowshare.spark.source import progress
from flowshare.spark.source.member import Fenced, GroupMember
from flowshare.spark.source.options import SourceOptions
from flowshare.spark.source.outcomes import OutcomesLost
from flowshare.spark.source.ranges import Offset
from flowshare.spark.source.reading import DataLoss
from tests.waiting import blocking_until

SCHEMA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestamp_type", IntegerType()),
        StructField("attempt", IntegerType()),
    ]
)

JUDGED = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("outcome", StringType()),
        StructField("delay", DoubleType()),
        StructField("reason", StringType()),
    ]
)


@pytest.fixture
def topic(broker, unique):
    topic = broker.topic(unique("orders"), partitions=3)
    for number in range(0, 3000, 250):
        broker.produce(topic, [str(one).encode() for one in range(number, number + 250)])
    return topic


class Query:
    """Spark's use of a reader: offsets go through JSON and partitions through pickle, as in Spark."""

    def __init__(self, broker, topic, group, **options):
        given = {"broker": broker.url, "group": group, "tasks": "4", "records_per_trigger": "1000"}
        given |= {"topics": topic} if topic else {}
        self.reader = ShareStreamReader(SourceOptions.parse({**given, **options}), SCHEMA)
        self.options = options

    def initial(self):
        return json.loads(json.dumps(self.reader.initialOffset()))

    def latest(self, start):
        return json.loads(json.dumps(self.reader.latestOffset(start, None)))

    def rows(self, start, end):
        executor = pickle.loads(pickle.dumps(self.reader))
        parts = pickle.loads(pickle.dumps(self.reader.partitions(start, end)))
        return [row for part in parts for batch in executor.read(part) for row in batch.to_pylist()]

    def run(self, start):
        """Batches until there is nothing more: the values of all of them, and the last offset."""
        found = []
        while (end := self.latest(start)) != start:
            found += [row["value"] for row in self.rows(start, end)]
            start = end
        return found, start

    def crash(self):
        """As a process that was killed: connections end, nothing is said."""
        member = self.reader._batches._member
        member.fenced = True
        member.close()

    def stop(self):
        self.reader.stop()


@pytest.fixture
def query(broker, topic, unique):
    made = []
    group = unique("etl")

    def make(**options):
        made.append(Query(broker, topic, options.pop("group", group), **options))
        return made[-1]

    make.group = group
    yield make
    for one in made:
        one.stop()


def values(count=3000):
    return sorted(str(one).encode() for one in range(count))


def test_batches_hold_every_record_once_and_are_accepted(broker, query):
    one = query()

    found, _ = one.run(one.initial())

    assert sorted(found) == values()
    assert broker.backlog(query.group) == 0


def test_a_batch_has_more_tasks_than_partitions_and_all_columns(query, topic):
    one = query(headers="false")
    start = one.initial()
    end = one.latest(start)

    parts = one.reader.partitions(start, end)
    row = one.rows(start, end)[0]

    assert len(parts) == 4
    assert set(row) == set(SCHEMA.fieldNames())
    assert (row["topic"], row["key"], row["attempt"], row["timestamp_type"]) == (topic, None, 1, 0)


def test_nothing_new_is_the_same_offset(query):
    one = query()
    _, last = one.run(one.initial())

    assert one.latest(last) == last
    assert one.rows(last, last) == []


def test_what_was_acquired_and_not_written_down_comes_again(broker, query):
    first = query()
    start = first.initial()
    first.latest(start)
    first.crash()

    second = query()
    found, _ = second.run(start)

    assert sorted(found) == values()
    assert broker.backlog(query.group) == 0


def test_what_a_process_that_died_had_not_written_down_goes_back_unrun_where_flowshare_leads_a_fleet(broker, query):
    first = query()
    start = first.initial()
    written = first.latest(start)
    first.rows(start, written)
    first.latest(written)  # the first batch is committed; the second is acquired, and not written down
    first.crash()

    second = query()
    end = second.latest(written)
    again = second.rows(written, end)

    counts = {row["attempt"] for row in again}
    assert counts == ({1} if broker.backend.kind == "workers" else {2})


def test_a_batch_that_was_written_down_is_run_again_and_swallowed_when_it_comes_again(broker, query):
    first = query()
    start = first.initial()
    end = first.latest(start)
    before = sorted(row["value"] for row in first.rows(start, end))
    first.crash()

    second = query()
    again = sorted(row["value"] for row in second.rows(start, end))
    rest, _ = second.run(end)

    assert again == before
    assert sorted(again + rest) == values()
    assert broker.backlog(query.group) == 0


def test_a_committed_batch_that_was_not_accepted_is_in_no_second_batch(broker, query):
    first = query()
    start = first.initial()
    end = first.latest(start)
    done = [row["value"] for row in first.rows(start, end)]
    first.crash()

    second = query()
    second.reader.prepareForTriggerAvailableNow()  # else it may end before the group has loaded anything
    rest, _ = second.run(end)

    assert sorted(done + rest) == values()
    assert broker.backlog(query.group) == 0


def test_crashes_at_every_place_lose_nothing_and_repeat_nothing(broker, query):
    done, start = [], query().initial()
    for place in ("acquired", "written", "run", "acquired", "committed", "run", "written"):
        one = query()
        end = one.latest(start)
        if place in ("run", "committed"):
            done += [row["value"] for row in one.rows(start, end)]
        one.crash()
        if place == "acquired":
            continue
        again = query()
        if place == "written":  # it is run by the process that comes after
            done += [row["value"] for row in again.rows(start, end)]
            again.crash()
        start = end
        if end == start and len(done) >= 3000:
            break
    rest, _ = query().run(start)

    assert sorted(done + rest) == values()
    assert broker.backlog(query.group) == 0


def test_a_dropped_batch_is_not_read_again_and_its_records_come_again(broker, query):
    first = query(recovery="drop")
    start = first.initial()
    end = first.latest(start)
    first.crash()

    second = query(recovery="drop")
    again = second.rows(start, end)
    found, _ = second.run(end)

    assert again == []
    assert sorted(found) == values()


def test_an_older_process_of_the_same_query_is_fenced(query):
    first = query()
    start = first.initial()
    end = first.latest(start)
    second = query()
    after = second.latest(end)
    first.reader._batches._member._looked_s = 0.0

    with pytest.raises(Fenced, match="another process"):
        first.latest(end)

    assert after != end


def test_locks_are_renewed_while_a_batch_runs(broker, query):
    one = query(lock_duration="1", records_per_trigger="3000")
    start = one.initial()
    end = one.latest(start)
    holds = one.reader._batches._member._holds
    lapses = max(hold.lapses_s for hold in holds)
    assert blocking_until(lambda: holds.due(lapses + 1), good=lambda due: not due) == []
    after = one.latest(end)

    assert after == end
    assert broker.backlog(query.group) == 0


def test_a_run_that_empties_the_backlog_ends(broker, query):
    one = query()
    one.reader.prepareForTriggerAvailableNow()

    found, last = one.run(one.initial())

    assert len(found) == 3000
    assert one.latest(last) == last


def test_a_rate_limits_what_a_batch_takes(query):
    one = query(records_per_second="200", records_per_trigger="100000")
    start = one.initial()

    rows = one.rows(start, one.latest(start))

    assert 200 <= len(rows) <= 300  # batches of the log are not cut


def test_a_group_has_no_delivery_limit_where_flowshare_leads(broker, query):
    one = query()
    one.latest(one.initial())
    configs = {entry.name: entry.value for entry in broker.call(broker.admin.group_configs(query.group))}

    native = broker.backend.kind == "native"
    assert configs["share.delivery.count.limit"] == ("10" if native else "1000000")
    assert one.reader._batches._member.facts.endless != native


@pytest.mark.real
@pytest.mark.parametrize("broker", ["native"], indirect=True)
def test_records_that_the_brokers_archived_unread_are_counted_and_told(query, monkeypatch, caplog):
    monkeypatch.setattr("flowshare.spark.source.microbatches.PRUNE_S", 0.0)
    one = query(delivery_limit="2")
    start = one.latest(one.initial())
    before = [row["value"] for row in one.rows(one.initial(), start)]
    for _ in range(2):
        one.latest(start)  # acquired, and dead before Spark wrote it down
        one.crash()
        one = query(delivery_limit="2")

    count, away = progress.unread, iter([NotConnected("the broker is away")])

    async def not_at_first(*about, **more):
        for error in away:
            raise error
        return await count(*about, **more)

    monkeypatch.setattr(progress, "unread", not_at_first)
    rest, end = [], start
    for _ in range(2):  # the first one meets the broker that is away, if anything was archived by then
        more, end = one.run(end)
        rest += more
    one.latest(end)
    told = [re.search(r"archived (\d+) records", record.getMessage()) for record in caplog.records]
    counted = [int(found[1]) for found in told if found]

    assert sum(counted) == 3000 - len(set(before + rest)) > 0
    assert len(before + rest) == len(set(before + rest))


def test_a_topic_that_is_not_there_is_refused_with_the_command_that_makes_it(broker, unique):
    one = Query(broker, "nowhere", unique("etl"))

    with pytest.raises(OptionError, match="flowshare topics create nowhere"):
        one.latest(one.initial())


def test_topics_of_a_pattern_are_read(broker, unique):
    prefix = unique("shop")
    for name in (f"{prefix}.a", f"{prefix}.b"):
        broker.produce(broker.topic(name), [name.encode()])
    one = Query(broker, topic="", group=unique("etl"), topics_pattern=f"{prefix}\\..*")

    found, _ = one.run(one.initial())
    one.stop()

    assert sorted(found) == [f"{prefix}.a".encode(), f"{prefix}.b".encode()]


def test_a_partition_that_goes_to_another_member_is_accepted_all_the_same(broker, query):
    one = query(records_per_trigger="3000")
    start = one.initial()
    end = one.latest(start)
    done = [row["value"] for row in one.rows(start, end)]
    other = query(records_per_trigger="3000")
    member = one.reader._batches._member
    other.latest(other.initial())
    left = blocking_until(
        lambda: len(member._member.assignment), good=lambda count: count < 3
    )  # it hears of it with a heartbeat
    one.run(end)

    assert left < 3
    assert sorted(done) == values()
    assert broker.backlog(query.group) == 0


def test_a_group_that_is_not_reached_when_a_batch_has_ended_is_asked_again(broker, query, monkeypatch):
    one = query()
    start = one.initial()
    end = one.latest(start)
    done = [row["value"] for row in one.rows(start, end)]
    member = one.reader._batches._member
    with monkeypatch.context() as patch:
        patch.setattr(member._admin, "describe_group", unreachable)
        # Always due: a look that was on its way already would set it to now.
        patch.setattr(type(member), "_looked_s", property(lambda _: 0.0, lambda *_: None), raising=False)
        assert one.latest(end) == end
    rest, _ = one.run(end)

    assert sorted(done + rest) == values()
    assert broker.backlog(query.group) == 0


def test_what_was_acquired_before_an_error_is_in_a_batch(broker, query, monkeypatch):
    one = query(records_per_trigger="100000")
    start = one.initial()
    member = one.reader._batches._open(Offset.from_json(start), Offset.from_json(start))
    fetch, found = member._member.fetch, []

    async def fails_later(**options):
        if len(found) == 1:
            found.append(None)
            await unreachable()
        answer = await fetch(**{**options, "records_max": 250})
        found.extend([answer] if answer else [])
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(member._member, "fetch", fails_later)
        end = one.latest(start)
        done = [row["value"] for row in one.rows(start, end)]
    rest, _ = one.run(end)

    assert 0 < len(done) < 3000
    assert sorted(done + rest) == values()
    assert broker.backlog(query.group) == 0


def test_a_batch_is_acquired_while_the_accept_of_the_last_one_is_on_its_way(broker, query, monkeypatch):
    one = query(records_per_trigger="500")
    first = one.latest(one.initial())
    done = [row["value"] for row in one.rows(one.initial(), first)]
    lost = Future()
    lost.set_exception(NotConnected("it never came back"))
    monkeypatch.setattr(GroupMember, "begin_accept", lambda self, ranges, batch: lost)

    # A busy machine may have nothing at once; then the accept is waited for, and the trigger comes to nothing.
    second = blocking_until(lambda: one.latest(first), good=lambda end: end != first)
    done += [row["value"] for row in one.rows(first, second)]
    assert [entry[:4] for entry in second["done"]] == [entry[:4] for entry in first["ranges"]]

    one.crash()
    monkeypatch.undo()
    rest, _ = query(records_per_trigger="500").run(second)

    assert sorted(done + rest) == values()
    assert broker.backlog(query.group) == 0


async def unreachable(*_, **__):
    raise NotConnected("nobody answers")


def test_a_broker_that_is_not_reached_is_told_and_nothing_of_the_try_is_left(monkeypatch):
    monkeypatch.setattr("flowshare.spark.source.member.OPEN_S", 0.1)
    options = SourceOptions.parse({"broker": "kafka://127.0.0.1:1", "group": "g", "topics": "t"})
    member = GroupMember(options, "m")

    with pytest.raises(TimeoutError, match="flowshare check"):
        member.open()

    assert "flowshare g" not in [thread.name for thread in threading.enumerate()]


# --- outcomes ---------------------------------------------------------------------------------------------------------


def judge(broker, group, rows, outcomes, writer=sink_outcomes.OutcomeWriter):
    """Write a batch's outcomes through the sink, in two tasks."""
    found = [row for row in rows if row["value"] in outcomes]
    one = writer({"broker": broker.url, "group": group}, JUDGED)
    executor = pickle.loads(pickle.dumps(one))
    messages = []
    for task in (found[::2], found[1::2]):
        columns = [[row[name] for row in task] for name in ("topic", "partition", "offset")]
        said = [[*outcomes[row["value"]], None, None][:3] for row in task]
        columns += [[texts[at] for texts in said] for at in range(3)]
        types = (pa.string(), pa.int32(), pa.int64(), pa.string(), pa.float64(), pa.string())
        batch = pa.RecordBatch.from_arrays(
            [pa.array(column, type_) for column, type_ in zip(columns, types, strict=True)], names=JUDGED.fieldNames()
        )
        messages.append(pickle.loads(pickle.dumps(executor.write(iter([batch])))))
    one.commit(messages, *([0] if writer is sink_outcomes.OutcomeWriter else []))


def test_outcomes_settle_each_record_by_itself(broker, query):
    one = query(outcomes="true", records_per_trigger="5000")
    start = one.initial()
    end = one.latest(start)
    judge(
        broker,
        query.group,
        one.rows(start, end),
        {b"1": ("release",), b"2": ("reject", 0.0, "it is a two"), b"3": ("accept",)},
    )
    after = one.latest(end)
    again = one.rows(end, after)
    judge(broker, query.group, again, {b"1": ("accept",)})
    one.latest(after)
    (letter,) = broker.read(f"{query.group}.dlq")

    assert [(row["value"], row["attempt"]) for row in again] == [(b"1", 2)]
    assert letter.value == b"2"
    headers = dict(letter.headers)
    assert headers["flowshare.dlq.reason"] == b"it is a two"
    assert headers["flowshare.dlq.attempts"] == b"1"
    assert broker.backlog(query.group) == 0


def test_outcomes_that_are_given_twice_settle_once(broker, query):
    one = query(outcomes="true", records_per_trigger="5000")
    start = one.initial()
    end = one.latest(start)
    rows = one.rows(start, end)
    for _ in range(2):
        judge(broker, query.group, rows, {b"1": ("release",)}, sink_outcomes.BatchOutcomeWriter)
    after = one.latest(end)

    assert [(row["value"], row["attempt"]) for row in one.rows(end, after)] == [(b"1", 2)]


def test_a_rejected_half_of_a_batch_has_its_dead_letters_and_is_settled(broker, query, caplog):
    one = query(outcomes="true", records_per_trigger="5000")
    start = one.initial()
    end = one.latest(start)
    odd = {value: ("reject", 0.0, "odd") for value in values() if int(value) % 2}
    judge(broker, query.group, one.rows(start, end), odd, sink_outcomes.BatchOutcomeWriter)
    left = one.reader._batches._member.all_held()
    one.latest(end)

    assert sorted(letter.value for letter in broker.read(f"{query.group}.dlq")) == sorted(odd)
    assert sum(held.last - held.first + 1 for held in left) == 1500
    assert broker.backlog(query.group) == 0
    assert "came too late" not in caplog.text


class Wordy(Capabilities):
    """A server that writes letters of all rejects."""

    letters_by_choice = Feature()


@pytest.mark.parametrize("broker", ["embedded"], indirect=True)
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("by_choice", [True, False])
def test_each_reject_has_one_letter_where_the_brokers_write_letters_too(broker, query, monkeypatch, own, by_choice):
    """Kafka's brokers from 4.4 on write one of every reject, where the group names a topic for them; flowshare's as the
    group chooses."""
    if not by_choice:
        monkeypatch.setattr(EmbeddedBackend, "capabilities", Wordy(leader=Leader.PROCESS))
    brokers = broker.topic(f"{query.group}.brokers")
    one = query(outcomes="true", records_per_trigger="5000", dead_letter="" if own else "none")
    start = one.initial()
    end = one.latest(start)
    broker.call(broker.admin.alter_group_configs(query.group, {"errors.deadletterqueue.topic.name": brokers}))
    judge(broker, query.group, one.rows(start, end), {b"%d" % number: ("reject",) for number in range(10)})
    one.latest(end)
    left = broker.backlog(query.group)  # the group is past the records once the broker has written what it writes

    mine = broker.read(f"{query.group}.dlq") if own else []
    assert (len(mine), len(broker.read(brokers))) == ((10, 0) if own else (0, 10))
    assert left == 0


@pytest.mark.parametrize("broker", ["embedded"], indirect=True)
@pytest.mark.parametrize("there", [True, False])
def test_the_letter_of_a_record_as_large_as_its_topic_takes_has_its_record(broker, query, topic, there):
    if there:
        broker.topic(f"{query.group}.dlq", **{"max.message.bytes": "5000"})
    one = query(outcomes="true", records_per_trigger="5000")
    start = one.initial()
    large = b"x" * 1_048_400
    broker.produce(topic, [large])
    end = one.latest(start)
    judge(broker, query.group, one.rows(start, end), {large: ("reject",)})

    assert [letter.value for letter in broker.read(f"{query.group}.dlq")] == [large]


def test_a_reject_without_a_source_fails_before_anything_is_settled(broker, query):
    one = query(records_per_trigger="5000")  # without outcomes
    start = one.initial()
    rows = one.rows(start, one.latest(start))

    with pytest.raises(OutcomesLost, match="'outcomes', 'true'"):
        judge(broker, query.group, rows, {b"2": ("reject",)})
    assert len(one.reader._batches._member.all_held()) > 0


def test_records_whose_outcome_nobody_confirmed_come_again(broker, query):
    first = query(outcomes="true", records_per_trigger="5000")
    start = first.initial()
    end = first.latest(start)
    first.crash()

    second = query(outcomes="true", records_per_trigger="5000")
    after = second.latest(end)

    assert second.rows(start, end) == []
    assert len(second.rows(end, after)) == 3000


def test_locks_that_were_lost_with_the_process_before_are_not_told_as_lost(query):
    first = query()
    start = first.initial()
    end = first.latest(start)
    first.crash()

    second = query()
    second.rows(start, end)
    member = second.reader._batches._member
    blocking_until(lambda: not member._holds.due(time.monotonic()), "the answer to the first renewal")

    assert second.reader.reportLatestOffset()["locks_lost"] == 0


@pytest.mark.parametrize("on_data_loss", ["fail", "continue"])
def test_records_that_retention_took_from_a_batch_of_before_are_counted_where_somebody_looks(
    broker, query, topic, on_data_loss
):
    first = query()
    start = first.initial()
    end = first.latest(start)
    first.crash()
    partition, low, high = end["ranges"][0][1:4]
    broker.call(broker.admin.delete_records(topic, partition, low + 10))

    second = query(on_data_loss=on_data_loss)
    if on_data_loss == "fail":
        with pytest.raises(DataLoss, match=r"10 records of batch 1 are gone from the log.*'on_data_loss', 'continue'"):
            second.rows(start, end)
    else:
        rows = second.rows(start, end)
        assert len(rows) == sum(one[3] - one[2] + 1 for one in end["ranges"]) - 10
    told = second.reader.reportLatestOffset()

    assert high > low + 10
    assert told.pop("backlog") > 0
    assert told == {"records_lost": 10, "locks_lost": 0, "records_archived": 0}
