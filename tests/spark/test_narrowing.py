"""Which record makes a query fail, found out by what fails and what does not."""

from __future__ import annotations

import json
import random

import pytest

from flowshare.spark.source.narrowing import VOID_KEPT, WHOLE, Narrowing, killed
from flowshare.spark.source.ranges import Range, RangeSet, records_in


def offsets(ranges):
    return {(one.topic, one.partition, number) for one in ranges for number in range(one.first, one.last + 1)}


class Query:
    """A query over one share group, started again whenever it fails; `bad` records make it fail."""

    def __init__(self, records, bad=(), *, rerun=True, batch=1000, partitions=2):
        self.bad = {("t", number % partitions, number // partitions) for number in bad}
        self.left = RangeSet(Range("t", one, 0, records // partitions - 1) for one in range(partitions))
        self.batch, self.rerun = batch, rerun
        self.note = json.dumps(Narrowing().to_json())
        self.handled, self.buried = [], []
        self.starts, self.number, self.kills = 0, 0, 0
        self.sizes = []
        """Of the batches that were handled."""
        self.workers_die = lambda: False

    def run(self, starts_max):
        """Until all is finished, or so many starts failed."""
        under_way = None
        while len(self.left) and self.starts < starts_max:
            suspects, kept = Narrowing.from_json(json.loads(self.note)), []
            while len(self.left):
                if under_way is None:
                    self.number, self.kills = self.number + 1, 0
                    got = kept or self._acquire()
                    under_way, kept = suspects.split(got)
                    mine = True
                else:
                    mine = self.rerun
                runs = mine and not suspects.is_void(self.number)
                if runs and not self._succeeds(suspects, under_way):
                    self.kills += 1
                    suspects.failed(self.number, under_way, times=self.kills, whole=self.rerun)
                    self.note = json.dumps(suspects.to_json())
                    break
                if runs:
                    self._finish(suspects, under_way)
                if suspects.committed(self.number, under_way):
                    self.note = json.dumps(suspects.to_json())
                under_way = None
            self.starts += 1

    def _acquire(self):
        found = []
        for one in self.left.ranges():
            room = self.batch - records_in(found)
            if room > 0:
                found.append(one._replace(last=min(one.last, one.first + room - 1)))
        return found

    def _succeeds(self, suspects, ranges):
        if suspects.buries(ranges):
            return True
        return not self.workers_die() and not offsets(ranges) & self.bad

    def _finish(self, suspects, ranges):
        (self.buried if suspects.buries(ranges) else self.handled).extend(offsets(ranges))
        self.sizes.append(records_in(ranges))
        for one in ranges:
            self.left.remove(one)


@pytest.mark.parametrize("rerun", [True, False])
@pytest.mark.parametrize(("records", "starts"), [(2, 6), (20, 8), (1000, 10), (100_000, 14)])
def test_one_bad_record_becomes_the_only_dead_letter_and_all_others_are_handled_once(records, starts, rerun):
    query = Query(records, bad=[records // 3], rerun=rerun, batch=records)

    query.run(starts)

    assert query.buried == list(query.bad)
    assert len(query.handled) == len(set(query.handled)) == records - 1


def test_several_bad_records_are_all_found():
    query = Query(400, bad=[0, 7, 8, 250, 398], batch=100)

    query.run(30)
    query.left.add(Range("t", 0, 200, 200))  # the last one has others to be compared with
    query.run(60)

    assert set(query.buried) == query.bad
    assert sorted(query.handled + query.buried) == sorted([*offsets(Query(400).left.ranges()), ("t", 0, 200)])


@pytest.mark.parametrize("records", [1, 20, 1000])
def test_workers_that_die_for_another_reason_make_no_dead_letter_however_long_it_takes(records):
    query = Query(records, batch=records, partitions=1)
    query.workers_die = lambda: query.starts < 60

    query.run(70)

    assert query.buried == []
    assert len(query.handled) == records


def test_the_only_record_there_is_is_tried_until_others_went_through():
    query = Query(1, bad=[0], partitions=1)

    query.run(30)
    assert (query.buried, query.handled) == ([], [])

    query.left.add(Range("t", 0, 1, 5))
    query.run(40)
    assert query.buried == [("t", 0, 0)]
    assert len(query.handled) == 5


def test_a_batch_that_kills_workers_once_is_run_again_as_it_is():
    suspects = Narrowing()
    for times in range(WHOLE):
        suspects.failed(1, [Range("t", 0, 0, 99)], times=times)
        assert not suspects
        assert not suspects.is_void(1)
    suspects.failed(1, [Range("t", 0, 0, 99)], times=WHOLE)
    assert suspects.told == "a batch of 100 records killed its workers: they come again in batches of 12"
    assert suspects.is_void(1)


def test_what_was_narrowed_for_nothing_grows_again_after_each_batch_that_succeeds():
    query = Query(2000, batch=2000, partitions=1)
    query.workers_die = lambda: query.starts < 8

    query.run(9)

    assert len(query.handled) == 2000
    assert len(query.sizes) < 16, query.sizes


def test_others_are_not_run_one_by_one_when_the_bad_one_is_found():
    query = Query(2000, bad=[13], batch=2000, partitions=1)

    query.run(20)

    assert query.buried == [("t", 0, 13)]
    assert len(query.sizes) < 30, query.sizes


def test_only_a_worker_that_a_task_lost_is_a_records_fault():
    lost = "Lost task 0.1 in stage 1.0 (TID 5) (host executor driver): org.apache.spark.SparkException: "
    assert killed(f"Job aborted: x\n{lost}Python worker exited unexpectedly (crashed)\n at y")
    assert not killed(f"{lost}java.sql.SQLException: the table is away")
    assert not killed("Python worker exited unexpectedly (crashed)"), "it was the source's own process"


def test_what_is_switched_off_keeps_its_void_batches_and_suspects_nobody():
    suspects = Narrowing()
    suspects.failed(1, [Range("t", 0, 0, 9)], times=2)

    off = suspects.switched_off()

    assert off.is_void(1)
    assert not off


def test_what_the_group_has_finished_and_topics_that_were_made_anew_are_forgotten():
    suspects = Narrowing()
    suspects.failed(1, [Range("a", 0, 0, 9), Range("b", 0, 0, 9)], times=1, whole=False)
    suspects.prune({("a", 0): 10})
    suspects.forget("b")
    assert not suspects


def test_void_batches_are_remembered_as_long_as_spark_remembers_batches():
    suspects = Narrowing()
    for number in range(1, VOID_KEPT + 3):
        suspects.failed(number, [Range("t", 0, number * 10, number * 10 + 5)], times=1, whole=False)
    assert not suspects.is_void(2)
    assert suspects.is_void(3)


@pytest.mark.parametrize("seed", range(30))
def test_whatever_fails_every_record_ends_once(seed, capsys):
    dice = random.Random(seed)
    count = dice.randint(1, 300)
    bad = [number for number in range(count) if dice.random() < 0.01]
    query = Query(count, bad=bad, rerun=dice.random() < 0.5, batch=dice.randint(1, 100), partitions=1)
    query.workers_die = lambda: query.starts % 7 == 5

    query.run(1500)

    ended = query.handled + query.buried
    assert len(ended) == len(set(ended))
    assert query.bad & set(query.handled) == set()
    assert len(query.left) <= (1 if len(bad) else 0), "only a bad record without any other left to compare it with"
