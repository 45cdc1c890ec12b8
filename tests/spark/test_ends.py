"""Ends that are no kills, and halves that were made anew, all under Spark: clean stops, a topic, a group or its offsets
under a checkpoint that is kept, producers that never pause."""

from __future__ import annotations

import pytest

from tests.waiting import blocking_until

LIMIT_S = 150
RESTARTS = 3


@pytest.fixture
def topic(broker, unique):
    return broker.topic(unique("orders"), partitions=2)


@pytest.fixture
def group(unique):
    return unique("etl")


@pytest.fixture
def seen(stream, group, tmp_path):
    """Starts the query and gives what its batches had: the rows of one run, or a query that runs on."""

    class Seen(list):
        beside = staticmethod(lambda: None)
        """Called with each batch."""

        def take(self, batch, _):
            self.extend(int(row.value) for row in batch.collect())
            self.beside()

        def start(self, *, once=False, trigger=None, **options):
            rows = stream(group, **options).selectExpr("CAST(value AS STRING) AS value")
            writer = rows.writeStream.foreachBatch(self.take).option("checkpointLocation", str(tmp_path / "cp"))
            writer = (
                writer.trigger(availableNow=True) if once else writer.trigger(processingTime=trigger or "0 seconds")
            )
            return writer.start()

        def run(self, **options):
            query = self.start(once=True, **options)
            assert query.awaitTermination(LIMIT_S), "the query did not end in time"

    return Seen()


def numbers(count):
    return [b"%d" % number for number in range(count)]


@pytest.mark.parametrize("options", [{"recovery": "drop"}, {"outcomes": "true"}, {}], ids=["drop", "outcomes", "rerun"])
def test_a_clean_stop_between_two_triggers_gives_back_nothing_that_is_committed(broker, topic, group, seen, options):
    broker.produce(topic, numbers(100))
    for _ in range(RESTARTS):
        query = seen.start(trigger="10 minutes", **options)
        blocking_until(lambda: len(seen), good=lambda count: count >= 100, limit_s=LIMIT_S)
        blocking_until(
            lambda query=query: query.status["isTriggerActive"], good=lambda active: not active, limit_s=LIMIT_S
        )
        query.stop()

    assert sorted(seen) == list(range(100))
    assert broker.backlog(group) == 0


def test_a_batch_is_accepted_when_it_is_committed_however_late_the_next_trigger_comes(broker, topic, group, seen):
    broker.produce(topic, numbers(100))
    query = seen.start(trigger="10 minutes")
    try:
        blocking_until(lambda: len(seen), good=lambda count: count >= 100, limit_s=LIMIT_S)
        assert broker.backlog(group) == 0
    finally:
        query.stop()


def test_a_topic_that_was_made_anew_is_read_though_the_checkpoint_has_its_offsets(broker, topic, group, seen):
    broker.produce(topic, numbers(100))
    seen.run()
    broker.call(broker.admin.delete_topic(topic))
    blocking_until(
        lambda: topic in [one.name for one in broker.call(broker.admin.list_topics())],
        good=lambda there: not there,
        limit_s=LIMIT_S,
    )
    broker.topic(topic, partitions=2)
    broker.produce(topic, numbers(100))
    seen.run()

    assert sorted(seen) == sorted([*range(100), *range(100)])
    assert broker.backlog(group) == 0


def test_a_group_that_was_deleted_reads_all_again_though_the_checkpoint_has_its_offsets(broker, topic, group, seen):
    broker.produce(topic, numbers(100))
    seen.run()
    blocking_until(
        lambda: broker.call(broker.admin.describe_group(group)).members,
        good=lambda members: not members,
        limit_s=LIMIT_S,
    )
    broker.call(broker.admin.delete_group(group))
    seen.run()

    assert sorted(seen) == sorted([*range(100), *range(100)])
    assert broker.backlog(group) == 0


def test_a_group_that_was_reset_to_earliest_reads_all_again_though_the_checkpoint_has_its_offsets(
    broker, topic, group, seen
):
    broker.produce(topic, numbers(100))
    seen.run()
    blocking_until(
        lambda: broker.call(broker.admin.describe_group(group)).members,
        good=lambda members: not members,
        limit_s=LIMIT_S,
    )
    broker.call(broker.admin.reset_offsets(group, to="earliest"))
    seen.run()

    assert sorted(seen) == sorted([*range(100), *range(100)])
    assert broker.backlog(group) == 0


def test_asynchronous_progress_tracking_is_refused_by_its_name_before_a_record_can_be_lost(
    broker, topic, stream, group, tmp_path
):
    broker.produce(topic, numbers(5000))
    writer = stream(group, records_per_trigger="100").writeStream.format("noop")
    writer = writer.option("checkpointLocation", str(tmp_path / "cp")).option("asyncProgressTrackingEnabled", "true")
    query = writer.option("_asyncProgressTrackingOverrideSinkSupportCheck", "true").start()

    with pytest.raises(Exception, match="asyncProgressTrackingEnabled"):
        query.awaitTermination(LIMIT_S)


def test_a_run_over_what_is_there_ends_while_somebody_goes_on_producing(broker, topic, group, seen):
    broker.produce(topic, numbers(1000))
    seen.beside = lambda: broker.produce(topic, numbers(1500)[1000:])
    seen.run(records_per_trigger="500")

    assert sorted(number for number in seen if number < 1000) == list(range(1000))

    seen.beside = lambda: None
    seen.run()

    assert set(seen) == set(range(1500)), "what came meanwhile is run with it or by the next run"
    assert sum(number < 1000 for number in seen) == 1000
