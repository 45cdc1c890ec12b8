"""Codecs: an application's own step between bytes and values, and what records do while it looks something up."""

from __future__ import annotations

import asyncio
import threading
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import pytest

import flowshare as fs
from flowshare.agents.handler import codec as codecs
from flowshare.agents.handler.codec import CodecDecoder, Missing
from flowshare.agents.handler.errors import AnnotationError, OptionError, Unencodable, UsageError
from flowshare.testing import Bus
from tests.agents.agents_kit import run_agent, run_app
from tests.agents.test_threads import app_of, threaded


@dataclass
class Order:
    id: int


class Packed:
    """Deflated JSON; a header says so."""

    def decode(self, raw: bytes, headers: Sequence[tuple[str, bytes | None]]) -> Any:
        assert dict(headers).get("packed", b"yes") == b"yes"
        return orjson.loads(zlib.decompress(raw))

    def encode(self, value: Any) -> tuple[bytes, list[tuple[str, bytes]]]:
        return zlib.compress(orjson.dumps(value)), [("packed", b"yes")]


class Secrets:
    """Needs a word for each first byte, which it looks up."""

    def __init__(self, *outages: BaseException) -> None:
        self.words = {ord("a"): "apple", ord("b"): "pear"}
        self.known: dict[int, str | None] = {}
        self.outages = list(outages)
        self.fetches = 0
        self.may_write = False

    def missing(self, raw: bytes, headers: object) -> Missing | None:
        return None if raw[0] in self.known else Missing(raw[0], f"the word of {raw[0]}", lambda: self.fetch(raw[0]))

    def missing_to_encode(self) -> Missing | None:
        return None if self.may_write else Missing("write", "the right to write", self.allow)

    def fetch(self, of: int) -> None:
        self.fetches += 1
        if self.outages:
            raise self.outages.pop()
        self.known[of] = self.words.get(of)

    def allow(self) -> None:
        if self.outages:
            raise self.outages.pop()
        self.may_write = True

    def decode(self, raw: bytes, headers: object) -> str:
        word = self.known[raw[0]]
        if word is None:
            raise ValueError(f"there is no word for {raw[0]}")
        return f"{word} {raw[1:].decode()}"

    def encode(self, value: Any) -> bytes:
        assert self.may_write, "asked before what it needs was fetched"
        return str(value).encode()


def test_a_codec_stands_between_bytes_and_values_in_both_directions():
    app = fs.App("t")
    orders, out = app.topic("in", value_codec=Packed()), app.topic("out", value_codec=Packed(), key_codec=Packed())
    got: list[Any] = []

    @app.share_agent(orders, name="agent", sink=out)
    async def agent(order: Order, delivery: fs.Delivery) -> dict[str, int]:
        got.append((order, delivery.header("packed")))
        delivery.send(out, [order.id], key={"k": 1})
        return {"id": order.id}

    async def main() -> list[Any]:
        async with fs.testing.harness(app) as bus:
            await bus.send(orders, {"id": 1})
            await bus.run_until_idle()
            return bus.records(out)

    sent = fs.testing.run(main())

    assert got == [(Order(1), b"yes")]
    assert sorted(str(record.value) for record in sent) == ["[1]", "{'id': 1}"]
    assert [record.key for record in sent if record.key] == [{"k": 1}]
    assert all(record.headers["packed"] == b"yes" for record in sent)


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"no deflate", "Error -3 while decompressing"),
        (zlib.compress(b'{"id":"x"}'), "Order.id: expected int, got str"),
        (None, "annotate the value as `Order | None`"),
    ],
)
def test_what_a_codec_refuses_is_a_dead_letter(raw: bytes | None, why: str):
    async def agent(order: Order) -> None: ...

    seen = run_agent(agent, [raw], value_codec=Packed())

    assert why in seen.dead[0].reason
    assert seen.dead[0].reason.startswith("undecodable: ")


def test_a_tombstone_is_none_and_no_business_of_the_codec():
    got: list[Any] = []

    async def agent(order: Order | None) -> None:
        got.append(order)

    run_agent(agent, [None, zlib.compress(b'{"id":1}')], value_codec=Packed())

    assert got == [None, Order(1)]


def test_what_a_codec_cannot_encode_is_a_clear_error():
    class Broken(Packed):
        def encode(self, value: Any) -> Any:
            if value == "text":
                return "text"
            raise KeyError("customer")

    topic = fs.App("t").topic("out", value_codec=Broken())
    with pytest.raises(Unencodable, match=r"topic 'out': its value: KeyError for \{'a': 1\}: 'customer'"):
        fs.Send(topic, {"a": 1}).encode()
    with pytest.raises(Unencodable, match="the codec makes a str of 'text', not bytes"):
        fs.Send(topic, "text").encode()
    assert fs.Send(topic, None).encode().value is None


