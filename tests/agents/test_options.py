"""Options, retry policies and rate limits: what is taken, what is refused and with which words."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import flowshare as fs
from flowshare.agents.app.summary import line
from flowshare.agents.feed.prefetch import Prefetch
from flowshare.agents.feed.setup import group_settings
from flowshare.agents.handler.errors import OptionError, UsageError
from flowshare.agents.handler.options import AgentOptions
from flowshare.agents.handler.rate_limit import TokenBucket, group_rate, parse_rate


def test_the_defaults_are_those_of_the_architecture():
    options = AgentOptions.parse("a", {})

    assert options.concurrency == 16
    assert options.retry.max_attempts == 5
    assert options.retry.on == (Exception,)
    assert options.timeout is None
    assert options.dead_letter is True
    assert options.drain_timeout == 25
    assert options.auto_offset_reset == "earliest"
    assert options.delivery_count_limit > 5
    app = fs.App("shop")
    agent = app.share_agent("in")(_handler)
    assert (agent.group, agent.dead_letter_topic) == ("shop._handler", "shop._handler.dlq")


def test_an_agents_sink_is_a_topic_a_name_or_produce_as_a_pipelines_is():
    out = fs.App("shop").topic("out")

    assert AgentOptions.parse("a", {"sink": "out"}).sink == ("out",)
    assert AgentOptions.parse("a", {"sink": [out, fs.Produce("more")]}).sink == (out, "more")


def test_an_unknown_option_is_refused_at_import_with_the_nearest_name():
    with pytest.raises(
        TypeError, match=r"share agent _handler: has no option 'concurency'. Did you mean 'concurrency'"
    ):
        fs.App("t").share_agent("in", concurency=3)(_handler)


def test_an_unknown_option_of_the_app_is_refused_with_the_nearest_name():
    with pytest.raises(TypeError, match=r"App\('t'\) has no option 'timezon'. Did you mean 'timezone'"):
        fs.App("t", timezon="UTC")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"concurrency": 0}, "concurrency takes a number from 1"),
        ({"concurrency": True}, "concurrency takes a number"),
        ({"timeout": 0}, "timeout must be more than 0"),
        ({"timeout": "5"}, "timeout takes seconds"),
        ({"retry": 3}, "retry takes fs.Retry"),
        ({"start": "newest"}, "start takes 'earliest'"),
        ({"dead_letter": False}, "dead_letter=None"),
        ({"dead_letter": 3}, "dead_letter takes True"),
        ({"reject": "ValueError"}, "reject takes exception classes"),
        ({"batch": 5}, "batch takes fs.Batch"),
        ({"sink": 5}, "sink takes a topic, its name or a list of them, not 5"),
        ({"sink": [fs.Folder("/data")]}, "Folder.* is a sink of pipelines"),
        (
            {"sink": fs.Produce("out", delivery="exactly_once")},
            "options of fs.Produce.* are for pipelines",
        ),
        ({"max_in_flight": 0}, "max_in_flight takes a number from 1"),
        ({"max_in_flight": True}, "max_in_flight takes a number from 1"),
        ({"max_rate": "fast"}, "max_rate takes records a second for the whole group"),
        ({"max_rate": 0}, "max_rate takes records a second"),
        ({"max_rate": True}, "max_rate takes records a second"),
        ({"max_rate": 1e9}, "to 1,000,000 a second, not"),
        ({"breaker": 0.5}, r"breaker takes fs.Breaker\(failures"),
        ({"priority": "old"}, "priority takes 'redeliveries', 'new' or 'mixed'"),
        ({"priority": ["new"]}, "priority takes 'redeliveries', 'new' or 'mixed'"),
        ({"order": "customer"}, r"here order=fs.Header\('customer'\)"),
        ({"order": "header:customer"}, r"here order=fs.Header\('customer'\)"),
        ({"order": "Key"}, r"here order='key'"),
        ({"order": True}, r"order takes 'key', fs.Header\(name\), or None, not True"),
        ({"rate_limit": "fast"}, "rate_limit takes records a second"),
        ({"renew": 1}, "renew takes True or False"),
        ({"group": ""}, "group takes a name"),
        ({"drain_timeout": None}, "drain_timeout takes seconds"),
        ({"dead_letter": "in"}, "one that it reads"),
    ],
)
def test_a_bad_value_is_refused_with_what_to_do(options: dict[str, Any], said: str):
    with pytest.raises(OptionError, match=said):
        fs.App("t").share_agent("in", **options)(_handler)


def test_a_lock_shorter_than_the_timeout_with_renewal_off_is_refused():
    with pytest.raises(OptionError, match="renew=False needs a timeout shorter than the lock of 30 s"):
        fs.App("t").share_agent("in", renew=False, timeout=60)(_handler)

    assert AgentOptions.parse("a", {"renew": False, "timeout": 60, "lock_duration": 90}).lock_duration == 90


@pytest.mark.parametrize(
    ("start", "reset"),
    [
        ("latest", "latest"),
        (90, "by_duration:PT90S"),
        (0.25, "by_duration:PT0.250S"),
        (timedelta(minutes=1), "by_duration:PT60S"),
        (timedelta(days=30), "by_duration:PT2592000S"),
    ],
)
def test_start_becomes_the_groups_reset(start: Any, reset: str):
    assert AgentOptions.parse("a", {"start": start}).auto_offset_reset == reset


def test_the_agents_of_one_group_and_topic_are_refused():
    app = fs.App("t")
    app.share_agent("in", group="g", name="one")(_handler)

    with pytest.raises(UsageError, match="Give them different groups"):
        app.share_agent("in", group="g", name="two")(_handler)


def test_a_second_agent_of_the_same_name_is_refused():
    app = fs.App("t")
    app.share_agent("in")(_handler)

    with pytest.raises(UsageError, match="has an agent '_handler' already"):
        app.share_agent("in")(_handler)


@pytest.mark.parametrize("given", ["3", 0, -1, 2.0, True])
def test_what_is_no_number_of_partitions_is_refused_at_import_with_the_topics_name(given: Any):
    with pytest.raises(OptionError, match=rf"topic 'orders': partitions is a whole number from 1 on.* not {given!r}"):
        fs.App("t").topic("orders", partitions=given)


def test_a_topic_may_have_a_number_of_partitions_or_none():
    assert [fs.App("t").topic("orders", partitions=given).partitions for given in (None, 1, 12)] == [None, 1, 12]


def test_the_decorator_without_a_topic_is_refused():
    with pytest.raises(UsageError, match="the decorator needs a topic"):
        fs.App("t").share_agent(_handler)
    with pytest.raises(UsageError, match="no topic"):
        fs.App("t").share_agent()(_handler)


# --- retry ------------------------------------------------------------------------------------------------------


def test_an_exponential_delay_doubles_up_to_its_cap():
    retry = fs.Retry(9, delay=fs.exponential(1, cap=10, jitter=False))

    assert [retry.delay_s(attempt, random.Random(1)) for attempt in (1, 2, 3, 4, 5, 99)] == [1, 2, 4, 8, 10, 10]


@given(st.integers(1, 200), st.integers())
def test_jitter_takes_off_up_to_one_half(attempt: int, seed: int):
    delay_s = fs.Retry(9, delay=fs.exponential(1, cap=60)).delay_s(attempt, random.Random(seed))
    whole_s = min(60.0, 2.0 ** (attempt - 1))

    assert whole_s / 2 <= delay_s <= whole_s


def test_jitter_comes_from_the_random_source_that_is_passed():
    retry = fs.Retry()

    assert retry.delay_s(1, random.Random(5)) == retry.delay_s(1, random.Random(5))


def test_a_delay_may_be_seconds_a_timedelta_or_a_function():
    source = random.Random(1)

    assert fs.Retry(delay=3).delay_s(4, source) == 3
    assert fs.Retry(delay=timedelta(seconds=2)).delay_s(1, source) == 2
    assert fs.Retry(delay=lambda attempt: attempt * 7).delay_s(2, source) == 14
    assert fs.Retry(delay=lambda attempt: -1).delay_s(2, source) == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: fs.Retry(0),
        lambda: fs.Retry(delay="1s"),
        lambda: fs.Retry(on="ValueError"),
        lambda: fs.exponential(-1),
        lambda: fs.exponential(1, factor=0.5),
        lambda: fs.Batch(0),
        lambda: fs.Batch(10, within=-1),
        lambda: fs.Release(delay="soon"),
    ],
)
def test_a_bad_policy_is_refused(make: Any):
    with pytest.raises(OptionError):
        make()


# --- rate limit and prefetch ------------------------------------------------------------------------------------


def test_rates_are_numbers_or_texts():
    assert parse_rate(50).per_s == 50
    assert parse_rate("120/m").per_s == 2
    assert parse_rate("36/h").per_s == pytest.approx(0.01)
    assert parse_rate(None) is None


def test_a_bucket_gives_no_more_than_its_rate():
    bucket, taken = TokenBucket(parse_rate("10/s"), now=0.0), 0
    for tenth in range(101):
        tokens = bucket.available(tenth / 10)
        bucket.take(tokens)
        taken += tokens

    assert 100 <= taken <= 102


def test_slow_handlers_keep_one_record_ahead_and_fast_ones_thousands():
    slow, fast = Prefetch(1), Prefetch(1)
    slow.begun(0.0)
    fast.begun(0.0)
    for n in range(1, 100):
        slow.finished(1, n * 0.05)
        fast.finished(1000, n * 0.01)

    assert slow.target == 1 + 1
    assert fast.target == 1 + 5000


def test_a_fast_handler_that_is_starved_is_still_measured_as_fast():
    prefetch, now = Prefetch(16), 0.0
    for _ in range(20):
        now += 1.0  # nothing to do
        prefetch.begun(now)
        now += 0.001
        prefetch.finished(prefetch.target, now)

    assert prefetch.target > 5000


def test_a_stuck_handler_gives_its_buffer_back_and_holds_no_more():
    prefetch = Prefetch(1)
    prefetch.begun(0.0)
    prefetch.finished(1, 0.05)

    assert not prefetch.still_running(1, 0.5, full=True)
    assert prefetch.still_running(1, 1.2, full=True)
    assert prefetch.target == 1
    prefetch.finished(1, 20.0)
    assert prefetch.target == 2


def test_beside_a_handler_that_blocks_its_loop_nothing_is_fetched_for_the_others():
    """They begin nothing, and what they were given would wait here while other members are idle."""
    prefetch = Prefetch(16)
    prefetch.finished(1000, 0.1)

    assert prefetch.still_running(1, 1.2, full=True)
    blocked, nobody_runs = prefetch.target, Prefetch(16)
    nobody_runs.still_running(0, 1.2, full=True)

    assert (blocked, nobody_runs.target) == (1, 1), "or no handler's end would ever be heard of"
    prefetch.finished(1, 9.0)
    assert prefetch.target > 16


def test_handlers_that_are_slow_but_not_all_busy_are_not_stuck():
    prefetch = Prefetch(4)
    prefetch.begun(0.0)

    assert not prefetch.still_running(3, 5.0, full=False)


async def _handler(value: bytes) -> None:
    return None


@pytest.mark.parametrize(
    ("order", "setting", "summary"),
    [
        (None, None, ""),
        ("key", "key", "in order of key"),
        (fs.Header("customer"), "header:customer", "in order of header:customer"),
    ],
)
def test_an_order_is_a_setting_of_the_group(order: Any, setting: str | None, summary: str):
    app = fs.App("t")
    agent = app.share_agent("in", order=order)(_handler)

    assert agent.options.key_order == setting
    assert group_settings(agent).get("share.key.order") == setting
    assert line(agent).endswith(summary)


@pytest.mark.parametrize("name", ["", " customer", None, b"customer"])
def test_a_header_without_a_name_is_refused(name: Any):
    with pytest.raises(OptionError, match="takes the name of a header"):
        fs.Header(name)


def test_records_with_outputs_come_one_of_a_key_at_a_time():
    assert AgentOptions.parse("a", {"order": "key"}).chain == 16
    assert AgentOptions.parse("a", {"order": "key", "sink": ["out"]}).chain == 1


def test_agents_of_one_group_that_want_different_orders_are_refused():
    app = fs.App("t")
    app.share_agent("in", name="one", group="g", order="key")(_handler)

    with pytest.raises(UsageError, match=r"share\.key\.order \(key and header:customer\)"):
        app.share_agent("other", name="two", group="g", order=fs.Header("customer"))(_handler)


@pytest.mark.parametrize(
    ("given", "text"),
    [(100, "100"), (100 / 3, "33.333333"), (2.0, "2"), (0.5, "0.5"), (1 / 86_400, "0.000012"), (" 10 / m ", "10 / m")],
)
def test_a_rate_of_a_group_may_be_any_number_of_records_a_second(given: Any, text: str) -> None:
    assert group_rate(given) == text


@pytest.mark.parametrize(
    "given", [-1, -0.5, float("nan"), float("inf"), 1e-9, "-5/s", "1e3", "10/d", b"10/s", [100], ""]
)
def test_what_is_no_rate_of_a_group_is_refused_in_one_sentence(given: Any) -> None:
    with pytest.raises(OptionError, match=r"^max_rate takes records a second .*; leave it out to set none$"):
        group_rate(given)
