"""Handlers' signatures: how they are called, and what is refused at import."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

import flowshare as fs
from flowshare.agents.handler.errors import AnnotationError, Unencodable, UsageError
from tests.agents.agents_kit import run_agent


@dataclass
class Order:
    id: int


def declare(fun: Any, topic: Any = "in", **options: Any) -> Any:
    return fs.App("t").share_agent(topic, name="agent", **options)(fun)


def test_a_handler_takes_the_value_alone():
    got: list[Any] = []

    async def handler(value: dict) -> None:
        got.append(value)

    run_agent(handler, [{"a": 1}])

    assert got == [{"a": 1}]


@pytest.mark.parametrize("form", ["positional", "keyword", "unannotated", "renamed"])
def test_a_handler_takes_the_delivery_in_any_of_the_usual_ways(form: str):
    got: list[fs.Delivery] = []

    async def positional(value: bytes, delivery: fs.Delivery) -> None:
        got.append(delivery)

    async def keyword(value: bytes, *, delivery: fs.Delivery) -> None:
        got.append(delivery)

    async def unannotated(value: bytes, delivery):
        got.append(delivery)

    async def renamed(value: bytes, ctx: fs.Delivery, limit: int = 5) -> None:
        got.append(ctx)

    run_agent(locals()[form], [1])

    [delivery] = got
    assert (delivery.topic, delivery.partition, delivery.offset, delivery.attempt) == ("in", 0, 0, 1)
    assert delivery.id.endswith(":0:0")
    assert delivery.key is None
    assert delivery.headers == ()
    assert delivery.timestamp == 1_700_000_000
    assert delivery.agent == "agent"


def test_a_handler_that_copies_its_records_headers_copies_no_mark_of_a_replay():
    got: list[Any] = []
    app = fs.App("t")

    @app.share_agent("in")
    async def agent(value: bytes, delivery: fs.Delivery) -> None:
        got.append(delivery.headers)

    async def main() -> None:
        async with fs.testing.harness(app) as bus:
            await bus.send("in", b"1", headers={"trace": b"7", "flowshare.dlq.replay": b"1 2 3"})
            await bus.run_until_idle()

    fs.testing.run(main())
    assert got == [(("trace", b"7"),)]


def test_types_defined_beside_the_handler_inside_a_function_are_found():
    @dataclass
    class Local:
        n: int

    got: list[Local] = []
    app = fs.App("t")

    @app.share_agent("in")
    async def agent(value: Local) -> None:
        got.append(value)

    decode = app.share_agents["agent"].decoder("in")
    assert decode is not None
    assert decode(b'{"n":1}') == Local(1)


def test_the_topics_type_is_used_when_the_handler_has_no_annotation():
    app = fs.App("t")

    async def handler(value) -> None: ...

    agent = app.share_agent(app.topic("in", value_type=Order))(handler)

    assert agent.decoder("in")(b'{"id":1}') == Order(1)


def test_an_annotation_that_disagrees_with_the_topic_is_an_import_error():
    app = fs.App("t")

    async def handler(value: str) -> None: ...

    with pytest.raises(AnnotationError, match="takes str, but topic 'in' has value_type=Order"):
        app.share_agent(app.topic("in", value_type=Order))(handler)


@pytest.mark.parametrize("annotation", [Order, Order | None, dict, Any])
def test_an_annotation_that_agrees_with_the_topic_is_taken(annotation: Any):
    app = fs.App("t")

    async def handler(value) -> None: ...

    handler.__annotations__["value"] = annotation

    assert app.share_agent(app.topic("in", value_type=Order))(handler).topics == ("in",)


def test_a_handler_that_yields_is_refused():
    async def handler(stream: Any) -> AsyncIterator[int]:
        yield 1

    with pytest.raises(AnnotationError, match="the handler yields"):
        declare(handler)


def test_a_handler_without_parameters_is_refused():
    async def handler() -> None: ...

    with pytest.raises(AnnotationError, match="takes no value"):
        declare(handler)


def test_a_handler_with_a_parameter_that_nobody_fills_is_refused():
    async def handler(value: bytes, delivery: fs.Delivery, database: Any) -> None: ...

    with pytest.raises(AnnotationError, match="no value for the parameter 'database'"):
        declare(handler)


def test_the_delivery_in_first_place_is_refused():
    async def handler(delivery: fs.Delivery) -> None: ...

    with pytest.raises(AnnotationError, match="the first parameter is the value"):
        declare(handler)


def test_records_without_batch_are_refused_and_the_other_way_round():
    async def records(rows: fs.Records[dict]) -> None: ...

    async def single(row: dict) -> None: ...

    with pytest.raises(AnnotationError, match="needs batch="):
        declare(records)
    with pytest.raises(AnnotationError, match=r"takes fs.Records"):
        declare(single, batch=fs.Batch(5))


def test_an_annotation_that_cannot_be_evaluated_says_so():
    async def handler(value: Nowhere) -> None: ...  # noqa: F821

    with pytest.raises(AnnotationError, match="cannot be evaluated"):
        declare(handler)


def test_something_that_is_no_topic_is_refused():
    async def handler(value: bytes) -> None: ...

    with pytest.raises(UsageError, match="is not a topic"):
        declare(handler, 5)


def test_an_agent_can_be_called_as_the_function_it_is():
    def handler(value: int) -> int:
        return value + 1

    assert declare(handler)(1) == 2


@pytest.mark.flowshare
async def test_several_agents_read_one_topic_and_one_agent_several_topics():
    app = fs.App("t")
    got: dict[str, list[Any]] = {"one": [], "two": []}

    @app.share_agent("in", "other")
    async def one(value: int, delivery: fs.Delivery) -> None:
        got["one"].append((delivery.topic, value))

    @app.share_agent(["in"])
    async def two(value: int) -> None:
        got["two"].append(value)

    async with fs.testing.harness(app) as bus:
        await bus.send("in", 1)
        await bus.send("other", 2)
        await bus.run_until_idle()

    assert sorted(got["one"]) == [("in", 1), ("other", 2)]
    assert got["two"] == [1]


def test_describe_names_every_setting():
    async def handler(value: dict) -> None: ...

    described = declare(handler, batch=None, rate_limit="10/s").describe()

    assert described["agent"] == "agent"
    assert described["value"] == "dict"
    assert described["rate_limit"] == 10


async def untyped(value):
    """As one writes it first."""


async def untyped_stream(stream):
    """As a Faust agent is written."""
    async for _ in stream:
        pass


@pytest.mark.parametrize("handler", [untyped, untyped_stream])
def test_a_handler_without_annotation_is_refused_with_what_to_write(handler: Any):
    with pytest.raises(
        AnnotationError, match=r"agent agent: .*Annotate its first parameter, `def agent\(value: dict\)`"
    ):
        declare(handler)


def test_a_batch_handler_without_annotation_is_told_to_take_records():
    with pytest.raises(AnnotationError, match=r"records: fs.Records\[dict\]"):
        declare(untyped, batch=fs.Batch(5))


def test_the_topics_type_stands_for_the_annotation():
    app = fs.App("t")

    assert app.share_agent(app.topic("in", value_type=dict))(untyped).topics == ("in",)


@pytest.mark.parametrize("what", ["pause", "resume"])
def test_pausing_an_agent_that_does_not_run_says_where_it_can_be_done(what: str):
    async def handler(value: dict) -> None: ...

    agent = declare(handler)

    assert not agent.paused
    with pytest.raises(UsageError, match=f"does not run in this process, so there is nothing to {what}"):
        getattr(agent, what)()


@pytest.mark.flowshare
async def test_a_paused_agent_handles_nothing_until_it_is_resumed():
    got: list[int] = []
    app = fs.App("t")

    @app.share_agent("in")
    async def bill(value: int) -> None:
        got.append(value)

    async with fs.testing.harness(app) as bus:
        bill.pause()
        assert bill.paused
        await bus.send("in", 1)
        await bus.advance(60)
        assert got == []
        bill.resume()
        await bus.run_until_idle()
        assert got == [1]


@pytest.mark.parametrize("given", [lambda delivery: None, 3])
def test_a_middleware_that_cannot_be_called_as_one_is_refused(given: Any):
    async def handler(value: dict) -> None: ...

    with pytest.raises(UsageError, match=r"must take two arguments|cannot be called"):
        run_agent(handler, [{}], middleware=[given])


def test_a_topics_own_settings_hold_for_sinks_and_dead_letters_too():
    app = fs.App("t")
    letters = app.topic("letters", partitions=3, config={"max.message.bytes": 5000}, retention=60)

    @app.share_agent("in", dead_letter=letters)
    async def bill(value: int) -> None: ...

    async def main() -> dict[str, str | None]:
        async with fs.testing.harness(app) as bus:
            assert (await bus.host.admin.describe_topic("letters")).partitions == 3
            return {one.name: one.value for one in await bus.host.admin.topic_configs("letters")}

    configs = fs.testing.run(main())

    assert (configs["max.message.bytes"], configs["retention.ms"]) == ("5000", "60000")


def test_a_topic_is_compacted_as_it_is_declared():
    app = fs.App("t")
    declared = {"compact": {"compacting": True}, "compact,delete": {"compacting": True, "deleting": True}}
    for policy, flags in declared.items():

        @app.share_agent(app.topic(policy.replace(",", "-"), value_type=dict, **flags), name=policy.replace(",", "-"))
        async def bill(value: dict) -> None: ...

    async def main() -> list[str | None]:
        async with fs.testing.harness(app) as bus:
            topics = [await bus.host.admin.topic_configs(policy.replace(",", "-")) for policy in declared]
            return [one.value for configs in topics for one in configs if one.name == "cleanup.policy"]

    assert fs.testing.run(main()) == list(declared)


def test_a_plain_middleware_around_an_async_handler_is_refused_with_what_to_write():
    def plain(delivery: Any, call_next: Any) -> Any:
        return call_next()

    async def handler(value: dict) -> None:
        return None

    with pytest.raises(UsageError, match=r"plain middleware 'plain' cannot stand around an `async def` handler.*await"):
        run_agent(handler, [{}], middleware=[plain])


def test_middleware_that_gives_something_to_await_stands_around_an_async_handler():
    ran: list[str] = []

    class Timed:
        async def __call__(self, delivery: Any, call_next: Any) -> Any:
            ran.append("object")
            return await call_next()

    async def named(delivery: Any, call_next: Any) -> Any:
        ran.append("decorated")
        return await call_next()

    @functools.wraps(named)
    def decorated(delivery: Any, call_next: Any) -> Any:
        return named(delivery, call_next)

    async def handler(value: dict) -> None:
        return None

    seen = run_agent(handler, [{}], middleware=[Timed(), decorated, functools.partial(named)])

    assert seen.outcomes == ["accepted"]
    assert ran == ["object", "decorated", "decorated"]


@pytest.mark.parametrize("name", ["__flowshare_state.shop", "__consumer_offsets", "__mine"])
def test_a_topic_that_is_not_the_applications_is_not_written_to(name):
    def handler(value: str) -> str:
        return value

    for options in ({"sink": [name]}, {"dead_letter": name}):
        with pytest.raises(UsageError, match="are Kafka's own"):
            declare(handler, **options)
    with pytest.raises(Unencodable, match="stops all that is kept there"):
        fs.Send(name, "value").encode()
