"""Tests that values arrive as they were sent: texts in unions, enums and literals, Python types that JSON lacks."""

from __future__ import annotations

import collections
import datetime
import enum
import functools
import inspect
import pathlib
import random
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any, Counter, Literal, NamedTuple, NewType, NotRequired, TypedDict  # noqa: UP035 - as users write them

import pytest
from pydantic import Field

import flowshare as fs
from flowshare.agents.handler import durations
from flowshare.agents.handler.agent import Signature
from flowshare.agents.handler.values import decoder
from flowshare.errors import AnnotationError, OptionError, Unencodable
from tests.agents.agents_kit import run_agent, run_app


class Colour(enum.StrEnum):
    RED = "red"
    FIVE = "5"


@dataclass
class Trip:
    took: datetime.timedelta
    to: pathlib.Path
    note: bytes = b""
    at: datetime.time = datetime.time(1, 2)
    more: list[Trip] = field(default_factory=list)


@dataclass
class Invoice:
    number: int
    total: float = 0


@dataclass
class Odd:
    inner: list[complex]


class Point(NamedTuple):
    x: int


OrderId = NewType("OrderId", str)
DAY = datetime.date(2026, 1, 2)
UID = uuid.UUID(int=5)
TRIP = Trip(datetime.timedelta(hours=3, seconds=1.5), pathlib.Path("/a/b"), b"x")


@pytest.mark.parametrize(
    ("typ", "values"),
    [
        (int | str, ["5", 5, "abc", '{"a"', ""]),
        (str | dict, ["abc", {"a": 1}, "5", '{"a": 1}']),
        (str | None, ["5", None]),
        (Colour, list(Colour)),
        (Literal["a", "5"], ["a", "5"]),
        (Literal["a", 1], ["a", 1]),
        (Counter[str], [collections.Counter("aab")]),
        (collections.Counter, [collections.Counter("aab")]),
        (collections.OrderedDict[str, int], [collections.OrderedDict(a=1)]),
        (collections.defaultdict[str, list[int]], [collections.defaultdict(list, a=[1])]),
        (collections.deque[int], [collections.deque([1, 2])]),
        (Trip, [TRIP, Trip(datetime.timedelta(days=-1, seconds=5), pathlib.Path(), more=[TRIP])]),
        (datetime.timedelta, [datetime.timedelta(days=400, microseconds=7), datetime.timedelta(0)]),
        (pathlib.Path, [pathlib.Path("a")]),
        (bytes | dict, [b"abc", b"5", {"a": 1}]),
        (str | datetime.date, [DAY, "today"]),
        (str | Colour | int, [Colour.RED, "blue", 5]),
        (Invoice | str, [Invoice(1), "abc", '{"number": 1}']),
        (str | uuid.UUID, [UID, "abc"]),
        (Any, ["abc", "5", 5, None]),
        (Point, [Point(1)]),
        (OrderId, ["5"]),
        (list[OrderId], [["5"]]),
        (Annotated[str, "of no library"], ["5"]),
        (Annotated[str, Field(min_length=1)], ["5"]),
        (Annotated[str, "x"] | None, ["5", None]),
        (list[int | str], [[1, "1"]]),
    ],
)
def test_a_value_arrives_at_a_handler_of_its_topics_type_as_it_was_sent(typ: Any, values: list[Any]):
    got: list[Any] = []
    app = fs.App("t")
    topic = app.topic("in", value_type=typ)
    app.topic("other", key_type=typ)

    async def handler(value) -> None:  # type: ignore[no-untyped-def]
        got.append(value)

    app.share_agent(topic, name="agent")(handler)

    async def main() -> None:
        async with fs.testing.harness(app) as bus:
            for value in values:
                await bus.send(topic, value)
            await bus.run_until_idle()
            assert [one.value for one in bus.records(topic)] == values

    values = [value for value in values if value is not None or typ is not Any]
    fs.testing.run(main())
    assert got == values
    assert [type(one) for one in got] == [type(one) for one in values]


