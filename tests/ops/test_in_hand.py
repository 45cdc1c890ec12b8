"""Tests of workers' reports of held records and raised exceptions: merged by group, and dropped if malformed."""

from __future__ import annotations

import asyncio
import json

import pytest

import flowshare as fs
from flowshare.cli.worker_answers import agents
from flowshare.ops.figures import Holder
from flowshare.ops.in_hand import AgentReport, InHand, of_groups


def row(group="g", **more):
    return AgentReport(group, **{"held": 3, "oldest_s": 40.5, **more})


def told(**workers):
    return workers


def answer(rows):
    return agents(json.dumps(rows).encode())


def test_each_worker_that_holds_something_is_a_holder():
    found = of_groups(told(w1=[row()], w2=[row(held=7, oldest_s=2.0), row("h", held=0)]))

    holders = Holder(member="worker w1", records=3, oldest_s=40.5), Holder(member="worker w2", records=7, oldest_s=2.0)
    assert found == {"g": InHand(holders), "h": InHand()}


def test_a_worker_below_a_supervisor_has_its_number():
    [holder] = of_groups(told(host=[row(worker=2)]))["g"].holders

    assert holder.member == "worker 2 of host"


def test_what_was_raised_last_is_told():
    raised = [row(exception=kind, message="no\n \x1b[1mstock", raised_s=at) for kind, at in (("A", 9.0), ("B", 2.5))]

    found = of_groups(told(w1=raised[:1], w2=raised[1:]))["g"]
    assert (found.error, found.error_s) == ("B: no \\x1b[1mstock", 2.5)


def test_without_messages_only_the_type_is_told():
    rows = told(w1=[row(exception="ValueError", message="iban DE12", raised_s=1.0)])

    assert of_groups(rows, messages=False)["g"].error == "ValueError"


def test_rows_whose_names_were_kept_from_us_say_nothing():
    assert answer([{"held": 3, "oldest_s": 1.0, "raised_s": None}]) == []


@pytest.mark.parametrize(
    "odd",
    [None, {}, "rows", [7], *([{"group": "g", **more}] for more in (
        {"group": 7}, {"held": "3"}, {"oldest_s": float("nan")}, {"exception": ["A"]}, {"message": 7},
        {"raised_s": "now"}, {"worker": "1"},
    ))],
)  # fmt: skip
def test_an_answer_that_no_worker_gives_is_refused(odd):
    with pytest.raises(ValueError, match="is not what a worker of flowshare says"):
        answer(odd)


def test_an_agent_says_what_it_holds_for_how_long_and_what_was_raised_last():
    app = fs.App("t", broker="memory://")
    go_on = asyncio.Event()

    @app.share_agent("in", name="agent", group="g", retry=fs.Retry(delay=3_600))
    async def handler(value: bytes) -> None:
        if value == b"bad":
            raise ValueError("no stock")
        await go_on.wait()

    async def main():
        async with fs.testing.harness(app) as bus:
            await bus.send("in", b"bad")
            await bus.advance(1)
            await bus.send("in", b"good")
            await bus.advance(40)
            seen = app.host.in_hand()
            go_on.set()
            await bus.advance(1)
            return seen, app.host.in_hand()

    [held], [free] = fs.testing.run(main())
    assert (held["agent"], held["group"], held["held"]) == ("agent", "g", 1)
    assert held["oldest_s"] == pytest.approx(40.0, abs=0.5)
    assert (held["exception"], held["message"]) == ("ValueError", "no stock")
    assert held["raised_s"] == pytest.approx(41.0, abs=0.6)
    assert (free["held"], free["oldest_s"]) == (0, None)
    assert [one.held for one in answer([held, free])] == [1, 0]
