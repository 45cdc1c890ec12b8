"""The source's process on checkpoints that are copies, older, or of a group that went on, without Spark; and what the
group passed while nobody read it."""

from __future__ import annotations

import json
import shutil

import pytest

from flowshare.client.admin.admin import ShareAdmin
from flowshare.client.errors import ServerError
from flowshare.protocol.errors import ErrorCode
from flowshare.spark.source import progress
from flowshare.spark.source.checkpoint import local_checkpoint
from flowshare.spark.source.ledger import PREFIX, StrangeCheckpoint
from flowshare.spark.source.microbatches import SharedGroup
from flowshare.spark.source.options import overlap
from flowshare.spark.source.reading import DataLoss
from tests.spark.test_microbatches import BATCH, Query, offsets
from tests.waiting import blocking_until

pytestmark = pytest.mark.slow
on_one_machine = pytest.mark.parametrize("broker", ["embedded"], indirect=True)


@pytest.fixture
def topic(broker, unique):
    topic = broker.topic(unique("orders"))
    for number in range(10):
        broker.produce(topic, [b"%d-%d" % (number, one) for one in range(BATCH)])
    return topic


@pytest.fixture
def group(unique):
    return unique("etl")


def lag(monkeypatch, topic, start):
    """Has the group tell `start` of the topic's partition, as Kafka's brokers, which store a start offset with the
    acknowledgement after it has moved, do; returns what ends that."""
    asked = progress.starts
    lagging = {(topic, 0): start}

    async def starts(admin, group):
        return {place: min(found, lagging.get(place, found)) for place, found in (await asked(admin, group)).items()}

    monkeypatch.setattr(progress, "starts", starts)
    return lagging.clear


# --- failures and stops -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recovery", ["rerun", "drop"])
def test_a_batch_that_fails_or_is_stopped_makes_no_record_suspect_however_often(
    broker, topic, group, tmp_path, recovery
):
    first = Query(tmp_path, broker, topic, group, recovery=recovery)
    offset = first.plan()
    first.fail(offset)
    for _ in range(4):
        again = Query(tmp_path, broker, topic, group, recovery=recovery)
        given = {place for part in again.tasks(offset) for place in offsets(part)}
        assert given == (offsets(offset) if recovery == "rerun" else set())
        assert not again.driver._narrowing
        again.driver.close()
    last = Query(tmp_path, broker, topic, group, recovery=recovery)
    last.run(offset)
    following = last.plan(offset)
    last.driver.close()

    if recovery == "rerun":
        assert not offsets(following) & offsets(offset)
    else:
        assert offsets(following) & offsets(offset), "the group delivers them again"


def test_a_batch_that_kills_workers_is_void_only_where_that_is_not_switched_off(broker, topic, group, tmp_path):
    first = Query(tmp_path, broker, topic, group)
    offset = first.plan()
    first.kill(offset)
    Query(tmp_path, broker, topic, group).kill(offset)

    off = Query(tmp_path, broker, topic, group, narrowing="false")
    assert {place for part in off.tasks(offset) for place in offsets(part)} == offsets(offset)
    off.driver.close()
    on = Query(tmp_path, broker, topic, group)
    assert on.tasks(offset) == []
    on.driver.close()
    off = Query(tmp_path, broker, topic, group, narrowing="false")
    assert off.tasks(offset) == [], "what was run empty stays so"
    off.driver.close()


# --- copies -----------------------------------------------------------------------------------------------------------


def went_on(tmp_path, broker, topic, group):
    """A checkpoint in `old`, and a copy in `copy` that is older by a batch; the last batch of both."""
    first = Query(tmp_path / "old", broker, topic, group)
    one = first.run(first.plan())
    first.driver.close()
    shutil.copytree(tmp_path / "old", tmp_path / "copy")
    second = Query(tmp_path / "old", broker, topic, group)
    two = second.run(second.plan(one))
    second.driver.close()
    return one, two


