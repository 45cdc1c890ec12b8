"""Drawings: pure, bounded, escaped; a strip says of each offset the state that it has."""

from __future__ import annotations

import random
import re
from xml.etree import ElementTree

import pytest
from markupsafe import Markup

from flowshare.console.charts import (
    CELLS_MAX,
    POINTS_MAX,
    STATES,
    WIDTH,
    Bar,
    Cell,
    Run,
    Series,
    bars,
    cells,
    lines,
    strip,
)

EVIL = '<script>alert("1")</script>&'


def drawn(points, since=0.0, until=100.0):
    made = lines([Series("a", 0, points)], since, until, show=str, title="t")
    found = re.search(r' d="([^"]*)"', made)
    return "" if found is None else found.group(1)


def well_formed(made):
    assert isinstance(made, Markup)
    return ElementTree.fromstring(f"<x>{made}</x>")


def test_a_line_holds_each_value_until_the_next_one():
    assert drawn([(0, 1.0), (50, 2.0)]) == "M0.0 60.0H320.0V4.0H640.0"


def test_what_is_not_known_is_a_gap():
    assert drawn([(0, 2.0), (25, None), (50, 2.0)]) == "M0.0 4.0H160.0M320.0 4.0H640.0"
    assert drawn([(0, None)]) == ""
    assert drawn([]) == ""


@pytest.mark.parametrize(
    "points",
    [
        [(-1e9, 5.0), (1e9, 5.0)], [(0, 0.0)], [(0, -3.0)], [(0, 1e300)], [(0, 1e-300)],
        [(at, float(at % 7)) for at in range(100_000)],
    ],
)  # fmt: skip
def test_a_line_stays_in_its_picture_and_is_bounded(points):
    path = drawn(points)
    made = well_formed(lines([Series("a", 0, points)], 0, 100, show=str, title="t"))

    assert made is not None
    assert "nan" not in path
    assert "inf" not in path
    assert path.count("H") <= POINTS_MAX + 2
    assert all(0 <= float(x) <= WIDTH for x in re.findall(r"[HM]([\d.e+-]+)", path))


def test_a_time_without_length_is_drawn():
    assert drawn([(5, 1.0)], since=5, until=5)


def test_names_are_text():
    for made in (
        lines([Series(EVIL, 0, [(0, 1.0)])], 0, 1, show=lambda _: EVIL, title=EVIL),
        bars([Bar(EVIL, 1, EVIL, EVIL)], EVIL),
        strip([Cell(0, 0, "available", False)], lambda _: EVIL),
    ):
        well_formed(made)
        assert "<script" not in made


def test_bars_are_as_long_as_their_values():
    made = bars([Bar("a", 4, "4"), Bar("b", 1, "1", "/x?a=1&b=2"), Bar("c", 0, "0")], "t")

    assert re.findall(r'width="([^"]*)"', made) == ["100.0", "25.0", "0.0"]
    assert 'href="/x?a=1&amp;b=2"' in made
    assert re.findall(r'width="([^"]*)"', bars([Bar("a", 0, "0")], "t")) == ["0"]
    well_formed(bars([], "t"))


def test_each_offset_has_a_cell_as_long_as_there_are_few():
    found = cells([Run(5, 6, "acquired", True), Run(8, 8, "hole")], 5, 10)

    assert found == [
        Cell(5, 5, "acquired", True),
        Cell(6, 6, "acquired", False),
        Cell(7, 7, "available", False),
        Cell(8, 8, "hole", False),
        Cell(9, 9, "available", False),
    ]


def by_hand(runs, first, end, cells_max):
    each = -(-(end - first) // cells_max)
    states = dict.fromkeys(range(first, end), "available")
    for run in runs:
        states |= dict.fromkeys(range(max(first, run.first), min(run.last, end - 1) + 1), run.state)
    made = []
    for begin in range(first, end, each):
        last = min(begin + each, end) - 1
        worst = min((states[offset] for offset in range(begin, last + 1)), key=STATES.index)
        made.append(Cell(begin, last, worst, any(run.mark and begin <= run.first <= last for run in runs)))
    return made


@pytest.mark.parametrize("seed", range(30))
def test_a_cell_shows_the_state_of_its_offsets_that_matters_most(seed):
    rng = random.Random(seed)
    first, at, runs = rng.randrange(1_000), 0, []
    at = first + rng.randrange(-20, 20)
    for _ in range(rng.randrange(40)):
        length = rng.choice((1, 1, 2, 30))
        runs.append(Run(at, at + length - 1, rng.choice(STATES), rng.random() < 0.2))
        at += length + rng.choice((0, 0, 5))
    end = first + rng.randrange(1, 700)
    cells_max = rng.choice((1, 7, 100, 1_000))

    assert cells(runs, first, end, cells_max=cells_max) == by_hand(runs, first, end, cells_max), seed


def test_a_window_of_200_000_offsets_is_a_thousand_cells():
    runs = [Run(at, at, "acquired" if at % 40 else "archived") for at in range(0, 200_000, 20)]

    found = cells(runs, 0, 200_000)

    assert len(found) == CELLS_MAX
    assert {one.last - one.first for one in found} == {199}
    assert {one.state for one in found} == {"acquired"}
    assert strip(found, lambda cell: f"/x?{cell.first}").count("<rect") == CELLS_MAX


@pytest.mark.parametrize(("first", "end"), [(0, 0), (5, 5), (9, 3), (0, 1), (2**62, 2**62 + 3)])
def test_odd_windows_are_drawn(first, end):
    found = cells([Run(0, 2**63 - 1, "acquired", True), Run(-5, -1, "delayed")], first, end)

    assert len(found) == max(0, end - first)
    well_formed(strip(found, lambda _: "/"))


def test_a_state_that_nobody_knows_is_shown_as_a_hole():
    assert cells([Run(0, 0, "new in 2027")], 0, 1)[0].state == "hole"