def test_codecs_are_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(codecs, "_registered", {})
    app, packed = fs.App("t"), Packed()
    fs.register_codec("packed", packed)
    fs.register_codec("packed", packed)

    assert app.topic("in", value_codec="packed").value_codec is packed
    with pytest.raises(OptionError, match="there is a codec 'packed' already"):
        fs.register_codec("packed", Packed())
    with pytest.raises(OptionError, match=r"value_codec='pakced': no codec .* Did you mean 'packed'\?"):
        app.topic("in", value_codec="pakced")


@pytest.mark.parametrize("given", [Packed, object(), 5, "nothing"])
def test_what_is_no_codec_is_refused(given: Any):
    with pytest.raises(OptionError, match="codec"):
        fs.App("t").topic("in", value_codec=given)
    with pytest.raises(OptionError, match=r"agent agent: .*codec"):
        run_agent(_takes_any, [], value_codec=given)


async def _takes_any(value: Any) -> None: ...


def test_a_topic_has_one_codec_and_no_serializer_beside_it():
    app = fs.App("t")
    with pytest.raises(OptionError, match="value_serializer and value_codec do the same"):
        app.topic("in", value_codec=Packed(), value_serializer="json")
    with pytest.raises(OptionError, match="has a value_codec of its own"):
        app.share_agent(app.topic("in", value_codec=Packed()), value_codec=Packed())(_takes_any)
    with pytest.raises(OptionError, match="has a value_serializer of its own"):
        app.share_agent(app.topic("in", value_serializer="json"), value_codec=Packed())(_takes_any)
    with pytest.raises(UsageError, match="which Faust's agents and streams do not know"):
        app.stream(app.topic("in", value_codec=Packed()))


def test_what_a_codec_makes_fits_the_annotation_or_not():
    class Thing:
        pass

    class Makes(Packed):
        model = Thing

        def decode(self, raw: bytes, headers: object) -> Any:
            return Thing() if raw == b"thing" else raw.decode()

    assert isinstance(CodecDecoder(Makes(), Thing)(b"thing"), Thing)

    class Other(Makes):
        model = None

    assert isinstance(CodecDecoder(Other(), Thing)(b"thing"), Thing)
    with pytest.raises(ValueError, match=r"the codec made a str of it, not a .*Thing"):
        CodecDecoder(Other(), Thing)(b"text")
    with pytest.raises(AnnotationError):
        CodecDecoder(Other(), dict[int, str])


def test_a_codec_that_says_its_model_spares_the_annotation():
    class Modelled(Packed):
        model = Order

        def decode(self, raw: bytes, headers: object) -> Any:
            return Order(**orjson.loads(zlib.decompress(raw)))

    app, got = fs.App("t"), []

    @app.share_agent(app.topic("in", value_codec=Modelled()), name="agent")
    async def agent(order) -> None:
        got.append(order)

    async def main() -> None:
        async with fs.testing.harness(app) as bus:
            await bus.send("in", zlib.compress(b'{"id":1}'))
            await bus.run_until_idle()

    fs.testing.run(main())
    assert got == [Order(1)]


def _async(got: list[Any]) -> Callable[..., Any]:
    async def agent(value: str) -> None:
        got.append(value)

    return agent


def _sync(got: list[Any]) -> Callable[..., Any]:
    def agent(value: str) -> None:
        got.append(value)

    return agent


def _batch(got: list[Any]) -> Callable[..., Any]:
    async def agent(records: fs.Records[str]) -> None:
        got.extend(record.value for record in records)

    return agent


KINDS = pytest.mark.parametrize(
    ("make", "options"),
    [
        (_async, {}),
        (_async, {"order": "key"}),
        (_async, {"timeout": 2}),
        (_async, {"at_most_once": True}),
        (_sync, {}),
        (_batch, {"batch": fs.Batch(3, within=0.1)}),
        (_batch, {"batch": fs.Batch(3, within=0.1), "order": "key"}),
    ],
    ids=["async", "ordered", "timed", "at-most-once", "def", "batch", "ordered-batch"],
)


@KINDS
def test_what_a_record_needs_is_fetched_once_before_its_handler(make: Callable[..., Any], options: dict[str, Any]):
    codec, got = Secrets(), []

    seen = run_agent(make(got), [b"a1", b"a2", b"b3", b"c4", b"c5"], value_codec=codec, **options)

    assert sorted(got) == ["apple 1", "apple 2", "pear 3"]
    assert codec.fetches == 3
    assert [letter.reason.rpartition(": ")[2] for letter in seen.dead] == ["there is no word for 99"] * 2


