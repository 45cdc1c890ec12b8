"""The source's options: what is taken, what is refused, and in which words; and what a group is set to for them."""

from __future__ import annotations

import asyncio
import os

import pytest

from flowshare.agents.handler.errors import OptionError
from flowshare.backend.base import EMBEDDED, NATIVE, Capabilities
from flowshare.client.admin.sizes import ASKED_AT_ONCE
from flowshare.client.errors import ServerError
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import ConfigEntry, TopicMetadata
from flowshare.share.settings import duration_ms
from flowshare.share.types import UNLIMITED_DELIVERIES
from flowshare.spark.source.group import DeliveryLimits, need_dead_letter_topic, prepare_group, topics_of
from flowshare.spark.source.options import SourceOptions

LEAST = {"broker": "kafka://localhost:9092", "topics": "orders", "group": "etl"}


def parse(**given: str) -> SourceOptions:
    return SourceOptions.parse({**LEAST, **given})


def refusal(given: dict[str, str]) -> str:
    with pytest.raises(OptionError) as caught:
        SourceOptions.parse(given)
    return str(caught.value)


# --- names --------------------------------------------------------------------------------------------------------


def test_broker_topics_and_group_are_all_that_is_needed():
    options = SourceOptions.parse(LEAST)

    assert options == SourceOptions(broker="kafka://localhost:9092", topics=("orders",), group="etl")
    assert (options.start, options.records_per_trigger, options.records_per_second) == ("earliest", 100_000, 0.0)
    assert (options.tasks, options.lock_duration, options.delivery_limit, options.wait) == (0, 0.0, 0, 0.25)
    assert (options.value, options.value_schema, options.headers) == ("bytes", "", False)
    assert (options.dead_letter, options.outcomes, options.recovery) == ("", False, "rerun")


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("topic", "topics"),
        ("topicPattern", "topics_pattern"),
        ("groups", "group"),
        ("recordsPerTrigger", "records_per_trigger"),
        ("record_per_trigger", "records_per_trigger"),
        ("lock_durations", "lock_duration"),
        ("valueSchema", "value_schema"),
        ("deadLetter", "dead_letter"),
        ("header", "headers"),
        ("recover", "recovery"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(name, nearest):
    assert refusal({**LEAST, name: "1"}) == (
        f"format(\"flowshare\") has no option '{name.lower()}'. Did you mean '{nearest}'?"
    )


def test_a_name_that_is_like_none_is_refused_with_those_there_are():
    said = refusal({**LEAST, "zzz": "1"})

    assert "has no option 'zzz'" in said
    for name in ("broker", "topics", "topics_pattern", "recovery", "value_schema"):
        assert name in said


@pytest.mark.parametrize("spell", [str.upper, str.title, str.lower])
def test_names_are_taken_in_any_case(spell):
    given = {**LEAST, "records_per_trigger": "7", "value": "json", "value_schema": "id INT"}

    options = SourceOptions.parse({spell(name): text for name, text in given.items()})

    assert options == SourceOptions.parse(given)
    assert options.value_schema == "id INT"


@pytest.mark.parametrize("key", ["path", "checkpointLocation", "checkpointlocation", "queryName"])
def test_what_spark_adds_by_itself_is_no_unknown_option(key):
    assert SourceOptions.parse({**LEAST, key: "/tmp/x"}) == SourceOptions.parse(LEAST)


@pytest.mark.parametrize("need", ["broker", "group"])
@pytest.mark.parametrize("empty", [True, False])
def test_what_is_needed_and_missing_is_named(need, empty):
    given = {name: text for name, text in LEAST.items() if name != need}

    assert refusal({**given, need: ""} if empty else given) == f'format("flowshare") needs .option("{need}", …)'


def test_topics_are_named_or_matched_and_never_both():
    said = 'format("flowshare") needs either .option("topics", …) or .option("topics_pattern", …)'

    assert refusal({"broker": LEAST["broker"], "group": "etl"}) == said
    assert refusal({**LEAST, "topics_pattern": "orders-.*"}) == said


# --- values -------------------------------------------------------------------------------------------------------

BAD = [
    ("topics", " , ", "topics takes names of topics, separated by commas, not ' , '"),
    ("records_per_trigger", "many", "records_per_trigger takes a whole number from 1 on, not 'many'"),
    ("records_per_trigger", "0", "records_per_trigger takes a whole number from 1 on, not '0'"),
    ("records_per_trigger", "1.5", "records_per_trigger takes a whole number from 1 on, not '1.5'"),
    ("records_per_trigger", "", "records_per_trigger takes a whole number from 1 on, not ''"),
    ("records_per_second", "-1", "records_per_second takes a number from 0 on, not '-1'"),
    ("records_per_second", "nan", "records_per_second takes a number from 0 on, not 'nan'"),
    ("records_per_second", "inf", "records_per_second takes a number from 0 on, not 'inf'"),
    ("tasks", "-2", "tasks takes a whole number from 0 on, not '-2'"),
    ("lock_duration", "30s", "lock_duration takes a number from 0 on, not '30s'"),
    ("delivery_limit", "unlimited", "delivery_limit takes a whole number from 0 on, not 'unlimited'"),
    ("wait", "-0.1", "wait takes a number from 0 on, not '-0.1'"),
    ("value", "xml", "value takes bytes, json, avro or protobuf, not 'xml'"),
    ("headers", "maybe", "headers takes true or false, not 'maybe'"),
    ("outcomes", "", "outcomes takes true or false, not ''"),
    ("recovery", "retry", "recovery takes rerun or drop, not 'retry'"),
]


@pytest.mark.parametrize(("name", "text", "said"), BAD)
def test_a_bad_value_is_refused_in_one_clear_sentence(name, text, said):
    assert refusal({**LEAST, name: text}) == said


@pytest.mark.parametrize("text", ["yesterday", "-5", "", "inf"])
def test_a_bad_start_is_refused_with_all_that_it_can_be(text):
    said = refusal({**LEAST, "start": text})

    assert said.startswith("start takes earliest, latest or seconds back")
    assert said.endswith(f"not {text!r}")


def test_a_pattern_that_is_none_is_refused_with_the_reason():
    said = refusal({"broker": LEAST["broker"], "group": "etl", "topics_pattern": "orders-("})

    assert said.startswith("topics_pattern takes a regular expression, and 'orders-(' is none: ")


@pytest.mark.parametrize("text", ["localhost:9092", "kafka://", "http://localhost", "embedded://relative"])
def test_a_bad_broker_is_refused_in_the_words_of_broker_urls(text):
    assert text in refusal({**LEAST, "broker": text})


def test_memory_is_refused_because_spark_is_several_processes():
    said = refusal({**LEAST, "broker": "memory://"})

    assert "memory://" in said
    assert "embedded:///path or kafka://" in said


@pytest.mark.parametrize(
    "given",
    [
        {"value": "json"},
        {"value": "avro"},
        {"value": "json", "value_schema": ""},
        {"value_schema": "id INT"},
        {"value": "bytes", "value_schema": "id INT"},
    ],
)
def test_a_value_and_its_schema_belong_together(given):
    assert refusal({**LEAST, **given}) == "value_schema goes with value=json or value=avro, and they need it"


@pytest.mark.parametrize("text", ["cp", "./cp", "file:cp", "cp/a:b"])
def test_a_checkpoint_that_is_relative_is_refused_as_the_source_runs_in_another_folder(text: str):
    assert f"checkpoint takes an absolute path or a URL, not {text!r}" in refusal({**LEAST, "checkpoint": text})


@pytest.mark.parametrize(
    "text", ["", "/data/cp", "file:/data/a b", "file:///data/cp", "hdfs://host:9000/cp", "s3a://b/cp"]
)
def test_a_checkpoint_is_a_whole_path_or_a_url_or_not_given(text: str):
    assert parse(checkpoint=text).checkpoint == text


@pytest.mark.parametrize(
    ("text", "taken"), [("true", True), ("YES", True), ("1", True), ("False", False), ("no", False)]
)
def test_a_flag_can_be_written_in_several_ways(text, taken):
    assert parse(headers=text).headers is taken


def test_values_of_a_few_words_are_taken_in_any_case():
    options = parse(value="JSON", value_schema="id INT", recovery="Drop", start="LATEST")

    assert (options.value, options.recovery, options.start) == ("json", "drop", "latest")


@pytest.mark.parametrize("back_s", [0, 0.25, 1.5, 60, 90_061, 604_800, 1_209_600, 2_592_000, 31_536_001])
def test_a_start_in_seconds_back_is_the_same_duration_to_the_group(back_s):
    start = parse(start=str(back_s)).start

    assert start.startswith("by_duration:")
    assert duration_ms(start.removeprefix("by_duration:")) == round(back_s * 1000)


def test_topics_are_a_list_with_commas():
    assert parse(topics=" orders, payments ,").topics == ("orders", "payments")


# --- what follows from them ---------------------------------------------------------------------------------------


def test_a_batch_is_read_by_a_task_for_each_core_unless_told_otherwise():
    assert parse(tasks="3").task_count == 3
    assert parse().task_count == (os.cpu_count() or 1)


def test_dead_letters_go_to_a_topic_of_the_groups_name():
    assert parse().dead_letter_topic == "etl.dlq"
    assert parse(dead_letter="trash").dead_letter_topic == "trash"
    assert parse(dead_letter="none").dead_letter_topic is None


def test_dead_letters_do_not_go_where_they_would_be_read_again():
    said = "dead_letter=etl.dlq is read, too: what is put there would come back"

    assert refusal({**LEAST, "topics": "orders,etl.dlq", "value": "json", "value_schema": "id INT"}) == said
    assert parse(topics="etl.dlq").topics == ("etl.dlq",)


def test_named_topics_are_wanted_and_no_others():
    options = parse(topics="orders,payments")

    assert [options.wants(name) for name in ("orders", "payments", "order", "orders-2")] == [True, True, False, False]


def test_a_pattern_is_for_a_topics_whole_name_and_not_for_its_dead_letters():
    options = SourceOptions.parse(
        {"broker": LEAST["broker"], "group": "etl", "topics_pattern": "(orders|etl).*", "dead_letter": "orders.bad"}
    )

    wanted = [name for name in ("orders", "orders-2", "my-orders", "orders.bad", "etl.dlq") if options.wants(name)]
    assert wanted == ["orders", "orders-2", "etl.dlq"]


def test_a_pattern_is_not_for_the_topics_in_which_brokers_keep_their_state():
    least = {"broker": LEAST["broker"], "group": "etl"}
    options = SourceOptions.parse({**least, "topics_pattern": ".*"})

    assert not options.wants("__consumer_offsets")
    assert not options.wants("__share_group_state")
    assert options.wants("_mine")
    assert parse(topics="__consumer_offsets").wants("__consumer_offsets")


def test_no_text_of_the_options_shows_a_password():
    options = parse(broker="kafka://user:hush-hush@localhost:9092")

    assert "hush-hush" not in repr(options)


# --- what a group is set to ---------------------------------------------------------------------------------------


class FakeAdmin:
    """Keeps what a group is set to. kind: of the group that is there. broker: settings of the brokers."""

    def __init__(self, *, kind: str | None = None, broker: dict[str, int] | None = None, topics=()) -> None:
        self.kind = kind
        self.broker = broker or {}
        self.topics = topics
        self.set: dict[str, str] = {}
        self.refusal: ServerError | None = None

    async def group_kind(self, _group_id):
        return self.kind

    async def broker_configs(self):
        return [ConfigEntry(name=name, value=str(value), is_default=False) for name, value in self.broker.items()]

    async def alter_group_configs(self, _group_id, configs):
        if self.refusal is not None:
            raise self.refusal
        self.set.update(configs)

    async def group_configs(self, _group_id):
        return [ConfigEntry(name=name, value=value, is_default=False) for name, value in self.set.items()]

    async def group_offsets(self, group_id):
        raise ServerError(ErrorCode.GROUP_ID_NOT_FOUND, about=f"group {group_id}")

    async def list_topics(self):
        return [TopicMetadata(name=name) for name in self.topics]

    async def describe_topic(self, name):
        if name not in self.topics:
            raise ServerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, about=f"topic {name}")
        return TopicMetadata(name=name)