def test_an_older_copy_is_refused_before_it_joins_and_goes_on_when_it_is_told_to(broker, topic, group, tmp_path):
    one, two = went_on(tmp_path, broker, topic, group)
    copy = Query(tmp_path / "copy", broker, topic, group)

    def members():
        return {member.member_id for member in broker.call(broker.admin.describe_group(group)).members}

    blocking_until(members, good=lambda there: not there)
    with pytest.raises(StrangeCheckpoint, match="is older than the group: it has batch 1 as committed") as refused:
        copy.driver.next(one)
    assert members() == set()
    assert f"flowshare groups delete {PREFIX}{one.member}" in str(refused.value)
    copy.driver.close()

    original = Query(tmp_path / "old", broker, topic, group)
    three = original.run(original.plan(two))
    original.driver.close()
    broker.call(broker.admin.delete_group(PREFIX + one.member))
    broker.produce(topic, [b"more %d" % number for number in range(BATCH)])  # brokers may have given all to the third
    told = Query(tmp_path / "copy", broker, topic, group)
    four = told.plan(one)
    told.driver.close()

    assert not offsets(four) & (offsets(one) | offsets(two) | offsets(three))


def test_a_copy_that_was_in_the_middle_of_a_batch_is_refused_when_the_group_has_another_of_that_number(
    broker, topic, group, tmp_path
):
    first = Query(tmp_path / "old", broker, topic, group)
    one = first.run(first.plan())
    two = first.plan(one)
    shutil.copytree(tmp_path / "old", tmp_path / "copy")
    first.fail(two)
    (tmp_path / "old" / "offsets" / "1").unlink()  # it died before that batch was written down
    second = Query(tmp_path / "old", broker, topic, group)
    other = second.run(second.plan(one))
    second.driver.close()
    assert other.number == two.number
    assert other.tag != two.tag

    copy = Query(tmp_path / "copy", broker, topic, group)
    with pytest.raises(StrangeCheckpoint, match="is older than the group: it has batch 1 as committed"):
        copy.tasks(two)
    copy.driver.close()
    copy = Query(tmp_path / "copy", broker, topic, group)
    with pytest.raises(StrangeCheckpoint, match="is a copy of one that went on: it has batch 2 as committed"):
        copy.driver.next(two)
    copy.driver.close()


def test_a_second_query_in_a_group_is_warned_of_by_its_member_id(broker, topic, group, tmp_path, caplog):
    first, second = (Query(tmp_path / name, broker, topic, group) for name in ("one", "two"))
    first.plan()
    second.plan()

    def warned():
        first.driver.next(first.driver.initial)
        return any(f"group {group} has another query of Spark beside this one" in one for one in caplog.messages)

    try:
        blocking_until(warned)
    finally:
        first.driver.close()
        second.driver.close()
    [text, *_] = [one for one in caplog.messages if "another query of Spark" in one]
    assert "each record goes to one of them only" in text


def test_a_checkpoint_that_was_moved_goes_on(broker, topic, group, tmp_path):
    one, two = went_on(tmp_path, broker, topic, group)
    (tmp_path / "old").rename(tmp_path / "new")

    moved = Query(tmp_path / "new", broker, topic, group)
    three = moved.plan(two)
    moved.driver.close()

    assert not offsets(three) & (offsets(one) | offsets(two))


def test_a_source_takes_no_copys_commits_for_its_own(broker, topic, group, tmp_path, monkeypatch):
    """Two copies have the same member; neither the older commit nor one of the same number is this query's."""
    one, _ = went_on(tmp_path, broker, topic, group)
    notes = [tmp_path / "copy.query", tmp_path / "old.query"]
    monkeypatch.setattr("flowshare.spark.source.checkpoint._notes", lambda: notes)
    for note in notes:
        note.write_text(str(tmp_path / note.stem))
    query = Query(tmp_path / "old", broker, topic, group, checkpoint="")
    two = query.newest()
    following = query.plan(two)
    query.tasks(following)
    copy = Query(tmp_path / "copy", broker, topic, group)
    for log in ("offsets", "commits"):  # the copy's own second and third batch
        for number in (2, 3):
            text = json.dumps({**one.to_json(), "number": number, "tag": f"another {number}"})
            (tmp_path / "copy" / log / str(number - 1)).write_text(f"v1\n{{}}\n{text}\n")

    assert query.driver._place(query.driver._member, following).root == tmp_path / "old"
    assert not query.driver._written(query.driver._member)
    query.commit(following)
    assert query.driver._written(query.driver._member)
    query.driver.close()
    del copy


