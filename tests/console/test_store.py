"""History and audit: what is kept for how long, what is dropped, and disks that take nothing or hold something else."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from dataclasses import replace

import pytest

from flowshare.console.store import (
    AGAIN_S,
    AGENTS,
    AUDIT_MAX,
    FILE,
    GROUPS,
    MINUTES_KEPT_S,
    SECONDS_KEPT_S,
    SUBJECTS_MAX,
    TEXT_MAX,
    AgentFigures,
    AuditLine,
    Figures,
    Kept,
    Store,
)
from tests.disks import fill, small_disk

pytestmark = pytest.mark.asyncio
BEGUN_S = 1_700_000_040 - 1_700_000_040 % 60
LINE = AuditLine(
    at_ms=1, who="ann", role="operator", peer="127.0.0.1", action="pause", command="flowshare", outcome="begun"
)


@pytest.fixture(autouse=True)
def nothing_seen():
    """Forget the values that were written last: they are kept by kind, for the life of a process."""
    GROUPS._last.clear()
    AGENTS._last.clear()


@contextlib.asynccontextmanager
async def store(folder):
    made = Store(folder)
    await made.open()
    try:
        yield made
    finally:
        await made.close()


async def keep(made, at_s, **figures):
    """Write a look down, and wait until it is."""
    made.keep(GROUPS, at_s, {name: Figures(backlog=one) if not isinstance(one, Figures) else one
                             for name, one in figures.items()})  # fmt: skip
    await made.deeds()


async def backlog(made, subject, since_s, **more):
    return [(at_s - BEGUN_S, one.backlog) for at_s, one in await made.figures(GROUPS, subject, since_s, **more)]


def rows(made, table):
    with contextlib.closing(sqlite3.connect(made.path)) as db:
        return db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]


async def test_figures_are_told_from_a_time_on_with_what_held_then(tmp_path):
    async with store(tmp_path / "c") as made:
        for second in range(4):
            await keep(made, BEGUN_S + second, g=second, other=100)

        assert await backlog(made, "g", BEGUN_S + 2) == [(2, 1), (2, 2), (3, 3)]
        assert await backlog(made, "g", BEGUN_S - 5) == [(0, 0), (1, 1), (2, 2), (3, 3)]
        assert await backlog(made, "none", BEGUN_S) == []


async def test_what_does_not_change_is_written_once_a_minute():
    kind = Kept("x", Figures, lambda one: one.backlog or 0)
    still = {"g": Figures(backlog=1)}

    written = [second for second in range(3 * AGAIN_S) if kind.changed(second, still)]

    assert written == [0, AGAIN_S, 2 * AGAIN_S]


async def test_a_clock_that_was_set_back_does_not_stop_what_is_written(tmp_path):
    async with store(tmp_path / "c") as made:
        day = 24 * 3600
        await keep(made, BEGUN_S + day, g=1)
        for minute in range(3):
            await keep(made, BEGUN_S + 60 * minute, g=2)

        assert (0, 2) in await backlog(made, "g", BEGUN_S - 1)
        assert [one for one in await backlog(made, "g", BEGUN_S, minutes=True) if one[0] <= 60] == [(0, 2), (60, 2)]
        assert max(at for at, _ in await backlog(made, "g", BEGUN_S)) <= 120  # nothing is left of a time to come


async def test_a_group_that_was_gone_is_written_as_soon_as_it_is_back():
    kind = Kept("x", Figures, lambda one: one.backlog or 0)

    assert kind.changed(0, {"g": Figures(backlog=1)})
    assert not kind.changed(1, {})
    assert kind.changed(2, {"g": Figures(backlog=1)})


async def test_of_too_many_groups_the_busiest_are_written_and_the_others_as_soon_as_there_is_room():
    kind = Kept("x", Figures, lambda one: one.backlog or 0)
    looks = {f"g{number}": Figures(backlog=number) for number in range(SUBJECTS_MAX + 10)}

    first, second = kind.changed(0, looks), kind.changed(1, looks)

    assert len(first) == SUBJECTS_MAX
    assert min(one.backlog for _, one in first) == 10
    assert sorted(name for name, _ in second) == sorted(f"g{number}" for number in range(10))


async def test_seconds_are_kept_for_an_hour_and_minutes_for_a_day(tmp_path):
    async with store(tmp_path / "c") as made:
        for minute in range(0, 25 * 60, 5):
            for second in (0, 30):
                await keep(made, BEGUN_S + 60 * minute + second, g=minute * 60 + second)
            await keep(made, BEGUN_S + 60 * minute + 60, g=minute * 60 + 60)
        end_s = 25 * 3600

        seconds = await backlog(made, "g", 0)
        minutes = await backlog(made, "g", 0, minutes=True)

        assert min(at for at, _ in seconds) >= end_s - SECONDS_KEPT_S - 400
        assert min(at for at, _ in minutes) >= end_s - MINUTES_KEPT_S - 400
        assert len(minutes) > 24 * 60 / 5


async def test_a_minute_says_the_mean_of_what_held_in_it_and_the_largest_age(tmp_path):
    async with store(tmp_path / "c") as made:
        await keep(made, BEGUN_S, g=Figures(backlog=10, oldest_s=5))
        await keep(made, BEGUN_S + 20, g=Figures(backlog=20, oldest_s=50))
        await keep(made, BEGUN_S + 40, g=Figures(backlog=30, oldest_s=7))
        await keep(made, BEGUN_S + 60, g=Figures(backlog=0))

        ((_, one),) = await made.figures(GROUPS, "g", 0, minutes=True)
        assert (one.backlog, one.oldest_s) == (20, 50)


async def test_what_changes_often_for_a_moment_weighs_no_more_than_that_moment(tmp_path):
    async with store(tmp_path / "c") as made:
        await keep(made, BEGUN_S - 30, g=0)
        for second in range(54, 60):
            await keep(made, BEGUN_S + second, g=1_000 + second)
        await keep(made, BEGUN_S + 60, g=0)

        assert (await backlog(made, "g", BEGUN_S, minutes=True))[-1] == (0, sum(range(1_054, 1_060)) / 60)


async def test_what_is_not_known_for_a_while_is_no_part_of_the_mean(tmp_path):
    async with store(tmp_path / "c") as made:
        await keep(made, BEGUN_S, g=Figures(backlog=4, delayed=None))
        await keep(made, BEGUN_S + 30, g=Figures(backlog=None, delayed=None))
        await keep(made, BEGUN_S + 60, g=0)

        ((_, one),) = await made.figures(GROUPS, "g", 0, minutes=True)
        assert (one.backlog, one.delayed) == (4, None)


async def test_a_minute_before_a_time_without_looks_is_told_too(tmp_path):
    async with store(tmp_path / "c") as made:
        await keep(made, BEGUN_S + 5, g=10)
        await keep(made, BEGUN_S + 305, g=20)
        await keep(made, BEGUN_S + 365, g=30)

        assert await backlog(made, "g", 0, minutes=True) == [(0, 10), (60, 10), (300, 20)]


async def test_a_restart_keeps_figures_and_goes_on_with_minutes(tmp_path):
    async with store(tmp_path / "c") as made:
        await keep(made, BEGUN_S + 5, g=10)
    again = Store(tmp_path / "c")
    GROUPS._last.clear()
    await again.open()
    await keep(again, BEGUN_S + 365, g=30)

    assert await backlog(again, "g", 0) == [(5, 10), (365, 30)]
    assert await backlog(again, "g", 0, minutes=True) == [(0, 10), (60, 10)]
    await again.close()


async def test_figures_of_agents_are_kept_beside_those_of_groups(tmp_path):
    async with store(tmp_path / "c") as made:
        made.keep(AGENTS, BEGUN_S, {"bill": AgentFigures(handled=3)})
        await keep(made, BEGUN_S, bill=7)

        assert [one.figures.handled for one in await made.figures(AGENTS, "bill", 0)] == [3]
        assert await backlog(made, "bill", 0) == [(0, 7)]


async def test_names_are_no_sql(tmp_path):
    evil = "g'; DROP TABLE deed; --"
    async with store(tmp_path / "c") as made:
        await keep(made, BEGUN_S, **{evil: 1, "%": 2, "": 3})

        assert await backlog(made, evil, 0) == [(0, 1)]
        assert await backlog(made, "%", 0) == [(0, 2)]
        await made.note(LINE)
        assert len(await made.deeds()) == 1


async def test_half_a_surrogate_in_a_name_costs_nobodys_history(tmp_path):
    async with store(tmp_path / "c") as made:
        await keep(made, BEGUN_S, **{"ann": 1.0, "\ud800": 2.0})
        number = await made.note(replace(LINE, command="flowshare \ud800"))
        await made.end(number, "\udfff")

        assert [one for _, one in await backlog(made, "ann", BEGUN_S)] == [1.0]
        assert [one for _, one in await backlog(made, "\ud800", BEGUN_S)] == [2.0]
        (deed,) = await made.deeds()
        assert (deed.command, deed.outcome) == ("flowshare \\ud800", "\\udfff")
        assert made.trouble is None


async def test_deeds_are_told_newest_first_in_pages(tmp_path):
    async with store(tmp_path / "c") as made:
        for number in range(5):
            await made.end(await made.note(LINE), f"done {number}")

        assert [one.outcome for one in await made.deeds(limit=2)] == ["done 4", "done 3"]
        assert [one.outcome for one in await made.deeds(before=2)] == ["done 0"]


async def test_what_was_begun_when_the_console_ended_is_told_as_not_known(tmp_path):
    async with store(tmp_path / "c") as made:
        await made.end(await made.note(LINE), "group g is paused")
        await made.note(LINE)
    async with store(tmp_path / "c") as made:
        begun, done = await made.deeds()

    assert begun.outcome == "not known: the console ended meanwhile"
    assert done.outcome == "group g is paused"


async def test_the_audit_is_bounded_and_its_numbers_go_on(tmp_path):
    async with store(tmp_path / "c") as made:
        await made._run(lambda: made._write("INSERT INTO sqlite_sequence VALUES ('deed', ?)", (AUDIT_MAX + 6,)))
        await made._run(lambda: made._write("INSERT INTO deed (number, who) VALUES (7, 'old'), (8, 'kept')", ()))

        number = await made.note(LINE)

        assert number == AUDIT_MAX + 7
        assert [one.number for one in await made.deeds()] == [number, 8]


async def test_texts_of_the_audit_are_bounded(tmp_path):
    async with store(tmp_path / "c") as made:
        number = await made.note(AuditLine(1, "w" * 9_999, "r", "p", "a", "c" * 99_999, "begun"))
        await made.end(number, "o" * 99_999)

        (deed,) = await made.deeds()
        assert max(len(text) for text in (deed.who, deed.command, deed.outcome)) == TEXT_MAX


async def test_others_may_not_read_the_file(tmp_path):
    before = os.umask(0)
    try:
        async with store(tmp_path / "c") as made:
            await keep(made, BEGUN_S, g=1)
            assert [oct(one.stat().st_mode & 0o077) for one in (tmp_path / "c").iterdir() if FILE in one.name] == [
                "0o0"
            ] * 3
            assert made.path.parent.stat().st_mode & 0o077 == 0
    finally:
        os.umask(before)


async def test_it_is_closed_twice(tmp_path):
    made = Store(tmp_path / "c")
    await made.open()
    await made.close()
    await made.close()


async def test_looks_that_the_disk_is_too_slow_for_are_dropped(tmp_path):
    import threading

    async with store(tmp_path / "c") as made:
        held = threading.Event()
        made._thread.submit(held.wait)
        for second in range(100):
            made.keep(GROUPS, BEGUN_S + second, {"g": Figures(backlog=second)})
        held.set()

        assert len(await backlog(made, "g", 0)) == 8


# --- disks that take nothing, or hold something else -----------------------------------------------------------------


@pytest.mark.parametrize("bytes_", [b"this is no database" * 100, b"SQLite format 3\0" + b"\xff" * 9_000, b""])
async def test_a_file_that_is_no_database_is_set_aside_and_told(tmp_path, caplog, bytes_):
    folder = tmp_path / "c"
    folder.mkdir(mode=0o700)
    (folder / FILE).write_bytes(bytes_)

    async with store(folder) as made:
        await keep(made, BEGUN_S, g=1)
        assert await backlog(made, "g", 0) == [(0, 1)]
        assert await made.note(LINE) == 1

    if bytes_:
        (aside,) = folder.glob(f"{FILE}.damaged-*")
        assert aside.read_bytes() == bytes_
        assert str(aside) in caplog.text


async def test_a_database_whose_pages_are_damaged_is_set_aside_too(tmp_path, caplog):
    folder = tmp_path / "c"
    async with store(folder) as made:
        for second in range(200):
            await keep(made, BEGUN_S + second, **{f"g{number}": second for number in range(20)})
    data = bytearray((folder / FILE).read_bytes())
    for page in range(0, len(data), 4096):  # all but the header
        data[page + 100 : page + 4000] = b"\xa5" * 3900
    (folder / FILE).write_bytes(data)

    async with store(folder) as made:
        await made.note(LINE)

    assert "damaged" in caplog.text


async def test_a_database_that_is_found_damaged_later_is_told_and_pages_go_on(tmp_path):
    async with store(tmp_path / "c") as made:
        await keep(made, BEGUN_S, g=1)
        await made._run(lambda: made._write("DROP TABLE groups_second", ()))
        await made._run(lambda: made._write("DROP TABLE deed", ()))

        assert await made.figures(GROUPS, "g", 0) == []
        assert made.trouble is not None
        assert await made.deeds() == []


async def test_a_folder_that_cannot_be_written_costs_history_and_deeds_only(tmp_path):
    folder = tmp_path / "file"
    folder.write_text("no folder")

    made = Store(folder)
    await made.open()

    assert made.trouble is not None
    made.keep(GROUPS, BEGUN_S, {"g": Figures(backlog=1)})
    assert await made.figures(GROUPS, "g", 0) == []
    assert await made.deeds() == []
    with pytest.raises(sqlite3.Error):
        await made.note(LINE)
    assert made.trouble is not None
    await made.close()


async def test_a_folder_that_can_be_used_again_is_used_without_a_restart(tmp_path):
    folder = tmp_path / "c"
    folder.write_text("no folder")
    async with store(folder) as made:
        assert made.trouble is not None
        folder.unlink()
        await keep(made, BEGUN_S, g=1)
        assert made.trouble is None
        assert await made.note(LINE) == 1
        assert await backlog(made, "g", 0) == [(0, 1)]


@pytest.mark.parametrize("gone", ["file", "folder", "replaced"])
async def test_a_file_that_is_removed_under_the_console_begins_anew_so_that_deeds_are_there_after_it(
    tmp_path, caplog, gone
):
    async with store(tmp_path / "c") as made:
        await keep(made, BEGUN_S, g=1)
        await made.note(LINE)
        if gone == "replaced":
            (tmp_path / "c" / FILE).rename(tmp_path / "before")
            (tmp_path / "c" / FILE).touch()
        for file in (tmp_path / "c").glob(f"{FILE}*") if gone != "replaced" else ():
            file.unlink()
        if gone == "folder":
            (tmp_path / "c").rmdir()

        number = await made.note(replace(LINE, command="after"))
        await made.end(number, "done")
        await keep(made, BEGUN_S + 1, g=1)

        assert "were removed or replaced" in caplog.text
        assert made.trouble is None
    async with store(tmp_path / "c") as made:
        assert [(deed.command, deed.outcome) for deed in await made.deeds()] == [("after", "done")]
        assert await backlog(made, "g", 0) == [(1, 1)]


@pytest.mark.slow
async def test_a_full_disk_costs_the_history_until_there_is_room(tmp_path):
    with small_disk(tmp_path / "disk", "400k") as disk:
        async with store(disk / "c") as made:
            await keep(made, BEGUN_S, g=1)
            fill(disk)
            for second in range(1, 60):
                await keep(made, BEGUN_S + second, **{f"g{number}": second for number in range(50)})
            assert "full" in (made.trouble or "")
            deeds = [asyncio.ensure_future(made.note(replace(LINE, command="c" * 4_000))) for _ in range(1_000)]
            answers = await asyncio.gather(*deeds, return_exceptions=True)
            assert {type(one) for one in answers} <= {int, sqlite3.OperationalError}
            assert "full" in str(answers[-1])
            assert (await backlog(made, "g", 0))[0] == (0, 1)

            (disk / "junk").unlink()
            await keep(made, BEGUN_S + 99, g=99)
            assert made.trouble is None
            assert (await backlog(made, "g", 0))[-1] == (99, 99)
