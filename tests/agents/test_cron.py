"""When cron jobs are due: by local time, each once, over changes of clocks."""

import random
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

import flowshare as fs
from flowshare.agents.faust.cron import Cron
from tests.sim.seeds import drawn

BERLIN = ZoneInfo("Europe/Berlin")


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).astimezone(UTC).timestamp() * 1000)


def due(expression: str, begin: str, end: str, zone: object = BERLIN) -> list[str]:
    """Local times with their offsets at which a job is due, after `begin` and not after `end`."""
    cron, now, found = Cron(expression, zone), ms(begin), []
    while (now := cron.after_ms(now)) is not None and now <= ms(end):
        found.append(datetime.fromtimestamp(now / 1000, zone).isoformat(timespec="minutes"))
    return found


def test_a_job_of_every_minute_goes_on_through_both_changes():
    back = due("* * * * *", "2026-10-25T01:58:40+02:00", "2026-10-25T03:02:00+01:00")
    forward = due("* * * * *", "2026-03-29T01:57:40+01:00", "2026-03-29T03:02:00+02:00")

    assert len(back) == len(set(back)) == 124  # 01:59, 60 of the first hour, 60 of the second, 03:00 to 03:02
    assert back[61:63] == ["2026-10-25T02:00+01:00", "2026-10-25T02:01+01:00"]
    assert [text[11:] for text in forward] == [
        "01:58+01:00",
        "01:59+01:00",
        "03:00+02:00",
        "03:01+02:00",
        "03:02+02:00",
    ]


def test_a_job_at_a_fixed_time_keeps_its_local_time_over_both_changes():
    assert due("0 9 * * *", "2026-10-24T12:00+02:00", "2026-10-26T12:00+01:00") == [
        "2026-10-25T09:00+01:00",
        "2026-10-26T09:00+01:00",
    ]
    assert due("0 9 * * *", "2026-03-28T12:00+01:00", "2026-03-30T12:00+02:00") == [
        "2026-03-29T09:00+02:00",
        "2026-03-30T09:00+02:00",
    ]


def test_a_fixed_time_that_comes_twice_is_due_the_first_time():
    assert due("30 2 * * *", "2026-10-24T12:00+02:00", "2026-10-26T12:00+01:00") == [
        "2026-10-25T02:30+02:00",
        "2026-10-26T02:30+01:00",
    ]
    assert due("30 2 * * *", "2026-10-25T02:40+02:00", "2026-10-25T23:00+01:00") == []


def test_a_fixed_time_that_is_left_out_is_due_when_clocks_are_set():
    assert due("30,45 2 * * *", "2026-03-28T12:00+01:00", "2026-03-30T12:00+02:00") == [
        "2026-03-29T03:00+02:00",
        "2026-03-30T02:30+02:00",
        "2026-03-30T02:45+02:00",
    ]


@pytest.mark.parametrize("expression", ["0 * * * *", "@hourly", "0 */1 * * *"])
def test_an_hourly_job_has_a_turn_every_hour(expression):
    assert len(due(expression, "2026-10-25T00:30+02:00", "2026-10-25T05:30+01:00")) == 6
    assert len(due(expression, "2026-03-29T00:30+01:00", "2026-03-29T05:30+02:00")) == 4


def test_a_moment_that_is_just_before_a_due_one_gives_that_one_and_the_due_one_the_next():
    cron, nine = Cron("0 9 * * *", BERLIN), ms("2026-10-24T09:00+02:00")

    assert cron.after_ms(nine - 1.3) == nine
    assert cron.after_ms(nine) == ms("2026-10-25T09:00+01:00")


def test_a_job_of_a_leap_day_and_a_year_that_is_over():
    assert Cron("* * 29 2 *", BERLIN).after_ms(ms("2025-01-01T00:00+01:00")) == ms("2028-02-29T00:00+01:00")
    assert Cron("0 0 1 1 * 0 2020", BERLIN).after_ms(ms("2025-01-01T00:00+01:00")) is None
    assert Cron("* * * * * * 2020", BERLIN).after_ms(ms("2025-01-01T00:00+01:00")) is None


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/St_Johns"])
def test_what_is_due_is_what_each_second_of_the_zone_says(zone):
    """Against a walk through the minutes around a change; what is due more often has them all, the others once."""
    dice, place = random.Random(drawn()), ZoneInfo(zone)
    change = _change_of(place, dice.randrange(2024, 2034))
    hour = change.astimezone(place).hour
    minutes = [(change + timedelta(minutes=number)).astimezone(place) for number in range(-200, 200)]
    step = dice.choice([1, 7, 20])
    often = due(f"*/{step} * * * *", (minutes[0] - timedelta(seconds=1)).isoformat(), minutes[-1].isoformat(), place)
    assert often == [at.isoformat(timespec="minutes") for at in minutes if at.minute % step == 0]

    fixed = f"{dice.randrange(60)} {(hour + dice.choice([-1, 0, 1])) % 24} * * *"
    day = due(fixed, minutes[0].isoformat(), minutes[-1].isoformat(), place)
    wanted = {at.replace(tzinfo=None) for at in minutes[1:] if f"{at.minute} {at.hour} * * *" == fixed}
    assert len(day) == max(len(wanted), 1), (fixed, day)


def _change_of(zone: ZoneInfo, year: int) -> datetime:
    """A moment in that year at which the zone's clocks are set."""
    at = datetime(year, 1, 1, tzinfo=UTC)
    while at.astimezone(zone).utcoffset() == (at + timedelta(minutes=30)).astimezone(zone).utcoffset():
        at += timedelta(minutes=30)
    return at + timedelta(minutes=30)


@pytest.mark.parametrize(
    "expression", ["x", "", "60 * * * *", "0 0 30 2 *", "@reboot", None, 5, "*/0 * * * *", "h h * * *"]
)
def test_a_cron_expression_that_is_none_is_refused_at_import_by_the_jobs_name(expression):
    app = fs.App("t", broker="memory://")

    with pytest.raises(fs.errors.OptionError, match=r"cron job .*nightly"):

        @app.crontab(expression)
        async def nightly() -> None: ...