@KINDS
def test_nothing_is_lost_and_no_attempt_used_while_nobody_answers(
    make: Callable[..., Any], options: dict[str, Any], caplog: pytest.LogCaptureFixture
):
    codec, got = Secrets(*[ConnectionError("refused")] * 30), []

    seen = run_agent(make(got), [b"a1", b"b2"], value_codec=codec, retry=fs.Retry(max_attempts=1), **options)

    assert sorted(got) == ["apple 1", "pear 2"]
    assert seen.dead == []
    assert [one.attempt for one in seen.report.settled if one.outcome == "accepted"] in ([1, 1], [])
    told = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert "records wait for the word of" in told[0]
    assert len(told) < 12
    assert any("they go on" in record.message for record in caplog.records)


def test_others_go_on_while_one_waits():
    codec, got, gate = Secrets(), [], asyncio.Event()
    codec.known = {ord("a"): "apple"}
    codec.outages = [ConnectionError("refused")] * 50

    async def during(bus: Bus) -> None:
        await bus.advance(5)
        assert got == [f"apple {n}" for n in range(20)]
        codec.outages.clear()
        gate.set()

    run_agent(_async(got), [b"b0", *[b"a%d" % n for n in range(20)]], value_codec=codec, during=during, concurrency=2)

    assert got[-1] == "pear 0"
    assert gate.is_set()


def test_a_record_that_waits_goes_back_when_the_worker_stops():
    codec, got = Secrets(*[ConnectionError("refused")] * 1000), []
    app = fs.App("t")
    app.share_agent("in", name="agent", value_codec=codec)(_async(got))

    async def main() -> tuple[float, Any]:
        async with fs.testing.harness(app) as bus:
            await bus.send("in", b"a1")
            await bus.advance(3)
            began_s = bus.clock.monotonic()
            runtime = app.host.runtimes["agent"]
            drained = await runtime.drain(25)
            return bus.clock.monotonic() - began_s, (drained, runtime.stats()["unrun"], codec.fetches)

    took_s, (drained, unrun, fetches) = fs.testing.run(main())

    assert drained
    assert took_s < 1
    assert unrun == 1
    assert fetches < 10
    assert got == []


def test_what_an_output_needs_is_fetched_before_it_is_encoded():
    codec = Secrets(*[ConnectionError("refused")] * 3)
    app = fs.App("t")
    out = app.topic("elsewhere", value_codec=codec)

    @app.share_agent("in", name="agent", sink=out, retry=fs.Retry(max_attempts=1))
    async def agent(value: bytes) -> str:
        return value.decode()

    seen = run_app(app, [b"x"])

    assert seen.outcomes == ["accepted"]
    assert seen.dead == []


def test_a_topic_looks_up_what_it_needs_before_it_sends():
    app = fs.App("t")
    codec = Secrets()
    out = app.topic("out", value_codec=codec)

    async def main() -> Any:
        async with fs.testing.harness(app):
            await out.send(value="x")
            codec.may_write = False
            codec.outages = [ConnectionError("refused")]
            with pytest.raises(ConnectionError):
                await out.send(value="y")

    fs.testing.run(main())


@pytest.mark.slow
@pytest.mark.parametrize("make", [_async, _sync], ids=["loop", "threads"])
def test_what_is_looked_up_is_looked_up_in_threads(make: Callable[..., Any]):
    threads: set[str] = set()

    class Watched(Secrets):
        def fetch(self, of: int) -> None:
            threads.add(threading.current_thread().name)
            super().fetch(of)

    codec, got = Watched(ConnectionError("refused")), []
    app = app_of(make(got), value_codec=codec, concurrency=4)

    threaded(app, [b"a%d" % n for n in range(8)], lambda stats: stats["accepted"] == 8)

    assert sorted(got) == [f"apple {n}" for n in range(8)]
    assert "MainThread" not in threads


@pytest.mark.slow
def test_a_thread_that_waits_gives_its_record_back_when_the_worker_stops():
    codec, got = Secrets(*[ConnectionError("refused")] * 1000), []

    async def look(runtime: Any) -> bool:
        return bool(await runtime.drain(25))

    drained, stats = threaded(app_of(_sync(got), value_codec=codec), [b"a"], lambda stats: stats["running"] == 1, look)

    assert drained
    assert stats["unrun"] == 1
    assert got == []