def test_a_dead_letter_topic_that_may_not_be_made_is_told_of_and_the_query_runs(caplog):
    admin = FakeAdmin(topics=("orders",))

    async def topic_configs(_name):
        return [ConfigEntry(name="max.message.bytes", value="1048588", is_default=True)]

    async def create_topic(name, **_):
        raise ServerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, about=f"creating topic {name}")

    admin.topic_configs, admin.create_topic = topic_configs, create_topic
    asyncio.run(need_dead_letter_topic(parse(), admin, ["orders"]))  # type: ignore[arg-type]

    assert "group etl: its topic for dead letters is not ready: creating topic etl.dlq" in caplog.text


def test_the_limits_of_many_topics_are_asked_for_together_but_not_all_at_once():
    admin, asked, most = FakeAdmin(topics=("etl.dlq",)), [], 0

    async def topic_configs(name):
        nonlocal most
        asked.append(name)
        here = len(asked)
        await asyncio.sleep(0)
        most = max(most, len(asked) - here + 1)
        return [ConfigEntry(name="max.message.bytes", value="1048588", is_default=True)]

    async def alter_topic_configs(_name, _configs):
        """Nothing."""

    admin.topic_configs, admin.alter_topic_configs = topic_configs, alter_topic_configs
    topics = [f"orders-{number}" for number in range(2 * ASKED_AT_ONCE + 1)]
    asyncio.run(need_dead_letter_topic(parse(), admin, topics))  # type: ignore[arg-type]

    assert set(asked) >= set(topics)
    assert most == ASKED_AT_ONCE