@pytest.mark.parametrize(
    ("typ", "given", "why"),
    [
        (str, 5, "it would arrive as '5'"),
        (str, DAY, "it would arrive as"),
        (str | None, {"a": 1}, "it would arrive as"),
        (list[int], {1}, r"it would arrive as \[1\]"),
        (list, frozenset([1]), r"it would arrive as \[1\]"),
        (tuple[int, ...], {1}, "it would arrive as"),
        (dict[str, list[int]], {"a": {1}}, "it would arrive as"),
        (bytes, 5, "it is neither bytes nor text"),
        (bytes | None, {"a": 1}, "it would arrive as"),
        (int, "5", "expected int, got str"),
        (int | str, DAY, "it would arrive as '2026-01-02'"),
        (str | uuid.UUID, str(UID), "it would arrive as UUID"),
        (Literal[1], True, "expected one of"),
        (Literal["a"], "b", "expected one of"),
        (Invoice, '{"number": 1}', "expected an object for Invoice, got str"),
        (Trip, Trip(datetime.timedelta(), pathlib.Path(), b"\xff"), "UTF-8 text, and these are none"),
    ],
)
def test_what_would_arrive_as_something_else_is_refused_where_it_is_sent(typ: Any, given: Any, why: str):
    topic = fs.App("t").topic("out", value_type=typ, key_type=typ)

    with pytest.raises(Unencodable, match=why):
        topic.encode("value", given)
    with pytest.raises(Unencodable, match=why):
        topic.encode("key", given)


@pytest.mark.parametrize(
    ("typ", "given"),
    [
        (list[int], (1, 2)),
        (set[int], [1]),
        (Invoice, {"number": 1}),
        (Invoice, b'{"number": 1}'),
        (float, 5),
        (dict, Invoice(1)),
        (Decimal, 1.5),
        (uuid.UUID, str(UID)),
        (bytes, "text"),
        (str, b"text"),
        (str, Colour.RED),
        (Any, {1}),
        (dict[str, int], {1: 1}),
    ],
)
def test_what_says_the_same_in_another_way_is_still_sent(typ: Any, given: Any):
    assert fs.App("t").topic("out", value_type=typ).encode("value", given) is not None


class Texts(TypedDict):
    text: str


class Loose(TypedDict):
    id: uuid.UUID
    detail: NotRequired[Any]
    more: NotRequired[dict]
    items: NotRequired[list[Any]]


@pytest.mark.parametrize(
    ("typ", "given"),
    [
        (dict[str, Any], {"a": UID, "b": [DAY], "c": {"d": {1}}}),
        (list[Any], [UID, {"a": DAY}, {1}]),
        (dict[str, object], {"a": UID}),
        (Mapping[str, Any], {"a": UID}),
        (Sequence[Any], [UID]),
        (dict[str, dict], {"a": {"b": UID}}),
        (dict[str, list], {"a": [UID]}),
        (tuple[int, Any], (1, UID)),
        (list[dict[str, Any]] | None, [{"a": DAY}]),
        (dict[str, Any] | list[str], {"a": DAY}),
        (dict | list, [DAY]),
        (Loose, {"id": UID, "detail": DAY, "more": {"a": UID}, "items": [UID]}),
        (list[Loose], [{"id": UID, "detail": {1}}]),
    ],
)
def test_of_what_the_type_says_nothing_any_kind_is_sent(typ: Any, given: Any):
    topic = fs.App("t").topic("out", value_type=typ, key_type=typ)

    assert topic.encode("value", given) is not None
    assert topic.encode("key", given) is not None


@pytest.mark.parametrize(
    ("typ", "given"),
    [
        (dict[str, list], {"a": {1}}),
        (dict[str, str], {"a": UID}),
        (tuple[int, str], (1, UID)),
        (Texts, {"text": UID}),
        (list[Texts], [{"text": UID}]),
        (dict[str, list[str]] | list[Any], {"a": [UID]}),
    ],
)
def test_of_what_the_type_says_the_kind_another_one_is_refused(typ: Any, given: Any):
    with pytest.raises(Unencodable, match="it would arrive as"):
        fs.App("t").topic("out", value_type=typ).encode("value", given)