# --- two sources ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", ["its first batch", "its first accept"])
def test_a_query_with_two_sources_in_one_group_accepts_nothing(broker, topic, group, tmp_path, before):
    query = Query(tmp_path, broker, topic, group)
    other = Query(tmp_path / "of another", broker, topic, group)
    offset = query.plan()
    entry = tmp_path / "offsets" / "0"
    if before == "its first accept":
        query.tasks(offset)
        query.commit(offset)
    entry.write_text(f"{entry.read_text()}{json.dumps(other.driver.initial.to_json())}\n")

    with pytest.raises(SharedGroup, match=f"group {group} is read by two sources of this query"):
        query.tasks(offset) if before == "its first batch" else query.driver.next(offset)
    query.driver.close()

    fresh = Query(tmp_path / "new", broker, topic, group)
    assert offsets(fresh.plan()) == offsets(offset)
    fresh.driver.close()


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (["a", "b"], ["b", "c"], True),
        (["a"], ["b"], False),
        (["~a.*"], ["b", "ab"], True),
        (["b"], ["~a.*"], False),
        (["~a"], ["~b"], True),
        (["a"], [], False),
    ],
)
def test_sources_share_a_group_where_they_may_read_the_same_topic(one, other, same):
    assert overlap(one, other) is same
    assert overlap(other, one) is same


# --- what was passed --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settled", [True, False], ids=["a while ago", "just now"])
def test_records_that_retention_took_while_a_query_was_down_are_an_error_or_counted(
    broker, topic, group, tmp_path, settled
):
    first = Query(tmp_path, broker, topic, group)
    offset = first.run(first.plan())
    offset = first.run(first.plan(offset))
    if settled:
        first.driver._prune_s = 0.1
        offset = first.run(first.plan(offset))
    first.driver.close()
    behind = max(one.last for one in offset.ranges) + 1
    broker.call(broker.admin.delete_records(topic, 0, behind + 200))

    strict = Query(tmp_path, broker, topic, group)
    with pytest.raises(DataLoss, match=r"200 records are gone from the log.*'on_data_loss', 'continue'"):
        strict.plan(offset)
    strict.driver.close()
    lossy = Query(tmp_path, broker, topic, group, on_data_loss="continue")
    following = lossy.run(lossy.plan(offset))
    told = lossy.driver.told()
    lossy.driver.close()
    again = Query(tmp_path, broker, topic, group)
    again.plan(following)
    more = again.driver.told()
    again.driver.close()

    assert (told["records_lost"], told["records_archived"]) == (200, 0)
    assert more["records_lost"] == 0, "it is told once"


def retained(broker, topic, group, tmp_path):
    """A checkpoint that was stopped, and of what the group has not read, 200 records that retention took since: its
    last batch, and the offset behind that, where the group's start offset is until a fetch."""
    first = Query(tmp_path, broker, topic, group)
    offset = first.run(first.plan())
    offset = first.run(first.plan(offset))
    first.driver.close()
    behind = max(one.last for one in offset.ranges) + 1
    broker.call(broker.admin.delete_records(topic, 0, behind + 200))
    return offset, behind


@on_one_machine
def test_what_retention_took_is_told_although_the_first_question_for_it_had_no_answer(
    broker, topic, group, tmp_path, monkeypatch
):
    offset, behind = retained(broker, topic, group, tmp_path)
    lag(monkeypatch, topic, behind)
    ask, failures = ShareAdmin.offsets, iter([True])

    async def fails_once(*told, **more):
        if next(failures, False):
            raise ServerError(ErrorCode.UNKNOWN_SERVER_ERROR, "not at the moment")
        return await ask(*told, **more)

    monkeypatch.setattr(ShareAdmin, "offsets", fails_once)
    query = Query(tmp_path, broker, topic, group, on_data_loss="continue")
    assert query.driver.next(offset) is None
    query.driver._prune_s = 0.1
    query.plan(offset)
    told = query.driver.told()
    query.driver.close()

    assert told["records_lost"] == 200


