"""What the supervisor of pipelines takes over from the progress of their queries."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace

import pytest

from flowshare.spark.supervisor import Figures, PipelineSupervisor, _Running


@pytest.fixture
def running():
    return _Running(pipeline=SimpleNamespace(), figures=Figures(name="etl", group="g"))


@pytest.fixture
def note(running):
    supervisor = PipelineSupervisor.__new__(PipelineSupervisor)

    def note(run, *said):
        supervisor._note_troubles(running, run, [{"latestOffset": one} for one in said])

    return note


def test_what_a_source_lost_is_in_the_figures_and_in_the_log_once(note, running, caplog):
    with caplog.at_level(logging.ERROR, "flowshare.pipeline"):
        for lost in (0, 5, 5, 7):
            note("run", json.dumps({"records_lost": lost, "locks_lost": 0}))

    assert running.figures.records_lost == 7
    assert [record.args[2] for record in caplog.records] == [5, 2]


def test_a_source_that_was_started_again_counts_from_zero(note, running):
    note("one", {"locks_lost": 3})
    note("two", {"locks_lost": 2})

    assert running.figures.locks_lost == 5


@pytest.mark.parametrize("said", [None, "", "no json", "[]", '{"records_lost": "many"}', {"other": 1}])
def test_sources_of_others_report_no_troubles(note, running, said):
    note("run", said)

    assert running.figures.records_lost == 0
