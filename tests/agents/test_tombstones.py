"""A value that is None leaves as a null, and outputs with equal bodies keep their own keys."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import flowshare as fs
from tests.agents.agents_kit import run_agent


class Codec:
    """A codec of an application."""

    def __repr__(self) -> str:
        return "Codec()"  # the same in each process that collects the tests

    def decode(self, raw: bytes, headers: Any) -> Any:
        return json.loads(raw)

    def encode(self, value: Any) -> bytes:
        return json.dumps(value).encode()


@pytest.mark.filterwarnings("ignore::faust.exceptions.SecurityWarning")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"value_type": str},
        {"value_type": int | str | None},
        {"value_codec": Codec()},
        {"value_codec": Codec(), "value_type": dict},
        {"value_serializer": "json"},
        {"value_serializer": "raw"},
        {"value_serializer": "pickle"},
        {"value_serializer": "json", "value_type": dict | None},
    ],
    ids=str,
)
@pytest.mark.parametrize("exactly_once", [False, True])
def test_none_is_a_tombstone_whatever_stands_between(options: dict[str, Any], exactly_once: bool):
    app = fs.App("t")
    out = app.topic("out", **options)

    @app.share_agent("in", exactly_once=exactly_once)
    async def handler(value: int, delivery: fs.Delivery) -> fs.Send:
        if not exactly_once:
            await out.send(key="a", value=None)
        delivery.send(out, None, key="b")
        return fs.Send(out, None, key="c")

    async def main() -> list[tuple[bytes | None, bytes | None]]:
        async with fs.testing.harness(app) as bus:
            await bus.send("in", 1)
            await bus.run_until_idle()
            return [(one.key, one.value) for one in await bus.host.admin.read("out", 0, 0)]

    found = fs.testing.run(main())

    assert sorted(key or b"" for key, _ in found) == ([b"b", b"c"] if exactly_once else [b"a", b"b", b"c"])
    assert {value for _, value in found} == {None}


def returned(value: Any) -> list[fs.Send]:
    return [fs.Send("out", "same", key="a"), fs.Send("out", "same", key="b", headers={"h": "1"})]


def sent(value: Any) -> None:
    fs.current_delivery().send("out", "same", key="a")
    fs.current_delivery().send("out", "same", key="b", headers={"h": "1"})


@pytest.mark.parametrize("options", [{}, {"exactly_once": True}, {"order": "key"}, {"batch": fs.Batch(2)}], ids=str)
@pytest.mark.parametrize("make", [returned, sent])
def test_outputs_with_equal_bodies_keep_their_own_keys_and_headers(make: Callable[[Any], Any], options: dict[str, Any]):
    def one(value: int) -> Any:
        return make(value)

    def several(rows: fs.Records[int]) -> Any:
        return make(rows)

    seen = run_agent(several if "batch" in options else one, [1], **options)

    assert [(one.key, one.value, one.headers) for one in seen.out] == [
        (b"a", b"same", {}),
        (b"b", b"same", {"h": b"1"}),
    ]
