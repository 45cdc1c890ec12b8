"""Tables, JSON, ages and error lines as users see them."""

import json

import pytest

from flowshare.agents.handler.texts import age
from flowshare.cli.lag import SPARE, View, spoken
from flowshare.cli.output import cell, explain, fitting, rich_table, show
from flowshare.core_errors import InvalidConfig
from flowshare.ops import Failure

ROWS = [
    {"name": "orders", "partitions": 1, "topic_id": "x"},
    {"name": "orders-paid", "partitions": 12, "topic_id": "y"},
]
COLUMNS = {"name": "topic", "partitions": "partitions"}


def test_a_pipe_gets_plain_columns(capsys):
    show(ROWS, COLUMNS, as_json=False, empty="none", right=("partitions",))

    assert capsys.readouterr().out == "TOPIC        PARTITIONS\norders                1\norders-paid          12\n"


def test_json_has_all_keys(capsys):
    show(ROWS, COLUMNS, as_json=True, empty="none")

    assert json.loads(capsys.readouterr().out) == ROWS


def test_an_empty_list_is_said_on_stderr_and_is_an_empty_json_list(capsys):
    show([], COLUMNS, as_json=False, empty="there are no topics")
    assert capsys.readouterr() == ("", "there are no topics\n")

    show([], COLUMNS, as_json=True, empty="there are no topics")
    assert capsys.readouterr() == ("[]\n", "")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (-1, "-"),
        (0.85, "850 ms"),
        (12.34, "12.3 s"),
        (250, "4 m 10 s"),
        (11100, "3 h 5 m"),
        (187200, "2 d 4 h"),
    ],
)
def test_ages_are_for_people(seconds, text):
    assert age(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), ("", "-"), (0, "0"), (True, "yes"), (1.25, "1.2"), ("a", "a")]
)
def test_cells(value, text):
    assert cell(value) == text


def test_own_errors_speak_for_themselves_and_others_name_debug():
    assert explain(Failure("no such topic")) == "no such topic"
    assert explain(InvalidConfig("no setting 'x'")) == "no setting 'x'"
    assert explain(ExceptionGroup("several", [InvalidConfig("one")])) == "one"
    assert explain(KeyError("a\nb")) == "KeyError: 'a\\nb' (--debug shows where)"


def test_positions_that_are_not_known_are_words_for_people():
    row = {"group": "g", "start_offset": None, "backlog": None, "in_flight": None}

    assert spoken(row) == {
        "group": "g",
        "start_offset": "not known yet",
        "backlog": "not known yet",
        "in_flight": None,
    }
    assert spoken({"backlog": 0, "start_offset": 5}) == {"backlog": 0, "start_offset": 5}


def shown_in(width, rows, columns, spare, right=()):
    from io import StringIO

    from rich import box
    from rich.console import Console

    out = StringIO()
    kept = fitting(rows, columns, spare, width)
    Console(file=out, width=width).print(rich_table(rows, kept, right, box=box.SIMPLE_HEAD))
    return out.getvalue()


def test_lag_fits_a_terminal_of_80_columns_without_what_says_nothing():
    view = View(None, None, partitions=False, as_json=False)
    row = {
        "group": "shop.bill_customers",
        "topic": "orders-paid",
        "backlog": 1_234_567,
        "in_flight": 400,
        "delayed": 0,
        "oldest": "3 h 12 m",
        "arrival_rate": "1234.5/s",
        "rate": "1200.1/s",
        "redelivery_rate": None,
        "needed_workers": 12,
        "retention_left": "",
    }

    text = shown_in(80, [row], view.columns, SPARE)

    assert max(map(len, text.splitlines())) <= 80
    for value in ("1234567", "400", "3 h 12 m", "shop.bill_customers", "orders-paid"):
        assert value in text
    assert "retention" not in text
    assert set(fitting([row], view.columns, SPARE, 200)) == set(view.columns)


@pytest.mark.parametrize("width", range(70, 101))
def test_no_column_is_cut_off_whatever_the_width_of_the_terminal(width):
    columns = {
        "topic": "topic",
        "start_offset": "start offset",
        "in_flight": "in flight",
        "redeliveries": "redeliveries",
    }
    columns |= {"partition": "partition", "backlog": "backlog"}
    row = {"topic": "greetings", "start_offset": 1, "in_flight": 23, "redeliveries": 4567, "partition": 8, "backlog": 9}

    text = shown_in(width, [row], columns, (), right=tuple(columns)[1:])

    assert max(map(len, text.splitlines())) <= width
    for heading in " ".join(columns.values()).split():
        assert heading in text
    for value in row.values():
        assert str(value) in text
