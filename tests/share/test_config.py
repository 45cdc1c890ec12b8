"""Settings: names, defaults, bounds and what a refusal says."""

from __future__ import annotations

import pytest

from flowshare.core_errors import InvalidConfig
from flowshare.share.config import (
    DEAD_LETTER_BY,
    EMBEDDED_CONFIGS,
    GROUP_CONFIGS,
    SERVER_CONFIGS,
    GroupConfig,
    ServerConfig,
    with_namer,
)
from flowshare.share.settings import WITHOUT_EFFECT, duration_ms
from flowshare.share.types import Limits, Priority

KAFKA = ServerConfig()
EMBEDDED = ServerConfig.embedded()


def test_the_defaults_of_the_class_are_those_of_the_table():
    assert ServerConfig.parse({}) == ServerConfig()
    assert GroupConfig.parse({}, KAFKA) == GroupConfig()


def test_every_setting_has_a_document_and_a_default_that_it_accepts():
    for table in (SERVER_CONFIGS, EMBEDDED_CONFIGS):
        for name, setting in table.items():
            assert setting.name == name
            assert setting.doc
            setting.parse(setting.default)
    assert all(setting.doc for setting in GROUP_CONFIGS.values())


def test_a_group_takes_its_defaults_from_the_server():
    server = ServerConfig.parse(
        {
            "group.share.delivery.count.limit": "7",
            "group.share.partition.max.window": "locks",
            "group.share.max.size": "9",
        }
    )

    config = GroupConfig.parse({}, server)

    assert config.delivery_count_limit == 7
    assert config.partition_max_window is None
    assert config.group_max_size == 9


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("share.record.lock.duration.ms", "14999", "15000 to 60000"),
        ("share.record.lock.duration.ms", "60001", "15000 to 60000"),
        ("share.session.timeout.ms", "1", "45000 to 60000"),
        ("share.delivery.count.limit", "11", "2 to 10"),
        ("share.delivery.count.limit", "five", "2 to 10"),
        ("share.delivery.count.limit", "", "2 to 10"),
        ("share.partition.max.record.locks", "99", "100 to 4000"),
        ("share.partition.max.window", "99", "100 to 1000000 or locks"),
        ("share.partition.max.window", "lock", "or locks"),
        ("share.isolation.level", "serializable", "read_uncommitted or read_committed"),
        ("share.renew.acknowledge.enable", "yes", "true or false"),
        ("share.dead.letter.on", "some", "all or limit"),
        ("share.auto.offset.reset", "first", "latest or earliest or by_duration"),
        ("share.retention.ms", "-2", "at least 0 or -1"),
        ("errors.deadletterqueue.topic.name", "letters", "dlq."),
        ("errors.deadletterqueue.topic.name", "__letters", "internal"),
    ],
)
def test_a_value_out_of_bounds_is_refused_and_the_bounds_are_named(name, value, says):
    with pytest.raises(InvalidConfig) as refusal:
        GroupConfig.parse({name: value}, KAFKA)

    assert name in str(refusal.value)
    assert says in str(refusal.value)


def test_an_unknown_name_is_refused_with_the_nearest_one():
    with pytest.raises(InvalidConfig, match=r"did you mean share\.record\.lock\.duration\.ms"):
        GroupConfig.parse({"share.record.lock.duration": "30000"}, KAFKA)
    with pytest.raises(InvalidConfig, match=r"did you mean group\.share\.max\.size"):
        ServerConfig.parse({"group.share.maxsize": "30"})
    with pytest.raises(InvalidConfig) as refusal:
        GroupConfig.parse({"zzz": "1"}, KAFKA)
    assert "did you mean" not in str(refusal.value)


