"""Log lines, in text and in JSON."""

import json
import logging
import sys

from flowshare.cli.logs import PERIOD_S, JsonFormatter, Repeats, TextFormatter


def made(**more):
    record = logging.LogRecord("shop", logging.WARNING, __file__, 1, "charged %s", ("c1",), None)
    record.__dict__.update(more)
    return record


HANDLER = {
    "flowshare": "[bill orders-0@17 attempt 2] ",
    "flowshare_agent": "bill",
    "flowshare_record": "orders-0@17",
    "flowshare_attempt": 2,
}


def test_a_text_line_of_a_handler_names_its_delivery():
    assert TextFormatter().format(made(**HANDLER)).endswith("WARNING shop: [bill orders-0@17 attempt 2] charged c1")


def test_a_text_line_outside_of_handlers_has_no_brackets():
    assert TextFormatter().format(made()).endswith("WARNING shop: charged c1")


def test_a_json_line_has_the_delivery_and_extra_fields():
    line = json.loads(JsonFormatter().format(made(**HANDLER, customer="c1")))

    assert line["message"] == "charged c1"
    assert (line["agent"], line["record"], line["attempt"]) == ("bill", "orders-0@17", 2)
    assert line["customer"] == "c1"
    assert not [name for name in line if name.startswith("flowshare")]


def test_a_json_line_has_the_trace_that_it_is_in():
    line = json.loads(JsonFormatter().format(made(flowshare_trace_id="ab", flowshare_span_id="cd")))

    assert (line["trace_id"], line["span_id"]) == ("ab", "cd")
    assert "trace_id" not in json.loads(JsonFormatter().format(made(flowshare_trace_id="", flowshare_span_id="")))


def test_an_error_keeps_its_traceback():
    try:
        raise ValueError("bad")
    except ValueError:
        record = made()
        record.exc_info = sys.exc_info()

    assert "ValueError: bad" in TextFormatter().format(record)
    assert json.loads(JsonFormatter().format(record))["error"] == "ValueError"


def test_the_lines_of_several_workers_are_told_apart():
    assert " WARNING [3] shop: charged c1" in TextFormatter(worker=3).format(made())
    assert json.loads(JsonFormatter(3).format(made()))["worker"] == 3
    assert "worker" not in json.loads(JsonFormatter().format(made()))


def shown(filtered, name, text, *args):
    """A line's text, or None when it is not shown."""
    record = logging.LogRecord(name, logging.WARNING, __file__, 1, text, args, None)
    return record.getMessage() if filtered.filter(record) else None


def test_what_a_client_says_at_each_try_is_shown_twice_a_minute_and_counted():
    now = [0.0]
    repeats = Repeats(lambda: now[0])
    lines = [shown(repeats, "aiokafka.conn", "no connection to %s", f"node {n}") for n in range(50)]

    assert lines[0] == "no connection to node 0"
    assert lines[1].startswith("no connection to node 1 (more like it")
    assert lines[2:] == [None] * 48

    now[0] = PERIOD_S
    assert shown(repeats, "aiokafka.conn", "no connection to %s", "node 9").endswith(
        "(48 more like it in the 60 s before)"
    )


def test_lines_of_other_kinds_and_of_the_application_are_all_shown():
    repeats = Repeats(lambda: 0.0)
    for _ in range(9):
        shown(repeats, "flowshare.client.net.link", "lost %s", "a")

    assert shown(repeats, "flowshare.client.net.link", "cannot connect %s", "a") == "cannot connect a"
    assert [shown(repeats, "shop", "charged %s", "c1") for _ in range(9)] == ["charged c1"] * 9
    assert [shown(repeats, "flowshare.pipeline", "running") for _ in range(9)] == ["running"] * 9
