"""The autoscaler between workers that say what is needed and a supervisor that is resized; both stand in."""

from __future__ import annotations

import asyncio

import pytest

from flowshare.ops.scaling import Autoscaler, ScalePolicy, median_report, why
from flowshare.testing import virtual
from flowshare.testing.clock import LoopTimeClock


def report(needed: float | None) -> dict:
    topic = {"waiting": 7, "arrival_rate": 3.0}
    agent = {"agent": "bill", "needed": needed, "handler_s": 0.5, "topics": [topic]}
    return {"needed": needed, "agents": [agent]}


class Fleet:
    """A supervisor whose workers are ready as soon as they are wanted, and what each of them answers."""

    def __init__(self) -> None:
        self.size = 1
        self.answers: list[dict | Exception | None] = [report(None)]
        self.asked: list[str] = []
        self.sizes: list[int] = []

    @property
    def ready(self) -> dict[int, str]:
        return {number: f"worker:{number}" for number in range(1, self.size + 1)}

    def resize(self, count: int) -> None:
        self.size = count
        self.sizes.append(count)

    async def ask(self, address: str, page: str) -> dict | None:
        self.asked.append(page)
        number = int(address.rpartition(":")[2])
        answer = self.answers[min(number, len(self.answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer


def scaled(seconds: float, fleet: Fleet, **policy) -> Fleet:
    async def main() -> None:
        bounds = ScalePolicy(**{"min": 1, "max": 8, "down_after_s": 30, **policy})
        scaler = Autoscaler(bounds, target_age_s=20, ask=fleet.ask, clock=LoopTimeClock())
        task = asyncio.create_task(scaler.run(fleet))  # type: ignore[arg-type]
        await asyncio.sleep(seconds)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    virtual.run(main())
    return fleet


def test_the_fleet_follows_what_its_workers_say():
    fleet = Fleet()
    fleet.answers = [report(7.4)]

    assert scaled(10, fleet).sizes == [5, 8]
    assert fleet.asked[0] == "/scale?target_age=20"

    fleet.answers = [report(0.2)]
    assert scaled(29, fleet).size == 8
    assert scaled(60, fleet).size == 1


def test_workers_that_do_not_know_or_do_not_answer_are_left_out():
    fleet = Fleet()
    fleet.size = 3
    fleet.answers = [None, report(None), report(6)]

    assert scaled(5, fleet).size == 6


@pytest.mark.parametrize("answer", [None, report(None), OSError("broken")])
def test_when_nobody_knows_nothing_changes(answer, caplog):
    fleet = Fleet()
    fleet.size = 4
    fleet.answers = [answer]

    assert scaled(500, fleet).sizes == []
    assert len(caplog.records) == (1 if isinstance(answer, OSError) else 0)


def test_the_figure_is_the_one_in_the_middle():
    found = median_report([report(9), report(None), report(2), report(3)])

    assert found is not None
    assert found["needed"] == 3
    assert median_report([report(None)]) is None


def test_the_reason_says_what_the_figure_is_made_of():
    assert why(report(2.25)) == "2.2 are needed (bill: 3.0 records/s arrive, 7 wait, a record takes 0.5 s)"
    assert why(report(0.0)) == "0.0 are needed"