def test_the_session_timeout_must_exceed_the_heartbeat_interval():
    overrides = {"share.session.timeout.ms": "1000", "share.heartbeat.interval.ms": "1000"}

    with pytest.raises(InvalidConfig, match="must exceed"):
        GroupConfig.parse(overrides, EMBEDDED)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"group.share.record.lock.duration.ms": "61000"}, "15000 to 60000"),
        ({"group.share.min.record.lock.duration.ms": "30000", "group.share.record.lock.duration.ms": "29000"}, "30000"),
        ({"group.share.max.share.sessions": "10"}, "at least group.share.max.size"),
        ({"group.share.heartbeat.interval.ms": "15000", "group.share.session.timeout.ms": "45000"}, None),
        ({"group.share.assignors": "range"}, "simple"),
        ({"share.coordinator.snapshot.update.records.per.snapshot": "501"}, "0 to 500"),
        ({"group.share.max.delivery.count.limit": "26"}, "5 to 25"),
    ],
)
def test_server_settings_are_checked_against_each_other(values, says):
    if says is None:
        ServerConfig.parse(values)
        return
    with pytest.raises(InvalidConfig, match=says):
        ServerConfig.parse(values)


def test_a_server_heartbeat_as_long_as_the_session_is_refused():
    values = {"group.share.session.timeout.ms": "5000"}

    with pytest.raises(InvalidConfig, match="must be below"):
        ServerConfig.embedded(values)


def test_the_embedded_server_has_wide_bounds():
    overrides = {"share.record.lock.duration.ms": "1000", "share.delivery.count.limit": "1000000"}

    config = GroupConfig.parse(overrides, EMBEDDED)

    assert config.record_lock_duration_ms == 1000
    assert config.delivery_count_limit == 1_000_000
    assert GroupConfig.parse({"share.record.lock.duration.ms": "3600000"}, EMBEDDED)
    with pytest.raises(InvalidConfig):
        GroupConfig.parse({"share.record.lock.duration.ms": "999"}, EMBEDDED)
    with pytest.raises(InvalidConfig):
        GroupConfig.parse({"share.delivery.count.limit": "1"}, EMBEDDED)


def test_a_stored_value_outside_later_bounds_is_moved_to_the_nearest_one():
    stored = {
        "share.record.lock.duration.ms": "1000",
        "share.delivery.count.limit": "900",
        "share.session.timeout.ms": "50000",
    }

    config = GroupConfig.effective(stored, KAFKA)

    assert config.record_lock_duration_ms == 15_000
    assert config.delivery_count_limit == 10
    assert config.session_timeout_ms == 50_000


def test_stored_settings_never_stop_a_group():
    stored = {
        "of.a.later.release": "1",
        "share.partition.max.window": "locks",
        "share.isolation.level": "serializable",
        "errors.deadletterqueue.topic.name": "letters",
        "share.retention.ms": "-1",
    }

    config = GroupConfig.effective(stored, KAFKA)

    assert config.partition_max_window is None
    assert config.isolation_level == "read_uncommitted"
    assert config.dead_letter_topic == ""
    assert config.retention_ms is None


def test_a_clamped_session_timeout_stays_above_the_heartbeat_interval():
    stored = {"share.session.timeout.ms": "300", "share.heartbeat.interval.ms": "4000"}

    config = GroupConfig.effective(stored, EMBEDDED)

    assert config.heartbeat_interval_ms < config.session_timeout_ms


@pytest.mark.parametrize(
    "value", ["by_duration:1h", "by_duration:-PT1H", "by_duration:", "by_duration", "by_duration:P"]
)
def test_o05_a_malformed_or_negative_duration_is_refused(value):
    with pytest.raises(InvalidConfig):
        GroupConfig.parse({"share.auto.offset.reset": value}, KAFKA)


def test_a_reset_by_duration_says_how_far_back_it_goes():
    assert GroupConfig.parse({"share.auto.offset.reset": "by_duration:PT1H"}, KAFKA).reset_duration_ms == 3_600_000
    assert GroupConfig.parse({"share.auto.offset.reset": "earliest"}, KAFKA).reset_duration_ms is None


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("PT0S", 0),
        ("P1D", 86_400_000),
        ("P1DT2H3M4.567S", 93_784_567),
        ("pt1.5s", 1_500),
        ("PT0.0019S", 1),
        ("P1DT-1H", 82_800_000),
        ("PT1M-0.5S", 59_500),
        ("-PT-1S", 1_000),
        ("+PT1S", 1_000),
        ("PT36500H", 131_400_000_000),
    ],
)
def test_durations_are_read_as_java_reads_them(text, milliseconds):
    assert duration_ms(text) == milliseconds


