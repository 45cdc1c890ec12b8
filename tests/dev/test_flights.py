"""The demo itself, on the first 20,000 flights, and its judgement."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import Counter

import pytest

from examples.flights import demo
from examples.flights.data import ROWS, Figures, classify_row, expected
from examples.flights.demo import FlightsOutcome, table


@pytest.mark.real
def test_the_first_20000_flights_survive_a_kill_and_the_table_agrees() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.flights", "--rows", "20000"],
        cwd=demo.ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing was lost" in done.stdout
    assert "DIFFERS" not in done.stdout
    assert "kill -9 of the worker" in done.stdout


@pytest.mark.slow
def test_the_raw_table_is_the_one_of_2013() -> None:
    figures = expected()

    assert figures.flights == ROWS == 336_776
    assert figures.cancelled == 8_255


@pytest.mark.parametrize(
    ("delay", "kind"),
    [(None, None), (-1, "early"), (0, "on time"), (15, "on time"), (16, "late"), (60, "late"), (61, "very late")],
)
def test_a_delay_has_one_class(delay: int | None, kind: str | None) -> None:
    assert classify_row(delay) == kind


@pytest.mark.parametrize(
    "flaw", [{"missing": 1}, {"produced": 9}, {"dead": 0}, {"flaky_retried": 2}, {"classes": Counter({"early": 6})}]
)
def test_a_figure_that_differs_is_named_and_fails_the_demo(flaw: dict[str, object]) -> None:
    wanted = Figures(flights=10, cancelled=3, flaky=1, classes=Counter({"early": 7}))
    right = {"produced": 10, "dead": 3, "flaky_retried": 1, "classes": Counter({"early": 7})}

    assert table(wanted, FlightsOutcome(**right))[1]
    lines, good = table(wanted, FlightsOutcome(**{**right, **flaw}))

    assert not good
    assert any("DIFFERS" in line for line in lines)


def test_the_plot_is_moved_into_a_fresh_folder_and_through_no_link_of_others(tmp_path, monkeypatch):
    shared = tmp_path / "shared"
    shared.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (shared / f"flowshare-demo-{demo.PICTURE}").symlink_to(victim)
    (tmp_path / demo.PICTURE).write_text("plot")

    picture = demo.kept_picture(tmp_path, keep=False)

    assert victim.read_text() == "mine"
    assert picture.read_text() == "plot"
    assert picture.parent.stat().st_mode & 0o777 == 0o700