@on_one_machine
def test_what_retention_took_is_told_once_however_late_the_groups_start_offset_follows(
    broker, topic, group, tmp_path, monkeypatch
):
    offset, behind = retained(broker, topic, group, tmp_path)
    follow = lag(monkeypatch, topic, behind)
    lossy = Query(tmp_path, broker, topic, group, on_data_loss="continue")
    told = []
    for _ in range(2):
        offset = lossy.run(lossy.plan(offset))
        told.append(lossy.driver.told()["records_lost"])
        lossy.driver._prune_s = 0.1
    lossy.driver.close()
    assert dict(offset.starts) == {(topic, 0): behind + 200}

    strict = Query(tmp_path, broker, topic, group)
    offset = strict.run(strict.plan(offset))
    strict.driver._prune_s = 0.1
    offset = strict.run(strict.plan(offset))
    follow()
    strict.driver._prune_s = 0.1
    strict.plan(offset)
    told.append(strict.driver.told()["records_lost"])
    strict.driver.close()

    assert told == [200, 200, 0]


@on_one_machine
def test_a_start_offset_that_follows_late_what_retention_took_is_no_reset_of_the_group(
    broker, topic, group, tmp_path, monkeypatch, caplog
):
    offset, behind = retained(broker, topic, group, tmp_path)
    lag(monkeypatch, topic, behind)
    killed = Query(tmp_path, broker, topic, group, on_data_loss="continue")
    offset = killed.plan(offset)
    killed.tasks(offset)
    killed.die(offset)

    query = Query(tmp_path, broker, topic, group, on_data_loss="continue")
    query.run(offset)
    seen = [offsets(offset)]
    for _ in range(5):
        offset = query.run(query.plan(offset))
        seen.append(offsets(offset))
    assert query.driver.next(offset) is None
    query.driver.close()

    assert "offsets were reset" not in caplog.text
    other = Query(tmp_path / "new", broker, topic, group)
    assert other.driver.next(other.driver.initial) is None, "all of it is accepted"
    other.driver.close()
    assert sum(map(len, seen)) == len(set().union(*seen)) == 600


@on_one_machine
def test_a_group_that_was_reset_while_a_query_was_down_is_read_again_where_the_log_still_has_it(
    broker, topic, group, tmp_path, caplog
):
    offset, behind = retained(broker, topic, group, tmp_path)
    first = Query(tmp_path, broker, topic, group, on_data_loss="continue")
    for _ in range(2):
        offset = first.run(first.plan(offset))
    blocking_until(
        lambda: broker.call(broker.admin.group_offsets(group))[0].start_offset,
        good=lambda start: start >= behind + 200 + BATCH,
    )
    first.driver._prune_s = 0.1
    offset = first.run(first.plan(offset))
    first.driver.close()
    assert offset.starts[topic, 0] >= behind + 200 + BATCH
    blocking_until(lambda: broker.call(broker.admin.describe_group(group)).members, good=lambda members: not members)
    broker.call(broker.admin.place_group(group, {(topic, 0): behind}))

    second = Query(tmp_path, broker, topic, group, on_data_loss="continue")
    following = second.plan(offset)
    second.driver.close()

    assert "offsets were reset" in caplog.text
    assert offsets(following) & {(topic, 0, number) for number in range(behind + 200, behind + 200 + BATCH)}


@on_one_machine
def test_what_retention_takes_of_the_new_topic_is_told_where_it_took_more_of_the_one_before(
    broker, topic, group, tmp_path, monkeypatch
):
    offset, behind = retained(broker, topic, group, tmp_path)
    query = Query(tmp_path, broker, topic, group, on_data_loss="continue")
    offset = query.run(query.plan(offset))
    broker.call(broker.admin.delete_topic(topic))
    blocking_until(
        lambda: [one.name for one in broker.call(broker.admin.list_topics())], good=lambda names: topic not in names
    )
    broker.topic(topic)
    broker.produce(topic, [b"new %d" % one for one in range(BATCH)])
    offset = query.run(query.plan(offset))
    before = query.driver.told()["records_lost"]
    query.driver.next(offset)
    broker.produce(topic, [b"more %d" % one for one in range(50)])
    broker.call(broker.admin.delete_records(topic, 0, BATCH + 20))
    query.driver._prune_s = 0.1
    offset = query.plan(offset)
    told = query.driver.told()["records_lost"]
    query.driver.close()

    assert told - before == 20
    assert offset.starts[topic, 0] == BATCH + 20 < behind + 200