@pytest.mark.parametrize(
    "text", ["", "P", "PT", "P1DT", "1D", "P1H", "PT1D", "P1W", "PT1.5H", "PT 1S", "PT１S", "P" + "9" * 5000 + "D"]
)
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(InvalidConfig, match="ISO-8601"):
        duration_ms(text)


def test_limits_follow_the_settings():
    overrides = {
        "share.record.lock.duration.ms": "20000",
        "share.delivery.count.limit": "3",
        "share.partition.max.record.locks": "150",
        "share.partition.max.window": "locks",
        "share.renew.acknowledge.enable": "FALSE",
        "errors.deadletterqueue.topic.name": "dlq.orders",
        "share.dead.letter.on": "limit",
    }

    limits = GroupConfig.parse(overrides, KAFKA).limits()

    assert limits == Limits(
        lock_duration_ms=20_000,
        delivery_count_max=3,
        record_locks_max=150,
        window_max=None,
        renew_enabled=False,
        dead_letter_on_limit=True,
        dead_letter_on_reject=False,
    )
    assert not GroupConfig().limits().dead_letter_on_limit
    assert GroupConfig(dead_letter_topic="dlq.orders").limits().dead_letter_on_reject


def test_the_settings_of_flowshares_own_reach_the_share_partition():
    config = GroupConfig.parse(
        {"share.paused": "true", "share.max.in.flight": "7", "share.delivery.priority": "mixed"}, EMBEDDED
    )

    assert (config.limits().paused, config.max_in_flight) == (True, 7)
    assert config.limits().priority is Priority.MIXED
    assert GroupConfig.parse({"share.max.in.flight": "0"}, EMBEDDED).max_in_flight is None


@pytest.mark.parametrize(
    ("name", "value"), [("share.max.in.flight", "-1"), ("share.delivery.priority", "first"), ("share.paused", "yes")]
)
def test_values_of_flowshares_own_settings_are_checked(name, value):
    with pytest.raises(InvalidConfig, match=f"{name.replace('.', '[.]')} is '{value}'; allowed: "):
        GroupConfig.parse({name: value}, EMBEDDED)


def test_values_lists_every_setting_as_it_acts():
    stored = {"share.delivery.count.limit": "1000", "share.partition.max.window": "locks"}

    listed = {value.name: value for value in GroupConfig.effective(stored, KAFKA).values(stored)}

    assert set(listed) == set(GROUP_CONFIGS)
    assert listed["share.delivery.count.limit"].value == "10"
    assert not listed["share.delivery.count.limit"].is_default
    assert listed["share.partition.max.window"].value == "locks"
    assert listed["share.retention.ms"].value == "-1"
    assert listed["share.renew.acknowledge.enable"].value == "true"
    assert listed["share.renew.acknowledge.enable"].is_default


def test_a_group_has_every_setting_of_kafka_4_4_with_its_default():
    values = {value.name: value.value for value in GroupConfig.parse({}, KAFKA).values({})}

    kafka = {
        "share.session.timeout.ms": "45000",
        "share.heartbeat.interval.ms": "5000",
        "share.record.lock.duration.ms": "30000",
        "share.auto.offset.reset": "latest",
        "share.isolation.level": "read_uncommitted",
        "share.delivery.count.limit": "5",
        "share.partition.max.record.locks": "2000",
        "share.renew.acknowledge.enable": "true",
        "share.assignment.interval.ms": "1000",
        "errors.deadletterqueue.topic.name": "",
        "errors.deadletterqueue.copy.record.enable": "false",
    }
    own = {
        "share.partition.max.window": "200000",
        "share.retention.ms": "-1",
        "share.dead.letter.on": "all",
        "share.paused": "false",
        "share.max.in.flight": "0",
        "share.max.rate": "0",
        "share.breaker.failure.percent": "0",
        "share.breaker.window.size": "20",
        "share.breaker.open.ms": "30000",
        "share.breaker.open.max.ms": "300000",
        "share.delivery.priority": "redeliveries",
        "share.key.order": "",
        "share.key.after.dead.letter": "continue",
    }
    assert values == kafka | own