UNHASHABLE = [
    (Annotated[int, ["of no library"]], 5),
    (list[Annotated[str, ["x"]]], ["5"]),
    (dict[str, Annotated[list[int], ["x"]]], {"a": [1]}),
    (Annotated[int, Field(gt=1), ["x"]], 5),
    (Annotated[Literal["a"], []], "a"),
]


@pytest.mark.parametrize(("typ", "value"), UNHASHABLE, ids=[str(typ) for typ, _ in UNHASHABLE])
def test_an_annotated_may_say_what_has_no_hash(typ: Any, value: Any):
    got: list[Any] = []
    app = fs.App("t")
    topic = app.topic("in", value_type=typ, key_type=typ)
    out = app.topic("out", value_type=typ)

    def handler(value, delivery: fs.Delivery):  # type: ignore[no-untyped-def]
        got.append((value, delivery.key))
        return value

    handler.__annotations__ |= {"value": typ, "return": typ}
    app.share_agent(topic, name="agent", sink=[out])(handler)

    async def main() -> list[Any]:
        async with fs.testing.harness(app) as bus:
            await bus.send(topic, value, key=value)
            await bus.run_until_idle()
            return [one.value for one in bus.records(out)]

    assert fs.testing.run(main()) == [value]
    assert got == [(value, value)]


@pytest.mark.parametrize("raw", [b"red", b'"red"'])
def test_where_all_values_are_texts_plain_text_is_read_too(raw: bytes):
    got: list[Any] = []

    async def handler(value: Colour | Literal["blue"]) -> None:
        got.append(value)

    seen = run_agent(handler, [raw, b"blue", b"5", b"green"], retry=None)

    assert got == [Colour.RED, "blue", Colour.FIVE]
    assert len(seen.dead) == 1


@pytest.mark.parametrize("typ", [Odd, list[Odd], dict[str, Odd], Odd | None, tuple[int, Odd]])
def test_a_field_that_cannot_be_read_is_refused_at_import_with_its_name_each_time(typ: Any):
    for _ in range(2):
        with pytest.raises(AnnotationError, match=r"Odd\.inner: no decoder for the class complex"):
            decoder(typ)
        with pytest.raises(
            OptionError, match=r"topic 'out': value_type=.*Odd\.inner: no decoder for the class complex"
        ):
            fs.App("t").topic("out", value_type=typ)


@pytest.mark.parametrize("text", ["P1D", "PT1H2M3S", "PT0.000001S", "-P1DT1S", "P2W", "PT0S", "P1DT2H3M4,5S"])
def test_durations_are_read_as_iso_has_them_and_written_back(text: str):
    found = durations.parse(text)

    assert durations.parse(durations.text_of(found)) == found


@pytest.mark.parametrize(
    "text", ["", "P", "PT", "P1DT", "P1Y", "P1M", "5", "PT1.S", "P1D ", "PTS", "P" + "9" * 30 + "D"]
)
def test_what_is_no_duration_is_refused(text: str):
    with pytest.raises(ValueError, match="expected a duration"):
        durations.parse(text)


def test_every_duration_is_read_as_it_was_written():
    seed = time.time_ns()
    print(f"seed {seed}")
    randoms = random.Random(seed)
    for _ in range(300):
        days, seconds, micros = randoms.randint(-9_999, 9_999), randoms.randint(0, 86_399), randoms.randint(0, 999_999)
        duration = datetime.timedelta(days, seconds * randoms.randint(0, 1), micros * randoms.randint(0, 1))
        assert durations.parse(durations.text_of(duration)) == duration


# --- what a handler says that it returns ---------------------------------------------------------------------------


class Partial(NamedTuple):
    total: float