def prepared(admin: FakeAdmin, capabilities: Capabilities, **given: str) -> DeliveryLimits:
    return asyncio.run(prepare_group(parse(**given), admin, capabilities))  # type: ignore[arg-type]


@pytest.mark.parametrize("order", ["key", "header:customer"])
def test_a_group_with_an_order_by_key_is_refused_before_anything_of_it_is_changed(order: str):
    admin = FakeAdmin()
    admin.set["share.key.order"] = order

    with pytest.raises(OptionError, match=r"share.key.order.*give the source another group"):
        prepared(admin, EMBEDDED)

    assert admin.set == {"share.key.order": order}


def test_a_group_whose_order_was_taken_away_is_read():
    admin = FakeAdmin()
    admin.set["share.key.order"] = ""

    assert prepared(admin, EMBEDDED).endless


def test_where_flowshare_leads_records_never_run_out_of_deliveries():
    admin = FakeAdmin()

    facts = prepared(admin, EMBEDDED, records_per_trigger="50000")

    assert facts == DeliveryLimits(deliveries=UNLIMITED_DELIVERIES, locks=100_000, committed=True)
    assert facts.endless
    assert admin.set["share.delivery.count.limit"] == str(UNLIMITED_DELIVERIES)
    assert admin.set["share.partition.max.record.locks"] == "100000"
    assert int(admin.set["share.partition.max.window"]) >= 100_000
    assert admin.set["share.auto.offset.reset"] == "earliest"
    assert "share.record.lock.duration.ms" not in admin.set


