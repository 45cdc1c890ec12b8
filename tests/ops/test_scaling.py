"""How many workers are needed, and when a fleet moves: figures and decisions without any fleet, times as numbers."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from flowshare.agents.run.stats import HandlerLook
from flowshare.ops.figures import PartitionFigures
from flowshare.ops.rates import HandlerCost, Rates
from flowshare.ops.scaling import Demand, ScalePolicy, Scaler, needed, whole
from tests.sim.seeds import drawn

POLICY = ScalePolicy(min=1, max=8, down_after_s=60, up_step=4, down_step=1, pause_s=3)


def demand(arrival: float | None = 0.0, waiting: int = 0, handler_s: float | None = 1.0, **more) -> Demand:
    return Demand(
        arrival_per_s=arrival, waiting=waiting, handler_s=handler_s, concurrency=more.pop("at_once", 4), **more
    )


class Fleet:
    """Workers that are there as soon as they are decided on; the time is a number."""

    def __init__(self, policy: ScalePolicy = POLICY, workers: int = 1) -> None:
        self.now_s = 100.0
        self.workers = workers
        self.scaler = Scaler(policy, self.now_s)

    def told(self, figure: float | None, *, after_s: float = 1.0) -> int:
        self.now_s += after_s
        self.workers = self.scaler.decide(self.workers, figure, self.now_s)
        return self.workers

    def for_s(self, seconds: float, figure: float | None) -> list[int]:
        """Workers after each second."""
        return [self.told(figure) for _ in range(round(seconds))]


# --- the figure -------------------------------------------------------------------------------------------------------


def test_a_flow_needs_as_many_workers_as_its_handlers_are_busy():
    assert needed(demand(arrival=30, handler_s=0.4, at_once=4)) == pytest.approx(3.0)


def test_what_waits_is_to_be_gone_within_the_target_age():
    assert needed(demand(waiting=400, handler_s=0.5, at_once=4), 10) == pytest.approx(5.0)
    assert needed(demand(waiting=400, handler_s=0.5, at_once=4), 40) == pytest.approx(1.25)


def test_a_rate_limit_bounds_what_a_worker_can():
    assert needed(demand(arrival=30, handler_s=0.001, rate_per_s=10.0)) == pytest.approx(3.0)


def test_workers_that_the_group_would_give_nothing_to_are_not_needed():
    assert needed(demand(arrival=30, handler_s=0.4, workers_max=2.5)) == 2.5
    assert needed(demand(arrival=30, handler_s=0.4, workers_max=4.0)) == pytest.approx(3.0)


@pytest.mark.parametrize("one", [demand(arrival=None), demand(waiting=400), demand(arrival=5, handler_s=None)])
def test_a_paused_group_needs_no_worker_whatever_waits(one):
    assert needed(replace(one, workers_max=0)) == 0


def test_nothing_to_do_needs_no_worker_even_if_no_handler_was_measured():
    assert needed(demand(handler_s=None)) == 0


@pytest.mark.parametrize("one", [demand(arrival=None), demand(arrival=5, handler_s=None)])
def test_what_was_not_measured_is_not_known(one):
    assert needed(one) is None


@pytest.mark.parametrize(("figure", "workers"), [(0, 0), (0.001, 1), (1, 1), (1.01, 1), (1.1, 2), (7.5, 8)])
def test_a_figure_is_rounded_up_but_for_what_measuring_makes_of_it(figure, workers):
    assert whole(figure) == workers


# --- the decision -----------------------------------------------------------------------------------------------------


def test_more_workers_come_at_once_and_in_steps():
    fleet = Fleet()

    assert fleet.told(8) == 5
    assert fleet.told(8) == 5, "the pause"
    assert fleet.told(8, after_s=2) == 8


def test_a_large_fleet_is_doubled_at_most():
    fleet = Fleet(ScalePolicy(min=1, max=100), workers=20)

    assert fleet.told(90) == 40


def test_fewer_workers_go_only_after_a_stable_time_and_one_by_one():
    fleet = Fleet(workers=4)

    during = fleet.for_s(59, 1)
    after = fleet.for_s(12, 1)

    assert set(during) == {4}
    assert after == [3, 3, 3, 2, 2, 2, 1, 1, 1, 1, 1, 1]


def test_a_large_fleet_loses_a_quarter_at_most():
    fleet = Fleet(ScalePolicy(min=1, max=100, down_after_s=10, pause_s=1), workers=40)

    fleet.for_s(9, 5)

    assert fleet.for_s(4, 5) == [30, 23, 18, 14]


def test_a_peak_within_the_stable_time_keeps_its_workers():
    fleet = Fleet(workers=4)
    fleet.for_s(50, 1)

    fleet.told(3)
    during = fleet.for_s(59, 1)

    assert min(during) == 3
    assert fleet.for_s(10, 1)[-1] == 1


def test_a_figure_that_swings_about_a_whole_number_changes_nothing():
    fleet = Fleet(workers=2)

    counts = [fleet.told(2.5 if second % 20 == 0 else 1.5) for second in range(1000)]

    assert set(counts[1:]) == {3}


def test_an_unknown_figure_changes_nothing_however_long_and_then_the_stable_time_begins():
    fleet = Fleet(workers=5)

    assert set(fleet.for_s(500, None)) == {5}
    assert set(fleet.for_s(59, 1)) == {5}
    assert fleet.told(1) == 4


def test_bounds_hold_at_once_whatever_the_figure_is():
    assert Fleet(workers=20).told(None) == 8
    assert Fleet(ScalePolicy(min=3, max=8), workers=1).told(0) == 3


def test_bounds_hold_for_any_sequence_of_figures():
    rnd = random.Random(drawn())
    for _ in range(50):
        low = rnd.randint(1, 5)
        policy = ScalePolicy(
            min=low, max=rnd.randint(low, 20), down_after_s=rnd.choice([0, 1, 30]), pause_s=rnd.choice([0, 1, 10])
        )
        fleet = Fleet(policy, workers=low)
        for _ in range(100):
            before = fleet.workers
            figure = rnd.choice([None, 0, rnd.uniform(0, 3), rnd.uniform(0, 1e9), float("inf")])
            now = fleet.told(figure, after_s=rnd.uniform(0, 20))

            assert policy.min <= now <= policy.max
            assert now - before <= max(policy.up_step, before)
            assert before - now <= max(policy.down_step, before // 4)
            assert figure is not None or now == before


@pytest.mark.parametrize("wrong", [{"min": 0}, {"min": 5, "max": 4}, {"up_step": 0}, {"pause_s": -1}])
def test_a_policy_that_cannot_be_is_refused(wrong):
    with pytest.raises(ValueError, match=r"min|step"):
        ScalePolicy(**wrong)


def test_a_closed_loop_works_off_a_step_load_without_swinging():
    """One worker, a step of 30 records/s of a second each in four places, ended after five minutes: 1 → 8 → 1."""
    fleet = Fleet(ScalePolicy(min=1, max=20, down_after_s=60))
    waiting, counts = 0.0, []
    for second in range(900):
        arrival = 30 if 10 <= second < 310 else 0
        waiting = max(0.0, waiting + arrival - 4 * fleet.workers)
        counts.append(fleet.told(needed(demand(arrival=arrival, waiting=round(waiting)), 10)))

    turns = [b - a for a, b in itertools.pairwise(counts) if b != a]
    assert counts[300] == 8
    assert counts[-1] == 1
    assert waiting == 0
    assert [turn > 0 for turn in turns] == [True] * 2 + [False] * (len(turns) - 2), "up, then down"


# --- rates ------------------------------------------------------------------------------------------------------------


def rows(*ends: int, finished: int = 0, redeliveries: int | None = 0) -> list[PartitionFigures]:
    return [
        PartitionFigures("g", "t", number, log_end=end, finished=finished, redeliveries=redeliveries)
        for number, end in enumerate(ends)
    ]


def test_rates_are_those_of_the_last_seconds():
    rates = Rates(window_s=10)
    for second in range(31):
        rates.look(rows(100 * second if second <= 15 else 1500, finished=7 * second), float(second))

    assert rates.of("g", "t").arrival == 0
    assert rates.of("g", "t").finished == pytest.approx(7)


def test_a_single_look_tells_no_rate():
    rates = Rates()
    rates.look(rows(5), 0.0)

    assert rates.of("g", "t") == (None, None, None)
    assert rates.of("g", "other") == (None, None, None)


def test_what_nobody_tells_has_no_rate():
    rates = Rates()
    rates.look(rows(0, redeliveries=None), 0.0)
    rates.look(rows(10, redeliveries=None), 1.0)

    assert rates.of("g", "t").arrival == 10
    assert rates.of("g", "t").redelivered is None


def test_a_new_partition_and_a_topic_made_anew_do_not_count_as_a_burst():
    rates = Rates()
    rates.look(rows(1000), 0.0)
    rates.look(rows(1010, 5000), 1.0)
    assert rates.of("g", "t").arrival == 10

    rates.look(rows(3, 5000), 2.0)
    assert rates.of("g", "t").arrival == 0


def test_frequent_looks_do_not_shorten_the_window():
    rates = Rates(window_s=10)
    for tenth in range(300):
        rates.look(rows(tenth), tenth / 10)

    assert rates.of("g", "t").arrival == pytest.approx(10, rel=0.2)


def look(at_s: float, busy_s: float, settled: int, *, again: int = 0, running: int = 4) -> HandlerLook:
    return HandlerLook(at_s=at_s, busy_s=busy_s, settled=settled, again=again, running=running)


def cost(*looks: HandlerLook, attempts_max: int = 5) -> float | None:
    made = HandlerCost(attempts_max)
    for one in looks:
        made.look(one)
    return made.seconds


def test_a_record_costs_what_handlers_worked_for_it():
    assert cost(look(0, 0, 0), look(10, 40, 80)) == pytest.approx(0.5)


def test_retries_are_part_of_what_a_record_costs():
    assert cost(look(0, 0, 0), look(10, 40, 80, again=40)) == pytest.approx(1.0)


def test_when_everything_fails_a_record_costs_all_its_attempts():
    assert cost(look(0, 0, 0), look(10, 40, 80, again=80), attempts_max=5) == pytest.approx(2.5)


def test_before_anything_ended_handlers_take_at_least_as_long_as_they_have_run():
    assert cost(look(0, 0, 0, running=0)) is None
    assert cost(look(0, 0, 0, running=0), look(5, 20, 0)) == pytest.approx(5.0)


def test_the_cost_is_that_of_the_last_records():
    slow = [look(second, second * 4.0, second, running=0) for second in range(200)]
    fast = [look(200 + second, 796 + second * 4.0, 199 + 100 * second, running=0) for second in range(1, 10)]

    assert cost(*slow, *fast) == pytest.approx(0.04)


def test_the_last_cost_stands_while_there_is_nothing_to_do():
    assert cost(look(0, 0, 0), look(1, 4, 8), look(4000, 4, 8, running=0)) == pytest.approx(0.5)


def test_handlers_that_do_not_end_any_more_cost_more_and_more():
    before = [look(0, 0, 0), look(1, 4, 8)]

    assert cost(*before, look(2, 8, 8)) == pytest.approx(0.5), "by chance"
    assert cost(*before, look(101, 404, 8)) == pytest.approx(40)