@pytest.mark.parametrize(
    ("typ", "returns", "why"),
    [
        (Invoice, int, "int does not fit it"),
        (Invoice, Partial, "Partial has no 'number'"),
        (Invoice, str | None, "str does not fit it"),
        (Invoice, list[Invoice], "does not fit it"),
        (str, Invoice, "Invoice does not fit it"),
        (str, int | str, "int does not fit it"),
        (list[int], set[int], "does not fit it"),
        (int, Literal["a"], "does not fit it"),
        (Literal["a"], int, "int does not fit it"),
        (bytes, dict, "dict does not fit it"),
    ],
)
def test_a_handler_whose_return_type_its_sink_refuses_is_refused_at_import(typ: Any, returns: Any, why: str):
    app = fs.App("t")
    out = app.topic("out", value_type=typ)

    async def handler(value: int) -> returns: ...

    handler.__annotations__ = {"value": int, "return": returns}
    with pytest.raises(AnnotationError, match=rf"agent handler: it returns .* its sink 'out' has value_type=.*{why}"):
        app.share_agent("in", sink=[out])(handler)
    with pytest.raises(AnnotationError, match="it returns"):
        app.cooperative_agent("in", sink=[out])(handler)
    with pytest.raises(AnnotationError, match="it returns"):
        app.kmq_agent("in", sink=[out], markers="m")(handler)


@pytest.mark.parametrize(
    ("typ", "returns"),
    [
        (Invoice, Invoice | None),
        (Invoice, dict[str, Any]),
        (Invoice, fs.Send | list[fs.Send] | Invoice | fs.Reject | None),
        (Invoice, Any),
        (Invoice, bytes),
        (Invoice, None),
        (float, int),
        (str, Colour),
        (Colour, str),
        (int | str, int),
        (list[int], tuple[int, ...]),
        (Any, set[int]),
        (uuid.UUID, str),
    ],
)
def test_a_handler_that_may_return_what_its_sink_takes_is_taken(typ: Any, returns: Any):
    app = fs.App("t")

    async def handler(value: int): ...  # type: ignore[no-untyped-def]

    handler.__annotations__ = {"value": int, "return": returns}
    app.share_agent("in", sink=[app.topic("out", value_type=typ)])(handler)


# --- the delivery ----------------------------------------------------------------------------------------------------


def test_a_delivery_that_may_be_none_or_is_annotated_is_filled():
    got: list[Any] = []

    def optional(value: int, delivery: fs.Delivery | None = None) -> None:
        got.append(delivery)

    def by_text(value: int, found: fs.Delivery | None = None) -> None:
        got.append(found)

    def keyword(value: int, *, found: Annotated[fs.Delivery | None, "x"] = None) -> None:
        got.append(found)

    def behind_another(value: int, times: int = 3, found: Annotated[fs.Delivery, "x"] = None) -> None:  # type: ignore[assignment]
        got.append(found)

    for handler in (optional, by_text, keyword, behind_another):
        run_agent(handler, [1])

    assert [type(one) for one in got] == [fs.Delivery] * 4


def test_records_that_may_be_none_or_are_annotated_are_a_batchs():
    got: list[list[int]] = []

    def optional(rows: fs.Records[int] | None) -> None:
        got.append([] if rows is None else rows.values())

    def annotated(rows: Annotated[fs.Records[int], "x"]) -> None:
        got.append(rows.values())

    for handler in (optional, annotated):
        run_agent(handler, [1], batch=fs.Batch(1))
        with pytest.raises(AnnotationError, match="needs batch="):
            run_agent(handler, [1])

    assert got == [[1], [1]]


def test_what_pydantic_checks_of_an_annotated_value_is_checked():
    async def handler(value: Annotated[int, Field(gt=5)]) -> None: ...

    app = fs.App("t")
    app.share_agent(app.topic("in", value_type=int), name="agent")(handler)
    seen = run_app(app, [1, 6])

    assert sorted(seen.outcomes) == ["accepted", "dead_lettered"]


# --- handlers below decorators ----------------------------------------------------------------------------------------


class Service:
    """Argument that a decorator fills in."""


