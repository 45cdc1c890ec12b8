"""No name from outside tells a terminal what to do, and none begins a log line."""

from __future__ import annotations

import json
import logging
import sys

import click
import pytest

from flowshare.agents.host import inflight
from flowshare.cli import main
from flowshare.cli.logs import TRACE_MAX, JsonFormatter, TextFormatter
from flowshare.cli.output import cell, emit_json, explain, say, show
from flowshare.printable import printable, printable_json

EVIL = "a\x1b]0;title\x07\r\x9b2J\u202eb\u2066\u2028c\ud800\x7f\x00\U000e0041"
SAFE = r"a\x1b]0;title\x07\r\x9b2J\u202eb\u2066\u2028c\ud800\x7f\x00\U000e0041"


def logged(formatter: logging.Formatter, message: str, *args: object, exc_info=None, **more) -> str:
    record = logging.LogRecord("shop", logging.WARNING, __file__, 1, message, args, exc_info)
    record.__dict__.update(more)
    return formatter.format(record)


def test_what_a_terminal_obeys_is_shown_as_its_escape():
    assert printable(EVIL) == SAFE
    assert printable("a\nb\tc") == "a\\nb\tc"
    assert printable("a\nb\x1b", lines=True) == "a\nb\\x1b"


@pytest.mark.parametrize("text", ["", "orders", "größe 漢字 ✓", "עברית", "نامه\u200cها", "👩\u200d🚀", "no\u00a0break"])
def test_what_people_write_stays(text):
    assert printable(text) == text
    assert printable_json(json.dumps(text, ensure_ascii=False)) == json.dumps(text, ensure_ascii=False)


def test_a_json_text_means_the_same_and_hides_nothing():
    document = {"name": EVIL, "lines": "a\nb"}

    shown = printable_json(json.dumps(document, indent=2, ensure_ascii=False))

    assert json.loads(shown) == document
    assert printable(shown, lines=True) == shown


def test_a_log_line_cannot_be_forged_by_a_name():
    forged = f"x\n09:15:02.123 INFO    shop: all is well {EVIL}"

    first, *others = logged(TextFormatter(), "login of %s failed", forged).split("\n")

    assert first.endswith("login of x")
    assert others == [f"  09:15:02.123 INFO    shop: all is well {SAFE} failed"]


def test_neither_the_delivery_nor_an_errors_text_reaches_a_terminal_raw():
    try:
        raise ValueError(f"bad\n09:15:02.123 INFO    forged {EVIL}")
    except ValueError:
        line = logged(TextFormatter(colour=True), "x", exc_info=sys.exc_info(), flowshare=f"[{EVIL}] ")

    coloured, *others = line.split("\n")
    assert coloured.count("\x1b") == 2
    assert printable("\n".join(others), lines=True) == "\n".join(others)
    assert all(other.startswith("  ") for other in others)
    assert SAFE in coloured


def test_a_json_log_line_is_one_line_that_can_be_written_and_read():
    line = logged(JsonFormatter(), "of %s", f"x\n{EVIL}", client=EVIL)

    assert line.isprintable()
    assert json.loads(line)["message"] == f"of x\n{EVIL}"
    assert json.loads(line)["client"] == EVIL


def test_a_log_line_has_a_bound():
    assert len(logged(TextFormatter(), "of %s", "x" * 10 * TRACE_MAX)) < TRACE_MAX + 100
    assert len(logged(JsonFormatter(), "of %s", "x" * 10 * TRACE_MAX)) < TRACE_MAX + 300


def test_tables_lines_and_json_of_commands_hide_nothing(capsys):
    rows = [{"group": EVIL, "members": 1}]
    show(rows, {"group": "group", "members": "members"}, as_json=False, empty="")
    show(rows, {"group": "group"}, as_json=True, empty="")
    show([], {"group": "group"}, as_json=False, empty=f"group {EVIL} has no parked keys")
    say(f"group {EVIL}\nforged")
    emit_json(EVIL)

    shown, told = capsys.readouterr()

    assert printable(shown, lines=True) == shown
    assert told == f"group {SAFE} has no parked keys\n"
    assert shown.count(SAFE) == 2
    assert f"group {SAFE}\\nforged\n" in shown
    assert cell(EVIL) == SAFE


def test_an_error_that_ends_a_command_is_one_safe_line(monkeypatch, capsys):
    assert explain(ValueError(EVIL)).startswith("ValueError: a\\x1b]0;")

    def fail(**_: object) -> None:
        raise click.UsageError(f"the broker says {EVIL}")

    monkeypatch.setattr("flowshare.cli.cli.main", fail)
    with pytest.raises(SystemExit):
        main(["groups"])
    assert f"the broker says {SAFE}" in capsys.readouterr().err


def test_what_a_signal_shows_of_handlers_is_safe():
    row = {
        "agent": "bill",
        "topic": EVIL,
        "partition": 0,
        "offset": 1,
        "attempt": 1,
        "age_s": 1.0,
        "lock_left_s": 1.0,
        "stack": f"line\n{EVIL}",
    }

    shown = inflight.text([row])

    assert printable(shown, lines=True) == shown
