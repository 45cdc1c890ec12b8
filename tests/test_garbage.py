"""Settings of the interpreter while an app runs: made, undone, and an application's own choice left alone."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest

from flowshare.garbage import SWITCH_S, THRESHOLD, Tuning, collector_paused


@pytest.fixture(autouse=True)
def interpreter() -> Iterator[None]:
    switch_s, enabled, threshold = sys.getswitchinterval(), gc.isenabled(), gc.get_threshold()
    gc.unfreeze()
    yield
    gc.unfreeze()
    gc.set_threshold(*threshold)
    sys.setswitchinterval(switch_s)
    (gc.enable if enabled else gc.disable)()


def test_what_is_tuned_is_undone_at_the_end():
    sys.setswitchinterval(0.005)
    tuning = Tuning()

    tuning.apply()
    assert gc.get_freeze_count() > 0
    assert sys.getswitchinterval() == pytest.approx(SWITCH_S)

    tuning.undo()
    tuning.undo()
    assert gc.get_freeze_count() == 0
    assert sys.getswitchinterval() == pytest.approx(0.005)


def test_an_application_that_froze_or_switches_faster_keeps_its_choice():
    sys.setswitchinterval(0.0001)
    gc.freeze()
    tuning = Tuning()

    tuning.apply()
    tuning.undo()

    assert gc.get_freeze_count() > 0
    assert sys.getswitchinterval() == pytest.approx(0.0001)


def test_the_collector_looks_less_often_meanwhile_unless_the_application_chose():
    usual = gc.get_threshold()
    tuning = Tuning()
    tuning.apply()
    assert gc.get_threshold()[0] == THRESHOLD
    tuning.undo()
    assert gc.get_threshold() == usual

    gc.set_threshold(5_000, 7, 7)
    tuning.apply()
    tuning.undo()
    assert gc.get_threshold() == (5_000, 7, 7)


def test_a_choice_made_while_the_app_runs_stays():
    sys.setswitchinterval(0.005)
    tuning = Tuning()
    tuning.apply()

    sys.setswitchinterval(0.002)
    tuning.undo()

    assert sys.getswitchinterval() == pytest.approx(0.002)


def test_a_collector_that_is_off_stays_off():
    gc.disable()

    with collector_paused():
        pass
    tuning = Tuning()
    tuning.apply()

    assert not gc.isenabled()
    assert gc.get_freeze_count() == 0