def test_a_wrapper_that_says_itself_what_it_takes_is_called_so():
    got: list[Any] = []

    def work(value: int, service: Service) -> None:
        got.append((value, type(service)))

    def alone(value: int) -> None:
        got.append(value)

    @functools.wraps(work)
    def fills(value):  # type: ignore[no-untyped-def]
        return work(value, Service())

    @functools.wraps(alone)
    def with_delivery(event, delivery):  # type: ignore[no-untyped-def]
        got.append(type(delivery))
        return alone(event)

    @functools.wraps(work)
    def says(*args: Any, **kwargs: Any) -> None:
        return work(*args, service=Service(), **kwargs)

    taken = [one for one in inspect.signature(work).parameters.values() if one.name != "service"]
    says.__signature__ = inspect.signature(work).replace(parameters=taken)  # type: ignore[attr-defined]
    for handler in (fills, with_delivery, says, functools.partial(work, service=Service())):
        assert run_agent(handler, [1]).outcomes == ["accepted"]

    assert got == [(1, Service), fs.Delivery, 1, (1, Service), (1, Service)]


def test_a_parameter_that_only_a_decorator_could_fill_is_refused_at_import():
    def work(value: int, service: Service) -> None: ...

    @functools.wraps(work)
    def fills(*args: Any, **kwargs: Any) -> None:
        return work(*args, service=Service(), **kwargs)

    with pytest.raises(AnnotationError, match=r"no value for the parameter 'service'.*its wrapper's __signature__"):
        run_agent(fills, [1])


@dataclass
class Event:
    number: int


def elsewhere(text: str) -> dict[str, Any]:
    """Names of a module that has an `Event` of its own."""
    names: dict[str, Any] = {"__name__": "elsewhere"}
    source = f"from __future__ import annotations\nimport functools\nfrom threading import Event\n{text}"
    exec(compile(source, "elsewhere.py", "exec"), names)
    return names


PASSES_ON = """
def passes_on(fun):
    @functools.wraps(fun)
    def around(*args, **kwargs):
        return fun(*args, **kwargs)
    return around
"""
SAYS = """
def passes_on(fun):
    @functools.wraps(fun)
    def around(event, ended=None):
        return fun(event)
    around.__annotations__ = {**fun.__annotations__, "ended": "Event | None"}
    return around
"""


@pytest.mark.parametrize("text", [PASSES_ON, SAYS])
def test_an_annotation_means_what_it_means_where_the_handler_is_and_not_where_its_decorator_is(text: str):
    got: list[Any] = []
    passes_on = elsewhere(text)["passes_on"]

    def handler(event: Event) -> None:
        got.append(event)

    async def later(event: Event) -> None:
        got.append(event)

    for fun in (passes_on(handler), passes_on(passes_on(later)), functools.partial(passes_on(handler))):
        assert run_agent(fun, [{"number": 1}]).outcomes == ["accepted"]

    assert got == [Event(1)] * 3


def test_a_decorators_own_annotation_means_what_it_means_where_the_decorator_is():
    names = elsewhere("def passes_on(fun):\n    def around(event: Event | None): ...\n    return around")
    around = names["passes_on"](None)

    def handler(event: Event) -> None: ...

    around.__wrapped__ = handler

    with pytest.raises(AnnotationError, match="no decoder for the class Event"):
        run_agent(around)


def test_an_annotation_of_a_handler_of_another_module_means_what_it_means_there():
    names = elsewhere("from dataclasses import make_dataclass\nEvent = make_dataclass('Event', [('there', int)])")
    exec("async def handler(event: Event) -> None:\n    got.append(event)", names)
    names["handler"].__annotations__ = {"event": "Event", "return": "None"}
    names["got"] = []
    from_here = {"Event": Event}

    assert Signature("handler", names["handler"], batch=False, scope=from_here).annotation is names["Event"]


def test_a_handlers_annotation_may_name_a_class_of_the_function_that_it_is_in():
    @dataclass
    class Event:
        here: int

    got: list[Any] = []
    app = fs.App("t")

    @app.share_agent("in", name="agent")
    @elsewhere(PASSES_ON)["passes_on"]
    def handler(event: Event) -> None:
        got.append(event)

    run_app(app, [{"here": 1}])

    assert got == [Event(1)]
