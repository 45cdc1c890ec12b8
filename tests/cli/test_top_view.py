"""The screen of `flowshare top`: lines from what is known of groups, at any size, and what keys do to it."""

from __future__ import annotations

import random

import pytest
from rich.cells import cell_len

from flowshare.cli.keys import keys_of
from flowshare.cli.top_view import GROUPS_MAX, SORTS, Act, Screen, per_s, short, short_age
from flowshare.ops.figures import GroupFigures, PartitionFigures, TopicFigures

NOW = 1_000.0
PAUSED = {"share.paused": "true"}


def row(group, *, backlog=120, oldest_s=4.2, rate=11.4, **more):
    total = TopicFigures(group, "t", 1, backlog, 16, oldest_age_s=oldest_s, arrival_rate=12.0, rate=rate)
    return GroupFigures(**{"name": group, "state": "Stable", "seen_s": NOW, "topics": (total,), **more})


def screen(*rows, **more):
    made = Screen(where="/tmp/shop", **more)
    made.update({one.name: one for one in rows}, NOW)
    return made


def texts(made, width=80, height=24, now_s=NOW):
    return [line.text for line in made.lines(width, height, now_s)]


STALLED = row(
    "shop.ship", backlog=9_000, oldest_s=600.0, stall="all 9000 unfinished records wait for the end of a delay"
)


def test_80_columns_hold_everything_and_a_reason_has_a_line_of_its_own():
    lines = texts(screen(row("shop.bill"), STALLED), height=8)

    assert lines == [
        "flowshare top: 2 groups, 1 with trouble, backlog 9120, by trouble  /tmp/shop",
        "GROUP                      STATE BACKLOG FLIGHT DELAYED OLDEST  IN/S OUT/S AGAIN",
        " shop.ship                stable    9000     16       0  10m0s    12    11     0",
        "   all 9000 unfinished records wait for the end of a delay",
        " shop.bill                stable     120     16       0     4s    12    11     0",
        "",
        "",
        "q quit  j/k choose  enter members  p pause/resume  s sort",
    ]


@pytest.mark.parametrize("width", [1, 20, 39, 40, 60, 79, 80, 81, 120, 400])
@pytest.mark.parametrize("height", [1, 4, 10, 50])
def test_it_fits_any_terminal(width, height):
    made = screen(*(row(f"group-{n}", stall="x" * 500 if n % 3 else None) for n in range(60)), STALLED)
    made.chosen = "group-7"
    for opened in (None, "group-7"):
        made.opened = opened
        lines = made.lines(width, height, NOW)
        assert len(lines) == max(4, height)
        assert all(cell_len(line.text) <= max(20, width) for line in lines)


def test_a_narrow_terminal_does_without_what_matters_least():
    heading = texts(screen(row("shop.bill")), width=50)[1]

    assert "BACKLOG" in heading
    assert "AGAIN" not in heading
    assert "DELAYED" not in heading


def test_names_are_cut_and_obey_nobody():
    evil = "x\x1b[2Jy\u202e" + "é世界" * 30
    lines = texts(screen(row(evil, stall="bad\x1b]0;title\x07\nmore")))

    assert not any("\x1b" in line or "\u202e" in line or "\n" in line for line in lines)
    assert all(cell_len(line) <= 80 for line in lines)
    assert "…" in lines[2]


def test_numbers_stay_narrow():
    counts = [0, 7, 99_999, 100_000, 1_234_567, 999_999_999, 5 * 10**9, 10**15, -4]
    assert [short(count) for count in counts] == ["0", "7", "99999", "100k", "1.2M", "1000M", "5.0G", ">1T", "-4"]
    assert [per_s(rate) for rate in (None, 0.0, 0.25, 9.94, 10.0, 123_456.0)] == [
        "-", "0", "0.2", "9.9", "10", "123k",
    ]  # fmt: skip
    ages = [None, 0.4, 59.9, 61.0, 3_700.0, 100_000.0]
    assert [short_age(one) for one in ages] == ["-", "0s", "59s", "1m1s", "1h1m", "1d3h"]


def test_what_stands_still_comes_first_and_s_sorts_otherwise():
    made = screen(row("a", backlog=5), row("b", backlog=900, rate=1.0), STALLED)
    assert [one.name for one in made.order()] == ["shop.ship", "b", "a"]

    seen = set()
    for _ in SORTS:
        seen.add(made.sort)
        made.press("s")
    assert seen == set(SORTS)
    made.sort = "backlog"
    assert [one.name for one in made.order()] == ["shop.ship", "b", "a"]
    made.sort = "name"
    assert [one.name for one in made.order()] == ["a", "b", "shop.ship"]