@on_one_machine
def test_what_retention_took_is_told_although_the_group_has_offsets_of_a_topic_that_is_gone(
    broker, topic, group, tmp_path, monkeypatch
):
    offset, behind = retained(broker, topic, group, tmp_path)
    asked = progress.starts

    async def starts(admin, group):
        return {**await asked(admin, group), (topic, 0): behind, (topic, 1): 5, ("gone", 0): 5}

    monkeypatch.setattr(progress, "starts", starts)
    query = Query(tmp_path, broker, topic, group, on_data_loss="continue")
    query.plan(offset)
    told = query.driver.told()
    query.driver.close()

    assert told["records_lost"] == 200


def test_what_was_handled_before_retention_took_it_is_no_loss(broker, topic, group, tmp_path):
    first = Query(tmp_path, broker, topic, group)
    offset = first.run(first.plan())
    for _ in range(4):
        offset = first.run(first.plan(offset))
    first.driver.close()
    broker.call(broker.admin.delete_records(topic, 0, max(one.last for one in offset.ranges) + 1))

    second = Query(tmp_path, broker, topic, group)
    second.run(second.plan(offset))
    told = second.driver.told()
    second.driver.close()

    assert told["records_lost"] == 0


def test_what_an_older_process_noted_without_tags_is_believed(broker, topic, group, tmp_path):
    first = Query(tmp_path, broker, topic, group)
    offset = first.run(first.plan())
    first.driver.close()
    plain = {name: value for name, value in offset.to_json().items() if name not in ("tag", "source", "reads")}
    old = type(offset).from_json(plain)

    assert (old.tag, old.source, old.reads) == ("", "", ())
    assert old.ranges == offset.ranges
    assert local_checkpoint(str(tmp_path)).committed(old.member)[0] == offset.number


def test_a_topic_that_is_made_anew_under_a_running_query_is_read_from_its_beginning(broker, topic, group, tmp_path):
    query = Query(tmp_path, broker, topic, group)
    offset = query.run(query.plan())
    for _ in range(9):
        offset = query.run(query.plan(offset))
    assert query.driver.next(offset) is None
    broker.call(broker.admin.delete_topic(topic))
    blocking_until(
        lambda: [one.name for one in broker.call(broker.admin.list_topics())], good=lambda names: topic not in names
    )
    broker.topic(topic)
    broker.produce(topic, [b"new %d" % one for one in range(300)])

    seen = set()
    while len(seen) < 300:
        offset = query.plan(offset)
        parts = query.tasks(offset)
        assert {part.topics[topic] for part in parts} == {str(broker.call(broker.admin.describe_topic(topic)).topic_id)}
        seen |= {place for part in parts for place in offsets(part)}
        query.commit(offset)
    query.driver.next(offset)
    query.driver.close()

    assert seen == {(topic, 0, number) for number in range(300)}
    assert broker.backlog(group) == 0


def test_what_a_topic_grows_by_and_topics_that_come_later_are_read_from_their_beginning_with_start_latest(
    broker, unique, group, tmp_path
):
    prefix = unique("shop")
    first = broker.topic(f"{prefix}.a")
    broker.produce(first, [b"old"] * 5)
    query = Query(tmp_path, broker, "", group, topics_pattern=f"{prefix}.*", start="latest")
    assert query.driver.next(query.driver.initial) is None
    broker.produce(first, [b"begun"])  # Kafka's brokers tell where a share-partition is once something of it is settled
    offset = query.run(query.plan(query.driver.initial))
    seen = offsets(offset)
    assert query.driver.next(offset) is None

    def setting():
        configs = {one.name: one.value for one in broker.call(broker.admin.group_configs(group))}
        return configs["share.auto.offset.reset"]

    blocking_until(setting, good=lambda value: value == "earliest")
    broker.call(broker.admin.create_partitions(first, 2))
    broker.produce(first, [b"%d" % one for one in range(50)], [b"%d" % one for one in range(50)])
    second = broker.topic(f"{prefix}.b")
    broker.produce(second, [b"%d" % one for one in range(20)])

    while len(seen) < 71:
        offset = query.run(query.plan(offset))
        seen |= offsets(offset)
    query.driver.close()

    assert len({place for place in seen if place[:2] == (first, 1)}) > 0
    assert min(number for topic, partition, number in seen if (topic, partition) == (first, 0)) == 5
    assert broker.backlog(group) == 0