@pytest.mark.parametrize("make", [_async, _batch], ids=["async", "batch"])
def test_an_output_that_waits_when_the_worker_stops_is_made_again(make: Callable[..., Any]):
    codec, app = Secrets(*[ConnectionError("refused")] * 1000), fs.App("t")
    out, runs = app.topic("elsewhere", value_codec=codec), []
    options: dict[str, Any] = {"batch": fs.Batch(2, within=0.1)} if make is _batch else {}

    if make is _batch:

        async def agent(records: fs.Records[bytes]) -> str:
            runs.append(1)
            return "out"

    else:

        async def agent(value: bytes) -> str:  # type: ignore[misc]
            runs.append(1)
            return "out"

    app.share_agent("in", name="agent", sink=out, retry=fs.Retry(max_attempts=1), **options)(agent)

    async def main() -> tuple[float, Any]:
        async with fs.testing.harness(app) as bus:
            await bus.send("in", b"a1")
            await bus.send("in", b"a2")
            await bus.advance(3)
            began_s = bus.clock.monotonic()
            runtime = app.host.runtimes["agent"]
            drained = await runtime.drain(25)
            return bus.clock.monotonic() - began_s, (drained, runtime.stats()["released"])

    took_s, (drained, released) = fs.testing.run(main())

    assert (drained, released) == (True, 2)
    assert len(runs) == (1 if make is _batch else 2)
    assert took_s < 1


def test_trouble_is_told_only_while_it_is_new():
    codec, app = Secrets(*[ConnectionError("refused")] * 2), fs.App("t")
    app.share_agent("in", name="agent", value_codec=codec)(_async([]))

    async def main() -> None:
        async with fs.testing.harness(app) as bus:
            lookups = app.host.runtimes["agent"]._pool.lookups
            lookups.failed(Missing("x", "a word", print), ConnectionError("refused"))
            assert "records wait for a word" in str(lookups.trouble)
            await bus.advance(61)
            assert lookups.trouble is None

    fs.testing.run(main())


def test_what_fausts_agents_send_to_a_topic_with_a_codec_is_encoded_by_it():
    topic = fs.App("t").topic("out", value_codec=Packed())
    given = topic._for_faust(None, {"a": 1}, {"h": b"1"}, {})
    assert Packed().decode(given["value"], given["headers"]) == {"a": 1}
    assert given["headers"] == [("h", b"1"), ("packed", b"yes")]
    assert given["value_serializer"] == "raw"


def test_agents_of_all_kinds_take_a_codec():
    app = fs.App("t")
    share = app.share_agent("a", name="share", value_codec=Packed())(_takes_any)
    cooperative = app.cooperative_agent("b", name="cooperative", value_codec=Packed())(_takes_any)
    kmq = app.kmq_agent("c", name="kmq", markers="c.markers", value_codec=Packed(), key_codec=Packed())(_takes_any)
    for agent, topic in ((share, "a"), (cooperative, "b"), (kmq, "c")):
        assert isinstance(agent.decoder(topic), CodecDecoder)
    assert isinstance(kmq.key_decoder("c"), CodecDecoder)
    assert not share.decoder("a").looks_up


@pytest.mark.parametrize("make", [_async, _sync], ids=["async", "def"])
def test_a_codec_that_cannot_decode_now_says_so_and_no_attempt_is_used(make: Callable[..., Any]):
    class Shy(Packed):
        asked = 0

        def decode(self, raw: bytes, headers: Any) -> Any:
            self.asked += 1
            if self.asked < 4:
                raise fs.errors.CodecUnavailable("not now")
            return super().decode(raw, headers)

    got: list[Any] = []
    seen = run_agent(make(got), [zlib.compress(b'"x"')], value_codec=Shy(), retry=fs.Retry(max_attempts=1))

    assert got == ["x"]
    assert seen.dead == []
    assert seen.elapsed_s > 89


@pytest.mark.slow
def test_the_timeout_of_a_def_handler_does_not_run_while_its_record_waits():
    codec, got = Secrets(*[ConnectionError("refused")] * 2), []

    _, stats = threaded(
        app_of(_sync(got), value_codec=codec, timeout=0.3), [b"a1"], lambda stats: stats["accepted"] == 1
    )

    assert got == ["apple 1"]
    assert stats["timed_out"] == 0


@KINDS
def test_what_a_record_waits_is_no_handlers_time(make: Callable[..., Any], options: dict[str, Any]):
    codec, got = Secrets(*[ConnectionError("refused")] * 4), []
    app = fs.App("t")
    app.share_agent("in", name="agent", value_codec=codec, **options)(make(got))

    async def main() -> tuple[float, float]:
        async with fs.testing.harness(app) as bus:
            await bus.send("in", b"a1")
            began_s = bus.clock.monotonic()
            await bus.run_until_idle()
            return bus.clock.monotonic() - began_s, app.host.runtimes["agent"].handler_look().busy_s

    took_s, busy_s = fs.testing.run(main())

    assert took_s > 3
    assert busy_s < 1