def test_a_limit_a_lock_and_a_start_that_are_asked_for_are_the_groups():
    admin = FakeAdmin(topics=["orders"])

    facts = prepared(admin, EMBEDDED, delivery_limit="3", lock_duration="7.5", start="60")

    assert (facts.deliveries, facts.endless) == (3, False)
    assert admin.set["share.delivery.count.limit"] == "3"
    assert admin.set["share.record.lock.duration.ms"] == "7500"
    assert admin.set["share.auto.offset.reset"] == "by_duration:PT60S"


def test_the_group_hands_out_committed_records_unless_the_query_asks_for_all():
    for given, level in (({}, "read_committed"), ({"isolation": "read_uncommitted"}, "read_uncommitted")):
        admin = FakeAdmin()
        facts = prepared(admin, EMBEDDED, **given)
        assert (admin.set["share.isolation.level"], facts.committed) == (level, level == "read_committed")


def test_few_records_a_trigger_do_not_make_few_locks():
    admin = FakeAdmin()

    assert prepared(admin, EMBEDDED, records_per_trigger="1").locks == 2_000


def test_kafkas_brokers_are_asked_for_as_much_as_they_allow():
    broker = {"group.share.max.delivery.count.limit": 10, "group.share.max.partition.max.record.locks": 4_000}
    admin = FakeAdmin(broker=broker)

    facts = prepared(admin, NATIVE)

    assert facts == DeliveryLimits(deliveries=10, locks=4_000, committed=True)
    assert admin.set["share.delivery.count.limit"] == "10"
    assert admin.set["share.partition.max.record.locks"] == "4000"
    assert "share.partition.max.window" not in admin.set


