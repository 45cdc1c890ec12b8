"""Tests of a process's reports of a broker that does not answer, and of Faust agents that crash."""

from __future__ import annotations

import asyncio
import logging

import pytest

import flowshare as fs
from flowshare.agents.faust.streams import CRASH_S
from flowshare.agents.host.outage import AWAY_S, Outage
from flowshare.client.errors import NotConnected, ServerError
from flowshare.protocol.errors import ErrorCode
from flowshare.testing.clock import LoopTimeClock
from flowshare.testing.virtual import run

REFUSED = ServerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


class Broker:
    """Answers, refuses, is gone, or says nothing at all."""

    answer: str = "yes"

    async def ask(self) -> None:
        match self.answer:
            case "refuses":
                raise REFUSED
            case "is gone":
                raise NotConnected("no connection")
            case "is mute":
                await asyncio.sleep(3600)


def problem_after(seconds: float, *answers: str) -> str | None:
    """Return the problem that is reported after the broker has given each of these answers in turn, for so many seconds
    each."""

    async def main() -> str | None:
        broker = Broker()
        outage = Outage(broker.ask, clock=LoopTimeClock(), where="the broker at kafka://b")
        outage.start()
        for broker.answer in answers:
            await asyncio.sleep(seconds)
        found = outage.problem()
        await outage.close()
        return found

    return run(main())


@pytest.mark.parametrize("answer", ["yes", "refuses"])
def test_a_broker_that_answers_is_there_whatever_it_says(answer: str) -> None:
    assert problem_after(600, answer) is None


@pytest.mark.parametrize("answer", ["is gone", "is mute"])
def test_a_broker_without_an_answer_is_away_after_a_while(answer: str, caplog: pytest.LogCaptureFixture) -> None:
    assert problem_after(AWAY_S - 3, "yes", answer) is None
    assert "kafka://b has not answered for" in (problem_after(AWAY_S + 5, "yes", answer) or "")
    assert problem_after(AWAY_S + 5, answer, "yes") is None


def test_an_outage_is_told_once_and_again_when_it_has_lasted_twice_as_long(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="flowshare.agents"):
        problem_after(700, "is gone", "yes")

    lines = [record.getMessage() for record in caplog.records]
    assert [line.split(" has not answered")[0] for line in lines[:-1]] == ["the broker at kafka://b"] * 7
    assert "answers again, after 70" in lines[-1]


def test_an_agent_of_fausts_that_crashes_again_and_again_makes_a_worker_unready() -> None:
    streams = fs.App("crashes", broker="memory://").streams

    streams.crashed("count", ValueError("x" * 5000), 0.0)
    assert streams.problems(1.0) == []  # one record that fails is skipped, and the agent goes on

    streams.crashed("count", KeyError("total"), 5.0)
    assert streams.problems(6.0) == ["count crashes again and again, last with KeyError: 'total'"]
    assert streams.problems(CRASH_S + 6) == []
