"""The comparison of modes (`benchmarks/modes`): when a trial counts, what its events say, how cells are shown."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import plot
from benchmarks.modes import arms, judge, page, table, workloads
from benchmarks.modes.arms import AT_LEAST, AT_MOST, EXACTLY, Arm
from benchmarks.modes.journal import Event, Journal, Kind, Reader, create
from benchmarks.modes.table import Column, Notes, Results
from benchmarks.modes.work import Failed, Handler, Work, key_of, number_of, value_of
from benchmarks.modes.workloads import Sample

PLAIN = Arm(name="plain", kind="share")
ORDERED = Arm(name="ordered", kind="share", ordered=True)
ONCE_AT_MOST = Arm(name="at most once", kind="plain", delivery=AT_MOST, ordered=True)
ONCE = Arm(name="once", kind="share", delivery=EXACTLY)
EMPTY = {("a", "W1", ""): "it cannot", ("b", "W1", ""): "it cannot", ("c", "", ""): "left out"}
RATE = Column(title="rate", workload="W1", figure="rate")


def events(*told: tuple[float, int, Kind]) -> list[Event]:
    return [Event(at, record, 0, kind) for at, record, kind in told]


def handled(*records: int) -> list[Event]:
    """Begun and ended one after the other."""
    return [
        Event(at + part / 2, record, 0, kind)
        for at, record in enumerate(records)
        for part, kind in enumerate((Kind.BEGUN, Kind.ENDED))
    ]


# --- when a trial counts


def test_a_trial_counts_when_every_record_ended_though_some_ran_twice() -> None:
    assert judge.complaints(PLAIN, handled(1, 0, 1, 2), 3, 10) == []


def test_a_trial_does_not_count_when_a_record_never_ended() -> None:
    assert judge.complaints(PLAIN, handled(0, 2), 3, 10) == ["1 of 3 records never ended"]


def test_a_record_that_nobody_sent_makes_a_trial_void() -> None:
    assert judge.complaints(PLAIN, handled(0, 1, 7), 2, 10) == ["1 records that nobody sent, 7 for one"]


def test_at_most_once_a_trial_does_not_count_when_a_record_ran_twice() -> None:
    assert "1 records ran twice" in judge.complaints(ONCE_AT_MOST, handled(0, 1, 0), 2, 10)


def test_at_most_once_a_crash_may_cost_records_and_nothing_else_may() -> None:
    assert judge.complaints(ONCE_AT_MOST, handled(0, 2), 3, 10, crashed=True) == []
    assert judge.complaints(ONCE_AT_MOST, handled(0, 2), 3, 10) == ["1 of 3 records never ended"]


def test_a_record_that_begins_before_the_one_before_of_its_key_has_ended_breaks_the_order() -> None:
    overlap = events((0, 0, Kind.BEGUN), (1, 2, Kind.BEGUN), (2, 0, Kind.ENDED), (3, 2, Kind.ENDED))
    in_order = events((0, 0, Kind.BEGUN), (1, 1, Kind.BEGUN), (2, 0, Kind.ENDED), (3, 2, Kind.BEGUN))

    assert judge.out_of_order(overlap, 2) == 1
    assert judge.out_of_order(in_order, 2) == 0


def test_a_record_that_failed_holds_up_the_next_one_of_its_key_where_it_is_tried_again() -> None:
    passed_over = events((0, 0, Kind.BEGUN), (1, 0, Kind.FAILED), (2, 2, Kind.BEGUN), (3, 2, Kind.ENDED))

    assert judge.out_of_order(passed_over, 2) == 1
    assert judge.out_of_order(passed_over, 2, begun_is_enough=True) == 0


def test_order_is_asked_of_those_only_that_promise_it() -> None:
    backwards = handled(1, 0)

    assert judge.complaints(PLAIN, backwards, 2, 1) == []
    assert judge.complaints(ORDERED, backwards, 2, 1) == [
        "1 records began before the one before them of their key had ended"
    ]


def test_outputs_are_there_once_each_where_that_was_promised() -> None:
    assert judge.output_complaints(ONCE, Counter({0: 1, 1: 1}), 2) == []
    assert judge.output_complaints(ONCE, Counter({0: 2}), 2) == [
        "1 outputs of 2 are missing",
        "1 outputs are there twice",
    ]


# --- what events say


def test_a_quantile_is_a_value_that_was_measured() -> None:
    values = [float(one) for one in range(1, 101)]

    assert [judge.quantile(values, part) for part in (0.0, 0.5, 0.99, 1.0)] == [1, 50, 99, 100]
    assert judge.quantile([7.0], 0.5) == 7


def test_a_rate_leaves_the_warm_up_out() -> None:
    slow_then_fast = events(
        *((float(at), at, Kind.ENDED) for at in range(5)), *((4 + at / 10, 4 + at, Kind.ENDED) for at in range(1, 6))
    )

    assert judge.rate_after(slow_then_fast, 0.4) == pytest.approx(10)


def test_a_redelivery_is_counted_from_the_failure_to_the_next_attempt() -> None:
    told = events((0, 0, Kind.BEGUN), (1, 0, Kind.FAILED), (1.5, 1, Kind.BEGUN), (3, 0, Kind.BEGUN), (4, 0, Kind.BEGUN))

    assert judge.redeliveries(told) == [2]
    assert judge.duplicates(told) == 2


def test_a_group_is_back_when_95_of_100_records_that_became_due_since_the_kill_are_done() -> None:
    records = range(100)

    def due(record: int) -> float:
        return record / 10

    prompt = {record: due(record) + 0.01 for record in records}
    stalled = {record: max(due(record), 5.0) for record in records}

    assert judge.back_after(prompt, due, records, 2.0) == 0
    assert judge.back_after(stalled, due, records, 2.0) == pytest.approx(3.0, abs=0.1)


# --- what handlers note


def test_a_journal_is_read_while_it_is_written(tmp_path: Path) -> None:
    file = tmp_path / "journal"
    create(file, 3)
    writer, reader = Journal(file), Reader(file)
    writer.note(0, 5, Kind.BEGUN)
    writer.note(0, 5, Kind.ENDED)

    assert reader.count() == 2
    assert [one[1:] for one in reader.events()] == [(0, 5, Kind.BEGUN), (0, 5, Kind.ENDED)]
    assert [one.kind for one in reader.events(1)] == [Kind.ENDED]


def test_a_full_journal_drops_what_comes(tmp_path: Path) -> None:
    file = tmp_path / "journal"
    create(file, 2)
    writer = Journal(file)
    for record in range(9):
        writer.note(record, 0, Kind.ENDED)

    assert Reader(file).count() == 2


def test_who_reads_a_journal_can_hurry_the_handlers(tmp_path: Path) -> None:
    file = tmp_path / "journal"
    create(file, 1)
    writer = Journal(file)
    assert not writer.hurried
    Reader(file).hurry()

    assert writer.hurried


def test_a_record_fails_once_in_a_process_and_ends_then(tmp_path: Path) -> None:
    file = tmp_path / "journal"
    create(file, 9)
    handler = Handler(Work(fail_every=10), Journal(file))
    with pytest.raises(Failed):
        handler.now(value_of(5), 0)
    handler.now(value_of(5), 0)

    assert [one.kind for one in Reader(file).events()] == [Kind.BEGUN, Kind.FAILED, Kind.BEGUN, Kind.ENDED]


def test_a_value_says_its_number_and_the_record_before_of_a_key_is_known() -> None:
    assert len(value_of(70_000)) == 100
    assert number_of(value_of(70_000)) == 70_000
    assert key_of(1_234, 1_000) == key_of(234, 1_000)


# --- tables


def sample(arm: str, rate: float, turn: int = 0, *complaints: str) -> Sample:
    return Sample("W1", "", arm, turn, {"rate": rate}, {}, list(complaints))


def test_a_cell_is_the_median_with_the_least_and_the_most() -> None:
    results = Results(["a"], [sample("a", 300), sample("a", 100, 1), sample("a", 200, 2)], {})

    assert table.cell(results, "a", RATE, Notes(), spreads=False) == "200"
    assert table.cell(results, "a", RATE, Notes(), spreads=True) == "200 (100–300)"


def test_one_trial_that_does_not_count_makes_its_cell_void() -> None:
    results = Results(["a"], [sample("a", 300), sample("a", 100, 1, "1 of 3 records never ended")], {})

    assert table.cell(results, "a", RATE, Notes(), spreads=False) == table.VOID
    assert results.complaints() == ["a, W1 , round 2: 1 of 3 records never ended"]


def test_an_empty_cell_says_why_in_a_footnote_that_others_share() -> None:
    results = Results(["a", "b", "c"], [], EMPTY)
    notes = Notes()

    assert [row[1] for row in table.rows(results, [RATE], notes, spreads=False)] == ["rate", "—[1]", "—[1]", "—[2]"]
    assert notes.lines() == ["[1] it cannot", "[2] left out"]


def test_numbers_have_three_digits_that_count() -> None:
    assert [table.number(one) for one in (123_456, 99.96, 1.234, 0.1234, 0.01234, 0, -980)] == [
        "123,000",
        "100",
        "1.23",
        "0.123",
        "0.012",
        "0",
        "-980",
    ]


def test_a_table_for_the_screen_has_its_columns_below_each_other() -> None:
    lines = table.plain([["mode", "x"], ["a", "1,000"]])

    assert lines == ["mode      x", "a     1,000"]


def test_every_figure_of_the_tables_is_one_of_a_workload_and_its_variants() -> None:
    variants = {one.number: one.variants for one in workloads.WORKLOADS}
    columns = [*table.HEADLINE, *(column for each in table.DETAILS.values() for column in each)]

    assert [one.title for one in columns if one.variant not in variants[one.workload]] == []
    assert set(table.DETAILS) == set(variants)


def test_names_of_arms_are_unique() -> None:
    names = [one.name for one in arms.ARMS]

    assert len(set(names)) == len(names)
    assert {one.delivery for one in arms.ARMS} == {AT_LEAST, AT_MOST, EXACTLY}


# --- the page


def test_figures_are_put_between_the_marks_of_a_page() -> None:
    first = page.replaced(f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n", "new\n")

    assert first == f"before\n{page.BEGIN}\n\nnew\n\n{page.END}\nafter\n"
    assert page.replaced(first, "new\n") == first


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="has no lines"):
        page.replaced("nothing here", "new")


def test_the_page_of_modes_has_the_marks() -> None:
    text = (Path(__file__).parents[2] / "docs/modes.md").read_text()

    assert page.replaced(text, "new").count(page.BEGIN) == 1


def test_a_run_leaves_figures_and_plots(tmp_path: Path) -> None:
    found = [
        sample("a", 300),
        Sample("W4", "", "a", 0, {"p50": 2.0, "p99": 20.0, "max": 30.0}),
        Sample("W3", "", "a", 0, {"common p99": 0.4}),
        *(Sample("W5", one, "a", 0, {"speed-up": int(one) * 0.9}) for one in workloads.MEMBERS),
    ]
    page.write(tmp_path, None, Results(["a", "b"], found, {("b", "", ""): "left out"}), {"seed": "7"}, ["a"])

    text = (tmp_path / "figures.md").read_text()
    assert "### W4: head of line" in text
    assert "- [1] not measured in this run" in text
    for name in (page.SPEED_UP, page.LATENCY, page.HEAD):
        assert f"(./{name})" in text
        ElementTree.parse(tmp_path / name)


def test_lines_of_one_point_each_can_be_drawn(tmp_path: Path) -> None:
    plot.lines(tmp_path / "one.svg", "one", [("a <b>", [(1.0, 0.5)])], x_label="x", y_label="y")

    assert "a &lt;b&gt;" in (tmp_path / "one.svg").read_text()