def test_the_chosen_group_stays_chosen_and_is_always_seen():
    made = screen(*(row(f"g{n:03}") for n in range(300)), sort="name")
    for _ in range(120):
        made.press("down")
        shown = made.lines(80, 12, NOW)
        assert any(line.style == "selected" for line in shown)
    assert made.chosen == "g119"
    made.press("up")
    assert made.chosen == "g118"
    made.press("end")
    assert made.chosen == "g299"
    made.update({"g001": row("g001")}, NOW)
    assert made.chosen is None


def test_pausing_asks_first():
    made = screen(row("a"), row("b", settings=PAUSED), row("c", kind="cooperative"), sort="name")
    assert made.press("p") is None
    made.press("j")
    assert made.press("p") is None
    assert texts(made)[-1] == "hand out nothing more of group a? y/n"
    assert made.press("n") is None
    assert made.asking is None
    made.press("p")
    assert made.press("y") == Act("pause", "a")

    made.press("j")
    made.press("p")
    assert texts(made)[-1] == "go on with group b? y/n"
    assert made.press("y") == Act("resume", "b")
    made.press("j")
    made.press("p")
    assert "cannot be paused from outside" in texts(made)[1]


def test_enter_opens_a_group_and_goes_back():
    made = screen(row("a"), STALLED, sort="name")
    assert made.press("enter") is None
    made.press("j")
    assert made.press("enter") == Act("open", "a")
    assert "asking …" in texts(made)
    part = PartitionFigures("a", "orders", 3, start_offset=41, backlog=7, in_flight=2, delayed=1)
    member = {"member": "m1", "host": "10.0.0.7", "client": "shop", "partitions": 4}
    made.rows["a"] = row("a", partitions=[part] * 40)
    made.members = "a", [member]

    first = texts(made)
    assert any(line.split() == ["orders-3", "41", "7", "2", "1", "-", "-"] for line in first)
    for _ in range(100):
        made.press("down")
    assert any("10.0.0.7" in line for line in texts(made))
    assert made.shown(20) == ["a"]
    made.press("esc")
    assert made.opened is None


def test_a_broker_that_is_gone_leaves_the_last_figures_with_their_age():
    made = screen(row("a"))
    made.trouble = "the broker is not reached: connection refused"
    lines = made.lines(80, 10, NOW + 42)

    assert lines[1].text == "the broker is not reached: connection refused; what is below is 42.0 s old"
    assert (lines[3].text.split()[0], lines[3].style) == ("a", "dim")
    made.update({"a": row("a", seen_s=NOW + 50)}, NOW + 50)
    assert made.lines(80, 10, NOW + 50)[2].style == "row"


def test_thousands_of_groups_are_counted_and_bounded():
    names = [f"g{n:05}" for n in range(12_000)]
    made = Screen()
    made.update({name: row(name) if name < "g00050" else GroupFigures(name=name) for name in names}, NOW)

    assert len(made.rows) == GROUPS_MAX
    assert "12000 groups (2000 more are not shown)" in texts(made, width=200)[0]
    assert len(texts(made)) == 24


def test_nothing_is_said_so():
    assert "asking …" in texts(Screen())
    assert "there are no share or cooperative groups" in texts(screen())


@pytest.mark.parametrize("seed", range(5))
def test_any_keys_at_any_time_leave_a_screen(seed):
    choose = random.Random(seed)
    made = Screen()
    keys = ["j", "k", "s", "p", "y", "n", "enter", "esc", "up", "down", "pgdn", "home", "end", "x", "left", "right"]
    for _ in range(300):
        made.press(choose.choice(keys))
        if choose.random() < 0.2:
            names = [f"g{n}" for n in range(choose.choice((0, 1, 30)))]
            made.update({name: row(name, settings=choose.choice(({}, PAUSED))) for name in names}, NOW)
        size = choose.choice((10, 80)), choose.choice((3, 24))
        assert len(made.lines(*size, NOW)) == max(4, size[1])


def test_keys_of_a_terminal_are_read():
    assert keys_of("jq\x1b[A\x1bOB\r\x1b[5~") == ["j", "q", "up", "down", "enter", "pgup"]
    assert keys_of("\x1b") == ["esc"]
    assert keys_of("\x1b[1;5Cx\x1b[200~") == ["x"]
    assert keys_of("\x03\x04\x7f") == ["ctrl-c", "ctrl-d", "backspace"]
    assert keys_of("\x00\x01") == []
