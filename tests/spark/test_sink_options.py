"""The sink's options: what is taken, what is refused and how."""

import pytest

from flowshare.agents.handler.errors import OptionError
from flowshare.spark.sink.options import SinkOptions

BROKER = "kafka://localhost:9092"


def parse(**given):
    return SinkOptions.parse({"broker": BROKER, **given})


def test_only_the_broker_is_needed():
    options = parse()

    assert options == SinkOptions(broker=BROKER)
    assert not options.exactly_once


def test_all_options_are_read():
    options = parse(
        topic="orders",
        delivery="EXACTLY_ONCE",
        compression="zstd",
        create_topics="false",
        batch_size="100000",
        batch_header="true",
        delivery_timeout="2.5",
        transaction_timeout="60",
        batches_topic="",
    )

    assert options == SinkOptions(
        broker=BROKER,
        topic="orders",
        delivery="exactly_once",
        compression="zstd",
        create_topics=False,
        batch_size=100_000,
        batch_header=True,
        delivery_timeout=2.5,
        transaction_timeout=60.0,
    )
    assert options.ledger_topic == "orders"


def test_names_are_taken_in_any_case():
    assert SinkOptions.parse({"Broker": BROKER, "ToPic": "orders"}).topic == "orders"


def test_what_spark_adds_by_itself_is_passed_over():
    assert parse(checkpointlocation="/tmp/x", path="/y", queryname="z") == parse()


def test_without_a_broker_it_says_what_is_missing():
    with pytest.raises(OptionError, match=r'needs .option\("broker"'):
        SinkOptions.parse({"topic": "orders"})


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("tpoic", "x", "has no option 'tpoic'. Did you mean 'topic'?"),
        ("linger", "5", "has no option 'linger'"),
        ("delivery", "sometimes", "delivery takes at_least_once or exactly_once, not 'sometimes'"),
        ("compression", "brotli", "compression takes none, gzip, snappy, lz4 or zstd, not 'brotli'"),
        ("create_topics", "maybe", "create_topics takes true or false, not 'maybe'"),
        ("batch_size", "many", "batch_size takes a whole number from 1024 on, not 'many'"),
        ("delivery_timeout", "0", "delivery_timeout takes a number from 1 on, not '0'"),
        ("delivery_timeout", "inf", "delivery_timeout takes a number from 1 on, not 'inf'"),
        ("broker", "memory://", "memory:// is one process's own"),
        ("broker", "localhost:9092", "kafka://host:port"),
    ],
)
def test_what_cannot_be_used_is_refused_with_what_can(name, text, message):
    with pytest.raises(OptionError) as refused:
        parse(**{name: text})

    assert message in str(refused.value)


def test_a_password_is_not_shown():
    assert "secret" not in repr(SinkOptions.parse({"broker": "kafka://me:secret@localhost:9092"}))