@pytest.mark.parametrize("name", sorted(GROUP_CONFIGS))
def test_a_mistyped_setting_names_the_nearest(name):
    with pytest.raises(InvalidConfig, match=name.replace(".", r"\.")):
        GroupConfig.parse({name[:-1]: "1"}, EMBEDDED)


@pytest.mark.parametrize("order", ["", "key", "header:customer"])
def test_records_are_ordered_by_key_or_by_a_header_or_not_at_all(order):
    assert GroupConfig.parse({"share.key.order": order}, EMBEDDED).key_order == order


@pytest.mark.parametrize("order", ["value", "header", "header:", "header: customer", "keys"])
def test_another_order_is_refused_with_those_that_there_are(order):
    with pytest.raises(InvalidConfig, match=r"share\.key\.order is .*; allowed: key or header:<name> or nothing"):
        GroupConfig.parse({"share.key.order": order}, EMBEDDED)


def test_keys_are_parked_only_where_there_are_some():
    with pytest.raises(
        InvalidConfig, match=r"share\.key\.after\.dead\.letter is park and share\.key\.order is not set"
    ):
        GroupConfig.parse({"share.key.after.dead.letter": "park"}, EMBEDDED)


def test_a_running_server_takes_new_values_that_are_checked_with_the_others():
    changed = EMBEDDED.changed({"group.share.delivery.count.limit": "7"}, table=EMBEDDED_CONFIGS)

    assert changed.values() != EMBEDDED.values()
    assert EMBEDDED.changed({}, table=EMBEDDED_CONFIGS) == EMBEDDED
    [found] = [one for one in changed.values() if one.name == "group.share.delivery.count.limit"]
    assert (found.value, found.is_default) == ("7", False)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"group.share.delivery.count.limits": "7"}, "group.share.delivery.count.limit"),
        ({"group.share.session.timeout.ms": "1"}, "group.share.session.timeout.ms"),
    ],
)
def test_a_running_server_refuses_what_it_would_not_start_with(values, says):
    with pytest.raises(InvalidConfig, match=says):
        EMBEDDED.changed(values, table=EMBEDDED_CONFIGS)


LETTERS = {"errors.deadletterqueue.topic.name": "dlq.t"}


def test_who_last_changed_the_dead_letters_of_a_group_is_answerable_for_them():
    known = with_namer(LETTERS, LETTERS, None, ("User:ann", "10.0.0.1"))[DEAD_LETTER_BY]

    assert GroupConfig.effective({**LETTERS, DEAD_LETTER_BY: known}, KAFKA).dead_letter_by == ("User:ann", "10.0.0.1")
    assert with_namer(LETTERS, {"share.auto.offset.reset"}, known, ("User:bob", "h"))[DEAD_LETTER_BY] == known


def test_nobody_is_answerable_where_the_server_itself_changed_them_or_there_are_none():
    assert with_namer(LETTERS, LETTERS, "h User:ann", None) == LETTERS
    assert with_namer({}, LETTERS, "h User:ann", ("User:ann", "h")) == {}


@pytest.mark.parametrize("name", sorted(WITHOUT_EFFECT))
def test_a_setting_of_kafkas_that_would_change_nothing_is_refused_with_the_reason(name):
    for parse in (ServerConfig.parse, lambda values: GroupConfig.parse(values, EMBEDDED)):
        with pytest.raises(InvalidConfig, match=rf"{name} has no effect here: .*; leave it out"):
            parse({name: "true"})