def test_a_limit_below_what_the_brokers_allow_is_the_groups():
    broker = {"group.share.max.delivery.count.limit": 25}

    assert prepared(FakeAdmin(broker=broker), NATIVE).deliveries == 10
    assert prepared(FakeAdmin(broker=broker), NATIVE, delivery_limit="3").deliveries == 3
    assert prepared(FakeAdmin(broker=broker), NATIVE, delivery_limit="20").deliveries == 20


def test_brokers_whose_limits_are_for_all_groups_are_left_with_them():
    admin = FakeAdmin(broker={"group.share.delivery.count.limit": 5})

    facts = prepared(admin, NATIVE)

    assert (facts.deliveries, facts.locks) == (5, 2_000)
    assert set(admin.set) == {"share.auto.offset.reset", "share.isolation.level"}


def test_a_limit_above_what_the_brokers_allow_is_refused_with_theirs():
    admin = FakeAdmin(broker={"group.share.max.delivery.count.limit": 10})

    with pytest.raises(OptionError, match=r"delivery_limit=11 is above what the brokers allow \(10\)"):
        prepared(admin, NATIVE, delivery_limit="11")


@pytest.mark.parametrize(("dead_letter", "left"), [("none", "all"), ("etl.bad", "limit")])
def test_a_query_without_letters_leaves_it_to_the_operator_which_letters_the_server_writes(dead_letter, left):
    admin = FakeAdmin()
    admin.set["share.dead.letter.on"] = "all"

    prepared(admin, EMBEDDED, dead_letter=dead_letter)

    assert admin.set["share.dead.letter.on"] == left


def test_a_group_of_another_kind_is_refused():
    with pytest.raises(OptionError, match="'etl' is a consumer group on the brokers; give the source another group"):
        prepared(FakeAdmin(kind="consumer"), EMBEDDED)


def test_a_group_that_is_there_is_taken():
    assert prepared(FakeAdmin(kind="share"), EMBEDDED).endless


def test_settings_that_are_refused_are_told_with_the_reason():
    admin = FakeAdmin()
    admin.refusal = ServerError(ErrorCode.INVALID_CONFIG, "the lock is too long")

    with pytest.raises(OptionError, match=r"the settings of group etl are refused: .*the lock is too long"):
        prepared(admin, EMBEDDED)


def test_a_group_that_reads_committed_records_says_so():
    admin = FakeAdmin()
    admin.set["share.isolation.level"] = "read_committed"

    assert prepared(admin, EMBEDDED).committed


def topics_for(there, **given: str) -> list[str]:
    least = {"broker": LEAST["broker"], "group": "etl"}
    return asyncio.run(topics_of(SourceOptions.parse({**least, **given}), FakeAdmin(topics=there)))  # type: ignore[arg-type]


def test_topics_of_a_pattern_are_those_that_there_are():
    assert topics_for(["a-1", "a-2", "b", "etl.dlq"], topics_pattern="a-.*|etl.*") == ["a-1", "a-2"]
    assert topics_for(["b"], topics_pattern="a-.*") == []


def test_a_named_topic_that_is_missing_is_refused_with_what_to_do():
    assert topics_for(["a", "b"], topics="b,a") == ["b", "a"]
    with pytest.raises(OptionError, match="there is no topic 'c' here: create it with `flowshare topics create c`"):
        topics_for(["a", "b"], topics="a,c")


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("subscribe", 'option("topics"'),
        ("subscribePattern", 'option("topics_pattern"'),
        ("startingOffsets", 'option("start"'),
        ("kafka.bootstrap.servers", 'option("broker"'),
        ("minPartitions", 'option("tasks"'),
        ("maxOffsetsPerTrigger", 'option("records_per_trigger"'),
        ("failOnDataLoss", 'option("on_data_loss"'),
        ("kafka.security.protocol", "in the broker's URL"),
    ],
)
def test_an_option_of_sparks_kafka_connector_is_answered_with_the_name_of_ours(name, ours):
    with pytest.raises(OptionError) as refused:
        SourceOptions.parse({**LEAST, name: "x"})

    assert f"{name.lower()!r} is an option of Spark's own Kafka connector" in str(refused.value)
    assert ours in str(refused.value)


def test_a_permissive_mode_goes_with_json_only():
    with pytest.raises(OptionError, match="value_mode=permissive goes with value=json"):
        SourceOptions.parse({**LEAST, "value_mode": "permissive"})
